//! The run index: our own design, and the default.
//!
//! `docs/run-index.md` draws it. In short: blocks that follow each other lie together in **runs**, which
//! never split and never move; one table of **edges** says which run follows which block; each run
//! has **holdings**, how far each holder goes from its start. The writer alone keeps the engines' names
//! of blocks and a directory of them for each hash domain. Readers compare local hashes along runs,
//! lay holdings over each other, and check versions at the end.

mod branching;
mod find;
mod matches;
mod published;
mod writer;

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use self::matches::Scratch;
use self::published::Published;
use self::published::ranks::RankSlot;
use self::writer::Writer;
use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, RankMatch, RankSize, SharedIndex, Tier, WorkerRank,
};

/// Bounds of a [`RunIndex`].
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Blocks of one rank that may wait for a parent; further ones are refused and counted.
    pub waiting_blocks_max: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { waiting_blocks_max: 1 << 20 }
    }
}

/// Runs of blocks with the holders of each.
#[derive(Debug)]
pub struct RunIndex {
    published: Arc<Published>,
    writer: Mutex<Writer>,
}

impl Default for RunIndex {
    fn default() -> Self {
        Self::new(RunLimits::default())
    }
}

impl RunIndex {
    /// An empty index with the given bounds.
    #[must_use]
    pub fn new(limits: RunLimits) -> Self {
        let published = Arc::new(Published::new());
        let writer = Mutex::new(Writer::new(Arc::clone(&published), limits));
        Self { published, writer }
    }
}

thread_local! {
    /// Memory that a thread's queries use again.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl SharedIndex for RunIndex {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        self.writer.lock().apply(rank, event)
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        SCRATCH.with_borrow_mut(|scratch| find::find(&self.published, query, scratch, |found| scores(&self.published, found)))
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.published.ranks.sizes().into_iter().map(|(rank, _)| rank).collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.writer.lock().held(rank)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.apply(rank, &BlockEvent::Cleared);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        let sizes = self.published.ranks.sizes();
        sizes.into_iter().find(|&(other, _)| other == rank).map(|(_, size)| size).unwrap_or_default()
    }
}

/// Depths by holder as matches by rank.
fn scores(published: &Published, found: &Scratch) -> MatchScores {
    let mut ranks: Vec<RankMatch> = Vec::new();
    // Ranks with several levels have several holders.
    let mut levelled: FxHashMap<RankSlot, usize> = FxHashMap::default();
    found.depths.for_each(|holder, depth| {
        let meaning = published.ranks.meaning(holder);
        let new = || RankMatch { rank: published.ranks.rank(meaning.rank), blocks: PerTier::default() };
        let all_levels = meaning.first == 0 && usize::from(meaning.last) + 1 == Tier::ALL.len();
        let at = match all_levels {
            true => ranks.len(),
            false => *levelled.entry(meaning.rank).or_insert(ranks.len()),
        };
        if at == ranks.len() {
            ranks.push(new());
        }
        for level in meaning.first..=meaning.last {
            if let Some(blocks) = ranks[at].blocks.0.get_mut(usize::from(level)) {
                *blocks = depth;
            }
        }
    });
    MatchScores { ranks }
}
