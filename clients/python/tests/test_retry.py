"""Retries and deadlines against a service that misbehaves."""

import asyncio
import math
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flash_indexer import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    DumpCutOff,
    InvalidToken,
    UnexpectedAnswer,
    local_hashes,
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
    remedy = "check that the service runs"
    with Client("http://127.0.0.1:1", deadline_s=30) as client, pytest.raises(ConnectionFailed, match=remedy):
        client.query("m", [1])


def query(kind: type[Client] | type[AsyncClient], url: str, deadline_s: float) -> None:
    """One query by a client of either kind."""

    async def ask() -> None:
        async with AsyncClient(url, deadline_s=deadline_s, attempts=1) as client:
            await client.query("m", [1])

    if kind is AsyncClient:
        asyncio.run(ask())
    else:
        with Client(url, deadline_s=deadline_s, attempts=1) as client:
            client.query("m", [1])


@pytest.mark.parametrize(("kind", "at_once"), [(Client, "headers"), (AsyncClient, "headers"), (AsyncClient, "nothing")])
def test_an_answer_that_arrives_byte_by_byte_ends_at_the_deadline(
    kind: type[Client] | type[AsyncClient], at_once: str
) -> None:
    headers = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
    sent, rest = (headers, b"") if at_once == "headers" else (b"", headers)

    def drip(handler: BaseHTTPRequestHandler, _: int) -> None:
        with suppress(OSError):
            handler.wfile.write(sent)
            for byte in rest + MATCHES.ljust(100):
                time.sleep(0.05)
                handler.wfile.write(bytes([byte]))

    with fake(drip) as (url, _), pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
        query(kind, url, deadline_s=0.2)


def test_each_step_of_a_call_may_take_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []
    settimeout = socket.socket.settimeout

    def record(self: socket.socket, seconds: float) -> None:
        timeouts.append(seconds)
        settimeout(self, seconds)

    with fake(lambda handler, _: respond(handler, 200, MATCHES)) as (url, _), Client(url, deadline_s=30) as client:
        monkeypatch.setattr(socket.socket, "settimeout", record)
        client.query("m", [1])
        monkeypatch.undo()
    assert timeouts == sorted(timeouts, reverse=True)
    assert len(set(timeouts)) >= 4, "to connect, to send headers and body, and to receive differ"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_host_without_an_address_is_named(
    kind: type[Client] | type[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionFailed, match="the host 'gpu-9' cannot be resolved: check the URL"):
        query(kind, "http://gpu-9:8090", deadline_s=30)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("token", ["", " ", "\n", "fidx_secret\nx", "fidx_secret\u00e9", "fidx secret"])
def test_a_token_that_cannot_be_sent_is_an_error_that_does_not_show_it(client: type, token: str) -> None:
    with pytest.raises(InvalidToken) as raised:
        client("http://127.0.0.1:1", token=token)
    assert "secret" not in str(raised.value)


def test_a_token_from_a_file_is_sent_without_its_last_line_break() -> None:
    sent: list[str] = []

    def answer(handler: BaseHTTPRequestHandler, _: int) -> None:
        sent.append(handler.headers["authorization"])
        respond(handler, 200, MATCHES)

    with fake(answer) as (url, _), Client(url, token="fidx_1\n") as client:
        client.query("m", [1])
    assert sent == ["Bearer fidx_1"]


def test_a_refusal_without_json_names_the_url_as_a_cause() -> None:
    with fake(lambda handler, _: respond(handler, 404, b"")) as (url, _), Client(url) as client:
        with pytest.raises(ApiError, match="404: no text; check that the URL"):
            client.query("m", [1])


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url", ["localhost:8090", "localhost", "", "http://", "http:localhost:8090", "ftp://a", "http://h:x"]
)
def test_a_text_that_is_no_url_of_http_is_refused_at_once(client: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValueError, match=r"invalid service URL .*; give one such as http://127\.0\.0\.1:8090"):
        client(url)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"status": "ok"}', b'{"scores": [], "instances": {}}', b'"\xff"', b""]
)
def test_an_answer_of_another_service_is_an_error_of_the_package(body: bytes) -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url, deadline_s=30) as client:
            await client.query("m", [1])

    with fake(lambda handler, _: respond(handler, 200, body)) as (url, asked), Client(url, deadline_s=30) as client:
        with pytest.raises(UnexpectedAnswer, match=r"/query: .*; check that the URL is Flash Indexer's"):
            client.query("m", [1])
        with pytest.raises(UnexpectedAnswer, match=r"/query: .*; check that the URL is Flash Indexer's"):
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
    expected = f"{body.decode()}; check that the URL is Flash Indexer's"
    assert (type(refused.value), refused.value.message) == (ApiError, expected)


def test_a_page_of_another_service_is_quoted_in_part_and_on_one_line() -> None:
    page = b"<html>\n<head>" + 100 * b"\n  <meta>"
    with fake(lambda handler, _: respond(handler, 404, page)) as (url, _), Client(url, deadline_s=30) as client:
        with pytest.raises(ApiError) as refused:
            client.query("m", [1])
    quoted, _, question = refused.value.message.partition("...; ")
    assert (quoted[:20], len(quoted), question) == ("<html> <head> <meta>", 80, "check that the URL is Flash Indexer's")


@contextmanager
def answering_bytes(answer: bytes) -> Iterator[int]:
    """The port of a server that answers each connection with these bytes, whatever it is sent."""
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        serving = threading.Thread(target=serve)
        serving.start()
        yield server.getsockname()[1]
        stopped.set()
        serving.join()


def test_a_url_without_tls_for_a_port_with_tls_and_the_reverse_name_the_right_scheme() -> None:
    tls_alert = b"\x15\x03\x03\x00\x02\x02\x46"
    with answering_bytes(tls_alert) as port, Client(f"http://127.0.0.1:{port}", deadline_s=30) as client:
        with pytest.raises(ConnectionFailed, match="give an https:// URL"):
            client.query("m", [1])
    with answering_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        with Client(f"https://127.0.0.1:{port}", deadline_s=30) as client:
            with pytest.raises(ConnectionFailed, match="give an http:// URL"):
                client.query("m", [1])


def test_a_certificate_of_an_unknown_authority_names_the_setting(tmp_path: Path) -> None:
    pair = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*new, *pair, "-subj", "/CN=localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as plain, context.wrap_socket(plain, server_side=True) as server:
        refusals: list[OSError] = []

        def serve() -> None:
            try:
                server.accept()
            except OSError as error:
                refusals.append(error)

        serving = threading.Thread(target=serve)
        serving.start()
        with Client(f"https://localhost:{server.getsockname()[1]}", deadline_s=30, attempts=1) as client:
            with pytest.raises(ConnectionFailed, match=r"tls=ssl\.create_default_context\(cafile=\.\.\.\)"):
                client.query("m", [1])
        serving.join()
    assert len(refusals) == 1


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_deadline_that_is_no_number_of_seconds_is_refused_at_once(client: type[Client] | type[AsyncClient]) -> None:
    other_types: tuple[Any, ...] = ("2", None, True)
    for wrong in other_types:
        with pytest.raises(TypeError, match="deadline_s is"):
            client("http://127.0.0.1:1", deadline_s=wrong)
    for seconds in (-1, 0, math.nan, math.inf):
        with pytest.raises(ValueError, match="deadline_s is"):
            client("http://127.0.0.1:1", deadline_s=seconds)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_attempts_and_tokens_of_another_type_are_refused_at_once(client: type[Client] | type[AsyncClient]) -> None:
    other_types: tuple[Any, ...] = ("2", None, 1.5, True)
    for wrong in other_types:
        with pytest.raises(TypeError, match=re.escape(f"attempts is {wrong!r}; give a number of attempts")):
            client("http://127.0.0.1:1", attempts=wrong)
    secrets: tuple[Any, ...] = (371, b"371")
    for wrong in secrets:
        with pytest.raises(TypeError, match=f"^token is of type {type(wrong).__name__}; give a str$"):
            client("http://127.0.0.1:1", token=wrong)


@pytest.mark.parametrize("wrong", ["hello", ["a"], [1.5], 5, None])
def test_tokens_that_are_no_integers_are_refused_with_the_name_of_the_argument(wrong: Any) -> None:
    with Client("http://127.0.0.1:1") as client:
        calls: list[tuple[str, Callable[[Any], object]]] = [
            ("token_ids", lambda tokens: client.query("m", tokens)),
            ("token_ids", lambda tokens: client.explain("m", tokens)),
            ("token_ids", lambda tokens: client.conversation("m").query(tokens)),
            ("tokens", lambda tokens: local_hashes(tokens, 16)),
        ]
        if not isinstance(wrong, str):
            calls += [
                ("prompt", lambda prompt: client.score("m", prompt)),
                ("prompt", lambda prompt: client.predict("m", "gpu-1", prompt)),
                ("prompt", lambda prompt: client.pick("m", prompt)),
            ]
        for argument, call in calls:
            with pytest.raises(TypeError, match=re.escape(f"{argument} is {wrong!r}; give a list of integers")):
                call(wrong)


def test_a_text_is_no_list_of_pods() -> None:
    pods: Any = "12"
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="pods is '12'; give a list of pods"):
            client.score("m", [1], pods=pods)
        with pytest.raises(TypeError, match="pods is '12'; give a list of pods"):
            client.pick("m", [1], pods=pods)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("register", ("a", "none", "m", 16)),
        ("unregister", ("a", "m")),
        ("query", ("m", [1])),
        ("query_by_hash", ("m", [1])),
        ("conversation", ("m",)),
        ("score", ("m", [1])),
        ("score_chat", ({},)),
        ("predict", ("m", "a", [1])),
        ("pick", ("m", [1])),
        ("explain", ("m", [1])),
    ],
)
def test_a_misspelt_option_is_an_error_that_names_it(call: str, arguments: tuple[object, ...]) -> None:
    async def ask() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            answer = getattr(client, call)(*arguments, tenantid="t")
            await answer

    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="unexpected keyword argument 'tenantid'; did you mean 'tenant_id'"):
            getattr(client, call)(*arguments, tenantid="t")
    with pytest.raises(TypeError, match="unexpected keyword argument 'tenantid'; did you mean 'tenant_id'"):
        asyncio.run(ask())


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
