//! 64-bit hashes in JSON, in forms that readers without 64-bit integers can parse.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema::{integer, integer_or_text, text};

/// Form in which 64-bit hashes are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HashForm {
    /// A JSON number.
    #[default]
    Number,
    /// A decimal string, for readers whose numbers have 53 bits.
    String,
}

/// Hash to be written in a form. A hash that was read has the form of a number.
#[derive(Debug, Clone, Copy)]
pub struct FormattedHash(pub u64, pub HashForm);

impl Serialize for FormattedHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            HashForm::Number => serializer.serialize_u64(self.0),
            HashForm::String => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for FormattedHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AnyHash::deserialize(deserializer).map(|AnyHash(hash)| Self(hash, HashForm::Number))
    }
}

impl PartialSchema for FormattedHash {
    fn schema() -> RefOr<Schema> {
        let description = "64-bit hash: an integer, or a decimal string if the request asks for it.";
        integer_or_text(description, integer(0), text("^[0-9]{1,20}$"))
    }
}

impl ToSchema for FormattedHash {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Hash")
    }
}

/// 64-bit hash read from JSON: an integer of either sign (the same bits), or a decimal or `0x` string.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(transparent)]
pub struct AnyHash(pub u64);

impl<'de> Deserialize<'de> for AnyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = AnyHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit hash as an integer, or as a decimal or 0x string")
            }

            fn visit_u64<E: de::Error>(self, hash: u64) -> Result<AnyHash, E> {
                Ok(AnyHash(hash))
            }

            fn visit_i64<E: de::Error>(self, hash: i64) -> Result<AnyHash, E> {
                Ok(AnyHash(hash.cast_unsigned()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AnyHash, E> {
                let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                    Some(digits) => u64::from_str_radix(digits, 16).ok(),
                    None => text.parse().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)),
                };
                parsed.map(AnyHash).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl PartialSchema for AnyHash {
    fn schema() -> RefOr<Schema> {
        let description = "64-bit hash: an integer of either sign (the same bits), or a decimal or 0x string.";
        let digits = text("^(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}|-[0-9]{1,19})$");
        integer_or_text(description, integer(isize::MIN), digits)
    }
}

impl ToSchema for AnyHash {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("GivenHash")
    }
}

/// Lists of local hashes, read in any form and written as numbers.
pub mod list {
    use std::fmt;

    use flash_indexer_core::LocalHash;
    use serde::Serializer;
    use serde::de::{self, Deserializer, SeqAccess};

    use super::AnyHash;

    /// Writes a list.
    pub fn serialize<S: Serializer>(hashes: &[LocalHash], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(hashes.iter().map(|hash| hash.0))
    }

    /// Reads a list.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LocalHash>, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Vec<LocalHash>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of 64-bit hashes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<LocalHash>, A::Error> {
                let mut hashes = Vec::new();
                while let Some(AnyHash(hash)) = list.next_element()? {
                    hashes.push(LocalHash(hash));
                }
                Ok(hashes)
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}
