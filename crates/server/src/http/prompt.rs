//! Requests with a prompt: as JSON, whose list of tokens is parsed by [`read_token_list`], or as a binary body.
//!
//! A general JSON parser reads a long list digit by digit, which costs more than the rest of a query. The list is cut out of
//! the body, and the parser reads what remains.

use std::sync::Arc;

use axum::extract::{FromRequest, Query, Request};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use flash_indexer_api::{LittleEndian, read_token_list};
use flash_indexer_core::LocalHash;
use flash_indexer_traces::{Stage, stage};
use memchr::{memchr, memmem};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Api;
use super::content::{Accepted, BodyForm};
use super::error::ApiError;
use super::extract::{self, ReceivedBody, parse, parse_lenient};

/// Request with a list of numbers that a binary body may have.
pub(super) trait PromptRequest: DeserializeOwned {
    /// Type of the numbers.
    type Number: PromptNumber;
    /// Name of the list in JSON.
    const LIST: &str;

    /// The list.
    fn list(&mut self) -> &mut Vec<Self::Number>;
}

/// Number of a prompt: a token or a local hash.
pub(super) trait PromptNumber: LittleEndian {
    /// Parses a JSON body.
    fn read_json<T: PromptRequest<Number = Self>>(body: &[u8]) -> Result<T, ApiError>;
}

impl PromptNumber for u32 {
    /// Parses a body as the general parser does: any unusual body is left to it, so every error is its own.
    fn read_json<T: PromptRequest<Number = Self>>(body: &[u8]) -> Result<T, ApiError> {
        let Some(cut) = BodyWithoutTokens::of(body) else { return parse(body) };
        match serde_json::from_slice::<T>(&cut.rest) {
            Ok(mut request) => {
                *request.list() = cut.tokens;
                Ok(request)
            }
            Err(_) => parse(body),
        }
    }
}

impl PromptNumber for LocalHash {
    fn read_json<T: PromptRequest<Number = Self>>(body: &[u8]) -> Result<T, ApiError> {
        parse(body)
    }
}

/// Extractor of a request with a prompt, which is not parsed yet.
pub(super) struct PromptBody {
    body: ReceivedBody,
    uri: Uri,
}

/// Request with a prompt.
pub(super) struct ParsedRequest<T> {
    pub(super) request: T,
    /// The JSON of the request; empty for a binary body.
    pub(super) json: Vec<u8>,
}

impl FromRequest<Arc<Api>> for PromptBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let uri = request.uri().clone();
        let body = extract::receive(request, api, Accepted::JsonOrBinary).await?;
        Ok(Self { body, uri })
    }
}

impl PromptBody {
    /// Parses the request and answers it: on the threads for large requests if its body is large.
    pub(super) async fn answer<T, R, F>(
        self,
        answer: impl FnOnce(ParsedRequest<T>) -> F + Send + 'static,
    ) -> Result<Response, ApiError>
    where
        T: PromptRequest + Send,
        R: IntoResponse,
        F: Future<Output = Result<R, ApiError>> + Send + 'static,
    {
        let Self { body, uri } = self;
        let answer = async move |form, body: Vec<u8>| {
            let parse = stage(Stage::Parse);
            let prompted = match form {
                BodyForm::Json => {
                    let (request, json) = parse_lenient(body, T::Number::read_json)?;
                    ParsedRequest { request, json }
                }
                BodyForm::Binary => ParsedRequest { request: read_binary(&body, &uri)?, json: Vec::new() },
            };
            drop(parse);
            let answer = answer(prompted).await?;
            let _answer = stage(Stage::Answer);
            Ok(answer.into_response())
        };
        body.process(answer).await
    }
}

/// Reads a binary body and the other fields of the request in the query string.
fn read_binary<T: PromptRequest>(body: &[u8], uri: &Uri) -> Result<T, ApiError> {
    let numbers = T::Number::read_list(body).ok_or_else(|| {
        let (length, width, list) = (body.len(), T::Number::BYTES, T::LIST);
        ApiError::bad_request(format!(
            "the body has {length} bytes, which is not a multiple of {width}: send each of the {list} as {width} bytes, \
             little-endian"
        ))
    })?;
    let does_not_fit = |cause: &str| ApiError::bad_request(format!("the query string does not fit: {cause}"));
    let Query(pairs) =
        Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|error| does_not_fit(&error.body_text()))?;
    let mut fields = Map::new();
    for (name, value) in pairs {
        let value = json_value(&name, value).map_err(|cause| does_not_fit(&cause))?;
        match (fields.get_mut(&name), value) {
            (None, value) => _ = fields.insert(name, value),
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (Some(_), _) => return Err(does_not_fit(&format!("duplicate field `{name}`"))),
        }
    }
    if fields.insert(T::LIST.to_owned(), Value::Array(Vec::new())).is_some() {
        return Err(does_not_fit(&format!("{} is in the body: leave it out", T::LIST)));
    }
    let mut request: T = serde_json::from_value(fields.into()).map_err(|error| does_not_fit(&error.to_string()))?;
    *request.list() = numbers;
    Ok(request)
}

/// The JSON value of a field in a query string. A list has one field for each of its elements.
fn json_value(name: &str, value: String) -> Result<Value, String> {
    // An absent field is left out of a query string.
    let given = |value: Value| match value {
        Value::Null => Err(format!("{name} has an invalid value")),
        value => Ok(value),
    };
    match name {
        "top_k" | "min_score" | "ttl_ms" | "detail" | "record" | "pick_temperature" | "pick_seed"
        | "prefill_weight" | "active_weight" | "request_weight" => {
            given(serde_json::from_str(&value).unwrap_or_default())
        }
        // Engines read numbers and truth values from texts too.
        "truncate_prompt_tokens" | "add_special_tokens" => {
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
    /// Cuts the list out. Returns none unless the key occurs in the body exactly once, outside of a string with escapes,
    /// and a list of nothing but tokens follows. If the key belongs to a nested object, the parser rejects the rest for the
    /// missing field, and the body is parsed again as a whole.
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
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct ExplainContext {
        token_ids: Vec<u32>,
        name: Option<String>,
    }

    impl PromptRequest for ExplainContext {
        type Number = u32;
        const LIST: &str = "token_ids";

        fn list(&mut self) -> &mut Vec<u32> {
            &mut self.token_ids
        }
    }

    fn number() -> impl Strategy<Value = String> {
        let token = any::<u32>().prop_flat_map(|max| 0..=max).prop_map(|token| token.to_string());
        let odd = ["-1", "01", "1.5", "1e3", "4294967296", "null", "\"1\"", "", "[1]", "1 2", "99999999", "0"];
        prop_oneof![50 => token, 1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned)]
    }

    fn space() -> impl Strategy<Value = &'static str> {
        prop_oneof![5 => Just(""), 3 => Just(" "), 1 => Just("\n\t ")]
    }

    fn list() -> impl Strategy<Value = String> {
        let item = (space(), number(), space()).prop_map(|(before, number, after)| format!("{before}{number}{after}"));
        prop::collection::vec(item, 0..20).prop_map(|items| format!("[{}]", items.join(",")))
    }

    fn member() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (space(), list()).prop_map(|(space, list)| format!("\"token_ids\"{space}:{space}{list}")),
            2 => Just(r#""name":"n""#.to_owned()),
            1 => Just(r#""name":"\"token_ids\":[1]""#.to_owned()),
            1 => Just(r#""token\u005fids":[7]"#.to_owned()),
            1 => list().prop_map(|list| format!(r#""other":{{"token_ids":{list}}}"#)),
            1 => Just(r#""x\"token_ids":[1]"#.to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn every_body_is_parsed_as_the_general_parser_parses_it(
            members in prop::collection::vec(member(), 0..4),
            end in prop_oneof![9 => Just("}"), 1 => Just(""), 1 => Just("} x")],
        ) {
            let body = format!("{{{}{end}", members.join(","));
            let parsed = serde_json::from_str::<ExplainContext>(&body).ok();
            prop_assert_eq!(u32::read_json::<ExplainContext>(body.as_bytes()).ok(), parsed, "{}", body);
        }
    }

    #[test]
    fn the_token_list_of_a_usual_body_is_cut_out() {
        let cut = BodyWithoutTokens::of(br#"{"name": "n", "token_ids": [1, 23,4294967295 ,128000], "top_k": 1}"#);
        let rest = br#"{"name": "n", "token_ids": [], "top_k": 1}"#.to_vec();
        assert_eq!(cut, Some(BodyWithoutTokens { tokens: vec![1, 23, u32::MAX, 128_000], rest }));
        assert_eq!(BodyWithoutTokens::of(br#"{"token_ids":[]}"#).map(|cut| cut.tokens), Some(Vec::new()));
    }
}
