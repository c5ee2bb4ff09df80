"""What the recorders of all engines share: the model's directory, and the format of a recording."""

import json
import pathlib
import subprocess
import sys

from chat_requests import all_requests
from chat_shapes import all_templates
from random_chats import random_bodies

TESTDATA = pathlib.Path(__file__).parents[4] / "testdata"
TOKENIZER = TESTDATA / "tokenizers/test-model"

# Templates whose prompts are recorded as tokens as well.
TOKENIZED = ["content-plain", "calls-arguments_tojson", "content-loop", "like-qwen3", "like-llama3"]
# Templates for random bodies.
OF_RANDOM_BODIES = ["calls-arguments_tojson", "content-loop", "like-qwen3", "roles-printed_message", "roles-whole_message", "tools-printed", "whole-variables"]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 30522, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}


def write_model(folder):
    """A model's directory with the tokenizer of the tests and special tokens for templates."""
    for path in TOKENIZER.glob("*.zst"):
        unpacked = subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout
        (folder / path.stem).write_bytes(unpacked)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))
    return folder


def parse_body(request):
    """A request as the engine's server parses its body."""
    return json.loads(request if isinstance(request, str) else json.dumps(request))


class Recording:
    """Outcomes of cases. Equal texts and conversations are stored once."""

    def __init__(self, engine, versions, random_count=0):
        """Of all requests with all templates, or of a number of random bodies, which are texts, with some templates."""
        templates, requests = all_templates(), all_requests()
        if random_count:
            templates, requests = {name: templates[name] for name in OF_RANDOM_BODIES}, random_bodies(random_count, engine)
        self.content = {"engine": engine, "versions": versions, "templates": templates, "requests": requests, "texts": [], "conversations": [], "cases": {}, "tokens": {}}
        self.numbers = {"texts": {}, "conversations": {}}

    def number(self, table, value):
        """The position of a value in its table."""
        if value not in self.numbers[table]:
            self.numbers[table][value] = len(self.content[table])
            self.content[table].append(value)
        return self.numbers[table][value]

    def add(self, template, request, rendering):
        """Adds a case: a rendering with `conversation`, `text` and `tokens`, or an error's message."""
        cases = self.content["cases"].setdefault(template, {})
        if isinstance(rendering, str):
            cases[request] = {"error": rendering[:200]}
            return
        # As text: Python writes numbers that JSON lacks.
        conversation = json.dumps(rendering["conversation"], ensure_ascii=False, separators=(",", ":"))
        cases[request] = [self.number("conversations", conversation), self.number("texts", rendering["text"])]
        if template in TOKENIZED:
            self.content["tokens"].setdefault(template, {})[request] = rendering["tokens"]

    def write(self, path):
        """Writes the recording, compressed."""
        write_compressed(path, self.content)


class CodedRecording:
    """Texts of prompts that an engine makes by code, by family and request."""

    def __init__(self, engine, versions, requests, **more):
        self.content = {"engine": engine, "versions": versions, **more, "requests": requests, "texts": [], "cases": {}}
        self.numbers = {}

    def add(self, family, request, text):
        """Adds a case: a text, or an error as a dictionary."""
        if isinstance(text, str):
            if text not in self.numbers:
                self.numbers[text] = len(self.content["texts"])
                self.content["texts"].append(text)
            text = self.numbers[text]
        self.content["cases"].setdefault(family, {})[request] = text

    def write(self, path):
        """Writes the recording, compressed."""
        write_compressed(path, self.content)


def write_compressed(path, content):
    """Writes a recording and prints its size."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", path], input=text, check=True)
    for name, cases in content["cases"].items():
        errors = sum(isinstance(case, dict) for case in cases.values())
        print(f"{name}: {len(cases)} cases, {errors} of them errors", file=sys.stderr)
    print(f"{path}: {len(text)} bytes", file=sys.stderr)
