//! Ids of texts that are tokenized in pieces equal those of the whole text.

use std::fs;
use std::path::Path;

use flash_indexer_prompt::tokenize::{
    Cutting, FailureReason, PoolOptions, PromptOptions, SpecialTokens, TokenizerPool, UNCUT_BYTES_MAX,
};
use flash_indexer_test_support::testdata;
use serde_json::{Value, json};
use tempfile::tempdir;
use tokenizers::Tokenizer;

use crate::support::{forgetful, ids, pool_in, pool_with, text, tiny_tokenizer, write_model};

/// Parts of random texts: words and what joins, splits or disturbs them.
pub(crate) const PARTS: &[&str] = &[
    "a",
    "prefix ",
    "The",
    " longest",
    "fn main() {",
    "}",
    "it's",
    "WE'VE",
    " they'll",
    "'",
    "''s",
    "x's'",
    "Zwölf",
    " große",
    "1",
    "12",
    " 345",
    "67890",
    "3.14",
    "\u{661}\u{662}",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    " \n",
    "\r\n",
    "\r",
    "\n ",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    ".",
    ", ",
    "!?",
    "...",
    "/",
    "//\n",
    "<",
    ">",
    "|",
    "_",
    "\"",
    "\\",
    "今日",
    "は東京です",
    "。",
    "、",
    "，",
    "数",
    "한국어",
    "\u{1100}\u{1161}",
    "e\u{301}",
    "\u{301}",
    "<\u{338}",
    "\u{3099}",
    "Съешь",
    " ещё",
    "مرحبا",
    "שלום",
    "हिन्दी",
    "ไทย",
    "\u{1f468}\u{200d}\u{1f469}",
    "\u{1f600}",
    "\u{1}",
    "\u{7f}",
    "▁",
    "▁▁",
    "ﬁ",
    "Ａ",
    "\u{212a}",
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<extra_0>",
    " <extra_1> ",
    "<extra",
    "[CLS]",
    "[SEP]",
    "<|E|>",
    "a|E|",
    "<|left|>",
    " <|right|> ",
    "long word",
];

/// Numbers below a limit, the same for the same seed (SplitMix64).
pub(crate) fn random_numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |limit| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }
}

/// A random text of some bytes. Later parts repeat earlier ones, so pieces are found in the cache.
pub(crate) fn random_text(next: &mut impl FnMut(usize) -> usize, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        match next(24) {
            // A run that has no place for a cut.
            0 => text.push_str(&PARTS[next(PARTS.len())].repeat(1 + next(400))),
            1 => text.extend((0..next(300)).map(|_| char::from(b'a' + next(26) as u8))),
            2..=4 => text.push_str("The longest prefix that a worker holds decides. "),
            _ => text.push_str(PARTS[next(PARTS.len())]),
        }
    }
    text
}

fn models() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models")
}

fn tokenizer(kind: &str) -> Value {
    let file = fs::read(models().join(kind).join("tokenizer.json")).expect("a tokenizer");
    serde_json::from_slice(&file).expect("JSON")
}

fn with(kind: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut tokenizer = tokenizer(kind);
    change(&mut tokenizer);
    tokenizer
}

fn added_token(tokenizer: &mut Value, content: &str, flags: Value) {
    let tokens = tokenizer["added_tokens"].as_array_mut().expect("a list");
    let mut token = json!({"id": 5_000 + tokens.len(), "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": false});
    for (name, value) in flags.as_object().expect("flags") {
        token[name] = value.clone();
    }
    tokens.push(token);
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn bytes_after(splits: Vec<Value>) -> Value {
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"type": "Sequence", "pretokenizers": splits.into_iter().chain([level]).collect::<Vec<_>>()})
}

const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// Tokenizers of all kinds, and where their texts are cut.
pub(crate) fn tokenizers() -> Vec<(&'static str, Value, Cutting)> {
    let metaspace = |scheme: &str, splits: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits});
    let space_signs = |scheme: &'static str, splits: bool| {
        with("sentence_pieces", |tokenizer| {
            tokenizer["normalizer"] = Value::Null;
            tokenizer["pre_tokenizer"] = metaspace(scheme, splits);
        })
    };
    let patterns =
        |splits: Vec<Value>| with("byte_level", |tokenizer| tokenizer["pre_tokenizer"] = bytes_after(splits));
    let flagged = |flags: Value| with("byte_level", |tokenizer| added_token(tokenizer, "<|left|>", flags));
    vec![
        ("llama 3", tokenizer("byte_level"), Cutting::Words),
        ("qwen", patterns(vec![split(QWEN)]), Cutting::Words),
        ("qwen 3.5", patterns(vec![split(QWEN_3_5)]), Cutting::Words),
        ("gpt-oss", patterns(vec![split(O200K)]), Cutting::Words),
        ("deepseek", patterns(DEEPSEEK.map(split).into()), Cutting::Words),
        (
            "deepseek with normalized tokens",
            with("byte_level", |tokenizer| {
                tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": []});
                tokenizer["pre_tokenizer"] = bytes_after(DEEPSEEK.map(split).into());
                added_token(tokenizer, "<|E|>", json!({"normalized": true}));
                added_token(tokenizer, "long word", json!({"normalized": true}));
            }),
            Cutting::Words,
        ),
        (
            "normalized tokens and a normalizer",
            with("byte_level", |tokenizer| added_token(tokenizer, "<|E|>", json!({"normalized": true}))),
            Cutting::AddedTokens,
        ),
        (
            "gpt-2",
            with("byte_level", |tokenizer| {
                tokenizer["normalizer"] = Value::Null;
                tokenizer["pre_tokenizer"] =
                    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
            }),
            Cutting::Words,
        ),
        (
            "gpt-2 with a first space",
            with("byte_level", |tokenizer| {
                tokenizer["pre_tokenizer"] =
                    json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
            }),
            Cutting::AddedTokens,
        ),
        ("an unknown pattern", patterns(vec![split(r"\p{L}+\s|\p{N}+|.")]), Cutting::AddedTokens),
        ("gaps between letters", patterns(vec![split(r"\p{N}+|\s+")]), Cutting::AddedTokens),
        ("a token that takes spaces", flagged(json!({"lstrip": true})), Cutting::Words),
        ("a token that takes spaces on both sides", flagged(json!({"lstrip": true, "rstrip": true})), Cutting::Words),
        (
            "a normalized token that takes spaces",
            flagged(json!({"rstrip": true, "normalized": true})),
            Cutting::AddedTokens,
        ),
        ("a token that is a word", flagged(json!({"single_word": true})), Cutting::Nowhere),
        (
            "a normalized token that is a word",
            flagged(json!({"single_word": true, "normalized": true})),
            Cutting::AddedTokens,
        ),
        ("llama 2", tokenizer("sentence_pieces"), Cutting::Words),
        (
            "gemma",
            with("sentence_pieces", |tokenizer| {
                tokenizer["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
                tokenizer["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
            }),
            Cutting::Words,
        ),
        ("a first space sign", space_signs("first", false), Cutting::Words),
        ("a space sign before every piece", space_signs("always", false), Cutting::Words),
        ("words with a first space sign", space_signs("first", true), Cutting::Words),
        ("words with a space sign", space_signs("always", true), Cutting::Words),
        ("words without a space sign", space_signs("never", true), Cutting::Words),
        (
            "merges across words",
            with("sentence_pieces", |tokenizer| {
                let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
                vocabulary.insert("e▁".to_owned(), json!(4_000));
                let merges = tokenizer["model"]["merges"].as_array_mut().expect("merges");
                merges.insert(0, json!(["e", "▁"]));
            }),
            Cutting::AddedTokens,
        ),
        (
            "stripped texts",
            with("byte_level", |tokenizer| {
                tokenizer["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true});
            }),
            Cutting::AddedTokens,
        ),
        (
            "dropped merges",
            with("byte_level", |tokenizer| tokenizer["model"]["dropout"] = json!(0.0)),
            Cutting::Nowhere,
        ),
        (
            "a text twice",
            with("unigram", |tokenizer| {
                let twice = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
                let pair = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]);
                tokenizer["post_processor"] =
                    json!({"type": "TemplateProcessing", "single": twice, "pair": pair, "special_tokens": {}});
            }),
            Cutting::Nowhere,
        ),
        ("wordpiece", tokenizer("word_pieces"), Cutting::Words),
        (
            "wordpiece with normalized tokens",
            with("word_pieces", |tokenizer| added_token(tokenizer, "long word", json!({"normalized": true}))),
            Cutting::AddedTokens,
        ),
        ("unigram", tokenizer("unigram"), Cutting::Words),
        (
            "unigram of unsplit texts",
            with("unigram", |tokenizer| tokenizer["pre_tokenizer"] = metaspace("always", false)),
            Cutting::AddedTokens,
        ),
        (
            "unigram with spaces of punctuation",
            with("unigram", |tokenizer| {
                let normalizers = tokenizer["normalizer"]["normalizers"].as_array_mut().expect("a list");
                normalizers.insert(0, json!({"type": "Replace", "pattern": {"String": "x"}, "content": " "}));
            }),
            Cutting::AddedTokens,
        ),
        ("unigram of words", with("unigram", |tokenizer| tokenizer["normalizer"] = Value::Null), Cutting::Words),
    ]
}

/// The tokenizer itself. Truncation and padding of its file are not applied.
pub(crate) fn reference(file: &[u8]) -> Tokenizer {
    let mut tokenizer = Tokenizer::from_bytes(file).expect("a tokenizer");
    tokenizer.with_truncation(None).expect("no truncation").with_padding(None);
    tokenizer
}

/// Compares the ids of texts, with an empty cache and with a filled one, to those of the whole texts.
fn compare(name: &str, pool: &TokenizerPool, model: &str, reference: &Tokenizer, texts: &[String]) {
    for written in texts.iter().chain(texts) {
        for (special_tokens, are_added) in [(SpecialTokens::Added, true), (SpecialTokens::Omitted, false)] {
            let options = PromptOptions { special_tokens, ..PromptOptions::default() };
            let ids = pool.tokenize_with(model, text(written), options).expect("tokens").ids;
            let whole = reference.encode_fast(written.as_str(), are_added).expect("tokens");
            if ids != whole.get_ids() {
                let same = ids.iter().zip(whole.get_ids()).take_while(|(ours, theirs)| ours == theirs).count();
                panic!("{name}: differs at token {same} of {}: {written:?}", whole.len());
            }
        }
    }
}

#[test]
fn pieces_have_the_ids_of_the_whole_text_with_every_kind_of_tokenizer() {
    for (number, (name, tokenizer, cutting)) in tokenizers().into_iter().enumerate() {
        let root = tempdir().expect("a directory");
        write_model(&root.path().join("model"), &tokenizer);
        let mut next = random_numbers(number as u64);
        let mut texts: Vec<String> = (0..60).map(|_| random_text(&mut next, 40)).collect();
        texts.extend((0..6).map(|_| random_text(&mut next, 12_000)));
        // Texts with a common beginning, and with a common end.
        let long = random_text(&mut next, 30_000);
        texts.push(format!("{long}{}", random_text(&mut next, 3_000)));
        texts.push(format!("{}{long}", random_text(&mut next, 3_000)));
        let pool = pool_with(root.path(), PoolOptions { cached_bytes_max: 1 << 20, ..forgetful() });
        let reference = reference(tokenizer.to_string().as_bytes());
        compare(name, &pool, "model", &reference, &texts);

        let statistics = pool.statistics();
        let loaded = Cutting::ALL.into_iter().find(|cutting| statistics.cuttings[*cutting as usize] > 0);
        assert_eq!(loaded, Some(cutting), "{name}");
        assert_eq!(statistics.pieces.hits == 0, cutting == Cutting::Nowhere, "{name}: {statistics:?}");
    }
}

#[test]
fn committed_texts_have_the_same_ids_in_pieces() {
    let data = testdata();
    let folder = data.join("tokenizers");
    let reference = reference(&fs::read(folder.join("test-model/tokenizer.json")).expect("a tokenizer"));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = [
        "README.md",
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "docs/operations.md",
        "crates/prompt/tests/tokenize/expected.json",
    ];
    let mut texts: Vec<String> = files.map(|file| fs::read_to_string(repository.join(file)).expect("a text")).into();
    let expected: Value = serde_json::from_str(include_str!("expected.json")).expect("JSON");
    for model in expected.as_object().expect("models").values() {
        let written = model["texts"].as_array().expect("texts").iter();
        texts.extend(written.map(|expected| expected["text"].as_str().expect("a text").to_owned()));
    }
    let pool = pool_in(&folder);
    compare("test-model", &pool, "test-model", &reference, &texts);
}

#[test]
fn only_new_text_is_tokenized() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("model"), &tokenizer("byte_level"));
    let pool = pool_in(root.path());
    let turn = |number: usize| {
        let words: String = (0..4_000).map(|word| format!("word {} ", word * number)).collect();
        format!("<|im_start|>user\n{words}<|im_end|>\n")
    };
    let mut chat = String::new();
    for number in 1..6 {
        chat.push_str(&turn(number));
        let before = pool.statistics().pieces;
        ids(&pool, "model", &chat);
        let pieces = pool.statistics().pieces;
        let tokenized = (pieces.tokenized_bytes - before.tokenized_bytes) as usize;
        assert!(tokenized <= turn(number).len(), "turn {number}: {tokenized} bytes");
        ids(&pool, "model", &chat);
        assert_eq!(pool.statistics().pieces.tokenized_bytes, pieces.tokenized_bytes, "the same prompt again");
    }
    // A change inside a long text without added tokens.
    let long: String = (0..20_000).map(|word| format!("word {word} ")).collect();
    ids(&pool, "model", &long);
    let before = pool.statistics().pieces.tokenized_bytes;
    ids(&pool, "model", &long.replacen("word 9000 ", "another word ", 1));
    let tokenized = pool.statistics().pieces.tokenized_bytes - before;
    assert!(tokenized < 32 << 10, "{tokenized} of {} bytes", long.len());
}

#[test]
fn the_cache_is_bounded_by_bytes() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("model"), &tokenizer("byte_level"));
    let pool = pool_with(root.path(), PoolOptions { cached_bytes_max: 1 << 20, ..forgetful() });
    let mut next = random_numbers(7);
    for _ in 0..100 {
        ids(&pool, "model", &random_text(&mut next, 40_000));
        let pieces = pool.statistics().pieces;
        assert!(pieces.bytes <= pieces.bytes_max, "{pieces:?}");
        assert_eq!(pieces.bytes_max, 1 << 20);
    }
    let pieces = pool.statistics().pieces;
    assert!(pieces.evictions > 0 && pieces.bytes > 1 << 19, "{pieces:?}");

    let pool = pool_with(root.path(), PoolOptions { cached_bytes_max: 0, ..forgetful() });
    let whole = ids(&pool, "model", "one two three");
    assert_eq!(ids(&pool, "model", "one two three"), whole);
    let pieces = pool.statistics().pieces;
    assert_eq!((pieces.entries, pieces.bytes, pieces.hits, pieces.misses), (0, 0, 0, 2), "turned off");
}

#[test]
fn a_tokenizer_that_changed_does_not_get_pieces_of_the_former_one() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    let pool = pool_in(root.path());
    assert_eq!(ids(&pool, "model", "one two"), [0, 3, 4]);
    let mut changed = tiny_tokenizer();
    changed["model"]["vocab"]["one"] = json!(77);
    write_model(&folder, &changed);
    assert_eq!(ids(&pool, "model", "one two"), [0, 77, 4]);
}

#[test]
fn a_text_that_cannot_be_cut_is_refused_above_a_limit() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("words"), &tokenizer("unigram"));
    write_model(
        &root.path().join("nowhere"),
        &with("byte_level", |tokenizer| tokenizer["model"]["dropout"] = json!(0.0)),
    );
    let pool = pool_in(root.path());
    let long = "x".repeat(UNCUT_BYTES_MAX + 1);
    for model in ["words", "nowhere"] {
        let error = pool.tokenize(model, text(&long)).expect_err("it is too long");
        let shown = error.to_string();
        assert_eq!(error.reason(), FailureReason::TooLong, "{model}: {shown}");
        assert!(shown.contains("4194305 bytes of it have no place") && shown.contains("send token_ids"), "{shown}");
    }
    assert_eq!(pool.statistics().failed[&FailureReason::TooLong], 2);
    // A text of words with the same length is tokenized, and a long piece keeps its ids.
    let words = "a word ".repeat(UNCUT_BYTES_MAX / 7 + 1);
    assert!(ids(&pool, "words", &words).len() > UNCUT_BYTES_MAX / 7);
    let reference = reference(tokenizer("unigram").to_string().as_bytes());
    let piece = format!("some words {} and more", "xy".repeat(40_000));
    compare("a long piece", &pool, "words", &reference, &[piece]);
}
