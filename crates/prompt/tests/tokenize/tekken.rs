//! Models with a vocabulary in Mistral's format: ids equal those of Mistral's library. `tekken.py` beside this file makes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use flash_indexer_prompt::normalize::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{Cutting, Prompt, PromptOptions, SpecialTokens, TokenizerPool};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{ids, pool_in, text};

#[derive(Deserialize)]
struct Recorded {
    tekken: Value,
    ids: BTreeMap<String, Vec<u32>>,
    special: BTreeMap<String, u32>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("tekken_ids.json")).expect("JSON")
}

fn write_model(folder: &Path, tekken: &Value) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("tekken.json"), tekken.to_string()).expect("a file");
    fs::write(folder.join("consolidated.safetensors"), "").expect("a file");
}

fn plain_ids(pool: &TokenizerPool, prompt: &str) -> Vec<u32> {
    let plain = PromptOptions { special_tokens: SpecialTokens::Omitted, keep_last: None };
    pool.tokenize_with("org/model", text(prompt), plain).expect("ids").ids
}

#[test]
fn texts_have_the_ids_of_mistrals_library() {
    let Recorded { tekken, ids: expected, special } = recorded();
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("org/model"), &tekken);
    let pool = pool_in(root.path());
    for (text, expected) in &expected {
        assert_eq!(plain_ids(&pool, text), *expected, "{text:?}");
    }
    for (token, id) in &special {
        assert_eq!(plain_ids(&pool, token), [*id], "{token}");
    }
    assert_eq!(ids(&pool, "org/model", "a")[0], special["<s>"], "a text begins a sequence");
    let cuttings = pool.statistics().cuttings;
    let words = Cutting::ALL.iter().position(|cutting| *cutting == Cutting::Words).expect("a kind of cutting");
    assert_eq!(cuttings[words], 1, "the texts are cut between words: {cuttings:?}");
}

#[test]
fn a_chat_is_written_in_the_version_of_the_vocabulary() {
    let Recorded { tekken, .. } = recorded();
    let snapshot = "hub/models--org--model/snapshots/abc";
    for (version, expected) in
        [("v3", "<s>[INST]s\n\nthe thing[/INST]"), ("v7", "<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT][INST]the thing[/INST]")]
    {
        let root = tempdir().expect("a directory");
        let mut tekken = tekken.clone();
        tekken["config"]["version"] = json!(version);
        write_model(&root.path().join(snapshot), &tekken);
        let pool = pool_in(root.path());
        let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "the thing"}]);
        let body = json!({ "messages": messages, "add_special_tokens": true }).to_string();
        let chat = Chat::from_body(body.as_bytes(), ChatEngine::Vllm, SystemTime::UNIX_EPOCH).expect("a chat");
        let ids = pool.tokenize("org/model", Prompt::Chat(Box::new(chat))).expect("ids").ids;
        assert_eq!(ids, plain_ids(&pool, expected), "{version}");
    }
}

#[test]
fn a_broken_vocabulary_is_named() {
    for (broken, why) in [
        (json!({}), "config"),
        (
            json!({"config": {"pattern": "a", "default_vocab_size": 40, "default_num_special_tokens": 20}, "vocab": []}),
            "fewer tokens",
        ),
        (
            json!({"config": {"pattern": "a", "default_vocab_size": 40, "default_num_special_tokens": 1}, "vocab": []}),
            "more special tokens",
        ),
    ] {
        let root = tempdir().expect("a directory");
        write_model(&root.path().join("org/model"), &broken);
        let error = pool_in(root.path()).tokenize("org/model", text("a")).expect_err("no tokenizer").to_string();
        assert!(error.contains("tekken.json") && error.contains(why), "{error}");
    }
}
