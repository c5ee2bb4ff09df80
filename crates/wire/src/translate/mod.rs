//! Translation of engine events into index events.

mod chunks;
mod components;
mod decoder_state;
mod error;
mod groups;
mod hash_inputs;
mod links;
mod losses;
mod managed;
mod media;
mod recent;
mod removals;
mod salts;
mod translation;

use flash_indexer_core::groups::{GroupChange, GroupEvent, RankEvent};
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, Salt, TokenWindow};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};

use self::chunks::ChunkSize;
use self::components::ComponentGroups;
pub use self::decoder_state::{RECENT_BLOCKS_MAX, RecentBlock};
pub use self::error::TranslateError;
use self::groups::{CacheGroups, StoreGroup};
pub use self::groups::{GroupRole, KnownGroup};
use self::hash_inputs::HashInputs;
pub use self::losses::{Application, InferredLoss};
use self::managed::ManagedBlocks;
use self::media::MEDIUM_CHARS_MAX;
pub(crate) use self::media::is_known_medium;
pub use self::recent::Age;
use self::recent::RecentMap;
use self::salts::Salts;
pub use self::salts::{SaltedBlock, SaltedCopies};
pub use self::translation::Translation;
use crate::adapter_salt::{ADAPTER_NAME_BYTES_MAX, AdapterSalt};
use crate::event::{BlockStored, Components, EngineEvent, HashedTokens, StoreOrigin, TokenIds};

/// Settings of a rank's translator.
#[derive(Debug, Clone)]
pub struct TranslatorOptions {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Adapter of events that name none.
    pub lora_name: Option<String>,
    /// Number of copies that a removal ends. Most engines publish one removal for each copy.
    pub removed_copies: RemovedCopies,
    /// Tier of a shared cache's blocks in media that name no other tier; none for an engine.
    pub cache_tier: Option<Tier>,
}

/// Parent and local hash of a block.
type KnownBlock = (Option<SequenceHash>, LocalHash);

/// Limit of the recent blocks of an engine with several tiers, in each of two generations.
const RECENT_GENERATION_MAX: usize = 1 << 18;

/// Translator of one rank's events, in order.
///
/// Events are not self-contained, so the translator keeps decoder state: salts, which vLLM publishes only with a
/// sequence's first block; the cache groups; and, for an engine that offloads, the local hashes of recent blocks.
/// Such an engine publishes a copy in a slower tier by sequence hash alone, possibly after the copy that carried the
/// tokens was removed. A translator that resumes in the middle of a stream needs this state: `salts`, `recent_blocks`
/// and `groups` export it.
///
/// Memory: 24 bytes for each salted block that the rank holds, 16 for each one that it held and 32 for each recent block, up
/// to a limit.
#[derive(Debug)]
pub struct Translator {
    options: TranslatorOptions,
    hasher: LocalHasher,
    salts: Salts,
    /// None until the rank names a tier other than the device.
    recent_blocks: Option<RecentMap<KnownBlock>>,
    groups: CacheGroups,
    components: ComponentGroups,
    managed: ManagedBlocks,
    chunk_size: ChunkSize,
    window: TokenWindow,
    adapter_salt: AdapterSalt,
}

impl Translator {
    /// A translator without decoder state, for a rank without events.
    #[must_use]
    pub fn new(options: TranslatorOptions) -> Self {
        Self {
            options,
            hasher: LocalHasher::default(),
            salts: Salts::default(),
            recent_blocks: None,
            groups: CacheGroups::default(),
            components: ComponentGroups::default(),
            managed: ManagedBlocks::default(),
            chunk_size: ChunkSize::default(),
            window: TokenWindow::Block,
            adapter_salt: AdapterSalt::default(),
        }
    }

    /// Token window of the rank's latest blocks.
    #[must_use]
    pub const fn window(&self) -> TokenWindow {
        self.window
    }

    /// Adapter and salt of the rank's latest blocks.
    #[must_use]
    pub const fn adapter_salt(&self) -> &AdapterSalt {
        &self.adapter_salt
    }

    /// Whether the salt of a parent that the rank does not hold may be forgotten. A child that names no salt may then have
    /// a wrong local hash.
    #[must_use]
    pub fn has_forgotten_salts(&self) -> bool {
        self.salts.has_forgotten()
    }

    /// Bytes of the copies of blocks with a named manager.
    #[must_use]
    pub fn managed_bytes(&self) -> usize {
        self.managed.bytes()
    }

    /// Whether the managers of the rank's copies are known, so that its engine may clear one manager's blocks.
    #[must_use]
    pub const fn has_all_managers(&self) -> bool {
        self.managed.is_complete()
    }

    /// Forgets the managers of the rank's copies until its whole cache is cleared.
    pub fn forget_managers(&mut self) {
        self.managed.forget();
    }

    /// Whether the rank has named a cache group other than the primary one.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.groups().any(|group| group.role != GroupRole::Primary)
    }

    /// Whether the rank has cache groups that are not supported. Its usable prefixes can then be shorter than
    /// reported.
    #[must_use]
    pub fn has_unsupported_groups(&self) -> bool {
        self.groups.iter().any(|group| group.role == GroupRole::Unsupported)
    }

    /// Whether the rank has cache groups and none of them is primary. None of its blocks can then be found.
    #[must_use]
    pub fn lacks_primary_group(&self) -> bool {
        self.groups.lacks_primary()
    }

    /// Whether a window of the rank's cache groups is unknown. Its usable prefixes can then be shorter than reported.
    #[must_use]
    pub fn has_unknown_window(&self) -> bool {
        self.components.has_unknown_window
    }

    /// Translates one event into the changes that it causes.
    ///
    /// # Errors
    ///
    /// When the event cannot be indexed.
    pub fn translate(&mut self, event: &EngineEvent<'_>) -> Result<Translation, TranslateError> {
        match event {
            EngineEvent::Stored(event) => self.stored(event),
            EngineEvent::Removed(event) => self.removed(event),
            EngineEvent::Transferred(event) => self.transferred(event),
            // The engine still holds the blocks.
            EngineEvent::Inactive(_) => Ok(Translation::default()),
            EngineEvent::Cleared => {
                self.salts.clear();
                self.recent_blocks.iter_mut().for_each(RecentMap::clear);
                self.managed = ManagedBlocks::default();
                Ok(BlockEvent::Cleared.into())
            }
            EngineEvent::ClearedScope(event) => self.cleared_scope(event),
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>) -> Result<Translation, TranslateError> {
        let event = &*self.with_divided_chunks(event);
        let tier = self.tier(event.medium, event.locality)?;
        if tier != Tier::Device {
            self.recent_blocks.get_or_insert_with(|| RecentMap::new(RECENT_GENERATION_MAX));
        }
        let StoreGroup { secondary: group, has_grown } = self.groups.of_store(event, tier, self.options.block_size)?;
        if let (Some(components), None) = (event.components, event.group.idx) {
            return self.stored_in_components(components, tier, event);
        }
        let translation = match group {
            Some(group) if has_grown => self.stored_in_grown(group, tier, event),
            Some(group) => self.stored_in_secondary(group, tier, event),
            None => self.stored_in_primary(tier, event)?,
        };
        self.managed.stored(event.ownership, (tier, event.effective_origin()), group, &event.block_hashes);
        Ok(translation)
    }

    fn stored_in_primary(&mut self, tier: Tier, event: &BlockStored<'_>) -> Result<Translation, TranslateError> {
        if event.block_hashes.is_empty() && event.group.kind.is_some() {
            // A store without blocks announces its group.
            self.groups.claim_primary(event.group);
        }
        if event.token_ids.is_empty() {
            return self.offloaded((tier, event.effective_origin()), &event.block_hashes);
        }
        self.check_sizes(event)?;
        self.groups.claim_primary(event.group);
        let blocks = self.blocks_of(tier, event)?;
        self.record_blocks(event.parent_block_hash, &blocks);
        Ok(BlockEvent::Stored { tier, parent: event.parent_block_hash, blocks, copies: 1 }.into())
    }

    /// Translates a store that names the components that hold the blocks. It is their complete state: a component that is
    /// not named has lost the blocks, and a block that is held gains no copy.
    fn stored_in_components(
        &mut self,
        components: Components,
        tier: Tier,
        event: &BlockStored<'_>,
    ) -> Result<Translation, TranslateError> {
        let mut changes = Vec::new();
        let (blocks, all) = (&event.block_hashes, (tier, RemovedCopies::All));
        if components.full {
            changes.extend(self.stored_in_primary(tier, event)?);
            self.managed.stored_as_state(event.ownership, tier, None, blocks);
        } else {
            changes.push(self.removal(None, None, all, blocks));
        }
        for (group, is_held) in self.components.named(components, event.group, self.options.block_size) {
            changes.push(match is_held {
                true => {
                    self.managed.stored_as_state(event.ownership, tier, Some(group), blocks);
                    let event = GroupEvent::Stored { tier, blocks: blocks.clone(), copies: 1 };
                    RankEvent::Secondary(GroupChange { group, event })
                }
                false => self.removal(None, Some(group), all, blocks),
            });
        }
        Ok(changes.into_iter().collect())
    }

    /// Translates a copy that is published by sequence hash alone. For a recent block the result is a store with its
    /// local hash, because the index drops a local hash with the block's last copy.
    fn offloaded(
        &mut self,
        (tier, origin): (Tier, Option<StoreOrigin>),
        hashes: &[SequenceHash],
    ) -> Result<Translation, TranslateError> {
        let mut events: Vec<BlockEvent> = Vec::new();
        for &sequence in hashes {
            if !self.salts.copied((tier, origin), sequence) {
                return Err(TranslateError::SaltedBlocks);
            }
            let known = self.recent_blocks.as_mut().and_then(|recent_blocks| recent_blocks.get(sequence));
            match (known, events.last_mut()) {
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
        Ok(std::iter::once(first).chain(events).map(RankEvent::Primary).collect())
    }

    fn blocks_of(&mut self, tier: Tier, event: &BlockStored<'_>) -> Result<Vec<Block>, TranslateError> {
        // An engine may publish a copy in a slower tier with tokens but without the extra keys.
        let lacks_keys = tier != Tier::Device && event.extra_keys.is_none();
        let inputs = HashInputs::of(event, self.options.lora_name.as_deref());
        let adapter_bytes = inputs.lora.as_deref().map_or(0, str::len);
        if adapter_bytes > ADAPTER_NAME_BYTES_MAX {
            return Err(TranslateError::AdapterName { bytes: adapter_bytes });
        }
        if let Some(character) = inputs.lora.as_deref().and_then(|name| name.chars().find(|it| it.is_control())) {
            return Err(TranslateError::AdapterNameCharacter { character });
        }
        if let TokenIds::Hashed(hashed) = &event.token_ids {
            return Ok(self.blocks_of_hashed(event, hashed));
        }
        let salt = inputs.salt.and_then(Salt::new).or_else(|| self.salts.get(event.parent_block_hash?));
        // The parent may never have been published.
        let salt = salt.or_else(|| self.salts.get(event.skipped.as_ref()?.parent_block_hash?));
        let salt = salt.or_else(|| self.salts.get(*event.block_hashes.first().filter(|_| lacks_keys)?));
        let is_forgotten = salt.is_none() && lacks_keys && self.salts.has_forgotten();
        if is_forgotten || (salt.is_some() && !self.salts.has_room(&event.block_hashes)) {
            return Err(TranslateError::SaltedBlocks);
        }
        self.salts.stored((tier, event.effective_origin()), &event.block_hashes, salt);
        self.adapter_salt.set(inputs.lora.as_deref(), salt);
        let variant = HashVariant::salted(inputs.lora.as_deref(), salt);
        let locals = inputs.local_hashes(&mut self.hasher, &event.token_ids, self.options.block_size, variant);
        self.window = match event.token_ids {
            TokenIds::Plain(_) => TokenWindow::Block,
            TokenIds::Bigrams(_) => TokenWindow::BlockAndNext,
            TokenIds::Hashed(ref hashed) => hashed.window,
        };
        let mut recent_blocks = self.recent_blocks.as_mut().filter(|_| lacks_keys);
        let blocks = event.block_hashes.iter().zip(locals);
        let blocks = blocks.map(|(&sequence, local)| {
            let known = recent_blocks.as_mut().and_then(|recent_blocks| recent_blocks.get(sequence));
            Block { sequence, local: known.map_or(local, |(_, local)| local) }
        });
        Ok(blocks.collect())
    }

    /// The blocks of a store whose tokens a relay has hashed. The relay keeps the salts, and publishes the salt of each store.
    fn blocks_of_hashed(&mut self, event: &BlockStored<'_>, hashed: &HashedTokens) -> Vec<Block> {
        self.adapter_salt.set(event.lora_name, hashed.salt);
        self.window = hashed.window;
        let blocks = event.block_hashes.iter().zip(&hashed.local_hashes);
        blocks.map(|(&sequence, &local)| Block { sequence, local }).collect()
    }

    fn record_blocks(&mut self, mut parent: Option<SequenceHash>, blocks: &[Block]) {
        let Some(recent_blocks) = &mut self.recent_blocks else { return };
        for block in blocks {
            recent_blocks.insert(block.sequence, (parent, block.local));
            parent = Some(block.sequence);
        }
    }

    fn check_sizes(&mut self, event: &BlockStored<'_>) -> Result<(), TranslateError> {
        let registered = self.options.block_size.tokens();
        if self.groups.is_partial_of_primary(event, self.options.block_size) {
            let group = event.group.idx.unwrap_or_default();
            return Err(TranslateError::PartialEntry { group, actual: event.block_size, whole: registered });
        }
        if event.block_size != registered {
            return Err(TranslateError::BlockSize { actual: event.block_size, registered });
        }
        let (tokens, blocks) = (event.token_ids.len(), event.block_hashes.len());
        let is_hashed_otherwise =
            matches!(&event.token_ids, TokenIds::Hashed(hashed) if hashed.local_hashes.len() != blocks);
        if is_hashed_otherwise || tokens != blocks * self.options.block_size.token_count() {
            self.groups.rule_out_primary(event.group);
            return Err(TranslateError::TokenCount { tokens, blocks, block_size: self.options.block_size.tokens() });
        }
        Ok(())
    }
}
