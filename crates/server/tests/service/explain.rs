//! Reasons why matches end at their positions: every reason occurs.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, CacheGroup, Encoding, EngineEvent, ExtraKey, RemovalReason, TokenIds, encode_batch,
};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, Service, removed, store, stored, to_host, tokens};

/// The explanation of a prompt of model `m`, given as blocks.
fn explain(service: &Service, hashes: &[u64], more: &Value) -> Value {
    let mut request = json!({ "token_ids": tokens(hashes), "model_name": "m" });
    for (key, value) in more.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    let (status, answer) = service.post("/explain", &request);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Position, reason and sequence hash of every end of the first rank's match.
fn ends(answer: &Value) -> Value {
    let ends = answer["ranks"][0]["ends"].as_array().unwrap_or_else(|| panic!("no ends: {answer}"));
    ends.iter().map(|end| json!([end["position"], end["reason"], end["sequence_hash"]])).collect()
}

fn local(hash: u64) -> u64 {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    local_hashes(HashVariant::default(), &tokens(&[hash]), block_size, TokenWindow::Block)[0].0
}

#[test]
fn a_match_ends_with_the_prompt_or_at_a_block_that_is_in_a_slower_tier() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let to_host = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(None, &[2]) };
    engine.say(&service, 0, &[stored(None, &[1, 2, 3]), EngineEvent::Stored(to_host), removed(&[2])]);
    let none = json!({});
    assert_eq!(ends(&explain(&service, &[1], &none)), json!([[1, "whole_prompt", null]]));
    assert_eq!(ends(&explain(&service, &[], &none)), json!([[0, "whole_prompt", null]]));
    assert_eq!(ends(&explain(&service, &[1, 2], &none)), json!([[1, "other_tier", 2]]));

    let answer = explain(&service, &[1, 2, 9], &none);
    assert_eq!(ends(&answer), json!([[1, "other_tier", 2], [2, "never_seen", null]]));
    let rank = &answer["ranks"][0];
    assert_eq!((&answer["blocks"], &answer["block_size"], &rank["blocks_held"]), (&json!(3), &json!(4), &json!(3)));
    assert_eq!(["gpu", "cpu", "disk", "longest_matched"].map(|tier| rank[tier].clone()), [4, 8, 8, 8].map(Value::from));
    let end = &rank["ends"][0];
    assert_eq!((&end["tier"], &end["local_hash"]), (&json!("host_pinned"), &json!(local(2))));
    let (_, as_text) =
        service.post("/explain?hashes=string", &json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }));
    assert_eq!(as_text["ranks"][0]["ends"][0]["local_hash"], json!(local(2).to_string()));

    let hashes = [local(1), local(2)];
    let (status, answer) = service.post("/explain", &json!({ "token_ids": [1], "model_name": "m", "after": 7 }));
    assert_eq!(status, 422, "a part of a prompt has another explanation: {answer}");
    let (_, by_hash) = service.post("/explain", &json!({ "block_hashes": hashes, "model_name": "m" }));
    assert_eq!(ends(&by_hash), json!([[1, "other_tier", 2]]));
}

#[test]
fn removed_blocks_are_told_with_their_time_and_what_is_held_behind_them() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3, 4]), removed(&[4, 2])]);
    let answer = explain(&service, &[1, 2, 3, 4], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "hole", 2]]));
    let end = &answer["ranks"][0]["ends"][0];
    assert_eq!((&end["tier"], &end["held_again_from"]), (&json!("device"), &json!(2)));
    assert!(end["removed_ms_ago"].is_u64() && end["why"].as_str().is_some_and(|why| why.contains("ago")), "{end}");

    engine.say(&service, 1, &[stored(Some(1), &[2])]);
    let answer = explain(&service, &[1, 2, 3, 4], &json!({}));
    assert_eq!(ends(&answer), json!([[3, "removed", 4]]));
    assert!(answer["ranks"][0]["ends"][0]["removed_ms_ago"].is_u64(), "{answer}");

    // For a rank that never had the block, the explanation takes its sequence hash from the rank that has it.
    let other = Engine::registered(&service, json!(2), 0, &json!({}));
    other.say(&service, 0, &[stored(None, &[1])]);
    let answer = explain(&service, &[1, 2, 3], &json!({ "instance_id": 2 }));
    assert_eq!(ends(&answer), json!([[1, "never_seen", 2]]));
    assert_eq!(answer["ranks"].as_array().map(Vec::len), Some(1), "only the one that was asked about");
}

#[test]
fn a_removed_block_is_explained_with_the_engines_reason() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let removed_for = |hash: u64, reason| {
        let block_hashes = vec![SequenceHash(hash)];
        EngineEvent::Removed(BlockRemoved { block_hashes, reason, ..BlockRemoved::default() })
    };
    let events = [
        stored(None, &[1, 2]),
        stored(None, &[3]),
        stored(None, &[4]),
        removed_for(2, Some(RemovalReason::Evicted)),
        removed_for(3, Some(RemovalReason::Demoted)),
        removed_for(4, None),
    ];
    engine.say(&service, 0, &events);
    for (prompt, reason, why) in [
        (vec![1, 2], json!("evicted"), "it was evicted from device"),
        (vec![3], json!("demoted"), "it was moved to a slower tier from device"),
        (vec![4], Value::Null, "it was removed from device"),
    ] {
        let answer = explain(&service, &prompt, &json!({}));
        let end = &answer["ranks"][0]["ends"][0];
        assert_eq!((&end["reason"], &end["removal_reason"]), (&json!("removed"), &reason), "{end}");
        assert!(end["why"].as_str().is_some_and(|text| text.starts_with(why)), "{end}");
    }
}

#[test]
fn without_a_history_names_come_from_other_ranks() {
    let indexer = IndexerOptions { history_blocks_max: 0, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let (first, second) =
        (Engine::registered(&service, json!(1), 0, &json!({})), Engine::registered(&service, json!(2), 0, &json!({})));
    first.say(&service, 0, &[stored(None, &[1, 2]), removed(&[2])]);
    assert_eq!(ends(&explain(&service, &[1, 2], &json!({ "instance_id": 1 }))), json!([[1, "never_seen", null]]));
    second.say(&service, 0, &[stored(None, &[1, 2])]);
    assert_eq!(ends(&explain(&service, &[1, 2], &json!({ "instance_id": 1 }))), json!([[1, "never_seen", 2]]));
}

#[test]
fn a_cache_that_was_cleared_and_an_engine_that_started_again() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    engine.say(&service, 1, &[EngineEvent::Cleared]);
    let why = |answer: &Value| answer["ranks"][0]["ends"][0]["why"].as_str().expect("a reason").to_owned();
    let answer = explain(&service, &[1], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "cleared", 1]]));
    assert!(why(&answer).contains("the engine cleared its cache"), "{answer}");
    engine.say(&service, 2, &[stored(None, &[1, 2])]);
    engine.say(&service, 0, &[stored(None, &[1])]);
    // The second message shows that the first one was not a late message of the connection.
    engine.say(&service, 1, &[]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "cleared", 2]]));
    assert!(why(&answer).contains("the engine restarted"), "{answer}");
}

#[test]
fn a_block_removed_before_a_clear_shows_the_removal() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2]), to_host(2), removed(&[1]), removed(&[2])]);
    engine.say(&service, 1, &[EngineEvent::Cleared]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "removed", 1]]), "{answer}");
    engine.say(&service, 2, &[stored(None, &[1])]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "cleared", 2]]), "a copy in host memory was left for the clear: {answer}");
    engine.say(&service, 3, &[stored(Some(1), &[2]), removed(&[2]), stored(Some(1), &[2])]);
    engine.say(&service, 4, &[EngineEvent::Cleared]);
    engine.say(&service, 5, &[EngineEvent::Cleared, stored(None, &[1])]);
    assert_eq!(ends(&explain(&service, &[1, 2], &json!({}))), json!([[1, "cleared", 2]]), "it was stored again");
}

#[test]
fn a_rank_that_lost_too_many_messages_was_not_started_again() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    engine.say(&service, 1_000_000, &[stored(None, &[1])]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "cleared", 2]]));
    let why = answer["ranks"][0]["ends"][0]["why"].as_str().expect("a reason");
    assert!(why.contains("messages of the engine were lost") && !why.contains("the engine restarted"), "{why}");
}

#[test]
fn a_block_that_went_before_messages_were_lost_may_be_held_again() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let end = |answer: &Value| answer["ranks"][0]["ends"][0].clone();
    let why = |answer: &Value| end(answer)["why"].as_str().expect("a reason").to_owned();
    engine.say(&service, 0, &[stored(None, &[1, 2, 3, 4, 5])]);
    engine.say(&service, 1, &[removed(&[3, 5])]);
    assert_eq!(ends(&explain(&service, &[1, 2, 3], &json!({}))), json!([[2, "removed", 3]]));
    engine.say(&service, 5, &[]);
    let answer = explain(&service, &[1, 2, 3], &json!({}));
    assert_eq!(ends(&answer), json!([[2, "degraded", 3]]), "3 may have been stored again: {answer}");
    assert_eq!(end(&answer)["missing_after_seq"], json!(1), "{answer}");
    assert!(end(&answer)["removed_ms_ago"].is_u64(), "{answer}");
    let text = why(&answer);
    for part in ["after message 1", "3 messages were lost before number 5", "removed from device"] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    let answer = explain(&service, &[1, 2, 3, 4], &json!({}));
    assert_eq!((ends(&answer), &end(&answer)["missing_after_seq"]), (json!([[2, "hole", 3]]), &json!(1)), "{answer}");

    // Events after the loss are exact again.
    engine.say(&service, 6, &[removed(&[2])]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!((ends(&answer), &end(&answer)["missing_after_seq"]), (json!([[1, "removed", 2]]), &Value::Null));

    // The engine restarts, and its first message is missed.
    engine.say(&service, 1, &[stored(None, &[9])]);
    engine.say(&service, 2, &[]);
    let answer = explain(&service, &[1], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "degraded", 1]]), "{answer}");
    assert!(end(&answer)["cleared_ms_ago"].is_u64(), "{answer}");
    let text = why(&answer);
    assert!(text.contains("1 message was published before") && text.contains("the engine restarted"), "{text}");
}

#[test]
fn a_name_that_is_reused_under_another_adapter_does_not_hide_how_a_block_went() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let with_adapter = |hash| EngineEvent::Stored(BlockStored { lora_name: Some("a"), ..store(None, &[hash]) });
    engine.say(&service, 0, &[stored(None, &[1]), removed(&[1]), with_adapter(1)]);
    let answer = explain(&service, &[1], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "removed", 1]]));
    let end = &answer["ranks"][0]["ends"][0];
    assert!(end["removed_ms_ago"].is_u64(), "the removal is remembered: {end}");
    assert_eq!(end["held_elsewhere"]["lora_name"], json!("a"), "{end}");

    engine.say(&service, 1, &[stored(None, &[2]), with_adapter(2)]);
    let answer = explain(&service, &[2], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "name_reused", 2]]), "{answer}");
    engine.say(&service, 2, &[removed(&[2])]);
    let answer = explain(&service, &[2], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "name_reused", 2]]), "the removal took other content: {answer}");
}

/// Seconds since the Unix epoch, `age` seconds ago.
fn stamp(age: f64) -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
    now.as_secs_f64() - age
}

#[test]
fn ages_after_a_replay_count_from_when_the_engine_made_the_batches() {
    let service = Service::start();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let batches = [
        (3_600.0, stored(None, &[1, 2])),
        (1_800.0, removed(&[2])),
        (900.0, EngineEvent::Cleared),
        (800.0, stored(None, &[1])),
    ];
    for (sequence, (age, event)) in (0..).zip(&batches) {
        let payload = encode_batch(stamp(*age), std::slice::from_ref(event), None, Encoding::Map);
        publisher.publish(sequence, &payload).expect("published");
    }
    let engine = Engine::with_replay(&service, json!(1), publisher);
    engine.wait(&service, "the replay", |listener| listener["last_seq"] == json!(3));
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "removed", 2]]));
    let ago = answer["ranks"][0]["ends"][0]["removed_ms_ago"].as_u64().expect("a time");
    assert!(ago >= 1_800_000, "counted from the replay: {answer}");
}

#[test]
fn blocks_held_under_another_adapter_are_named_beside_every_reason() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let with_adapter = BlockStored { lora_name: Some("a"), ..store(None, &[1, 2]) };
    let plain = BlockStored { token_ids: TokenIds::Plain(tokens(&[1, 2])), ..store(None, &[11, 12]) };
    engine.say(&service, 0, &[EngineEvent::Stored(with_adapter), EngineEvent::Stored(plain), removed(&[11, 12])]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[0, "removed", 11]]));
    let end = &answer["ranks"][0]["ends"][0];
    assert_eq!(end["held_elsewhere"], json!({ "lora_name": "a", "is_salted": false, "blocks": 2 }), "{answer}");
    let why = end["why"].as_str().expect("a reason");
    assert!(why.contains("removed from device") && why.contains("2 blocks of the same tokens"), "{why}");

    let other = Engine::registered(&service, json!(2), 3, &json!({}));
    other.say(&service, 0, &[stored(None, &[21])]);
    let answer = explain(&service, &[1, 2], &json!({ "instance_id": 2 }));
    assert_eq!(ends(&answer), json!([[0, "never_seen", 11]]));
    let end = &answer["ranks"][0]["ends"][0];
    let holder = json!({ "instance_id": 1, "dp_rank": 0, "lora_name": "a", "is_salted": false, "blocks": 2 });
    assert_eq!((&end["fleet_holds_elsewhere"], &end["held_elsewhere"]), (&holder, &Value::Null), "{answer}");
    assert!(end["why"].as_str().is_some_and(|why| why.contains("instance 1 rank 0 holds 2 blocks")), "{answer}");

    let plain = BlockStored { token_ids: TokenIds::Plain(tokens(&[1, 2])), ..store(None, &[11, 12]) };
    other.say(&service, 1, &[EngineEvent::Stored(plain)]);
    let answer = explain(&service, &[1, 2], &json!({ "instance_id": 1 }));
    assert_eq!(
        answer["ranks"][0]["ends"][0]["fleet_holds_elsewhere"],
        Value::Null,
        "the fleet has the prompt: {answer}"
    );
}

#[test]
fn the_same_tokens_under_another_adapter_or_salt() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let adapter = BlockStored { lora_name: Some("a"), ..store(None, &[1, 2]) };
    let keys = vec![Some(vec![ExtraKey::Salt("s")]), None];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[11, 12]) };
    engine.say(&service, 0, &[EngineEvent::Stored(adapter), EngineEvent::Stored(salted), stored(None, &[21])]);
    let elsewhere = |hashes: &[u64], more: Value| {
        let answer = explain(&service, hashes, &more);
        assert_eq!(ends(&answer), json!([[0, "other_space", null]]), "{answer}");
        answer["ranks"][0]["ends"][0]["held_elsewhere"].clone()
    };
    assert_eq!(elsewhere(&[1, 2], json!({})), json!({ "lora_name": "a", "is_salted": false, "blocks": 2 }));
    assert_eq!(elsewhere(&[11, 12, 13], json!({})), json!({ "lora_name": null, "is_salted": true, "blocks": 2 }));
    let plain = json!({ "lora_name": null, "is_salted": false, "blocks": 1 });
    assert_eq!(elsewhere(&[21], json!({ "lora_name": "b", "cache_salt": "t" })), plain);
    assert_eq!(ends(&explain(&service, &[1, 2], &json!({ "lora_name": "a" }))), json!([[2, "whole_prompt", null]]));
}

#[test]
fn ranks_that_cannot_be_believed_say_so() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let answer = explain(&service, &[1], &json!({}));
    assert_eq!((ends(&answer), &answer["ranks"][0]["trust"]), (json!([[0, "cold", null]]), &json!("cold")));
    engine.say(&service, 0, &[stored(None, &[1])]);
    engine.say(&service, 5, &[]);
    let answer = explain(&service, &[1, 2], &json!({}));
    assert_eq!(ends(&answer), json!([[1, "degraded", null]]));
    let why = answer["ranks"][0]["ends"][0]["why"].as_str().expect("a reason");
    assert!(why.contains("4 messages were lost"), "{why}");
}

/// A store in one of several cache groups. Stores of the window skip blocks, so their tokens do not identify the blocks.
fn in_group<'a>(group: CacheGroup<'a>, parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group, ..store(parent, hashes) })
}

#[test]
fn groups_of_a_hybrid_model_that_lack_something_are_named() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let window = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(8) };
    let full = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
    let more = CacheGroup { idx: Some(2), kind: Some("mla_attention"), sliding_window: None };
    let six = [1, 2, 3, 4, 5, 6];
    engine.say(&service, 0, &[in_group(full, None, &six), in_group(window, None, &[3, 4, 5, 6])]);
    let ask = |hashes: &[u64], more_tokens: &[u32]| {
        let prompt = [&tokens(hashes)[..], more_tokens].concat();
        let query = service.query(&json!({ "token_ids": prompt, "model_name": "m" }));
        let (_, answer) = service.post("/explain", &json!({ "token_ids": prompt, "model_name": "m" }));
        for tier in ["gpu", "cpu", "disk", "longest_matched"] {
            assert_eq!(answer["ranks"][0][tier], query["instances"]["1"][tier], "{answer}");
        }
        answer
    };
    let group = |end: &Value, at: usize| {
        let group = &end["cache_groups"][at];
        let missing = group["missing"].as_array().expect("a list").iter();
        let missing: Value = missing.map(|block| json!([block["position"], block["sequence_hash"]])).collect();
        json!([group["group"], group["needs"], group["missing_blocks"], missing])
    };
    assert_eq!(ends(&ask(&[1, 2, 3, 4, 5, 6, 7], &[])), json!([[6, "never_seen", null]]), "nothing is cut off");
    assert_eq!(ends(&ask(&six, &[])), json!([[6, "whole_prompt", null]]));

    // The prompt's last block is computed, and before it the window has a gap.
    let answer = ask(&[1, 2, 3, 4], &[]);
    assert_eq!(ends(&answer), json!([[0, "cache_groups", 1]]));
    let end = &answer["ranks"][0]["ends"][0];
    assert_eq!((&end["full_attention_blocks"], &end["wanted_blocks"]), (&json!(4), &json!(3)));
    assert_eq!(group(end, 0), json!([0, { "last_blocks": 2 }, 1, [[1, 2]]]));
    assert_eq!(end["cache_groups"][0]["missing"][0]["local_hash"], json!(local(2)));

    let offload = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(None, &[6]) };
    let offload = EngineEvent::Stored(BlockStored { group: window, ..offload });
    let evict = EngineEvent::Removed(BlockRemoved {
        block_hashes: store(None, &[6]).block_hashes,
        group_idx: window.idx,
        ..BlockRemoved::default()
    });
    engine.say(&service, 1, &[offload, evict, in_group(more, None, &[1, 2, 3, 4, 6])]);
    let answer = ask(&six, &[5]);
    assert_eq!(ends(&answer), json!([[4, "cache_groups", 5]]), "no tier has what the other group lacks");
    let end = &answer["ranks"][0]["ends"][0];
    assert_eq!(group(end, 0), json!([0, { "last_blocks": 2 }, 1, [[5, 6]]]));
    assert_eq!(end["cache_groups"][0]["missing"][0]["tier"], json!("host_pinned"));
    assert_eq!(group(end, 1), json!([2, "whole", 1, [[4, 5]]]));
    let why = end["why"].as_str().expect("a reason");
    assert!(why.contains("cache group 0, which needs the last 2, lacks 1: 5; cache group 2"), "{why}");

    engine.say(&service, 2, &[in_group(more, Some(4), &[5])]);
    let answer = ask(&six, &[5]);
    assert_eq!(ends(&answer), json!([[5, "cache_groups", 6]]), "host memory has it");
    let answer = ask(&[&six[..], &[7]].concat(), &[]);
    assert_eq!(ends(&answer), json!([[5, "cache_groups", 6], [6, "never_seen", null]]));
}

#[test]
fn instances_that_are_not_registered_are_named() {
    let service = Service::start();
    let _stays = Engine::registered(&service, json!(1), 0, &json!({}));
    let goes = Engine::registered(&service, json!("pod"), 2, &json!({}));
    let unregister =
        |instance: Value| service.post("/unregister", &json!({ "instance_id": instance, "model_name": "m" })).0;
    assert_eq!(unregister(goes.instance.clone()), 200);
    let answer = explain(&service, &[1], &json!({}));
    assert_eq!(answer["ranks"].as_array().map(Vec::len), Some(1));
    let absent = &answer["absent"][0];
    assert_eq!((&absent["instance_id"], &absent["dp_rank"]), (&json!("pod"), &json!(2)));
    assert_eq!(absent["reason"], json!("unregistered"));
    assert!(absent["unregistered_ms_ago"].is_u64(), "{answer}");
    let answer = explain(&service, &[1], &json!({ "instance_id": "unknown" }));
    assert_eq!((&answer["ranks"], &answer["absent"][0]["reason"]), (&json!([]), &json!("not_registered")));

    // The model is removed with its last instance, and the explanation stays.
    assert_eq!(unregister(json!(1)), 200);
    let answer = explain(&service, &[1], &json!({ "instance_id": 1 }));
    assert_eq!((&answer["ranks"], &answer["absent"][0]["reason"]), (&json!([]), &json!("unregistered")));
    let _back = Engine::registered(&service, json!(1), 0, &json!({}));
    assert_eq!(explain(&service, &[1], &json!({ "instance_id": 1 }))["absent"], json!([]), "it is back");
}

#[test]
fn a_question_that_makes_no_sense_is_refused() {
    let service = Service::start();
    let ask = |request: Value| {
        let (status, answer) = service.post("/explain", &request);
        (status, answer["error"].as_str().expect("an error").to_owned())
    };
    let cases = [
        (json!({ "token_ids": [], "model_name": "m" }), 404, "no instance is registered"),
        (json!({ "model_name": "m" }), 422, "token_ids"),
        (json!({ "token_ids": [] }), 422, "model_name"),
        (json!({ "token_ids": [], "block_hashes": [], "model_name": "m" }), 400, "give one"),
        (json!({ "block_hashes": [], "lora_name": "a", "model_name": "m" }), 400, "leave"),
        (json!({ "block_hashes": ["x"], "model_name": "m" }), 422, "64-bit"),
    ];
    for (request, status, says) in cases {
        let (answered, error) = ask(request.clone());
        assert!(answered == status && error.contains(says), "{request} {answered} {error}");
    }
}
