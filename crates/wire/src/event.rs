//! Engine events, field by field, borrowed from the message.

use flash_indexer_core::hashing::{Salt, TokenWindow};
use flash_indexer_core::{LocalHash, SequenceHash};

/// One event of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent<'a> {
    /// `BlockStored`.
    Stored(BlockStored<'a>),
    /// `BlockRemoved`.
    Removed(BlockRemoved<'a>),
    /// `BlockTransferred`.
    Transferred(BlockTransferred<'a>),
    /// `BlockInactive`.
    Inactive(BlockInactive),
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
    /// Blocks before the first one that the engine has not published, because it does not hold them.
    pub skipped: Option<Box<SkippedBlocks<'a>>>,
    /// Whether the engine has computed the blocks or found them in its cache.
    pub origin: Option<StoreOrigin>,
    /// Components of a hybrid model that hold the blocks, in engines that name them.
    pub components: Option<Components>,
}

impl BlockStored<'_> {
    /// Whether the engine computed the blocks or found them in the cache. A store that names components is the state of its
    /// blocks and adds no copy, like one of reused blocks.
    #[must_use]
    pub fn effective_origin(&self) -> Option<StoreOrigin> {
        match self.components {
            Some(_) if self.group.idx.is_none() => Some(StoreOrigin::Reused),
            _ => self.origin,
        }
    }
}

/// Blocks between the last published ancestor of a store and its parent, with their content. The engine does not hold them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SkippedBlocks<'a> {
    /// The published ancestor; none at the start of a sequence.
    pub parent_block_hash: Option<SequenceHash>,
    /// Tokens of the skipped blocks, concatenated; empty if none is skipped.
    pub token_ids: TokenIds,
    /// Extra inputs of each skipped block's hash.
    pub extra_keys: Option<Vec<Option<Vec<ExtraKey<'a>>>>>,
}

flash_indexer_core::named_enum! {
    /// Whether stored blocks are new in the cache.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StoreOrigin {
        /// The engine has computed them.
        New = "NEW",
        /// A request has found them in the cache: no copy was added.
        Reused = "REUSED",
    }
}

/// Components of a hybrid model of SGLang, each with its own cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Components {
    /// Full attention.
    pub full: bool,
    /// Sliding-window attention.
    pub swa: bool,
    /// Recurrent states.
    pub mamba: bool,
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
    /// Copies of each block that are left in that memory, in engines that publish them.
    pub remaining_copy_counts: Option<Vec<u32>>,
    /// Why the blocks were removed.
    pub reason: Option<RemovalReason>,
}

flash_indexer_core::named_enum! {
    /// Why an engine has removed blocks from a memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RemovalReason {
        /// The memory was full.
        Evicted = "evicted",
        /// The blocks were moved to a slower memory.
        Demoted = "demoted",
    }
}

impl RemovalReason {
    /// Reason that an engine's text names; none for other texts.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "evicted" | "eviction" | "evict" | "capacity" | "capacity_eviction" => Some(Self::Evicted),
            "demoted" | "demotion" | "demote" | "offloaded" | "moved" => Some(Self::Demoted),
            _ => None,
        }
    }
}

/// Blocks that the engine has moved from one memory to another.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockTransferred<'a> {
    /// Sequence hashes of the blocks.
    pub block_hashes: Vec<SequenceHash>,
    /// Memory that held the blocks.
    pub from_medium: Option<&'a str>,
    /// Memory that holds the blocks now.
    pub to_medium: Option<&'a str>,
    /// Number of the cache group in a hybrid model.
    pub group_idx: Option<u32>,
}

/// Blocks that no request uses any more. The engine still holds them, and evicts them first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockInactive {
    /// Sequence hashes of the blocks.
    pub block_hashes: Vec<SequenceHash>,
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
    /// No token: a relay has replaced the tokens by the local hashes of the blocks.
    Hashed(HashedTokens),
}

/// Local hashes in the place of a store's tokens. They include the adapter, the salt and the multimodal items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedTokens {
    /// Number of the replaced tokens; not zero.
    pub count: u32,
    /// Token window of the hashes.
    pub window: TokenWindow,
    /// Local hash of each block; empty for a store of a secondary cache group, which needs none.
    pub local_hashes: Vec<LocalHash>,
    /// The salt that the hashes include.
    pub salt: Option<Salt>,
}

impl TokenIds {
    /// Number of positions covered.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(tokens) => tokens.len(),
            Self::Bigrams(pairs) => pairs.len(),
            Self::Hashed(hashed) => hashed.count as usize,
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
