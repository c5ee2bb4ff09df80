//! Numbers and truth values of requests, as `pydantic` reads them for the engines' request models.
//!
//! Integers may be given as floats without a fraction, truth values or texts, and truth values as numbers or words.

use std::fmt;

use chat_template::Json;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// An integer of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaxInteger(pub i64);

/// A truth value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaxBool(pub bool);

/// The truth value of a field of a message or a tool. `None` if the field has none.
pub(super) fn truth_of(value: &Json) -> Option<bool> {
    if value.entries().is_some() || value.as_list().is_some() {
        return None;
    }
    // A number beyond the range of floats has no truth value.
    serde_json::from_str::<LaxBool>(&value.to_text()).ok().map(|LaxBool(truth)| truth)
}

impl<'de> Deserialize<'de> for LaxInteger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor).map(Self)
    }
}

impl<'de> Deserialize<'de> for LaxBool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BoolVisitor).map(Self)
    }
}

/// A text as an integer: digits with a sign, single underscores between them, a fraction of zeros, and space around all.
pub(super) fn integer_of_text(text: &str) -> Option<i64> {
    let text = text.trim();
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    let digits = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    let are_grouped =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    are_grouped.then(|| whole.replace('_', "").parse().ok())?
}

/// Reads an integer of 64 bits.
pub(super) struct IntegerVisitor;

impl Visitor<'_> for IntegerVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer of 64 bits")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<i64, E> {
        Ok(i64::from(truth))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
        i64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<i64, E> {
        // Both ends are floats. The upper one is the first float that is too large.
        let is_in_range = (i64::MIN as f64..-(i64::MIN as f64)).contains(&number);
        let integer = (is_in_range && number.fract() == 0.0).then_some(number as i64);
        integer.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<i64, E> {
        integer_of_text(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

struct BoolVisitor;

impl Visitor<'_> for BoolVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<bool, E> {
        Ok(truth)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<bool, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
        match number {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<bool, E> {
        match number {
            0.0 => Ok(false),
            1.0 => Ok(true),
            _ => Err(E::invalid_value(Unexpected::Float(number), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "t" | "y" | "yes" | "on" => Ok(true),
            "false" | "0" | "f" | "n" | "no" | "off" => Ok(false),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LaxBool, LaxInteger};

    /// Results of pydantic 2.14 for each value.
    #[test]
    fn integers_are_read_as_pydantic_reads_them() {
        let taken = [
            ("3", 3),
            ("3.0", 3),
            ("-0.0", 0),
            ("1e18", 1_000_000_000_000_000_000),
            ("true", 1),
            ("false", 0),
            ("\" 3 \"", 3),
            ("\"+3\"", 3),
            ("\"3.00\"", 3),
            ("\"-003.000\"", -3),
            ("\"1_0.0\"", 10),
            ("\"00_1\"", 1),
            ("\"-1_000_000\"", -1_000_000),
            ("\"\\t4\\n\"", 4),
            ("\"\\u00a05\\u2003\"", 5),
            ("\"9223372036854775807\"", i64::MAX),
        ];
        for (json, expected) in taken {
            let LaxInteger(number) = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
            assert_eq!(number, expected, "{json}");
        }
        let rejected = [
            "3.5",
            "1e30",
            "9.3e18",
            "[3]",
            "{}",
            "\"\"",
            "\"3.\"",
            "\".0\"",
            "\"1__0\"",
            "\"_1\"",
            "\"1_\"",
            "\"- 1\"",
            "\"1e1\"",
            "\"+-3\"",
            "\"3.0_0\"",
            "\"3..0\"",
            "\"1_.0\"",
            "\"-\"",
            "\"0x3\"",
            "\"\u{663}\"",
            "\"true\"",
            "9223372036854775808",
            "\"9223372036854775808\"",
        ];
        for json in rejected {
            assert!(serde_json::from_str::<LaxInteger>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn truth_values_are_read_as_pydantic_reads_them() {
        for json in ["true", "1", "1.0", "\"tRue\"", "\"yES\"", "\"on\"", "\"T\"", "\"1\"", "\"y\""] {
            assert_eq!(serde_json::from_str(json).ok(), Some(LaxBool(true)), "{json}");
        }
        for json in ["false", "0", "-0.0", "\"OFF\"", "\"nO\"", "\"f\"", "\"0\"", "\"n\""] {
            assert_eq!(serde_json::from_str(json).ok(), Some(LaxBool(false)), "{json}");
        }
        for json in
            ["2", "-1", "0.5", "\"\"", "\" true\"", "\"1.0\"", "\"01\"", "\"\u{ff2f}\u{ff2e}\"", "[]", "{}", "1e30"]
        {
            assert!(serde_json::from_str::<LaxBool>(json).is_err(), "{json}");
        }
    }
}
