//! What is heard of one engine's stream, and what the engine must hold after it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{
    BlockEvent, DpRank, HeldBlock, LocalHash, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::Design;
use flash_indexer_wire::{BlockStored, EngineEvent, Translator, TranslatorOptions, TranslateError, decode_batch};

use super::names::{NameCheck, NamesSeen};

/// Blocks that are followed of one stream; beyond them what was heard is forgotten, and followed anew.
const FOLLOWED_BLOCKS_MAX: usize = 1 << 18;
/// Ranks that are followed of one stream.
const RANKS_MAX: usize = 1_024;
/// Ends of stores that are remembered to find chains by.
const RECENT_MAX: usize = 64;

/// How a message came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arrival {
    /// As an answer to a replay request.
    Replayed,
    /// Live, but it had to wait to be read.
    Waited,
    /// Live, and read at once, at this time in seconds since the Unix epoch.
    Live(f64),
}

/// What was heard, in figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct HeardSummary {
    /// Live messages.
    pub(super) messages: u64,
    /// Number of the last message, replayed or live.
    pub(super) last: Option<u64>,
    /// Times that live messages did not follow each other, and how many were missing.
    pub(super) gaps: u64,
    pub(super) missed: u64,
    /// Times that the sequence began anew.
    pub(super) restarts: u64,
    /// Tokens in a block, where that is not what was registered.
    pub(super) other_block_size: Option<u32>,
    /// Stores that had a block size.
    pub(super) sized_stores: u64,
    /// What could not be used for another reason: how often, and the last one in full.
    pub(super) unusable: u64,
    pub(super) last_unusable: Option<String>,
    pub(super) names: NamesSeen,
    /// The least time from a batch's stamp to its arrival, in seconds; negative if it was stamped later.
    pub(super) lag_s: Option<f64>,
    /// The engine whose own fields were seen.
    pub(super) looks_like: Option<&'static str>,
}

/// Blocks that an engine holds from the start of a sequence, as far as was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldChain {
    pub(super) dp_rank: DpRank,
    pub(super) locals: Vec<LocalHash>,
}

/// Follows a stream message by message. What it says that the engine holds, the engine holds: after a gap it
/// starts anew with what is told from there on.
pub(super) struct Heard {
    options: TranslatorOptions,
    registered: DpRank,
    translators: BTreeMap<DpRank, Translator>,
    index: GroupedIndex,
    recent: VecDeque<(DpRank, SequenceHash)>,
    names: NameCheck,
    last_live: Option<u64>,
    summary: HeardSummary,
}

impl Heard {
    /// Nothing yet; batches that name no rank are of the one that was `registered`.
    pub(super) fn new(options: TranslatorOptions, registered: DpRank, hash_seed: &str) -> Self {
        Self {
            options,
            registered,
            translators: BTreeMap::new(),
            index: empty_index(),
            recent: VecDeque::new(),
            names: NameCheck::new(hash_seed),
            last_live: None,
            summary: HeardSummary::default(),
        }
    }

    pub(super) fn block_size(&self) -> BlockSize {
        self.options.block_size
    }

    pub(super) fn summary(&self) -> HeardSummary {
        HeardSummary { names: self.names.seen, ..self.summary.clone() }
    }

    /// Takes in one message.
    pub(super) fn take(&mut self, sequence: u64, payload: &[u8], arrival: Arrival) {
        if arrival != Arrival::Replayed {
            self.summary.messages += 1;
            let last_live = self.last_live.replace(sequence);
            let missed = last_live.map_or(0, |last| sequence.saturating_sub(last).saturating_sub(1));
            self.summary.missed += missed;
            self.summary.gaps += u64::from(missed > 0);
            if last_live.is_some_and(|last| sequence <= last) {
                self.summary.restarts += 1;
                self.forget();
            } else if self.summary.last.is_some_and(|last| sequence <= last) {
                // The replay had it already.
                return;
            }
        }
        if self.summary.last.is_some_and(|last| sequence.saturating_sub(last) > 1) {
            self.forget();
        }
        self.summary.last = Some(sequence);
        match decode_batch(payload) {
            Ok(batch) => {
                if let Arrival::Live(now_s) = arrival {
                    let lag_s = now_s - batch.timestamp;
                    self.summary.lag_s = Some(self.summary.lag_s.map_or(lag_s, |least| least.min(lag_s)));
                }
                let dp_rank = batch.dp_rank.unwrap_or(self.registered);
                for event in batch.events {
                    match event {
                        Ok(event) => self.apply(dp_rank, &event),
                        Err(error) => self.unusable(error.to_string()),
                    }
                }
            }
            Err(error) => self.unusable(error.to_string()),
        }
    }

    /// Frames that are no message.
    pub(super) fn unusable(&mut self, why: String) {
        self.summary.unusable += 1;
        self.summary.last_unusable = Some(why);
    }

    /// Some deep chains that the engine must hold now, at most `chains_max`. Linear in what is followed.
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

    /// Leading blocks of a chain that the engine must be able to use now in device memory.
    pub(super) fn depth(&self, chain: &HeldChain) -> u32 {
        let matches = self.index.find(&chain.locals);
        matches.get(rank(chain.dp_rank)).map_or(0, |held| held.blocks[Tier::Device])
    }

    fn apply(&mut self, dp_rank: DpRank, event: &EngineEvent<'_>) {
        if let EngineEvent::Stored(event) = event {
            self.summary.looks_like = looks_like(event).or(self.summary.looks_like);
            if self.options.lora_name.is_none() {
                self.names.stored(dp_rank, event);
            }
        }
        if !self.translators.contains_key(&dp_rank) && self.translators.len() >= RANKS_MAX {
            return self.unusable(format!("more than {RANKS_MAX} ranks in one stream"));
        }
        let translator = self.translators.entry(dp_rank).or_insert_with(|| Translator::new(self.options.clone()));
        let translated = match translator.translate(event) {
            Ok(translated) => translated,
            Err(TranslateError::BlockSize { actual, .. }) => {
                self.summary.sized_stores += 1;
                self.summary.other_block_size = Some(actual);
                return;
            }
            Err(error) => return self.unusable(error.to_string()),
        };
        for change in translated {
            if let RankEvent::Indexed(BlockEvent::Stored { blocks, .. }) = &change {
                self.summary.sized_stores += 1;
                self.recent.extend(blocks.last().map(|block| (dp_rank, block.sequence)));
                if self.recent.len() > RECENT_MAX {
                    self.recent.pop_front();
                }
            }
            self.index.apply_event(rank(dp_rank), &change);
        }
        if self.index.size(rank(dp_rank)).blocks > FOLLOWED_BLOCKS_MAX {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.translators.clear();
        self.index = empty_index();
        self.recent.clear();
    }
}

fn empty_index() -> GroupedIndex {
    GroupedIndex::new(Design::RadixTree.build())
}

/// The one engine that is followed, as the index names it.
fn rank(dp_rank: DpRank) -> WorkerRank {
    WorkerRank { worker: WorkerId(0), dp_rank }
}

/// Local hashes of the chain that ends with a block; none unless all of it is held from a sequence's start.
fn chain_to(end: SequenceHash, held: &HashMap<SequenceHash, HeldBlock>) -> Option<Vec<LocalHash>> {
    let mut locals = Vec::new();
    let mut next = Some(end);
    while let Some(name) = next {
        // Names can follow each other in a circle.
        let block = held.get(&name).filter(|_| locals.len() < held.len())?;
        locals.push(block.local);
        next = block.parent;
    }
    locals.reverse();
    Some(locals)
}

/// The engine that alone has one of the fields that a store came with.
fn looks_like(event: &BlockStored<'_>) -> Option<&'static str> {
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

    /// One block of two tokens after another.
    fn stored(parent: Option<u64>, name: u64, block_size: u32) -> Vec<u8> {
        let event = BlockStored {
            block_hashes: vec![SequenceHash(name)],
            parent_block_hash: parent.map(SequenceHash),
            token_ids: TokenIds::Plain(vec![7; block_size as usize]),
            block_size,
            ..BlockStored::default()
        };
        encode_batch(10.0, &[EngineEvent::Stored(event)], None, Encoding::Map)
    }

    fn nothing() -> Heard {
        let block_size = BlockSize::new(2).expect("not zero");
        Heard::new(
            TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One },
            DpRank(3),
            "0",
        )
    }

    fn depths(heard: &Heard) -> Vec<usize> {
        heard.chains(8).iter().map(|chain| chain.locals.len()).collect()
    }

    #[test]
    fn a_replay_and_what_follows_it_make_one_stream() {
        let mut heard = nothing();
        heard.take(0, &stored(None, 1, 2), Arrival::Replayed);
        heard.take(1, &stored(Some(1), 2, 2), Arrival::Replayed);
        heard.take(1, &stored(Some(1), 2, 2), Arrival::Waited);
        heard.take(2, &stored(Some(2), 3, 2), Arrival::Live(10.5));
        let summary = heard.summary();
        assert_eq!((summary.messages, summary.last, summary.gaps, summary.restarts), (2, Some(2), 0, 0));
        assert_eq!((summary.lag_s, summary.sized_stores), (Some(0.5), 3), "the repeated message counts once");
        assert_eq!(depths(&heard), [3, 2, 1]);
        assert_eq!(heard.chains(1)[0].dp_rank, DpRank(3));
    }

    #[test]
    fn after_a_gap_or_a_restart_only_what_is_told_anew_is_known() {
        let mut heard = nothing();
        heard.take(5, &stored(None, 1, 2), Arrival::Live(9.0));
        heard.take(8, &stored(Some(1), 2, 2), Arrival::Live(10.0));
        assert_eq!((heard.summary().gaps, heard.summary().missed, heard.summary().lag_s), (1, 2, Some(-1.0)));
        assert!(depths(&heard).is_empty(), "the parent may be gone");
        heard.take(0, &stored(None, 4, 2), Arrival::Live(10.0));
        assert_eq!((heard.summary().restarts, heard.summary().last), (1, Some(0)));
        assert_eq!(depths(&heard), [1]);
    }

    #[test]
    fn of_a_hybrid_model_counts_what_every_group_can_use() {
        let mut heard = nothing();
        let window = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(5) };
        let full = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
        let in_group = |group, names: &[u64]| {
            EngineEvent::Stored(BlockStored {
                block_hashes: names.iter().copied().map(SequenceHash).collect(),
                token_ids: TokenIds::Plain(vec![7; 2 * names.len()]),
                block_size: 2,
                group,
                ..BlockStored::default()
            })
        };
        let batch = |events: &[EngineEvent<'_>]| encode_batch(10.0, events, None, Encoding::Map);
        let told = [in_group(full, &[1, 2, 3]), in_group(window, &[1, 2, 3])];
        heard.take(0, &batch(&told), Arrival::Live(10.0));
        let chain = heard.chains(1).remove(0);
        assert_eq!((chain.locals.len(), heard.depth(&chain)), (3, 3));
        let block_hashes = vec![SequenceHash(3)];
        let removed = BlockRemoved { block_hashes, group_idx: window.idx, ..BlockRemoved::default() };
        heard.take(1, &batch(&[EngineEvent::Removed(removed)]), Arrival::Live(10.0));
        assert_eq!(heard.depth(&chain), 2);
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let mut heard = nothing();
        heard.take(0, &stored(None, 1, 4), Arrival::Live(10.0));
        heard.take(1, b"no batch", Arrival::Live(10.0));
        let summary = heard.summary();
        assert_eq!((summary.other_block_size, summary.unusable), (Some(4), 1));
        assert_eq!(summary.names, NamesSeen { foreign: 1, ..NamesSeen::default() }, "1 is nobody's digest");
    }
}
