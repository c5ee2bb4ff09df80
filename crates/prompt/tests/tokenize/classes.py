"""Makes the ids that engines on `transformers` 5 give with tokenizer classes that rebuild the pipeline of `tokenizer.json`.

    python crates/prompt/tests/tokenize/classes.py SGLANG

writes `classes.json` beside this file, and the facts about classes to `src/tokenize/local/tokenizer_classes.json`. The argument is
the unpacked wheel of SGLang 0.5.23 (`pip download --no-deps sglang==0.5.23`), of which only the functions that adjust a loaded
tokenizer are used. Needs `pip install tokenizers==0.23.* transformers==5.19.0`, the version that vLLM 0.32 and SGLang 0.5.23 have.
vLLM takes `AutoTokenizer` as it is.
"""

import ast
import json
import logging
import os
import pathlib
import sys
import tempfile

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto import tokenization_auto

HERE = pathlib.Path(__file__).resolve().parent
FACTS = HERE / "../../src/tokenize/local/tokenizer_classes.json"
# Classes that are rebuilt here.
CLASSES = {
    "LlamaTokenizer", "GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "GemmaTokenizer",
    "CohereTokenizer",
}
GENERIC = {"TokenizersBackend", "MistralCommonBackend", "PreTrainedTokenizerFast", "PythonBackend"}

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces before, and  two  between",
    "\nline\n\n  indented\r\n\ttab ",
    "The longest prefix that a worker holds. I'm sure they'll say it's WE'VE",
    "Zwölf große Boxkämpfer 1234567 3.14",
    "e\u0301tude \u00e9tude \ufb01ne \uff21 \u212b \u1100\u1161",
    "今日は東京です。 Съешь ещё \u0645\u0631\u062d\u0628\u0627 हिन्दी",
    "\U0001f468\u200d\U0001f469 \U0001f600 \u0001 \u007f \u00a0\ufeff",
    "▁ ▁▁a ▁",
    "<s>a</s> b<s> c<unk><extra_0>d <extra_1> e<pad>",
    "<|begin_of_text|>a<|im_start|> user<|im_end|>\n <|end_of_text|><|endoftext|> b",
    " <image>a<image> [X] b[X]<bos><PAD>",
    "<s> a\n<s>\nb <s>  c",
    "x" * 80 + " " * 9 + "y",
    "word " * 40,
]

ADDED = {
    "600": {"content": "<image>", "lstrip": False, "normalized": False, "rstrip": True, "single_word": False, "special": True},
    "601": {"content": "[X]", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False},
}


def token(content):
    return {"__type": "AddedToken", "content": content, "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}


def cases():
    """Name, `tokenizer.json`, model type, configuration of the tokenizer, other files."""
    llama = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    begin = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    pieces, letters = "sentence_pieces", "byte_level"
    maps = {
        "special_tokens_map.json": {"bos_token": {k: v for k, v in token("<s>").items() if k != "__type"}, "pad_token": "[PAD]"},
        "added_tokens.json": {"[X]": 600},
    }
    return [
        ("llama", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer"}, {}),
        ("llama of new spaces", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, "add_prefix_space": None}, {}),
        ("llama of old spaces", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "legacy": True}, {}),
        ("llama without a first space", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, {}),
        ("llama without a first token", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, {}),
        ("llama with a last token", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}, {}),
        ("llama with tokens", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": ADDED, "pad_token": "<pad>"}, {}),
        ("llama with named tokens", pieces, "llama",
         llama | {"tokenizer_class": "LlamaTokenizer", "image_token": "<image>", "bos_token": token("<s>"), "extra_special_tokens": ["[X]", "<extra_0>"]}, {}),
        ("llama with a map of tokens", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "extra_special_tokens": {"x_token": "[X]"}}, {}),
        ("llama with additional tokens", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "additional_special_tokens": ["[X]"], "unk_token": None}, {}),
        ("llama with old files", pieces, "llama", {"tokenizer_class": "LlamaTokenizer"}, maps),
        ("llama of an unknown model", pieces, "unknown_type", llama | {"tokenizer_class": "LlamaTokenizer"}, {}),
        ("llama named by the model", pieces, "llama", llama, {"config.json": {"tokenizer_class": "LlamaTokenizerFast"}}),
        ("llama of bytes", letters, "llama", begin | {"tokenizer_class": "LlamaTokenizerFast"}, {}),
        ("llama of mistral", pieces, "mistral", llama | {"tokenizer_class": "LlamaTokenizer"}, {}),
        ("llama of deepseek", letters, "deepseek_v3", begin | {"tokenizer_class": "LlamaTokenizerFast"}, {}),
        ("llama of phi", pieces, "phi3", llama | {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}, {}),
        ("llama of internlm", pieces, "internlm2", llama | {"tokenizer_class": "LlamaTokenizer"}, {}),
        ("gpt-2", letters, "gpt2", {"tokenizer_class": "GPT2Tokenizer"}, {}),
        ("gpt-2 with a first space", letters, "gpt2", begin | {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}, {}),
        ("gpt-2 of starcoder", letters, "starcoder2", begin | {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}, {}),
        ("gpt-2 of llama", letters, "llama", begin | {"tokenizer_class": "GPT2Tokenizer"}, {}),
        ("gpt-2 of granite", letters, "granite", begin | {"tokenizer_class": "GPT2Tokenizer"}, {}),
        ("gpt-2 of pieces", pieces, "gpt2", {"tokenizer_class": "GPT2Tokenizer"}, {}),
        ("codegen", letters, "phi", {"tokenizer_class": "CodeGenTokenizer"}, {}),
        ("gpt-neox", letters, "gpt_neox", begin | {"tokenizer_class": "GPTNeoXTokenizer"}, {}),
        ("gpt-neox without a class", letters, "gpt_neox", begin, {}),
        ("qwen 2", letters, "qwen2", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|end_of_text|>"}, {}),
        ("qwen 2 with another class", letters, "qwen2", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
        ("qwen 3 without a class", letters, "qwen3", begin, {}),
        ("qwen 3 with another class", letters, "qwen3", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
        ("qwen 3.5", letters, "qwen3_5", begin | {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": ADDED}, {}),
        ("gemma", pieces, "gemma3", llama | {"tokenizer_class": "GemmaTokenizerFast"}, {}),
        ("gemma without a first token", pieces, "gemma2", llama | {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False}, {}),
        ("cohere", letters, "cohere2", begin | {"tokenizer_class": "CohereTokenizerFast"}, {}),
        ("cohere with another name", letters, "cohere", begin | {"tokenizer_class": "CohereTokenizer", "add_prefix_space": True}, {}),
        ("plain", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
        ("plain pieces", pieces, "llama", llama | {"tokenizer_class": "TokenizersBackend"}, {}),
    ]


def sglang_functions(package):
    """What SGLang does to a loaded tokenizer, from its source, without the packages that the rest of its module needs."""
    source = pathlib.Path(package, "sglang/srt/utils/hf_transformers/tokenizer.py").read_text()
    wanted = {"_load_tokenizer_by_declared_class", "_fix_v5_tokenizer_components", "_fix_v5_add_bos_eos_token"}
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    names = {
        "json": json, "logger": logging.getLogger("sglang"), "PreTrainedTokenizerFast": PreTrainedTokenizerFast,
        "_resolve_local_or_cached_file": lambda folder, name, revision: os.path.join(folder, name),
    }
    exec(compile(tree, "sglang", "exec"), names)

    def load(folder):
        options = {"trust_remote_code": False, "tokenizer_revision": None, "clean_up_tokenization_spaces": False}
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **options)
        if type(tokenizer).__name__ == "TokenizersBackend":
            tokenizer = names["_load_tokenizer_by_declared_class"](folder, use_fast=False, **options) or tokenizer
        names["_fix_v5_tokenizer_components"](tokenizer, folder, None)
        names["_fix_v5_add_bos_eos_token"](tokenizer, folder, None)
        return tokenizer

    return load


def write_facts():
    mapping = tokenization_auto.TOKENIZER_MAPPING_NAMES
    generic = sorted(kind for kind, name in mapping.items() if (name or "").removesuffix("Fast") in GENERIC | {""})
    facts = {
        "transformers": transformers.__version__,
        "generic_types": generic,
        "corrected_types": sorted(tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
        "classes": {kind: name.removesuffix("Fast") for kind, name in sorted(mapping.items()) if (name or "").removesuffix("Fast") in CLASSES},
    }
    # Other packages, such as `mistral-common`, change the class of some types but not that it is generic.
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


def main():
    write_facts()
    load_as_sglang = sglang_functions(pathlib.Path(sys.argv[1]).resolve())
    written = []
    os.chdir(tempfile.mkdtemp())
    for name, model, model_type, config, others in cases():
        folder = name
        os.makedirs(folder)
        files = {"tokenizer_config.json": config, "config.json": {"model_type": model_type}}
        for file, content in others.items():
            files[file] = files.get(file, {}) | content
        for file, content in files.items():
            pathlib.Path(folder, file).write_text(json.dumps(content))
        pathlib.Path(folder, "tokenizer.json").write_text((HERE / "models" / model / "tokenizer.json").read_text())
        case = {"name": name, "model": model, "files": files}
        for engine, load in (("vllm", AutoTokenizer.from_pretrained), ("sglang", load_as_sglang)):
            if name == "llama of internlm" and engine == "vllm":
                # vLLM lists this type itself.
                load = PreTrainedTokenizerFast.from_pretrained
            tokenizer = load(folder)
            print(name, engine, type(tokenizer).__name__, file=sys.stderr)
            case[engine] = [tokenizer(text)["input_ids"] for text in TEXTS]
            case[engine + "_plain"] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        raw = PreTrainedTokenizerFast.from_pretrained(folder)
        case["differs"] = {
            engine: case[engine + "_plain"] != [raw(text, add_special_tokens=False)["input_ids"] for text in TEXTS] for engine in ("vllm", "sglang")
        }
        written.append(case)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in written)
    HERE.joinpath("classes.json").write_text('{"texts":' + json.dumps(TEXTS) + ',\n"cases":[\n' + lines + "\n]}\n")


main()
