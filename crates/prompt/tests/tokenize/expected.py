"""Makes small tokenizers of the kinds that models have, and the ids that `transformers` gives for texts and chats.

    python crates/prompt/tests/tokenize/expected.py TESTDATA

writes `models/` and `expected.json` beside this file. Needs `pip install tokenizers==0.23.* transformers==5.* jinja2`. The
argument is the unpacked `testdata/` of the repository, whose tokenizer is asked as well.
"""

import json
import pathlib
import shutil
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent

CORPUS = [
    "A cache keeps what was worked out before, so that nobody has to work it out again.",
    "The longest prefix that a worker holds decides where a prompt is sent.",
    "fn main() { let tokens: Vec<u32> = tokenize(\"hello, world\"); println!(\"{}\", tokens.len()); }",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.",
    "東京は今日も晴れです。 今日は何をしますか。",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "1234567890 3.14159 2026-11-21 0xdeadbeef 1,000,000",
    "role: user\n\ncontent: what is a prefix?\n\n\trole: assistant",
] * 3

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "hello hello  hello   hello",
    "\n\n\n\tindented\n  twice\r\n",
    "The longest prefix that a worker holds.",
    "I'm sure they'll say it's WE'VE",
    "fn add(a: u32, b: u32) -> u32 { a + b } // 1234567",
    "Zwölf große Boxkämpfer",
    "e\u0301tude \u00e9tude \ufb01ne \uff21",
    "今日は東京です。",
    "Съешь ещё",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f600\U0001f600",
    "zero\u200bwidth\u00a0space\ufeff",
    "control \u0001\u0007 \u007f end",
    "<s>written out</s><|im_start|>user<|im_end|>[CLS] [SEP]<unk><extra_0><extra_1> <pad>",
    "trailing   ",
    "x" * 300,
    "word " * 200,
    "数" * 100 + "1" * 50,
]

CHATS = [
    [{"role": "user", "content": "What is a prefix?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Zwölf?\n"},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "今日は"},
    ],
]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def special(content):
    return AddedToken(content, special=True, normalized=False)


def byte_level():
    """Bytes as letters and a pattern for words, as in Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=[special(token) for token in tokens]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    bos = tokens[0]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos}:1 $B:1", [(bos, tokenizer.token_to_id(bos))]),
    ])
    return tokenizer, {"bos_token": bos, "eos_token": tokens[1], "chat_template": TEMPLATE}


def sentence_pieces():
    """A sign for spaces, and bytes for what the vocabulary lacks, as in Llama 2 and Mistral."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens)
    pieces = [piece for line in CORPUS for piece in line.replace(" ", " ▁").split()]
    tokenizer.normalizer, normalizer = normalizers.Sequence([]), tokenizer.normalizer
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.normalizer = normalizer
    # The bytes are pieces of the vocabulary, not tokens to be searched for in a text.
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] in tokens[:3]]
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    # Tokens that only the configuration has. One of them takes the spaces before it.
    added = {
        str(tokenizer.get_vocab_size() + number): {
            "content": f"<extra_{number}>", "lstrip": number == 1, "normalized": False, "rstrip": False,
            "single_word": False, "special": number == 0,
        }
        for number in range(2)
    }
    return tokenizer, {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "added_tokens_decoder": added,
        "chat_template": TEMPLATE,
    }


def word_pieces():
    """Words and what follows in a word, as in BERT; with the limits of its training left in the file."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=500, special_tokens=[special(token) for token in tokens]))
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=32, pad_id=0, pad_token="[PAD]")
    return tokenizer, {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}


def unigram():
    """Pieces by likelihood, as in T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    tokens = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=[special(token) for token in tokens], unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B:1 </s>:1", [("</s>", 1)])
    return tokenizer, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def expectations(tokenizer, chats):
    """Ids of texts: as engines have them, without added tokens, and cut from the left."""
    def ids(text, **options):
        return tokenizer(text, **options)["input_ids"]

    tokenizer.truncation_side = "left"
    return {
        "texts": [
            {"text": text, "ids": ids(text), "plain_ids": ids(text, add_special_tokens=False), "last_7": ids(text, truncation=True, max_length=7)}
            for text in TEXTS
        ],
        "chats": [
            {"messages": messages, "ids": tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)}
            for messages in chats
        ],
    }


def main():
    testdata = pathlib.Path(sys.argv[1])
    shutil.rmtree(HERE / "models", ignore_errors=True)
    expected = {}
    for make in (byte_level, sentence_pieces, word_pieces, unigram):
        tokenizer, config = make()
        name = make.__name__
        folder = HERE / "models" / name
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000} | config
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")
        loaded = PreTrainedTokenizerFast.from_pretrained(folder)
        expected[name] = expectations(loaded, CHATS if "chat_template" in config else [])
    expected["test-model"] = expectations(AutoTokenizer.from_pretrained(testdata / "tokenizers/test-model"), CHATS)
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")


main()
