//! Python's `str()` and `repr()`.

use std::fmt::{self, Write};

pub(crate) use jinja_syntax::is_space;
use minijinja::Value;

use super::number::Float;
use super::values::{Form, Kind, kind};

/// A value as `str()` prints it.
pub(super) struct Str<'v>(pub(super) &'v Value);

/// A value as `repr()` prints it.
pub(super) struct Repr<'v>(pub(super) &'v Value);

/// A value as `str()` prints it.
pub(super) fn plain(value: &Value) -> String {
    match kind(value) {
        Kind::Text(text) => text.to_owned(),
        _ => Str(value).to_string(),
    }
}

/// Escapes a text for HTML, as `markupsafe` does.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('>', "&gt;").replace('<', "&lt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

impl fmt::Display for Str<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match kind(self.0) {
            Kind::Undefined => Ok(()),
            Kind::Text(text) => f.write_str(text),
            _ => fmt::Display::fmt(&Repr(self.0), f),
        }
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match kind(self.0) {
            Kind::Undefined => f.write_str("Undefined"),
            Kind::None => f.write_str("None"),
            Kind::Bool(true) => f.write_str("True"),
            Kind::Bool(false) => f.write_str("False"),
            Kind::Int(number) => write!(f, "{number}"),
            Kind::BigInt(number) => f.write_str(&number.digits),
            Kind::Float(number) => write!(f, "{}", Float(number)),
            Kind::Text(text) if self.0.is_safe() => {
                f.write_str("Markup(")?;
                quoted_text(f, text)?;
                f.write_char(')')
            }
            Kind::Text(text) => quoted_text(f, text),
            Kind::Sequence(sequence) => match sequence.form {
                Form::List => bracketed(f, "[", &sequence.items, "]"),
                Form::Tuple if sequence.items.len() == 1 => bracketed(f, "(", &sequence.items, ",)"),
                Form::Tuple | Form::Group => bracketed(f, "(", &sequence.items, ")"),
                Form::View(name) => {
                    f.write_str(name)?;
                    bracketed(f, "([", &sequence.items, "])")
                }
                Form::Range { start, stop, step: 1 } => write!(f, "range({start}, {stop})"),
                Form::Range { start, stop, step } => write!(f, "range({start}, {stop}, {step})"),
            },
            Kind::Dict(dict) => {
                f.write_char('{')?;
                for (at, (key, value)) in dict.pairs().iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{}: {}", Repr(key), Repr(value))?;
                }
                f.write_char('}')
            }
            Kind::Iterator(_) | Kind::Other => write!(f, "{}", self.0),
        }
    }
}

fn bracketed(f: &mut fmt::Formatter<'_>, open: &str, items: &[Value], close: &str) -> fmt::Result {
    f.write_str(open)?;
    for (at, item) in items.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(f, "{comma}{}", Repr(item))?;
    }
    f.write_str(close)
}

fn quoted_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    f.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c == quote => write!(f, "\\{c}")?,
            ' '..='~' => f.write_char(c)?,
            c if is_printable(c) => f.write_char(c)?,
            c => match c as u32 {
                code @ ..=0xff => write!(f, "\\x{code:02x}")?,
                code @ ..=0xffff => write!(f, "\\u{code:04x}")?,
                code => write!(f, "\\U{code:08x}")?,
            },
        }
    }
    f.write_char(quote)
}

/// Python's `str.isprintable` of a non-ASCII character. Rust's debug output has the same rule for a character that is not
/// the first one.
fn is_printable(c: char) -> bool {
    let text: String = ['a', c].into_iter().collect();
    text.escape_debug().count() == 2
}
