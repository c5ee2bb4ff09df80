"""The endpoint picker with a real Envoy."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway import MODEL, PATIENCE_S, Gateway, Pod, running, wait_for

MODES = ["FULL_DUPLEX_STREAMED", "BUFFERED", "NONE"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


def chat(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True}


def send(gateway: Gateway, mode: str, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> Any:
    """The response to a request, whose body is not read yet."""
    connection = http.client.HTTPConnection(gateway.listeners[mode], timeout=PATIENCE_S)
    method = "POST" if body else "GET"
    connection.request(method, path, body or None, {"Content-Type": "application/json"} | headers)
    return connection.getresponse()


def hold(gateway: Gateway, pod: Pod, text: str) -> None:
    """Lets a pod hold the prompt of a chat, by its events."""
    tokens = gateway.post("/tokenize", chat(text))
    tokens = tokens.get("tokens") or tokens["token_ids"]
    query = {"model_name": MODEL, "token_ids": tokens}
    pod.store(tokens)
    wait_for("the blocks of the chat", lambda: gateway.post("/query", query)["scores"].get(pod.address))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("holder", [0, 1])
def test_a_chat_goes_to_the_pod_that_holds_its_prefix(gateway: Gateway, mode: str, holder: int) -> None:
    text = f"{mode} {holder}: " + "What is the capital of France? " * 20
    pod = gateway.pods[holder]
    hold(gateway, pod, text)
    scored = gateway.picks("scored")
    body = json.dumps(chat(text)).encode()
    for _ in range(3):
        response = send(gateway, mode, body)
        assert (response.status, response.headers["x-pod"]) == (200, pod.address)
        assert response.read() == b"data: %d\n\ndata: [DONE]\n\n" % len(body)
    assert gateway.picks("scored") == scored + 3
    wait_for("the end of the requests", lambda: gateway.requests_in_flight() == 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_response_is_streamed_and_is_in_flight_until_its_end(gateway: Gateway, mode: str) -> None:
    for pod in gateway.pods:
        pod.proceed.clear()
    response = send(gateway, mode, json.dumps(chat("Count to two.")).encode())
    first = response.readline()
    assert first.startswith(b"data: ") and b"DONE" not in first
    assert gateway.requests_in_flight() == 1, "the second chunk was not sent yet"
    for pod in gateway.pods:
        pod.proceed.set()
    assert response.read().endswith(b"data: [DONE]\n\n")
    wait_for("the end of the request", lambda: gateway.requests_in_flight() == 0)


@pytest.mark.parametrize("mode", MODES)
def test_other_requests_pass(gateway: Gateway, mode: str) -> None:
    invalid = send(gateway, mode, b"no JSON")
    assert (invalid.status, invalid.readline()) == (200, b"data: 7\n")
    models = send(gateway, mode, b"", "/v1/models")
    assert (models.status, models.readline()) == (200, b"data: 0\n")


def test_a_large_body_passes_whole(gateway: Gateway) -> None:
    body = json.dumps(chat("x " * 500_000)).encode()
    response = send(gateway, "FULL_DUPLEX_STREAMED", body)
    assert response.status == 200
    assert response.readline() == b"data: %d\n" % len(body)
    assert response.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_a_subset_limits_the_choice(gateway: Gateway, mode: str) -> None:
    body = json.dumps(chat("Hello.")).encode()
    for pod in gateway.pods:
        for _ in range(3):
            response = send(gateway, mode, body, **{"x-subset": pod.address})
            assert (response.status, response.headers["x-pod"]) == (200, pod.address)
            response.read()
    refused = send(gateway, mode, body, **{"x-subset": "10.0.0.1:8000"})
    assert refused.status == 503
    assert json.load(refused)["error"]["code"] == 503
