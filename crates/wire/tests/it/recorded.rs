//! Every recorded or published message decodes to the values that an independent MessagePack reader finds in it.
//! Messages of vLLM are encoded again byte for byte.

use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_test_support::{from_hex, json_lines, testdata};
use flash_indexer_wire::{Encoding, EngineEvent, ExtraKey, LiveMessage, TokenIds, decode_batch, encode_batch};
use rmpv::Value;

/// Positions of the fields in array events.
const STORED: [&str; 15] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "lookahead_token_ids",
];
const REMOVED: [&str; 5] = ["block_hashes", "medium", "group_idx", "locality", "ownership"];

/// A field of an event, read by the independent reader; nil if it is absent.
fn field(event: &Value, name: &str) -> Value {
    let found = match event {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value),
        Value::Array(items) => {
            let names: &[&str] = if items[0].as_str() == Some("BlockStored") { &STORED } else { &REMOVED };
            names.iter().position(|&known| known == name).and_then(|at| items.get(at + 1))
        }
        other => panic!("not an event: {other}"),
    };
    found.cloned().unwrap_or(Value::Nil)
}

fn hash(value: &Value) -> Option<SequenceHash> {
    match value {
        Value::Nil => None,
        Value::Binary(bytes) => {
            Some(SequenceHash(u64::from_be_bytes(bytes[bytes.len() - 8..].try_into().expect("8 bytes"))))
        }
        Value::Integer(number) => Some(SequenceHash(
            number.as_u64().unwrap_or_else(|| number.as_i64().expect("an integer of 64 bits").cast_unsigned()),
        )),
        other => panic!("not a hash: {other}"),
    }
}

fn hashes(event: &Value) -> Vec<SequenceHash> {
    let list = field(event, "block_hashes");
    list.as_array().expect("a list of hashes").iter().map(|value| hash(value).expect("a hash")).collect()
}

fn text(event: &Value, name: &str) -> Option<String> {
    field(event, name).as_str().map(str::to_owned)
}

fn number(event: &Value, name: &str) -> Option<u32> {
    field(event, name).as_u64().map(|value| u32::try_from(value).expect("a small number"))
}

fn some(value: Value) -> Option<Value> {
    Some(value).filter(|value| !value.is_nil())
}

fn tokens_as_value(tokens: &[u32]) -> Value {
    Value::Array(tokens.iter().map(|&token| token.into()).collect())
}

/// Extra keys in the independent reader's form.
fn keys_as_values(blocks: &[Option<Vec<ExtraKey<'_>>>]) -> Value {
    let key = |key: &ExtraKey<'_>| match *key {
        ExtraKey::Text(text) => Value::from(text),
        ExtraKey::Item { id, offset } => Value::Array(vec![id.into(), offset.into()]),
        other => panic!("no recorded engine sends {other:?}"),
    };
    let block = |keys: &Option<Vec<ExtraKey<'_>>>| {
        keys.as_ref().map_or(Value::Nil, |keys| Value::Array(keys.iter().map(key).collect()))
    };
    Value::Array(blocks.iter().map(block).collect())
}

/// Decodes one payload and compares every field; returns the number of events.
fn check_payload(payload: &[u8]) -> usize {
    let batch = decode_batch(payload).expect("a real engine's batch");
    let expected = rmpv::decode::read_value(&mut &payload[..]).expect("MessagePack");
    let parts = expected.as_array().expect("an array batch");
    assert_eq!(batch.timestamp, parts[0].as_f64().expect("a timestamp"));
    let rank = parts.get(2).and_then(Value::as_u64).map(|rank| DpRank(rank as u32));
    assert_eq!(batch.dp_rank, rank);

    let expected = parts[1].as_array().expect("a list of events");
    let mut events_of_batch = batch.events;
    let events: Vec<_> = events_of_batch.by_ref().collect();
    assert_eq!(events.len(), expected.len());
    assert_eq!(events_of_batch.take_unknown_fields(), [], "a recorded engine has no unknown fields");
    for (event, expected) in events.iter().zip(expected) {
        match event.as_ref().unwrap_or_else(|error| panic!("{error}: {expected}")) {
            EngineEvent::Stored(event) => {
                assert_eq!(event.block_hashes, hashes(expected));
                assert_eq!(event.parent_block_hash, hash(&field(expected, "parent_block_hash")));
                let tokens = field(expected, "token_ids");
                let tokens = tokens.as_array().expect("a list of tokens").iter();
                let tokens: Vec<u32> = tokens.map(|token| token.as_u64().expect("a token") as u32).collect();
                assert_eq!(event.token_ids, TokenIds::Plain(tokens));
                assert_eq!(Some(event.block_size), number(expected, "block_size"));
                assert_eq!(event.lora_id, field(expected, "lora_id").as_i64());
                assert_eq!(event.medium.map(str::to_owned), text(expected, "medium"));
                assert_eq!(event.lora_name.map(str::to_owned), text(expected, "lora_name"));
                assert_eq!(event.group.idx, number(expected, "group_idx"));
                assert_eq!(event.group.kind.map(str::to_owned), text(expected, "kv_cache_spec_kind"));
                assert_eq!(event.group.sliding_window, number(expected, "kv_cache_spec_sliding_window"));
                assert_eq!(event.session_id.map(str::to_owned), text(expected, "session_id"));
                assert_eq!(event.locality.map(str::to_owned), text(expected, "locality"));
                assert_eq!(event.ownership.map(str::to_owned), text(expected, "ownership"));
                let salt = match field(expected, "lora_name") {
                    Value::Map(pairs) => pairs[0].1.as_str().map(str::to_owned),
                    _ => text(expected, "cache_salt"),
                };
                assert_eq!(event.extra_keys.as_deref().map(keys_as_values), some(field(expected, "extra_keys")));
                let lookahead = event.lookahead_token_ids.as_ref();
                let lookahead =
                    lookahead.map(|blocks| Value::Array(blocks.iter().map(|block| tokens_as_value(block)).collect()));
                assert_eq!(lookahead, some(field(expected, "lookahead_token_ids")));
                assert_eq!(event.cache_salt.map(str::to_owned), salt);
            }
            EngineEvent::Removed(event) => {
                assert_eq!(event.block_hashes, hashes(expected));
                assert_eq!(event.medium.map(str::to_owned), text(expected, "medium"));
                assert_eq!(event.group_idx, number(expected, "group_idx"));
                assert_eq!(event.locality.map(str::to_owned), text(expected, "locality"));
                assert_eq!(event.ownership.map(str::to_owned), text(expected, "ownership"));
            }
            event @ (EngineEvent::ClearedScope(_) | EngineEvent::Transferred(_) | EngineEvent::Inactive(_)) => {
                panic!("no recorded engine publishes this: {event:?}")
            }
            EngineEvent::Cleared => assert!(expected.to_string().contains("AllBlocksCleared")),
        }
    }
    events.len()
}

fn frames(message: &serde_json::Value) -> Vec<Vec<u8>> {
    message.as_array().expect("frames").iter().map(|frame| from_hex(frame.as_str().expect("hex"))).collect()
}

#[test]
fn every_recorded_stream_decodes_completely() {
    let data = testdata();
    let mut streams = 0;
    for entry in std::fs::read_dir(data.join("engines")).expect("the folder of streams") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let (mut messages, mut events) = (0, 0);
        for line in json_lines(&path).iter().filter(|line| line["kind"] == "msg") {
            let frames = frames(&line["frames"]);
            let message = LiveMessage::from_frames(&frames).expect("live frames");
            events += check_payload(message.payload);
            messages += 1;
        }
        println!("{}: {messages} messages, {events} events", path.display());
        assert!(messages > 0 && events >= messages);
        streams += 1;
    }
    assert!(streams >= 6, "the recorded streams are there");
}

#[test]
fn recorded_vllm_batches_are_encoded_again_byte_for_byte() {
    let data = testdata();
    let streams = [
        ("vllm-0.23.0-llama-lora-arrayform", Encoding::Array),
        ("vllm-0.32.0-llama-lora", Encoding::Map),
        ("vllm-0.32.0-dp2", Encoding::Map),
        ("vllm-0.32.0-gemma3-hybrid", Encoding::Map),
    ];
    for (stream, encoding) in streams {
        for line in json_lines(&data.join(format!("engines/{stream}.jsonl"))) {
            if line["kind"] != "msg" {
                continue;
            }
            let frames = frames(&line["frames"]);
            assert!(encoded_again(&frames[2], encoding) == frames[2], "{stream}: {line}");
        }
    }
}

fn encoded_again(payload: &[u8], encoding: Encoding) -> Vec<u8> {
    let batch = decode_batch(payload).expect("a batch");
    let events: Vec<_> = batch.events.map(|event| event.expect("a valid event")).collect();
    encode_batch(batch.timestamp, &events, batch.dp_rank, encoding)
}

#[test]
fn batches_of_published_vllm_releases_are_encoded_again() {
    let data = testdata();
    let text = std::fs::read_to_string(data.join("vectors/golden-frames.json")).expect("the vectors");
    let releases: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let mut written = 0;
    for release in releases.iter().filter(|release| release["engine"] == "vllm") {
        let encoding = match (&release["array_like_events"], release["BlockStored_fields"].as_array().map(Vec::len)) {
            // From the fifteenth field on vLLM writes the length of a map in two bytes.
            (serde_json::Value::Bool(false), Some(fields)) if fields < 15 => Encoding::Map,
            (serde_json::Value::Bool(true), Some(11)) => Encoding::Array,
            _ => continue, // other formats are only decoded
        };
        // The third message has hashes as bytes, which decode to integers.
        for message in &release["live"].as_array().expect("live messages")[..2] {
            let frames = frames(message);
            assert!(encoded_again(&frames[2], encoding) == frames[2], "{}", release["version"]);
            written += 1;
        }
    }
    assert!(written >= 10, "{written} messages");
}

#[test]
fn every_release_of_the_published_frames_decodes() {
    let data = testdata();
    let text = std::fs::read_to_string(data.join("vectors/golden-frames.json")).expect("the vectors");
    let releases: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    assert!(releases.len() >= 20);
    for release in &releases {
        for message in release["live"].as_array().expect("live messages") {
            let frames = frames(message);
            let message = LiveMessage::from_frames(&frames).expect("live frames");
            assert_eq!(message.topic, b"kv@host@model");
            assert!(check_payload(message.payload) > 0, "{} {}", release["engine"], release["version"]);
        }
    }
}
