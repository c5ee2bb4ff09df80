//! JSON of the pull API: events and their values. Integers may be written as texts.

use std::borrow::Cow;
use std::fmt;

use flash_indexer_core::SequenceHash;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::value::RawValue;

/// An event, whose data is decoded later.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    pub(super) event_id: Unsigned,
    /// Tokens of the attention window of the block's cache; negative for caches without one.
    pub(super) window_size: Option<i64>,
    pub(super) attention_dp_rank: Option<u32>,
    /// Number of the cache, in releases with several caches of one window.
    pub(super) layer_group_id: Option<u32>,
    #[serde(borrow)]
    pub(super) data: &'a RawValue,
}

/// The type of an event's data.
#[derive(Deserialize)]
pub(super) struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) name: Cow<'a, str>,
}

#[derive(Deserialize)]
pub(super) struct Stored<'a> {
    pub(super) parent_hash: Option<Hash>,
    #[serde(borrow)]
    pub(super) blocks: Vec<StoredBlock<'a>>,
}

#[derive(Deserialize)]
pub(super) struct StoredBlock<'a> {
    pub(super) block_hash: Hash,
    pub(super) tokens: Vec<Token>,
    #[serde(default)]
    pub(super) cache_level: u32,
    #[serde(borrow)]
    pub(super) mm_keys: Option<Vec<MultimodalKey<'a>>>,
    #[serde(borrow)]
    pub(super) cache_salt: Option<Cow<'a, str>>,
    pub(super) lora_id: Option<i64>,
    #[serde(borrow)]
    pub(super) lora_name: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
pub(super) struct Token {
    pub(super) token_id: Unsigned,
    pub(super) token_extra_id: Option<Unsigned>,
}

#[derive(Deserialize)]
pub(super) struct MultimodalKey<'a> {
    #[serde(borrow)]
    pub(super) hash: Cow<'a, str>,
    #[serde(default)]
    pub(super) start_offset: i64,
}

#[derive(Deserialize)]
pub(super) struct Removed {
    pub(super) block_hashes: Vec<Hash>,
}

#[derive(Deserialize)]
pub(super) struct Updated {
    pub(super) block_hash: Hash,
    /// None if only the block's priority has changed.
    pub(super) cache_level: Option<LevelChange>,
}

#[derive(Deserialize)]
pub(super) struct LevelChange {
    pub(super) old_value: u32,
    pub(super) new_value: u32,
}

/// A non-negative integer, also as a decimal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsigned(pub(super) u64);

/// A sequence hash: an integer of 64 bits with or without a sign, a decimal text, or a hexadecimal digest, of which the last
/// 64 bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hash(pub(super) SequenceHash);

impl<'de> Deserialize<'de> for Unsigned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Integer { what: "an integer of at least 0", parse: decimal, allows_sign: false })
            .map(Self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Integer { what: "a hash: an integer or a digest", parse: digest, allows_sign: true })
            .map(|hash| Self(SequenceHash(hash)))
    }
}

struct Integer {
    what: &'static str,
    parse: fn(&str) -> Option<u64>,
    allows_sign: bool,
}

impl Visitor<'_> for Integer {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        match u64::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) if self.allows_sign => Ok(value.cast_unsigned()),
            Err(_) => Err(E::custom("the integer is negative")),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        (self.parse)(text).ok_or_else(|| E::custom(format_args!("the text is not {}", self.what)))
    }
}

fn decimal(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// Longest digest, in hexadecimal digits.
const DIGITS_MAX: usize = 128;

fn digest(text: &str) -> Option<u64> {
    if let Some(hash) = decimal(text).or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)) {
        return Some(hash);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_digest =
        !digits.is_empty() && digits.len() <= DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let last = digits.get(digits.len().saturating_sub(16)..).filter(|_| is_digest)?;
    u64::from_str_radix(last, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_a_number_or_a_text() {
        let hash = |json: &str| serde_json::from_str::<Hash>(json).ok().map(|Hash(SequenceHash(hash))| hash);
        for (json, expected) in [
            ("7", 7),
            ("18446744073709551615", u64::MAX),
            ("-1", u64::MAX),
            (r#""7""#, 7),
            (r#""-1""#, u64::MAX),
            (r#""18446744073709551615""#, u64::MAX),
            (r#""0x1F""#, 0x1f),
            (r#""00000000000000000000000000000000000000000000000000000000deadbeef""#, 0xdead_beef),
            (r#""aaaaaaaaaaaaaaaa0123456789abcdef""#, 0x0123_4567_89ab_cdef),
        ] {
            assert_eq!(hash(json), Some(expected), "{json}");
        }
        for json in ["1.5", "null", "[]", r#""""#, r#""0x""#, r#""block""#, r#""ä123456789abcdef""#] {
            assert_eq!(hash(json), None, "{json}");
        }
    }

    #[test]
    fn a_token_is_a_number_or_a_decimal_text() {
        let token = |json: &str| serde_json::from_str::<Unsigned>(json).ok().map(|Unsigned(token)| token);
        assert_eq!((token("5"), token(r#""5""#)), (Some(5), Some(5)));
        for json in ["-5", r#""-5""#, "5.5", r#""0x5""#, "true"] {
            assert_eq!(token(json), None, "{json}");
        }
    }
}
