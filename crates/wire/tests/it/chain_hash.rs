//! Block hashes computed by vLLM's algorithm equal the recorded hashes of vLLM.

use std::path::Path;

use flash_indexer_core::SequenceHash;
use flash_indexer_test_support::{from_hex, testdata};
use flash_indexer_wire::{EngineBlockHash, HashedKey, Sha256CborChain};
use serde_json::Value;

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let numbers = value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number"));
    numbers.map(|number| T::try_from(number).ok().expect("in range")).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn check_event(data: &Path, file: &str, keys: &[HashedKey<'_>], first: u64) {
    let vector = std::fs::read_to_string(data.join("vectors").join(file)).expect("the vector");
    let event: Value = serde_json::from_str(&vector).expect("JSON");
    let tokens: Vec<u32> = numbers(&event["token_ids"]);
    let mut chain = Sha256CborChain::new("42");
    let mut parent = None;
    let mut hashes = Vec::new();
    for block in tokens.chunks_exact(16) {
        let hash = chain.next_with(parent.as_ref(), block, keys);
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
    check_event(&data, "vllm-kv_event_base.json", &[], 17705339885301241772);
    check_event(&data, "vllm-kv_event_lora.json", &[HashedKey::Text("Alice")], 9643097150530800701);
}

fn hashed_keys(keys: &Value) -> Vec<HashedKey<'_>> {
    let offset = |offset: &Value| offset.as_i64().expect("an offset");
    let keys = keys.as_array().into_iter().flatten().map(|key| match key.as_array().map(Vec::as_slice) {
        None => HashedKey::Text(text(key)),
        Some([id, at]) if at.is_i64() => HashedKey::BareItem { id: text(id), offset: offset(at) },
        Some([tag, name, path]) if tag == "lora" => HashedKey::Lora { name: text(name), path: text(path) },
        Some([tag, id, at]) if tag == "mm" => HashedKey::Item { id: text(id), offset: offset(at) },
        Some([tag, salt]) if tag == "cache_salt" => HashedKey::Salt(text(salt)),
        Some(other) => panic!("an unknown key: {other:?}"),
    });
    keys.collect()
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
            let keys = hashed_keys(&block["extra_keys_in_hash"]);
            let hash = chain.next_with(parent.as_ref(), tokens, &keys);
            assert_eq!(hash.0.as_slice(), from_hex(text(&block["hash_hex"])), "{}", case["case"]);
            assert_eq!(Some(hash.sequence_hash().0), block["event_int"].as_u64());
            parent = Some(hash);
            *if keys.is_empty() { &mut plain } else { &mut keyed } += 1;
        }
    }
    assert!(plain > 0 && keyed > 0, "{plain} plain blocks and {keyed} with extra keys were checked");
}
