//! Written vectors of engine events: their two forms agree, and the decoder decodes all their fields.

use flash_indexer_test_support::event_vectors;
use flash_indexer_wire::{EngineAdapter, EngineEvent, decode_batch};
use rmpv::Value;

use crate::messages::check_batch;

/// A JSON value as MessagePack has it.
fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Bool(value) => Value::Boolean(*value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().expect("a number").into(),
        },
        serde_json::Value::String(text) => text.as_str().into(),
        serde_json::Value::Array(values) => Value::Array(values.iter().map(value).collect()),
        serde_json::Value::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, json)| (key.as_str().into(), value(json))).collect())
        }
    }
}

/// The pairs of every map in order of their keys.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect()),
        Value::Map(mut pairs) => {
            pairs.sort_by_key(|(key, _)| key.to_string());
            Value::Map(pairs.into_iter().map(|(key, value)| (key, sorted(value))).collect())
        }
        value => value,
    }
}

#[test]
fn every_event_of_a_vector_decodes() {
    for vector in event_vectors() {
        let mut unknown = 0;
        for message in &vector.messages {
            let decoded = rmpv::decode::read_value(&mut &message.payload[..]).expect("MessagePack");
            assert_eq!(sorted(decoded), sorted(value(&message.batch)), "{} ({})", vector.name, vector.encoding);
            check_batch(&message.payload);
            let mut events = decode_batch(&message.payload).expect("a batch").events;
            for event in events.by_ref() {
                event.unwrap_or_else(|error| panic!("{} ({}): {error}", vector.name, vector.encoding));
            }
            unknown += events.take_unknown_fields().len();
        }
        assert_eq!(
            unknown,
            if vector.name == "unknown fields" { 3 } else { 0 },
            "{} ({})",
            vector.name,
            vector.encoding
        );
    }
}

#[test]
fn the_origin_and_the_manager_of_an_array_have_their_places_in_every_engines_format() {
    for vector in event_vectors() {
        for message in &vector.messages {
            let stored = |adapter: EngineAdapter| {
                let events = adapter.batch(&message.payload).expect("a batch").events;
                let events = events.map(|event| event.expect("an event"));
                let stored = events.filter_map(|event| match event {
                    EngineEvent::Stored(stored) => Some((stored.origin, stored.ownership)),
                    _ => None,
                });
                stored.collect::<Vec<_>>()
            };
            let detected = stored(EngineAdapter::Detect);
            assert_eq!(stored(EngineAdapter::Sglang), detected, "{} ({})", vector.name, vector.encoding);
        }
    }
}
