//! Instances whose engines publish no events: the service derives their blocks from routing decisions.

use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

fn register(service: &Service, instance: &str, more: &Value) -> (u16, Value) {
    let mut body = json!({ "instance_id": instance, "model_name": "m", "block_size": BLOCK_TOKENS, "events": "none" });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    service.post("/register", &body)
}

/// Reports that a prompt was sent to an instance. Returns the number of its blocks that count.
fn route(service: &Service, instance: &str, blocks: &[u64], more: &Value) -> Value {
    let mut body = json!({ "pod": instance, "model_name": "m", "token_ids": tokens(blocks) });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, answer) = service.post("/predict", &body);
    assert_eq!(status, 200, "{answer}");
    answer["blocks"].clone()
}

fn wait_for_blocks(service: &Service, instance: &str, prompt: &[u64], blocks: u64) {
    let held = || service.score(&tokens(prompt), instance, 0) == blocks * u64::from(BLOCK_TOKENS);
    wait_for(&format!("{blocks} blocks of {prompt:?} in {instance}"), PATIENCE, || held().then_some(()));
}

#[test]
fn routed_prompts_count_in_every_answer_until_their_time_has_passed() {
    let service = Service::start();
    assert_eq!(register(&service, "a", &json!({})).0, 201);
    assert_eq!(register(&service, "a", &json!({})).0, 200, "the same registration");
    assert_eq!(service.get("/ready").0, 200, "there is nothing to wait for");
    assert_eq!(route(&service, "a", &[1, 2, 3], &json!({})), 3);
    wait_for_blocks(&service, "a", &[1, 2, 3, 4], 3);
    let query = json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3, 4]) });
    assert_eq!(service.query(&query)["instances"]["a"]["trust"], "approximate");
    assert_eq!(service.get("/digest?model_name=m&instance_id=a").1["stream"]["trust"], "approximate");
    let listener = service.listener(&json!("a"), 0);
    assert_eq!((&listener["trust"], &listener["status"]), (&json!("approximate"), &json!("connected")));
    let (_, scores) =
        service.post("/score_completions", &json!({ "model": "m", "detail": true, "token_ids": tokens(&[1, 2, 9]) }));
    let detail = json!({ "score": 2.0, "held_blocks": 2, "predicted_blocks": 0, "trust": "approximate" });
    assert_eq!(scores, json!({ "pods": { "a": detail } }));
    let (_, explained) = service.post("/explain", &query);
    assert_eq!(explained["ranks"][0]["ends"][0]["reason"], "approximate", "{explained}");
    assert_eq!(explained["ranks"][0]["ends"][0]["position"], 3);
    // The longer prompt expires after a millisecond. The blocks that it shares with the other prompt stay longer.
    assert_eq!(route(&service, "a", &[1, 2, 3, 4, 5], &json!({ "ttl_ms": 1 })), 5);
    wait_for_blocks(&service, "a", &[1, 2, 3, 4, 5], 3);
    assert_eq!(route(&service, "a", &[8, 9], &json!({ "ttl_ms": 1 })), 2);
    wait_for_blocks(&service, "a", &[8, 9], 0);
    wait_for_blocks(&service, "a", &[1, 2, 3], 3);
}

#[test]
fn a_prompt_counts_from_the_answer_of_its_report_on() {
    let service = Service::start();
    register(&service, "a", &json!({}));
    for number in 0..50 {
        let blocks: Vec<u64> = (100 * number + 1..100 * number + 40).collect();
        assert_eq!(route(&service, "a", &blocks, &json!({})), blocks.len());
        let tokens = tokens(&blocks);
        assert_eq!(service.score(&tokens, "a", 0), tokens.len() as u64, "report {number}");
    }
}

#[test]
fn a_prompt_of_very_many_blocks_counts_whole() {
    const BLOCKS: u32 = 150_000;
    let service = Service::start();
    assert_eq!(register(&service, "a", &json!({ "block_size": 1, "cache_blocks": BLOCKS })).0, 201);
    for first in [0, BLOCKS] {
        // The second prompt replaces the first one.
        let prompt: Vec<u32> = (first..first + BLOCKS).collect();
        let report = json!({ "pod": "a", "model_name": "m", "token_ids": prompt, "cache_salt": "x" });
        assert_eq!(service.post("/predict", &report), (200, json!({ "status": "ok", "blocks": BLOCKS })));
        let held = || {
            let query = json!({ "model_name": "m", "token_ids": prompt, "cache_salt": "x" });
            (service.query(&query)["scores"]["a"]["0"] == BLOCKS).then_some(())
        };
        wait_for("all blocks", PATIENCE, held);
        assert_eq!(service.listener(&json!("a"), 0)["trust"], "approximate");
        assert_eq!(service.listener(&json!("a"), 0)["rejected"], json!({}));
    }
}

#[test]
fn the_cache_of_an_instance_keeps_what_was_used_last() {
    let service = Service::start();
    assert_eq!(register(&service, "a", &json!({ "cache_blocks": 4 })).0, 201);
    route(&service, "a", &[1, 2], &json!({}));
    route(&service, "a", &[5, 6], &json!({}));
    route(&service, "a", &[1, 2], &json!({}));
    route(&service, "a", &[1, 3], &json!({}));
    wait_for_blocks(&service, "a", &[1, 3], 2);
    wait_for_blocks(&service, "a", &[5, 6], 1);
    assert_eq!(service.score(&tokens(&[1, 2]), "a", 0), 2 * u64::from(BLOCK_TOKENS));
    assert_eq!(route(&service, "a", &[11, 12, 13, 14, 15], &json!({})), 4, "the first blocks of a longer prompt");
    wait_for_blocks(&service, "a", &[11, 12, 13, 14, 15], 4);
    wait_for_blocks(&service, "a", &[1, 2], 0);
}

#[test]
fn all_instances_together_have_a_limit() {
    let indexer = IndexerOptions { routed_blocks_max: 3, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    register(&service, "a", &json!({}));
    register(&service, "b", &json!({}));
    assert_eq!(route(&service, "a", &[1, 2], &json!({})), 2);
    assert_eq!(route(&service, "b", &[1, 2], &json!({})), 1);
    let reached = || service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "routed_blocks")]);
    assert_eq!(reached(), 1.0);
    assert_eq!(route(&service, "b", &[7], &json!({})), 1, "the instance's own blocks make room");
    wait_for_blocks(&service, "b", &[7], 1);
    wait_for_blocks(&service, "b", &[1], 0);
    wait_for_blocks(&service, "a", &[1, 2], 2);
    let removed = service.post("/unregister", &json!({ "instance_id": "a", "model_name": "m" }));
    assert_eq!(removed.0, 200);
    wait_for("room of the unregistered instance", PATIENCE, || {
        (route(&service, "b", &[1, 2, 3], &json!({})) == 3).then_some(())
    });
}

#[test]
fn salts_and_adapters_are_parts_of_the_prompt() {
    let service = Service::start();
    register(&service, "a", &json!({}));
    for more in
        [json!({ "cache_salt": "x" }), json!({ "lora_name": "x" }), json!({ "lora_name": "x", "cache_salt": "x" })]
    {
        route(&service, "a", &[1, 2], &more);
        // The second part of a prompt continues the first one.
        route(&service, "a", &[1, 2, 3], &more);
        let mut query = json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]) });
        query.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let score = || service.query(&query)["scores"]["a"]["0"].as_u64();
        wait_for(&format!("the prompt with {more}"), PATIENCE, || {
            score().filter(|score| *score == 3 * u64::from(BLOCK_TOKENS))
        });
    }
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "a", 0), 0, "without either");
}

#[test]
fn a_score_request_records_the_best_instance() {
    let service = Service::start();
    register(&service, "a", &json!({}));
    register(&service, "b", &json!({}));
    let request = |blocks: &[u64]| json!({ "model": "m", "token_ids": tokens(blocks), "record": true, "detail": true });
    let (status, scores) = service.post("/score_completions", &request(&[1, 2]));
    assert_eq!((status, scores), (200, json!({ "pods": {} })), "no instance has a score, so none is recorded");
    route(&service, "b", &[1], &json!({}));
    wait_for_blocks(&service, "b", &[1], 1);
    let (_, scores) = service.post("/score_completions", &request(&[1, 2]));
    assert_eq!(scores["recorded"], "b");
    wait_for_blocks(&service, "b", &[1, 2], 2);
    assert_eq!(
        service.header("/score_completions", &request(&[1]), "flash-indexer-recorded").as_deref(),
        Some("\"b\"")
    );
}

#[test]
fn an_instance_is_switched_to_events_while_it_runs() {
    let service = Service::start();
    register(&service, "a", &json!({}));
    route(&service, "a", &[1, 2], &json!({}));
    wait_for_blocks(&service, "a", &[1, 2], 2);
    let engine = Engine::registered(&service, json!("a"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    wait_for_blocks(&service, "a", &[1, 2], 1);
    assert_eq!(service.listener(&json!("a"), 0)["trust"], "exact");
    let (status, error) = register(&service, "a", &json!({}));
    assert_eq!(status, 409, "{error}");
    let (status, error) = register(&service, "a", &json!({ "dp_rank": 1 }));
    assert_eq!(status, 409, "an instance has one source of events: {error}");
}

#[test]
fn a_registration_names_one_source_of_events() {
    let service = Service::start();
    let endpoint = json!({ "endpoint": "tcp://127.0.0.1:1" });
    assert_eq!(register(&service, "a", &endpoint).0, 422);
    assert_eq!(register(&service, "a", &json!({ "events": "published" })).0, 422);
    assert_eq!(register(&service, "a", &json!({ "events": "never" })).0, 422);
    assert_eq!(register(&service, "a", &json!({ "cache_blocks": 0 })).0, 422);
    assert_eq!(register(&service, "a", &json!({ "replay_endpoint": "tcp://127.0.0.1:1" })).0, 400);
    let published = json!({ "endpoint": "tcp://127.0.0.1:1", "events": "published", "cache_blocks": 1 });
    assert_eq!(register(&service, "a", &published).0, 400);
    assert_eq!(service.get("/workers").1, json!([]));
    assert_eq!(register(&service, "a", &json!({})).0, 201);
    assert_eq!(register(&service, "a", &json!({ "cache_blocks": 7 })).0, 409);
    assert_eq!(register(&service, "a", &json!({ "dp_rank": 1 })).0, 409, "it has one rank");
}

#[test]
fn another_replica_takes_over_the_registration_alone() {
    let service = Service::start();
    register(&service, "a", &json!({ "cache_blocks": 9 }));
    route(&service, "a", &[1, 2], &json!({}));
    wait_for_blocks(&service, "a", &[1, 2], 2);
    let other = Service::from_peer(&service.url(""));
    wait_for("the registration", PATIENCE, || (other.get("/ready").0 == 200).then_some(()));
    let listener = other.listener(&json!("a"), 0);
    assert_eq!((&listener["trust"], &listener["cache_blocks"]), (&json!("approximate"), &json!(9)));
    assert_eq!(other.score(&tokens(&[1, 2]), "a", 0), 0);
    route(&other, "a", &[1, 2, 3], &json!({}));
    wait_for_blocks(&other, "a", &[1, 2, 3], 3);
}
