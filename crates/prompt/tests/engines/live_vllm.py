"""Compares the service with a live vLLM: `python live_vllm.py FLASH_INDEXER`, in the environment of record_vllm.py.

Starts vLLM on a CPU with random weights, and the program FLASH_INDEXER beside it. live.py says what is compared.
"""

import json
import sys

import vllm

from chat_requests import MODEL
from live import Kind, compare

# On a CPU, it must be a multiple of 32.
BLOCK_SIZE = 32
BLOCKS = 4096


def command(folder, http, events, replay):
    settings = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}", "topic": "kv"}
    options = {
        "model": folder, "served-model-name": MODEL, "load-format": "dummy", "dtype": "bfloat16", "host": "127.0.0.1", "port": http,
        "max-model-len": 8192, "max-num-batched-tokens": 8192, "block-size": BLOCK_SIZE, "num-gpu-blocks-override": BLOCKS,
        "tool-call-parser": "hermes", "kv-events-config": json.dumps(settings),
    }
    flags = ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--trust-request-chat-template"]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags] + [str(it) for name, value in options.items() for it in (f"--{name}", value)]


VLLM = Kind(
    name="vllm",
    version=vllm.__version__,
    command=command,
    variables={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"},
    block_size=BLOCK_SIZE,
    asks={"return_token_ids": True},
    prompt_of=lambda answer: answer["choices"][0].get("prompt_token_ids") or answer["prompt_token_ids"],
    lenient={"null_generation_prompt": "null counts as missing"},
)

if __name__ == "__main__":
    compare(VLLM, sys.argv[1])
