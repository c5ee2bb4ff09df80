//! Models with a vocabulary in Mistral's format: ids equal those of Mistral's library. `tekken.py` next to this file makes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use flash_indexer_engine_chats::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{
    Cutting, FailureReason, Prompt, PromptOptions, SpecialTokens, TokenizeError, TokenizerPool,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{ids, pool_in, text, tiny_tokenizer};

#[derive(Deserialize)]
struct Recorded {
    tekken: Value,
    ids: BTreeMap<String, Vec<u32>>,
    special: BTreeMap<String, u32>,
    /// Ids of texts that spell out special tokens, which begin a sequence.
    spelled: BTreeMap<String, Vec<u32>>,
    /// The names of special tokens for later versions.
    special_tokens: Value,
    /// Chats by version.
    chats: BTreeMap<String, RecordedChat>,
}

#[derive(Deserialize)]
struct RecordedChat {
    body: Value,
    ids: Vec<u32>,
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
    let plain = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    pool.tokenize_with("org/model", text(prompt), plain).expect("ids").ids
}

#[test]
fn texts_have_the_ids_of_mistrals_library() {
    let Recorded { tekken, ids: expected, special, .. } = recorded();
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("org/model"), &tekken);
    let pool = pool_in(root.path());
    for (text, expected) in &expected {
        assert_eq!(plain_ids(&pool, text), *expected, "{text:?}");
        let decoded = pool.decode("org/model", Some(ChatEngine::Vllm), (expected, 0)).expect("a text");
        assert_eq!(decoded, (String::new(), text.clone()));
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

/// The vocabulary with a version that has more settings.
fn tekken_of_version(recorded: &Recorded, version: &str) -> Value {
    let mut tekken = recorded.tekken.clone();
    tekken["config"]["version"] = json!(version);
    tekken["special_tokens"] = recorded.special_tokens.clone();
    let efforts = json!({"type": "enum", "accepts_none": true, "default": "none", "values": ["none", "high"]});
    tekken["model_settings_builder"] = json!({ "reasoning_effort": efforts });
    tekken
}

fn chat_ids(pool: &TokenizerPool, engine: ChatEngine, body: &Value) -> Result<Vec<u32>, TokenizeError> {
    let chat = Chat::from_body(body.to_string().as_bytes(), engine, SystemTime::UNIX_EPOCH).expect("a chat");
    Ok(pool.tokenize("org/model", Prompt::Chat(Box::new(chat)))?.ids)
}

#[test]
fn chats_that_spell_out_special_tokens_have_the_ids_of_mistrals_library() {
    let recorded = recorded();
    assert_eq!(recorded.chats.len(), 5);
    for (version, RecordedChat { body, ids }) in &recorded.chats {
        let root = tempdir().expect("a directory");
        write_model(&root.path().join("org/model"), &tekken_of_version(&recorded, version));
        let pool = pool_in(root.path());
        assert_eq!(chat_ids(&pool, ChatEngine::Vllm, body).expect("ids"), *ids, "{version}");
    }
}

#[test]
fn texts_that_spell_out_special_tokens_are_texts_for_the_engine_that_reads_tekken() {
    let Recorded { tekken, special, spelled, .. } = recorded();
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("org/model"), &tekken);
    let pool = pool_in(root.path());
    let ids_for = |engine, text: &str, keep_last| {
        let options = PromptOptions { engine: Some(engine), keep_last, ..PromptOptions::default() };
        pool.tokenize_with("org/model", Prompt::Text(text.to_owned()), options).expect("ids").ids
    };
    for (text, expected) in &spelled {
        assert_eq!(ids_for(ChatEngine::Vllm, text, None), *expected, "{text:?}");
    }
    assert_eq!(ids_for(ChatEngine::Sglang, "[INST]", None), [special["<s>"], special["[INST]"]]);
    // vLLM truncates such texts at the end.
    assert_eq!(ids_for(ChatEngine::Vllm, "[INST]", Some(3)), spelled["[INST]"][..3]);
}

#[test]
fn tekken_precedes_another_tokenizer_for_the_engine_that_reads_it() {
    let recorded = recorded();
    let RecordedChat { body, ids } = &recorded.chats["v7"];
    let root = tempdir().expect("a directory");
    let folder = root.path().join("org/model");
    write_model(&folder, &tekken_of_version(&recorded, "v7"));
    fs::write(folder.join("tokenizer.json"), tiny_tokenizer().to_string()).expect("a file");
    fs::write(folder.join("chat_template.jinja"), "one two").expect("a file");
    let pool = pool_in(root.path());
    assert_eq!(chat_ids(&pool, ChatEngine::Vllm, body).expect("ids"), *ids);
    assert_eq!(chat_ids(&pool, ChatEngine::Sglang, body).expect("ids"), [3, 4]);

    // A folder with other weights is not in Mistral's format.
    fs::rename(folder.join("consolidated.safetensors"), folder.join("model.safetensors")).expect("renamed");
    fs::write(folder.join("params.json"), "{}").expect("a file");
    let pool = pool_in(root.path());
    assert_eq!(chat_ids(&pool, ChatEngine::Vllm, body).expect("ids"), [3, 4]);
    // One without weights is, if it has its parameters.
    fs::remove_file(folder.join("model.safetensors")).expect("removed");
    let pool = pool_in(root.path());
    assert_eq!(chat_ids(&pool, ChatEngine::Vllm, body).expect("ids"), *ids);
}

#[test]
fn a_text_that_spells_out_a_special_token_of_a_sentence_piece_vocabulary_is_not_tokenized() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("org/model");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("tokenizer.json"), tiny_tokenizer().to_string()).expect("a file");
    for name in ["tokenizer.model.v3", "consolidated.safetensors"] {
        fs::write(folder.join(name), "").expect("a file");
    }
    let pool = pool_in(root.path());
    let ids_for = |engine, text: &str| {
        let options = PromptOptions { engine: Some(engine), ..PromptOptions::default() };
        pool.tokenize_with("org/model", Prompt::Text(text.to_owned()), options).map(|tokenized| tokenized.ids)
    };
    assert_eq!(ids_for(ChatEngine::Vllm, "one").expect("ids"), [0, 3]);
    assert_eq!(ids_for(ChatEngine::Sglang, "<s>one").expect("ids"), [0, 0, 3]);
    let error = ids_for(ChatEngine::Vllm, "<s>one").expect_err("no ids");
    assert_eq!(error.reason(), FailureReason::Unsupported, "{error}");
}

#[test]
fn a_vocabulary_without_a_special_token_of_the_prompt_is_an_error() {
    let recorded = recorded();
    let root = tempdir().expect("a directory");
    let mut tekken = tekken_of_version(&recorded, "v11");
    tekken["special_tokens"].as_array_mut().expect("a list").truncate(20);
    write_model(&root.path().join("org/model"), &tekken);
    let error = chat_ids(&pool_in(root.path()), ChatEngine::Vllm, &recorded.chats["v11"].body).expect_err("no ids");
    assert!(error.to_string().contains("no token \"[CALL_ID]\""), "{error}");
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
