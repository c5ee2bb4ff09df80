"""Records what vLLM makes of requests for models whose prompts it makes by code: `python record_vllm_coded.py OUT.json.zst`.

Runs vLLM's own request model, renderers and encoders on a CPU, without weights. See README.md for the environment.
"""

import asyncio
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

import mistral_common
import transformers
import vllm
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.instruct import InstructTokenizerBase
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers import inkling
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.registry import renderer_from_config
from vllm.tokenizers import deepseek_v4, deepseek_v32, deepseek_v41

from coded_requests import coded_requests
from recording import CodedRecording, write_model

CAPTURED = {}

# The day on which gpt-oss is asked.
DAY = "2026-11-23"

# The settings of a tekken vocabulary of version 15.
EFFORTS = {"type": "enum", "accepts_none": True, "default": "none", "values": ["none", "high", "max"]}

GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 128, "layer_types": ["full_attention"]}


def capture(module):
    """Notes the text that an encoder returns."""
    plain = module.encode_messages

    def encode(messages, **options):
        CAPTURED["text"] = plain(messages, **options)
        return CAPTURED["text"]

    module.encode_messages = encode


class Spelled:
    """A vocabulary whose tokens are texts."""

    def encode_text(self, text):
        return [text]

    def encode_special(self, token):
        return token


def capture_inkling():
    """Notes the special tokens and texts of which Inkling's prompts are made. No tokenizer has those tokens here."""
    plain = inkling.render_inkling_messages

    def render(messages, _, **options):
        CAPTURED["text"] = "".join(plain(messages, Spelled(), **options))
        return [0]

    inkling.render_inkling_messages = render
    inkling._HfBackedTmlTokenizer = lambda tokenizer: None


def capture_mistral():
    """Notes the text of which a prompt of Mistral's library has the tokens."""
    plain = InstructTokenizerBase.encode_instruct

    def encode(self, request):
        tokenized = plain(self, request)
        CAPTURED["text"] = tokenized._text
        return tokenized

    InstructTokenizerBase.encode_instruct = encode


def write_tekken(folder, version):
    """Writes Mistral's vocabulary with another version of the prompt's format and all special tokens."""
    data = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240718.json"
    vocabulary = json.loads(data.read_text())
    vocabulary["config"]["version"] = version
    if version == "v15":
        vocabulary["model_settings_builder"] = {"reasoning_effort": EFFORTS}
    vocabulary["special_tokens"] = [{"rank": rank, "token_str": token.value, "is_control": True} for rank, token in enumerate(SpecialTokens)]
    (folder / "tekken.json").write_text(json.dumps(vocabulary))


def online(mode="auto", tool_parser="hermes", tekken=None, **more):
    """The renderer of a server with tool parsing and nothing else, for a model with more in its configuration."""
    folder = write_model(pathlib.Path(tempfile.mkdtemp()))
    if tekken:
        write_tekken(folder, tekken)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    config = ModelConfig(model=str(folder), tokenizer_mode=mode, max_model_len=8192, dtype="bfloat16")
    renderer = renderer_from_config(VllmConfig(model_config=config))
    return OnlineRenderer(config, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto", enable_auto_tools=True, tool_parser=tool_parser)


async def outcome(server, request):
    """The text of a prompt, or the error."""
    CAPTURED.clear()
    try:
        parsed = ChatCompletionRequest.model_validate(json.loads(json.dumps(request)))
        rendered = await server.render_chat(parsed)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    if isinstance(rendered, ErrorResponse):
        return {"error": rendered.error.message[:200]}
    if "text" in CAPTURED:
        return CAPTURED["text"]
    _, (prompt,) = rendered
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS).decode(prompt["prompt_token_ids"])


async def main(out):
    os.environ["VLLM_SYSTEM_START_DATE"] = DAY
    capture(deepseek_v32)
    capture(deepseek_v4)
    capture(deepseek_v41)
    capture_inkling()
    capture_mistral()
    servers = {"deepseek_v32": online("deepseek_v32"), "deepseek_v4": online("deepseek_v4"), "deepseek_v41": online("deepseek_v41"), "harmony": online(tool_parser="openai", **GPT_OSS), "inkling": online("inkling")}
    servers |= {f"mistral_{version}": online("mistral", None, tekken=version) for version in ("v3", "v7", "v11", "v13", "v15")}
    versions = {"vllm": vllm.__version__, "transformers": transformers.__version__, "oss-harmony": importlib.metadata.version("oss-harmony"), "mistral-common": mistral_common.__version__}
    recording = CodedRecording("vllm", versions, coded_requests(), day=DAY)
    for family, server in servers.items():
        for name, request in recording.content["requests"].items():
            recording.add(family, name, await outcome(server, request))
    recording.write(out)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
