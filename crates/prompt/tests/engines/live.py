"""What the comparisons with live engines share: sessions, processes, and what is compared.

Each request goes to the service and to the engine unchanged. A comparison shows

* the prompt: tokens of the service's `/tokenize` are those of the engine's `/v1/chat/completions`, or `/v1/completions`, and
  `/tokenize`;
* the score: blocks of `/score_chat_completions`, or `/score_completions`, asked before the engine gets the request, are those that
  the engine then reports as cached. Each request is sent twice, so both the beginning of a session and a whole prompt are found.

`doctor --engine-url` compares both as well. A request that the engine rejects must be rejected by the service, with the exceptions that
the engine's file lists.
"""

import contextlib
import copy
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Callable

from chat_requests import BARE, MODEL, WEATHER, all_requests, call, text, user
from chat_shapes import all_templates
from recording import CONFIG

HERE = pathlib.Path(__file__).parent
TOKENIZER = HERE.parent / "tokenize/models/byte_level"
TEMPLATE = HERE.parents[2] / "chat-template/tests/rendering/templates/qwen3.jinja"

START_S, APPLY_S = 300, 30

INSTRUCTIONS = "You are the assistant of a weather service. Use the tools, answer in one sentence, and name your sources. " * 3


def arguments(**values):
    """Arguments of a tool call as clients send them: a string."""
    return json.dumps(values, ensure_ascii=False)


def sessions():
    """Sessions as lists of turns. A turn is the messages that it adds and the other fields of its request."""
    tools = {"tools": [WEATHER, BARE]}
    yield "tool loop", [
        ([{"role": "system", "content": INSTRUCTIONS}, user("How is the weather in Zürich and in Bern?")], tools),
        (
            [
                {"role": "assistant", "content": None, "tool_calls": [call("get_weather", arguments(city="Zürich", days=2)), call("get_weather", arguments(city="Bern"), 2)]},
                {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 21.5, \"sky\": \"clear\"}"},
                {"role": "tool", "tool_call_id": "call00002", "content": [text("{\"t\": 19.0}"), text("rain later")]},
            ],
            tools,
        ),
        ([{"role": "assistant", "content": "21.5 °C in Zürich, 19 °C in Bern.", "refusal": None}, user("And is the service up?")], tools),
        ([{"role": "assistant", "content": None, "tool_calls": [call("ping", "", 3)]}, {"role": "tool", "tool_call_id": "call00003", "content": "pong"}], tools),
        ([{"role": "assistant", "content": "Yes.", "tool_calls": []}, user("Thanks")], {**tools, "temperature": 0.2, "user": "u1"}),
    ]
    yield "parts", [
        ([{"role": "system", "content": [text(INSTRUCTIONS), text("Be brief.")]}, user([text("Hello"), text("there", cache_control={"type": "ephemeral"})])], {}),
        ([{"role": "assistant", "content": [text("Hi"), text("you")]}, user([text("One more: 世界 😀")])], {}),
        ([{"role": "assistant", "content": None}, user("Still there?", name="Ann")], {}),
    ]
    yield "variables", [
        ([{"role": "developer", "content": INSTRUCTIONS}, user("Think?")], {"chat_template_kwargs": {"enable_thinking": False}}),
        ([{"role": "assistant", "content": "No.", "reasoning_content": "He wants none."}, user("Now think.")], {"chat_template_kwargs": {"enable_thinking": True}}),
        ([{"role": "assistant", "content": "Let me"}], {"add_generation_prompt": False, "continue_final_message": True}),
        ([], {"add_generation_prompt": False, "continue_final_message": True, "chat_template_kwargs": None}),
    ]
    yield "truncated", [
        ([{"role": "system", "content": INSTRUCTIONS}, user("One")], {}),
        ([{"role": "assistant", "content": "1"}, user("Two")], {"truncate_prompt_tokens": 200}),
        ([], {"truncate_prompt_tokens": 96}),
        ([], {"truncate_prompt_tokens": -1}),
    ]
    yield "salted", [
        ([{"role": "system", "content": INSTRUCTIONS}, user("Secret?")], {"cache_salt": "tenant-a"}),
        ([{"role": "assistant", "content": "Yes."}, user("Which?")], {"cache_salt": "tenant-a"}),
        ([], {"cache_salt": "tenant-b"}),
        ([], {}),
    ]


EMPTY_PROMPTS = {"text": "", "list": [], "text in a list": [""], "list in a list": [[]]}
# Requests whose prompts have no tokens. An engine may reject them; the service finds no block.
WITHOUT_TOKENS = {
    "truncated_zero",
    *(f"completion: empty {name}" for name in EMPTY_PROMPTS),
    *(f"completion: {prompt}, 0 kept{side}" for prompt in ("text", "tokens") for side in ("", ", left", ", right")),
}


def completions():
    """Bodies of text completions. Each group begins alike."""
    prose = INSTRUCTIONS + "Grüße aus Zürich: 世界 😀, <|im_end|> and all. "
    ids = [(17 * at) % 600 + 4 for at in range(200)]
    odd = [float(id) if at % 3 == 0 else str(id) if at % 3 == 1 else id for at, id in enumerate(ids)]
    yield "text", {"prompt": prose}
    yield "text in a list", {"prompt": [prose]}
    yield "longer text", {"prompt": prose + "One, two, three."}
    yield "text without special tokens", {"prompt": prose, "add_special_tokens": False}
    yield "text, words for flags", {"prompt": prose, "add_special_tokens": "off", "echo": "no", "top_k": "20", "truncate_prompt_tokens": "-1"}
    for count in (0, 1, 2, 33, 96, 97, "64", 64.0, True, -1, 8000):
        yield f"text, {count!r} kept", {"prompt": prose, "truncate_prompt_tokens": count}
        yield f"tokens, {count!r} kept", {"prompt": ids, "truncate_prompt_tokens": count}
        for side in ("left", "right"):
            yield f"text, {count!r} kept, {side}", {"prompt": prose, "truncate_prompt_tokens": count, "truncation_side": side}
            yield f"tokens, {count!r} kept, {side}", {"prompt": ids, "truncate_prompt_tokens": count, "truncation_side": side}
    yield "text, 64 kept without special tokens", {"prompt": prose, "truncate_prompt_tokens": 64, "add_special_tokens": False}
    yield "tokens", {"prompt": ids}
    yield "tokens in a list", {"prompt": [ids]}
    yield "tokens as floats and texts", {"prompt": odd, "top_k": 20.0}
    yield "tokens as floats and texts in a list", {"prompt": [odd]}
    yield "tokens and truth values", {"prompt": [True, False, 5, "6"] * 20}
    yield "a number as a text", {"prompt": ["12"]}
    yield "salted", {"prompt": prose, "cache_salt": "tenant-a"}
    yield "salted by another", {"prompt": prose, "cache_salt": "tenant-b"}
    for name, prompt in EMPTY_PROMPTS.items():
        yield f"empty {name}", {"prompt": prompt}
    for name, prompt in {"number": 5, "null": None, "object": {}, "fraction": [1.5], "word beside a token": [1, "a"], "negative": [-1], "list beside a token": [1, [2]]}.items():
        yield f"wrong prompt, {name}", {"prompt": prompt}
    for field in ("add_special_tokens", "truncate_prompt_tokens", "truncation_side"):
        yield f"wrong {field}", {"prompt": prose, field: "maybe"}
    yield "below -1 kept", {"prompt": prose, "truncate_prompt_tokens": -5}


def shapes():
    """Two turns of a tool loop, with each template of chat_shapes.py in the request."""
    (_, turns), *_ = sessions()
    for name, template in all_templates().items():
        messages = []
        for number, (added, fields) in enumerate(turns, 1):
            messages = messages + added
            if number in (2, len(turns)):
                yield f"{name}, turn {number}", {"messages": copy.deepcopy(messages), "chat_template": template, **fields}


def every_request():
    """The kind, the name and the body of each request: sessions, text completions, shapes of templates, and those of chat_requests.py."""
    for session, turns in sessions():
        messages = []
        for number, (added, fields) in enumerate(turns, 1):
            messages = messages + added
            yield session, f"{session}, turn {number}", {"messages": copy.deepcopy(messages), **fields}
    yield from (("completions", f"completion: {name}", body) for name, body in completions())
    yield from (("shapes", f"shape: {name}", body) for name, body in shapes())
    yield from (("chats", name, body) for name, body in all_requests().items())


def requests(left_out):
    """Names and bodies of requests but those left out, by their name or their kind."""
    for kind, name, body in every_request():
        if kind not in left_out and name not in left_out:
            yield name, {"model": MODEL, **body}


def post(url, body):
    """The status and the JSON of an answer."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def wait_for(what, seconds, holds):
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def answers(url):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).status == 200
    return False


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


@contextlib.contextmanager
def started(arguments, log, **variables):
    """A process and its log, stopped at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **variables})
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def write_model(folder):
    """A model with the tokenizer of the tests, and a template with tools whose marks are tokens."""
    folder.mkdir()
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    settings.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    size = 64 * (max(tokenizer["model"]["vocab"].values()) // 64 + 1)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": size, "bos_token_id": 0, "eos_token_id": 1}))
    template = TEMPLATE.read_text(encoding="utf-8").replace("<|start|>", "<|im_start|>").replace("<|end|>", "<|im_end|>")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


@dataclass
class Kind:
    """An engine that is compared."""

    # Its name, as registrations have it, and its version.
    name: str
    version: str
    # The command for a model's folder and the ports of HTTP, events and replay, and its variables.
    command: Callable[[pathlib.Path, int, int, int], list[str]]
    variables: dict[str, str]
    block_size: int
    # Fields that ask for the prompt's tokens, and where they are in the answer.
    asks: dict[str, bool]
    prompt_of: Callable[[dict], list[int]]
    # Requests that the engine rejects and the service takes; sessions and requests that are left out. With the reason.
    lenient: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Comparison:
    """What is equal, and what differs."""

    def __init__(self, kind, engine, service):
        self.kind, self.engine, self.service = kind, engine, service
        self.counts = {"rejected by both": 0, "rejected without tokens": 0, "prompts equal": 0, "prompts equal to the engine's /tokenize": 0, "cached blocks equal": 0, "of them more than none": 0, "doctor": 0}
        self.wrong = []
        # Requests for which the engine's `/tokenize` does not have its own prompt.
        self.other = []

    def count(self, what, name, ours, theirs):
        if ours == theirs:
            self.counts[what] += 1
        else:
            self.wrong.append(f"{name}: {what}: ours {str(ours)[:600]}, the engine's {str(theirs)[:600]}")

    def held(self, request):
        """Blocks of the prompt that the service says the pod holds, or that it rejects the request."""
        endpoint = "score_chat_completions" if "messages" in request else "score_completions"
        status, answer = post(f"{self.service}/{endpoint}", {**request, "detail": True})
        if status != 200:
            return "rejected" if status in (400, 422) else f"status {status}"
        return answer["pods"].get("live", {"held_blocks": 0})["held_blocks"]

    def send(self, name, request):
        """Asks the service, sends the request to the engine, and returns the tokens of its prompt."""
        held = self.held(request)
        endpoint = "chat/completions" if "messages" in request else "completions"
        status, answer = post(f"{self.engine}/v1/{endpoint}", {"max_tokens": 1, **request, "stream": False, **self.kind.asks})
        if status != 200:
            if name in WITHOUT_TOKENS:
                self.count("rejected without tokens", name, held, 0)
            elif name not in self.kind.lenient:
                self.count("rejected by both", name, held, "rejected")
            return None
        prompt = self.kind.prompt_of(answer)
        # The engine computes the last token, even if it holds the block that ends with it.
        usable = min(held, (len(prompt) - 1) // self.kind.block_size) * self.kind.block_size if isinstance(held, int) else held
        cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        self.count("cached blocks equal", name, usable, cached)
        self.counts["of them more than none"] += cached > 0
        if isinstance(held, int):
            wait_for(f"{name}: the service has all blocks", APPLY_S, lambda: self.held(request) == len(prompt) // self.kind.block_size)
        return prompt

    def compare(self, name, request):
        prompt = self.send(name, request)
        if prompt is None:
            return
        _, ours = post(f"{self.service}/tokenize", request)
        self.count("prompts equal", name, ours.get("tokens", ours), prompt)
        status, tokenized = post(f"{self.engine}/tokenize", request)
        theirs = tokenized["tokens"] if status == 200 else status
        if theirs == prompt:
            self.count("prompts equal to the engine's /tokenize", name, ours.get("tokens"), theirs)
        else:
            # It does not truncate, and ignores some fields.
            self.other.append(name)
        self.send(f"{name}, again", request)


@contextlib.contextmanager
def running(kind, program, write):
    """The service and an engine with a model, and the rank registered: their URLs. `write` writes the model's folder."""
    folder = pathlib.Path(tempfile.mkdtemp())
    write(folder / MODEL)
    http, events, replay, port = free_ports(4)
    service, engine = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{http}"
    serve = [program, "serve", "--host", "127.0.0.1", "--port", str(port), "--tokenizer-dir", str(folder)]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **kind.variables}
    command = kind.command(folder / MODEL, http, events, replay)
    with started(serve, folder / "service.log"), started(command, folder / "engine.log", **variables):
        print(f"logs: {folder}", file=sys.stderr)
        wait_for("the service starts", START_S, lambda: answers(f"{service}/health"))
        wait_for("the engine starts", START_S, lambda: answers(f"{engine}/health"))
        rank = {"instance_id": "live", "model_name": MODEL, "block_size": kind.block_size, "engine": kind.name, "endpoint": f"tcp://127.0.0.1:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
        status, answer = post(f"{service}/register", rank)
        assert status == 201, answer
        yield service, engine


def compare(kind, program):
    """Compares an engine and prints what is equal. Exits with 1 if anything differs."""
    with running(kind, program, write_model) as (service, engine):
        comparison = Comparison(kind, engine, service)
        names = [comparison.compare(name, request) or name for name, request in requests(kind.left_out)]
        doctor = subprocess.run([program, "doctor", service, "--engine-url", engine, "--listen-s", "1", "--json"], stdout=subprocess.PIPE)
        (prompt,) = [finding for report in json.loads(doctor.stdout) for finding in report["findings"] if finding["check"] == "prompt"]
        comparison.count("doctor", "doctor's own request", prompt["verdict"], "ok")
    print(f"{kind.name} {kind.version}, {len(names)} requests")
    for what, count in comparison.counts.items():
        print(f"{count:5} {what}")
    print(f"{len(comparison.other):5} prompts of the engine are not those of its own /tokenize: {', '.join(comparison.other)}")
    print(f"{len(comparison.wrong):5} differ", *comparison.wrong, sep="\n")
    sys.exit(bool(comparison.wrong))
