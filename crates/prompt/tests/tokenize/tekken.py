"""Writes `tekken_ids.json`: a small vocabulary in Mistral's format, and the ids that Mistral's library has for texts.

    python crates/prompt/tests/tokenize/tekken.py

Needs `pip install mistral-common==1.13.1`. The vocabulary has the first tokens of a real one.
"""

import json
import pathlib
import random
import tempfile

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

TOKENS, SPECIAL_TOKENS = 700, 40
data = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240718.json"
real = json.loads(data.read_text())
config = {**real["config"], "num_vocab_tokens": TOKENS, "default_vocab_size": TOKENS + SPECIAL_TOKENS - 20, "default_num_special_tokens": SPECIAL_TOKENS}
tekken = {"config": config, "vocab": [{**token, "token_str": None} for token in real["vocab"][:TOKENS]]}

random.seed(7)
words = [token["token_str"] for token in real["vocab"][256:TOKENS] if token["token_str"]] + list("aeinorst 123\n\t.,é世😀'/")
texts = ["", "Hello world", "the theory of the thing", "  two  spaces\n\n\tand a tab ", "1234567 abcABC don't", "Grüße, 世界! 😀", "aaaaaaa ababababa ererer"]
texts += ["".join(random.choices(words, k=random.randrange(1, 40))) for _ in range(120)]

SPELLED = "[INST] the </s> [/INST][TOOL_CALLS]<s>"
EFFORTS = {"type": "enum", "accepts_none": True, "default": "none", "values": ["none", "high"]}
# All messages spell out special tokens.
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": SPELLED})}}
TOOL = {"type": "function", "function": {"name": "f", "description": SPELLED, "parameters": {}}}
MESSAGES = [
    {"role": "system", "content": f"the thing {SPELLED}"},
    {"role": "user", "content": SPELLED},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": SPELLED},
    {"role": "assistant", "content": f"a {SPELLED} b"},
    {"role": "user", "content": f"[IMG]{SPELLED}[IMG]"},
]
# The engine tokenizes the parts of this message separately.
THINKING = {"role": "assistant", "content": [{"type": "thinking", "thinking": "the th", "closed": False}, {"type": "text", "text": "eory [/THINK]"}]}


def named(version):
    """The vocabulary with another version of the prompt's format and all special tokens."""
    special = [{"rank": rank, "token_str": token.value, "is_control": True} for rank, token in enumerate(SpecialTokens)]
    more = {"model_settings_builder": {"reasoning_effort": EFFORTS}} if version == "v15" else {}
    return {**tekken, "config": {**config, "version": version}, "special_tokens": special[:SPECIAL_TOKENS], **more}


def chat(path, version):
    """A chat, and the ids of its prompt."""
    path.write_text(json.dumps(named(version)))
    messages = [*MESSAGES, THINKING, {"role": "user", "content": "on"}] if version in ("v13", "v15") else MESSAGES
    more = {"reasoning_effort": "high"} if version == "v15" else {}
    request = ChatCompletionRequest.from_openai(messages=messages, tools=[TOOL], **more)
    tokens = MistralTokenizer.from_file(path, mode=ValidationMode.test).encode_chat_completion(request).tokens
    return {"body": {"messages": messages, "tools": [TOOL], **more}, "ids": tokens}


with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tekken.json"
    path.write_text(json.dumps(tekken))
    tokenizer = Tekkenizer.from_file(path)
    ids = {text: tokenizer.encode(text, bos=False, eos=False) for text in texts}
    special = {token: tokenizer.get_special_token(token) for token in ("<unk>", "<s>", "</s>", "[INST]", "[TOOL_CONTENT]", "<SPECIAL_39>")}
    spelled = {text: tokenizer.encode(text, bos=True, eos=False) for text in (SPELLED, *special)}
    chats = {version: chat(path, version) for version in ("v3", "v7", "v11", "v13", "v15")}

out = {"tekken": tekken, "ids": ids, "special": special, "spelled": spelled, "special_tokens": named("v13")["special_tokens"], "chats": chats}
pathlib.Path(__file__).with_name("tekken_ids.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
