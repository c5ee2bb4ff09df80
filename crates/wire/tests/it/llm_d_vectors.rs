//! Topics, events and hashes decode to llm-d's own test vectors; each difference is listed here with its reason.

use flash_indexer_test_support::{from_hex, testdata};
use flash_indexer_wire::{EngineEvent, EventError, ExtraKey, TokenIds, TopicNames, decode_batch};
use serde_json::{Value as Json, json};

fn vectors(section: &str) -> Option<Json> {
    let path = testdata().join("vectors/llm-d.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all: Json = serde_json::from_str(&text).expect("JSON");
    Some(all[section]["cases"].clone()).filter(Json::is_array)
}

fn cases(section: &str) -> Vec<Json> {
    vectors(section).and_then(|cases| cases.as_array().cloned()).unwrap_or_default()
}

#[test]
fn topics_name_the_same_pods_and_models() {
    for case in cases("topic_parse") {
        let topic = case["topic"].as_str().expect("a topic");
        let names = TopicNames::of(topic.as_bytes()).expect("text");
        let model = names.model.unwrap_or_default();
        assert_eq!((Some(names.pod), Some(model)), (case["pod"].as_str(), case["model"].as_str()), "{topic}");
    }
}

#[test]
fn a_topic_without_a_pod_name_is_one_name() {
    for topic in ["", "kv@", "kv@@model", "kv@pod@", "kv@pod", "KV@pod@model", "kv-events", "a@pod@model"] {
        let names = TopicNames::of(topic.as_bytes()).expect("text");
        assert_eq!(names, TopicNames { pod: topic, model: None });
    }
    assert!(TopicNames::of(b"kv@\xff@model").is_err());
}

fn packed(value: &Json) -> rmpv::Value {
    match value {
        Json::Null => rmpv::Value::Nil,
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => value.into(),
            (None, Some(value)) => value.into(),
            (None, None) => number.as_f64().expect("a number").into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => rmpv::Value::Array(items.iter().map(packed).collect()),
        Json::Object(fields) => {
            rmpv::Value::Map(fields.iter().map(|(key, value)| (key.as_str().into(), packed(value))).collect())
        }
    }
}

/// A payload with one event.
fn payload(event: rmpv::Value) -> Vec<u8> {
    let batch = rmpv::Value::Array(vec![1.5.into(), rmpv::Value::Array(vec![event]), rmpv::Value::Nil]);
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, &batch).expect("a Vec takes bytes");
    out
}

/// The event of a payload, with the vectors' field names.
fn read(payload: &[u8]) -> Result<Json, String> {
    let batch = decode_batch(payload).map_err(|error| error.reason().to_owned())?;
    let mut events: Vec<Result<EngineEvent<'_>, EventError>> = batch.events.collect();
    let event = events.pop().expect("one event").map_err(|error| error.to_string())?;
    Ok(match event {
        EngineEvent::Cleared => json!({ "ok": true }),
        event @ (EngineEvent::ClearedScope(_) | EngineEvent::Transferred(_) | EngineEvent::Inactive(_)) => {
            panic!("no vector has this event: {event:?}")
        }
        EngineEvent::Removed(removed) => json!({
            "hashes": removed.block_hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
            "tier": removed.medium.unwrap_or_default(),
            "group_idx": removed.group_idx,
        }),
        EngineEvent::Stored(stored) => json!({
            "ok": true,
            "hashes": stored.block_hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
            "parent": stored.parent_block_hash.map(|hash| hash.0),
            "tokens": match &stored.token_ids {
                TokenIds::Plain(tokens) => tokens.clone(),
                tokens => panic!("plain tokens were sent: {tokens:?}"),
            },
            "tier": stored.medium.unwrap_or_default(),
            "lora_id": stored.lora_id,
            "lora_name": stored.lora_name,
            "extra_keys": stored.extra_keys.as_ref().map(|blocks| blocks.iter().map(|keys| {
                keys.as_ref().map(|keys| keys.iter().map(|key| match key {
                    ExtraKey::Text(text) => *text,
                    other => panic!("not a text: {other:?}"),
                }).collect::<Vec<_>>())
            }).collect::<Vec<_>>()),
            "group_idx": stored.group.idx,
            "kind": stored.group.kind,
            "window": stored.group.sliding_window,
        }),
    })
}

/// Inputs that llm-d rejects and this crate accepts, with the reason.
const BETTER: [(&str, &str); 2] = [
    ("extra_keys[0] has invalid type", "a bare text is a salt or an item, which some releases send"),
    ("kv_cache_spec_sliding_window", "the size of the window is ignored, and the event is valid"),
];

#[test]
fn events_decode_to_the_expected_fields() {
    let (mut errors, mut better) = (0, 0);
    for case in cases("wire_events") {
        let bytes = match case["raw_hex"].as_str() {
            Some(hex) => from_hex(hex),
            None => payload(packed(&case["event"])),
        };
        let event = read(&bytes);
        match &case["error"] {
            Json::Null => {
                let event = event.unwrap_or_else(|error| panic!("{case}: {error}"));
                for (field, expected) in case.as_object().expect("an object") {
                    if field != "event" && field != "note" {
                        assert_eq!(event[field], *expected, "{field} of {case}");
                    }
                }
            }
            error if BETTER.iter().any(|(known, _)| *error == json!(known)) => {
                assert!(event.is_ok(), "{case}: {event:?}");
                better += 1;
            }
            _ => {
                assert!(event.is_err(), "{case}: {event:?}");
                errors += 1;
            }
        }
    }
    if vectors("wire_events").is_some() {
        assert_eq!((errors, better), (7, BETTER.len()));
    }
}

#[test]
fn an_unknown_event_does_not_affect_its_batch() {
    let clear = || rmpv::Value::Array(vec!["AllBlocksCleared".into()]);
    let unknown = rmpv::Value::Array(vec!["UnknownEventType".into(), "some".into(), "data".into()]);
    let batch = rmpv::Value::Array(vec![1.5.into(), rmpv::Value::Array(vec![clear(), unknown, clear()])]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &batch).expect("a Vec takes bytes");
    let events: Vec<_> = decode_batch(&bytes).expect("a batch").events.collect();
    assert_eq!((&events[0], &events[2]), (&Ok(EngineEvent::Cleared), &Ok(EngineEvent::Cleared)));
    assert!(matches!(&events[1], Err(EventError::UnknownType { .. })));
}

/// The value of a vector's notation: `u64 42`, `i64 -1`, `bytes 01ff` or `str 'not a hash'`.
fn hash_value(text: &str) -> rmpv::Value {
    let (kind, value) = text.split_once(' ').expect("a kind and a value");
    let value = value.trim_matches('\'');
    match kind {
        "u64" => value.parse::<u64>().expect("a number").into(),
        "i64" => value.parse::<i64>().expect("a number").into(),
        "bytes" => rmpv::Value::Binary(from_hex(value)),
        "str" => value.into(),
        other => panic!("unknown kind {other}"),
    }
}

fn removal(hash: rmpv::Value) -> Vec<u8> {
    payload(rmpv::Value::Array(vec!["BlockRemoved".into(), rmpv::Value::Array(vec![hash])]))
}

#[test]
fn hashes_decode_to_the_expected_numbers() {
    for case in cases("engine_hash_decode") {
        let (given, expected) = (case["in"].as_str().expect("a text"), case["out"].as_str().expect("a text"));
        match (read(&removal(hash_value(given))), expected.parse::<u64>()) {
            (Ok(event), Ok(expected)) => assert_eq!(event["hashes"], json!([expected]), "{given}"),
            (Err(_), Err(_)) => {}
            (read, _) => panic!("{given}: {read:?} and not {expected}"),
        }
    }
}

#[test]
fn hashes_in_a_short_encoding_are_accepted_where_llm_d_rejects_the_batch() {
    for (hash, bytes) in [(5_u64, 1), (200, 2), (60_000, 3), (4_000_000_000, 5), (u64::MAX, 9)] {
        let mut written = Vec::new();
        rmpv::encode::write_value(&mut written, &hash.into()).expect("a Vec takes bytes");
        assert_eq!(written.len(), bytes, "the shortest form");
        assert_eq!(read(&removal(hash.into())).expect("an event")["hashes"], json!([hash]));
    }
}
