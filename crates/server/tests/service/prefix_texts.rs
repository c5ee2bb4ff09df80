//! The text of prefixes: of queried prompts, over every interface, and only if the operator keeps them.

use std::collections::BTreeMap;

use flash_indexer_api::{self as api, PrefixText};
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{GetPodScoresRequest, QueryRequest};
use crate::support::{BLOCK_TOKENS, Engine, Service, stored, tokens as tokens_of};

/// The token that begins a message, and its text.
const USER: (u32, &str) = (256, "<|user|>");
const CHAT_TEMPLATE: &str = "{% for message in messages %}<|user|>{{ message.content }}{% endfor %}";

/// A directory of models with `m`, whose tokens are bytes.
fn models() -> TempDir {
    let letter = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        // The others are numbered from 256 on.
        _ => {
            let before = (0..byte).filter(|byte| !matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)).count();
            char::from_u32(256 + before as u32).expect("a character")
        }
    };
    let letters: BTreeMap<String, u8> = (0..=255).map(|byte| (letter(byte).to_string(), byte)).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let special = json!({
        "id": USER.0, "content": USER.1, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": letters, "merges": [] },
    });
    let directory = tempfile::tempdir().expect("a directory");
    let model = directory.path().join("m");
    std::fs::create_dir(&model).expect("a directory");
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).expect("a file");
    std::fs::write(model.join("tokenizer_config.json"), json!({ "chat_template": CHAT_TEMPLATE }).to_string())
        .expect("a file");
    directory
}

fn options(models: Option<&TempDir>, prompt_text_bytes: usize) -> ServerOptions {
    let directory = models.map(|models| models.path().to_owned());
    let tokenization = TokenizationOptions { directory, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, prompt_text_bytes, ..IndexerOptions::default() };
    ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() }
}

fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The local hashes of a prompt's blocks, as texts.
fn hashes(variant: HashVariant, tokens: &[u32]) -> Vec<String> {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("not zero");
    let hashes = local_hashes(variant, tokens, block_size, TokenWindow::Block);
    hashes.iter().map(|hash| hash.0.to_string()).collect()
}

fn ask(service: &Service, tenant: &str, block_hashes: &[String], from_block: usize) -> (u16, Value) {
    let body =
        json!({ "model_name": "m", "tenant_id": tenant, "block_hashes": block_hashes, "from_block": from_block });
    service.post("/text_by_hash", &body)
}

/// The text of the prefix of a prompt in the default tenant, without adapter and salt.
fn text(service: &Service, tokens: &[u32], from_block: usize) -> Result<PrefixText, (u16, String)> {
    let (status, answer) = ask(service, "default", &hashes(HashVariant::default(), tokens), from_block);
    match status {
        200 => Ok(serde_json::from_value(answer).expect("a text")),
        status => Err((status, answer["error"].as_str().expect("an error").to_owned())),
    }
}

fn status(result: Result<PrefixText, (u16, String)>) -> u16 {
    result.expect_err("there is no text").0
}

fn whole(before: &str, text: &str) -> PrefixText {
    PrefixText { before: before.to_owned(), text: text.to_owned(), ..PrefixText::default() }
}

#[test]
fn prefixes_of_prompts_have_their_text_over_every_interface() {
    let models = models();
    let service = Service::start_with(options(Some(&models), 1 << 20));
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));

    // The second block ends within `é`, and the last one of the query is incomplete.
    let prompt = "You are\u{e9} <b>a\n\tstar</b>";
    let tokens = bytes_of(prompt);
    assert_eq!(status(text(&service, &tokens, 0)), 404, "it was not asked about yet");
    let with_incomplete_block = [&tokens[..], &[1, 2]].concat();
    service.query(&json!({ "model_name": "m", "token_ids": with_incomplete_block }));
    assert_eq!(text(&service, &tokens, 0), Ok(whole("", prompt)));
    assert_eq!(text(&service, &tokens, 1), Ok(whole("You ", &prompt[4..])));
    assert_eq!(text(&service, &tokens, 2), Ok(whole("You are", "\u{e9} <b>a\n\tstar</b>")));
    assert_eq!(text(&service, &tokens[..8], 1), Ok(whole("You ", "are\u{fffd}")));
    assert_eq!(text(&service, &tokens[..4], 9), Ok(whole("You ", "")));
    assert_eq!(status(text(&service, &tokens[4..], 0)), 404, "no prompt begins there");
    // A continuation is not a separate prompt.
    let blocks: Vec<u64> = (1..=40).collect();
    engine.say(&service, 0, &[stored(None, &blocks)]);
    let long = tokens_of(&blocks);
    let cursor = service.query(&json!({ "model_name": "m", "token_ids": long }))["cursor"].clone();
    let after = bytes_of("after it");
    service.query(&json!({ "model_name": "m", "token_ids": after, "after": cursor }));
    assert_eq!(status(text(&service, &after, 0)), 404);

    let asked = |prompt: &str| text(&service, &bytes_of(prompt), 0).map(|found| found.text);
    let ok = |answer: (u16, Value)| assert_eq!(answer.0, 200, "{answer:?}");
    ok(service.post("/score_completions", &json!({ "model_name": "m", "prompt": "a scored text" })));
    assert_eq!(asked("a scored tex").as_deref(), Ok("a scored tex"));
    ok(service.post("/pick", &json!({ "model_name": "m", "prompt": "a picked text" })));
    assert_eq!(asked("a picked tex").as_deref(), Ok("a picked tex"));
    ok(service.post("/predict", &json!({ "model_name": "m", "prompt": "predicted...", "pod": 1 })));
    assert_eq!(asked("predicted...").as_deref(), Ok("predicted..."));
    let silent = json!({ "instance_id": "silent", "model_name": "m", "block_size": BLOCK_TOKENS, "events": "none" });
    assert_eq!(service.post("/register", &silent).0, 201);
    ok(service.post("/predict", &json!({ "model_name": "m", "prompt": "routed ahead", "pod": "silent" })));
    assert_eq!(asked("routed ahead").as_deref(), Ok("routed ahead"));
    ok(service.post("/tokenize", &json!({ "model_name": "m", "prompt": "only tokenized" })));
    assert_eq!(status(text(&service, &bytes_of("only tokenized"), 0)), 404);

    let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hello, dear" }] });
    ok(service.post("/score_chat_completions", &chat));
    let rendered = [&[USER.0][..], &bytes_of("Hello, dear")].concat();
    assert_eq!(text(&service, &rendered, 1), Ok(whole("<|user|>Hel", "lo, dear")));

    let mut router = RouterServiceClient::new(service.channel());
    let query =
        QueryRequest { model_name: "m".to_owned(), token_ids: bytes_of("over gRPC"), ..QueryRequest::default() };
    service.block_on(router.query(query)).expect("an answer");
    assert_eq!(asked("over gRP").as_deref(), Ok("over gRP"));
    let mut scores = IndexerServiceClient::new(service.channel());
    let request =
        GetPodScoresRequest { model_name: "m".to_owned(), prompt: Some("gRPC text".to_owned()), ..Default::default() };
    service.block_on(scores.get_pod_scores(request)).expect("scores");
    assert_eq!(asked("gRPC tex").as_deref(), Ok("gRPC tex"));
}

#[test]
fn a_text_is_that_of_its_tenant_adapter_and_salt() {
    let models = models();
    let service = Service::start_with(options(Some(&models), 1 << 20));
    let _engines =
        ["default", "b"].map(|tenant| Engine::registered(&service, json!(tenant), 0, &json!({ "tenant_id": tenant })));
    let tokens = bytes_of("a secret");
    let query = |tenant: &str, more: Value| {
        let mut body = json!({ "model_name": "m", "tenant_id": tenant, "token_ids": tokens });
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        service.query(&body);
    };
    let variants =
        [(None, None), (Some("adapter"), None), (None, Some("salt"))].map(|(lora, salt)| HashVariant::new(lora, salt));
    let found = |tenant: &str| variants.map(|variant| ask(&service, tenant, &hashes(variant, &tokens), 0).0);
    query("default", json!({ "lora_name": "adapter" }));
    assert_eq!((found("default"), found("b")), ([404, 200, 404], [404; 3]));
    query("b", json!({ "cache_salt": "salt" }));
    assert_eq!((found("default"), found("b")), ([404, 200, 404], [404, 404, 200]));
    query("b", json!({}));
    assert_eq!((found("default"), found("b")), ([404, 200, 404], [200, 404, 200]));
}

#[test]
fn both_parts_of_a_long_text_are_bounded() {
    let models = models();
    let service = Service::start_with(options(Some(&models), 64 << 20));
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    // Its special tokens have eight bytes each.
    let tokens: Vec<u32> = (0..40_000).map(|at| if at < 20_000 { USER.0 } else { u32::from(b'x') }).collect();
    service.query(&json!({ "model_name": "m", "token_ids": tokens }));
    let PrefixText { before, before_cut, text: own, text_cut } = text(&service, &tokens, 5_000).expect("a text");
    assert_eq!((before.len(), before_cut, own.len(), text_cut), (64 << 10, true, 16 << 10, true));
    assert!(before.ends_with(USER.1) && own.bytes().all(|byte| byte == b'x'));
    let found = text(&service, &tokens, 0).expect("a text");
    assert_eq!((found.before.len(), found.text.len(), found.before_cut, found.text_cut), (0, 64 << 10, false, true));
    let found = text(&service, &tokens, 9_990).expect("a text");
    assert_eq!((found.text.as_str(), found.text_cut, found.before_cut), ("x".repeat(40).as_str(), false, true));
}

#[test]
fn without_the_setting_or_a_tokenizer_the_error_says_which_is_missing() {
    let models = models();
    let tokens = bytes_of("a prompt");
    let asked = |service: &Service| {
        let _engine = Engine::registered(service, json!(1), 0, &json!({}));
        service.query(&json!({ "model_name": "m", "token_ids": tokens }));
        text(service, &tokens, 0).expect_err("there is no text")
    };
    assert_eq!(IndexerOptions::default().prompt_text_bytes, 0);
    let (status, error) = asked(&Service::start_with(options(Some(&models), 0)));
    assert!(status == 409 && error.contains("--prompt-text-bytes"), "{status} {error}");
    let (status, error) = asked(&Service::start_with(options(None, 1 << 20)));
    assert!(status == 501 && error.contains("--tokenizer-dir"), "{status} {error}");
    let (status, error) =
        asked(&Service::start_with(options(Some(&tempfile::tempdir().expect("a directory")), 1 << 20)));
    assert!(status == 404 && error.contains("add the model's tokenizer.json"), "{status} {error}");

    let service = Service::start_with(options(Some(&models), 1 << 20));
    let (status, answer) = service.post("/text_by_hash", &json!({ "block_hashes": ["1"] }));
    assert_eq!(status, 422, "{answer}");
    let (status, answer) = ask(&service, "default", &["1".to_owned()], 0);
    let error = serde_json::from_value::<api::ErrorBody>(answer).expect("an error").error;
    assert!(status == 404 && error.contains("no instance is registered for model"), "{status} {error}");
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let (status, answer) = ask(&service, "default", &["1".to_owned()], 0);
    let error = serde_json::from_value::<api::ErrorBody>(answer).expect("an error").error;
    assert!(status == 404 && error.contains("no kept prompt"), "{status} {error}");
}
