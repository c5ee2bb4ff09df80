//! JSON values for templates: objects keep the order of their keys, and integers differ from floats.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use super::error::ChatError;
use super::python::json::{to_json, to_spaced_json};
use super::python::values::{self, Kind};
use super::stand_ins::shown_text;

/// Nesting of a value in an answer. Many parsers permit 128, and an answer adds some.
const SHOWN_DEPTH_MAX: usize = 100;
/// Shown in place of deeper values.
const DEEP_SHOWN: &str = "(nested too deeply)";

/// A JSON value whose objects keep the order of their keys: templates print them in this order. Cheap to clone.
#[derive(Clone)]
pub struct Json(pub(super) Value);

impl Json {
    /// The value as compact JSON text.
    pub fn to_text(&self) -> String {
        // Every `Json` comes from JSON or from a template variable. Both can be written as JSON.
        to_json(&self.0).unwrap_or_else(|_| "null".to_owned())
    }

    /// The value as Python's `json.dumps` writes it without escapes beyond JSON's.
    pub fn to_spaced_text(&self) -> String {
        to_spaced_json(&self.0).unwrap_or_else(|_| "null".to_owned())
    }

    /// A copy for answers: without stand-ins for [what no prompt can have](super::check_rendered), and nested as deeply as
    /// clients' parsers permit.
    #[must_use]
    pub fn shown(&self) -> Self {
        Self(shown(&self.0, 0))
    }

    /// JSON's `null`.
    pub fn null() -> Self {
        Self(Value::from(()))
    }

    /// A list.
    ///
    /// # Errors
    ///
    /// If the items are nested too deeply.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Result<Self, ChatError> {
        nested(values::list(items.into_iter().map(|Self(item)| item).collect()))
    }

    /// An object. Equal keys have the position of the first and the value of the last.
    ///
    /// # Errors
    ///
    /// If the values are nested too deeply.
    pub fn object<K: Into<Value>>(entries: impl IntoIterator<Item = (K, Self)>) -> Result<Self, ChatError> {
        nested(values::dict(entries.into_iter().map(|(key, Self(value))| (key.into(), value)).collect()))
    }

    /// Approximate size in memory, in bytes: the size of its strings and keys, plus a constant for each value.
    pub fn size(&self) -> usize {
        size(&self.0)
    }

    /// Whether this is JSON's `null`.
    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the value is true in Python: it is not null, false, zero or empty.
    pub fn is_true(&self) -> bool {
        self.0.is_true()
    }

    /// The text, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The truth value, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match values::kind(&self.0) {
            Kind::Bool(truth) => Some(truth),
            _ => None,
        }
    }

    /// The items, if this is a list.
    pub fn as_list(&self) -> Option<impl Iterator<Item = Self> + '_> {
        match values::kind(&self.0) {
            Kind::Sequence(items) => Some(items.items.iter().cloned().map(Self)),
            _ => None,
        }
    }

    /// The keys and values in their order, if this is an object.
    pub fn entries(&self) -> Option<Vec<(String, Self)>> {
        match values::kind(&self.0) {
            Kind::Dict(dict) => {
                Some(dict.pairs().into_iter().map(|(key, value)| (key.to_string(), Self(value))).collect())
            }
            _ => None,
        }
    }

    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<Self> {
        match values::kind(&self.0) {
            Kind::Dict(dict) => dict.get(&Value::from(key)).map(Self),
            _ => None,
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self(Value::from(text))
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self(Value::from(text))
    }
}

impl From<bool> for Json {
    fn from(truth: bool) -> Self {
        Self(Value::from(truth))
    }
}

impl From<i128> for Json {
    fn from(number: i128) -> Self {
        Self(Value::from(number))
    }
}

impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Self(Value::from(number))
    }
}

fn nested(value: Result<Value, minijinja::Error>) -> Result<Json, ChatError> {
    value.map(Json).map_err(|error| ChatError::Request(error.to_string()))
}

fn shown(value: &Value, depth: usize) -> Value {
    let or_text = |value: Result<Value, minijinja::Error>| value.unwrap_or_else(|_| Value::from(DEEP_SHOWN));
    match values::kind(value) {
        Kind::Sequence(_) | Kind::Dict(_) if depth == SHOWN_DEPTH_MAX => Value::from(DEEP_SHOWN),
        Kind::Sequence(list) => or_text(values::list(list.items.iter().map(|item| shown(item, depth + 1)).collect())),
        Kind::Dict(dict) => {
            let pairs = dict.pairs().into_iter().map(|(key, value)| (shown(&key, depth), shown(&value, depth + 1)));
            or_text(values::dict(pairs.collect()))
        }
        Kind::Text(text) => shown_text(text, DEEP_SHOWN).map_or_else(|| value.clone(), Value::from),
        _ => value.clone(),
    }
}

fn size(value: &Value) -> usize {
    let nested: usize = match values::kind(value) {
        Kind::Dict(dict) => dict.pairs().iter().map(|(key, value)| size(key) + size(value)).sum(),
        Kind::Sequence(list) => list.items.iter().map(size).sum(),
        _ => value.as_str().map_or(0, str::len),
    };
    nested + size_of::<Value>()
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.to_text() == other.to_text()
    }
}

impl Serialize for Json {
    /// Writes the value with the order of its keys. An integer beyond 64 bits is written as a float, as `serde_json` reads it. A float
    /// without a JSON form is `null`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match values::kind(&self.0) {
            Kind::Bool(truth) => serializer.serialize_bool(truth),
            Kind::Int(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => serializer.serialize_i64(number),
                (_, Ok(number)) => serializer.serialize_u64(number),
                _ => serializer.serialize_f64(number as f64),
            },
            Kind::BigInt(number) => serializer.serialize_f64(number.digits.parse().unwrap_or(f64::INFINITY)),
            Kind::Float(number) => serializer.serialize_f64(number),
            Kind::Text(text) => serializer.serialize_str(text),
            Kind::Sequence(items) => serializer.collect_seq(items.items.iter().cloned().map(Self)),
            Kind::Dict(dict) => {
                serializer.collect_map(dict.pairs().into_iter().map(|(key, value)| (key.to_string(), Self(value))))
            }
            _ => serializer.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::from(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        values::list(list).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, Json(value))) = entries.next_entry::<String, Json>()? {
            pairs.push((Value::from(key), value));
        }
        values::dict(pairs).map_err(A::Error::custom)
    }
}
