//! The traits that a measured index implements.

use std::ops::AddAssign;

use flash_indexer_core::{BlockEvent, LocalHash, WorkerRank};

/// An event and the rank that published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEvent {
    /// The rank whose cache changed. Workers are numbered from zero and have one rank each.
    pub rank: WorkerRank,
    /// The change.
    pub event: BlockEvent,
}

/// An index implementation that is measured.
pub trait Contender: Send + Sync {
    /// Its name in tables, and on command lines.
    fn name(&self) -> &str;

    /// An empty index.
    fn build(&self, setup: Setup) -> Box<dyn Backend>;

    /// Whether several threads can write at the same time.
    fn writers(&self) -> Writers {
        Writers::Many
    }

    /// Largest number of holders of a block with which the index can be filled in minutes. Measures with more holders
    /// skip this contender.
    fn holders_of_a_block_max(&self) -> usize {
        usize::MAX
    }
}

/// Workers and threads that an index is built for.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Workers, numbered from zero.
    pub workers: usize,
    /// Threads that apply events. An index with its own threads starts this number; any other index gets this number of
    /// [lanes](Backend::lane) at a time.
    pub event_threads: usize,
}

/// Number of threads that can write to an index at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One; measures with two writers skip the contender.
    One,
    /// Several, each with its own workers.
    Many,
}

/// An index under measurement.
pub trait Backend: Send + Sync {
    /// Makes a lane for these events, converted to the index's own types. Not timed.
    ///
    /// Lanes that exist at the same time have no worker in common.
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a>;

    /// Makes a finder for one thread. Not timed.
    fn finder(&self) -> Box<dyn Finder + '_>;
}

/// A writer of events to an index, for one thread.
pub trait Lane: Send {
    /// Applies the next `events` events, or hands them to the index's own threads.
    fn apply(&mut self, events: usize);

    /// Returns when all applied events are visible to queries.
    fn settle(&mut self) {}

    /// Does a part of the work that the index has deferred, as an idle writer does, and returns whether more is left.
    fn maintain(&mut self) -> bool {
        false
    }
}

/// A reader of an index, for one thread, which reuses its buffers.
pub trait Finder {
    /// Converts a query to the index's own types. Not timed.
    fn load(&mut self, query: &[LocalHash]);

    /// Answers the loaded query for every worker, in the index's own types.
    fn find(&mut self);

    /// Answers the loaded query for the `count` workers with the longest matches. An index without such a query answers
    /// for all workers and selects the longest: see [`keep_deepest`].
    fn find_top(&mut self, count: usize);

    /// Totals of the last answer. Not timed.
    fn totals(&self) -> MatchTotals;
}

/// Totals of one or several answers, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MatchTotals {
    /// Matching workers.
    pub workers: u64,
    /// Sum of their leading **blocks**.
    pub blocks: u64,
}

impl MatchTotals {
    /// Totals of an answer, from the depth of each worker; zeros are not counted.
    pub fn of(depths: impl Iterator<Item = u32>) -> Self {
        let mut totals = Self::default();
        for depth in depths.filter(|&depth| depth > 0) {
            totals.workers += 1;
            totals.blocks += u64::from(depth);
        }
        totals
    }
}

impl AddAssign for MatchTotals {
    fn add_assign(&mut self, other: Self) {
        self.workers += other.workers;
        self.blocks += other.blocks;
    }
}

/// Keeps the `count` entries with the greatest depth, in no particular order. Linear.
pub fn keep_deepest<T>(answer: &mut Vec<T>, count: usize, depth: impl Fn(&T) -> u32) {
    if count == 0 {
        answer.clear();
    } else if answer.len() > count {
        answer.select_nth_unstable_by_key(count - 1, |entry| std::cmp::Reverse(depth(entry)));
        answer.truncate(count);
    }
}
