//! Numbers, and their parsing, rounding and printing as Python does them.

use std::fmt;

use jinja_syntax::is_space;
use minijinja::Value;

use super::values::{Kind, kind};

/// A number that operators take. A truth value is 0 or 1.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// The number, if the value is one.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match kind(value) {
            Kind::Float(number) => Some(Self::Float(number)),
            other => other.integer().map(Self::Int),
        }
    }

    /// The number as a float.
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// A float as `repr()` prints it.
pub(super) struct Float(pub(super) f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        if number.is_nan() {
            return f.write_str("nan");
        }
        if number.is_infinite() {
            return f.write_str(if number > 0.0 { "inf" } else { "-inf" });
        }
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        match exponent.parse::<i32>() {
            Ok(exponent) if !(-4..16).contains(&exponent) => write!(f, "{digits}e{exponent:+03}"),
            // Rust prints the shortest digits that round-trip, without an exponent.
            _ => write!(f, "{number:?}"),
        }
    }
}

/// Python's `float()` of a string.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = without_underscores(text.trim_matches(is_space))?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text).to_ascii_lowercase();
    let named = matches!(unsigned.as_str(), "inf" | "infinity" | "nan");
    if !named && !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    text.parse().ok()
}

/// Python's `int()` of a string with a base.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let prefixed = !prefix.is_empty() && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let digits = if prefixed { digits[2..].strip_prefix('_').unwrap_or(&digits[2..]) } else { digits };
    let digits = without_underscores(digits)?;
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

/// Removes single underscores between digits. `None` if an underscore is elsewhere.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let misplaced = bytes.iter().enumerate().any(|(at, byte)| {
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
        *byte == b'_' && !(at > 0 && digit(at - 1) && digit(at + 1))
    });
    (!misplaced).then(|| text.replace('_', ""))
}

/// Python's `round()` of a float: ties go to the even digit.
pub(super) fn round(number: f64, digits: i128) -> f64 {
    if !number.is_finite() || digits > 300 {
        return number;
    }
    if digits < -300 {
        return 0.0 * number;
    }
    if digits >= 0 {
        // Formatting rounds the exact value, ties to even, as Python does.
        return format!("{number:.*}", usize::try_from(digits).unwrap_or(0)).parse().unwrap_or(number);
    }
    let unit = 10f64.powi(i32::try_from(-digits).unwrap_or(0));
    (number / unit).round_ties_even() * unit
}

/// Formats a float as `%e` does: one digit, the point, `precision` digits and the exponent.
pub(super) fn exponent_form(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.precision$e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{exponent:+03}")
}

/// Formats a float as `%g` does: `precision` significant digits, without trailing zeros.
pub(super) fn general_form(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if exponent < -4 || usize::try_from(exponent).is_ok_and(|exponent| exponent >= precision) {
        let text = exponent_form(number, precision - 1);
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, ""));
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let decimals = usize::try_from(precision as i64 - 1 - i64::from(exponent)).unwrap_or(0);
    without_zeros(&format!("{number:.decimals$}")).to_owned()
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}
