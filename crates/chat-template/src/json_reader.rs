//! JSON texts, read as Python's `json.loads` or `orjson.loads` reads them.

use std::sync::LazyLock;

use serde::de::IgnoredAny;

use super::json::Json;
use super::python::values::big_int;
use super::stand_ins::{DEPTH_MAX, LONE_SURROGATE, TOO_DEEP, random_digits};

/// Maximum digits of an integer, as in Python.
const DIGITS_MAX: usize = 4300;

/// Stands for `NaN` in JSON: a number out of any range.
static NAN: LazyLock<String> = LazyLock::new(|| format!("9e9{}", random_digits()));
/// Stands for infinite numbers in JSON. Python reads it as infinite.
const INFINITY: &str = "1e9999";

/// A body with numbers of JSON in place of `NaN`, `Infinity` and `-Infinity`, which Python's parser accepts in addition to JSON.
/// [`Json::loads`] with [`JsonParser::Python`] reads these numbers as the constants, other parsers as out of range. `None` if the body has
/// no such constant outside of texts.
pub fn without_constants(body: &[u8]) -> Option<Vec<u8>> {
    let mut replaced: Option<Vec<u8>> = None;
    let (mut at, mut copied) = (0, 0);
    while at < body.len() {
        let (word, stand_in) = match body[at] {
            b'"' => {
                at += 1;
                while at < body.len() && body[at] != b'"' {
                    at += if body[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                continue;
            }
            b'N' => ("NaN", NAN.as_str()),
            b'I' => ("Infinity", INFINITY),
            _ => {
                at += 1;
                continue;
            }
        };
        let end = at + word.len();
        if !body[at..].starts_with(word.as_bytes()) || !is_value(body, at, end) {
            // Neither JSON nor a constant that Python accepts.
            return None;
        }
        let replaced = replaced.get_or_insert_default();
        replaced.extend_from_slice(&body[copied..at]);
        replaced.extend_from_slice(stand_in.as_bytes());
        at = end;
        copied = at;
    }
    let mut replaced = replaced?;
    replaced.extend_from_slice(&body[copied..]);
    Some(replaced)
}

/// Whether a constant in a body is a value by itself, and not a part of a longer word. Only infinity has a minus sign.
fn is_value(body: &[u8], start: usize, end: usize) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
    let before = &body[..start];
    let before = before.strip_suffix(b"-").filter(|_| body[start] == b'I').unwrap_or(before);
    !before.last().is_some_and(is_part) && !body.get(end).is_some_and(is_part)
}

/// The parser that an engine uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JsonParser {
    /// Python's own. Unlike JSON, it accepts `NaN`, `Infinity` and `-Infinity`; a float beyond the range is infinite, integers
    /// have any size, and a lone surrogate is kept.
    Python,
    /// `orjson`, which accepts JSON only. Integers beyond 64 bits become floats, and floats beyond the range are rejected.
    Orjson,
}

impl Json {
    /// Parses a JSON text. `None` if the parser rejects it. A value that is nested too deeply, or a lone surrogate, is
    /// replaced by a stand-in that [`check_rendered`](crate::check_rendered) finds.
    pub fn loads(text: &str, parser: JsonParser) -> Option<Self> {
        let mut reader = Reader { text, at: 0, depth: 0, parser };
        reader.skip_space();
        let value = reader.value()?;
        reader.skip_space();
        (reader.at == text.len()).then_some(value)
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    parser: JsonParser,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips a word, if it follows.
    fn skip(&mut self, word: &str) -> bool {
        let follows = self.rest().starts_with(word);
        self.at += if follows { word.len() } else { 0 };
        follows
    }

    fn value(&mut self) -> Option<Json> {
        match self.peek()? {
            b'"' => self.string().map(Json::from),
            b'{' => self.nested(|reader| Json::object(reader.items("}", Self::entry)?).ok()),
            b'[' => self.nested(|reader| Json::list(reader.items("]", Self::value)?).ok()),
            b'n' => self.skip("null").then(Json::null),
            b't' => self.skip("true").then(|| Json::from(true)),
            b'f' => self.skip("false").then(|| Json::from(false)),
            b'N' | b'I' if self.parser == JsonParser::Orjson => None,
            b'N' => self.skip("NaN").then(|| Json::from(f64::NAN)),
            b'I' => self.skip("Infinity").then(|| Json::from(f64::INFINITY)),
            b'-' if self.parser == JsonParser::Python && self.skip("-Infinity") => Some(Json::from(f64::NEG_INFINITY)),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Json>) -> Option<Json> {
        if self.depth == DEPTH_MAX {
            let mut values = serde_json::Deserializer::from_str(self.rest()).into_iter::<IgnoredAny>();
            values.next()?.ok()?;
            self.at += values.byte_offset();
            return Some(Json::from(TOO_DEEP.as_str()));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Reads comma-separated items up to the closing bracket.
    fn items<T>(&mut self, close: &str, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        self.skip_space();
        if self.skip(close) {
            return Some(items);
        }
        loop {
            self.skip_space();
            items.push(item(self)?);
            self.skip_space();
            if self.skip(close) {
                return Some(items);
            }
            if !self.skip(",") {
                return None;
            }
        }
    }

    /// Reads a key and its value.
    fn entry(&mut self) -> Option<(String, Json)> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let key = self.string()?;
        self.skip_space();
        if !self.skip(":") {
            return None;
        }
        self.skip_space();
        Some((key, self.value()?))
    }

    /// Reads a string, starting after its quote. JSON and Python agree on strings, except for lone surrogates.
    fn string(&mut self) -> Option<String> {
        let mut strings = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
        match strings.next()? {
            Ok(text) => {
                self.at += strings.byte_offset();
                Some(text)
            }
            Err(_) if self.parser == JsonParser::Python => self.string_with_surrogates(),
            Err(_) => None,
        }
    }

    fn string_with_surrogates(&mut self) -> Option<String> {
        let text = self.text;
        let mut units = Vec::new();
        let mut rest = text[self.at..].char_indices().skip(1);
        while let Some((at, character)) = rest.next() {
            match character {
                '"' => {
                    self.at += at + 1;
                    let characters = char::decode_utf16(units);
                    return Some(characters.fold(String::new(), |mut text, character| {
                        match character {
                            Ok(character) => text.push(character),
                            Err(_) => text.push_str(&LONE_SURROGATE),
                        }
                        text
                    }));
                }
                '\\' => units.push(match rest.next()?.1 {
                    escaped @ ('"' | '\\' | '/') => escaped as u16,
                    'b' => 0x8,
                    'f' => 0xc,
                    'n' => 0xa,
                    'r' => 0xd,
                    't' => 0x9,
                    'u' => {
                        let digits: Option<u32> =
                            (0..4).try_fold(0, |unit, _| Some(unit * 16 + rest.next()?.1.to_digit(16)?));
                        u16::try_from(digits?).ok()?
                    }
                    _ => return None,
                }),
                '\0'..='\x1f' => return None,
                character => units.extend_from_slice(character.encode_utf16(&mut [0; 2])),
            }
        }
        None
    }

    fn has_integer(&self, number: i128) -> bool {
        self.parser == JsonParser::Python || (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number)
    }

    fn number(&mut self) -> Option<Json> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let sign = usize::from(bytes.first() == Some(&b'-'));
        let integer = if bytes.get(sign) == Some(&b'0') { 1 } else { digits(sign) };
        if integer == 0 {
            return None;
        }
        let mut end = sign + integer;
        let mut is_float = false;
        if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
            is_float = true;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let signed = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if signed <= bytes.len() && digits(signed) > 0 {
                end = signed + digits(signed);
                is_float = true;
            }
        }
        let number = &self.text[self.at..self.at + end];
        self.at += end;
        if number == NAN.as_str() {
            return Some(Json::from(f64::NAN));
        }
        match number.parse::<i128>() {
            Ok(integer) if !is_float && self.has_integer(integer) => Some(Json::from(integer)),
            Err(_) if !is_float && self.parser == JsonParser::Python => {
                (integer <= DIGITS_MAX).then(|| Json(big_int(number)))
            }
            _ => {
                let number = number.parse::<f64>().ok()?;
                (self.parser == JsonParser::Python || number.is_finite()).then(|| Json::from(number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::{DEPTH_MAX, Json, JsonParser, without_constants};
    use crate::check_rendered;

    #[test]
    fn python_reads_what_json_lacks() {
        let texts = [
            (" {\"a\": [1, 2.5, null, true], \"b\": {}} \n", Some(r#"{"a":[1,2.5,null,true],"b":{}}"#)),
            ("{\"a\": 1, \"b\": 2, \"a\": 3}", Some(r#"{"a":3,"b":2}"#)),
            (
                "[NaN, Infinity, -Infinity, 1e400, -0, -0.0, 1E2]",
                Some("[NaN,Infinity,-Infinity,Infinity,0,-0.0,100.0]"),
            ),
            ("12345678901234567890123", Some("12345678901234567890123")),
            (
                "[-1234567890123456789012345678901234567890123456789]",
                Some("[-1234567890123456789012345678901234567890123456789]"),
            ),
            ("\"\\ud83d\\ude00\\u00e9\\/\"", Some("\"😀é/\"")),
            ("{\"a\": ", None),
            ("{'a': 1}", None),
            ("{\"a\": 1} x", None),
            ("{\"a\": 1,}", None),
            ("[1,]", None),
            ("01", None),
            ("+1", None),
            ("1.", None),
            ("\"\\ud800", None),
            ("\"\\ud800\\x\"", None),
            ("\"\\ud800\n\"", None),
            ("\"a\nb\"", None),
            ("\u{feff}{}", None),
            ("", None),
        ];
        for (text, expected) in texts {
            assert_eq!(
                Json::loads(text, JsonParser::Python).map(|value| value.to_text()).as_deref(),
                expected,
                "{text:?}"
            );
        }
        assert!(Json::loads(&"[".repeat(100_000), JsonParser::Python).is_none());
    }

    #[test]
    fn what_no_prompt_can_have_is_found_where_it_is_printed() {
        let parse = |text: &str| Json::loads(text, JsonParser::Python).expect("Python parses it");
        let nested = |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_rendered(&parse(&nested(DEPTH_MAX - 1)).to_text()).is_ok());
        let deep = parse(&nested(100_000));
        assert!(check_rendered(&deep.to_text()).is_err_and(|error| error.to_string().contains("nested more than 190")));
        let lone = parse("{\"a\": \"x\\ud800\\n\\ud83d\\ude00\", \"b\": \"\\ude00\"}");
        assert!(check_rendered(&lone.to_text()).is_err_and(|error| error.to_string().contains("lone surrogate")));
        let text = lone.get("a").and_then(|text| text.as_str().map(str::to_owned)).expect("a text");
        assert!(text.starts_with('x') && text.ends_with("\n😀"), "{text}");
        assert!(Json::loads(&format!("[{}]", "9".repeat(4301)), JsonParser::Python).is_none());
        assert!(Json::loads("\"\\ud800\"", JsonParser::Orjson).is_none());
    }

    #[test]
    fn constants_of_python_become_numbers_that_stand_for_them() {
        let body = br#"{"a": [NaN, -Infinity], "NaN \\": "Infinity \" NaN", "b":Infinity}"#;
        let replaced = without_constants(body).expect("it has constants");
        let replaced = std::str::from_utf8(&replaced).expect("a text");
        assert!(serde_json::from_str::<IgnoredAny>(replaced).is_ok(), "{replaced}");
        assert!(serde_json::from_str::<[f64; 2]>(replaced[6..].split_inclusive(']').next().expect("a list")).is_err());
        let json = Json::loads(replaced, JsonParser::Python).expect("JSON");
        let expected = r#"{"a":[NaN,-Infinity],"NaN \\":"Infinity \" NaN","b":Infinity}"#;
        assert_eq!(json.to_text(), expected);
        for plain in
            ["-NaN", "1NaN", "NaN1", "--Infinity", "{\"NaN\": \"\\\"Infinity\"}", "[1]", "Nan", "[\"", "\"\\", ""]
        {
            assert!(without_constants(plain.as_bytes()).is_none(), "{plain}");
        }
    }

    #[test]
    fn orjson_reads_json() {
        let texts = [
            ("[-0, -0.0, 18446744073709551615, 1E2]", Some("[0,-0.0,18446744073709551615,100.0]")),
            ("12345678901234567890123", Some("1.2345678901234568e+22")),
            ("1e400", None),
            ("NaN", None),
            ("[Infinity]", None),
            ("-Infinity", None),
        ];
        for (text, expected) in texts {
            assert_eq!(
                Json::loads(text, JsonParser::Orjson).map(|value| value.to_text()).as_deref(),
                expected,
                "{text:?}"
            );
        }
    }
}
