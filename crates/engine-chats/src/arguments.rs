//! Arguments of tool calls: JSON in a string, read as Python's `json.loads` or `orjson.loads` reads it.

use chat_template::Json;

/// Maximum nesting of arguments. Templates have the same limit.
const NESTING_MAX: usize = 200;

/// The parser that an engine uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Parser {
    /// Python's own. Unlike JSON, it knows `NaN`, `Infinity` and `-Infinity`; a float beyond the range is infinite, and
    /// integers have any size. A lone surrogate, which it keeps, is rejected here: no tokenizer accepts it.
    Json,
    /// `orjson`, which takes JSON only. Integers beyond 64 bits become floats, and floats beyond the range are rejected.
    Orjson,
}

/// Parses a JSON text. `None` if the parser rejects it.
pub(super) fn loads(text: &str, parser: Parser) -> Option<Json> {
    let mut reader = Reader { text, at: 0, depth: 0, parser };
    reader.skip_space();
    let value = reader.value()?;
    reader.skip_space();
    (reader.at == text.len()).then_some(value)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    parser: Parser,
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
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::list),
            b'n' => self.skip("null").then(Json::null),
            b't' => self.skip("true").then(|| Json::from(true)),
            b'f' => self.skip("false").then(|| Json::from(false)),
            b'N' | b'I' if self.parser == Parser::Orjson => None,
            b'N' => self.skip("NaN").then(|| Json::from(f64::NAN)),
            b'I' => self.skip("Infinity").then(|| Json::from(f64::INFINITY)),
            b'-' if self.parser == Parser::Json && self.skip("-Infinity") => Some(Json::from(f64::NEG_INFINITY)),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Json>) -> Option<Json> {
        self.depth += 1;
        self.at += 1;
        let value = if self.depth <= NESTING_MAX { read(self) } else { None };
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Option<Json> {
        let mut entries = Vec::new();
        self.skip_space();
        if self.skip("}") {
            return Json::object(entries).ok();
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return None;
            }
            let key = self.string()?;
            self.skip_space();
            if !self.skip(":") {
                return None;
            }
            self.skip_space();
            entries.push((key, self.value()?));
            self.skip_space();
            if self.skip("}") {
                return Json::object(entries).ok();
            }
            if !self.skip(",") {
                return None;
            }
        }
    }

    fn list(&mut self) -> Option<Json> {
        let mut items: Vec<Json> = Vec::new();
        self.skip_space();
        if self.skip("]") {
            return Json::list(items).ok();
        }
        loop {
            self.skip_space();
            items.push(self.value()?);
            self.skip_space();
            if self.skip("]") {
                return Json::list(items).ok();
            }
            if !self.skip(",") {
                return None;
            }
        }
    }

    /// Reads a string from its quote on. JSON and Python agree on strings.
    fn string(&mut self) -> Option<String> {
        let mut strings = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
        let text = strings.next()?.ok()?;
        self.at += strings.byte_offset();
        Some(text)
    }

    fn has_integer(&self, number: i128) -> bool {
        self.parser == Parser::Json || (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number)
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
        match number.parse::<i128>() {
            Ok(integer) if !is_float && self.has_integer(integer) => Some(Json::from(integer)),
            _ => {
                let number = number.parse::<f64>().ok()?;
                (self.parser == Parser::Json || number.is_finite()).then(|| Json::from(number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Parser, loads};

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
            ("\"\\ud83d\\ude00\\u00e9\\/\"", Some("\"😀é/\"")),
            ("{\"a\": ", None),
            ("{'a': 1}", None),
            ("{\"a\": 1} x", None),
            ("{\"a\": 1,}", None),
            ("[1,]", None),
            ("01", None),
            ("+1", None),
            ("1.", None),
            ("\"\\ud800\"", None),
            ("\"a\nb\"", None),
            ("\u{feff}{}", None),
            ("", None),
        ];
        for (text, expected) in texts {
            assert_eq!(loads(text, Parser::Json).map(|value| value.to_text()).as_deref(), expected, "{text:?}");
        }
        assert!(loads(&"[".repeat(100_000), Parser::Json).is_none());
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
            assert_eq!(loads(text, Parser::Orjson).map(|value| value.to_text()).as_deref(), expected, "{text:?}");
        }
    }
}
