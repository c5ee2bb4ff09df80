//! Requests and responses of Dynamo's programs: matches by tier for its selection service, and the state of its standalone indexer.

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use serde_json::{Value, json};

use crate::support::fake_peer::{FakeDump, FakePeer};
use crate::support::{BLOCK_TOKENS, Engine, Service, removed, stored, to_host, tokens};

/// Local hashes of blocks as Dynamo sends them: signed.
fn signed_hashes(blocks: &[u64]) -> Vec<i64> {
    let size = BlockSize::new(BLOCK_TOKENS).expect("a size");
    let locals = local_hashes(HashVariant::default(), &tokens(blocks), size, TokenWindow::Block);
    locals.into_iter().map(|local| local.0.cast_signed()).collect()
}

#[test]
fn matches_are_answered_by_tier_in_blocks() {
    let service = Service::start();
    let both_tiers = Engine::registered(&service, json!(7), 0, &json!({}));
    both_tiers.say(&service, 0, &[stored(None, &[1, 2, 3]), to_host(2), to_host(3), stored(Some(3), &[4])]);
    both_tiers.say(&service, 1, &[removed(&[2, 3, 4])]);
    let device = Engine::registered(&service, json!(u64::MAX), 1, &json!({}));
    device.say(&service, 0, &[stored(None, &[1, 2])]);
    let unmatched = Engine::registered(&service, json!(9), 0, &json!({}));
    unmatched.say(&service, 0, &[stored(None, &[5])]);
    let named = Engine::registered(&service, json!("pod-a"), 0, &json!({}));
    named.say(&service, 0, &[stored(None, &[1])]);

    let query = |more: Value| {
        let mut body = json!({ "block_hashes": signed_hashes(&[1, 2, 3, 4]), "model_name": "m" });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        service.post("/query_tiered_by_hash", &body)
    };
    let expected = json!({
        "block_size": BLOCK_TOKENS,
        "tiered": {
            "device": {
                "scores": [[{ "worker_id": 7, "dp_rank": 0 }, 1], [{ "worker_id": u64::MAX, "dp_rank": 1 }, 2]],
                "frequencies": [],
            },
            "lower_tier": [["host_pinned", { "hits": [[{ "worker_id": 7, "dp_rank": 0 }, 2]] }]],
        },
        "omitted_ranks": 1,
    });
    assert_eq!(query(json!({ "routing_group": "default" })), (200, expected));
    // A routing group without ranks, and a model that has none yet: Dynamo's clients would fail after an error.
    let nothing = json!({
        "block_size": 0,
        "tiered": { "device": { "scores": [], "frequencies": [] }, "lower_tier": [] },
    });
    assert_eq!(query(json!({ "routing_group": "other" })), (200, nothing.clone()));
    assert_eq!(query(json!({ "model_name": "another" })), (200, nothing));
    let (status, error) = query(json!({ "block_hashes": "none" }));
    assert_eq!(status, 422, "{error}");
}

#[test]
fn a_peer_that_is_dynamos_indexer_is_recovered_from_and_its_ranks_are_not_exact() {
    let listener = json!({ "endpoint": "tcp://127.0.0.1:9", "status": "active" });
    let worker = json!({
        "instance_id": 7, "source": "zmq", "status": "active", "model_name": "m", "routing_group": "default",
        "block_size": BLOCK_TOKENS, "endpoints": { "0": "tcp://127.0.0.1:9" }, "listeners": { "0": listener },
    });
    let block =
        json!({ "block_hash": 1, "tokens_hash": signed_hashes(&[1])[0].cast_unsigned(), "mm_extra_info": null });
    let stored = json!({ "parent_hash": null, "start_position": null, "blocks": [block] });
    let event = json!({ "event_id": 0, "data": { "stored": stored }, "dp_rank": 0 });
    let events = json!([{ "worker_id": 7, "storage_tier": "device", "event": event }]);
    let dump = json!({ "m:default": { "block_size": BLOCK_TOKENS, "events": events } });
    let peer = FakePeer::start(json!([worker]), FakeDump::Whole(dump.to_string().into_bytes()));
    let service = Service::from_peer(&peer.url);
    let answer = service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }));
    assert_eq!(answer["scores"], json!({ "7": { "0": BLOCK_TOKENS } }));
    assert_eq!(answer["instances"]["7"]["trust"], json!("degraded"), "the dump has no position in the stream");
}
