//! Token processors compute the keys of other systems, by their test vectors.

use std::collections::BTreeMap;
use std::ops::Range;

use flash_indexer_bench::keys::{CborFnvKeys, Extra, RequestKey, RootKey, TokenProcessor, Xxh3Keys, Xxh64Keys};
use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes, sequence_hashes};
use flash_indexer_test_support::testdata;
use flash_indexer_wire::{EngineBlockHash, HashedKey, Sha256CborChain};
use serde_json::Value;

fn vectors() -> Option<Value> {
    let path = testdata().join("vectors/llm-d.json");
    Some(serde_json::from_str(&std::fs::read_to_string(path).expect("the vectors")).expect("JSON"))
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
    CborFnvKeys::new(RootKey::SeedAndModel { hash_seed: text(&case["hash_seed"]), model: text(&case["model"]) })
}

/// Extra keys of vectors that list items block by block.
fn listed<E>(extra: &Value, of: impl Fn(&[&str]) -> E) -> Vec<E> {
    let blocks = extra.as_array().into_iter().flatten();
    blocks.map(|items| of(&items.as_array().into_iter().flatten().map(text).collect::<Vec<_>>())).collect()
}

/// Items of vectors that give positions of placeholder tokens.
fn placed(case: &Value) -> Vec<(&str, Range<usize>)> {
    let at = |place: &Value, field: &str| place[field].as_u64().expect("a number") as usize;
    let places = case["mm_placeholders"].as_object().into_iter().flatten();
    let items = places.flat_map(|(kind, places)| list(places).iter().zip(list(&case["mm_hashes"][kind])));
    items.map(|(place, hash)| (text(hash), at(place, "offset")..at(place, "offset") + at(place, "length"))).collect()
}

#[test]
fn cbor_fnv_keys_equal_the_vectors() {
    let Some(vectors) = vectors() else { return };
    let section = &vectors["cbor_fnv_request_keys"];
    let mut checked = 0;
    for case in list(&section["golden"]).iter().chain(list(&section["derived"])) {
        let mut extras = listed(&case["extra"], |items| Extra::items(items.iter().copied()));
        extras.extend(extras_of(&placed(case), size(case), |items| Extra::items(items.iter().copied())));
        let parent = case["parent"].as_str().map(|parent| RequestKey(parent.parse().expect("a hash")));
        let expected = request_keys(if case["keys"].is_null() { &case["keys_hex"] } else { &case["keys"] });
        let keys = seeded(case).keys(parent, &tokens(&case["tokens"]), size(case), &extras);
        assert_eq!(keys, expected, "{}", case["note"]);
        checked += keys.len();
        let root = case["derived_intermediates"]["root"].as_str();
        assert!(root.is_none_or(|root| seeded(case).root() == RequestKey(root.parse().expect("a hash"))));
    }
    assert!(checked > 120, "{checked} keys were checked");
}

#[test]
fn the_older_root_key_hashes_the_seed_alone() {
    let Some(vectors) = vectors() else { return };
    let case = &vectors["legacy_cbor_fnv_dec2025"]["case"];
    let mut keys = CborFnvKeys::new(RootKey::Seed { hash_seed: text(&case["hash_seed"]) });
    assert_eq!(keys.keys(None, &tokens(&case["tokens"]), size(case), &[]), request_keys(&case["keys"]));
}

#[test]
fn xxh64_keys_equal_the_vectors() {
    let Some(vectors) = vectors() else { return };
    let cases = list(&vectors["xxh64_request_keys"]["derived"]);
    for case in cases {
        let items = listed(&case["extra"], |items| items.iter().map(|&item| item.to_owned()).collect());
        let mut keys = Xxh64Keys::new(text(&case["hash_seed"]), text(&case["model"]));
        assert_eq!(keys.keys(None, &tokens(&case["tokens"]), size(case), &items), request_keys(&case["keys"]));
    }
    assert!(!cases.is_empty());
}

#[test]
fn vllm_keys_equal_the_vectors() {
    let Some(vectors) = vectors() else { return };
    let events = list(&vectors["vllm_sha256_cbor_engine_keys"]["events"]);
    for event in events {
        let tokens = tokens(&event["token_ids"]);
        let extra: Vec<HashedKey<'_>> = match event["extra_keys_used"].as_array() {
            None => Vec::new(),
            Some(keys) => keys.iter().map(|key| HashedKey::Text(text(key))).collect(),
        };
        let mut chain = Sha256CborChain::new(text(&event["hash_seed_PYTHONHASHSEED"]));
        let extras = vec![extra; tokens.len() / size(event).token_count()];
        let keys = chain.keys(None, &tokens, size(event), &extras);
        let names: Vec<u64> = keys.iter().map(|key| EngineBlockHash::sequence_hash(key).0).collect();
        assert_eq!(names, numbers(&event["block_hashes"]));
    }
    assert_eq!(events.len(), 2);
}

#[test]
fn xxh3_keys_follow_the_contract_and_continue_from_a_parent() {
    let (size, all): (_, Vec<u32>) = (BlockSize::new(4).expect("not zero"), (1..=13).collect());
    let keys = Xxh3Keys::default().keys(None, &all, size, &[]);
    assert_eq!(keys, [14643705804678351452, 4945711292740353085, 12583592247330656132].map(SequenceHash));
    let space = HashVariant::new(Some("adapter-a"), Some("tenant-a"));
    let expected: Vec<_> = sequence_hashes(&local_hashes(space, &all, size, TokenWindow::Block)).collect();
    let mut processor = Xxh3Keys::new(space);
    assert_eq!(processor.keys(None, &all, size, &[]), expected);
    assert_eq!(processor.keys(Some(expected[0]), &all[4..], size, &[]), expected[1..]);
}

/// Computed by hand from the scheme: FNV-1a of the bytes in the comments.
#[test]
fn every_kind_of_extra_key_is_encoded_canonically() {
    let fnv = |bytes: &[u8]| {
        let start = 0xcbf2_9ce4_8422_2325_u64;
        RequestKey(bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
    };
    let mut keys = CborFnvKeys::new(RootKey::Seed { hash_seed: "" });
    // [parent 1, [2], …]
    let mut check = |extra: Extra, encoded: &[u8]| {
        let expected = fnv(&[&[0x83, 0x01, 0x81, 0x02], encoded].concat());
        assert_eq!(keys.next(Some(RequestKey(1)), &[2], &extra), expected, "{extra:?}");
    };
    check(Extra::Nil, &[0xf6]);
    check(Extra::items([]), &[0xf6]);
    check(Extra::Integer(42), &[0x18, 42]);
    check(Extra::Integer(-1), &[0x20]);
    check(Extra::Integer(-1000), &[0x39, 0x03, 0xe7]);
    check(Extra::Text("lora-v2".to_owned()), b"\x67lora-v2");
    let map = [("medium", Extra::Text("gpu".to_owned())), ("lora_id", Extra::Integer(42)), ("z", Extra::Nil)];
    let map = BTreeMap::from(map.map(|(key, value)| (key.to_owned(), value)));
    check(Extra::Map(map), b"\xa3\x61z\xf6\x66medium\x63gpu\x67lora_id\x18\x2a");
    check(Extra::items(["ab"]), b"\x81\xa1\x64Hash\x62ab");
}

/// For each block up to the last one with a placeholder token: the items whose placeholder tokens lie in it. An item is
/// given by the hash of its content and the positions of its tokens.
fn extras_of<'a, E>(
    items: &[(&'a str, Range<usize>)],
    block_size: BlockSize,
    extra: impl Fn(&[&'a str]) -> E,
) -> Vec<E> {
    let size = block_size.token_count();
    let blocks = items.iter().map(|(_, at)| at.end.div_ceil(size)).max().unwrap_or(0);
    let touching = |block: usize| {
        let tokens = block * size..(block + 1) * size;
        let touches = |at: &Range<usize>| !at.is_empty() && at.start < tokens.end && tokens.start < at.end;
        items.iter().filter(|(_, at)| touches(at)).map(|&(hash, _)| hash).collect::<Vec<_>>()
    };
    (0..blocks).map(|block| extra(&touching(block))).collect()
}
