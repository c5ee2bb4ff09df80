"""Wrong entries of the OpenAPI document, each with the check that must find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass
class Wrong:
    """A wrong entry."""

    path: str
    finding: str
    """Title of the failure that the run reports."""
    make: Callable[[Document], object]


def schema(document: Document, name: str) -> Document:
    return document["components"]["schemas"][name]


def responses(document: Document, path: str) -> Document:
    (operation,) = document["paths"][path].values()
    return operation["responses"]


def miss_status(document: Document) -> None:
    del responses(document, "/query")["404"]


def change_type(document: Document) -> None:
    schema(document, "Worker")["properties"]["block_size"]["type"] = "string"


def require_field(document: Document) -> None:
    schema(document, "Success")["required"].append("missing")


def change_content_type(document: Document) -> None:
    response = responses(document, "/metrics")["200"]
    response["content"] = {"application/xml": {}}


def allow_zero(document: Document) -> None:
    schema(document, "TokenQuery")["allOf"][1]["properties"]["top_k"]["minimum"] = 0


def refuse_number(document: Document) -> None:
    schema(document, "HashQuery")["allOf"][1]["properties"]["top_k"]["maximum"] = 3


def open_endpoint(document: Document) -> None:
    (operation,) = document["paths"]["/health"].values()
    operation["security"] = [{"bearer": []}]


ENTRIES = {
    "a status that is missing": Wrong("/query", "Undocumented status code", miss_status),
    "a field of another type": Wrong("/workers", "Response violates schema", change_type),
    "a field that no response has": Wrong("/health", "Response violates schema", require_field),
    "another content type": Wrong("/metrics", "Undocumented Content-Type", change_content_type),
    "a number that is refused": Wrong("/query", "Schema-valid request rejected", allow_zero),
    "a limit that is not kept": Wrong("/query_by_hash", "Schema-violating request accepted", refuse_number),
    "a token that is not needed": Wrong("/health", "API accepts requests without authentication", open_endpoint),
}
