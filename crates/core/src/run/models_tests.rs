//! Loom models of the publication protocol. They run the real writer and the real reader under every interleaving and
//! every visibility order of stores that a few preemptions allow.
//!
//! A model is a stream of events. The writer applies some of them before the reader starts and the others
//! concurrently. A reader's depth for each rank must equal the oracle's depth after some block of some event; the
//! final depth must equal the oracle's final depth. Sizes are small under `cfg(loom)`, so that a handful of blocks
//! and ranks reaches every form of every structure. So are the limits that debug assertions lower for all tests.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p flash-indexer-core --features loom --lib models`

mod scenarios;

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::thread;

use super::find::{find_depths, until_unchanged};
use super::published::Published;
use super::published::modelled::as_writer;
use super::scratch::Scratch;
use super::writer::Writer;
use super::{ResolvedRanks, RunLimits, top};
use crate::keyed::HashKey;
use crate::oracle::Oracle;
use crate::{
    Block, BlockEvent, DpRank, LocalHash, MatchScores, PerTier, PrefixIndex, RemovedCopies, SequenceHash, Tier,
    WorkerId, WorkerRank,
};

type Event = (WorkerRank, BlockEvent);

/// Preemptions of threads in one execution.
const PREEMPTIONS_MAX: usize = 2;

const STACK_BYTES: usize = 1 << 20;

/// A stream of events and the query that runs concurrently with the last ones.
struct Model {
    /// Events applied before the reader starts.
    before: Vec<Event>,
    /// Events applied while the reader runs.
    concurrent: Vec<Event>,
    query: Vec<LocalHash>,
    limits: RunLimits,
    /// A rank with two sequence hashes for one prefix. Its answer may be too low while it changes.
    twinned_rank: Option<WorkerRank>,
}

impl Model {
    fn new(query: &str, before: &[Event], concurrent: &[Event]) -> Self {
        Self {
            before: before.to_vec(),
            concurrent: concurrent.to_vec(),
            query: locals(query),
            limits: RunLimits::default(),
            twinned_rank: None,
        }
    }

    fn with_limits(self, limits: RunLimits) -> Self {
        Self { limits, ..self }
    }

    fn with_twins(self, worker: u64) -> Self {
        Self { twinned_rank: Some(rank(worker)), ..self }
    }

    /// Checks the complete answer in every execution.
    fn check(self) {
        let truth = ExpectedDepths::of(&self);
        let query = self.query.clone();
        self.explore(move |published| truth.check(&find(published, &query)));
    }

    /// Checks the deepest ranks in every execution.
    fn check_top(self, count: usize) {
        let truth = ExpectedDepths::of(&self);
        let query = self.query.clone();
        self.explore(move |published| truth.check_top(&find_top(published, &query, count), count));
    }

    fn explore(self, read: impl Fn(&Published) + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS_MAX);
        builder.max_branches = 100_000;
        let finally = ExpectedDepths::final_depths(&self);
        let (model, read, finally) = (Arc::new(self), Arc::new(read), Arc::new(finally));
        builder.check(move || {
            let (model, read, finally) = (Arc::clone(&model), Arc::clone(&read), Arc::clone(&finally));
            let reader = spawn(move || {
                let published = Arc::new(Published::new(0, HashKey::FIXED));
                let mut writer = Writer::new(Arc::clone(&published), model.limits);
                as_writer(|| apply(&mut writer, &model.before));
                let concurrent = model.concurrent.clone();
                let writer = spawn(move || as_writer(|| apply(&mut writer, &concurrent)));
                read(&published);
                writer.join().expect("the writer does not fail");
                assert_eq!(find(&published, &model.query).sorted(), *finally, "when nothing is being applied");
            });
            reader.join().expect("the reader finds nothing wrong");
        });
    }
}

/// Spawns a thread with a stack that is large enough; loom's own stacks are small.
fn spawn(run: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a model has few threads")
}

fn apply(writer: &mut Writer, events: &[Event]) {
    for (rank, event) in events {
        writer.apply(*rank, event);
    }
}

fn find(published: &Published, query: &[LocalHash]) -> MatchScores {
    let mut scratch = Scratch::default();
    let attempt = || {
        find_depths(published, query, &mut scratch)?;
        Ok(ResolvedRanks::read(published).scores(&mut scratch))
    };
    until_unchanged(published, attempt).expect("no model abandons its index").0
}

/// Ranks with their depths in all tiers together.
fn find_top(published: &Published, query: &[LocalHash], count: usize) -> Vec<(WorkerRank, u32)> {
    let mut scratch = Scratch::default();
    let which = (count, Tier::External);
    let attempt = || {
        top::find_top(published, query, which, &mut scratch)?;
        let found = scratch.top.iter().map(|&(holder, depth)| {
            assert!((holder.0 as usize) < published.ranks.holder_count(), "a holder without an assignment");
            (published.ranks.rank(published.ranks.assignment(holder).rank), depth)
        });
        Ok(found.collect())
    };
    until_unchanged(published, attempt).expect("no model abandons its index").0
}

/// The depths that each rank may have in an answer, level by level: every depth that it had at some moment.
struct ExpectedDepths {
    ranks: Vec<(WorkerRank, Vec<PerTier<u32>>)>,
    twinned_rank: Option<WorkerRank>,
}

impl ExpectedDepths {
    fn of(model: &Model) -> Self {
        let mut oracle = Oracle::default();
        model.before.iter().for_each(|(rank, event)| {
            oracle.apply(*rank, event);
        });
        let mut moments = vec![oracle.find(&model.query)];
        for (rank, event) in model.concurrent.iter().flat_map(block_by_block) {
            oracle.apply(rank, &event);
            moments.push(oracle.find(&model.query));
        }
        let ranks: BTreeSet<WorkerRank> = model.before.iter().chain(&model.concurrent).map(|&(rank, _)| rank).collect();
        let depths = |rank| moments.iter().map(|moment| depths_in(moment, rank)).collect();
        Self { ranks: ranks.into_iter().map(|rank| (rank, depths(rank))).collect(), twinned_rank: model.twinned_rank }
    }

    fn final_depths(model: &Model) -> MatchScores {
        let mut oracle = Oracle::default();
        for (rank, event) in model.before.iter().chain(&model.concurrent) {
            oracle.apply(*rank, event);
        }
        oracle.find(&model.query).sorted()
    }

    fn check(&self, found: &MatchScores) {
        for (rank, true_depths) in &self.ranks {
            let depths = depths_in(found, *rank);
            for level in Tier::ALL {
                let may_be_less = self.twinned_rank == Some(*rank);
                let explains = |moment: &PerTier<u32>| match may_be_less {
                    true => moment[level] >= depths[level],
                    false => moment[level] == depths[level],
                };
                let was_true = true_depths.iter().any(explains);
                assert!(was_true, "{rank:?}: {depths:?} is none of {true_depths:?}");
            }
        }
        assert!(found.ranks.iter().all(|found| self.contains_rank(found.rank)), "an unknown rank: {found:?}");
        let distinct: BTreeSet<WorkerRank> = found.ranks.iter().map(|found| found.rank).collect();
        assert_eq!(distinct.len(), found.ranks.len(), "each rank once: {found:?}");
    }

    fn check_top(&self, found: &[(WorkerRank, u32)], count: usize) {
        assert!(found.len() <= count);
        for &(rank, depth) in found {
            let (_, true_depths) =
                self.ranks.iter().find(|known| known.0 == rank).expect("an answer has only known ranks");
            let was_true = true_depths.iter().any(|moment| moment[Tier::External] == depth);
            assert!(was_true, "{rank:?}: {depth} is none of {true_depths:?}");
        }
        let distinct: BTreeSet<WorkerRank> = found.iter().map(|found| found.0).collect();
        assert_eq!(distinct.len(), found.len(), "each rank once: {found:?}");
    }

    fn contains_rank(&self, rank: WorkerRank) -> bool {
        self.ranks.iter().any(|known| known.0 == rank)
    }
}

fn depths_in(scores: &MatchScores, rank: WorkerRank) -> PerTier<u32> {
    scores.get(rank).map(|found| found.blocks).unwrap_or_default()
}

/// The blocks of one event become visible one after the other.
fn block_by_block((rank, event): &Event) -> Vec<Event> {
    let singles: Vec<BlockEvent> = match event {
        BlockEvent::Stored { tier, parent, blocks, copies } => {
            let parents = std::iter::once(*parent).chain(blocks.iter().map(|block| Some(block.sequence)));
            let single =
                |(parent, &block)| BlockEvent::Stored { tier: *tier, parent, blocks: vec![block], copies: *copies };
            parents.zip(blocks).map(single).collect()
        }
        BlockEvent::Removed { tier, blocks, copies } => {
            let single = |&block| BlockEvent::Removed { tier: *tier, blocks: vec![block], copies: *copies };
            blocks.iter().map(single).collect()
        }
        other => vec![other.clone()],
    };
    singles.into_iter().map(|single| (*rank, single)).collect()
}

/// A chain is written as a word: each letter is the local hash of a block.
fn locals(chain: &str) -> Vec<LocalHash> {
    chain.bytes().map(|content| LocalHash(content.into())).collect()
}

fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

/// The sequence hash of a chain's last block. All engines have the same seed unless a model sets another one.
fn sequence(chain: &str, seed: u64) -> SequenceHash {
    SequenceHash(chain.bytes().fold(seed, |sequence, content| sequence.wrapping_mul(31).wrapping_add(content.into())))
}

/// A worker stores the blocks of a chain that follow `parent`.
fn stores(worker: u64, parent: &str, blocks: &str) -> Event {
    stores_as(worker, Tier::Device, parent, blocks, 7)
}

fn stores_as(worker: u64, tier: Tier, parent: &str, blocks: &str, seed: u64) -> Event {
    let chain = format!("{parent}{blocks}");
    let ends = parent.len() + 1..=chain.len();
    let parent = (!parent.is_empty()).then(|| sequence(parent, seed));
    let blocks = ends
        .map(|end| Block {
            sequence: sequence(&chain[..end], seed),
            local: LocalHash(chain.as_bytes()[end - 1].into()),
        })
        .collect();
    (rank(worker), BlockEvent::Stored { tier, parent, blocks, copies: 1 })
}

/// A worker stores the block that follows `parent` under a second sequence hash.
fn renames(worker: u64, parent: &str, block: &str) -> Event {
    let (rank, mut event) = stores(worker, parent, block);
    if let BlockEvent::Stored { blocks, .. } = &mut event {
        blocks[0].sequence.0 ^= 1 << 60;
    }
    (rank, event)
}

/// A worker removes the last `count` blocks of a chain, last block first.
fn evicts(worker: u64, chain: &str, count: usize) -> Event {
    let ends = chain.len() - count + 1..=chain.len();
    let blocks = ends.rev().map(|end| sequence(&chain[..end], 7)).collect();
    (rank(worker), BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All })
}

fn clears(worker: u64) -> Event {
    (rank(worker), BlockEvent::Cleared)
}
