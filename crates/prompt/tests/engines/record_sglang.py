"""Records what SGLang makes of every request with every template: `python record_sglang.py OUT.json.zst`, or a number of random bodies:
`… OUT.json.zst NUMBER`.

Runs SGLang's own request model, template manager and chat serving on a CPU, without an engine behind them. See README.md.
"""

import copy
import functools
import pathlib
import sys
import tempfile
from types import SimpleNamespace

import jinja2
import transformers
from sglang.srt.entrypoints.openai import serving_chat
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.parser import template_manager
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from recording import CONFIG, Recording, parse_body, write_model

VERSION = "0.5.23"
CAPTURED = {}


def capture():
    """Notes what the tokenizer's `apply_chat_template` is given and returns."""
    plain = PreTrainedTokenizerBase.apply_chat_template

    @functools.wraps(plain)
    def apply(self, conversation, **kwargs):
        CAPTURED["conversation"] = {"messages": copy.deepcopy(conversation), "tools": copy.deepcopy(kwargs.get("tools"))}
        CAPTURED["text"] = plain(self, conversation, **kwargs)
        return CAPTURED["text"]

    PreTrainedTokenizerBase.apply_chat_template = apply


class Unset:
    """Settings of which none is given."""

    def __getattr__(self, name):
        return None


def configure():
    """The server's settings, all at their defaults."""
    for module in (serving_chat, template_manager):
        module.get_serving = Unset
    serving_chat.get_model = lambda: SimpleNamespace(context_length=4096, revision=None)


def serving_of(folder, template=None, **more):
    """SGLang's chat serving for a model's folder with one template, or none, and more in its configuration."""
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model_config = SimpleNamespace(
        is_multimodal=False, hf_config=SimpleNamespace(**{**CONFIG, **more}), get_default_sampling_params=lambda: {}
    )
    manager = SimpleNamespace(
        tokenizer=tokenizer, processor=None, model_config=model_config, model_path=str(folder), served_model_name="tiny",
        config_value=lambda name: None, server_args=SimpleNamespace(),
    )
    templates = template_manager.TemplateManager()
    templates.load_chat_template(manager, None, "")
    return serving_chat.OpenAIServingChat(manager, templates)


def outcome(serving, request):
    """What a case comes to."""
    CAPTURED.clear()
    try:
        parsed = ChatCompletionRequest.model_validate(parse_body(request))
        error = serving._validate_request(parsed)
        if error:
            return error
        adapted, _ = serving._convert_to_internal_request(parsed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {**CAPTURED, "tokens": list(adapted.input_ids)}


def main(out, random_count=0):
    capture()
    configure()
    folder = write_model(pathlib.Path(tempfile.mkdtemp()))
    recording = Recording("sglang", {"sglang": VERSION, "transformers": transformers.__version__, "jinja2": jinja2.__version__}, random_count)
    for name, template in recording.content["templates"].items():
        serving = serving_of(folder, template)
        for request_name, request in recording.content["requests"].items():
            recording.add(name, request_name, outcome(serving, request))
    recording.write(out)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
