"""Hooks of Schemathesis: the part of the API that JSON Schema cannot describe, and the run that the test asks for."""

import atexit
import json
import os
import random
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, HookContext

import wrong
from service import PROMPT, Service

JSON = "application/json"
OCTET_STREAM = "application/octet-stream"
RUN: dict[str, Any] = json.loads(os.environ["HTTP_API_RUN"])
"""The run: the form of bodies, whether tokens are needed, values of the service, and the wrong entry, if any."""
MODEL = RUN["model"]
CHURNED_MODEL = "churned"
"""Model of registrations and unregistrations, so that the engine of the other requests stays."""
CHURNED_INSTANCES = [1, "pod-a", "pod-b"]
CHURNING = ("/register", "/unregister")
SAMPLES: dict[str, Any] = {
    "model_name": MODEL,
    "token_ids": list(range(40)),
    "block_hashes": RUN["block_hashes"],
    "messages": [{"role": "user", "content": "a b"}],
    "pod": RUN["instance"],
    "instance_id": RUN["instance"],
    "request_id": RUN["request_id"],
    "endpoint": "tcp://127.0.0.1:9",
    "block_size": 16,
    "url": "http://127.0.0.1:9",
}
"""Valid values of fields that a request may need."""
OF_PICKS = {"pick_temperature", "prefill_weight", "active_weight", "request_weight"}
IGNORED = {
    "/tokenize": OF_PICKS | {"pod", "pods", "lora_name", "cache_salt", "request_id"},
    "/render": OF_PICKS | {"pod", "pods", "lora_name", "cache_salt", "request_id"},
    "/predict": OF_PICKS | {"pods"},
    "/pick": {"pod"},
    "/score_completions": OF_PICKS | {"pod", "request_id"},
    "/score_chat_completions": OF_PICKS | {"pod", "request_id"},
}
"""Fields of other requests with a prompt, which an endpoint does not check beyond their types."""
SCHEMAS: dict[str, Any] = {}
"""The schemas of the document."""
ALIASES = [("model_name", "modelname", "model"), ("tenant_id", "routing_group")]

# Only the query string of a binary body is in the document. Both widths divide the length.
schemathesis.openapi.media_type(
    OCTET_STREAM,
    st.lists(st.integers(0, 2**64 - 1), max_size=40).map(lambda words: struct.pack(f"<{len(words)}Q", *words)),
)


FIRST_WORKER = {"model_name": "$response.body#/0/model_name", "instance_id": "$response.body#/0/instance_id"}
SAME_RANK = {"model_name": "$response.body#/model_name", "instance_id": "$response.body#/instance_id"}
LINKS: list[tuple[str, str, dict[str, Any]]] = [
    ("/workers", "digest", {"parameters": FIRST_WORKER}),
    ("/workers", "explain", {"requestBody": {"token_ids": [1], **FIRST_WORKER}}),
    ("/digest", "digest", {"parameters": SAME_RANK | {"at_sequence": "$response.body#/stream/cursor/sequence"}}),
    ("/register_peer", "deregister_peer", {"requestBody": {"url": "$request.body#/url"}}),
]
"""A successful response, and the operation of a later request with its values."""


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


@schemathesis.hook
def before_load_schema(context: HookContext, document: dict[str, Any]) -> None:
    """Leaves one form of bodies in the document, because only binary bodies have their fields in the query string."""
    SCHEMAS.update(document["components"]["schemas"])
    for path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {})
        if OCTET_STREAM in content:
            binary_only = [
                p for p in operation["parameters"] if p["description"].startswith("Only with a binary body.")
            ]
            assert binary_only, f"{path} lacks the parameters of binary bodies"
            if RUN["bodies"] == "binary":
                del content[JSON]
                content[OCTET_STREAM]["schema"] = {"type": "string", "format": "binary"}
                # The document cannot say that one of the names of the model is needed.
                operation["parameters"] = [p for p in operation["parameters"] if p["name"] not in ALIASES[0][1:]]
                required = {"model_name", "pod"} if path == "/predict" else {"model_name"}
                for parameter in binary_only:
                    parameter["required"] = parameter["name"] in required
            else:
                del content[OCTET_STREAM]
                operation["parameters"] = [p for p in operation["parameters"] if p not in binary_only]
        if RUN["token"] and "security" in operation:
            operation["security"].remove({})
    if RUN["bodies"] == "json":
        for path, operation_id, values in LINKS:
            (operation,) = document["paths"][path].values()
            for status in operation["responses"].keys() & {"200", "201"}:
                links = operation["responses"][status].setdefault("links", {})
                links[operation_id] = {"operationId": operation_id, **values}
    if RUN["wrong"]:
        wrong.ENTRIES[RUN["wrong"]].make(document)


@schemathesis.hook
def filter_case(context: HookContext, case: Case) -> bool:
    """Leaves out requests that are invalid only in what the endpoint does not check."""
    is_positive = case.meta is None or case.meta.generation.mode.is_positive
    if case.path == "/ui/{file}":
        # A name that no file has is not found, and not invalid.
        return is_positive
    if is_positive:
        return True
    if description(case) == "violates `additionalProperties`":
        # Unknown fields of an endpoint have no effect.
        return False
    blamed = blamed_fields(case)
    return not blamed or not blamed <= IGNORED.get(case.path, set())


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Leaves out aliases of fields that a link has set, and gives the service what other requests may have ended."""
    fields = case.body if isinstance(case.body, dict) else case.query
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(fields, dict):
        return
    service = Service(RUN["url"], RUN["token"])
    match case.path:
        case "/text_by_hash":
            service.post("/query", PROMPT)
        case "/done":
            service.begin_request()
    for names in ALIASES:
        for alias in names[1:]:
            if fields.get(names[0]) is not None:
                fields.pop(alias, None)


@schemathesis.hook
def map_case(context: HookContext, case: Case) -> Case:
    """Gives requests values that the service knows, so that they get beyond 404."""
    if case.meta is None:
        return case
    if case.path == "/ui/{file}" and case.meta.generation.mode.is_positive:
        case.path_parameters = {"file": "app.js"}
        return case
    is_json = isinstance(case.body, dict)
    fields = case.body if is_json else case.query
    if not isinstance(fields, dict) or not fields:
        return case
    if case.meta.generation.mode.is_positive:
        fields = with_known_values(case.path, as_the_service_takes(dict(fields)))
    else:
        blamed = sorted(blamed_fields(case) - IGNORED.get(case.path, set()))
        fields = with_one_fault(case, dict(fields), blamed[0] if len(blamed) == 1 else "")
    if is_json:
        case.body = fields
    else:
        case.query = fields
    return case


def description(case: Case) -> str:
    """What makes a request invalid."""
    return getattr(case.meta.phase.data, "description", None) or ""


def blamed_fields(case: Case) -> set[str]:
    """The fields that make a request invalid; empty if it is not fields of the body."""
    if found := re.findall(r"violates .* at \S*?/properties/([^/\s]+)", description(case)):
        return set(found)
    name = description(case).removeprefix("Missing required property: ").partition(":")[0].partition(" ->")[0]
    return {name} if name else set()


def with_one_fault(case: Case, fields: dict[str, Any], blamed: str) -> dict[str, Any]:
    """The fields of an invalid request, whose other fields are valid and known, so that nothing else refuses it."""
    fields = {name: known_value(case.path, name, value) for name, value in fields.items()}
    if case.path == "/register":
        # Only some endpoints provide the model and the block size.
        for name, value in (("block_size", 16), ("model_name", CHURNED_MODEL)):
            if name != blamed and fields.get(name) is None:
                fields[name] = value
        if blamed != "kind":
            fields.pop("kind", None)
    if not blamed or not isinstance(case.body, dict):
        return fields
    if blamed != "after":
        fields.pop("after", None)
    needed, alternatives = conditions(case.operation.definition.raw["requestBody"]["content"][JSON]["schema"])
    for group in needed:
        if not any(name in fields for name in group) and blamed not in group:
            fields[group[0]] = SAMPLES[group[0]]
    for group in alternatives:
        given = sorted((name for name in group if name in fields), key=lambda name: name != blamed)
        for name in given[1:]:
            del fields[name]
    return fields


def conditions(schema: dict[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Groups of fields of which a body needs at least one, and groups of which it has at most one."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].removeprefix("#/components/schemas/")]
    needed = [[name] for name in schema.get("required", [])]
    alternatives = []
    for part in schema.get("allOf", []):
        for groups, more in zip((needed, alternatives), conditions(part), strict=True):
            groups += more
    for kind in ("anyOf", "oneOf"):
        group = [name for part in schema.get(kind, []) for name in part.get("required", [])]
        needed += [group] if group else []
        alternatives += [group] if group and kind == "oneOf" else []
    return needed, alternatives


def known_value(path: str, name: str, value: Any) -> Any:
    """A value that the service knows, instead of a valid one."""
    is_text = isinstance(value, str) and len(value) <= 512 and not re.search(r"[\x00-\x1f\x7f-\x9f]", value)
    if name in ALIASES[0] and is_text and value:
        return CHURNED_MODEL if path in CHURNING else MODEL
    if name in ALIASES[1] and is_text:
        return "default"
    if name in ("instance_id", "pod") and is_text and 0 < len(value) <= 256:
        return str(RUN["instance"])
    return value


def as_the_service_takes(value: Any) -> Any:
    """A value within the limits that JSON Schema cannot say."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**64:
            # JSON Schema counts 1.0 as an integer, the service does not.
            return int(value)
        case str() if re.fullmatch("-?[0-9]{19,}", value):
            # Patterns of hashes have the number of digits, not the range.
            return value[:18]
        case str() if not value.isascii():
            # Limits of texts are in bytes, in JSON Schema in characters.
            return value[:60]
        case list():
            return [as_the_service_takes(one) for one in value]
        case dict():
            return {name: as_the_service_takes(one) for name, one in value.items()}
    return value


def with_known_values(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    choice = random.Random(json.dumps(fields, sort_keys=True, default=str))
    for names in ALIASES:
        # Two names of one field must have one value.
        given = [name for name in names if fields.get(name) is not None]
        for name in given[1:]:
            del fields[name]
    is_known = choice.random() < 0.8
    names = [name for name in ALIASES[0] if fields.get(name) is not None]
    if path in CHURNING:
        fields |= dict.fromkeys(names, CHURNED_MODEL)
        fields["instance_id"] = choice.choice(CHURNED_INSTANCES)
        unwanted = [*ALIASES[1], "dp_rank"] if is_known else ALIASES[1]
    elif is_known:
        fields |= dict.fromkeys(names, MODEL)
        fields |= {name: RUN["instance"] for name in ("instance_id", "pod") if fields.get(name) is not None}
        unwanted = [*ALIASES[1], "after", "at_sequence", "dp_rank"]
    else:
        unwanted = []
    for name in unwanted:
        fields.pop(name, None)
    if path == "/done" and is_known:
        # The end of its prefill leaves the request in flight.
        fields |= {"request_id": RUN["request_id"], "phase": "prefill"}
    if path == "/done":
        # Both numbers or neither, of a finished request, and no more tokens cached than the prompt has.
        hits = [fields.get(name) for name in ("prompt_tokens", "cached_tokens")]
        if fields.get("phase") == "prefill" or None in hits or sorted(hits, reverse=True) != hits:
            for name in ("prompt_tokens", "cached_tokens"):
                fields.pop(name, None)
    if path == "/register":
        # The id and the kind of a shared cache belong together.
        fields.pop("kind", None)
        # Only some endpoints provide the model and the block size.
        fields["block_size"] = fields.get("block_size") or 16
        if all(fields.get(name) is None for name in ALIASES[0]):
            fields["model_name"] = CHURNED_MODEL
        if fields.get("shared_caches") is not None:
            fields["shared_caches"] = ["node:a", "pool:b"][: len(fields["shared_caches"])]
    if path == "/register" and fields.get("events") == "none":
        for name in ("endpoint", "replay_endpoint"):
            fields.pop(name, None)
    elif path == "/register":
        fields.pop("cache_blocks", None)
        fields["endpoint"] = choice.choice(["tcp://127.0.0.1:9", "tcp://localhost:9"])
        if fields.get("replay_endpoint") is not None:
            # Another port: the endpoint of events answers no replay, and is refused.
            fields["replay_endpoint"] = "tcp://127.0.0.1:10"
        fields["block_size"] = choice.choice([16, 16, 16, fields["block_size"]])
    if "url" in fields:
        fields["url"] = choice.choice(["http://127.0.0.1:9", "http://localhost:9/a", "https://127.0.0.1:9"])
    if path == "/text_by_hash" and is_known:
        fields["block_hashes"] = [RUN["prompt_hash"]]
        fields.pop("from_block", None)
    if path == "/digest":
        fields["wait_ms"] = 0
    if fields.get("messages") is not None:
        fields["messages"] = [{"role": "user", "content": choice.choice(["", "a b", "é"])}]
    if fields.get("block_hashes") is not None and choice.random() < 0.5:
        fields["block_hashes"] = RUN["block_hashes"] + fields["block_hashes"]
    if isinstance(fields.get("prompt"), list):
        # A list has one prompt.
        fields["prompt"] = fields["prompt"][:1] or [[]]
    return fields


successes: Counter[str] = Counter()


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Any) -> None:
    successes[f"{case.operation.path} {case.operation.method.upper()}"] += response.status_code < 300


@atexit.register
def write_successes() -> None:
    Path(RUN["successes"]).write_text(json.dumps(successes))
