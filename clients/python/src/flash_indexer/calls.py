"""Requests of the HTTP API and the decoding of their answers, without I/O."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from .errors import ApiError, UnexpectedAnswer, UnknownCursor
from .hashing import token_bytes
from .models import Explanation, Matches, Pick, Readiness, Scores

Answer = TypeVar("Answer")
Params = Mapping[str, str | int | float | list[str]]


class PromptOptions(TypedDict, total=False):
    """Under which names a prompt's blocks are looked up."""

    tenant_id: str
    lora_name: str
    cache_salt: str


class HashQueryOptions(TypedDict, total=False):
    """Options of a query by hash."""

    tenant_id: str
    top_k: int
    min_score: int
    after: str


class QueryOptions(PromptOptions, total=False):
    """Options of a query."""

    top_k: int
    """Only the ranks with the deepest matches."""
    min_score: int
    """Only ranks with at least this number of tokens."""
    after: str
    """The cursor of an earlier answer: `token_ids` then are the tokens behind the ones that it covers."""


class ScoreOptions(PromptOptions, total=False):
    """Options of a score."""

    pods: list[str]
    """Only these pods."""
    top_k: int
    truncate_prompt_tokens: int


class PredictOptions(PromptOptions, total=False):
    """Options of a prediction."""

    ttl_ms: int
    request_id: str
    """The router's name of the request, which is in flight until `done`."""


class PickOptions(PromptOptions, total=False):
    """Options of a pick."""

    pods: list[str]
    """Only these pods."""
    truncate_prompt_tokens: int
    request_id: str
    """The router's name of the request, which is in flight until `done`."""
    pick_temperature: float
    pick_seed: int
    prefill_weight: float
    active_weight: float
    request_weight: float
    detail: bool
    """Also all candidates, with everything that their costs depend on."""


class RegisterOptions(TypedDict, total=False):
    """Optional fields of a registration."""

    tenant_id: str
    dp_rank: int
    replay_endpoint: str
    lora_name: str
    engine: str
    removal: str
    extra_keys: bool
    cache_blocks: int
    kind: str
    shared_caches: list[str]


class UnregisterOptions(TypedDict, total=False):
    """Which of an instance's ranks are unregistered; all without options."""

    tenant_id: str
    dp_rank: int


def check_options(options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises `TypeError` for a keyword argument that a call does not have. Python takes any for `**options`."""
    for unknown in options.keys() - names:
        hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(unknown, names, 1))
        raise TypeError(f"unexpected keyword argument {unknown!r}{hint or f'; the options are {sorted(names)}'}")


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """A request, and how its answer is decoded."""

    method: str
    path: str
    decode: Callable[[int, bytes], Answer]
    params: Params = field(default_factory=dict)
    content: bytes | None = None
    content_type: str | None = None

    def answer(self, status: int, body: bytes) -> Answer:
        """The decoded answer. Raises `ApiError` for a refusal, and `UnexpectedAnswer` for a body of another kind."""
        try:
            return self.decode(status, body)
        except msgspec.DecodeError as error:
            raise unexpected(self.path, error) from error


class _Refusal(msgspec.Struct):
    error: str


_WHOSE_URL = "is the URL a Flash Indexer's?"


def unexpected(path: str, cause: Exception) -> UnexpectedAnswer:
    """The error of an answer that the endpoint does not give."""
    return UnexpectedAnswer(f"failed to read the answer of {path}: {cause}; {_WHOSE_URL}")


def error_of(status: int, body: bytes) -> ApiError:
    """The error of an answer that is not a success."""
    try:
        message = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        text = body[:200].decode(errors="replace").strip()
        message = f"{text or 'no text'}; {_WHOSE_URL}"
    kind = UnknownCursor if status == 409 and "unknown cursor" in message else ApiError
    return kind(status, message)


def _expects(model: type[Answer]) -> Callable[[int, bytes], Answer]:
    decoder = msgspec.json.Decoder(model)

    def decode(status: int, body: bytes) -> Answer:
        if status >= 300:
            raise error_of(status, body)
        return decoder.decode(body)

    return decode


_MATCHES = _expects(Matches)
_SCORES = _expects(Scores)
_EXPLANATION = _expects(Explanation)
_PICK = _expects(Pick)
_OBJECT = _expects(dict[str, Any])
_LIST = _expects(list[Any])


class _Count(msgspec.Struct):
    count: int
    tokens: list[int]


_COUNT = _expects(_Count)


def _json(path: str, decode: Callable[[int, bytes], Answer], body: Mapping[str, Any]) -> Call[Answer]:
    return Call("POST", path, decode, content=msgspec.json.encode(body), content_type="application/json")


def _binary(path: str, decode: Callable[[int, bytes], Answer], content: bytes, params: Params) -> Call[Answer]:
    return Call("POST", path, decode, params=params, content=content, content_type="application/octet-stream")


def register(
    instance_id: int | str,
    endpoint: str,
    model_name: str | None,
    block_size: int | None,
    options: RegisterOptions,
) -> Call[dict[str, Any]]:
    """Registers a rank of an instance."""
    check_options(options, RegisterOptions.__optional_keys__)
    named = {"instance_id": instance_id, "endpoint": endpoint, "model_name": model_name, "block_size": block_size}
    given = {name: value for name, value in named.items() if value is not None}
    return _json("/register", _OBJECT, {**given, **options})


def unregister(instance_id: int | str, model_name: str, options: UnregisterOptions) -> Call[dict[str, Any]]:
    """Unregisters ranks of an instance."""
    check_options(options, UnregisterOptions.__optional_keys__)
    return _json("/unregister", _OBJECT, {"instance_id": instance_id, "model_name": model_name, **options})


def query(model_name: str, token_ids: Collection[int], options: QueryOptions) -> Call[Matches]:
    """Asks for the matches of tokens, as a binary body."""
    check_options(options, QueryOptions.__optional_keys__)
    return query_bytes(model_name, token_bytes(token_ids), options)


def query_bytes(model_name: str, tokens: bytes, options: QueryOptions) -> Call[Matches]:
    """Asks for the matches of tokens that are bytes already."""
    return _binary("/query", _MATCHES, tokens, _params(model_name, options))


def query_by_hash(model_name: str, block_hashes: Iterable[int], options: HashQueryOptions) -> Call[Matches]:
    """Asks for the matches of local hashes."""
    check_options(options, HashQueryOptions.__optional_keys__)
    return _json("/query_by_hash", _MATCHES, {"model_name": model_name, "block_hashes": list(block_hashes), **options})


def score(model_name: str, prompt: str | Collection[int], options: ScoreOptions) -> Call[Scores]:
    """Asks for the scores of a text or of tokens."""
    check_options(options, ScoreOptions.__optional_keys__)
    if isinstance(prompt, str):
        body = {"model_name": model_name, "prompt": prompt, **options, "detail": True}
        return _json("/score_completions", _SCORES, body)
    params = {**_params(model_name, options), "detail": "true"}
    return _binary("/score_completions", _SCORES, token_bytes(prompt), params)


def score_chat(request: Mapping[str, Any], options: ScoreOptions) -> Call[Scores]:
    """Asks for the scores of an OpenAI chat request, which is sent unchanged."""
    check_options(options, ScoreOptions.__optional_keys__)
    return _json("/score_chat_completions", _SCORES, {**request, **options, "detail": True})


def predict(
    model_name: str, pod: int | str, prompt: str | Collection[int] | Mapping[str, Any], options: PredictOptions
) -> Call[dict[str, Any]]:
    """Reports the pod that gets a prompt: a text, tokens, or an OpenAI chat request."""
    check_options(options, PredictOptions.__optional_keys__)
    if isinstance(prompt, str):
        return _json("/predict", _OBJECT, {"model_name": model_name, "pod": pod, "prompt": prompt, **options})
    if isinstance(prompt, Mapping):
        return _json("/predict", _OBJECT, {**prompt, "model_name": model_name, "pod": pod, **options})
    return _binary("/predict", _OBJECT, token_bytes(prompt), {**_params(model_name, options), "pod": pod})


def pick(model_name: str, prompt: str | Collection[int] | Mapping[str, Any], options: PickOptions) -> Call[Pick]:
    """Asks which pod gets a prompt: a text, tokens, or an OpenAI chat request."""
    check_options(options, PickOptions.__optional_keys__)
    if isinstance(prompt, str):
        return _json("/pick", _PICK, {"model_name": model_name, "prompt": prompt, **options})
    if isinstance(prompt, Mapping):
        return _json("/pick", _PICK, {**prompt, "model_name": model_name, **options})
    return _json("/pick", _PICK, {"model_name": model_name, "token_ids": list(prompt), **options})


def done(model_name: str, request_id: str, phase: str, **options: str | int | None) -> Call[dict[str, Any]]:
    """Reports the end of a request in flight, or of its prefill."""
    given = {name: value for name, value in options.items() if value is not None}
    return _json("/done", _OBJECT, {"model_name": model_name, "request_id": request_id, "phase": phase, **given})


def explain(
    model_name: str, token_ids: Collection[int], instance_id: int | str | None, options: PromptOptions
) -> Call[Explanation]:
    """Asks where each rank's match ends, and why."""
    check_options(options, PromptOptions.__optional_keys__)
    params = _params(model_name, options)
    if instance_id is not None:
        params["instance_id"] = str(instance_id)
    return _binary("/explain", _EXPLANATION, token_bytes(token_ids), params)


def tokenize(request: Mapping[str, Any]) -> Call[_Count]:
    """Asks for the tokens of a prompt or chat."""
    return _json("/tokenize", _COUNT, request)


def filters(model_name: str | None, tenant_id: str | None) -> dict[str, str]:
    """Parameters of an endpoint that answers for all models and tenants, or for these."""
    named = {"model_name": model_name, "tenant_id": tenant_id}
    return {name: value for name, value in named.items() if value is not None}


def workers(model_name: str | None, tenant_id: str | None) -> Call[list[Any]]:
    """Asks for the registered instances and their listeners."""
    return Call("GET", "/workers", _LIST, params=filters(model_name, tenant_id))


def ready() -> Call[Readiness]:
    """Asks for the readiness. A service that is not ready is an answer, not an error."""

    def decode(status: int, body: bytes) -> Readiness:
        if status not in (200, 503):
            raise error_of(status, body)
        return Readiness(status == 200, msgspec.json.decode(body, type=dict[str, Any]))

    return Call("GET", "/ready", decode)


def _params(model_name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_name": model_name, **options}
