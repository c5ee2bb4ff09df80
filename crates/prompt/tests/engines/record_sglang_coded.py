"""Records what SGLang makes of requests for DeepSeek-V3.2, whose prompts it makes by code: `python record_sglang_coded.py OUT.json.zst`.

Runs as record_sglang.py does. A text that is appended to the prompt, tokenized by itself, follows the prompt's text.
"""

import pathlib
import sys
import tempfile

import transformers
from sglang.srt.entrypoints.openai import encoding_dsv32
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

from coded_requests import coded_requests
from record_sglang import CAPTURED, VERSION, configure, outcome, serving_of
from recording import CodedRecording, write_model


def capture():
    """Notes the text that the encoder returns, and what is appended to it."""
    encode, append = encoding_dsv32.encode_messages, OpenAIServingChat._append_assistant_prefix_to_prompt_ids

    def noted_encode(messages, **options):
        CAPTURED["text"] = encode(messages, **options)
        return CAPTURED["text"]

    def noted_append(self, ids, prefix):
        CAPTURED["text"] += prefix
        return append(self, ids, prefix)

    encoding_dsv32.encode_messages = noted_encode
    OpenAIServingChat._append_assistant_prefix_to_prompt_ids = noted_append


def main(out):
    capture()
    configure()
    folder = write_model(pathlib.Path(tempfile.mkdtemp()))
    serving = serving_of(folder, architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32")
    recording = CodedRecording("sglang", {"sglang": VERSION, "transformers": transformers.__version__}, coded_requests())
    for name, request in recording.content["requests"].items():
        case = outcome(serving, request)
        recording.add("deepseek_v32", name, {"error": case[:200]} if isinstance(case, str) else case["text"])
    recording.write(out)


if __name__ == "__main__":
    main(sys.argv[1])
