//! `/text_by_hash`.

use flash_indexer_core::LocalHash;
use flash_indexer_types::hashes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scope::request_with_scope;

request_with_scope! {
    /// Body of `POST /text_by_hash`.
    #[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
    #[serde(from = "PrefixTextQueryFields")]
    pub struct PrefixTextQuery, read as PrefixTextQueryFields {
        /// The local hashes of the blocks of a prefix.
        #[serde(with = "hashes::list")]
        #[schema(value_type = Vec<hashes::AnyHash>)]
        pub block_hashes: Vec<LocalHash>,
        /// Number of leading blocks whose text is `before`; none if absent.
        #[serde(default)]
        pub from_block: usize,
    }
}

/// Response of `POST /text_by_hash`. Both texts have at most 64 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrefixText {
    /// The end of the text of the blocks before `from_block`.
    pub before: String,
    /// Whether that text has a beginning that is left out; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_cut: bool,
    /// The beginning of the text of the other blocks, with special tokens.
    pub text: String,
    /// Whether that text has an end that is left out; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text_cut: bool,
}
