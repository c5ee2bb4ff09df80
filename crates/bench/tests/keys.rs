//! Token processors compute the keys of other systems. The test vectors are theirs.

use flash_indexer_bench::keys::{CborFnvKeys, RequestKey, TokenProcessor, Xxh3Keys, Xxh64Keys};
use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes, sequence_hashes};
use flash_indexer_test_support::testdata;
use flash_indexer_wire::{Sha256CborChain, cbor};
use serde_json::Value;

fn vectors() -> Value {
    let path = testdata().join("vectors/llm-d.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the vectors")).expect("JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn tokens(value: &Value) -> Vec<u32> {
    match value.as_str().and_then(|range| range.strip_prefix("range(")?.strip_suffix(')')?.split_once(',')) {
        Some((from, to)) => (from.parse().expect("a number")..to.parse().expect("a number")).collect(),
        None => list(value).iter().map(|token| token.as_u64().expect("a token") as u32).collect(),
    }
}

fn size(case: &Value) -> BlockSize {
    BlockSize::new(case["block_size"].as_u64().expect("a size") as u32).expect("not zero")
}

fn numbers(value: &Value) -> Vec<u64> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a hash"),
        None => text.parse().expect("a hash"),
    };
    list(value).iter().map(|key| number(text(key))).collect()
}

fn request_keys(value: &Value) -> Vec<RequestKey> {
    numbers(value).into_iter().map(RequestKey).collect()
}

fn seeded(case: &Value) -> CborFnvKeys {
    CborFnvKeys::new(text(&case["hash_seed"]), text(&case["model"]))
}

/// Whether the blocks of a vector have tokens only.
fn is_text(case: &&Value) -> bool {
    case["extra"].as_array().is_none_or(Vec::is_empty) && case["mm_placeholders"].is_null()
}

#[test]
fn cbor_fnv_keys_equal_the_vectors() {
    let vectors = vectors();
    let section = &vectors["cbor_fnv_request_keys"];
    let mut checked = 0;
    for case in list(&section["golden"]).iter().chain(list(&section["derived"])).filter(is_text) {
        let parent = case["parent"].as_str().map(|parent| RequestKey(parent.parse().expect("a hash")));
        let expected = request_keys(if case["keys"].is_null() { &case["keys_hex"] } else { &case["keys"] });
        let keys = seeded(case).keys(parent, &tokens(&case["tokens"]), size(case));
        assert_eq!(keys, expected, "{}", case["note"]);
        checked += keys.len();
    }
    assert!(checked > 15, "{checked} keys were checked");
}

#[test]
fn xxh64_keys_equal_the_vectors() {
    let vectors = vectors();
    let mut checked = 0;
    for case in list(&vectors["xxh64_request_keys"]["derived"]).iter().filter(is_text) {
        let mut keys = Xxh64Keys::new(text(&case["hash_seed"]), text(&case["model"]));
        assert_eq!(keys.keys(None, &tokens(&case["tokens"]), size(case)), request_keys(&case["keys"]));
        checked += 1;
    }
    assert!(checked > 0);
}

#[test]
fn vllm_keys_equal_the_vectors() {
    let vectors = vectors();
    let events = list(&vectors["vllm_sha256_cbor_engine_keys"]["events"]);
    for event in events {
        let mut extra = Vec::new();
        match event["extra_keys_used"].as_array() {
            None => cbor::null(&mut extra),
            Some(keys) => {
                cbor::array(&mut extra, keys.len());
                keys.iter().for_each(|key| cbor::text(&mut extra, text(key)));
            }
        }
        let (mut chain, mut parent) = (Sha256CborChain::new(text(&event["hash_seed_PYTHONHASHSEED"])), None);
        let tokens = tokens(&event["token_ids"]);
        let keys = tokens.chunks_exact(size(event).token_count()).map(|block| {
            parent = Some(chain.next_with(parent.as_ref(), block, &extra));
            parent.expect("a hash").sequence_hash().0
        });
        assert_eq!(keys.collect::<Vec<_>>(), numbers(&event["block_hashes"]));
    }
    assert_eq!(events.len(), 2);
}

#[test]
fn xxh3_keys_follow_the_contract_and_continue_from_a_parent() {
    let (size, all): (_, Vec<u32>) = (BlockSize::new(4).expect("not zero"), (1..=13).collect());
    let keys = Xxh3Keys::default().keys(None, &all, size);
    assert_eq!(keys, [14643705804678351452, 4945711292740353085, 12583592247330656132].map(SequenceHash));
    let space = HashVariant::new(Some("adapter-a"), Some("tenant-a"));
    let expected: Vec<_> = sequence_hashes(&local_hashes(space, &all, size, TokenWindow::Block)).collect();
    let mut processor = Xxh3Keys::new(space);
    assert_eq!(processor.keys(None, &all, size), expected);
    assert_eq!(processor.keys(Some(expected[0]), &all[4..], size), expected[1..]);
}
