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
from transformers import AutoTokenizer, PreTrainedTokenizerFast, TokenizersBackend
from transformers.models.auto import tokenization_auto

from class_cases import TEXTS, cases

HERE = pathlib.Path(__file__).resolve().parent
FACTS = HERE / "../../src/tokenize/local/tokenizer_classes.json"
# Classes that are rebuilt here.
CLASSES = {
    "LlamaTokenizer", "CodeLlamaTokenizer", "GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "GemmaTokenizer",
    "CohereTokenizer",
}
GENERIC = {"TokenizersBackend", "MistralCommonBackend", "PreTrainedTokenizerFast", "PythonBackend"}


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


def takes_the_file(name):
    """Whether a class takes `tokenizer.json` as it is."""
    found = tokenization_auto.tokenizer_class_from_name(name)
    return found is None or found is TokenizersBackend or (issubclass(found, TokenizersBackend) and "__init__" not in found.__dict__)


def write_facts():
    mapping = tokenization_auto.TOKENIZER_MAPPING_NAMES
    generic = sorted(kind for kind, name in mapping.items() if (name or "").removesuffix("Fast") in GENERIC | {""})
    names = {name.removesuffix("Fast") for name in [*dir(transformers), *filter(None, mapping.values())] if name.removesuffix("Fast").endswith("Tokenizer")}
    others = {name for name in names - CLASSES - GENERIC - {"AutoTokenizer", "PreTrainedTokenizer"} if not takes_the_file(name)}
    facts = {
        "transformers": transformers.__version__,
        "generic_types": generic,
        "corrected_types": sorted(tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
        "classes": {kind: name.removesuffix("Fast") for kind, name in sorted(mapping.items()) if (name or "").removesuffix("Fast") in CLASSES | others},
        "generic_models": sorted(tokenization_auto.MODEL_IDS_TO_TOKENIZERS_BACKEND),
        "other_classes": sorted(others),
    }
    # Other packages, such as `mistral-common`, change the class of some types, but a generic type stays generic.
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


def main():
    write_facts()
    load_as_sglang = sglang_functions(pathlib.Path(sys.argv[1]).resolve())
    written = []
    os.chdir(tempfile.mkdtemp())
    for name, model, model_type, config, others in cases():
        # A relative folder with the name of a model on the hub is treated as that model.
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
