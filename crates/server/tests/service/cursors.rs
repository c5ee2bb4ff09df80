//! Queries that continue a prefix get the same answers as the whole prompt.

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_wire::{BlockStored, CacheGroup, EngineEvent, TokenIds};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::proto::QueryRequest;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::{BLOCK_TOKENS, Engine, Service, removed, store, stored, tokens};

/// Blocks of the prefix with a cursor.
const CURSOR_BLOCKS: u64 = 32;

fn blocks(end: u64) -> Vec<u64> {
    (1..=end).collect()
}

/// Engines that hold all of a prompt, a part from before the cursor, and nothing.
fn fleet(service: &Service) -> [Engine; 3] {
    let engines = ["whole", "part", "none"].map(|name| Engine::registered(service, json!(name), 0, &json!({})));
    engines[0].say(service, 0, &[stored(None, &blocks(40)), stored(Some(40), &(41..=50).collect::<Vec<_>>())]);
    engines[1].say(service, 0, &[stored(None, &blocks(20))]);
    engines[2].say(service, 0, &[stored(None, &[99])]);
    engines
}

/// The cursor of an answer, after it was checked that it covers the tokens of 32 blocks.
fn cursor(answer: &Value) -> Value {
    assert_eq!(answer["cursor_tokens"], CURSOR_BLOCKS * u64::from(BLOCK_TOKENS), "{answer}");
    answer["cursor"].clone()
}

fn without_cursor(mut answer: Value) -> Value {
    answer.as_object_mut().expect("an object").retain(|key, _| !key.starts_with("cursor"));
    answer
}

#[test]
fn a_query_after_a_cursor_is_answered_as_the_whole_prompt_is() {
    let service = Service::start();
    let _engines = fleet(&service);
    let first = service.query(&json!({ "token_ids": tokens(&blocks(35)), "model_name": "m" }));
    let after = cursor(&first);
    for end in [32, 33, 45, 50, 60] {
        for options in [json!({}), json!({ "top_k": 2 }), json!({ "min_score": 100 })] {
            let mut body = json!({ "token_ids": tokens(&blocks(end)), "model_name": "m" });
            body.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
            let whole = service.query(&body);
            body["token_ids"] = json!(tokens(&blocks(end)[CURSOR_BLOCKS as usize..]));
            body["after"] = after.clone();
            assert_eq!(service.query(&body), whole, "{end} blocks, {options}");
        }
    }
    let whole = service.query(&json!({ "token_ids": tokens(&blocks(50)), "model_name": "m" }));
    assert_eq!(whole["scores"], json!({ "whole": { "0": 200 }, "part": { "0": 80 }, "none": { "0": 0 } }));
}

#[test]
fn a_query_by_hash_after_a_cursor_is_answered_as_the_whole_prompt_is() {
    let service = Service::start();
    let _engines = fleet(&service);
    let size = BlockSize::new(BLOCK_TOKENS).expect("a size");
    let locals = local_hashes(HashVariant::default(), &tokens(&blocks(50)), size, TokenWindow::Block);
    let locals: Vec<u64> = locals.into_iter().map(|local| local.0).collect();
    let query = |body: Value| service.post("/query_by_hash", &body);
    let (_, first) = query(json!({ "block_hashes": locals[..33], "model_name": "m" }));
    let (_, whole) = query(json!({ "block_hashes": locals, "model_name": "m" }));
    let continued = json!({ "block_hashes": locals[32..], "model_name": "m", "after": cursor(&first) });
    assert_eq!(query(continued), (200, whole));
}

#[test]
fn a_cursor_is_unknown_when_its_prefix_is_gone_or_belongs_to_another_adapter_salt_or_model() {
    let service = Service::start();
    let engines = fleet(&service);
    let _other = Engine::registered(&service, json!("other"), 0, &json!({ "model_name": "other" }));
    let first = service.query(&json!({ "token_ids": tokens(&blocks(35)), "model_name": "m" }));
    let after = cursor(&first);
    let body = |more: Value| {
        let mut body = json!({ "token_ids": [1, 2, 3, 4], "model_name": "m", "after": after });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    assert_eq!(service.post("/query", &body(json!({}))).0, 200);
    let expect_unknown = |more: Value| {
        let (status, answer) = service.post("/query", &body(more.clone()));
        assert_eq!(status, 409, "{more}: {answer}");
        let error = answer["error"].as_str().expect("a text");
        assert!(error.contains("unknown cursor") && error.contains("send the whole prompt"), "{error}");
    };
    expect_unknown(json!({ "lora_name": "adapter" }));
    expect_unknown(json!({ "cache_salt": "salt" }));
    expect_unknown(json!({ "model_name": "other" }));
    expect_unknown(json!({ "after": 12_345 }));
    let hashes: Vec<u64> = (21..=50).rev().collect();
    engines[0].say(&service, 1, &[removed(&hashes)]);
    expect_unknown(json!({}));
    let short = service.query(&json!({ "token_ids": tokens(&blocks(31)), "model_name": "m" }));
    assert_eq!(without_cursor(short.clone()), short, "a short prompt has no cursor");
}

#[test]
fn a_query_after_a_cursor_counts_every_cache_group() {
    let window = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(8) };
    let full = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
    let in_window = |hashes: &[u64]| {
        let token_ids = TokenIds::Plain(vec![7; 24]);
        EngineEvent::Stored(BlockStored { group: window, token_ids, ..store(None, hashes) })
    };
    let in_full = |hashes: &[u64]| EngineEvent::Stored(BlockStored { group: full, ..store(None, hashes) });
    for shards in [1, 3] {
        let indexer = IndexerOptions { shards: Some(shards), ..IndexerOptions::default() };
        let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
        let fleet = [1, 2, 3, 4].map(|instance| Engine::registered(&service, json!(instance), 0, &json!({})));
        // The windows of the first three end at the prompt's end, one block before it, and before the cursor.
        fleet[0].say(&service, 0, &[in_window(&[48, 49, 50]), in_full(&blocks(50))]);
        fleet[1].say(&service, 0, &[in_window(&[47, 48, 49]), in_full(&blocks(50))]);
        fleet[2].say(&service, 0, &[in_window(&[19, 20]), in_full(&blocks(50))]);
        fleet[3].say(&service, 0, &[stored(None, &blocks(50))]);
        let first = service.query(&json!({ "token_ids": tokens(&blocks(35)), "model_name": "m" }));
        let after = cursor(&first);
        for end in [32, 33, 48, 49, 50, 60] {
            for options in [json!({}), json!({ "top_k": 2 }), json!({ "top_k": 3, "min_score": 100 })] {
                let mut body = json!({ "token_ids": tokens(&blocks(end)), "model_name": "m" });
                body.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
                let whole = service.query(&body);
                body["token_ids"] = json!(tokens(&blocks(end)[CURSOR_BLOCKS as usize..]));
                body["after"] = after.clone();
                assert_eq!(service.query(&body), whole, "{end} blocks, {options}");
            }
        }
        let prompt = [tokens(&blocks(50)), vec![5]].concat();
        let whole = service.query(&json!({ "token_ids": prompt, "model_name": "m" }));
        let scores = [1, 2, 3, 4].map(|instance| whole["scores"][instance.to_string()]["0"].clone());
        assert_eq!(scores, [json!(200), json!(196), json!(80), json!(200)]);
    }
}

#[test]
fn grpc_continues_a_prefix() {
    let service = Service::start_with(ServerOptions { grpc_port: Some(0), ..ServerOptions::default() });
    let _engines = fleet(&service);
    let mut client = RouterServiceClient::new(service.channel());
    let mut query = |token_ids: Vec<u32>, after: Option<u64>| {
        let request = QueryRequest { model_name: "m".to_owned(), token_ids, after, ..QueryRequest::default() };
        service.block_on(client.query(request)).map(tonic::Response::into_inner)
    };
    let first = query(tokens(&blocks(35)), None).expect("an answer");
    assert_eq!(first.cursor_tokens, CURSOR_BLOCKS * u64::from(BLOCK_TOKENS));
    let whole = query(tokens(&blocks(50)), None).expect("an answer");
    let continued = query(tokens(&blocks(50)[CURSOR_BLOCKS as usize..]), first.cursor).expect("an answer");
    assert_eq!(continued, whole);
    let unknown = query(tokens(&[1]), Some(7)).expect_err("unknown");
    assert_eq!(unknown.code(), Code::FailedPrecondition);
}
