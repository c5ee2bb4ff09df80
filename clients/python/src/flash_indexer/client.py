"""The clients: connections, deadlines and retries around the calls."""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

import httpx
import msgspec

from . import calls
from .calls import (
    Call,
    HashQueryOptions,
    PickOptions,
    PredictOptions,
    PromptOptions,
    QueryOptions,
    RegisterOptions,
    ScoreOptions,
    UnregisterOptions,
    error_of,
    unexpected,
)
from .conversation import AsyncConversation, Conversation
from .errors import ConnectionFailed, DeadlineExceeded, DumpCutOff, InvalidToken
from .models import Explanation, Matches, Pick, Readiness, Scores
from .retry import Attempts, is_refused_for_now

Answer = TypeVar("Answer")

_NDJSON = {"accept": "application/x-ndjson"}


def _headers(call: Call[Any]) -> dict[str, str]:
    return {"content-type": call.content_type} if call.content_type is not None else {}


def _settings(url: str, token: str | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Settings of an `httpx` client. Redirects are not followed, and proxies of the environment not used."""
    headers = {"authorization": f"Bearer {_checked_token(token)}"} if token is not None else {}
    try:
        parsed = httpx.URL(url)
        is_of_http = parsed.scheme in ("http", "https") and parsed.host != ""
    except httpx.InvalidURL:
        is_of_http = False
    if not is_of_http:
        raise ValueError(f"invalid service URL {url!r}; give one such as http://127.0.0.1:8090")
    return {"base_url": url, "headers": headers, "verify": tls if tls is not None else True, "trust_env": False}


def _checked_token(token: object) -> str:
    """The token without the white space around it, as a file has it. An error never shows a token."""
    if not isinstance(token, str):
        raise TypeError(f"token is of type {type(token).__name__}; give a str")
    token = token.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise InvalidToken("token: it is empty or has a character that a header cannot have")
    return token


class _DumpLines:
    """Decodes the lines of a dump and notices whether the last one came."""

    def __init__(self) -> None:
        self.is_whole = False

    def decode(self, line: str) -> dict[str, Any]:
        record = msgspec.json.decode(line, type=dict[str, Any])
        self.is_whole = "end" in record
        return record


@contextmanager
def _reading_dump(deadline_s: float) -> Iterator[_DumpLines]:
    """Names the failures of reading a dump."""
    lines = _DumpLines()
    try:
        yield lines
    except httpx.TimeoutException as error:
        raise DeadlineExceeded(f"the dump stood still for {deadline_s} s; raise deadline_s") from error
    except httpx.RemoteProtocolError as error:
        raise DumpCutOff(f"the dump is cut off: {error}; read it again") from error
    except (httpx.DecodingError, msgspec.DecodeError) as error:
        raise unexpected("/dump", error) from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"failed to read the dump: {error}; {_remedy(error)}") from error
    if not lines.is_whole:
        raise DumpCutOff("the dump has no last line: the service or the connection ended; read it again")


def _remedy(error: httpx.RequestError) -> str:
    """What to do about a failed connection. `httpx` passes most causes on as text."""
    failure = error.__context__  # of `httpcore`, which hides its cause
    if failure is not None and isinstance(failure.__context__, socket.gaierror):
        return f"the host {error.request.url.host!r} cannot be resolved: check the URL and the DNS"
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "give tls=ssl.create_default_context(cafile=...) with the authority of the service's certificate, "
            "and a URL with a host that the certificate names"
        )
    if error.request.url.scheme == "https" and "[SSL" in text:
        return "if this port has no TLS, give an http:// URL"
    if error.request.url.scheme == "http" and isinstance(error, httpx.RemoteProtocolError):
        return "is it a Flash Indexer? If this port has TLS, give an https:// URL"
    return "check that the service runs"


def _checked_deadline(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"deadline_s is {seconds!r}; give a number of seconds")
    if not 0 < float(seconds) < math.inf:
        raise ValueError(f"deadline_s is {seconds!r}; give a number of seconds above 0")
    return float(seconds)


def _checked_attempts(attempts: object) -> int:
    if isinstance(attempts, bool) or not isinstance(attempts, Integral):
        raise TypeError(f"attempts is {attempts!r}; give a number of attempts")
    return int(attempts)


def _step_limits(attempts: Attempts) -> dict[str, Any]:
    """Extensions of a request that give each step, such as reading the headers, the time that is left at its start."""
    timeouts: dict[str, float] = {}

    def start_step(_step: str, _details: object) -> None:
        timeouts.update(dict.fromkeys(("pool", "connect", "write", "read"), attempts.left_s()))

    start_step("", None)
    return {"timeout": timeouts, "trace": start_step}


def _pause_after_failure(
    error: httpx.RequestError | TimeoutError, call: Call[Any], attempts: Attempts, url: httpx.URL
) -> float:
    """Seconds to wait before the next attempt. Raises the error of the call if there is none."""
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        raise DeadlineExceeded(f"{call.path} was not answered within {attempts.deadline_s} s") from error
    if isinstance(error, httpx.DecodingError):
        raise unexpected(call.path, error) from error
    pause = attempts.pause_before_next()
    if pause is None:
        raise ConnectionFailed(f"failed to reach {url}: {error}; {_remedy(error)}") from error
    return pause


def _pause_after_answer(answer: httpx.Response, attempts: Attempts) -> float | None:
    """Seconds to wait before the next attempt; none if this answer is the call's."""
    if not is_refused_for_now(answer.status_code):
        return None
    return attempts.pause_before_next(answer.headers.get("retry-after"))


class Client:
    """Calls of a service, from one or several threads.

    Each call ends within `deadline_s` seconds, with up to `attempts` attempts: a connection that fails and an answer of
    429 or 503 are tried again, after the service's `Retry-After` or a growing pause. All calls can be repeated without
    harm. A call raises `ApiError` for a refused request, `ConnectionFailed`, `DeadlineExceeded`, and
    `UnexpectedAnswer` for an answer of another service.

    `AsyncClient` interrupts a call at the deadline. `Client` checks the deadline between the steps of a call and
    between the parts of a body. A slow step can delay the end of its call: resolving the host's name, a TLS handshake,
    sending a large request, headers that arrive byte by byte, or a pause within a body.

    An option that is `None` counts as absent. `token` is sent as a bearer token. `tls` verifies the service and has the
    client's certificate, if it needs one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline_s: float = 2.0,
        attempts: int = 3,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._deadline_s = _checked_deadline(deadline_s)
        self._attempts = _checked_attempts(attempts)
        self._http = httpx.Client(**_settings(url, token, tls))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def register(
        self,
        instance_id: int | str,
        endpoint: str,
        model_name: str | None = None,
        block_size: int | None = None,
        **options: Unpack[RegisterOptions],
    ) -> dict[str, Any]:
        """Registers a rank of an instance. Repeating it changes nothing.

        An engine of vLLM whose endpoint is `vllm://host:port`, its gRPC server, needs no model and no block size.
        """
        return self._send(calls.register(instance_id, endpoint, model_name, block_size, options))

    def unregister(
        self, instance_id: int | str, model_name: str, **options: Unpack[UnregisterOptions]
    ) -> dict[str, Any]:
        """Unregisters an instance, or one of its ranks."""
        return self._send(calls.unregister(instance_id, model_name, options))

    def query(self, model_name: str, token_ids: Collection[int], **options: Unpack[QueryOptions]) -> Matches:
        """The prefix of these tokens that each instance holds. Raises `UnknownCursor` with an outdated `after`."""
        return self._send(calls.query(model_name, token_ids, options))

    def query_by_hash(
        self, model_name: str, block_hashes: Iterable[int], **options: Unpack[HashQueryOptions]
    ) -> Matches:
        """The same for local hashes: see `local_hashes`."""
        return self._send(calls.query_by_hash(model_name, block_hashes, options))

    def conversation(self, model_name: str, **options: Unpack[PromptOptions]) -> Conversation:
        """A session whose turns repeat the prompts before them."""
        return Conversation(self._send, model_name, options)

    def score(self, model_name: str, prompt: str | Collection[int], **options: Unpack[ScoreOptions]) -> Scores:
        """Scores of the pods that hold a part of the prompt, a text or tokens."""
        return self._send(calls.score(model_name, prompt, options))

    def score_chat(self, request: Mapping[str, Any], **options: Unpack[ScoreOptions]) -> Scores:
        """The same for an OpenAI chat request with its `model` and `messages`."""
        return self._send(calls.score_chat(request, options))

    def predict(
        self,
        model_name: str,
        pod: int | str,
        prompt: str | Collection[int] | Mapping[str, Any],
        **options: Unpack[PredictOptions],
    ) -> dict[str, Any]:
        """Reports the pod that gets a prompt: a text, tokens, or an OpenAI chat request. Later scores count it.

        A chat is one of `model_name`, whatever its own `model` is.
        """
        return self._send(calls.predict(model_name, pod, prompt, options))

    def pick(
        self, model_name: str, prompt: str | Collection[int] | Mapping[str, Any], **options: Unpack[PickOptions]
    ) -> Pick:
        """The pod that gets a prompt, by what pods hold and by their load. `request_id` puts the request in flight.

        A chat is one of `model_name`, whatever its own `model` is.
        """
        return self._send(calls.pick(model_name, prompt, options))

    def done(
        self,
        model_name: str,
        request_id: str,
        *,
        phase: Literal["prefill", "finished"] = "finished",
        tenant_id: str | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """Reports that a request that `pick` or `predict` named has ended, or its prefill.

        `prompt_tokens` and `cached_tokens` are those of the usage in the engine's answer, both or neither.
        """
        hits = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        self._send(calls.done(model_name, request_id, phase, tenant_id=tenant_id, **hits))

    def explain(
        self,
        model_name: str,
        token_ids: Collection[int],
        *,
        instance_id: int | str | None = None,
        **options: Unpack[PromptOptions],
    ) -> Explanation:
        """Where each rank's match ends, and why."""
        return self._send(calls.explain(model_name, token_ids, instance_id, options))

    def tokenize(self, request: Mapping[str, Any]) -> list[int]:
        """The tokens that scores of a completion or chat request are computed for."""
        return self._send(calls.tokenize(request)).tokens

    def workers(self, *, model_name: str | None = None, tenant_id: str | None = None) -> list[Any]:
        """The registered instances with their listeners."""
        return self._send(calls.workers(model_name, tenant_id))

    def ready(self) -> Readiness:
        """Whether the service is ready, and what it waits for."""
        return self._send(calls.ready(), retries=False)

    def dump(self, *, model_name: str | None = None, tenant_id: str | None = None) -> Iterator[dict[str, Any]]:
        """The lines of a dump, as they arrive. The deadline counts for each part of the answer.

        Raises `DumpCutOff` after the last line if the dump is incomplete.
        """
        params = calls.filters(model_name, tenant_id)
        with _reading_dump(self._deadline_s) as lines:
            with self._http.stream("GET", "/dump", params=params, headers=_NDJSON, timeout=self._deadline_s) as answer:
                if answer.status_code >= 300:
                    raise error_of(answer.status_code, answer.read())
                for line in answer.iter_lines():
                    yield lines.decode(line)

    def _send(self, call: Call[Answer], *, retries: bool = True) -> Answer:
        attempts = Attempts(self._deadline_s, self._attempts if retries else 1)
        while True:
            attempts.begin()
            try:
                with self._http.stream(
                    call.method,
                    call.path,
                    params=call.params,
                    content=call.content,
                    headers=_headers(call),
                    extensions=_step_limits(attempts),
                ) as answer:
                    body = b"".join(attempts.until_deadline(answer.iter_bytes()))
            except httpx.RequestError as error:
                time.sleep(_pause_after_failure(error, call, attempts, self._http.base_url))
                continue
            pause = _pause_after_answer(answer, attempts)
            if pause is None:
                return call.answer(answer.status_code, body)
            time.sleep(pause)


class AsyncClient:
    """The same calls for `asyncio`. See `Client` for deadlines, retries and errors."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline_s: float = 2.0,
        attempts: int = 3,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._deadline_s = _checked_deadline(deadline_s)
        self._attempts = _checked_attempts(attempts)
        self._http = httpx.AsyncClient(**_settings(url, token, tls))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def register(
        self,
        instance_id: int | str,
        endpoint: str,
        model_name: str | None = None,
        block_size: int | None = None,
        **options: Unpack[RegisterOptions],
    ) -> dict[str, Any]:
        """See `Client.register`."""
        return await self._send(calls.register(instance_id, endpoint, model_name, block_size, options))

    async def unregister(
        self, instance_id: int | str, model_name: str, **options: Unpack[UnregisterOptions]
    ) -> dict[str, Any]:
        """See `Client.unregister`."""
        return await self._send(calls.unregister(instance_id, model_name, options))

    async def query(self, model_name: str, token_ids: Collection[int], **options: Unpack[QueryOptions]) -> Matches:
        """See `Client.query`."""
        return await self._send(calls.query(model_name, token_ids, options))

    async def query_by_hash(
        self, model_name: str, block_hashes: Iterable[int], **options: Unpack[HashQueryOptions]
    ) -> Matches:
        """See `Client.query_by_hash`."""
        return await self._send(calls.query_by_hash(model_name, block_hashes, options))

    def conversation(self, model_name: str, **options: Unpack[PromptOptions]) -> AsyncConversation:
        """See `Client.conversation`."""
        return AsyncConversation(self._send, model_name, options)

    async def score(self, model_name: str, prompt: str | Collection[int], **options: Unpack[ScoreOptions]) -> Scores:
        """See `Client.score`."""
        return await self._send(calls.score(model_name, prompt, options))

    async def score_chat(self, request: Mapping[str, Any], **options: Unpack[ScoreOptions]) -> Scores:
        """See `Client.score_chat`."""
        return await self._send(calls.score_chat(request, options))

    async def predict(
        self,
        model_name: str,
        pod: int | str,
        prompt: str | Collection[int] | Mapping[str, Any],
        **options: Unpack[PredictOptions],
    ) -> dict[str, Any]:
        """See `Client.predict`."""
        return await self._send(calls.predict(model_name, pod, prompt, options))

    async def pick(
        self, model_name: str, prompt: str | Collection[int] | Mapping[str, Any], **options: Unpack[PickOptions]
    ) -> Pick:
        """See `Client.pick`."""
        return await self._send(calls.pick(model_name, prompt, options))

    async def done(
        self,
        model_name: str,
        request_id: str,
        *,
        phase: Literal["prefill", "finished"] = "finished",
        tenant_id: str | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """See `Client.done`."""
        hits = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        await self._send(calls.done(model_name, request_id, phase, tenant_id=tenant_id, **hits))

    async def explain(
        self,
        model_name: str,
        token_ids: Collection[int],
        *,
        instance_id: int | str | None = None,
        **options: Unpack[PromptOptions],
    ) -> Explanation:
        """See `Client.explain`."""
        return await self._send(calls.explain(model_name, token_ids, instance_id, options))

    async def tokenize(self, request: Mapping[str, Any]) -> list[int]:
        """See `Client.tokenize`."""
        return (await self._send(calls.tokenize(request))).tokens

    async def workers(self, *, model_name: str | None = None, tenant_id: str | None = None) -> list[Any]:
        """See `Client.workers`."""
        return await self._send(calls.workers(model_name, tenant_id))

    async def ready(self) -> Readiness:
        """See `Client.ready`."""
        return await self._send(calls.ready(), retries=False)

    async def dump(
        self, *, model_name: str | None = None, tenant_id: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Client.dump`."""
        params = calls.filters(model_name, tenant_id)
        with _reading_dump(self._deadline_s) as lines:
            async with self._http.stream(
                "GET", "/dump", params=params, headers=_NDJSON, timeout=self._deadline_s
            ) as answer:
                if answer.status_code >= 300:
                    raise error_of(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    yield lines.decode(line)

    async def _send(self, call: Call[Answer], *, retries: bool = True) -> Answer:
        attempts = Attempts(self._deadline_s, self._attempts if retries else 1)
        while True:
            timeout = attempts.begin()
            try:
                async with asyncio.timeout(timeout):
                    answer = await self._http.request(
                        call.method,
                        call.path,
                        params=call.params,
                        content=call.content,
                        headers=_headers(call),
                        timeout=None,
                    )
            except (httpx.RequestError, TimeoutError) as error:
                await asyncio.sleep(_pause_after_failure(error, call, attempts, self._http.base_url))
                continue
            pause = _pause_after_answer(answer, attempts)
            if pause is None:
                return call.answer(answer.status_code, answer.content)
            await asyncio.sleep(pause)
