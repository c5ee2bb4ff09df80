"""Records what vLLM makes of every request with every template: `python record_vllm.py OUT.json.zst`, or a number of random bodies:
`… OUT.json.zst NUMBER`.

Runs vLLM's own request model and renderer on a CPU, without weights. See README.md for the environment.
"""

import asyncio
import copy
import functools
import pathlib
import sys
import tempfile

import jinja2
import transformers
import vllm
from transformers import PreTrainedTokenizerBase
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.registry import renderer_from_config

from recording import Recording, parse_body, write_model

CAPTURED = {}


def capture():
    """Notes what the tokenizer's `apply_chat_template` is given and returns."""
    plain = PreTrainedTokenizerBase.apply_chat_template

    # vLLM reads the arguments from the signature.
    @functools.wraps(plain)
    def apply(self, conversation, **kwargs):
        CAPTURED["conversation"] = {"messages": copy.deepcopy(conversation), "tools": copy.deepcopy(kwargs.get("tools"))}
        CAPTURED["text"] = plain(self, conversation, **kwargs)
        return CAPTURED["text"]

    PreTrainedTokenizerBase.apply_chat_template = apply


def online(config, renderer, template):
    """The renderer of a server with `--chat-template`, tool parsing and nothing else."""
    return OnlineRenderer(config, renderer, request_logger=None, chat_template=template, chat_template_content_format="auto", enable_auto_tools=True, tool_parser="hermes")


async def outcome(online, request):
    """What a case comes to."""
    CAPTURED.clear()
    try:
        parsed = ChatCompletionRequest.model_validate(parse_body(request))
        rendered = await online.render_chat(parsed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(rendered, ErrorResponse):
        return rendered.error.message
    _, (prompt,) = rendered
    return {**CAPTURED, "tokens": list(prompt["prompt_token_ids"])}


async def main(out, random_count=0):
    capture()
    folder = write_model(pathlib.Path(tempfile.mkdtemp()))
    config = ModelConfig(model=str(folder), max_model_len=4096, dtype="bfloat16")
    renderer = renderer_from_config(VllmConfig(model_config=config))
    recording = Recording("vllm", {"vllm": vllm.__version__, "transformers": transformers.__version__, "jinja2": jinja2.__version__}, random_count)
    for name, template in recording.content["templates"].items():
        server = online(config, renderer, template)
        for request_name, request in recording.content["requests"].items():
            recording.add(name, request_name, await outcome(server, request))
    recording.write(out)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
