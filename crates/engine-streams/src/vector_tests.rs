//! Batches encoded by the published package, and the reader's results for them.

use flash_indexer_proto::engine_events::{KvEventBatch, SubscribeKvEventsRequest};
use flash_indexer_test_support::testdata;
use prost::Message as _;
use serde_json::{Value, json};

use crate::reader;

fn vectors() -> Vec<Value> {
    let text = std::fs::read_to_string(testdata().join("vectors/smg-kv-events.json")).expect("the vectors");
    serde_json::from_str(&text).expect("a list")
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let pairs = (0..hexadecimal.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// A MessagePack value as the vectors have it.
fn json_of(value: &rmpv::Value) -> Value {
    match value {
        rmpv::Value::Nil => Value::Null,
        rmpv::Value::Integer(number) => number.as_u64().map_or_else(|| json!(number.as_i64()), Value::from),
        rmpv::Value::F64(number) => json!(number),
        rmpv::Value::String(text) => json!(text.as_str()),
        rmpv::Value::Binary(binary) => {
            json!({ "bytes": binary.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
        rmpv::Value::Array(values) => values.iter().map(json_of).collect(),
        rmpv::Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| (key.as_str().expect("a text").to_owned(), json_of(value)));
            Value::Object(pairs.collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_of_the_published_package_are_read_field_by_field() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 6);
    for vector in &vectors {
        let batch = KvEventBatch::decode(&bytes(vector["bytes"].as_str().expect("a text"))[..]).expect("a batch");
        let message = reader::message(&batch, &batch.events, Vec::new());
        let read = json_of(&rmpv::decode::read_value(&mut &message[..]).expect("MessagePack"));
        let mut events = read[1].clone();
        for event in events.as_array_mut().expect("a list") {
            if event["type"] == json!("LeftOut") {
                let why = event.as_object_mut().expect("a map").remove("why");
                assert!(why.is_some_and(|why| why.as_str().is_some_and(|why| why.len() > 20)));
            }
        }
        assert_eq!(events, vector["events"], "{}", vector["name"]);
        assert_eq!((&read[0], &read[2]), (&vector["timestamp"], &vector["rank"]), "{}", vector["name"]);
        let is_load = batch.load.is_some_and(|load| load.load_only);
        assert_eq!(is_load, vector["load_only"] == json!(true), "{}", vector["name"]);
        let part = batch.snapshot.map(|part| json!([part.index, part.count, part.blocks, part.unknown_before]));
        assert_eq!(part.unwrap_or_default(), vector["snapshot"], "{}", vector["name"]);
    }
}

#[test]
fn requests_have_the_start_number_in_its_place() {
    let request = SubscribeKvEventsRequest { start_sequence_number: 300 };
    assert_eq!(request.encode_to_vec(), bytes("08ac02"), "as the published package encodes it");
}
