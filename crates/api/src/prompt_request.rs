//! Parsing of requests with a prompt: JSON, whose list of tokens is parsed by [`read_token_list`], or a binary body.
//!
//! A general JSON parser reads a long list digit by digit, which costs more than the rest of a query. The list is cut out of
//! the body, and the parser reads what remains.

use flash_indexer_core::LocalHash;
use memchr::{memchr, memmem};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{ExplainRequest, HashQuery, LittleEndian, PromptFields, TokenQuery, field_error, read_token_list};

/// Request with a list of numbers that a binary body may have.
pub trait PromptRequest: DeserializeOwned {
    /// Type of the numbers.
    type Number: PromptNumber;

    /// The list, if the request has it.
    fn list(&mut self) -> Option<&mut Vec<Self::Number>>;
}

/// Number of a prompt: a token or a local hash.
pub trait PromptNumber: LittleEndian {
    /// Name of the JSON field with the list of these numbers.
    const LIST: &str;

    /// Parses a JSON body.
    ///
    /// # Errors
    ///
    /// Those of the general parser.
    fn read_json<T: PromptRequest<Number = Self>>(body: &[u8]) -> serde_json::Result<T> {
        serde_json::from_slice(body)
    }
}

impl PromptRequest for TokenQuery {
    type Number = u32;

    fn list(&mut self) -> Option<&mut Vec<u32>> {
        Some(&mut self.token_ids)
    }
}

impl PromptRequest for HashQuery {
    type Number = LocalHash;

    fn list(&mut self) -> Option<&mut Vec<LocalHash>> {
        Some(&mut self.block_hashes)
    }
}

impl PromptRequest for ExplainRequest {
    type Number = u32;

    fn list(&mut self) -> Option<&mut Vec<u32>> {
        self.token_ids.as_mut()
    }
}

impl PromptRequest for PromptFields {
    type Number = u32;

    fn list(&mut self) -> Option<&mut Vec<u32>> {
        self.token_ids.as_mut()
    }
}

impl PromptNumber for u32 {
    const LIST: &str = "token_ids";

    /// Parses a body like the general parser. The general parser parses any unusual body, so every error is from it.
    fn read_json<T: PromptRequest<Number = Self>>(body: &[u8]) -> serde_json::Result<T> {
        if let Some(BodyWithoutTokens { tokens, rest }) = BodyWithoutTokens::of(body)
            && let Ok(mut request) = serde_json::from_slice::<T>(&rest)
            && let Some(list) = request.list()
        {
            *list = tokens;
            return Ok(request);
        }
        serde_json::from_slice(body)
    }
}

impl PromptNumber for LocalHash {
    const LIST: &str = "block_hashes";
}

/// Reads a binary body and the other fields of the request, as a query string has them. Returns the message of an error.
pub fn read_binary<T: PromptRequest>(body: &[u8], pairs: Vec<(String, String)>) -> Result<T, String> {
    let numbers = T::Number::read_list(body).ok_or_else(|| {
        let (length, width, list) = (body.len(), T::Number::BYTES, T::Number::LIST);
        format!(
            "the body has {length} bytes, which is not a multiple of {width}: send each of the {list} as {width} bytes, \
             little-endian"
        )
    })?;
    let mut fields = Map::new();
    for (name, value) in pairs {
        let value = json_value(&name, value).map_err(|cause| does_not_fit(&cause))?;
        match (fields.get_mut(&name), value) {
            (None, value) => _ = fields.insert(name, value),
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (Some(_), _) => return Err(does_not_fit(&format!("duplicate field `{name}`"))),
        }
    }
    if fields.insert(T::Number::LIST.to_owned(), Value::Array(Vec::new())).is_some() {
        return Err(does_not_fit(&format!("{} is in the body: leave it out", T::Number::LIST)));
    }
    let fields = Value::from(fields);
    let mut request = T::deserialize(&fields).map_err(|error| does_not_fit(&field_error::<T>(&error, &fields)))?;
    if let Some(list) = request.list() {
        *list = numbers;
    }
    Ok(request)
}

/// Message about a query string. The cause for a field that is not a number has the same wording as the others.
pub fn does_not_fit(cause: &str) -> String {
    let no_number = ["invalid digit found in string", "cannot parse integer from empty string"];
    match no_number.iter().find_map(|no_number| cause.strip_suffix(no_number)) {
        Some(field) => format!("the query string does not fit: {field}expected a whole number of at least 0"),
        None => format!("the query string does not fit: {cause}"),
    }
}

/// The JSON value of a field in a query string. A list has one field for each of its elements.
fn json_value(name: &str, value: String) -> Result<Value, String> {
    // An absent field is left out of a query string.
    let given = |value: Value| match value {
        Value::Null => Err(format!("{name} has an invalid value")),
        value => Ok(value),
    };
    match name {
        "min_score" | "ttl_ms" | "detail" | "record" | "pick_temperature" | "pick_seed" | "prefill_weight"
        | "active_weight" | "request_weight" => given(serde_json::from_str(&value).unwrap_or_default()),
        // Engines read numbers and truth values from texts too.
        "top_k" | "truncate_prompt_tokens" | "add_special_tokens" => {
            given(serde_json::from_str(&value).unwrap_or_else(|_| value.into()))
        }
        "pods" | "pod_identifiers" => Ok(Value::Array(vec![value.into()])),
        _ => Ok(value.into()),
    }
}

const KEY: &[u8] = b"\"token_ids\"";

/// Body and the list of tokens that was cut out of it.
#[derive(Debug, PartialEq)]
struct BodyWithoutTokens {
    tokens: Vec<u32>,
    /// The body with an empty list.
    rest: Vec<u8>,
}

impl BodyWithoutTokens {
    /// Cuts the list out. Returns none unless the key occurs in the body exactly once, outside of a string with escapes, and a list of
    /// nothing but tokens follows. If the key belongs to a nested object, the rest has no list, and the entire body is parsed again.
    fn of(body: &[u8]) -> Option<Self> {
        let key = memmem::find(body, KEY)?;
        let start = after(body, after(body, key + KEY.len(), b':')?, b'[')?;
        if memchr(b'\\', &body[..start]).is_some() {
            return None;
        }
        let (tokens, end) = read_token_list(body, start)?;
        let rest = &body[end - 1..];
        if memchr(b'\\', rest).is_some() || memmem::find(rest, KEY).is_some() {
            return None;
        }
        Some(Self { tokens, rest: [&body[..start], rest].concat() })
    }
}

/// The position after a byte that follows spaces; none if another byte follows them.
fn after(body: &[u8], start: usize, wanted: u8) -> Option<usize> {
    let spaces = body[start..].iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count();
    let position = start + spaces;
    (*body.get(position)? == wanted).then_some(position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_list_of_a_usual_body_is_cut_out() {
        let cut = BodyWithoutTokens::of(br#"{"name": "n", "token_ids": [1, 23,4294967295 ,128000], "top_k": 1}"#);
        let rest = br#"{"name": "n", "token_ids": [], "top_k": 1}"#.to_vec();
        assert_eq!(cut, Some(BodyWithoutTokens { tokens: vec![1, 23, u32::MAX, 128_000], rest }));
        assert_eq!(BodyWithoutTokens::of(br#"{"token_ids":[]}"#).map(|cut| cut.tokens), Some(Vec::new()));
    }
}
