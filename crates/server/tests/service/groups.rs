//! Engines of hybrid models, through real sockets: every cache group counts.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_test_support::{EventVector, event_vectors};
use flash_indexer_wire::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, TokenIds};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, Service, removed, store, tokens};

const WINDOW: CacheGroup<'static> = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(8) };
const FULL: CacheGroup<'static> = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };

fn full<'a>(parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group: FULL, ..store(parent, hashes) })
}

/// A store of some blocks in a group that skips others: its tokens do not identify them.
fn in_group<'a>(group: CacheGroup<'a>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group, token_ids: TokenIds::Plain(vec![7; 24]), ..store(None, hashes) })
}

fn removed_from<'a>(group: CacheGroup<'a>, hashes: &[u64]) -> EngineEvent<'a> {
    let block_hashes = hashes.iter().copied().map(SequenceHash).collect();
    EngineEvent::Removed(BlockRemoved { block_hashes, group_idx: group.idx, ..BlockRemoved::default() })
}

/// The part of instance 1 in the answer for a prompt that continues after these blocks.
fn ask(service: &Service, hashes: &[u64]) -> Value {
    let prompt = [tokens(hashes), vec![5]].concat();
    service.query(&json!({ "token_ids": prompt, "model_name": "m" }))["instances"]["1"].clone()
}

#[test]
fn a_prefix_counts_as_far_as_every_group_can_use_it() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let plain = Engine::registered(&service, json!(2), 0, &json!({}));
    let six = [1, 2, 3, 4, 5, 6];
    plain.say(&service, 0, &[EngineEvent::Stored(store(None, &six))]);
    engine.say(&service, 0, &[in_group(WINDOW, &[3, 4, 5, 6]), full(None, &six)]);
    assert_eq!(
        ask(&service, &six),
        json!({
            "longest_matched": 24, "gpu": 24, "dp": { "0": 24 }, "cpu": 24, "disk": 24, "trust": "exact",
        })
    );
    engine.say(&service, 1, &[removed_from(WINDOW, &[6])]);
    assert_eq!(ask(&service, &six)["gpu"], json!(20));
    assert_eq!(ask(&service, &[1, 2, 3])["gpu"], json!(0), "block 2 lies behind the window");
    engine.say(&service, 2, &[removed_from(FULL, &[5])]);
    assert_eq!(ask(&service, &six)["gpu"], json!(16));
    engine.say(&service, 3, &[removed_from(WINDOW, &[4])]);
    assert_eq!(ask(&service, &six)["gpu"], json!(0));

    let answer = service.query(&json!({ "token_ids": tokens(&six), "model_name": "m" }));
    assert_eq!(answer["tree_sizes"], json!({ "1": { "0": 5 }, "2": { "0": 6 } }));
    assert_eq!(answer["scores"]["2"]["0"], json!(24), "an engine with one group beside it");
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})));
}

#[test]
fn slower_tiers_count_in_every_group() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[in_group(WINDOW, &[3, 4]), full(None, &[1, 2, 3, 4])]);
    let offloaded = |group: CacheGroup<'static>, hashes| {
        let group = CacheGroup { idx: group.idx, ..CacheGroup::default() };
        let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, hashes) };
        EngineEvent::Stored(BlockStored { medium: Some("CPU"), group, ..tokenless })
    };
    let evicted = [removed_from(WINDOW, &[3, 4]), removed_from(FULL, &[3, 4])];
    let offload = [offloaded(WINDOW, &[3, 4]), offloaded(FULL, &[1, 2, 3, 4])];
    engine.say(&service, 1, &[&offload[..], &evicted[..]].concat());
    let answer = ask(&service, &[1, 2, 3, 4]);
    assert_eq!((&answer["gpu"], &answer["cpu"], &answer["trust"]), (&json!(0), &json!(16), &json!("exact")));
}

#[test]
fn an_offload_that_is_told_after_the_eviction_still_counts() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let offloaded = |hashes| {
        let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, hashes) };
        EngineEvent::Stored(BlockStored { medium: Some("CPU"), ..tokenless })
    };
    engine.say(&service, 0, &[EngineEvent::Stored(store(None, &[1])), offloaded(&[1])]);
    engine.say(&service, 1, &[EngineEvent::Stored(store(Some(1), &[2, 3]))]);
    engine.say(&service, 2, &[removed(&[3, 2]), offloaded(&[2])]);
    engine.say(&service, 3, &[offloaded(&[3])]);
    let answer = ask(&service, &[1, 2, 3]);
    assert_eq!((&answer["gpu"], &answer["cpu"], &answer["trust"]), (&json!(4), &json!(12), &json!("exact")));
}

#[test]
fn a_group_that_is_not_understood_is_said_and_the_others_count() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let chunks = CacheGroup { idx: Some(2), kind: Some("chunked_local_attention"), sliding_window: None };
    engine.say(&service, 0, &[in_group(WINDOW, &[2, 3]), full(None, &[1, 2, 3]), in_group(chunks, &[3])]);
    let answer = ask(&service, &[1, 2, 3]);
    assert_eq!((&answer["gpu"], &answer["trust"]), (&json!(12), &json!("degraded")));
    let listener = service.listener(&json!(1), 0);
    assert_eq!(listener["rejected"], json!({ "hybrid_group": 1 }));
    let why = listener["last_error"].as_str().expect("a reason");
    assert!(why.contains("chunked_local_attention"), "{why}");
    engine.say(&service, 1, &[EngineEvent::Cleared]);
    assert_eq!(ask(&service, &[1])["trust"], json!("degraded"), "it still keeps such a group");
}

#[test]
fn an_engine_that_tells_no_content_is_not_believed() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[in_group(WINDOW, &[1, 2])]);
    let answer = ask(&service, &[1, 2]);
    assert_eq!((&answer["gpu"], &answer["trust"]), (&json!(0), &json!("degraded")));
}

#[test]
fn nothing_of_a_group_outlives_its_rank() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let other = Engine::registered(&service, json!(2), 0, &json!({}));
    other.say(&service, 0, &[]);
    let both = [in_group(WINDOW, &[2, 3]), full(None, &[1, 2, 3])];
    engine.say(&service, 0, &both);
    engine.say(&service, 1, &[EngineEvent::Cleared]);
    engine.say(&service, 2, &[full(None, &[1, 2, 3])]);
    let answer = ask(&service, &[1, 2, 3]);
    assert_eq!((&answer["gpu"], &answer["trust"]), (&json!(0), &json!("exact")), "a clear empties every group");

    // The same engine with a model of one group: it has restarted.
    engine.say(&service, 0, &[EngineEvent::Stored(store(None, &[1, 2, 3]))]);
    assert_eq!(ask(&service, &[1, 2, 3])["gpu"], json!(3 * BLOCK_TOKENS));

    engine.say(&service, 1, &both);
    let unregister = json!({ "instance_id": 1, "model_name": "m" });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[EngineEvent::Stored(store(None, &[1]))]);
    assert_eq!(ask(&service, &[1, 2, 3])["gpu"], json!(BLOCK_TOKENS));
}

/// Blocks of full attention of a model like Gemma 4: 16 tokens. Block *h* has the tokens 100·h, 100·h + 1, ….
const FULL_TOKENS: u32 = 16;

fn prompt_of(blocks: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    blocks.flat_map(|block| (0..FULL_TOKENS).map(move |at| 100 * block + at)).collect()
}

/// A store of full attention: blocks 1 to `last` of 16 tokens.
fn full_of_16<'a>(last: u32) -> EngineEvent<'a> {
    let block_hashes = (1..=u64::from(last)).map(SequenceHash).collect();
    let token_ids = TokenIds::Plain(prompt_of(1..=last));
    EngineEvent::Stored(BlockStored { block_hashes, token_ids, block_size: 16, group: FULL, ..store(None, &[]) })
}

/// A store of the window: blocks of 32 tokens, which end with these blocks of full attention.
fn window_of_32<'a>(ends: &[u32]) -> EngineEvent<'a> {
    let block_hashes = ends.iter().map(|&end| SequenceHash(end.into())).collect();
    let token_ids = TokenIds::Plain(ends.iter().flat_map(|&end| prompt_of(end - 1..=end)).collect());
    let group = CacheGroup { sliding_window: Some(65), ..WINDOW };
    EngineEvent::Stored(BlockStored { block_hashes, token_ids, block_size: 32, group, ..store(None, &[]) })
}

/// Usable tokens of instance 1 for the first `blocks` blocks and a token more, with the answer's trust.
fn usable_of_16(service: &Service, blocks: u32) -> (Value, Value) {
    let prompt = [prompt_of(1..=blocks), vec![5]].concat();
    let answer = service.query(&json!({ "token_ids": prompt, "model_name": "m" }))["instances"]["1"].clone();
    (answer["gpu"].clone(), answer["trust"].clone())
}

#[test]
fn a_window_with_larger_blocks_counts_in_tokens() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({ "block_size": FULL_TOKENS }));
    engine.say(&service, 0, &[full_of_16(9), window_of_32(&[4, 6, 8])]);
    let usable = |blocks| {
        let (tokens, trust) = usable_of_16(&service, blocks);
        assert_eq!(trust, json!("exact"));
        tokens.as_u64().expect("tokens")
    };
    assert_eq!([9, 8, 7, 6].map(usable), [128, 128, 96, 96], "a prefix ends with a block of the window");
    assert_eq!([5, 4, 1].map(usable), [0, 0, 0], "the window covers two blocks, and the one before 4 is not held");
    let exact = service.query(&json!({ "token_ids": prompt_of(1..=8), "model_name": "m" }));
    assert_eq!(exact["instances"]["1"]["gpu"], json!(96), "the engine computes the last token, with its whole block");
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})));

    let ask = |blocks| {
        let prompt = [prompt_of(1..=blocks), vec![5]].concat();
        service.post("/explain", &json!({ "token_ids": prompt, "model_name": "m" })).1["ranks"][0].clone()
    };
    let rank = ask(7);
    let end = &rank["ends"][0];
    assert_eq!((&rank["gpu"], &end["position"], &end["reason"]), (&json!(96), &json!(6), &json!("cache_groups")));
    let group = json!({
        "group": 0, "needs": { "last_blocks": 2 }, "block_size": 32, "missing_blocks": 0, "missing": [],
    });
    assert_eq!(end["cache_groups"], json!([group]));
    let why = end["why"].as_str().expect("a reason");
    assert!(why.contains("(its blocks span 2 of these), uses at most the first 6, and lacks none"), "{why}");

    engine.say(&service, 1, &[removed_from(WINDOW, &[8])]);
    assert_eq!([9, 8, 7].map(usable), [96, 96, 96]);
    let end = ask(8)["ends"][0].clone();
    assert_eq!((&end["position"], &end["wanted_blocks"]), (&json!(6), &json!(8)));
    assert_eq!(end["cache_groups"][0]["missing_blocks"], json!(1));
    assert_eq!(end["cache_groups"][0]["missing"][0]["position"], json!(7));
    engine.say(&service, 2, &[removed_from(FULL, &[6])]);
    assert_eq!(usable(9), 0);
}

#[test]
fn a_window_of_a_size_that_does_not_fit_degrades_the_rank() {
    for block_size in [12, 24] {
        let service = Service::start();
        let engine = Engine::registered(&service, json!(1), 0, &json!({ "block_size": FULL_TOKENS }));
        let EngineEvent::Stored(window) = window_of_32(&[2]) else { panic!("a store") };
        let other = EngineEvent::Stored(BlockStored { block_size, ..window });
        engine.say(&service, 0, &[full_of_16(2), other]);
        assert_eq!(usable_of_16(&service, 2), (json!(32), json!("degraded")));
        let listener = service.listener(&json!(1), 0);
        assert_eq!(listener["rejected"], json!({ "block_size_mismatch": 1 }));
        let why = listener["last_error"].as_str().expect("a reason");
        assert!(why.contains(&format!("cache group 0 has blocks of {block_size} tokens")), "{why}");
    }
}

/// A written vector in every encoding.
fn vectors(name: &str) -> Vec<EventVector> {
    let found: Vec<_> = event_vectors().into_iter().filter(|vector| vector.name == name).collect();
    assert_eq!(found.len(), 2, "maps and arrays");
    found
}

/// Publishes a message of a vector, and waits until it is applied.
fn publish(engine: &Engine, service: &Service, vector: &EventVector, sequence: u64) {
    let payload = &vector.messages[sequence as usize].payload;
    engine.publisher.publish(sequence, payload).expect("published");
    engine.wait(service, "a message", |listener| listener["last_seq"] == json!(sequence));
}

/// The part of instance 1 in the answer for the tokens 0, 1, 2, …, some of which are in a vector.
fn of_tokens(service: &Service, count: u32) -> Value {
    let prompt: Vec<u32> = (0..count).collect();
    service.query(&json!({ "token_ids": prompt, "model_name": "m" }))["instances"]["1"].clone()
}

#[test]
fn windows_with_smaller_blocks_count_at_the_ends_of_full_attention() {
    for vector in vectors("cache groups with the sizes of DeepSeek-V4") {
        let service = Service::start();
        let engine = Engine::registered(&service, json!(1), 0, &json!({ "block_size": 256 }));
        let usable = |tokens| of_tokens(&service, tokens)["gpu"].as_u64().expect("tokens");
        publish(&engine, &service, &vector, 0);
        assert_eq!([1_100, 1_024, 1_023, 513, 300].map(usable), [1_024, 1_024, 768, 512, 256], "{}", vector.encoding);
        assert_eq!(of_tokens(&service, 1_100)["trust"], json!("exact"));
        publish(&engine, &service, &vector, 1);
        assert_eq!(usable(1_100), 768, "a window of 8 tokens lacks the last block but one");

        let prompt: Vec<u32> = (0..1_100).collect();
        let explained = service.post("/explain", &json!({ "token_ids": prompt, "model_name": "m" })).1;
        let end = &explained["ranks"][0]["ends"][0];
        let missing = json!([{ "position": 3, "part": 62, "local_hash": null, "sequence_hash": null }]);
        let group = json!({
            "group": 3, "needs": { "last_blocks": 2 }, "block_size": 4, "missing_blocks": 1, "missing": missing,
        });
        assert_eq!((&end["reason"], &end["cache_groups"]), (&json!("cache_groups"), &json!([group])));
        let why = end["why"].as_str().expect("a reason");
        assert!(why.contains("the last 2 (each of these blocks is 64 of its own), lacks 1: part 62 of 3"), "{why}");

        publish(&engine, &service, &vector, 2);
        assert_eq!(usable(1_100), 512);
        let hashes = hashes_of_256(&prompt);
        let by_hash = service.post("/query_by_hash", &json!({ "block_hashes": hashes, "model_name": "m" }));
        assert_eq!((by_hash.0, &by_hash.1["instances"]["1"]["gpu"]), (200, &json!(512)), "links need no tokens");
        let listener = service.listener(&json!(1), 0);
        assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})));

        // A copy by sequence hash only, of a block that no store has published.
        let group = CacheGroup { idx: Some(1), ..CacheGroup::default() };
        let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, &[7]) };
        engine.say(&service, 3, &[EngineEvent::Stored(BlockStored { medium: Some("CPU"), group, ..tokenless })]);
        let listener = service.listener(&json!(1), 0);
        let expected = (json!("degraded"), json!({ "previous_block_unknown": 1 }));
        assert_eq!((listener["trust"].clone(), listener["rejected"].clone()), expected);
    }
}

/// Local hashes of a prompt's blocks of 256 tokens.
fn hashes_of_256(prompt: &[u32]) -> Vec<Value> {
    let block_size = BlockSize::new(256).expect("not zero");
    let hashes = local_hashes(HashVariant::default(), prompt, block_size, TokenWindow::Block);
    hashes.iter().map(|hash| json!(hash.0)).collect()
}

#[test]
fn partial_entries_are_left_out_and_the_rank_is_partial() {
    for vector in vectors("partial entries of a Mamba hybrid") {
        let service = Service::start();
        let engine = Engine::registered(&service, json!(1), 0, &json!({ "block_size": 2_096 }));
        let answer = |tokens| {
            let rank = of_tokens(&service, tokens);
            (rank["gpu"].clone(), rank["trust"].clone(), rank["partial"].clone())
        };
        publish(&engine, &service, &vector, 0);
        assert_eq!(answer(4_200), (json!(2_096), json!("exact"), Value::Null));
        publish(&engine, &service, &vector, 1);
        assert_eq!(answer(4_200), (json!(2_096), json!("exact"), json!(true)), "the engine can use 2,144 tokens");
        let listener = service.listener(&json!(1), 0);
        assert_eq!(listener["rejected"], json!({ "partial_entry": 2 }), "({})", vector.encoding);
        publish(&engine, &service, &vector, 2);
        assert_eq!(answer(4_200), (json!(4_192), json!("exact"), json!(true)), "whole blocks count");
        let (status, digest) = service.get("/digest?model_name=m&instance_id=1");
        assert_eq!(status, 409, "{digest}");
        engine.say(&service, 3, &[EngineEvent::Cleared]);
        assert_eq!(answer(4_200), (json!(0), json!("exact"), Value::Null));
    }
}
