"""An API server of Kubernetes without objects, for `kubectl --dry-run=client`: its resources and their schemas."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, ClassVar

from support import Handler, serving

# Resources by group and version: name in addresses, kind, and whether objects have a namespace.
RESOURCES = {
    "v1": [
        ("configmaps", "ConfigMap", True),
        ("services", "Service", True),
        ("serviceaccounts", "ServiceAccount", True),
    ],
    "apps/v1": [("statefulsets", "StatefulSet", True)],
    "monitoring.coreos.com/v1": [
        ("prometheusrules", "PrometheusRule", True),
        ("servicemonitors", "ServiceMonitor", True),
    ],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy", True)],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True)],
    "rbac.authorization.k8s.io/v1": [
        ("clusterrolebindings", "ClusterRoleBinding", False),
        ("clusterroles", "ClusterRole", False),
        ("rolebindings", "RoleBinding", True),
        ("roles", "Role", True),
    ],
}


def _discovery(version: str) -> dict[str, Any]:
    """The answers of discovery by address."""
    major, minor = version.split(".")
    groups = []
    answers: dict[str, Any] = {
        "/version": {"major": major, "minor": minor, "gitVersion": f"v{version}.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for group_version, resources in RESOURCES.items():
        path = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        listed = [
            {"name": name, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": ["get", "create"]}
            for name, kind, namespaced in resources
        ]
        answers[path] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": listed,
        }
        if "/" in group_version:
            group, number = group_version.split("/")
            one = {"groupVersion": group_version, "version": number}
            groups.append({"name": group, "versions": [one], "preferredVersion": one})
    return answers


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def _field(number: int, value: str | bytes) -> bytes:
    """A field of a Protocol Buffers message: a text or a message."""
    encoded = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(encoded)) + encoded


def _named(schemas: dict[str, Any]) -> bytes:
    """`Definitions` or `Properties`: schemas by name."""
    return b"".join(_field(1, _field(1, name) + _field(2, _schema(schema))) for name, schema in schemas.items())


def _schema(schema: dict[str, Any]) -> bytes:
    """A JSON schema as `Schema` of gnostic's openapi.v2."""
    if "$ref" in schema:
        return _field(1, "#/definitions/" + schema["$ref"].rpartition("/")[2])
    message = b""
    if "oneOf" in schema:  # A quantity, or a name or number of a port.
        schema = {**schema, "type": "string", "format": "int-or-string"}
    if "format" in schema:
        message += _field(2, schema["format"])
    message += b"".join(_field(19, name) for name in schema.get("required", []))
    if "additionalProperties" in schema:
        message += _field(21, _field(1, _schema(schema["additionalProperties"])))
    if "type" in schema:
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        message += _field(22, _field(1, next(one for one in types if one != "null")))
    if "items" in schema:
        message += _field(23, _field(1, _schema(schema["items"])))
    if "properties" in schema:
        message += _field(25, _named(schema["properties"]))
    kinds = "x-kubernetes-group-version-kind"
    if kinds in schema:
        message += _field(31, _field(1, kinds) + _field(2, _field(2, json.dumps(schema[kinds]))))
    return message


def _openapi(version: str) -> bytes:
    """The schemas of a version of Kubernetes as kubectl reads them: `Document` of gnostic's openapi.v2."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return _field(1, "2.0") + _field(9, _named(definitions))


@contextmanager
def api_server(version: str) -> Iterator[str]:
    """The address of an API server of this version. It has no objects and takes none: there is no POST or PATCH."""

    class Discovery(Handler):
        answers: ClassVar[dict[str, Any]] = _discovery(version)
        schemas: ClassVar[bytes] = _openapi(version)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/openapi/v2":
                self.answer(200, self.schemas)
            elif path in self.answers:
                self.answer(200, self.answers[path])
            else:
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                self.answer(404, status)

    with serving(Discovery) as (address, _):
        yield address
