//! From what an engine says to what an index understands.

use std::borrow::Cow;

use flash_indexer_core::hashing::{BlockSize, HashSpace, LocalHasher, MultimodalItem, Salt, TokenWindow};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::event::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, ExtraKey, TokenIds};

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
    /// A cache group besides the first full-attention one.
    #[error("cache group {group} ({kind}) of a hybrid model is not indexed")]
    HybridGroup {
        /// Its number.
        group: u32,
        /// What it attends to.
        kind: String,
    },
}

impl Unusable {
    /// A short name for counting.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::UnknownMedium { .. } => "unknown_medium",
            Self::BlockSize { .. } => "block_size_mismatch",
            Self::TokenCount { .. } => "token_count_mismatch",
            Self::HybridGroup { .. } => "hybrid_group",
        }
    }
}

/// Translates the events of one rank, in order.
///
/// It remembers what events leave out: salts, which vLLM names only with a sequence's first block,
/// and which cache groups exist. Memory: 16 bytes for each salted block, up to a bound.
#[derive(Debug)]
pub struct Translator {
    options: TranslatorOptions,
    hasher: LocalHasher,
    salts: Salts,
    groups: Groups,
    window: TokenWindow,
}

impl Translator {
    /// A translator for a rank that has said nothing yet.
    #[must_use]
    pub fn new(options: TranslatorOptions) -> Self {
        Self {
            options,
            hasher: LocalHasher::default(),
            salts: Salts::default(),
            groups: Groups::default(),
            window: TokenWindow::Block,
        }
    }

    /// Which tokens the rank's latest blocks cover.
    #[must_use]
    pub const fn window(&self) -> TokenWindow {
        self.window
    }

    /// Whether the rank keeps cache groups that are not indexed, so that its prefixes can be
    /// shorter than they look.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.groups.are_hybrid
    }

    /// Blocks whose salt is inherited by those that follow them.
    pub fn salts(&self) -> impl Iterator<Item = (SequenceHash, Salt)> {
        self.salts.iter()
    }

    /// Takes over what another translator of the same rank had learned.
    pub fn learn_salts(&mut self, salts: impl IntoIterator<Item = (SequenceHash, Salt)>) {
        salts.into_iter().for_each(|(block, salt)| self.salts.insert(block, salt));
    }

    /// The index's event for an engine's event.
    ///
    /// # Errors
    ///
    /// When the event cannot be indexed.
    pub fn translate(&mut self, event: &EngineEvent<'_>) -> Result<BlockEvent, Unusable> {
        match event {
            EngineEvent::Stored(event) => self.stored(event),
            EngineEvent::Removed(event) => self.removed(event),
            EngineEvent::Cleared => {
                self.salts = Salts::default();
                Ok(BlockEvent::Cleared)
            }
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>) -> Result<BlockEvent, Unusable> {
        let tier = tier(event.medium, event.locality)?;
        self.groups.admit(event.group)?;
        if event.token_ids.is_empty() {
            return Ok(BlockEvent::Copied { tier, blocks: event.block_hashes.clone() });
        }
        self.check_sizes(event)?;
        self.groups.claim(event.group);
        let content = Content::of(event, self.options.lora_name.as_deref());
        let salt = content.salt.and_then(Salt::new).or_else(|| self.salts.of(event.parent_block_hash));
        self.salts.set(&event.block_hashes, salt);
        let space = HashSpace::salted(content.lora.as_deref(), salt);
        let locals = content.local_hashes(&mut self.hasher, &event.token_ids, self.options.block_size, space);
        self.window = match event.token_ids {
            TokenIds::Plain(_) => TokenWindow::Block,
            TokenIds::Bigrams(_) => TokenWindow::BlockAndNext,
        };
        let blocks = event.block_hashes.iter().zip(locals);
        let blocks = blocks.map(|(&sequence, local)| Block { sequence, local }).collect();
        Ok(BlockEvent::Stored { tier, parent: event.parent_block_hash, blocks, copies: 1 })
    }

    fn check_sizes(&mut self, event: &BlockStored<'_>) -> Result<(), Unusable> {
        let registered = self.options.block_size.tokens();
        if event.block_size != registered {
            return Err(Unusable::BlockSize { actual: event.block_size, registered });
        }
        let (tokens, blocks) = (event.token_ids.len(), event.block_hashes.len());
        if tokens != blocks * self.options.block_size.token_count() {
            self.groups.doubt(event.group);
            return Err(Unusable::TokenCount { tokens, blocks, block_size: registered });
        }
        Ok(())
    }

    fn removed(&mut self, event: &BlockRemoved<'_>) -> Result<BlockEvent, Unusable> {
        let tier = tier(event.medium, event.locality)?;
        self.groups.check_removed(event.group_idx)?;
        let copies = self.options.removed_copies;
        Ok(BlockEvent::Removed { tier, blocks: event.block_hashes.clone(), copies })
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

/// What besides its tokens makes up the content of a store's blocks.
struct Content<'a> {
    lora: Option<Cow<'a, str>>,
    /// The adapter's name as it stands among a block's keys.
    lora_key: Option<&'a str>,
    /// Named by this event; blocks further down a sequence inherit it.
    salt: Option<&'a str>,
    /// Which extra key of the first block is the salt.
    salt_key: Option<usize>,
    keys: &'a [Option<Vec<ExtraKey<'a>>>],
}

impl<'a> Content<'a> {
    fn of(event: &'a BlockStored<'a>, lora_by_default: Option<&'a str>) -> Self {
        let keys = event.extra_keys.as_deref().unwrap_or_default();
        let tagged = keys.iter().flatten().flatten().find_map(|key| match *key {
            ExtraKey::Lora(name) => Some(name),
            _ => None,
        });
        let number = event.lora_id.filter(|&id| id != 0);
        let lora = match (event.lora_name.or(tagged), number) {
            (Some(name), _) => Some(name.into()),
            (None, Some(number)) => Some(number.to_string().into()),
            (None, None) => lora_by_default.map(Into::into),
        };
        let salt = event.cache_salt.filter(|salt| !salt.is_empty());
        let mut content = Self { lora, lora_key: event.lora_name, salt, salt_key: None, keys };
        if event.parent_block_hash.is_none() {
            content.find_salt();
        }
        content
    }

    /// The salt stands last among the first block's bare texts, after the adapter's name.
    fn find_salt(&mut self) {
        let first = self.keys.first().and_then(Option::as_deref).unwrap_or_default();
        let lora_key = self.lora_key_of(first);
        let found = first.iter().enumerate().rev().find_map(|(at, key)| match *key {
            ExtraKey::Salt(salt) => Some((at, salt)),
            ExtraKey::Text(text) if Some(at) != lora_key => Some((at, text)),
            _ => None,
        });
        if let Some((at, salt)) = found {
            self.salt_key = Some(at);
            self.salt = self.salt.or(Some(salt));
        }
    }

    /// Which of a block's keys is the adapter's name: the first text that is. The same text again is
    /// something else, such as a salt that is called like the adapter.
    fn lora_key_of(&self, keys: &[ExtraKey<'_>]) -> Option<usize> {
        let name = self.lora_key?;
        keys.iter().position(|key| *key == ExtraKey::Text(name))
    }

    fn local_hashes(
        &self,
        hasher: &mut LocalHasher,
        tokens: &TokenIds,
        block_size: BlockSize,
        space: HashSpace,
    ) -> Vec<LocalHash> {
        let mut items = Vec::new();
        let mut hash = |block: usize, tokens: &[u32]| {
            self.items(block, &mut items);
            hasher.multimodal(space, tokens, &items)
        };
        match tokens {
            TokenIds::Plain(tokens) => {
                let blocks = tokens.chunks_exact(block_size.token_count()).enumerate();
                blocks.map(|(block, tokens)| hash(block, tokens)).collect()
            }
            TokenIds::Bigrams(pairs) => {
                let mut window = Vec::with_capacity(block_size.token_count() + 1);
                let blocks = pairs.chunks_exact(block_size.token_count()).enumerate();
                let hashes = blocks.map(|(block, pairs)| {
                    window.clear();
                    window.extend(pairs.iter().map(|pair| pair[0]));
                    window.extend(pairs.last().map(|pair| pair[1]));
                    hash(block, &window)
                });
                hashes.collect()
            }
        }
    }

    /// Multimodal items of one block, and whatever else is part of its identity.
    fn items(&self, block: usize, items: &mut Vec<MultimodalItem>) {
        items.clear();
        let keys = self.keys.get(block).and_then(Option::as_deref).unwrap_or_default();
        let lora_key = self.lora_key_of(keys);
        for (at, key) in keys.iter().enumerate() {
            let is_salt = block == 0 && self.salt_key == Some(at);
            items.extend(match *key {
                ExtraKey::Text(_) if is_salt || lora_key == Some(at) => None,
                ExtraKey::Text(id) => Some(MultimodalItem { offset: 0, hash: item_hash(id) }),
                ExtraKey::Item { id, offset } => Some(MultimodalItem { offset, hash: item_hash(id) }),
                ExtraKey::Opaque(bytes) => Some(MultimodalItem { offset: 0, hash: xxh3_64(bytes) }),
                ExtraKey::Lora(_) | ExtraKey::Salt(_) => None,
            });
        }
    }
}

/// An item's hash: its identity is a hexadecimal digest, of which the first 64 bits count; any other
/// text is hashed.
fn item_hash(id: &str) -> u64 {
    let digits = id.get(..16).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_else(|| xxh3_64(id.as_bytes()))
}

/// Salts by block. A name means one content, so an entry never becomes wrong, only useless: the
/// oldest are forgotten when there are too many, and what is used stays.
#[derive(Debug, Default)]
struct Salts {
    young: FxHashMap<SequenceHash, Salt>,
    old: FxHashMap<SequenceHash, Salt>,
}

/// Salted blocks remembered in each of two generations.
const SALTED_BLOCKS_MAX: usize = 1 << 19;

impl Salts {
    fn of(&mut self, block: Option<SequenceHash>) -> Option<Salt> {
        let block = block?;
        if let Some(&salt) = self.young.get(&block) {
            return Some(salt);
        }
        let salt = self.old.remove(&block)?;
        self.insert(block, salt);
        Some(salt)
    }

    /// The oldest first.
    fn iter(&self) -> impl Iterator<Item = (SequenceHash, Salt)> {
        self.old.iter().chain(&self.young).map(|(&block, &salt)| (block, salt))
    }

    fn set(&mut self, blocks: &[SequenceHash], salt: Option<Salt>) {
        match salt {
            Some(salt) => blocks.iter().for_each(|&block| self.insert(block, salt)),
            None if self.young.is_empty() && self.old.is_empty() => {}
            None => {
                for block in blocks {
                    self.young.remove(block);
                    self.old.remove(block);
                }
            }
        }
    }

    fn insert(&mut self, block: SequenceHash, salt: Salt) {
        if self.young.len() >= SALTED_BLOCKS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(block, salt);
    }
}

/// Cache groups of a hybrid model. The first full-attention group is indexed; what the other groups
/// hold is set aside.
#[derive(Debug, Default)]
struct Groups {
    indexed: Option<u32>,
    set_aside: FxHashSet<u32>,
    are_hybrid: bool,
}

/// Groups that are remembered by number; real models have a handful.
const GROUPS_MAX: usize = 64;
const GROUP_KIND_CHARS_MAX: usize = 64;

impl Groups {
    /// Whether a store of this group can be indexed.
    fn admit(&mut self, group: CacheGroup<'_>) -> Result<(), Unusable> {
        let Some(idx) = group.idx else { return Ok(()) };
        let is_full = match group.kind {
            None => !self.set_aside.contains(&idx),
            Some(kind) => matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention"),
        };
        if is_full && self.indexed.is_none_or(|indexed| indexed == idx) {
            return Ok(());
        }
        self.set_aside(idx);
        let kind = group.kind.unwrap_or("of unknown kind").chars().take(GROUP_KIND_CHARS_MAX).collect();
        Err(Unusable::HybridGroup { group: idx, kind })
    }

    /// A store of this group fits: it is the one that is indexed.
    fn claim(&mut self, group: CacheGroup<'_>) {
        self.indexed = self.indexed.or(group.idx);
    }

    /// A store of this group has another number of tokens than full attention has: if the group does
    /// not say what it is, it is something else.
    fn doubt(&mut self, group: CacheGroup<'_>) {
        if let CacheGroup { idx: Some(idx), kind: None, .. } = group {
            self.indexed = self.indexed.filter(|&indexed| indexed != idx);
            self.set_aside(idx);
        }
    }

    fn set_aside(&mut self, idx: u32) {
        self.are_hybrid = true;
        if self.set_aside.len() < GROUPS_MAX {
            self.set_aside.insert(idx);
        }
    }

    /// A removal names its group by number alone: only the indexed group's removals count.
    fn check_removed(&self, idx: Option<u32>) -> Result<(), Unusable> {
        let Some(group) = idx else { return Ok(()) };
        let counts = match self.indexed {
            Some(indexed) => group == indexed,
            None => !self.set_aside.contains(&group),
        };
        if counts { Ok(()) } else { Err(Unusable::HybridGroup { group, kind: "removal".to_owned() }) }
    }
}
