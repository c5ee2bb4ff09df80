//! Reasons why an event cannot be applied to an index.

use crate::adapter_salt::ADAPTER_NAME_BYTES_MAX;

/// Reason why a decoded event cannot be applied to an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// No known engine uses this medium.
    #[error("unknown medium {medium:?}: update Flash Indexer, or report the medium")]
    UnknownMedium {
        /// The medium's name, truncated to 64 characters.
        medium: String,
    },
    /// The engine has moved blocks to a medium that no known engine uses.
    #[error("blocks were moved to the unknown medium {medium:?}: update Flash Indexer, or report the medium")]
    UnknownTarget {
        /// The medium's name, truncated to 64 characters.
        medium: String,
    },
    /// The engine's block size differs from the registered one.
    #[error(
        "the engine has blocks of {actual} tokens but was registered with {registered}: {}",
        match actual {
            0 => "no block has 0 tokens, so its publisher is at fault: update it".to_owned(),
            _ => format!("register it with block_size {actual}"),
        }
    )]
    BlockSize {
        /// Tokens per block of the engine.
        actual: u32,
        /// Tokens per block as registered.
        registered: u32,
    },
    /// The block size of a secondary cache group fits neither the registered one nor the group's own.
    #[error(
        "cache group {group} has blocks of {actual} tokens{}; supported is one size for each group, a multiple or a part of the registered {registered}: matches can be too long",
        .known.map(|known| format!(" after blocks of {known}")).unwrap_or_default()
    )]
    GroupBlockSize {
        /// The group's number.
        group: u32,
        /// Tokens per block of the store.
        actual: u32,
        /// Tokens per block as registered.
        registered: u32,
        /// Tokens per block of earlier stores of the group.
        known: Option<u32>,
    },
    /// The store is of a partial entry, which ends inside a block of its group. An index without it has matches that are too
    /// short, and never too long.
    #[error("cache group {group} has a partial entry of {actual} tokens beside blocks of {whole}: it is not indexed")]
    PartialEntry {
        /// The group's number.
        group: u32,
        /// Tokens of the entry.
        actual: u32,
        /// Tokens per block of the group.
        whole: u32,
    },
    /// The number of tokens does not match the number of hashes.
    #[error("{tokens} tokens for {blocks} blocks of {block_size}: update the engine's publisher")]
    TokenCount {
        /// Tokens in the event.
        tokens: usize,
        /// Hashes in the event.
        blocks: usize,
        /// Tokens per block.
        block_size: u32,
    },
    /// The adapter's name is too long.
    #[error(
        "the adapter's name has {bytes} bytes; at most {ADAPTER_NAME_BYTES_MAX} are allowed: load it under a shorter name"
    )]
    AdapterName {
        /// Length of the name, in bytes.
        bytes: usize,
    },
    /// The adapter's name contains a control character.
    #[error(
        "the adapter's name has the control character U+{:04X}: load it under a name without control characters",
        *.character as u32
    )]
    AdapterNameCharacter {
        /// The control character.
        character: char,
    },
    /// The kind of the cache group is not supported.
    #[error("cache group {group} ({kind}) of a hybrid model is not supported: matches can be too long")]
    HybridGroup {
        /// The group's number.
        group: u32,
        /// The group's attention kind.
        kind: String,
    },
    /// The rank has several cache groups, and the event names none of them.
    #[error("the event names no cache group, and the model has several")]
    UnnamedGroup,
    /// The blocks of a manager are cleared, and it is unknown which blocks these are.
    #[error(
        "failed to clear the blocks of the manager {manager:?}: the index does not know which blocks they are; clear the engine's prefix cache"
    )]
    ManagerUnknown {
        /// The manager's name, truncated to 64 characters.
        manager: String,
    },
    /// The blocks of a manager are cleared, and some of them may belong to another manager.
    #[error(
        "failed to clear the blocks of the manager {manager:?}: some of their copies may be another manager's; clear the engine's prefix cache"
    )]
    ManagerUncertain {
        /// The manager's name, truncated to 64 characters.
        manager: String,
    },
    /// An event changes blocks that have components, and does not name the components.
    #[error(
        "the engine has changed copies of blocks that have components, and did not name the components: clear the engine's prefix cache"
    )]
    ComponentsUnknown,
    /// The rank has too many salted blocks, or the salt of the store's blocks is forgotten.
    #[error(
        "the rank has too many salted blocks to remember their salts: the store is left out; clear the engine's prefix cache"
    )]
    SaltedBlocks,
    /// A removal of a shared cache names chunks with an unknown number of blocks.
    #[error(
        "the shared cache has removed blocks before it has stored any: how many blocks each spans is not known; clear the cache"
    )]
    ChunkSizeUnknown,
}

impl TranslateError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownMedium { .. } | Self::UnknownTarget { .. } => "unknown_medium",
            Self::BlockSize { .. } | Self::GroupBlockSize { .. } => "block_size_mismatch",
            Self::PartialEntry { .. } => "partial_entry",
            Self::TokenCount { .. } => "token_count_mismatch",
            Self::AdapterName { .. } => "adapter_name_too_long",
            Self::AdapterNameCharacter { .. } => "adapter_name_control_character",
            Self::HybridGroup { .. } => "hybrid_group",
            Self::UnnamedGroup => "unnamed_group",
            Self::ManagerUnknown { .. } | Self::ManagerUncertain { .. } => "manager_unknown",
            Self::ComponentsUnknown => "components_unknown",
            Self::SaltedBlocks => "salted_blocks",
            Self::ChunkSizeUnknown => "chunk_size_unknown",
        }
    }
}
