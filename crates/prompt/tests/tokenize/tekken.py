"""Writes `tekken_ids.json`: a small vocabulary in Mistral's format, and the ids that Mistral's library has for texts.

    python crates/prompt/tests/tokenize/tekken.py

Needs `pip install mistral-common==1.13.1`. The vocabulary has the first tokens of a real one.
"""

import json
import pathlib
import random
import tempfile

import mistral_common
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

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tekken.json"
    path.write_text(json.dumps(tekken))
    tokenizer = Tekkenizer.from_file(path)
    ids = {text: tokenizer.encode(text, bos=False, eos=False) for text in texts}
    special = {token: tokenizer.get_special_token(token) for token in ("<unk>", "<s>", "</s>", "[INST]", "[TOOL_CONTENT]", "<SPECIAL_39>")}

out = {"tekken": tekken, "ids": ids, "special": special}
pathlib.Path(__file__).with_name("tekken_ids.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
