//! Errors of TOML files, without text of the file.

use toml::de::Error;

/// Line and cause of an error in a TOML file. It has no text of the file, which may have a secret in the wrong place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct TomlError {
    line: usize,
    cause: String,
}

impl TomlError {
    /// The error of a parser for the text of a file.
    #[must_use]
    pub fn of(text: &str, error: &Error) -> Self {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        Self { line, cause: cause_of(error.message()) }
    }
}

/// The cause in a parser's message. The parser writes names and values of the file in quotes or after a colon.
fn cause_of(message: &str) -> String {
    for (given, cause) in [("unknown field", "unknown field"), ("unknown variant", "unknown value")] {
        if message.starts_with(given) {
            // The valid names are at the end of the message, after the given one.
            let valid = message.rsplit_once(", expected ").map(|(_, valid)| format!(", expected {valid}"));
            return cause.to_owned() + &valid.unwrap_or_default();
        }
    }
    let mut causes = Vec::new();
    for line in message.lines() {
        let cause = without_quotes(line);
        causes.push(cause);
        if cause != line {
            // A name may have line breaks: the next line may be from the file.
            break;
        }
    }
    if causes.is_empty() { "invalid TOML".to_owned() } else { causes.join(", ") }
}

/// A line of a parser's message without names and values of the file.
fn without_quotes(line: &str) -> &str {
    match line {
        _ if line.starts_with("invalid type") => "a value is of the wrong type",
        _ if line.starts_with("dotted key") => "a dotted key extends a value that is not a table",
        // These quote the grammar and the format, not the file.
        _ if line.starts_with("expected ") || line.starts_with("missing field ") => line,
        _ => line.split(['`', '"', '\'', ':']).next().unwrap_or_default().trim_end(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its errors are read")]
    struct Format {
        port: Option<u8>,
        level: Option<Level>,
        hosts: Option<BTreeMap<String, u8>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Level {
        Low,
        High,
    }

    #[test]
    fn an_error_has_the_line_and_the_cause_and_no_text_of_the_file() {
        for (text, expected) in [
            ("SECRET = 1", "line 1: unknown field, expected one of `port`, `level`, `hosts`"),
            ("port = 1\n\"SECRET, expected SECRET\" = 1", "line 2: unknown field, expected one of `port`, "),
            ("\"a\\nSECRET, expected SECRET\" = 1", "line 1: unknown field, expected one of `port`, "),
            ("\n[SECRET]", "line 2: unknown field, expected"),
            ("[[SECRET]]", "line 1: unknown field, expected"),
            ("level = \"SECRET\"", "line 1: unknown value, expected `low` or `high`"),
            ("port = \"SECRET\"", "line 1: a value is of the wrong type"),
            ("port = 300", "line 1: invalid value"),
            ("[hosts]\nSECRET = 1\nSECRET = 2", "line 3: duplicate key"),
            ("[SECRET]\n[SECRET]", "line 2: invalid table header, duplicate key"),
            ("[\"x\\nexpected SECRET\"]\n[\"x\\nexpected SECRET\".a]\nb = 1\nb = 2", "line 4: duplicate key"),
            ("SECRET = 1\nSECRET.b = 2", "line 2: a dotted key extends a value that is not a table"),
            ("port = SECRET", "line 1: invalid string, expected `\"`, `'`"),
            ("[SECRET", "line 1: invalid table header, expected "),
            ("SECRET", "line 1: "),
            ("port = \"SECRET", "line 1: "),
            ("port = 1 SECRET", "line 1: expected "),
        ] {
            let error = toml::from_str::<Format>(text).expect_err(text);
            let error = TomlError::of(text, &error).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains("SECRET") && !error.contains('\n'), "{text}: {error}");
        }
    }
}
