//! What is particular to each engine's messages. All else is common to them and is read in one way.

use crate::decode::{Batch, BatchError, BatchOutline};
use crate::msgpack::{Reader, Token};
use crate::topic::{TopicError, TopicNames};

/// One engine's way of writing messages.
///
/// Engines agree on topics, batches and maps, and differ in what follows the medium in the array `BlockStored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum EngineAdapter {
    /// Whichever fits: what engines write differently has different types.
    #[default]
    Detect,
    /// vLLM: the adapter's name, then for each block what else is in its hash.
    Vllm,
    /// SGLang: nothing, or in two releases a map with the salt after a field that may be nil.
    Sglang,
    /// TensorRT-LLM: maps alone, with multimodal items in a field of their own.
    TensorRtLlm,
}

impl EngineAdapter {
    /// Who publishes under a topic.
    ///
    /// # Errors
    ///
    /// When the topic is not UTF-8.
    pub fn names(self, topic: &[u8]) -> Result<TopicNames<'_>, TopicError> {
        TopicNames::of(topic)
    }

    /// What a payload says. Linear in its length.
    ///
    /// # Errors
    ///
    /// When the payload is not a batch or is cut short.
    pub fn batch(self, payload: &[u8]) -> Result<Batch<'_>, BatchError> {
        BatchOutline::of(payload).map(|outline| outline.batch(payload, self))
    }

    /// What the field at this place of an array `BlockStored` is, counted from the one after the tag.
    pub(crate) fn stored_field(self, at: usize, reader: &Reader<'_>) -> StoredField {
        let common = STORED_FIELDS.get(at).map_or(StoredField::Skipped, |name| StoredField::Named(name));
        if at < SGLANG_FIELDS || self == Self::Vllm {
            return common;
        }
        let is_map = at < SGLANG_FIELDS + SALT_PLACES && matches!(reader.clone().next(), Ok(Token::Map(_)));
        match self {
            _ if is_map => StoredField::SaltMap,
            Self::Sglang => StoredField::Skipped,
            Self::Detect | Self::Vllm | Self::TensorRtLlm => common,
        }
    }
}

/// A field of an array `BlockStored`.
pub(crate) enum StoredField {
    /// One that maps have by this name.
    Named(&'static str),
    /// A map with the salt.
    SaltMap,
    /// Nothing that is known.
    Skipped,
}

/// Fields of an array `BlockStored` in order.
const STORED_FIELDS: [&str; 15] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "lookahead_token_ids",
];
/// So many of them SGLang writes as well.
const SGLANG_FIELDS: usize = 6;
/// In one of so many places after them there may be the map with the salt.
const SALT_PLACES: usize = 2;
/// The first fields of `BlockStored` have been in every release of every engine.
const STORED_FIELDS_MIN: usize = 4;

/// What the first absent field of an array `BlockStored` of this length is called, if it cannot do without.
pub(crate) fn missing_stored_field(len: usize) -> Option<&'static str> {
    STORED_FIELDS[..STORED_FIELDS_MIN].get(len).copied()
}
