"""Retries and deadlines against a service that misbehaves."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flash_indexer import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    DumpCutOff,
    UnexpectedAnswer,
)

MATCHES = b'{"scores": {}, "instances": {}}'
Answer = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def fake(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A service that answers the nth request by this function, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answer(self, len(asked))

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def test_what_is_refused_for_now_is_tried_again() -> None:
    def answer(handler: BaseHTTPRequestHandler, request: int) -> None:
        respond(handler, 503, b'{"error": "not now"}') if request < 3 else respond(handler, 200, MATCHES)

    with fake(answer) as (url, asked), Client(url, deadline_s=30) as client:
        assert client.query("m", [1]).scores == {}
        assert len(asked) == 3


def test_attempts_are_counted_and_the_last_answer_is_raised() -> None:
    with fake(lambda handler, _: respond(handler, 429, b'{"error": "slower"}')) as (url, asked):
        with Client(url, deadline_s=30, attempts=2) as client, pytest.raises(ApiError, match="slower") as refused:
            client.query("m", [1])
    assert (refused.value.status, len(asked)) == (429, 2)


def test_a_retry_after_the_deadline_is_not_waited_for() -> None:
    later = {"retry-after": "60"}
    with fake(lambda handler, _: respond(handler, 503, b'{"error": "later"}', later)) as (url, asked):
        with Client(url, deadline_s=30) as client, pytest.raises(ApiError, match="later"):
            client.query("m", [1])
    assert len(asked) == 1


def test_other_errors_are_not_tried_again() -> None:
    with fake(lambda handler, _: respond(handler, 500, b"<html>")) as (url, asked):
        with Client(url, deadline_s=30) as client, pytest.raises(ApiError, match="500: <html>"):
            client.query("m", [1])
    assert len(asked) == 1


def test_a_silent_service_ends_at_the_deadline() -> None:
    release = threading.Event()
    with fake(lambda handler, _: (release.wait(30), None)[1]) as (url, _):
        with Client(url, deadline_s=0.2) as client, pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
            client.query("m", [1])
        release.set()


def test_a_service_that_is_not_there_is_a_failed_connection() -> None:
    with Client("http://127.0.0.1:1", deadline_s=30) as client, pytest.raises(ConnectionFailed, match="is it running"):
        client.query("m", [1])


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url", ["localhost:8090", "localhost", "", "http://", "http:localhost:8090", "ftp://a", "http://h:x"]
)
def test_a_text_that_is_no_url_of_http_is_refused_at_once(client: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValueError, match=r"no URL of a service; give one such as http://127\.0\.0\.1:8090"):
        client(url)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"status": "ok"}', b'{"scores": [], "instances": {}}', b'"\xff"', b""]
)
def test_an_answer_of_another_service_is_an_error_of_the_package(body: bytes) -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url, deadline_s=30) as client:
            await client.query("m", [1])

    with fake(lambda handler, _: respond(handler, 200, body)) as (url, asked), Client(url, deadline_s=30) as client:
        with pytest.raises(UnexpectedAnswer, match=r"/query: .*; is the URL a Flash Indexer's"):
            client.query("m", [1])
        with pytest.raises(UnexpectedAnswer, match=r"/query: .*; is the URL a Flash Indexer's"):
            asyncio.run(ask(url))
    assert len(asked) == 2


def test_a_dump_or_readiness_of_another_service_is_an_error_of_the_package() -> None:
    with fake(lambda handler, _: respond(handler, 200, b"<html>")) as (url, _), Client(url, deadline_s=30) as client:
        with pytest.raises(UnexpectedAnswer, match="/dump"):
            list(client.dump())
        with pytest.raises(UnexpectedAnswer, match="/ready"):
            client.ready()
    encoded = {"content-encoding": "gzip"}
    with fake(lambda handler, _: respond(handler, 200, b"<html>", encoded)) as (url, _):
        with Client(url, deadline_s=30) as client, pytest.raises(UnexpectedAnswer, match="/workers"):
            client.workers()


@pytest.mark.parametrize("body", [b'{"error": 5}', b'{"error": {"message": "later"}}', b"[]"])
def test_a_refusal_of_another_service_is_quoted(body: bytes) -> None:
    with fake(lambda handler, _: respond(handler, 409, body)) as (url, _), Client(url, deadline_s=30) as client:
        with pytest.raises(ApiError) as refused:
            client.query("m", [1])
    assert (type(refused.value), refused.value.message) == (ApiError, body.decode())


def test_a_dump_that_is_cut_off_is_an_error() -> None:
    line = b'{"rank": {"instance_id": 1}}\n'
    with fake(lambda handler, _: respond(handler, 200, line)) as (url, _), Client(url, deadline_s=30) as client:
        lines = client.dump()
        assert "rank" in next(lines)
        with pytest.raises(DumpCutOff):
            next(lines)


def test_tokens_of_a_query_are_binary_and_its_names_parameters() -> None:
    with fake(lambda handler, _: respond(handler, 200, MATCHES)) as (url, asked), Client(url, deadline_s=30) as client:
        client.query("m/é", [1], top_k=3, cache_salt="a&b")
    assert asked == ["/query?model_name=m%2F%C3%A9&top_k=3&cache_salt=a%26b"]
