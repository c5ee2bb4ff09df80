//! From what an engine says to what an index understands.

use std::sync::Arc;

use flash_indexer_core::hashing::{BlockSize, HashSpace, LocalHasher, MultimodalItem, TokenWindow};
use flash_indexer_core::{Block, BlockEvent, LocalHash, SequenceHash, Tier};
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
/// and which cache groups exist. Memory: an entry for each salted block that the rank holds.
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
        !self.groups.set_aside.is_empty()
    }

    /// The index's event for an engine's event.
    ///
    /// # Errors
    ///
    /// When the event cannot be indexed; it changes nothing then.
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
            let blocks = event.block_hashes.clone();
            self.salts.copied(&blocks);
            return Ok(BlockEvent::Copied { tier, blocks });
        }
        let registered = self.options.block_size.tokens();
        if event.block_size != registered {
            return Err(Unusable::BlockSize { actual: event.block_size, registered });
        }
        let (tokens, blocks) = (event.token_ids.len(), event.block_hashes.len());
        if tokens != blocks * self.options.block_size.token_count() {
            return Err(Unusable::TokenCount { tokens, blocks, block_size: registered });
        }
        let content = Content::of(event, self.options.lora_name.as_deref());
        let salt = content.salt.map(Arc::from).or_else(|| self.salts.of(event.parent_block_hash));
        let locals = content.local_hashes(&mut self.hasher, &event.token_ids, self.options.block_size, salt.as_deref());
        self.window = match event.token_ids {
            TokenIds::Plain(_) => TokenWindow::Block,
            TokenIds::Bigrams(_) => TokenWindow::BlockAndNext,
        };
        if let Some(salt) = salt {
            self.salts.stored(&event.block_hashes, &salt);
        }
        let blocks = event.block_hashes.iter().zip(locals);
        let blocks = blocks.map(|(&sequence, local)| Block { sequence, local }).collect();
        Ok(BlockEvent::Stored { tier, parent: event.parent_block_hash, blocks })
    }

    fn removed(&mut self, event: &BlockRemoved<'_>) -> Result<BlockEvent, Unusable> {
        let tier = tier(event.medium, event.locality)?;
        self.groups.check_removed(event.group_idx)?;
        self.salts.removed(&event.block_hashes);
        Ok(BlockEvent::Removed { tier, blocks: event.block_hashes.clone() })
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
    lora: Option<std::borrow::Cow<'a, str>>,
    /// Named by this event; blocks further down a sequence inherit it.
    salt: Option<&'a str>,
    /// Which extra key of the first block is the salt.
    salt_key: Option<usize>,
    keys: &'a [Option<Vec<ExtraKey<'a>>>],
}

impl<'a> Content<'a> {
    fn of(event: &'a BlockStored<'a>, lora_by_default: Option<&'a str>) -> Self {
        let keys = event.extra_keys.as_deref().unwrap_or_default();
        let number = event.lora_id.filter(|&id| id != 0);
        let lora = match (event.lora_name, number) {
            (Some(name), _) => Some(name.into()),
            (None, Some(number)) => Some(number.to_string().into()),
            (None, None) => lora_by_default.map(Into::into),
        };
        let mut content = Self { lora, salt: event.cache_salt, salt_key: None, keys };
        if event.parent_block_hash.is_none() {
            content.find_salt();
        }
        content
    }

    /// The salt stands last among the first block's bare texts, after the adapter's name.
    fn find_salt(&mut self) {
        let first = self.keys.first().and_then(Option::as_deref).unwrap_or_default();
        let found = first.iter().enumerate().rev().find_map(|(at, key)| match *key {
            ExtraKey::Salt(salt) => Some((at, salt)),
            ExtraKey::Text(text) if Some(text) != self.lora.as_deref() => Some((at, text)),
            _ => None,
        });
        if let Some((at, salt)) = found {
            self.salt_key = Some(at);
            self.salt = self.salt.or(Some(salt));
        }
    }

    fn local_hashes(
        &self,
        hasher: &mut LocalHasher,
        tokens: &TokenIds,
        block_size: BlockSize,
        salt: Option<&str>,
    ) -> Vec<LocalHash> {
        let space = HashSpace::new(self.lora.as_deref(), salt);
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
        for (at, key) in keys.iter().enumerate() {
            let is_salt = block == 0 && self.salt_key == Some(at);
            items.extend(match *key {
                ExtraKey::Text(text) if Some(text) == self.lora.as_deref() || is_salt => None,
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

/// Salts of the blocks that have one, counted as the blocks' copies are.
#[derive(Debug, Default)]
struct Salts {
    blocks: FxHashMap<SequenceHash, (Arc<str>, u32)>,
}

impl Salts {
    fn of(&self, block: Option<SequenceHash>) -> Option<Arc<str>> {
        self.blocks.get(&block?).map(|(salt, _)| Arc::clone(salt))
    }

    fn stored(&mut self, blocks: &[SequenceHash], salt: &Arc<str>) {
        for &block in blocks {
            let (known, copies) = self.blocks.entry(block).or_insert_with(|| (Arc::clone(salt), 0));
            known.clone_from(salt);
            *copies += 1;
        }
    }

    fn copied(&mut self, blocks: &[SequenceHash]) {
        for block in blocks {
            if let Some((_, copies)) = self.blocks.get_mut(block) {
                *copies += 1;
            }
        }
    }

    fn removed(&mut self, blocks: &[SequenceHash]) {
        if self.blocks.is_empty() {
            return;
        }
        for block in blocks {
            if let Some((_, copies)) = self.blocks.get_mut(block) {
                *copies -= 1;
                if *copies == 0 {
                    self.blocks.remove(block);
                }
            }
        }
    }
}

/// Cache groups of a hybrid model. The first full-attention group is indexed; what the other groups
/// hold is set aside.
#[derive(Debug, Default)]
struct Groups {
    indexed: Option<u32>,
    set_aside: FxHashSet<u32>,
}

impl Groups {
    fn admit(&mut self, group: CacheGroup<'_>) -> Result<(), Unusable> {
        let Some(idx) = group.idx else { return Ok(()) };
        let kind = group.kind.unwrap_or("full_attention");
        let is_full = matches!(kind, "full_attention" | "mla_attention");
        if is_full && *self.indexed.get_or_insert(idx) == idx {
            return Ok(());
        }
        self.set_aside.insert(idx);
        Err(Unusable::HybridGroup { group: idx, kind: kind.to_owned() })
    }

    /// A removal names its group by number alone: only the indexed group's removals count.
    fn check_removed(&self, idx: Option<u32>) -> Result<(), Unusable> {
        match (idx, self.indexed) {
            (Some(group), Some(indexed)) if group != indexed => {
                Err(Unusable::HybridGroup { group, kind: "removed".to_owned() })
            }
            (Some(group), None) if self.set_aside.contains(&group) => {
                Err(Unusable::HybridGroup { group, kind: "removed".to_owned() })
            }
            _ => Ok(()),
        }
    }
}
