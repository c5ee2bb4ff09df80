//! Properties of every parsed request with a prompt; for tests, and for the fuzz target `http_bodies`.
//!
//! ```text
//!  input:   kind (8) | content
//!  JSON:    a body
//!  tokens:  bytes before the list (8) | the list, after its opening bracket
//!  binary:  fields of the query string, as `name=value`, each ended by a zero byte | 0xff | the body
//! ```

use std::fmt::Debug;

use flash_indexer_api::{
    ExplainRequest, HashQuery, LittleEndian, PromptFields, PromptNumber, PromptRequest, TokenQuery, read_binary,
    read_token_list,
};
use serde::Serialize;

/// Parses bytes as a request; panics if it is not parsed as it should be.
pub(crate) fn play(bytes: &[u8]) {
    match bytes {
        [kind, before, list @ ..] if kind % 4 == 1 => check_list(list, usize::from(before % 70)),
        [kind, parts @ ..] if kind % 4 == 2 => check_binary_bodies(parts),
        [_, body @ ..] => check_bodies(body),
        [] => {}
    }
}

/// Checks that every JSON body is parsed as the general parser parses it.
pub(crate) fn check_bodies(body: &[u8]) {
    check_body::<PromptFields>(body);
    check_body::<TokenQuery>(body).iter().for_each(check_written);
    check_body::<HashQuery>(body).iter().for_each(check_written);
    check_body::<ExplainRequest>(body).iter().for_each(check_written);
}

/// Checks that a body is parsed as the general parser parses it. Returns the request.
pub(crate) fn check_body<T: PromptRequest + Debug>(body: &[u8]) -> Option<T> {
    let expected = serde_json::from_slice::<T>(body).map_err(|error| error.to_string());
    let read = T::Number::read_json::<T>(body).map_err(|error| error.to_string());
    assert_eq!(format!("{read:?}"), format!("{expected:?}"), "{}", String::from_utf8_lossy(body));
    read.ok()
}

/// Checks that a written request is read back unchanged.
fn check_written<T: PromptRequest + Serialize + Debug>(request: &T) {
    let written = serde_json::to_vec(request).expect("JSON");
    let again = T::Number::read_json::<T>(&written).expect("a written request");
    // A field that is only rejected is not written.
    let [read, again] = [request, &again].map(|request| format!("{request:?}").replace("Some(IgnoredAny)", "None"));
    assert_eq!(again, read);
}

/// Checks that a list of tokens is read as the general parser reads it, with any number of bytes before it. `list` begins after its
/// opening bracket.
pub(crate) fn check_list(list: &[u8], before: usize) {
    let json = [b"[", list].concat();
    let mut values = serde_json::Deserializer::from_slice(&json).into_iter::<Vec<u32>>();
    let expected = values.next().and_then(Result::ok).map(|tokens| (tokens, before + values.byte_offset()));
    let body = [&b"x".repeat(before), &json[..]].concat();
    assert_eq!(read_token_list(&body, before + 1), expected, "{}", String::from_utf8_lossy(&body));
}

fn check_binary_bodies(parts: &[u8]) {
    let (fields, body) = match parts.iter().position(|&byte| byte == 0xff) {
        Some(end) => (&parts[..end], &parts[end + 1..]),
        None => (parts, &[][..]),
    };
    let pairs = fields.split(|&byte| byte == 0).filter_map(|field| {
        let (name, value) = str::from_utf8(field).ok()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    let pairs: Vec<_> = pairs.collect();
    check_binary::<PromptFields>(body, &pairs);
    check_binary::<TokenQuery>(body, &pairs);
    check_binary::<HashQuery>(body, &pairs);
    check_binary::<ExplainRequest>(body, &pairs);
}

/// A binary body has all of its numbers, and the same fields as with an empty body.
fn check_binary<T: PromptRequest<Number: Debug + PartialEq> + Debug>(body: &[u8], pairs: &[(String, String)]) {
    let read = read_binary::<T>(body, pairs.to_vec());
    let empty = read_binary::<T>(&[], pairs.to_vec());
    let numbers = T::Number::read_list(body);
    assert_eq!(numbers.is_some(), body.len().is_multiple_of(T::Number::BYTES));
    assert_eq!(read.is_ok(), empty.is_ok() && numbers.is_some(), "{read:?} {empty:?}");
    let (Ok(mut read), Ok(empty)) = (read, empty) else { return };
    let list = std::mem::take(read.list().expect("the list of the body"));
    assert_eq!((Some(list), format!("{read:?}")), (numbers, format!("{empty:?}")));
}
