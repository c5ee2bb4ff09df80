"""Compares the service with a live SGLang: `python live_sglang.py FLASH_INDEXER`, in the environment of record_sglang.py.

Starts SGLang on a CPU with random weights, and the program FLASH_INDEXER beside it. live.py says what is compared.
"""

import importlib.metadata
import json
import sys

from chat_requests import MODEL
from live import Kind, compare

PAGE_SIZE = 16
TOKENS = 65536


def command(folder, http, events, replay):
    settings = {"publisher": "zmq", "endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}", "topic": "kv"}
    options = {
        "model-path": folder, "served-model-name": MODEL, "load-format": "dummy", "dtype": "bfloat16", "device": "cpu", "host": "127.0.0.1", "port": http,
        "attention-backend": "torch_native", "sampling-backend": "pytorch", "page-size": PAGE_SIZE, "max-total-tokens": TOKENS, "max-running-requests": 8,
        "context-length": 8192, "tool-call-parser": "qwen25", "kv-events-config": json.dumps(settings),
    }
    flags = ["--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup", "--enable-cache-report"]
    return [sys.executable, "-m", "sglang.launch_server", *flags] + [str(it) for name, value in options.items() for it in (f"--{name}", value)]


SGLANG = Kind(
    name="sglang",
    version=importlib.metadata.version("sglang"),
    command=command,
    variables={"TRANSFORMERS_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"},
    block_size=PAGE_SIZE,
    asks={"return_token_ids": True},
    prompt_of=lambda answer: answer["choices"][0]["prompt_token_ids"],
    left_out={
        "shapes": "SGLang takes no template from a request",
        "salted": "SGLang's events lack the salt",
        **{f"completion: salted{by}": "SGLang's events lack the salt" for by in ("", " by another")},
        "completion: wrong prompt, negative": "SGLang takes it and ends",
        **{name: "SGLang ignores the field, which is checked here" for name in ("truncated_negative", "completion: below -1 kept", "completion: wrong truncate_prompt_tokens")},
    },
)

if __name__ == "__main__":
    compare(SGLANG, sys.argv[1])
