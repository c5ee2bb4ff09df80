//! `dynamo-kv-router`: its concurrent indexes, with its own pool of event threads.

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::PositionalIndexer;
use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use flash_indexer_bench::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent, keep_deepest};
use flash_indexer_core::{BlockEvent, LocalHash};

use super::{DYNAMO_COMPRESSED, DYNAMO_POSITIONAL};

/// `ConcurrentRadixTreeCompressed` in a `ThreadPoolIndexer`: events go to its threads' queues, queries run in the
/// caller. Events are timed from the first enqueued one until the queues are empty.
pub(crate) struct CompressedTreePeer;

/// `PositionalIndexer` in a `ThreadPoolIndexer`, with the jump size of its documentation.
pub(crate) struct PositionalPeer;

const JUMP_BLOCKS: usize = 32;
/// Block size passed to the index, which does not use it.
const BLOCK_TOKENS: u32 = 64;

impl Contender for CompressedTreePeer {
    fn name(&self) -> &str {
        DYNAMO_COMPRESSED
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        Box::new(Pool::new(ConcurrentRadixTreeCompressed::new(), setup))
    }
}

impl Contender for PositionalPeer {
    fn name(&self) -> &str {
        DYNAMO_POSITIONAL
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        Box::new(Pool::new(PositionalIndexer::new(JUMP_BLOCKS), setup))
    }
}

struct Pool<I: SyncIndexer>(ThreadPoolIndexer<I>);

impl<I: SyncIndexer> Pool<I> {
    fn new(index: I, setup: Setup) -> Self {
        Self(ThreadPoolIndexer::new(index, setup.event_threads, BLOCK_TOKENS))
    }
}

impl<I: SyncIndexer> Backend for Pool<I> {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        let events: Vec<RouterEvent> = events.into_iter().zip(0..).map(|(event, id)| router_event(event, id)).collect();
        Box::new(PoolLane { pool: &self.0, events: events.into_iter() })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(PoolFinder { index: self.0.backend(), query: Vec::new(), answer: Answer::default() })
    }
}

/// Converts an event to Dynamo's type.
pub(super) fn router_event(event: &WorkerEvent, event_id: u64) -> RouterEvent {
    let data = match &event.event {
        BlockEvent::Stored { parent, blocks, .. } => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(|parent| ExternalSequenceBlockHash(parent.0)),
            start_position: None,
            blocks: blocks
                .iter()
                .map(|block| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(block.sequence.0),
                    tokens_hash: LocalBlockHash(block.local.0),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        BlockEvent::Removed { blocks, .. } => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: blocks.iter().map(|block| ExternalSequenceBlockHash(block.0)).collect(),
        }),
        BlockEvent::Cleared => KvCacheEventData::Cleared,
        BlockEvent::Copied { .. } => unreachable!("a fleet has one tier"),
    };
    RouterEvent::new(event.rank.worker.0, KvCacheEvent { event_id, data, dp_rank: event.rank.dp_rank.0 })
}

struct PoolLane<'a, I: SyncIndexer> {
    pool: &'a ThreadPoolIndexer<I>,
    events: std::vec::IntoIter<RouterEvent>,
}

impl<I: SyncIndexer> Lane for PoolLane<'_, I> {
    fn apply(&mut self, events: usize) {
        for event in self.events.by_ref().take(events) {
            self.pool.enqueue_event(event).expect("the pool is running");
        }
    }

    fn settle(&mut self) {
        pollster::block_on(self.pool.flush());
    }
}

struct PoolFinder<'a, I> {
    index: &'a I,
    query: Vec<LocalBlockHash>,
    answer: Answer,
}

impl<I: SyncIndexer> Finder for PoolFinder<'_, I> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend(query.iter().map(|local| LocalBlockHash(local.0)));
    }

    fn find(&mut self) {
        self.answer = Answer::All(self.index.find_matches(&self.query, false));
    }

    fn find_top(&mut self, count: usize) {
        self.answer = Answer::top(self.index.find_matches(&self.query, false), count);
    }

    fn totals(&self) -> MatchTotals {
        self.answer.totals()
    }
}

/// An answer in Dynamo's type, or its deepest matches.
pub(super) enum Answer {
    All(OverlapScores),
    Top(Vec<u32>),
}

impl Default for Answer {
    fn default() -> Self {
        Self::Top(Vec::new())
    }
}

impl Answer {
    /// The deepest `count` of `scores`.
    pub(super) fn top(scores: OverlapScores, count: usize) -> Self {
        let mut depths: Vec<u32> = scores.scores.into_values().collect();
        keep_deepest(&mut depths, count, |&depth| depth);
        Self::Top(depths)
    }

    pub(super) fn totals(&self) -> MatchTotals {
        match self {
            Self::All(scores) => MatchTotals::of(scores.scores.values().copied()),
            Self::Top(depths) => MatchTotals::of(depths.iter().copied()),
        }
    }
}
