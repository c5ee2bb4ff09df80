"""Records what vLLM makes of requests for models whose prompts it makes by code: `python record_vllm_coded.py OUT.json.zst`.

Runs vLLM's own request model, renderers and encoders on a CPU, without weights. See README.md for the environment.
"""

import asyncio
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import transformers
import vllm
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.registry import renderer_from_config
from vllm.tokenizers import deepseek_v4, deepseek_v32

from coded_requests import coded_requests
from recording import write_model

CAPTURED = {}

# The day on which gpt-oss is asked.
DAY = "2026-11-23"

GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 128, "layer_types": ["full_attention"]}


def capture(module):
    """Notes the text that an encoder returns."""
    plain = module.encode_messages

    def encode(messages, **options):
        CAPTURED["text"] = plain(messages, **options)
        return CAPTURED["text"]

    module.encode_messages = encode


def online(mode="auto", tool_parser="hermes", **more):
    """The renderer of a server with tool parsing and nothing else, for a model with more in its configuration."""
    folder = write_model(pathlib.Path(tempfile.mkdtemp()))
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
    servers = {"deepseek_v32": online("deepseek_v32"), "deepseek_v4": online("deepseek_v4"), "harmony": online(tool_parser="openai", **GPT_OSS)}
    requests = coded_requests()
    content = {"engine": "vllm", "versions": {"vllm": vllm.__version__, "transformers": transformers.__version__, "oss-harmony": importlib.metadata.version("oss-harmony")}, "day": DAY, "requests": requests, "texts": [], "cases": {}}
    for family, server in servers.items():
        numbers = {}
        for name, request in requests.items():
            case = await outcome(server, request)
            if isinstance(case, str):
                case = numbers.setdefault(case, len(content["texts"]) + len(numbers))
            content["cases"].setdefault(family, {})[name] = case
        content["texts"] += numbers
        errors = sum(isinstance(case, dict) for case in content["cases"][family].values())
        print(f"{family}: {len(requests)} cases, {errors} of them errors", file=sys.stderr)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", out], input=text, check=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
