//! Reason why JSON does not fit a request: the field, its valid values, and the given one, without terms of Rust.

use serde::Deserialize;
use serde_json::{Deserializer, Error, Value};

/// Reason why a body does not fit a request. It is parsed again to find the field, unless it is not JSON.
#[must_use]
pub fn body_error<'b, T: Deserialize<'b>>(error: &Error, body: &'b [u8]) -> String {
    if !error.is_data() {
        return json_error(error);
    }
    if body.trim_ascii_start().starts_with(b"[") {
        // A list is read as the fields of a request in their order, so the error would name one of them.
        return "expected a JSON object, got a list".to_owned();
    }
    let mut json = Deserializer::from_slice(body);
    located(serde_path_to_error::deserialize::<_, T>(&mut json), error)
}

/// Reason why the fields of a query string do not fit a request.
#[must_use]
pub fn field_error<'v, T: Deserialize<'v>>(error: &Error, fields: &'v Value) -> String {
    located(serde_path_to_error::deserialize::<_, T>(fields), error)
}

/// The cause, after the path of its field.
fn located<T>(again: Result<T, serde_path_to_error::Error<Error>>, error: &Error) -> String {
    match again {
        Err(found) if found.path().iter().len() > 0 => format!("{}: {}", found.path(), split(found.inner()).0),
        _ => json_error(error),
    }
}

/// Reason why a text is not JSON, or a value does not fit, with its position if it was parsed from a text.
#[must_use]
pub fn json_error(error: &Error) -> String {
    let (cause, position) = split(error);
    // The message of `serde_json` about half a surrogate pair does not mention surrogates.
    let hint = match cause.contains("hex escape") && !error.is_data() {
        true => "; a text has a lone surrogate, such as \\ud800, or an incomplete escape: send pairs of surrogates",
        false => "",
    };
    format!("{cause}{position}{hint}")
}

/// The cause in the terms of JSON, and the position.
fn split(error: &Error) -> (String, String) {
    let (text, position) = (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
    let (cause, position) = match text.strip_suffix(&position) {
        Some(cause) => (cause, position),
        None => (&*text, String::new()),
    };
    if cause.starts_with("missing field") {
        // The position is that of the object's end.
        return (cause.to_owned(), String::new());
    }
    // Readers of several forms name their field themselves.
    let (field, cause, position) = match cause.split_once(": ") {
        Some((field, cause)) if !field.contains(' ') => (format!("{field}: "), cause, String::new()),
        _ => (String::new(), cause, position),
    };
    let types = cause.strip_prefix("invalid type: ").or_else(|| cause.strip_prefix("invalid value: "));
    let cause = match types.and_then(|types| types.rsplit_once(", expected ")) {
        Some((given, expected)) => format!("expected {}, got {}", type_of_json(expected), given_value(given)),
        None => cause.to_owned(),
    };
    (field + &cause, position)
}

/// Expectation of `serde`, in the terms of JSON.
fn type_of_json(expected: &str) -> &str {
    match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of at least 0",
        "a nonzero usize" => "a whole number of at least 1",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a JSON object",
        other => other,
    }
}

/// The value that `serde` got, in the terms of JSON.
fn given_value(given: &str) -> String {
    match (given, given.split_once('`').and_then(|(_, rest)| rest.strip_suffix('`'))) {
        ("sequence", _) => "a list".to_owned(),
        ("map", _) => "an object".to_owned(),
        (text, _) if text.starts_with("string ") => format!("the {text}"),
        (_, Some(number)) => number.to_owned(),
        (other, None) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RegisterRequest, TokenQuery};

    #[track_caller]
    fn check<'b, T: Deserialize<'b> + std::fmt::Debug>(body: &'b str, expected: &str) {
        let error = serde_json::from_str::<T>(body).expect_err(body);
        assert_eq!(body_error::<T>(&error, body.as_bytes()), expected, "{body}");
    }

    #[test]
    fn an_error_names_the_field_and_the_values_that_it_takes() {
        let register = |fields: &str| format!(r#"{{"instance_id": 1, {fields}}}"#);
        for (fields, expected) in [
            (
                r#""block_size": "16""#,
                r#"block_size: expected a whole number from 0 to 4294967295, got the string "16""#,
            ),
            (r#""block_size": -1"#, "block_size: expected a whole number from 0 to 4294967295, got -1"),
            (r#""block_size": 1.5"#, "block_size: expected a whole number from 0 to 4294967295, got 1.5"),
            (r#""cache_blocks": 0"#, "cache_blocks: expected a whole number of at least 1, got 0"),
            (
                r#""extra_keys": "no, expected yes""#,
                r#"extra_keys: expected true or false, got the string "no, expected yes""#,
            ),
            (r#""endpoint": {}"#, "endpoint: expected a string, got an object"),
            (r#""shared_caches": "node:a""#, r#"shared_caches: expected a list, got the string "node:a""#),
            (
                r#""shared_caches": [1.5]"#,
                "shared_caches[0]: expected an unsigned integer or a string as instance_id, got 1.5",
            ),
            (r#""kind": 1"#, "kind: expected a string, got 1"),
            (r#""kind": "host""#, "kind: unknown variant `host`, expected one of `instance`, `node`, `pool`"),
        ] {
            check::<RegisterRequest>(&register(fields), expected);
        }
        check::<RegisterRequest>("{}", "missing field `instance_id`");
        check::<TokenQuery>(r#"{"token_ids": [], "top_k": 0}"#, "top_k: expected a whole number of at least 1, got 0");
        check::<TokenQuery>(
            r#"{"token_ids": [1, -2]}"#,
            "token_ids[1]: expected a whole number from 0 to 4294967295, got -2",
        );
        check::<TokenQuery>(r#"{"token_ids": null}"#, "token_ids: expected a list, got null");
        for list in ["[]", " [1]", "[[1], null]"] {
            check::<TokenQuery>(list, "expected a JSON object, got a list");
        }
        check::<TokenQuery>("1", "expected a JSON object, got 1 at line 1 column 1");
    }
}
