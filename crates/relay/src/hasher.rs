//! Batches of an engine, with local hashes instead of tokens.

use std::collections::{BTreeMap, HashSet};

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    BatchWriter, BlockStored, Encoding, EngineAdapter, EngineEvent, HashedTokens, LeftOutEvent, TokenIds,
    TranslateError, Translation, Translator, TranslatorOptions, encode_batch_leaving_out,
};

/// Limit of the data-parallel ranks of one stream.
const RANKS_MAX: usize = 64;
/// Limit of the remembered blocks of a rank whose first messages were missed, in each of two generations.
const KNOWN_BLOCKS_MAX: usize = 1 << 18;
/// Reason of a store whose salt or extra keys may depend on a block that the relay has not received.
const INPUTS_UNKNOWN: &str = "hash_inputs_unknown";

/// Options of a hasher.
#[derive(Debug, Clone)]
pub struct HasherOptions {
    /// Tokens per block, as the engine is registered.
    pub block_size: BlockSize,
    /// Adapter of events that name no adapter.
    pub lora_name: Option<String>,
    /// Format of the engine's messages.
    pub adapter: EngineAdapter,
    /// Whether requests may carry a cache salt. Without salts, a store after an unknown block can be hashed.
    pub has_salts: bool,
}

/// Replaces the tokens of one engine's batches by local hashes, in the order of the messages.
///
/// Engines publish a salt with the first block of a sequence only, so the hasher remembers the salts of blocks. After lost
/// messages, a store with an unknown parent is left out, until the rank's cache is cleared: its hashes would belong to
/// another prompt.
#[derive(Debug)]
pub struct Hasher {
    options: HasherOptions,
    /// Whether every message of the stream was received.
    is_complete: bool,
    ranks: BTreeMap<Option<DpRank>, Rank>,
}

#[derive(Debug)]
struct Rank {
    translator: Translator,
    /// Blocks stored since messages were lost; none if every block is known.
    known: Option<KnownBlocks>,
    has_salts: bool,
}

/// Recently stored blocks.
#[derive(Debug, Default)]
struct KnownBlocks {
    young: HashSet<SequenceHash>,
    old: HashSet<SequenceHash>,
}

impl KnownBlocks {
    fn insert(&mut self, block: SequenceHash) {
        if self.young.len() >= KNOWN_BLOCKS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(block);
    }

    fn contains(&self, block: SequenceHash) -> bool {
        self.young.contains(&block) || self.old.contains(&block)
    }
}

impl Hasher {
    /// Creates the hasher of a stream. `is_complete`: whether its first batch is the first of the stream.
    #[must_use]
    pub fn new(options: HasherOptions, is_complete: bool) -> Self {
        Self { options, is_complete, ranks: BTreeMap::new() }
    }

    /// Records that messages before the next batch were lost.
    pub fn messages_lost(&mut self) {
        self.is_complete = false;
        for rank in self.ranks.values_mut() {
            rank.known.get_or_insert_default();
        }
    }

    /// The batch to publish for a batch of the engine. A batch that cannot be decoded becomes a batch with an event that
    /// the service rejects.
    pub fn hash(&mut self, payload: &[u8]) -> Vec<u8> {
        let batch = match self.options.adapter.batch(payload) {
            Ok(batch) => batch,
            Err(error) => {
                let left_out = [LeftOutEvent { reason: error.reason(), why: error.to_string() }];
                return encode_batch_leaving_out(0.0, &[], &left_out, None, Encoding::Map);
            }
        };
        let (timestamp, dp_rank) = (batch.timestamp, batch.dp_rank);
        let events: Vec<_> = batch.events.collect();
        let mut writer = BatchWriter::new(timestamp, events.len(), Encoding::Map);
        let mut rank = self.rank(dp_rank);
        for event in events {
            let written = match (event, &mut rank) {
                (Err(error), _) => Err(LeftOutEvent { reason: error.reason(), why: error.to_string() }),
                (Ok(event), Some(rank)) => rank.write(event, &mut writer),
                (Ok(_), None) => {
                    let why = format!("the stream has more than {RANKS_MAX} data-parallel ranks");
                    Err(LeftOutEvent { reason: "too_many_ranks", why })
                }
            };
            if let Err(left_out) = written {
                writer.left_out(&left_out);
            }
        }
        writer.finish(dp_rank)
    }

    fn rank(&mut self, dp_rank: Option<DpRank>) -> Option<&mut Rank> {
        let Self { options, is_complete, ranks } = self;
        if ranks.len() >= RANKS_MAX && !ranks.contains_key(&dp_rank) {
            return None;
        }
        let rank = ranks.entry(dp_rank).or_insert_with(|| Rank {
            translator: Translator::new(TranslatorOptions {
                block_size: options.block_size,
                lora_name: options.lora_name.clone(),
                // Copies are counted for salts only: if each removal counts as one copy, the salt of a held block stays known.
                removed_copies: RemovedCopies::One,
                cache_tier: None,
            }),
            known: (!*is_complete).then(KnownBlocks::default),
            has_salts: options.has_salts,
        });
        Some(rank)
    }
}

impl Rank {
    /// Writes the event without tokens, or returns the event that replaces it.
    fn write(&mut self, event: EngineEvent<'_>, writer: &mut BatchWriter) -> Result<(), LeftOutEvent> {
        let translated = self.translator.translate(&event);
        match event {
            EngineEvent::Stored(stored) => self.write_store(stored, translated, writer),
            event => {
                if event == EngineEvent::Cleared {
                    self.known = None;
                }
                // The service detects an error of such an event itself.
                writer.event(&event);
                Ok(())
            }
        }
    }

    fn write_store(
        &mut self,
        stored: BlockStored<'_>,
        translated: Result<Translation, TranslateError>,
        writer: &mut BatchWriter,
    ) -> Result<(), LeftOutEvent> {
        let hashed = match translated {
            Ok(translation) => self.hashes_of(&stored, &translation)?,
            // These errors are visible only in the inputs of hashes.
            Err(
                error @ (TranslateError::SaltedBlocks
                | TranslateError::AdapterName { .. }
                | TranslateError::AdapterNameCharacter { .. }),
            ) => return Err(LeftOutEvent { reason: error.reason(), why: error.to_string() }),
            Err(_) => None,
        };
        let count = u32::try_from(stored.token_ids.len()).unwrap_or(u32::MAX);
        let adapter_salt = hashed.as_ref().map(|_| self.translator.adapter_salt());
        let lora_name = adapter_salt.and_then(|adapter_salt| adapter_salt.lora_name());
        let salt = adapter_salt.and_then(|adapter_salt| adapter_salt.salt());
        let token_ids = match count {
            0 => TokenIds::default(),
            count => TokenIds::Hashed(HashedTokens {
                count,
                window: self.translator.window(),
                local_hashes: hashed.unwrap_or_default(),
                salt,
            }),
        };
        // The other fields are omitted: each is an input of a hash, or has no effect.
        writer.event(&EngineEvent::Stored(BlockStored {
            block_hashes: stored.block_hashes,
            parent_block_hash: stored.parent_block_hash,
            token_ids,
            block_size: stored.block_size,
            medium: stored.medium,
            lora_name,
            group: stored.group,
            locality: stored.locality,
            ownership: stored.ownership,
            origin: stored.origin,
            components: stored.components,
            ..BlockStored::default()
        }));
        Ok(())
    }

    /// The local hashes of a store of the primary group; none of another store.
    fn hashes_of(
        &mut self,
        stored: &BlockStored<'_>,
        translation: &Translation,
    ) -> Result<Option<Vec<LocalHash>>, LeftOutEvent> {
        if stored.token_ids.is_empty() {
            return Ok(None);
        }
        let changes = std::iter::once(&translation.first).chain(&translation.rest);
        let found = changes.filter_map(|change| match change {
            RankEvent::Primary(BlockEvent::Stored { tier, blocks, .. }) => Some((*tier, blocks)),
            _ => None,
        });
        let Some((tier, blocks)) = { found }.next() else { return Ok(None) };
        if !self.knows_inputs(stored, tier) {
            let why = "a salt or extra keys of earlier blocks may be missing, because the relay has not seen the whole stream; clear \
                       the engine's prefix cache";
            return Err(LeftOutEvent { reason: INPUTS_UNKNOWN, why: why.to_owned() });
        }
        if let Some(known) = &mut self.known {
            blocks.iter().for_each(|block| known.insert(block.sequence));
        }
        Ok(Some(blocks.iter().map(|block| block.local).collect()))
    }

    /// Whether every input of a store's hashes is known, including the inputs of earlier blocks.
    fn knows_inputs(&self, stored: &BlockStored<'_>, tier: Tier) -> bool {
        let knows = |block: &SequenceHash| self.known.as_ref().is_none_or(|known| known.contains(*block));
        let has_forgotten = self.translator.has_forgotten_salts();
        let has_salt = self.translator.adapter_salt().salt().is_some();
        let knows_salt = has_salt
            || !self.has_salts
            || stored.parent_block_hash.is_none_or(|parent| {
                let skipped = stored.skipped.as_deref().filter(|skipped| !skipped.token_ids.is_empty());
                let ancestor = skipped.map(|skipped| skipped.parent_block_hash);
                !has_forgotten && (knows(&parent) || ancestor.is_some_and(|before| before.as_ref().is_none_or(knows)))
            });
        // A copy in a slower tier may be published without the keys that its block was first stored with.
        let may_lack_keys = tier != Tier::Device && stored.extra_keys.is_none();
        knows_salt && (!may_lack_keys || stored.block_hashes.iter().all(knows))
    }
}
