//! Block hashes computed by vLLM's algorithm equal the recorded hashes of vLLM.

use std::path::Path;

use flash_indexer_core::SequenceHash;
use flash_indexer_test_support::{from_hex, testdata};
use flash_indexer_wire::{EngineBlockHash, Sha256CborChain, cbor};
use serde_json::{Value, json};

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let numbers = value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number"));
    numbers.map(|number| T::try_from(number).ok().expect("in range")).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn check_event(data: &Path, file: &str, keys: &Value, first: u64) {
    let vector = std::fs::read_to_string(data.join("vectors").join(file)).expect("the vector");
    let event: Value = serde_json::from_str(&vector).expect("JSON");
    let tokens: Vec<u32> = numbers(&event["token_ids"]);
    let (mut chain, keys) = (Sha256CborChain::new("42"), encoded(keys));
    let mut parent = None;
    let mut hashes = Vec::new();
    for block in tokens.chunks_exact(16) {
        let hash = chain.next_with(parent.as_ref(), block, &keys);
        hashes.push(hash.sequence_hash());
        parent = Some(hash);
    }
    assert_eq!(hashes[0], SequenceHash(first));
    let expected: Vec<u64> = numbers(&event["block_hashes"]);
    assert_eq!(hashes, expected.into_iter().map(SequenceHash).collect::<Vec<_>>());
}

#[test]
fn published_events_are_reproduced() {
    let data = testdata();
    check_event(&data, "vllm-kv_event_base.json", &Value::Null, 17705339885301241772);
    check_event(&data, "vllm-kv_event_lora.json", &json!(["Alice"]), 9643097150530800701);
}

/// A block's extra keys in CBOR.
fn encoded(keys: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match keys {
        Value::Null => cbor::null(&mut out),
        Value::String(text) => cbor::text(&mut out, text),
        Value::Array(items) => {
            cbor::array(&mut out, items.len());
            items.iter().for_each(|item| out.extend(encoded(item)));
        }
        other => cbor::integer(&mut out, other.as_i64().expect("an offset")),
    }
    out
}

#[test]
fn hashes_recorded_inside_an_engine_are_reproduced() {
    let data = testdata();
    let vectors = std::fs::read_to_string(data.join("vectors/engine-hashes.json")).expect("the vectors");
    let vectors: Value = serde_json::from_str(&vectors).expect("JSON");
    let (mut plain, mut keyed) = (0, 0);
    for case in vectors["vllm"].as_array().expect("cases").iter().filter(|case| case["algo"] == "sha256_cbor") {
        let mut chain = match case["PYTHONHASHSEED"].as_str() {
            Some(seed) => Sha256CborChain::new(seed),
            None => {
                let start = from_hex(text(&case["none_hash_hex"]));
                Sha256CborChain::from_start(EngineBlockHash(start.try_into().expect("32 bytes")))
            }
        };
        let tokens: Vec<u32> = numbers(&case["token_ids"]);
        let size = case["block_size"].as_u64().expect("a block size") as usize;
        let mut parent = None;
        for (tokens, block) in tokens.chunks_exact(size).zip(case["blocks"].as_array().expect("blocks")) {
            let keys = &block["extra_keys_in_hash"];
            let hash = chain.next_with(parent.as_ref(), tokens, &encoded(keys));
            assert_eq!(hash.0.as_slice(), from_hex(text(&block["hash_hex"])), "{}", case["case"]);
            assert_eq!(Some(hash.sequence_hash().0), block["event_int"].as_u64());
            parent = Some(hash);
            *if keys.is_null() { &mut plain } else { &mut keyed } += 1;
        }
    }
    assert!(plain > 0 && keyed > 0, "{plain} plain blocks and {keyed} with extra keys were checked");
}
