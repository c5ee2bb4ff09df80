//! Responses of TensorRT-LLM's pull API, as messages of a stream: the written vectors, and input that no engine sends.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_test_support::testdata;
use flash_indexer_wire::{
    EngineAdapter, EngineEvent, ExtraKey, FOLLOWED_BLOCKS_MAX, PullEventError, PullReader, PullResponseError,
    PulledMessages,
};
use serde_json::{Value, json};

fn vectors() -> Vec<Value> {
    let text = std::fs::read_to_string(testdata().join("vectors/trtllm-pull.json")).expect("the vectors");
    serde_json::from_str(&text).expect("a list")
}

fn reader(block_size: u64) -> PullReader {
    PullReader::new(BlockSize::new(u32::try_from(block_size).expect("small")).expect("not zero"))
}

fn read(reader: &mut PullReader, response: &Value) -> PulledMessages {
    reader.read(response.to_string().as_bytes(), 1.5).expect("a list of events")
}

/// The messages of several responses as one.
fn read_all(reader: &mut PullReader, responses: &[Value]) -> PulledMessages {
    responses.iter().map(|response| read(reader, response)).fold(PulledMessages::default(), |mut all, pulled| {
        all.messages.extend(pulled.messages);
        all.left_out.extend(pulled.left_out);
        all.unnumbered.extend(pulled.unnumbered);
        all.partial_blocks += pulled.partial_blocks;
        all
    })
}

/// A MessagePack value as JSON.
fn json_of(value: &rmpv::Value) -> Value {
    match value {
        rmpv::Value::Nil => Value::Null,
        rmpv::Value::Integer(number) => number.as_u64().map_or_else(|| json!(number.as_i64()), Value::from),
        rmpv::Value::F64(number) => json!(number),
        rmpv::Value::String(text) => json!(text.as_str()),
        rmpv::Value::Array(values) => values.iter().map(json_of).collect(),
        rmpv::Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| (key.as_str().expect("a text").to_owned(), json_of(value)));
            Value::Object(pairs.collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Messages as the vectors have them.
fn described(pulled: &PulledMessages) -> Vec<Value> {
    let messages = pulled.messages.iter().map(|message| {
        let value = rmpv::decode::read_value(&mut &message.payload[..]).expect("MessagePack");
        let mut batch = json_of(&value);
        for event in batch[1].as_array_mut().expect("a list") {
            if event["type"] == json!("LeftOut") {
                let why = event.as_object_mut().expect("a map").remove("why");
                assert!(why.is_some_and(|why| why.as_str().is_some_and(|why| why.len() > 20)));
            }
        }
        assert_eq!(batch[0], json!(1.5), "the time of the response");
        json!({ "sequence": message.sequence, "dp_rank": batch[2], "events": batch[1] })
    });
    messages.collect()
}

#[test]
fn every_vector_has_these_messages() {
    let vectors = vectors();
    assert!(vectors.len() >= 12);
    for vector in vectors {
        let mut reader = reader(vector["block_size"].as_u64().expect("a number"));
        let pulled = read_all(&mut reader, vector["responses"].as_array().expect("a list"));
        let name = &vector["name"];
        assert_eq!(Value::from(described(&pulled)), vector["messages"], "{name}");
        let reasons: Vec<_> = pulled.left_out.iter().map(PullEventError::reason).collect();
        let unnumbered: Vec<_> = pulled.unnumbered.iter().map(PullEventError::reason).collect();
        assert_eq!(json!(unnumbered), vector["unnumbered"], "{name}: {:?}", pulled.unnumbered);
        let mut rejected = Vec::new();
        assert_eq!(json!(pulled.partial_blocks), vector["partial_blocks"], "{name}");
        for message in &pulled.messages {
            let mut events = EngineAdapter::TensorRtLlm.batch(&message.payload).expect("a batch").events;
            rejected.extend(events.by_ref().filter_map(|event| event.err().map(|error| error.reason())));
            assert_eq!(events.take_unknown_fields(), [], "{name}");
        }
        assert_eq!(rejected, reasons, "{name}: the decoder rejects the events that are left out, and no other");
    }
}

#[test]
fn second_ids_of_tokens_are_part_of_a_blocks_identity() {
    let keys_of = |extra: [u64; 2]| {
        let tokens: Vec<_> = extra.iter().map(|extra| json!({ "token_id": 1, "token_extra_id": extra })).collect();
        let blocks = json!([{ "block_hash": 1, "tokens": tokens, "cache_level": 0 }]);
        let event = json!({ "event_id": 0, "data": { "type": "stored", "parent_hash": null, "blocks": blocks } });
        let pulled = read(&mut reader(2), &json!([event]));
        let batch = EngineAdapter::TensorRtLlm.batch(&pulled.messages[0].payload).expect("a batch");
        match batch.events.clone().next() {
            Some(Ok(EngineEvent::Stored(stored))) => {
                let keys = stored.extra_keys.map(|keys| keys[0].clone());
                keys.flatten().map(|keys| match keys[..] {
                    [ExtraKey::Opaque(bytes)] => bytes.to_vec(),
                    _ => panic!("{keys:?}"),
                })
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(keys_of([0, 0]), None);
    let [a, b, c] = [[5, 0], [0, 5], [5, 0]].map(keys_of);
    assert!(a.is_some() && a == c && a != b, "{a:?} {b:?}");
}

#[test]
fn a_response_that_is_not_a_list_is_an_error() {
    for (response, reason) in [
        (&b"{}"[..], "malformed_batch"),
        (b"null", "malformed_batch"),
        (b"", "malformed_batch"),
        (b"<html>", "malformed_batch"),
        (b"[{\"event_id\":", "malformed_batch"),
        (b"[\xff]", "malformed_batch"),
    ] {
        let error = reader(2).read(response, 0.0).expect_err("not a list");
        assert_eq!(error.reason(), reason, "{response:?}");
        assert!(error.to_string().contains("expected a JSON list of events"), "{error}");
    }
    let many = format!("[{}0]", "0,".repeat(1 << 18));
    assert_eq!(reader(2).read(many.as_bytes(), 0.0), Err(PullResponseError::TooManyEvents((1 << 18) + 1)));
}

#[test]
fn blocks_beyond_the_limit_are_rejected_and_not_forgotten() {
    let mut reader = reader(1);
    let store = |reader: &mut PullReader, id: usize, hashes: std::ops::Range<usize>| {
        let block = |hash| format!(r#"{{"block_hash":{hash},"tokens":[{{"token_id":1}}],"cache_level":1}}"#);
        let blocks = hashes.map(block).collect::<Vec<_>>().join(",");
        let response = format!(r#"[{{"event_id":{id},"data":{{"type":"stored","blocks":[{blocks}]}}}}]"#);
        reader.read(response.as_bytes(), 1.5).expect("a list of events")
    };
    let half = FOLLOWED_BLOCKS_MAX / 2;
    assert_eq!(store(&mut reader, 0, 0..half).left_out, [], "an event");
    assert_eq!(store(&mut reader, 1, half..2 * half).left_out, [], "a second one");
    let one = store(&mut reader, 2, 2 * half..2 * half + 1);
    assert_eq!((one.messages.len(), one.left_out), (1, vec![PullEventError::TooManyFollowedBlocks]));
    let removal = json!([{ "event_id": 3, "data": { "type": "removed", "block_hashes": [0, 1] } }]);
    assert_eq!(described(&read(&mut reader, &removal))[0]["events"][0]["medium"], json!("CPU"));
    assert_eq!(store(&mut reader, 4, 2 * half..2 * half + 1).left_out, [], "there is room again");
}
