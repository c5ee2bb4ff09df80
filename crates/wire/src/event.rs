//! An engine's events, field by field, borrowed from the message.

use flash_indexer_core::SequenceHash;

/// One event of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent<'a> {
    /// `BlockStored`.
    Stored(BlockStored<'a>),
    /// `BlockRemoved`.
    Removed(BlockRemoved<'a>),
    /// `AllBlocksCleared`.
    Cleared,
}

/// Blocks that the engine has put into its cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockStored<'a> {
    /// The engine's names of the blocks, in sequence order.
    pub block_hashes: Vec<SequenceHash>,
    /// The block before the first one; none at the start of a sequence.
    pub parent_block_hash: Option<SequenceHash>,
    /// Tokens of all blocks, one after the other.
    pub token_ids: TokenIds,
    /// Tokens in a block.
    pub block_size: u32,
    /// Number of the LoRA adapter, in releases without `lora_name` its only mark.
    pub lora_id: Option<i64>,
    /// Memory that the blocks lie in.
    pub medium: Option<&'a str>,
    /// Name of the LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// For each block what else went into its hash; none where nothing did.
    pub extra_keys: Option<Vec<Option<Vec<ExtraKey<'a>>>>>,
    /// Salt of the whole sequence, where it has a field of its own.
    pub cache_salt: Option<&'a str>,
    /// Cache group of a hybrid model.
    pub group: CacheGroup<'a>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Who manages the blocks.
    pub ownership: Option<&'a str>,
    /// Session that caused the store.
    pub session_id: Option<&'a str>,
    /// For each block the tokens that a speculative engine looked ahead.
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
}

/// Blocks that the engine has dropped from its cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockRemoved<'a> {
    /// The engine's names of the blocks.
    pub block_hashes: Vec<SequenceHash>,
    /// Memory that the blocks lay in.
    pub medium: Option<&'a str>,
    /// Cache group of a hybrid model, by number.
    pub group_idx: Option<u32>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Who managed the blocks.
    pub ownership: Option<&'a str>,
}

/// One of the caches that a hybrid model keeps side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheGroup<'a> {
    /// Its number; engines with a single group may leave it out.
    pub idx: Option<u32>,
    /// What it attends to: `full_attention`, `sliding_window`, …
    pub kind: Option<&'a str>,
    /// Tokens that a sliding window sees.
    pub sliding_window: Option<u32>,
}

impl CacheGroup<'_> {
    /// Whether it can be the group whose stores tell what blocks contain: one with full attention, or the only one.
    #[must_use]
    pub fn tells_content(&self) -> bool {
        self.kind.is_none_or(|kind| FULL_ATTENTION.contains(&kind))
    }
}

/// Kinds of groups that need a whole prefix.
pub(crate) const FULL_ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Tokens of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenIds {
    /// One token a position.
    Plain(Vec<u32>),
    /// Each position with the token after it: EAGLE-style speculative pages.
    Bigrams(Vec<[u32; 2]>),
}

impl TokenIds {
    /// Positions covered.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(tokens) => tokens.len(),
            Self::Bigrams(pairs) => pairs.len(),
        }
    }

    /// Whether the store names blocks without their content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for TokenIds {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

/// Something besides tokens that went into a block's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A bare text: an adapter's name, a salt, or in older releases a multimodal item.
    Text(&'a str),
    /// An adapter, marked as such.
    Lora(&'a str),
    /// A salt, marked as such.
    Salt(&'a str),
    /// A multimodal item and where it starts relative to the block, in tokens.
    Item {
        /// The item's identity.
        id: &'a str,
        /// Negative when it starts before the block.
        offset: i64,
    },
    /// Anything else, as MessagePack: kept as part of the content's identity.
    Opaque(&'a [u8]),
}
