//! From what an engine says to what an index understands.

mod content;
mod groups;
mod memory;
mod recent;

use flash_indexer_core::groups::{GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, Salt, TokenWindow};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};

use self::content::Content;
use self::groups::Groups;
pub use self::groups::{GroupRole, KnownGroup};
pub use self::memory::{CONTENTS_MAX, RecentBlock};
pub use self::recent::Age;
use self::recent::Recent;
use crate::event::{BlockRemoved, BlockStored, EngineEvent, TokenIds};
use crate::space::{ADAPTER_NAME_BYTES_MAX, AdapterSalt};

/// What is known of a rank before its first event.
#[derive(Debug, Clone)]
pub struct TranslatorOptions {
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Adapter of events that name none.
    pub lora_name: Option<String>,
    /// What a removal means: engines that tell of each copy are the rule.
    pub removed_copies: RemovedCopies,
}

/// An event that was understood but cannot be put into an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The memory has a name that no known engine uses.
    #[error("unknown medium {medium:?}")]
    UnknownMedium {
        /// The name.
        medium: String,
    },
    /// The engine's blocks have another size than the one registered.
    #[error(
        "the engine has blocks of {actual} tokens but was registered with {registered}: register it with block_size {actual}"
    )]
    BlockSize {
        /// Tokens in the engine's blocks.
        actual: u32,
        /// Tokens in the blocks that were registered.
        registered: u32,
    },
    /// Tokens and hashes do not fit together.
    #[error("{tokens} tokens for {blocks} blocks of {block_size}")]
    TokenCount {
        /// Tokens in the event.
        tokens: usize,
        /// Hashes in the event.
        blocks: usize,
        /// Tokens in a block.
        block_size: u32,
    },
    /// The adapter's name is longer than any that is retained.
    #[error(
        "the adapter's name has {bytes} bytes; at most {ADAPTER_NAME_BYTES_MAX} are allowed: load it under a shorter name"
    )]
    AdapterName {
        /// Its length.
        bytes: usize,
    },
    /// The adapter's name has a control character.
    #[error(
        "the adapter's name has the control character U+{:04X}: load it under a name without control characters",
        *.character as u32
    )]
    AdapterNameCharacter {
        /// The character.
        character: char,
    },
    /// A cache group of which nobody knows what it must hold.
    #[error("cache group {group} ({kind}) of a hybrid model is not understood: matches can be too long")]
    HybridGroup {
        /// Its number.
        group: u32,
        /// What it attends to.
        kind: String,
    },
    /// There are several cache groups, and the event does not say which one it is about.
    #[error("an event of a model with several cache groups names none of them")]
    UnnamedGroup,
}

impl Unusable {
    /// A short name for counting.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownMedium { .. } => "unknown_medium",
            Self::BlockSize { .. } => "block_size_mismatch",
            Self::TokenCount { .. } => "token_count_mismatch",
            Self::AdapterName { .. } => "adapter_name_too_long",
            Self::AdapterNameCharacter { .. } => "adapter_name_control_character",
            Self::HybridGroup { .. } => "hybrid_group",
            Self::UnnamedGroup => "unnamed_group",
        }
    }
}

/// What one event of an engine changes, in order: nearly always one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translated {
    /// The first change.
    pub first: RankEvent,
    /// What else changes.
    pub rest: Vec<RankEvent>,
}

impl From<BlockEvent> for Translated {
    fn from(event: BlockEvent) -> Self {
        Self { first: RankEvent::Indexed(event), rest: Vec::new() }
    }
}

impl From<GroupChange> for Translated {
    fn from(change: GroupChange) -> Self {
        Self { first: RankEvent::Secondary(change), rest: Vec::new() }
    }
}

impl IntoIterator for Translated {
    type Item = RankEvent;
    type IntoIter = std::iter::Chain<std::iter::Once<RankEvent>, std::vec::IntoIter<RankEvent>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.rest)
    }
}

/// What a block contains and what it follows.
type KnownBlock = (Option<SequenceHash>, LocalHash);

/// Salted blocks remembered in each of two generations.
const SALTED_BLOCKS_MAX: usize = 1 << 19;
/// Blocks of an engine with several tiers whose content is remembered, in each of two generations.
const KNOWN_BLOCKS_MAX: usize = 1 << 18;

/// Translates the events of one rank, in order.
///
/// It remembers what events leave out: salts, which vLLM names only with a sequence's first block,
/// which cache groups exist, and, of an engine that offloads, what blocks contain: it tells of a copy in
/// a slower tier by name alone, and that may be after the block was dropped where its content was told.
/// Whoever goes on in the middle of a stream must be told all of this.
/// Memory: 16 bytes for each salted block and 32 for each block of an engine that offloads, up to a bound.
#[derive(Debug)]
pub struct Translator {
    options: TranslatorOptions,
    hasher: LocalHasher,
    salts: Recent<Salt>,
    /// None until the rank names another tier than the device.
    told: Option<Recent<KnownBlock>>,
    groups: Groups,
    window: TokenWindow,
    space: AdapterSalt,
}

impl Translator {
    /// A translator for a rank that has said nothing yet.
    #[must_use]
    pub fn new(options: TranslatorOptions) -> Self {
        Self {
            options,
            hasher: LocalHasher::default(),
            salts: Recent::new(SALTED_BLOCKS_MAX),
            told: None,
            groups: Groups::default(),
            window: TokenWindow::Block,
            space: AdapterSalt::default(),
        }
    }

    /// Which tokens the rank's latest blocks cover.
    #[must_use]
    pub const fn window(&self) -> TokenWindow {
        self.window
    }

    /// Adapter and salt of the rank's latest blocks.
    #[must_use]
    pub const fn space(&self) -> &AdapterSalt {
        &self.space
    }

    /// Whether the rank has named another cache group than the one that is indexed.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.groups.iter().any(|group| group.role != GroupRole::Indexed)
    }

    /// Whether the rank keeps cache groups that are not understood, so that its prefixes can be
    /// shorter than they look.
    #[must_use]
    pub fn ignores_groups(&self) -> bool {
        self.groups.ignores_some()
    }

    /// Whether the rank keeps cache groups of which none has told what blocks contain: nothing that it
    /// holds can be found.
    #[must_use]
    pub fn lacks_content(&self) -> bool {
        self.groups.lack_content()
    }

    /// What an engine's event changes.
    ///
    /// # Errors
    ///
    /// When the event cannot be indexed.
    pub fn translate(&mut self, event: &EngineEvent<'_>) -> Result<Translated, Unusable> {
        match event {
            EngineEvent::Stored(event) => self.stored(event),
            EngineEvent::Removed(event) => self.removed(event),
            EngineEvent::Cleared => {
                self.salts.clear();
                self.told.iter_mut().for_each(Recent::clear);
                Ok(BlockEvent::Cleared.into())
            }
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>) -> Result<Translated, Unusable> {
        let tier = tier(event.medium, event.locality)?;
        if tier != Tier::Device {
            self.told.get_or_insert_with(|| Recent::new(KNOWN_BLOCKS_MAX));
        }
        if let Some(group) = self.groups.of_store(event, self.options.block_size)? {
            return self.stored_in(group, tier, event);
        }
        if event.token_ids.is_empty() {
            return Ok(self.offloaded(tier, &event.block_hashes));
        }
        self.check_sizes(event)?;
        self.groups.claim(event.group);
        let blocks = self.blocks_of(tier, event)?;
        self.remember(event.parent_block_hash, &blocks);
        Ok(BlockEvent::Stored { tier, parent: event.parent_block_hash, blocks, copies: 1 }.into())
    }

    /// A store of a group that names blocks whose content another one tells: it skips blocks that lie
    /// behind its window, and its tokens do not say which.
    fn stored_in(&self, group: SecondaryGroup, tier: Tier, event: &BlockStored<'_>) -> Result<Translated, Unusable> {
        if !event.token_ids.is_empty() {
            self.check_block_size(event)?;
        }
        let event = GroupEvent::Stored { tier, blocks: event.block_hashes.clone(), copies: 1 };
        Ok(GroupChange { group, event }.into())
    }

    /// A copy that is told by name alone. What is remembered is told again with its content, because
    /// the index forgets it with the last copy.
    fn offloaded(&mut self, tier: Tier, names: &[SequenceHash]) -> Translated {
        let mut events: Vec<BlockEvent> = Vec::new();
        for &sequence in names {
            let told = self.told.as_mut().and_then(|told| told.get(sequence));
            match (told, events.last_mut()) {
                (None, Some(BlockEvent::Copied { blocks, .. })) => blocks.push(sequence),
                (None, _) => events.push(BlockEvent::Copied { tier, blocks: vec![sequence] }),
                (Some((parent, local)), Some(BlockEvent::Stored { blocks, .. }))
                    if blocks.last().map(|last| last.sequence) == parent =>
                {
                    blocks.push(Block { sequence, local });
                }
                (Some((parent, local)), _) => {
                    let blocks = vec![Block { sequence, local }];
                    events.push(BlockEvent::Stored { tier, parent, blocks, copies: 1 });
                }
            }
        }
        let mut events = events.into_iter();
        let first = events.next().unwrap_or(BlockEvent::Copied { tier, blocks: Vec::new() });
        Translated { first: RankEvent::Indexed(first), rest: events.map(RankEvent::Indexed).collect() }
    }

    fn blocks_of(&mut self, tier: Tier, event: &BlockStored<'_>) -> Result<Vec<Block>, Unusable> {
        // An engine may tell of a copy in a slower tier again with tokens, but without the keys.
        let lacks_keys = tier != Tier::Device && event.extra_keys.is_none();
        let content = Content::of(event, self.options.lora_name.as_deref());
        let adapter_bytes = content.lora.as_deref().map_or(0, str::len);
        if adapter_bytes > ADAPTER_NAME_BYTES_MAX {
            return Err(Unusable::AdapterName { bytes: adapter_bytes });
        }
        if let Some(character) = content.lora.as_deref().and_then(|name| name.chars().find(|it| it.is_control())) {
            return Err(Unusable::AdapterNameCharacter { character });
        }
        let salt = content.salt.and_then(Salt::new).or_else(|| self.salts.get(event.parent_block_hash?));
        let salt = salt.or_else(|| self.salts.get(*event.block_hashes.first().filter(|_| lacks_keys)?));
        self.salts.set(&event.block_hashes, salt);
        self.space.set(content.lora.as_deref(), salt);
        let space = HashVariant::salted(content.lora.as_deref(), salt);
        let locals = content.local_hashes(&mut self.hasher, &event.token_ids, self.options.block_size, space);
        self.window = match event.token_ids {
            TokenIds::Plain(_) => TokenWindow::Block,
            TokenIds::Bigrams(_) => TokenWindow::BlockAndNext,
        };
        let mut told = self.told.as_mut().filter(|_| lacks_keys);
        let blocks = event.block_hashes.iter().zip(locals);
        let blocks = blocks.map(|(&sequence, local)| {
            let known = told.as_mut().and_then(|told| told.get(sequence));
            Block { sequence, local: known.map_or(local, |(_, local)| local) }
        });
        Ok(blocks.collect())
    }

    fn remember(&mut self, mut parent: Option<SequenceHash>, blocks: &[Block]) {
        let Some(told) = &mut self.told else { return };
        for block in blocks {
            told.insert(block.sequence, (parent, block.local));
            parent = Some(block.sequence);
        }
    }

    fn check_block_size(&self, event: &BlockStored<'_>) -> Result<(), Unusable> {
        let registered = self.options.block_size.tokens();
        match event.block_size == registered {
            true => Ok(()),
            false => Err(Unusable::BlockSize { actual: event.block_size, registered }),
        }
    }

    fn check_sizes(&mut self, event: &BlockStored<'_>) -> Result<(), Unusable> {
        self.check_block_size(event)?;
        let (tokens, blocks) = (event.token_ids.len(), event.block_hashes.len());
        if tokens != blocks * self.options.block_size.token_count() {
            self.groups.doubt(event.group);
            return Err(Unusable::TokenCount { tokens, blocks, block_size: self.options.block_size.tokens() });
        }
        Ok(())
    }

    fn removed(&mut self, event: &BlockRemoved<'_>) -> Result<Translated, Unusable> {
        let tier = tier(event.medium, event.locality)?;
        let (blocks, copies) = (event.block_hashes.clone(), self.options.removed_copies);
        Ok(match self.groups.of_removal(event.group_idx)? {
            None => BlockEvent::Removed { tier, blocks, copies }.into(),
            Some(group) => GroupChange { group, event: GroupEvent::Removed { tier, blocks, copies } }.into(),
        })
    }
}

/// Where blocks lie, from the names that engines use.
fn tier(medium: Option<&str>, locality: Option<&str>) -> Result<Tier, Unusable> {
    if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("REMOTE")) {
        return Ok(Tier::External);
    }
    let medium = medium.unwrap_or_default();
    match medium.to_ascii_uppercase().as_str() {
        "" | "GPU" | "DEVICE" => Ok(Tier::Device),
        "CPU" | "CPU_PINNED" | "CPU_TIER1" => Ok(Tier::Host),
        "CPU_TIER2" | "DISK" | "NVME" | "STORAGE" | "FS" => Ok(Tier::Disk),
        "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED" | "OBJ" => Ok(Tier::External),
        _ => Err(Unusable::UnknownMedium { medium: medium.chars().take(MEDIUM_CHARS_MAX).collect() }),
    }
}

/// Longest unknown medium that an error repeats, in characters.
const MEDIUM_CHARS_MAX: usize = 64;
