//! One event of the pull API as events of a batch.

use std::borrow::Cow;

use flash_indexer_core::SequenceHash;
use flash_indexer_core::groups::GROUPS_MAX;
use flash_indexer_core::hashing::BlockSize;
use rmp::encode::write_bin;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::json::{Envelope, Hash, Kind, LevelChange, Removed, Stored, StoredBlock, Unsigned, Updated};
use super::{BlockKey, FOLLOWED_BLOCKS_MAX, FollowedBlock, PullEventError};
use crate::event::{
    BlockRemoved, BlockStored, BlockTransferred, CacheGroup, EngineEvent, ExtraKey, StoreOrigin, TokenIds,
};
use crate::event_error::{EVENT_BLOCKS_MAX, EVENT_TOKENS_MAX, KIND_CHARS_MAX};

/// The cache group of an event: that of its layer group, or of its attention window. The largest window is that of full
/// attention.
pub(super) fn group(envelope: &Envelope<'_>, largest_window: i64) -> CacheGroup<'static> {
    let window = envelope.window_size.and_then(|window| u32::try_from(window).ok()).filter(|&window| window > 0);
    let (kind, idx) = match (envelope.window_size, window) {
        (None, _) => (None, None),
        (Some(_), Some(window)) if i64::from(window) >= largest_window => (Some("full_attention"), Some(window)),
        (Some(_), Some(window)) => (Some("sliding_window"), Some(window)),
        // A recurrent state, or a cache of another kind.
        (Some(sentinel), None) => (Some("without_window"), Some(sentinel as u32)),
    };
    CacheGroup {
        idx: envelope.layer_group_id.or(idx),
        kind,
        sliding_window: window.filter(|_| kind == Some("sliding_window")),
    }
}

/// The cache groups of the first event's rank, as these events show them. Full attention is first.
pub(super) fn groups(events: &[Envelope<'_>], largest_window: i64) -> Vec<CacheGroup<'static>> {
    let rank = events.first().and_then(|first| first.attention_dp_rank);
    let mut groups: Vec<CacheGroup<'static>> = Vec::new();
    for event in events.iter().filter(|event| event.attention_dp_rank == rank) {
        let group = group(event, largest_window);
        if groups.len() <= GROUPS_MAX && group.idx.is_some() && group.kind.is_some() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.sort_by_key(|group| !group.can_be_primary());
    groups
}

/// A store without blocks, which announces a cache group.
pub(super) fn announcement(group: CacheGroup<'static>, block_size: u32) -> EngineEvent<'static> {
    EngineEvent::Stored(BlockStored { block_size, group, medium: Some(medium(0)), ..BlockStored::default() })
}

/// Name of a level of the engine's memory.
fn medium(level: u32) -> &'static str {
    match level {
        0 => "GPU",
        1 => "CPU",
        2 => "DISK",
        _ => "UNKNOWN_LEVEL",
    }
}

/// The blocks of one rank and cache group.
pub(super) struct Blocks<'r> {
    pub(super) rank: Option<u32>,
    pub(super) group: CacheGroup<'static>,
    pub(super) block_size: BlockSize,
    pub(super) followed: &'r mut FxHashMap<BlockKey, FollowedBlock>,
}

impl Blocks<'_> {
    /// Passes the events of a message to `encode`. Counts the partial blocks that are left out.
    pub(super) fn convert(
        &mut self,
        data: &str,
        partial_blocks: &mut u64,
        encode: impl FnOnce(&[EngineEvent<'_>]) -> Vec<u8>,
    ) -> Result<Vec<u8>, PullEventError> {
        let Kind { name } = parse(data)?;
        match name.as_ref() {
            "created" => Ok(encode(&[])),
            "stored" => self.stored(parse(data)?, partial_blocks, encode),
            "removed" => self.removed(&parse(data)?).map(|events| encode(&events)),
            "updated" => self.updated(&parse(data)?).map(|events| encode(&events)),
            other => Err(PullEventError::UnknownType { kind: other.chars().take(KIND_CHARS_MAX).collect() }),
        }
    }

    fn key(&self, sequence: SequenceHash) -> BlockKey {
        BlockKey { rank: self.rank, group: self.group.idx, sequence }
    }

    /// Follows a block, unless it is a complete one in device memory.
    fn follow(&mut self, sequence: SequenceHash, block: FollowedBlock) -> Result<(), PullEventError> {
        let key = self.key(sequence);
        if block == FollowedBlock::InLevel(0) {
            self.followed.remove(&key);
            return Ok(());
        }
        if self.followed.len() >= FOLLOWED_BLOCKS_MAX && !self.followed.contains_key(&key) {
            return Err(PullEventError::TooManyFollowedBlocks);
        }
        self.followed.insert(key, block);
        Ok(())
    }

    fn stored(
        &mut self,
        Stored { parent_hash, mut blocks }: Stored<'_>,
        partial_blocks: &mut u64,
        encode: impl FnOnce(&[EngineEvent<'_>]) -> Vec<u8>,
    ) -> Result<Vec<u8>, PullEventError> {
        check_count("blocks", blocks.len(), EVENT_BLOCKS_MAX)?;
        check_count("tokens", blocks.iter().map(|block| block.tokens.len()).sum(), EVENT_TOKENS_MAX)?;
        let size = self.engine_block_size(&blocks)?;
        let registered = self.block_size.token_count();
        if size != registered {
            return Err(PullEventError::BlockSize { actual: size, registered });
        }
        if blocks.last().is_some_and(|last| last.tokens.len() < size)
            && let Some(partial) = blocks.pop()
        {
            self.follow(partial.block_hash.0, FollowedBlock::Partial)?;
            *partial_blocks += 1;
        }
        for block in &blocks {
            self.follow(block.block_hash.0, FollowedBlock::InLevel(block.cache_level))?;
        }
        let extra_ids: Vec<Option<Vec<u8>>> = blocks.iter().map(extra_ids).collect();
        let mut parent = parent_hash.map(|Hash(parent)| parent);
        let mut at = 0;
        let mut events = Vec::new();
        for run in blocks.chunk_by(|block, next| block.cache_level == next.cache_level) {
            events.push(self.store_of(run, &extra_ids[at..at + run.len()], parent, size)?);
            at += run.len();
            parent = run.last().map(|last| last.block_hash.0);
        }
        Ok(encode(&events))
    }

    /// Tokens in a block of the engine, as a store shows it. If a store has one block, which is too short for the
    /// registered size, that block is partial. A short block before a further block shows another size.
    fn engine_block_size(&self, blocks: &[StoredBlock<'_>]) -> Result<usize, PullEventError> {
        let registered = self.block_size.token_count();
        let Some((first, others)) = blocks.split_first() else { return Ok(registered) };
        let Some((last, middle)) = others.split_last() else { return Ok(registered.max(first.tokens.len())) };
        let size = first.tokens.len();
        let other = middle.iter().find(|block| block.tokens.len() != size);
        match other.or_else(|| Some(last).filter(|last| last.tokens.len() > size)) {
            Some(other) => Err(PullEventError::TokenCount { actual: other.tokens.len(), expected: size }),
            None => Ok(size),
        }
    }

    fn store_of<'e>(
        &self,
        run: &'e [StoredBlock<'_>],
        extra_ids: &'e [Option<Vec<u8>>],
        parent: Option<SequenceHash>,
        size: usize,
    ) -> Result<EngineEvent<'e>, PullEventError> {
        let mut tokens = Vec::with_capacity(run.len() * size);
        for token in run.iter().flat_map(|block| &block.tokens) {
            let Unsigned(id) = token.token_id;
            let id = u32::try_from(id).map_err(|_| PullEventError::Malformed("token_id is out of range".to_owned()))?;
            tokens.push(id);
        }
        let keys: Vec<Option<Vec<ExtraKey<'e>>>> =
            run.iter().zip(extra_ids).map(|(block, extra_ids)| extra_keys(block, extra_ids.as_deref())).collect();
        let (level, first) = (run.first().map_or(0, |first| first.cache_level), run.first());
        // Without keys, a copy in a slower memory would get the content that the block had in the faster one.
        let has_keys = level != 0 || keys.iter().any(Option::is_some);
        Ok(EngineEvent::Stored(BlockStored {
            block_hashes: run.iter().map(|block| block.block_hash.0).collect(),
            parent_block_hash: parent,
            token_ids: TokenIds::Plain(tokens),
            block_size: u32::try_from(size).unwrap_or(u32::MAX),
            lora_id: first.and_then(|first| first.lora_id),
            medium: Some(medium(level)),
            lora_name: first.and_then(|first| first.lora_name.as_deref()),
            extra_keys: has_keys.then_some(keys),
            cache_salt: first.and_then(|first| first.cache_salt.as_deref()),
            group: self.group,
            // The engine has one block for each hash of a cache.
            origin: Some(StoreOrigin::Reused),
            ..BlockStored::default()
        }))
    }

    fn removed(&mut self, Removed { block_hashes }: &Removed) -> Result<Vec<EngineEvent<'static>>, PullEventError> {
        check_count("blocks", block_hashes.len(), EVENT_BLOCKS_MAX)?;
        let mut runs: Vec<(u32, Vec<SequenceHash>)> = Vec::new();
        for &Hash(sequence) in block_hashes {
            let level = match self.followed.remove(&self.key(sequence)) {
                Some(FollowedBlock::Partial) => continue,
                Some(FollowedBlock::InLevel(level)) => level,
                None => 0,
            };
            match runs.last_mut().filter(|run| run.0 == level) {
                Some((_, run)) => run.push(sequence),
                None => runs.push((level, vec![sequence])),
            }
        }
        let removal = |(level, block_hashes): (u32, Vec<SequenceHash>)| {
            EngineEvent::Removed(BlockRemoved {
                block_hashes,
                medium: Some(medium(level)),
                group_idx: self.group.idx,
                ..BlockRemoved::default()
            })
        };
        Ok(runs.into_iter().map(removal).collect())
    }

    fn updated(&mut self, event: &Updated) -> Result<Vec<EngineEvent<'static>>, PullEventError> {
        let Some(LevelChange { old_value, new_value }) = event.cache_level else { return Ok(Vec::new()) };
        let Hash(sequence) = event.block_hash;
        if old_value == new_value || self.followed.get(&self.key(sequence)) == Some(&FollowedBlock::Partial) {
            return Ok(Vec::new());
        }
        self.follow(sequence, FollowedBlock::InLevel(new_value))?;
        Ok(vec![EngineEvent::Transferred(BlockTransferred {
            block_hashes: vec![sequence],
            from_medium: Some(medium(old_value)),
            to_medium: Some(medium(new_value)),
            group_idx: self.group.idx,
        })])
    }
}

fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, PullEventError> {
    serde_json::from_str(data).map_err(|error| PullEventError::Malformed(error.to_string()))
}

fn check_count(what: &'static str, count: usize, max: u32) -> Result<(), PullEventError> {
    let max = max as usize;
    if count > max { Err(PullEventError::TooLarge { what, count, max }) } else { Ok(()) }
}

/// Key of the second ids of a block's tokens, in MessagePack: none if every token has none.
fn extra_ids(block: &StoredBlock<'_>) -> Option<Vec<u8>> {
    let ids = block.tokens.iter().map(|token| token.token_extra_id.map_or(0, |Unsigned(id)| id));
    if ids.clone().all(|id| id == 0) {
        return None;
    }
    let bytes: Vec<u8> = ids.flat_map(u64::to_be_bytes).collect();
    let mut key = Vec::new();
    write_bin(&mut key, &xxh3_64(&bytes).to_be_bytes()).expect("writing to a Vec cannot fail");
    Some(key)
}

fn extra_keys<'e>(block: &'e StoredBlock<'_>, extra_ids: Option<&'e [u8]>) -> Option<Vec<ExtraKey<'e>>> {
    let items = block.mm_keys.iter().flatten();
    let items = items.map(|item| ExtraKey::Item { id: Cow::as_ref(&item.hash), offset: item.start_offset });
    let keys: Vec<_> = items.chain(extra_ids.map(ExtraKey::Opaque)).collect();
    Some(keys).filter(|keys| !keys.is_empty())
}
