//! A service that picks an instance for a router, by the blocks that instances hold and by their load.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, Service, stored, tokens};

/// Instances without events, which are always ready.
fn service_with(instances: &[&str]) -> Service {
    let service = Service::start();
    for instance in instances {
        let body = json!({ "instance_id": instance, "model_name": "m", "block_size": BLOCK_TOKENS, "events": "none" });
        assert_eq!(service.post("/register", &body).0, 201);
    }
    service
}

fn pick(service: &Service, blocks: &[u64], more: Value) -> Value {
    let mut body = json!({ "model": "m", "token_ids": tokens(blocks) });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, answer) = service.post("/pick", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn done(service: &Service, request_id: &str, more: Value) -> u16 {
    let mut body = json!({ "model_name": "m", "request_id": request_id });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    service.post("/done", &body).0
}

#[test]
fn a_seed_repeats_a_pick_and_equal_costs_are_spread() {
    let service = service_with(&["a", "b", "c"]);
    let picks: BTreeSet<String> = (0..64)
        .map(|seed| {
            let picked = pick(&service, &[1, 2], json!({ "pick_seed": seed }));
            assert_eq!(picked["seed"], seed);
            assert_eq!(pick(&service, &[1, 2], json!({ "pick_seed": seed }))["pod"], picked["pod"]);
            picked["pod"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert_eq!(picks.len(), 3, "{picks:?}");
    let again = pick(&service, &[1, 2], json!({ "temperature": 0.7, "seed": 3 }));
    assert_eq!(again["temperature"], 0.0, "OpenAI's fields of a request are for the engine");
    assert_eq!(pick(&service, &[1, 2], json!({ "pick_seed": again["seed"] }))["pod"], again["pod"], "a random seed");
}

/// The instance reports its cached tokens with the usage of a request, and the router passes them on.
fn reported_hits_are_counted_once(service: &Service) {
    let reported = || {
        let metrics = service.metrics();
        let labels = [("model_name", "m")];
        ["prompt", "cached"].map(|kind| metrics.value(&format!("flash_indexer_reported_{kind}_tokens_total"), &labels))
    };
    pick(service, &[8, 9], json!({ "request_id": "hits" }));
    let tokens = |prompt: u64, cached: u64| json!({ "prompt_tokens": prompt, "cached_tokens": cached });
    let too_early = json!({ "phase": "prefill", "prompt_tokens": 7, "cached_tokens": 4 });
    for wrong in
        [json!({ "prompt_tokens": 7 }), tokens(7, 8), tokens(u64::MAX, u64::MAX), tokens(1 << 32, 0), too_early]
    {
        assert_eq!(done(service, "hits", wrong), 422);
    }
    assert_eq!(reported(), [0.0, 0.0]);
    let hits = json!({ "prompt_tokens": 7, "cached_tokens": 4 });
    assert_eq!(done(service, "hits", hits.clone()), 200, "a report without sense ends no request");
    assert_eq!(done(service, "hits", hits), 404);
    assert_eq!(reported(), [7.0, 4.0]);
}

#[test]
fn an_instance_is_picked_by_what_it_holds_and_by_its_load_until_the_request_is_done() {
    let service = service_with(&["busy"]);
    let engine = Engine::registered(&service, json!("holder"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    assert_eq!(done(&service, "", json!({})), 422);
    let first = pick(&service, &[1, 2, 3, 4], json!({ "request_id": "r1", "detail": true }));
    assert_eq!((&first["pod"], &first["blocks"]), (&json!("holder"), &json!(4)));
    let idle = json!({ "requests": 0, "prefill_blocks": 0, "active_blocks": 0 });
    let costs: Vec<_> =
        first["candidates"].as_array().expect("a list").iter().map(|it| (&it["pod"], &it["cost"])).collect();
    assert_eq!(costs, [(&json!("busy"), &json!(8.0)), (&json!("holder"), &json!(5.0))], "4 + 4, and 4 - 3 + 4");
    assert_eq!(first["load"], idle, "before the pick");

    // One block to compute and four in use: a prompt that no instance holds goes to the other instance.
    let load = |instance: &str| {
        let picked = pick(&service, &[9], json!({ "pods": [instance] }));
        picked["load"].clone()
    };
    assert_eq!(load("holder"), json!({ "requests": 1, "prefill_blocks": 1, "active_blocks": 4 }));
    assert_eq!(pick(&service, &[8, 9], json!({ "request_id": "r2" }))["pod"], "busy");
    assert_eq!(load("busy"), json!({ "requests": 1, "prefill_blocks": 2, "active_blocks": 2 }));

    assert_eq!(done(&service, "r2", json!({ "phase": "prefill" })), 200);
    assert_eq!(load("busy"), json!({ "requests": 1, "prefill_blocks": 0, "active_blocks": 2 }));
    assert_eq!(done(&service, "r2", json!({ "tenant_id": "other" })), 404);
    assert_eq!(done(&service, "r2", json!({})), 200);
    assert_eq!(done(&service, "r2", json!({})), 404, "it has finished");
    reported_hits_are_counted_once(&service);
    assert_eq!(load("busy"), idle);

    // A router that picks by itself reports its choice.
    let reported = json!({ "model": "m", "token_ids": tokens(&[5, 6]), "pod": "busy", "request_id": "r3" });
    assert_eq!(service.post("/predict", &reported).0, 200);
    assert_eq!(load("busy"), json!({ "requests": 1, "prefill_blocks": 2, "active_blocks": 2 }));
    assert_eq!(service.post("/predict", &reported).0, 200);
    assert_eq!(load("busy")["requests"], 1, "the same request");
    assert_eq!(done(&service, "r3", json!({})), 200);

    let weights = json!({ "prefill_weight": 0, "active_weight": 0, "request_weight": 1 });
    assert_eq!(pick(&service, &[1, 2, 3, 4], weights)["pod"], "busy", "the holder has a request in flight");
    let without_id = pick(&service, &[7], json!({ "pods": ["busy"] }));
    assert_eq!(without_id["load"], idle);
    assert_eq!(load("busy"), idle, "a pick without a name of the request changes nothing");
}

#[test]
fn an_instance_that_is_not_connected_is_never_picked() {
    let service = service_with(&["ready"]);
    let endpoint = json!({ "instance_id": "down", "model_name": "m", "block_size": BLOCK_TOKENS, "endpoint": "tcp://127.0.0.1:1" });
    assert_eq!(service.post("/register", &endpoint).0, 201);
    for seed in 0..32 {
        let picked = pick(&service, &[1], json!({ "pick_seed": seed, "pick_temperature": 9, "detail": true }));
        assert_eq!(picked["pod"], "ready");
        assert_eq!(picked["candidates"][0]["ready"], false, "{picked}");
    }
    let only = json!({ "model": "m", "token_ids": tokens(&[1]), "pods": ["down"] });
    let (status, error) = service.post("/pick", &only);
    assert_eq!(status, 503, "{error}");
    let unknown = |pods: Value| json!({ "model": "m", "token_ids": tokens(&[1]), "pods": pods });
    let (status, error) = service.post("/pick", &unknown(json!(["typo", "other"])));
    assert_eq!(status, 404, "{error}");
    assert!(error["error"].as_str().is_some_and(|error| error.contains("instance other is not registered")), "{error}");
    assert_eq!(service.post("/pick", &unknown(json!(["typo", "ready"]))).1["pod"], "ready");
    let (status, _) = service.post("/pick", &json!({ "model": "unknown", "token_ids": tokens(&[1]) }));
    assert_eq!(status, 404);
}

#[test]
fn wrong_options_of_a_pick_are_rejected() {
    let service = service_with(&["a"]);
    for (field, value) in [
        ("pick_temperature", json!(-1)),
        ("prefill_weight", json!(-0.5)),
        ("active_weight", json!("1")),
        // With requests in flight, the cost would be infinite.
        ("request_weight", json!(1e308)),
        ("pick_seed", json!(-1)),
        ("after", json!("1")),
    ] {
        let mut body = json!({ "model": "m", "token_ids": tokens(&[1]) });
        body[field] = value;
        assert_eq!(service.post("/pick", &body).0, 422, "{field}");
    }
    assert_eq!(service.post("/pick", &json!({ "model": "m" })).0, 422);
    let long = json!({ "model": "m", "token_ids": tokens(&[1]), "request_id": "x".repeat(513) });
    assert_eq!(service.post("/pick", &long).0, 400);
    assert_eq!(done(&service, "unknown", json!({})), 404);
    assert_eq!(done(&service, &"x".repeat(513), json!({})), 400);
    assert_eq!(done(&service, "a\nb", json!({})), 400);
}
