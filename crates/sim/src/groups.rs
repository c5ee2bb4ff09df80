//! What a recorded engine can reuse, by brute force: also for hybrid models, whose cache groups
//! must all agree.

use std::collections::{BTreeMap, BTreeSet};

use flash_indexer_core::hashing::{BlockSize, HashSpace, TokenWindow, local_hashes};
use flash_indexer_core::{BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash};
use flash_indexer_wire::{BlockStored, EngineEvent, Translator, TranslatorOptions, decode_batch};

use crate::engine::reusable_blocks;
use crate::recording::{RecordedMessage, RecordedRequest};

/// The cache groups of every rank of one recorded engine.
///
/// A prefix of *L* blocks can be reused when every full-attention group holds all of it and every
/// sliding-window group holds the last blocks that its window reaches. As literal as can be, and as
/// slow: for explaining recordings.
#[derive(Debug)]
pub struct CacheGroups {
    block_size: BlockSize,
    ranks: BTreeMap<DpRank, RankGroups>,
}

#[derive(Debug)]
struct RankGroups {
    /// Reads content off the full-attention groups' stores.
    translator: Translator,
    content: BTreeMap<SequenceHash, (Option<SequenceHash>, LocalHash)>,
    groups: BTreeMap<u32, Group>,
}

#[derive(Debug, Default)]
struct Group {
    /// Tokens that a sliding window sees; none for full attention.
    window: Option<u32>,
    copies: BTreeMap<SequenceHash, u64>,
}

impl CacheGroups {
    /// Groups of an engine that has published nothing yet.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size, ranks: BTreeMap::new() }
    }

    /// Whether some rank has more than one group.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.ranks.values().any(|rank| rank.groups.len() > 1)
    }

    /// Takes in a message; what cannot be decoded is passed over.
    pub fn learn(&mut self, message: &RecordedMessage) {
        let options =
            TranslatorOptions { block_size: self.block_size, lora_name: None, removed_copies: RemovedCopies::One };
        let rank = self.ranks.entry(message.dp_rank).or_insert_with(|| RankGroups {
            translator: Translator::new(options),
            content: BTreeMap::new(),
            groups: BTreeMap::new(),
        });
        for event in decode_batch(&message.payload).into_iter().flat_map(|batch| batch.events).flatten() {
            rank.apply(&event);
        }
    }

    /// Prompt tokens that `dp_rank` can reuse for a request, at most all but the last one.
    #[must_use]
    pub fn usable_tokens(&self, request: &RecordedRequest, dp_rank: DpRank) -> usize {
        let block_tokens = self.block_size.token_count();
        let Some(rank) = self.ranks.get(&dp_rank) else { return 0 };
        let space = HashSpace::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
        let locals = local_hashes(space, &request.prompt, self.block_size, TokenWindow::Block);
        let chain = rank.chain(&locals);
        let longest = chain.len().min(reusable_blocks(request.prompt.len(), self.block_size));
        let usable = (1..=longest).rev().find(|&length| rank.reusable(&chain[..length], self.block_size));
        usable.unwrap_or(0) * block_tokens
    }
}

impl RankGroups {
    fn apply(&mut self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Stored(stored) => self.stored(stored),
            EngineEvent::Removed(removed) => {
                let group = self.groups.entry(removed.group_idx.unwrap_or(0)).or_default();
                for hash in &removed.block_hashes {
                    if let Some(copies) = group.copies.get_mut(hash) {
                        *copies = copies.saturating_sub(1);
                    }
                }
            }
            EngineEvent::Cleared => self.groups.values_mut().for_each(|group| group.copies.clear()),
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>) {
        let group = self.groups.entry(event.group.idx.unwrap_or(0)).or_default();
        group.window = event.group.sliding_window;
        for &hash in &event.block_hashes {
            *group.copies.entry(hash).or_default() += 1;
        }
        if let Ok(BlockEvent::Stored { parent, blocks, .. }) =
            self.translator.translate(&EngineEvent::Stored(event.clone()))
        {
            let mut parent = parent;
            for block in blocks {
                self.content.insert(block.sequence, (parent, block.local));
                parent = Some(block.sequence);
            }
        }
    }

    /// For each leading block of a query, the names that it has been seen under.
    fn chain(&self, locals: &[LocalHash]) -> Vec<BTreeSet<SequenceHash>> {
        let mut chain = Vec::new();
        let mut parents = BTreeSet::from([None]);
        for local in locals {
            let follows = |(_, content): &(_, &(Option<SequenceHash>, LocalHash))| {
                content.1 == *local && parents.contains(&content.0)
            };
            let names: BTreeSet<SequenceHash> = self.content.iter().filter(follows).map(|(&name, _)| name).collect();
            if names.is_empty() {
                break;
            }
            parents = names.iter().copied().map(Some).collect();
            chain.push(names);
        }
        chain
    }

    fn reusable(&self, prefix: &[BTreeSet<SequenceHash>], block_size: BlockSize) -> bool {
        self.groups.values().all(|group| {
            let needed = group.window.map_or(prefix.len(), |window| {
                (window.saturating_sub(1).div_ceil(block_size.tokens()) as usize).min(prefix.len())
            });
            let held = |names: &BTreeSet<SequenceHash>| {
                names.iter().any(|name| group.copies.get(name).is_some_and(|&copies| copies > 0))
            };
            prefix[prefix.len() - needed..].iter().all(held)
        })
    }
}
