//! `tojson`: Python's `json.dumps`.

use std::fmt::Write;

use minijinja::{Error, State, Value};

use super::arguments::bind;
use super::limits::spend;
use super::number::Float;
use super::text::plain;
use super::values::{Form, Kind, error, is_true, items, kind, kind_name};

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [ensure_ascii, indent, separators, sort_keys]) =
        bind("tojson", arguments, ["x"], ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent.as_ref().map(kind) {
        None | Some(Kind::None) => None,
        Some(Kind::Text(text)) => Some(text.to_owned()),
        Some(Kind::Int(width)) => Some(" ".repeat(usize::try_from(width.clamp(0, 100)).unwrap_or(0))),
        Some(Kind::Bool(truth)) => Some(" ".repeat(usize::from(truth))),
        Some(_) => return Err(error("tojson() needs an integer or a string as its indent".to_owned())),
    };
    let (item_separator, key_separator) = match separators {
        Some(separators) if !separators.is_none() => match &items(state, &separators)?[..] {
            [item, key] => (plain(item), plain(key)),
            _ => return Err(error("tojson() needs two separators".to_owned())),
        },
        _ if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        ascii: ensure_ascii.as_ref().is_some_and(is_true),
        sorted: sort_keys.as_ref().is_some_and(is_true),
        indent,
        item_separator,
        key_separator,
        ..Writer::default()
    };
    writer.value(&value)?;
    spend(state, writer.out.len())?;
    Ok(Value::from(writer.out))
}

/// Writes a value as compact JSON, outside of a rendering.
pub(crate) fn to_json(value: &Value) -> Result<String, Error> {
    write(value, ",", ":")
}

/// Writes a value as `json.dumps(value, ensure_ascii=False)` does, outside of a rendering.
pub(crate) fn to_spaced_json(value: &Value) -> Result<String, Error> {
    write(value, ", ", ": ")
}

fn write(value: &Value, item_separator: &str, key_separator: &str) -> Result<String, Error> {
    let mut writer = Writer {
        item_separator: item_separator.to_owned(),
        key_separator: key_separator.to_owned(),
        ..Writer::default()
    };
    writer.value(value)?;
    Ok(writer.out)
}

#[derive(Default)]
struct Writer {
    out: String,
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    level: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match kind(value) {
            Kind::None => self.out.push_str("null"),
            Kind::Bool(truth) => self.out.push_str(if truth { "true" } else { "false" }),
            Kind::Int(number) => drop(write!(self.out, "{number}")),
            Kind::BigInt(number) => self.out.push_str(&number.digits),
            Kind::Float(number) => self.out.push_str(&float(number)),
            Kind::Text(text) => self.text(text),
            Kind::Sequence(sequence) if matches!(sequence.form, Form::List | Form::Tuple) => {
                self.open('[', sequence.items.is_empty());
                for (at, item) in sequence.items.iter().enumerate() {
                    self.separate(at);
                    self.value(item)?;
                }
                self.close(']', sequence.items.is_empty());
            }
            Kind::Dict(dict) => {
                let mut pairs = dict.pairs();
                if self.sorted {
                    sort(&mut pairs)?;
                }
                self.open('{', pairs.is_empty());
                for (at, (key, value)) in pairs.iter().enumerate() {
                    self.separate(at);
                    self.text(&key_text(key)?);
                    self.out.push_str(&self.key_separator);
                    self.value(value)?;
                }
                self.close('}', pairs.is_empty());
            }
            _ => return Err(error(format!("Object of type {} is not JSON serializable", kind_name(value)))),
        }
        Ok(())
    }

    fn open(&mut self, bracket: char, is_empty: bool) {
        self.out.push(bracket);
        if !is_empty {
            self.level += 1;
            self.new_line();
        }
    }

    fn close(&mut self, bracket: char, is_empty: bool) {
        if !is_empty {
            self.level -= 1;
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn separate(&mut self, at: usize) {
        if at > 0 {
            self.out.push_str(&self.item_separator);
            self.new_line();
        }
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.level {
                self.out.push_str(indent);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                // Writing to a string cannot fail.
                '\0'..='\x1f' => drop(write!(self.out, "\\u{:04x}", c as u32)),
                c if self.ascii && !matches!(c, ' '..='\x7f') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn float(number: f64) -> String {
    match number {
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ if number.is_nan() => "NaN".to_owned(),
        _ => Float(number).to_string(),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match kind(key) {
        Kind::Text(text) => Ok(text.to_owned()),
        Kind::None => Ok("null".to_owned()),
        Kind::Bool(truth) => Ok(truth.to_string()),
        Kind::Int(number) => Ok(number.to_string()),
        Kind::Float(number) => Ok(float(number)),
        _ => Err(error(format!("keys must be str, int, float, bool or None, not {}", kind_name(key)))),
    }
}

fn sort(pairs: &mut [(Value, Value)]) -> Result<(), Error> {
    let texts = pairs.iter().all(|(key, _)| key.as_str().is_some());
    let numbers = pairs.iter().all(|(key, _)| key.is_number());
    if !texts && !numbers {
        return Err(error("tojson() cannot sort keys of different types".to_owned()));
    }
    pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(())
}
