//! Differences between the engines' message formats. Everything else is decoded the same way for all engines.

use crate::msgpack::{Reader, Token};

/// Message format of one engine.
///
/// Engines agree on topics, batches and map events. They differ in the fields that follow the medium in an array
/// `BlockStored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum EngineAdapter {
    /// Detects the format from the fields' types: no type has two meanings.
    #[default]
    Detect,
    /// vLLM: the adapter's name follows, then the extra keys of each block.
    Vllm,
    /// SGLang: no field follows, except in two releases. These have a map with the salt, after a field that may be nil.
    /// Components are understood, and so are the manager and origin in their places.
    Sglang,
    /// TensorRT-LLM: map events only, with multimodal items in a separate field.
    TensorRtLlm,
}

impl EngineAdapter {
    /// Meaning of the field at position `at` of an array `BlockStored`, counted from the field after the tag.
    pub(crate) fn stored_field(self, at: usize, reader: &Reader<'_>) -> StoredField {
        let common = STORED_FIELDS.get(at).map_or(StoredField::Skipped, |name| StoredField::Named(name));
        if at < SGLANG_FIELDS || self == Self::Vllm {
            return common;
        }
        let is_map = at < SGLANG_FIELDS + SALT_PLACES && matches!(reader.clone().next(), Ok(Token::Map(_)));
        match self {
            _ if is_map => StoredField::SaltMap,
            Self::Sglang if is_text_list(reader) => StoredField::Named("component_types"),
            // Without them, copies would be counted that the engine does not have.
            Self::Sglang if matches!(common, StoredField::Named("ownership" | "origin")) => common,
            Self::Sglang => StoredField::Skipped,
            Self::Detect | Self::Vllm | Self::TensorRtLlm => common,
        }
    }
}

/// Whether a list of texts follows.
fn is_text_list(reader: &Reader<'_>) -> bool {
    let mut reader = reader.clone();
    matches!(reader.next(), Ok(Token::Array(1..))) && matches!(reader.next(), Ok(Token::Text(_)))
}

/// Meaning of one field of an array `BlockStored`.
pub(crate) enum StoredField {
    /// The field that map events have under this name.
    Named(&'static str),
    /// A map with the salt.
    SaltMap,
    /// An unknown field, which is skipped.
    Skipped,
}

/// Fields of an array `BlockStored`, in order.
const STORED_FIELDS: [&str; 20] = [
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
    "skipped_parent_block_hash",
    "skipped_token_ids",
    "skipped_extra_keys",
    "origin",
    "component_types",
];
/// Number of leading fields that SGLang writes too.
const SGLANG_FIELDS: usize = 6;
/// Number of positions after them where the map with the salt may be.
const SALT_PLACES: usize = 2;
/// Number of leading fields that every release of every engine writes.
const STORED_FIELDS_MIN: usize = 4;

/// Name of the first mandatory field that is absent from an array `BlockStored` of this length.
pub(crate) fn missing_stored_field(len: usize) -> Option<&'static str> {
    STORED_FIELDS[..STORED_FIELDS_MIN].get(len).copied()
}
