//! Pods are scored by the blocks that they hold, and by the blocks that routers predict.

use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_prompt::tokenize::{
    ModelDirectory, ModelDirectoryOptions, PoolOptions, Prompt, PromptOptions, SpecialTokens, TokenizerPool,
    TokenizerSource,
};
use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions, TokenizerServiceOptions};
use flash_indexer_test_support::{testdata, wait_for};
use flash_indexer_wire::{BlockStored, EngineEvent, TokenIds};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, to_host, tokens};

fn score(service: &Service, body: &Value) -> Value {
    let (status, answer) = service.post("/score_completions", body);
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn each_pod_is_scored_by_the_fastest_tier_of_each_block_of_its_prefix() {
    let service = Service::start();
    let first = Engine::registered(&service, json!(1), 0, &json!({}));
    let second = Engine::registered(&service, json!("pod-b"), 0, &json!({}));
    let _nothing = Engine::registered(&service, json!("pod-c"), 0, &json!({}));
    first.say(&service, 0, &[stored(None, &[1, 2, 3]), to_host(2), removed(&[2])]);
    second.say(&service, 0, &[stored(None, &[1]), stored(Some(2), &[3])]);

    let ask = |more: Value| {
        let mut body = json!({ "model": "m", "token_ids": tokens(&[1, 2, 3, 4]) });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        score(&service, &body)
    };
    assert_eq!(ask(json!({})), json!({ "1": 2.8, "pod-b": 1.0 }), "gpu, cpu, gpu");
    assert_eq!(ask(json!({ "pods": [] })), json!({ "1": 2.8, "pod-b": 1.0 }));
    assert_eq!(ask(json!({ "pods": ["pod-b", "pod-x"] })), json!({ "pod-b": 1.0 }));
    assert_eq!(ask(json!({ "pod_identifiers": [1] })), json!({ "1": 2.8 }));
    assert_eq!(ask(json!({ "top_k": 1 })), json!({ "1": 2.8 }));
    for one in [json!("1"), json!(1.0), json!(true), json!(" +1.0 ")] {
        assert_eq!(ask(json!({ "top_k": one })), json!({ "1": 2.8 }), "as engines read it: {one}");
    }
    for all in [json!(-1), json!(0), json!(null), json!(20), json!("20"), json!("-1"), json!(false)] {
        assert_eq!(ask(json!({ "top_k": all })), json!({ "1": 2.8, "pod-b": 1.0 }), "as vLLM's sampling parameter");
    }
    for count in [json!(3), json!("3"), json!(0)] {
        assert_eq!(ask(json!({ "truncate_prompt_tokens": count })), json!({}), "no complete block is left");
    }
    for field in ["truncate_prompt_tokens", "add_special_tokens", "truncation_side", "top_k"] {
        let body = json!({ "model": "m", "token_ids": tokens(&[1]), field: "few" });
        for path in ["/score_completions", "/tokenize"] {
            assert_eq!(service.post(path, &body).0, 422, "{field} of {path}, also where it has no effect");
        }
    }
    let detail = |score, held| json!({ "score": score, "held_blocks": held, "predicted_blocks": 0, "trust": "exact" });
    let pods = json!({ "1": detail(2.8, 3), "pod-b": detail(1.0, 1) });
    assert_eq!(ask(json!({ "detail": true })), json!({ "pods": pods }));
    let whole = json!({ "model": "m", "token_ids": tokens(&[1]) });
    assert_eq!(service.header("/score_completions", &whole, "flash-indexer-store"), None, "no index is shared");
    let as_prompt = json!({ "model": "m", "prompt": tokens(&[1, 2, 3, 4]) });
    assert_eq!(score(&service, &as_prompt), json!({ "1": 2.8, "pod-b": 1.0 }));
    assert_eq!(score(&service, &json!({ "model": "m", "token_ids": [] })), json!({}));
    assert_eq!(ask(json!({ "cache_salt": "x" })), json!({}));
}

#[test]
fn the_best_of_a_pods_ranks_counts_and_weights_can_be_chosen() {
    let weights = "gpu=2,cpu=0.5".parse().expect("weights");
    let indexer = IndexerOptions { tier_weights: weights, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let deep = Engine::registered(&service, json!("pod"), 0, &json!({}));
    let fast = Engine::registered(&service, json!("pod"), 1, &json!({}));
    deep.say(&service, 0, &[stored(None, &[1, 2, 3]), to_host(1), to_host(2), to_host(3), removed(&[1, 2, 3])]);
    fast.say(&service, 0, &[stored(None, &[1])]);
    let body = json!({ "model": "m", "token_ids": tokens(&[1, 2, 3]) });
    assert_eq!(score(&service, &body), json!({ "pod": 2.0 }), "one block in device memory beats three outside");
}

#[test]
fn a_prediction_counts_in_scores_until_events_confirm_it_and_never_in_answers() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!("pod-a"), 0, &json!({}));
    let _other = Engine::registered(&service, json!("pod-b"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    let asked = json!({ "model": "m", "token_ids": tokens(&[1, 2, 3]), "detail": true });
    let pod = |name: &str| score(&service, &asked)["pods"][name].clone();
    let entry = |score: f64, held: u32, predicted: u32, trust: &str| json!({ "score": score, "held_blocks": held, "predicted_blocks": predicted, "trust": trust });
    let predict = |more: Value| {
        let mut body = json!({ "model": "m", "token_ids": tokens(&[1, 2, 3]), "ttl_ms": 600_000 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        service.post("/predict", &body)
    };
    assert_eq!(predict(json!({ "pod": "pod-a" })), (200, json!({ "status": "ok", "blocks": 3 })));
    assert_eq!(predict(json!({ "pod": "pod-b", "cache_salt": "x" })).0, 200);
    assert_eq!(pod("pod-a"), entry(3.0, 1, 2, "exact"));
    assert_eq!(pod("pod-b"), Value::Null, "what is salted is something else");
    assert_eq!(predict(json!({ "pod": "pod-b" })).0, 200);
    assert_eq!(pod("pod-b"), entry(3.0, 0, 3, "cold"));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "pod-a", 0), 4, "queries tell what is held");
    let predicted = || service.metrics().value("flash_indexer_predicted_blocks", &[]);
    assert_eq!(predicted(), 2.0 + 3.0 + 3.0);

    engine.say(&service, 1, &[stored(Some(1), &[2, 3])]);
    assert_eq!(pod("pod-a"), entry(3.0, 3, 0, "exact"));
    engine.say(&service, 2, &[removed(&[2, 3])]);
    assert_eq!(pod("pod-a"), entry(1.0, 1, 0, "exact"), "it was confirmed, so events alone count");
    assert_eq!(predicted(), 3.0 + 3.0);
    assert!(service.metrics().value("flash_indexer_scored_predicted_blocks_total", &[]) > 0.0);

    assert_eq!(predict(json!({ "pod": "pod-a", "ttl_ms": 1 })).0, 200);
    wait_for("the end of a prediction", PATIENCE, || (pod("pod-a") == entry(1.0, 1, 0, "exact")).then_some(()));
    for (more, status, text) in [
        (json!({ "pod": "pod-x" }), 404, "GET /workers"),
        (json!({ "pod": "pod-a", "model": "n" }), 404, "register"),
        (json!({ "pod": "pod-a", "ttl_ms": 600_001 }), 422, "shorter"),
        (json!({}), 422, "pod"),
        (json!({ "pod": "pod-a", "prompt": "text" }), 400, "give one of them"),
    ] {
        let (answered, error) = predict(more);
        assert!(answered == status && error["error"].as_str().expect("a text").contains(text), "{answered}: {error}");
    }
}

#[test]
fn a_prompt_that_cannot_be_scored_says_what_to_do() {
    let service = Service::start();
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    for (path, body, status, text) in [
        ("/score_completions", json!({ "model": "m" }), 422, "missing field `prompt`"),
        ("/score_completions", json!({ "token_ids": [1] }), 422, "model_name"),
        ("/score_completions", json!({ "model": "m", "prompt": {} }), 422, "a text or a list of token ids"),
        ("/score_completions", json!({ "model": "m", "prompt": "a", "token_ids": [1] }), 400, "give one of them"),
        ("/score_completions", json!({ "model": "m", "prompt": "a" }), 501, "send token_ids"),
        ("/score_completions", json!({ "model": "n", "token_ids": [1] }), 404, "POST /register"),
        ("/score_completions", json!({ "model": "m", "tenant_id": "t", "token_ids": [1] }), 404, "\"t\""),
        ("/score_chat_completions", json!({ "model": "m", "prompt": "a" }), 422, "missing field `messages`"),
        ("/score_chat_completions", json!({ "model": "m", "messages": [] }), 501, "--tokenizer-dir"),
        ("/predict", json!({ "model": "m", "pod": 1 }), 422, "missing field `token_ids`"),
    ] {
        let (answered, error) = service.post(path, &body);
        let message = error["error"].as_str().expect("a text");
        assert!(answered == status && message.contains(text), "{path} {body}: {answered} {message}");
    }
}

/// A service with the test tokenizer, and an engine that holds some tokens.
fn with_tokenizer(pool: PoolOptions) -> Option<Service> {
    let directory = testdata().join("tokenizers");
    let tokenization = TokenizationOptions { directory: Some(directory), pool, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    Some(Service::start_with(ServerOptions { indexer, ..ServerOptions::default() }))
}

fn holding(service: &Service, token_ids: &[u32]) -> Engine {
    let engine = Engine::registered(service, json!("pod"), 0, &json!({ "model_name": "test-model" }));
    let blocks = token_ids.len() / BLOCK_TOKENS as usize;
    let event = BlockStored {
        block_hashes: (1..=blocks as u64).map(SequenceHash).collect(),
        token_ids: TokenIds::Plain(token_ids[..blocks * BLOCK_TOKENS as usize].to_vec()),
        ..store(None, &[])
    };
    engine.say(service, 0, &[EngineEvent::Stored(event)]);
    engine
}

#[test]
fn texts_are_tokenized_as_the_model_does() {
    let Some(service) = with_tokenizer(PoolOptions::default()) else { return };
    let directory = testdata().join("tokenizers");
    let source: Box<dyn TokenizerSource> = Box::new(ModelDirectory::new(directory, ModelDirectoryOptions::default()));
    let pool = TokenizerPool::start(vec![source], &PoolOptions::default()).expect("threads");
    let text = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.";
    let ids = pool.tokenize("test-model", Prompt::Text(text.to_owned())).expect("tokens").ids;
    let _engine = holding(&service, &ids);
    let blocks = (ids.len() / BLOCK_TOKENS as usize) as f64;
    assert!(blocks > 2.0);
    assert_eq!(score(&service, &json!({ "model": "test-model", "prompt": text })), json!({ "pod": blocks }));
    let (status, answer) = service.post("/predict", &json!({ "model": "test-model", "prompt": text, "pod": "pod" }));
    assert_eq!((status, answer["blocks"].as_f64()), (200, Some(blocks)));

    let (status, error) = service.post("/score_completions", &json!({ "model": "other", "prompt": text }));
    assert!(status == 404 && error["error"].as_str().expect("a text").contains("tokenizer.json"), "{status} {error}");
    let metrics = service.metrics();
    let count = |outcome| metrics.value("flash_indexer_tokenizations_total", &[("kind", "text"), ("outcome", outcome)]);
    assert_eq!([count("done"), count("unknown_model")], [2.0, 1.0]);
    assert_eq!(metrics.value("flash_indexer_tokenized_tokens_total", &[]), 2.0 * ids.len() as f64);
    assert_eq!(metrics.value("flash_indexer_tokenization_work_seconds_count", &[]), 2.0);
    assert_eq!(metrics.value("flash_indexer_loaded_tokenizers", &[]), 1.0);
    assert_eq!(metrics.value("flash_indexer_tokenizer_cache_total", &[("result", "hit")]), 1.0);
}

#[test]
fn chats_are_rendered_and_tokenized_as_the_model_does() {
    let Some(service) = with_tokenizer(PoolOptions::default()) else { return };
    let directory = testdata().join("tokenizers");
    let source: Box<dyn TokenizerSource> = Box::new(ModelDirectory::new(directory, ModelDirectoryOptions::default()));
    let pool = TokenizerPool::start(vec![source], &PoolOptions::default()).expect("threads");
    // Rendering of the chat below by the test model's template.
    let text = "user: What do cats eat on a sunny day by the sea?\nassistant: Fish and mice.\n".to_owned();
    let options = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    let ids = pool.tokenize_with("test-model", Prompt::Text(text), options).expect("tokens").ids;
    let _engine = holding(&service, &ids);
    let blocks = (ids.len() / BLOCK_TOKENS as usize) as f64;
    let messages = json!([
        { "role": "user", "content": "What do cats eat on a sunny day by the sea?" },
        { "role": "assistant", "content": "Fish and mice." },
    ]);
    let ask = |more: Value| {
        let mut body = json!({ "model": "test-model", "messages": messages, "temperature": 0.5, "stream": true });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        service.post("/score_chat_completions", &body)
    };
    assert_eq!(ask(json!({ "add_generation_prompt": false })), (200, json!({ "pod": blocks })));
    let kept = ids.len() - BLOCK_TOKENS as usize;
    let cut = json!({ "add_generation_prompt": false, "truncate_prompt_tokens": kept });
    assert_eq!(ask(cut), (200, json!({})), "another beginning is another prompt");
    let failing = json!({ "chat_template": "{{ raise_exception('no such role') }}" });
    let (status, error) = ask(failing);
    assert!(status == 400 && error["error"].as_str().expect("a text").contains("no such role"), "{status} {error}");
    let (status, error) = ask(json!({ "messages": "hello" }));
    assert_eq!(status, 422, "{error}");
    let (status, answer) = ask(json!({ "model": "unknown" }));
    assert_eq!(status, 404, "{answer}");
}

#[test]
fn a_tokenizer_service_that_cannot_be_reached_is_named() {
    let service = TokenizerServiceOptions {
        address: "unix:/nowhere/tokenizer.sock".parse().expect("an address"),
        deadline: Duration::from_secs(1),
    };
    let tokenization = TokenizationOptions { service: Some(service), ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let (status, error) = service.post("/score_completions", &json!({ "model": "m", "prompt": "text" }));
    assert!(status == 503 && error["error"].as_str().expect("a text").contains("tokenizer.sock"), "{status} {error}");
}

#[test]
fn a_prediction_that_names_no_time_lasts_as_long_as_the_service_says() {
    let indexer = IndexerOptions { prediction_ttl: Duration::from_secs(600), ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let _engine = Engine::registered(&service, json!(7), 0, &json!({}));
    let body = json!({ "model": "m", "token_ids": tokens(&[1, 2]), "pod": 7 });
    assert_eq!(service.post("/predict", &body).0, 200);
    assert_eq!(score(&service, &json!({ "model": "m", "token_ids": tokens(&[1, 2]) })), json!({ "7": 2.0 }));
}
