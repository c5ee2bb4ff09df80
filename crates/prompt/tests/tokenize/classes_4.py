"""Makes the ids that engines on `transformers` 4 give, whose classes change the pipeline of `tokenizer.json`.

    python crates/prompt/tests/tokenize/classes_4.py

writes `classes_4.json` beside this file. Needs `pip install transformers==4.57.* sentencepiece protobuf`, the version that TensorRT-LLM 1.2 has.
Llama's class with `add_prefix_space` needs a SentencePiece model, which `llama_pieces` has: a BPE model with byte fallback that was trained on a
README, and the `tokenizer.json` that this class makes of it. Cases of other models that need one are left out.
"""

import json
import os
import pathlib
import sys
import tempfile

import transformers
from transformers import AutoTokenizer

from class_cases import TEXTS, cases, token

HERE = pathlib.Path(__file__).resolve().parent
assert transformers.__version__.startswith("4.57."), transformers.__version__


def more_cases():
    """Further cases of the same form, of what version 4 reads."""
    begin = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    llama = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    both = {"add_bos_token": True, "add_eos_token": True}
    for class_name, model, of_class in (
        ("LlamaTokenizer", "sentence_pieces", llama),
        ("LlamaTokenizerFast", "byte_level", begin),
        ("GemmaTokenizer", "sentence_pieces", llama),
        ("CohereTokenizerFast", "byte_level", begin),
        ("GPTNeoXTokenizerFast", "byte_level", begin),
        ("GPT2TokenizerFast", "byte_level", begin),
        ("PreTrainedTokenizerFast", "byte_level", begin),
        ("Qwen2Tokenizer", "byte_level", begin),
    ):
        for name, settings in (("both", both), ("neither", {"add_bos_token": False}), ("end", {"add_eos_token": True}), ("none", {})):
            config = of_class | settings | {"tokenizer_class": class_name}
            yield (f"{class_name} of {model}, {name}", model, "unknown_type", config, {})
        if model == "byte_level" and class_name != "LlamaTokenizerFast":
            config = of_class | {"tokenizer_class": class_name, "add_prefix_space": True}
            yield (f"{class_name} with a first space", model, "unknown_type", config, {})
    for adds_space in (True, False):
        for name, settings in (("older", {}), ("old", {"legacy": True}), ("new", {"legacy": False})):
            config = llama | settings | {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": adds_space}
            yield (f"llama of a SentencePiece model, {name} spaces, first space {adds_space}", "llama_pieces", "llama", config, {})
    yield ("llama of a SentencePiece model", "llama_pieces", "llama", llama | {"tokenizer_class": "LlamaTokenizerFast"}, {})
    for name, settings in (
        ("nothing", {}), ("cases", {"do_lower_case": False}), ("accents", {"do_lower_case": False, "strip_accents": True}), ("kept accents", {"strip_accents": False}),
        ("whole chinese", {"tokenize_chinese_chars": False}), ("all", {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}),
    ):
        for class_name in ("BertTokenizer", "DistilBertTokenizerFast", "PreTrainedTokenizerFast"):
            yield (f"{class_name} with {name}", "word_pieces", "unknown_type", settings | {"tokenizer_class": class_name}, {})
    yield ("bert without a class", "word_pieces", "bert", {"do_lower_case": False}, {})
    yield ("llama with a token as an object", "sentence_pieces", "llama", llama | {"tokenizer_class": "LlamaTokenizer", "bos_token": token("<s>")}, {})


def main():
    written = []
    os.chdir(tempfile.mkdtemp())
    for name, model, model_type, config, others in [*cases(), *more_cases()]:
        files = {"tokenizer_config.json": config, "config.json": {"model_type": model_type}}
        for file, content in others.items():
            files[file] = files.get(file, {}) | content
        os.makedirs(name)
        for file, content in files.items():
            pathlib.Path(name, file).write_text(json.dumps(content))
        for path in (HERE / "models" / model).glob("tokenizer.[jm]*"):
            pathlib.Path(name, path.name).write_bytes(path.read_bytes())
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except Exception as error:
            print("left out:", name, repr(error)[:120], file=sys.stderr)
            continue
        print(name, type(tokenizer).__name__, file=sys.stderr)
        case = {"name": name, "model": model, "files": files}
        case["ids"] = [tokenizer(text)["input_ids"] for text in TEXTS]
        case["plain"] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        written.append(case)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in written)
    HERE.joinpath("classes_4.json").write_text('{"texts":' + json.dumps(TEXTS) + ',\n"cases":[\n' + lines + "\n]}\n")


main()
