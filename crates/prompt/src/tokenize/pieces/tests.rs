//! Every place at which a text may be cut separates ids that do not depend on each other.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::analysis::cuts;
use super::cuts::Cuts;
use super::encoder::Encoder;

const PARTS: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    "a",
    "The",
    "fi",
    "ﬁ",
    "12",
    "1",
    "word",
    "long word",
    "ab  cd",
    "Zwölf",
    "e\u{301}",
    "\u{301}",
    "\u{338}",
    "<",
    "`",
    "``",
    "''",
    "'",
    "-",
    "_",
    ".",
    ",",
    "!",
    "，",
    "。",
    "今日",
    "東京",
    "ｱ",
    "ﾞ",
    "ガ",
    "가",
    "한국",
    "\u{1100}\u{1161}",
    "\u{11a8}",
    "हिन्दी",
    "क्",
    "क",
    "ไทย",
    "ำ",
    "مرحبا",
    "ı",
    "İ",
    "Σ",
    "ß",
    "▁",
    "´",
    "\u{600}",
    "\u{1}",
    "\u{fffd}",
    "\u{1f468}\u{200d}",
    "☺",
];

fn file(kind: &str) -> Value {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models");
    let file = std::fs::read(models.join(kind).join("tokenizer.json")).expect("a tokenizer");
    serde_json::from_slice(&file).expect("JSON")
}

fn with(kind: &str, normalizers: &[Value], pre_tokenizers: &[Value]) -> Value {
    let mut file = file(kind);
    file["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": pre_tokenizers});
    file
}

/// Tokenizers whose texts are cut at places that depend on the normalizer and the pre-tokenizer.
fn tokenizers() -> Vec<(&'static str, Value)> {
    let of = |kind: &str| json!({"type": kind});
    let run = |content: &str| json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content});
    let text =
        |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let signs =
        |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let strip_end = json!({"type": "Strip", "strip_left": false, "strip_right": true});
    let bert = |lowercase: bool, strips: Value| {
        json!({"type": "BertNormalizer", "clean_text": lowercase, "handle_chinese_chars": true, "strip_accents": strips,
               "lowercase": lowercase})
    };
    let map = include_str!("../../../tests/tokenize/models/charsmap.txt").trim();
    let map = json!({"type": "Precompiled", "precompiled_charsmap": map});
    let split = of("WhitespaceSplit");
    vec![
        ("wordpiece", file("word_pieces")),
        ("cased wordpiece", with("word_pieces", &[bert(false, json!(null))], &[of("BertPreTokenizer")])),
        ("wordpiece without accents", with("word_pieces", &[bert(false, json!(true))], &[of("BertPreTokenizer")])),
        ("wordpiece and NFC", with("word_pieces", &[of("NFC"), of("Lowercase")], &[of("BertPreTokenizer")])),
        ("wordpiece of words", with("word_pieces", &[of("NFKC")], &[of("Whitespace"), of("Punctuation")])),
        ("wordpiece of anything", with("word_pieces", &[], std::slice::from_ref(&split))),
        ("unigram", file("unigram")),
        ("unigram with a first sign", with("unigram", &[of("NFKC"), run(" ")], &[signs("first")])),
        ("signs for runs", with("unigram", &[of("NFKC"), strip_end.clone(), run("▁")], &[signs("always")])),
        ("signs for runs and split", with("unigram", &[strip_end.clone(), run("▁")], &[split.clone(), signs("first")])),
        ("split and signed", with("unigram", &[of("Nmt"), of("NFKC"), run(" ")], &[split.clone(), signs("always")])),
        ("bert's normalizer", with("unigram", &[bert(true, json!(null))], &[signs("never")])),
        (
            "albert",
            with(
                "unigram",
                &[text("``", "\""), text("''", "\" "), of("NFKD"), of("StripAccents"), of("Lowercase")],
                &[signs("always")],
            ),
        ),
        ("a map", with("unigram", &[map.clone(), strip_end, run("▁")], &[signs("always")])),
        ("a map and split", with("unigram", &[map], &[split, signs("first")])),
    ]
}

#[test]
fn every_place_separates_ids() {
    let mut state = 1_u64;
    let mut next = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for (name, file) in tokenizers() {
        let tokenizer = Tokenizer::from_bytes(file.to_string()).expect("a tokenizer");
        let encoder = Encoder::of(&tokenizer);
        let Cuts { rule, uncut } = cuts(&tokenizer).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(uncut.is_empty());
        let ids = |text: &str, is_first| {
            let mut ids = Vec::new();
            encoder.encode(&tokenizer, text, is_first, &mut ids).expect("ids");
            ids
        };
        let mut separated = 0;
        for _ in 0..2_000 {
            let text: String = (0..1 + next(12)).map(|_| PARTS[next(PARTS.len())]).collect();
            for is_first in [true, false] {
                let whole = ids(&text, is_first);
                for at in (1..text.len().saturating_sub(1)).filter(|at| rule.allows(&text, *at)) {
                    let parts = [ids(&text[..at], is_first), ids(&text[at..], false)].concat();
                    assert_eq!(parts, whole, "{name}: {text:?} at {at}");
                    separated += 1;
                }
            }
        }
        assert!(separated > 100, "{name}: {separated}");
    }
}
