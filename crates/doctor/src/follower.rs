//! A follower of one engine's stream, which derives the blocks that the engine holds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{
    BlockEvent, DpRank, HeldBlock, LocalHash, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::Design;
use flash_indexer_wire::{BlockStored, EngineEvent, TranslateError, Translator, TranslatorOptions, decode_batch};

use super::hashes::{HashCheck, HashCounts};

/// Maximum number of followed blocks of one stream; at the limit the follower starts over with an empty index.
const FOLLOWED_BLOCKS_MAX: usize = 1 << 18;
/// Maximum number of followed ranks of one stream.
const RANKS_MAX: usize = 1_024;
/// Number of kept last blocks of stores, from which chains are found.
const RECENT_MAX: usize = 64;

/// How a message was received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Delivery {
    /// In a replay.
    Replayed,
    /// Live, after it waited in the socket's queue.
    Queued,
    /// Live and without waiting, at this time in seconds since the Unix epoch.
    Live(f64),
}

/// Statistics of a followed stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StreamSummary {
    /// Live messages.
    pub(super) messages: u64,
    /// Sequence number of the last message, replayed or live.
    pub(super) last: Option<u64>,
    /// Gaps between live messages.
    pub(super) gaps: u64,
    /// Messages missing in those gaps.
    pub(super) missed: u64,
    /// Restarts of the sequence numbers.
    pub(super) restarts: u64,
    /// Tokens in a block, if they differ from the registration.
    pub(super) mismatched_block_size: Option<u32>,
    /// Stores with a block size.
    pub(super) stores_with_block_size: u64,
    /// Messages and events that were rejected for a reason other than their block size.
    pub(super) unusable: u64,
    /// Reason of the last rejection.
    pub(super) last_unusable: Option<String>,
    pub(super) hashes: HashCounts,
    /// Shortest time between a batch's timestamp and its arrival, in seconds; negative if the timestamp is later.
    pub(super) lag_s: Option<f64>,
    /// The only engine that publishes a field of the stream.
    pub(super) engine_of_fields: Option<&'static str>,
}

/// Blocks that an engine holds from the start of a sequence, derived from its received messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldChain {
    pub(super) dp_rank: DpRank,
    pub(super) locals: Vec<LocalHash>,
}

/// Follows a stream message by message. Its index never holds a block that the engine lacks: after a gap it is empty
/// and fills with later events.
pub(super) struct StreamFollower {
    options: TranslatorOptions,
    registered: DpRank,
    translators: BTreeMap<DpRank, Translator>,
    index: GroupedIndex,
    recent: VecDeque<(DpRank, SequenceHash)>,
    hashes: HashCheck,
    last_live: Option<u64>,
    summary: StreamSummary,
}

impl StreamFollower {
    /// A follower with an empty index. Batches without a rank belong to `registered`.
    pub(super) fn new(options: TranslatorOptions, registered: DpRank, hash_seed: &str) -> Self {
        Self {
            options,
            registered,
            translators: BTreeMap::new(),
            index: empty_index(),
            recent: VecDeque::new(),
            hashes: HashCheck::new(hash_seed),
            last_live: None,
            summary: StreamSummary::default(),
        }
    }

    pub(super) fn block_size(&self) -> BlockSize {
        self.options.block_size
    }

    pub(super) fn summary(&self) -> StreamSummary {
        StreamSummary { hashes: self.hashes.counts, ..self.summary.clone() }
    }

    /// Applies one message.
    pub(super) fn receive(&mut self, sequence: u64, payload: &[u8], delivery: Delivery) {
        if delivery != Delivery::Replayed {
            self.summary.messages += 1;
            let last_live = self.last_live.replace(sequence);
            let missed = last_live.map_or(0, |last| sequence.saturating_sub(last).saturating_sub(1));
            self.summary.missed += missed;
            self.summary.gaps += u64::from(missed > 0);
            if last_live.is_some_and(|last| sequence <= last) {
                self.summary.restarts += 1;
                self.reset();
            } else if self.summary.last.is_some_and(|last| sequence <= last) {
                // The replay contained it.
                return;
            }
        }
        if self.summary.last.is_some_and(|last| sequence.saturating_sub(last) > 1) {
            self.reset();
        }
        self.summary.last = Some(sequence);
        match decode_batch(payload) {
            Ok(batch) => {
                if let Delivery::Live(now_s) = delivery {
                    let lag_s = now_s - batch.timestamp;
                    self.summary.lag_s = Some(self.summary.lag_s.map_or(lag_s, |least| least.min(lag_s)));
                }
                let dp_rank = batch.dp_rank.unwrap_or(self.registered);
                for event in batch.events {
                    match event {
                        Ok(event) => self.apply(dp_rank, &event),
                        Err(error) => self.reject(error.to_string()),
                    }
                }
            }
            Err(error) => self.reject(error.to_string()),
        }
    }

    /// Counts a message or an event that is not applied.
    pub(super) fn reject(&mut self, why: String) {
        self.summary.unusable += 1;
        self.summary.last_unusable = Some(why);
    }

    /// The longest chains that the engine must hold now, at most `chains_max`. Linear in the number of followed blocks.
    pub(super) fn chains(&self, chains_max: usize) -> Vec<HeldChain> {
        let mut held: HashMap<DpRank, HashMap<SequenceHash, HeldBlock>> = HashMap::new();
        let mut chains: Vec<HeldChain> = Vec::new();
        for &(dp_rank, end) in &self.recent {
            let blocks = held.entry(dp_rank).or_insert_with(|| {
                self.index.held(rank(dp_rank)).into_iter().map(|block| (block.sequence, block)).collect()
            });
            if let Some(locals) = chain_to(end, blocks) {
                let chain = HeldChain { dp_rank, locals };
                if self.depth(&chain) > 0 && !chains.contains(&chain) {
                    chains.push(chain);
                }
            }
        }
        chains.sort_by_key(|chain| std::cmp::Reverse(chain.locals.len()));
        chains.truncate(chains_max);
        chains
    }

    /// Leading blocks of a chain that the engine must hold usable in device memory now.
    pub(super) fn depth(&self, chain: &HeldChain) -> u32 {
        let matches = self.index.find(&chain.locals);
        matches.get(rank(chain.dp_rank)).map_or(0, |held| held.blocks[Tier::Device])
    }

    fn apply(&mut self, dp_rank: DpRank, event: &EngineEvent<'_>) {
        if let EngineEvent::Stored(event) = event {
            self.summary.engine_of_fields = engine_of_fields(event).or(self.summary.engine_of_fields);
            // The hash of a larger block of a secondary group is that of the last registered block that it spans.
            let is_hashed_whole = event.group.can_be_primary() || event.block_size == self.options.block_size.tokens();
            if self.options.lora_name.is_none() && is_hashed_whole {
                self.hashes.stored(dp_rank, event);
            }
        }
        if !self.translators.contains_key(&dp_rank) && self.translators.len() >= RANKS_MAX {
            return self.reject(format!("more than {RANKS_MAX} ranks in one stream"));
        }
        let translator = self.translators.entry(dp_rank).or_insert_with(|| Translator::new(self.options.clone()));
        let translated = match translator.translate(event) {
            Ok(translated) => translated,
            Err(TranslateError::BlockSize { actual, .. }) => {
                self.summary.stores_with_block_size += 1;
                self.summary.mismatched_block_size = Some(actual);
                return;
            }
            // The service leaves it out as well.
            Err(TranslateError::PartialEntry { .. }) => return,
            Err(error) => return self.reject(error.to_string()),
        };
        for change in translated {
            if let RankEvent::Primary(BlockEvent::Stored { blocks, .. }) = &change {
                self.summary.stores_with_block_size += 1;
                self.recent.extend(blocks.last().map(|block| (dp_rank, block.sequence)));
                if self.recent.len() > RECENT_MAX {
                    self.recent.pop_front();
                }
            }
            self.index.apply_event(rank(dp_rank), &change);
        }
        if self.index.size(rank(dp_rank)).blocks > FOLLOWED_BLOCKS_MAX {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.translators.clear();
        self.index = empty_index();
        self.recent.clear();
    }
}

fn empty_index() -> GroupedIndex {
    GroupedIndex::new(Design::RadixTree.build())
}

/// A rank of the followed engine, as the index identifies it.
fn rank(dp_rank: DpRank) -> WorkerRank {
    WorkerRank { worker: WorkerId(0), dp_rank }
}

/// Local hashes of the chain that ends with a block; none unless the chain is held from the start of a sequence.
fn chain_to(end: SequenceHash, held: &HashMap<SequenceHash, HeldBlock>) -> Option<Vec<LocalHash>> {
    let mut locals = Vec::new();
    let mut next = Some(end);
    while let Some(hash) = next {
        // Parents can form a cycle.
        let block = held.get(&hash).filter(|_| locals.len() < held.len())?;
        locals.push(block.local);
        next = block.parent;
    }
    locals.reverse();
    Some(locals)
}

/// The only engine that publishes one of the store's fields.
fn engine_of_fields(event: &BlockStored<'_>) -> Option<&'static str> {
    if event.group.idx.is_some() || event.lookahead_token_ids.is_some() {
        return Some("vllm");
    }
    event.cache_salt.map(|_| "sglang")
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::RemovedCopies;
    use flash_indexer_wire::{BlockRemoved, CacheGroup, Encoding, TokenIds, encode_batch};

    use super::*;

    /// A store of one block of `block_size` tokens.
    fn stored(parent: Option<u64>, hash: u64, block_size: u32) -> Vec<u8> {
        let event = BlockStored {
            block_hashes: vec![SequenceHash(hash)],
            parent_block_hash: parent.map(SequenceHash),
            token_ids: TokenIds::Plain(vec![7; block_size as usize]),
            block_size,
            ..BlockStored::default()
        };
        encode_batch(10.0, &[EngineEvent::Stored(event)], None, Encoding::Map)
    }

    fn follower() -> StreamFollower {
        let block_size = BlockSize::new(2).expect("not zero");
        StreamFollower::new(
            TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One, cache_tier: None },
            DpRank(3),
            "0",
        )
    }

    fn depths(follower: &StreamFollower) -> Vec<usize> {
        follower.chains(8).iter().map(|chain| chain.locals.len()).collect()
    }

    #[test]
    fn live_messages_continue_a_replay() {
        let mut follower = follower();
        follower.receive(0, &stored(None, 1, 2), Delivery::Replayed);
        follower.receive(1, &stored(Some(1), 2, 2), Delivery::Replayed);
        follower.receive(1, &stored(Some(1), 2, 2), Delivery::Queued);
        follower.receive(2, &stored(Some(2), 3, 2), Delivery::Live(10.5));
        let summary = follower.summary();
        assert_eq!((summary.messages, summary.last, summary.gaps, summary.restarts), (2, Some(2), 0, 0));
        assert_eq!((summary.lag_s, summary.stores_with_block_size), (Some(0.5), 3), "the repeated message counts once");
        assert_eq!(depths(&follower), [3, 2, 1]);
        assert_eq!(follower.chains(1)[0].dp_rank, DpRank(3));
    }

    #[test]
    fn after_a_gap_or_a_restart_only_later_stores_count() {
        let mut follower = follower();
        follower.receive(5, &stored(None, 1, 2), Delivery::Live(9.0));
        follower.receive(8, &stored(Some(1), 2, 2), Delivery::Live(10.0));
        assert_eq!((follower.summary().gaps, follower.summary().missed, follower.summary().lag_s), (1, 2, Some(-1.0)));
        assert!(depths(&follower).is_empty(), "the parent may be gone");
        follower.receive(0, &stored(None, 4, 2), Delivery::Live(10.0));
        assert_eq!((follower.summary().restarts, follower.summary().last), (1, Some(0)));
        assert_eq!(depths(&follower), [1]);
    }

    #[test]
    fn a_hybrid_models_prefix_counts_if_every_group_can_use_it() {
        let mut follower = follower();
        let window = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(5) };
        let full = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
        let in_group = |group, hashes: &[u64]| {
            EngineEvent::Stored(BlockStored {
                block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
                token_ids: TokenIds::Plain(vec![7; 2 * hashes.len()]),
                block_size: 2,
                group,
                ..BlockStored::default()
            })
        };
        let batch = |events: &[EngineEvent<'_>]| encode_batch(10.0, events, None, Encoding::Map);
        let stores = [in_group(full, &[1, 2, 3]), in_group(window, &[1, 2, 3])];
        follower.receive(0, &batch(&stores), Delivery::Live(10.0));
        let chain = follower.chains(1).remove(0);
        assert_eq!((chain.locals.len(), follower.depth(&chain)), (3, 3));
        let block_hashes = vec![SequenceHash(3)];
        let removed = BlockRemoved { block_hashes, group_idx: window.idx, ..BlockRemoved::default() };
        follower.receive(1, &batch(&[EngineEvent::Removed(removed)]), Delivery::Live(10.0));
        assert_eq!(follower.depth(&chain), 2);
    }

    #[test]
    fn larger_blocks_of_a_secondary_group_are_not_hashed_as_a_whole() {
        let mut follower = follower();
        let window = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(5) };
        let store = BlockStored {
            block_hashes: vec![SequenceHash(2)],
            token_ids: TokenIds::Plain(vec![7; 4]),
            block_size: 4,
            group: window,
            ..BlockStored::default()
        };
        let payload = encode_batch(10.0, &[EngineEvent::Stored(store)], None, Encoding::Map);
        follower.receive(0, &payload, Delivery::Live(10.0));
        let summary = follower.summary();
        assert_eq!((summary.mismatched_block_size, summary.unusable), (None, 0));
        assert_eq!(summary.hashes, HashCounts::default());
    }

    #[test]
    fn rejected_messages_are_counted() {
        let mut follower = follower();
        follower.receive(0, &stored(None, 1, 4), Delivery::Live(10.0));
        follower.receive(1, b"no batch", Delivery::Live(10.0));
        let summary = follower.summary();
        assert_eq!((summary.mismatched_block_size, summary.unusable), (Some(4), 1));
        assert_eq!(summary.hashes, HashCounts { unrelated: 1, ..HashCounts::default() }, "1 is not a SHA-256 digest");
    }
}
