"""Writes `unigram_scores.json`: how the Python package `tokenizers` reads scores, and breaks ties between them.

    python crates/prompt/tests/tokenize/unigram_scores.py

Needs `pip install tokenizers==0.23.*`. `scores` are pairs of a number and the bits that it became. `ties` are scores of `a`, `b` and
`ab` that are equal on paper, and the ids of `ab`; exact floats break them in another way.
"""

import json
import pathlib
import random
import re
import struct

from tokenizers import Tokenizer

UNKNOWN = ("<unk>", "0.0")


def build(vocabulary):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[token, f"@{score}@"] for token, score in vocabulary], "byte_fallback": False}
    return Tokenizer.from_str(re.sub('"@(.*?)@"', r"\1", json.dumps({"version": "1.0", "added_tokens": [], "model": model})))


def read(scores):
    tokenizer = build([UNKNOWN] + [(f"t{number}", score) for number, score in enumerate(scores)])
    return [score for _, score in json.loads(tokenizer.to_str())["model"]["vocab"][1:]]


def sign(number):
    return (number > 0) - (number < 0)


random.seed(5)
usual = [repr(-random.uniform(1, 20)) for _ in range(3000)]
written = ["-%.20f" % random.uniform(1, 20) for _ in range(30)]
written += ["-%.19e" % random.uniform(1, 20) for _ in range(30)]
written += ["-%.12f" % random.uniform(1, 20) for _ in range(20)]
written += [
    "-123456789012345678901234567890.5e-28", "-1e-320", "-5.0e-324", "0.1e-310", "-12345678901234567890123e-22", "-0", "-7", "0",
    "-18446744073709551616", "-18446744073709551615.25", "-1.8446744073709551616", "-3E0", "-3e+0",
    "-0.0000000000000000000000000000012345678901234567",
]
written += [score for score, value in zip(usual, read(usual)) if float(score) != value][:60]

ties = []
while len(ties) < 12:
    a, b = -random.uniform(1, 6), -random.uniform(1, 6)
    scores = [repr(a), repr(b), repr(a + b)]
    read_a, read_b, read_both = read(scores)
    if sign(read_a + read_b - read_both) != 0:
        ids = build([UNKNOWN, ("a", scores[0]), ("b", scores[1]), ("ab", scores[2])]).encode("ab", add_special_tokens=False).ids
        ties.append([*scores, ids])

bits = [[score, struct.pack(">d", float(value)).hex()] for score, value in zip(written, read(written))]
path = pathlib.Path(__file__).with_name("unigram_scores.json")
path.write_text(json.dumps({"scores": bits, "ties": ties}, separators=(",", ":")) + "\n")
