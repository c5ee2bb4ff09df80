//! Written vectors of engine events, `testdata/vectors/engine-events.json`.

use serde_json::Value;

use crate::{from_hex, testdata};

/// Messages of an engine that were written from its format, in one encoding.
#[derive(Debug, Clone)]
pub struct EventVector {
    /// Content of the messages. Both encodings of one vector have the same name.
    pub name: String,
    /// `map` or `array`: form of the events.
    pub encoding: String,
    /// The messages, in order.
    pub messages: Vec<EventVectorMessage>,
}

/// One message of a vector.
#[derive(Debug, Clone)]
pub struct EventVectorMessage {
    /// The batch.
    pub batch: Value,
    /// The batch in MessagePack.
    pub payload: Vec<u8>,
}

/// Every vector.
///
/// # Panics
///
/// When the file cannot be read or has another form.
#[must_use]
pub fn event_vectors() -> Vec<EventVector> {
    let path = testdata().join("vectors/engine-events.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let vectors: Vec<Value> = serde_json::from_str(&text).expect("a list of vectors");
    let text = |vector: &Value, field: &str| vector[field].as_str().expect("a text").to_owned();
    let message = |message: &Value| EventVectorMessage {
        batch: message["batch"].clone(),
        payload: from_hex(message["payload"].as_str().expect("hexadecimal")),
    };
    let vector = |vector: &Value| EventVector {
        name: text(vector, "name"),
        encoding: text(vector, "encoding"),
        messages: vector["messages"].as_array().expect("a list").iter().map(message).collect(),
    };
    vectors.iter().map(vector).collect()
}
