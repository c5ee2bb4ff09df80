//! Token ids equal those of `transformers`: `expected.py` next to this file generates tokenizers and ids.

use std::path::{Path, PathBuf};

use chat_template::ChatRequest;
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions, SpecialTokens, TokenizerPool};
use flash_indexer_test_support::testdata;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{pool_in, text};

#[derive(Deserialize)]
struct Expected {
    texts: Vec<ExpectedText>,
    chats: Vec<ExpectedChat>,
}

#[derive(Deserialize)]
struct ExpectedText {
    text: String,
    ids: Vec<u32>,
    plain_ids: Vec<u32>,
    last_7: Vec<u32>,
}

#[derive(Deserialize)]
struct ExpectedChat {
    messages: Value,
    ids: Vec<u32>,
}

const KINDS: [&str; 4] = ["byte_level", "sentence_pieces", "word_pieces", "unigram"];

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models")
}

fn expected(model: &str) -> Expected {
    let mut all: Value = serde_json::from_str(include_str!("expected.json")).expect("JSON");
    serde_json::from_value(all[model].take()).expect("what the script has written")
}

fn compare(pool: &TokenizerPool, model: &str) {
    let Expected { texts, chats } = expected(model);
    assert!(texts.len() >= 20);
    for ExpectedText { text: written, ids, plain_ids, last_7 } in texts {
        let with = |special_tokens, keep_last| {
            let options = PromptOptions { special_tokens, keep_last, ..PromptOptions::default() };
            pool.tokenize_with(model, text(&written), options).expect("tokens").ids
        };
        assert_eq!(with(SpecialTokens::AsEngines, None), ids, "{model}: {written:?}");
        assert_eq!(with(SpecialTokens::Omitted, None), plain_ids, "{model}: {written:?}");
        assert_eq!(with(SpecialTokens::AsEngines, Some(7)), last_7, "{model}: {written:?}");
    }
    for ExpectedChat { messages, ids } in chats {
        let with = |truncate: Option<i64>, options| {
            let request = json!({"messages": messages, "truncate_prompt_tokens": truncate});
            let request: ChatRequest = serde_json::from_value(request).expect("a chat");
            pool.tokenize_with(model, Prompt::Chat(Box::new(request.into())), options).expect("tokens").ids
        };
        let usual = PromptOptions::default();
        assert_eq!(with(None, usual), ids, "{model}: {messages}");
        assert_eq!(with(Some(-1), usual), ids, "{model}: {messages}");
        assert_eq!(with(Some(5), usual), ids[ids.len() - 5..], "{model}: {messages}");
        assert_eq!(with(Some(5), PromptOptions { keep_last: Some(2), ..usual }), ids[ids.len() - 2..], "{model}");
    }
}

#[test]
fn small_tokenizers_of_all_kinds_give_the_ids_of_transformers() {
    let pool = pool_in(&models());
    for model in KINDS {
        compare(&pool, model);
    }
}

#[test]
fn a_real_tokenizer_gives_the_ids_of_transformers() {
    let data = testdata();
    compare(&pool_in(&data.join("tokenizers")), "test-model");
}

#[test]
fn long_prompts_are_tokenized_whole() {
    let pool = pool_in(&models());
    for model in KINDS {
        let length = |prompt: String| pool.tokenize(model, Prompt::Text(prompt)).expect("tokens").ids.len();
        let words = |count| length("a prefix ".repeat(count));
        assert_eq!(words(30_000) - words(20_000), words(20_000) - words(10_000), "{model}");
        // One word, and one gap, without an end.
        for sign in ["x", " ", "数"] {
            assert!(length(sign.repeat(100_000) + "y") > 0, "{model}: {sign:?}");
        }
    }
}
