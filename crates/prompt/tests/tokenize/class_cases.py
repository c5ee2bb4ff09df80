"""Tokenizers and texts of `classes.py` and `classes_4.py`."""

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


# Other flags than those in the file, and two entries with one text.
FLAGGED = {
    "560": {"content": "<|im_end|>", "lstrip": True, "normalized": False, "rstrip": True, "single_word": False, "special": True},
    "600": {"content": "<image>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False, "special": False},
}
TWICE = {
    "600": {"content": "<image>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True},
    "601": {"content": "<image>", "lstrip": True, "normalized": False, "rstrip": True, "single_word": False, "special": True},
}


def token(content):
    return {"__type": "AddedToken", "content": content, "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}


def maps_of(content):
    """Files of older versions: a token with flags by its name, and added tokens."""
    flags = {k: v for k, v in token(content).items() if k != "__type"}
    return {"special_tokens_map.json": {"eos_token": flags, "pad_token": "<PAD>"}, "added_tokens.json": {"[X]": 600, "<image>": 601, "<PAD>": 602}}


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
        ("code llama", pieces, "llama", llama | {"tokenizer_class": "CodeLlamaTokenizer"}, {}),
        ("code llama without a first space", pieces, "code_llama",
         llama | {"tokenizer_class": "CodeLlamaTokenizerFast", "add_prefix_space": False, "add_bos_token": False, "add_eos_token": True, "prefix_token": "[X]"}, {}),
        ("code llama with tokens", pieces, "llama", llama | {"tokenizer_class": "CodeLlamaTokenizer", "added_tokens_decoder": ADDED, "additional_special_tokens": ["<pad>"]}, {}),
        ("qwen 2 with flags", letters, "qwen2", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": token("<|im_end|>"), "extra_special_tokens": [token("[X]")]}, {}),
        ("qwen 2 with two of one text", letters, "qwen2", {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": TWICE}, {}),
        ("gpt-2 with two of one text", letters, "gpt2", begin | {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": TWICE}, {}),
        ("qwen 3.5 with flags", letters, "qwen3_5", {"eos_token": token("<|im_end|>"), "added_tokens_decoder": FLAGGED}, {}),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", letters, "llama", begin | {"tokenizer_class": "LlamaTokenizerFast"}, {}),
        ("plain with added tokens", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, maps_of("<|im_end|>")),
        ("plain with a map of extra tokens", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {"x_token": "[X]"}}, {}),
        ("plain with an image token", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "image_token": "<image>", "extra_special_tokens": ["[X]"]}, {}),
        ("plain with both lists", letters, "llama",
         begin | {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["[X]"], "extra_special_tokens": ["<image>"]}, maps_of("<|im_end|>")),
        ("plain with lists in the map", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": ["[X]"]},
         {"special_tokens_map.json": {"extra_special_tokens": ["<image>", "[X]"], "additional_special_tokens": ["<bos>"]}}),
        ("plain with an old list in the map", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, {"special_tokens_map.json": {"additional_special_tokens": ["<image>", "[X]"]}}),
        ("plain with flags", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": FLAGGED}, {}),
        ("plain with two of one text", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": TWICE}, {}),
        ("plain with split special tokens", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True}, {}),
        ("llama with split special tokens", pieces, "llama", llama | {"tokenizer_class": "LlamaTokenizer", "split_special_tokens": True, "extra_special_tokens": ["[X]"]}, {}),
        ("plain with old files", pieces, "llama", llama | {"tokenizer_class": "PreTrainedTokenizerFast"}, maps),
        ("plain", letters, "llama", begin | {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
        ("plain pieces", pieces, "llama", llama | {"tokenizer_class": "TokenizersBackend"}, {}),
    ]
