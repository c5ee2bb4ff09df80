"""Requests of the HTTP API and the decoding of their answers, without I/O."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from .errors import ApiError, UnexpectedAnswer, UnknownCursor
from .hashing import hash_integers, token_bytes, token_words, utf8
from .models import Explanation, Matches, Pick, Readiness, Scores

Answer = TypeVar("Answer")
Params = Mapping[str, str | int | float | list[str]]


class PromptOptions(TypedDict, total=False):
    """Under which names a prompt's blocks are looked up."""

    tenant_id: str | None
    lora_name: str | None
    cache_salt: str | None


class HashQueryOptions(TypedDict, total=False):
    """Options of a query by hash."""

    tenant_id: str | None
    top_k: int | None
    min_score: int | None
    after: str | None


class QueryOptions(PromptOptions, total=False):
    """Options of a query."""

    top_k: int | None
    """Only the ranks with the deepest matches."""
    min_score: int | None
    """Only ranks with at least this number of tokens."""
    after: str | None
    """The cursor of an earlier answer: `token_ids` then are the tokens after those that it covers."""


class ScoreOptions(PromptOptions, total=False):
    """Options of a score."""

    pods: Iterable[int | str] | None
    """Only these pods."""
    top_k: int | None
    truncate_prompt_tokens: int | None


class PredictOptions(PromptOptions, total=False):
    """Options of a prediction."""

    ttl_ms: int | None
    request_id: str | None
    """The router's name of the request, which is in flight until `done`."""


class PickOptions(PromptOptions, total=False):
    """Options of a pick."""

    pods: Iterable[int | str] | None
    """Only these pods."""
    truncate_prompt_tokens: int | None
    request_id: str | None
    """The router's name of the request, which is in flight until `done`."""
    pick_temperature: float | None
    pick_seed: int | None
    prefill_weight: float | None
    active_weight: float | None
    request_weight: float | None
    detail: bool | None
    """Also all candidates, with everything that their costs depend on."""


class RegisterOptions(TypedDict, total=False):
    """Optional fields of a registration."""

    tenant_id: str | None
    dp_rank: int | None
    replay_endpoint: str | None
    lora_name: str | None
    engine: str | None
    removal: str | None
    extra_keys: bool | None
    cache_blocks: int | None
    kind: str | None
    shared_caches: list[str] | None


class UnregisterOptions(TypedDict, total=False):
    """Which of an instance's ranks are unregistered; all without options."""

    tenant_id: str | None
    dp_rank: int | None


def given_options(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The options of a call that are not `None`, with `pods` as a list.

    Raises `TypeError` for a keyword argument that the call does not have, because Python takes any for `**options`, and
    for a text in place of a list of pods.
    """
    for unknown in options.keys() - names:
        hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(unknown, names, 1))
        raise TypeError(f"unexpected keyword argument {unknown!r}{hint or f'; the options are {sorted(names)}'}")
    given = _without_none(options)
    if (pods := given.get("pods")) is not None:
        if isinstance(pods, str | bytes) or not isinstance(pods, Iterable):
            raise TypeError(f"pods is {pods!r}; give a list of pods")
        # A query string repeats the items of a list only, and JSON has no iterators.
        given["pods"] = list(pods)
    return given


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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


_URL_REMEDY = "check that the URL is Flash Indexer's"
_QUOTED_MAX = 80


def unexpected(path: str, cause: Exception) -> UnexpectedAnswer:
    """The error of an answer that the endpoint does not give."""
    return UnexpectedAnswer(f"failed to read the answer of {path}: {cause}; {_URL_REMEDY}")


def error_of(status: int, body: bytes) -> ApiError:
    """The error of an answer that is not a success."""
    try:
        message = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        text = " ".join(body[:200].decode(errors="replace").split())
        if len(text) > _QUOTED_MAX:
            text = f"{text[:_QUOTED_MAX]}..."
        message = f"{text or 'no text'}; {_URL_REMEDY}"
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
    try:
        content = msgspec.json.encode(body)
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8. As an escape it reaches the service, whose error has the remedy.
        content = json.dumps(msgspec.to_builtins(body)).encode()
    return Call("POST", path, decode, content=content, content_type="application/json")


def _binary(path: str, decode: Callable[[int, bytes], Answer], content: bytes, params: Params) -> Call[Answer]:
    _check_texts(params)
    return Call("POST", path, decode, params=params, content=content, content_type="application/octet-stream")


def _check_texts(params: Params) -> None:
    """Raises `ValueError` for a parameter that a query string cannot have."""
    for name, value in params.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                utf8(text, name)


def register(
    instance_id: int | str,
    endpoint: str,
    model_name: str | None,
    block_size: int | None,
    options: RegisterOptions,
) -> Call[dict[str, Any]]:
    """Registers a rank of an instance."""
    given = given_options(options, RegisterOptions.__optional_keys__)
    named = {"instance_id": instance_id, "endpoint": endpoint, "model_name": model_name, "block_size": block_size}
    return _json("/register", _OBJECT, {**_without_none(named), **given})


def unregister(instance_id: int | str, model_name: str, options: UnregisterOptions) -> Call[dict[str, Any]]:
    """Unregisters ranks of an instance."""
    given = given_options(options, UnregisterOptions.__optional_keys__)
    return _json("/unregister", _OBJECT, {"instance_id": instance_id, "model_name": model_name, **given})


def query(model_name: str, token_ids: Collection[int], options: QueryOptions) -> Call[Matches]:
    """Asks for the matches of tokens, as a binary body."""
    given = given_options(options, QueryOptions.__optional_keys__)
    return query_bytes(model_name, token_bytes(token_ids), given)


def query_bytes(model_name: str, tokens: bytes, given: Mapping[str, Any]) -> Call[Matches]:
    """Asks for the matches of tokens that are bytes already."""
    return _binary("/query", _MATCHES, tokens, _params(model_name, given))


def query_by_hash(model_name: str, block_hashes: Iterable[int], options: HashQueryOptions) -> Call[Matches]:
    """Asks for the matches of local hashes."""
    given = given_options(options, HashQueryOptions.__optional_keys__)
    hashes = hash_integers(block_hashes, "block_hashes")
    return _json("/query_by_hash", _MATCHES, {"model_name": model_name, "block_hashes": hashes, **given})


def score(model_name: str, prompt: str | Collection[int], options: ScoreOptions) -> Call[Scores]:
    """Asks for the scores of a text or of tokens."""
    given = given_options(options, ScoreOptions.__optional_keys__)
    if isinstance(prompt, str):
        body = {"model_name": model_name, "prompt": prompt, **given, "detail": True}
        return _json("/score_completions", _SCORES, body)
    params = {**_params(model_name, given), "detail": "true"}
    return _binary("/score_completions", _SCORES, token_bytes(prompt, "prompt"), params)


def score_chat(request: Mapping[str, Any], options: ScoreOptions) -> Call[Scores]:
    """Asks for the scores of an OpenAI chat request, which is sent unchanged."""
    given = given_options(options, ScoreOptions.__optional_keys__)
    return _json("/score_chat_completions", _SCORES, {**request, **given, "detail": True})


def predict(
    model_name: str, pod: int | str, prompt: str | Collection[int] | Mapping[str, Any], options: PredictOptions
) -> Call[dict[str, Any]]:
    """Reports the pod that gets a prompt: a text, tokens, or an OpenAI chat request."""
    given = given_options(options, PredictOptions.__optional_keys__)
    if isinstance(prompt, str):
        return _json("/predict", _OBJECT, {"model_name": model_name, "pod": pod, "prompt": prompt, **given})
    if isinstance(prompt, Mapping):
        return _json("/predict", _OBJECT, {**_named(prompt, model_name), "pod": pod, **given})
    return _binary("/predict", _OBJECT, token_bytes(prompt, "prompt"), {**_params(model_name, given), "pod": pod})


def pick(model_name: str, prompt: str | Collection[int] | Mapping[str, Any], options: PickOptions) -> Call[Pick]:
    """Asks which pod gets a prompt: a text, tokens, or an OpenAI chat request."""
    given = given_options(options, PickOptions.__optional_keys__)
    if isinstance(prompt, str):
        return _json("/pick", _PICK, {"model_name": model_name, "prompt": prompt, **given})
    if isinstance(prompt, Mapping):
        return _json("/pick", _PICK, {**_named(prompt, model_name), **given})
    token_ids = token_words(prompt, "prompt").tolist()
    return _json("/pick", _PICK, {"model_name": model_name, "token_ids": token_ids, **given})


def done(model_name: str, request_id: str, phase: str, **options: str | int | None) -> Call[dict[str, Any]]:
    """Reports the end of a request in flight, or of its prefill."""
    named = {"model_name": model_name, "request_id": request_id, "phase": phase}
    return _json("/done", _OBJECT, {**named, **_without_none(options)})


def explain(
    model_name: str, token_ids: Collection[int], instance_id: int | str | None, options: PromptOptions
) -> Call[Explanation]:
    """Asks where each rank's match ends, and why."""
    given = given_options(options, PromptOptions.__optional_keys__)
    params = _params(model_name, given)
    if instance_id is not None:
        params["instance_id"] = str(instance_id)
    return _binary("/explain", _EXPLANATION, token_bytes(token_ids), params)


def tokenize(request: Mapping[str, Any]) -> Call[_Count]:
    """Asks for the tokens of a prompt or chat."""
    return _json("/tokenize", _COUNT, request)


def filters(model_name: str | None, tenant_id: str | None) -> dict[str, str]:
    """Parameters of an endpoint that answers for all models and tenants, or for these."""
    given = _without_none({"model_name": model_name, "tenant_id": tenant_id})
    _check_texts(given)
    return given


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


def _named(chat: Mapping[str, Any], model_name: str) -> dict[str, Any]:
    """A chat request for this model. Its `model` is left out: a model under two names must have one value."""
    return {**{name: value for name, value in chat.items() if name != "model"}, "model_name": model_name}


def _params(model_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_name": model_name, **given}
