//! Hashes computed as vLLM computes them equal the ones that vLLM computed.

use flash_indexer_core::SequenceHash;
use flash_indexer_test_support::{from_hex, shared_dir};
use flash_indexer_wire::Sha256CborChain;

fn numbers<T: TryFrom<u64>>(value: &serde_json::Value) -> Vec<T> {
    let numbers = value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number"));
    numbers.map(|number| T::try_from(number).ok().expect("in range")).collect()
}

#[test]
fn a_published_event_is_reproduced() {
    let Some(shared) = shared_dir() else { return };
    let text = std::fs::read_to_string(shared.join("data/vectors/vllm-kv_event_base.json")).expect("the vector");
    let event: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let tokens: Vec<u32> = numbers(&event["token_ids"]);
    let mut chain = Sha256CborChain::new("42");
    let mut parent = None;
    let mut hashes = Vec::new();
    for block in tokens.chunks_exact(16) {
        let hash = chain.next(parent.as_ref(), block);
        hashes.push(hash.sequence_hash());
        parent = Some(hash);
    }
    assert_eq!(hashes[0], SequenceHash(17705339885301241772));
    let expected: Vec<u64> = numbers(&event["block_hashes"]);
    assert_eq!(hashes, expected.into_iter().map(SequenceHash).collect::<Vec<_>>());
}

#[test]
fn hashes_recorded_inside_an_engine_are_reproduced() {
    let Some(shared) = shared_dir() else { return };
    let text = std::fs::read_to_string(shared.join("data/vectors/engine-hashes.json")).expect("the vectors");
    let vectors: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut checked = 0;
    for case in vectors["vllm"].as_array().expect("cases") {
        let plain = case["lora_name"].is_null() && case["cache_salt"].is_null() && case["mm"].is_null();
        let (Some(seed), true, "sha256_cbor") =
            (case["PYTHONHASHSEED"].as_str(), plain, case["algo"].as_str().expect("algo"))
        else {
            continue;
        };
        let tokens: Vec<u32> = numbers(&case["token_ids"]);
        let size = case["block_size"].as_u64().expect("a block size") as usize;
        let mut chain = Sha256CborChain::new(seed);
        let mut parent = None;
        for (tokens, block) in tokens.chunks_exact(size).zip(case["blocks"].as_array().expect("blocks")) {
            let hash = chain.next(parent.as_ref(), tokens);
            assert_eq!(hash.0.as_slice(), from_hex(block["hash_hex"].as_str().expect("hex")));
            assert_eq!(Some(hash.sequence_hash().0), block["event_int"].as_u64());
            parent = Some(hash);
            checked += 1;
        }
    }
    assert!(checked > 0, "no case was checked");
}
