//! Engine events, field by field, borrowed from the message.

use flash_indexer_core::SequenceHash;

/// One event of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent<'a> {
    /// `BlockStored`.
    Stored(BlockStored<'a>),
    /// `BlockRemoved`.
    Removed(BlockRemoved<'a>),
    /// `AllBlocksCleared` of the whole cache.
    Cleared,
    /// `AllBlocksCleared` of a part of the cache.
    ClearedScope(ScopedClear<'a>),
}

/// Blocks that the engine has added to its cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockStored<'a> {
    /// Sequence hashes of the blocks, in sequence order.
    pub block_hashes: Vec<SequenceHash>,
    /// The block before the first one; none at the start of a sequence.
    pub parent_block_hash: Option<SequenceHash>,
    /// Tokens of all blocks, concatenated.
    pub token_ids: TokenIds,
    /// Tokens per block.
    pub block_size: u32,
    /// Number of the LoRA adapter; its only identifier in releases without `lora_name`.
    pub lora_id: Option<i64>,
    /// Memory that holds the blocks.
    pub medium: Option<&'a str>,
    /// Name of the LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// Extra inputs of each block's hash; none for a block without any.
    pub extra_keys: Option<Vec<Option<Vec<ExtraKey<'a>>>>>,
    /// Salt of the whole sequence, in engines that have a field for it.
    pub cache_salt: Option<&'a str>,
    /// Cache group of a hybrid model.
    pub group: CacheGroup<'a>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Manager of the blocks.
    pub ownership: Option<&'a str>,
    /// Session that caused the store.
    pub session_id: Option<&'a str>,
    /// Lookahead tokens of each block, in speculative engines.
    pub lookahead_token_ids: Option<Vec<Vec<u32>>>,
}

/// Blocks that the engine has removed from its cache.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockRemoved<'a> {
    /// Sequence hashes of the blocks.
    pub block_hashes: Vec<SequenceHash>,
    /// Memory that held the blocks.
    pub medium: Option<&'a str>,
    /// Number of the cache group in a hybrid model.
    pub group_idx: Option<u32>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Manager of the blocks.
    pub ownership: Option<&'a str>,
}

/// Part of the cache that the engine has dropped: the blocks to which every field that is present applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScopedClear<'a> {
    /// Memory that held the blocks.
    pub medium: Option<&'a str>,
    /// Manager of the blocks.
    pub ownership: Option<&'a str>,
    /// Number of the cache group in a hybrid model.
    pub group_idx: Option<u32>,
}

/// Cache group of a hybrid model, which keeps several caches side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheGroup<'a> {
    /// Number of the group; engines with a single group may omit it.
    pub idx: Option<u32>,
    /// Attention kind: `full_attention`, `sliding_window`, …
    pub kind: Option<&'a str>,
    /// Size of the sliding window, in tokens.
    pub sliding_window: Option<u32>,
}

impl CacheGroup<'_> {
    /// Whether the group can be primary: a group with full attention, or the only group.
    #[must_use]
    pub fn can_be_primary(&self) -> bool {
        self.kind.is_none_or(|kind| FULL_ATTENTION.contains(&kind))
    }
}

/// Attention kinds that need a whole prefix.
pub(crate) const FULL_ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Tokens of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenIds {
    /// One token for each position.
    Plain(Vec<u32>),
    /// The token of each position and the token after it: EAGLE-style speculative pages.
    Bigrams(Vec<[u32; 2]>),
}

impl TokenIds {
    /// Number of positions covered.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(tokens) => tokens.len(),
            Self::Bigrams(pairs) => pairs.len(),
        }
    }

    /// Whether the store carries no tokens: its blocks are named by sequence hash alone.
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

/// Extra input of a block's hash besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A bare text: an adapter's name, a salt, or a multimodal item in older releases.
    Text(&'a str),
    /// An adapter, tagged as one.
    Lora(&'a str),
    /// A salt, tagged as one.
    Salt(&'a str),
    /// A multimodal item.
    Item {
        /// The item's identity.
        id: &'a str,
        /// Where the item starts relative to the block, in tokens; negative when before it.
        offset: i64,
    },
    /// Any other key, as MessagePack. It counts as part of the block's identity.
    Opaque(&'a [u8]),
}
