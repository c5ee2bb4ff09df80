//! What is measured: an index behind four small traits.

use std::ops::AddAssign;

use flash_indexer_core::{BlockEvent, LocalHash, WorkerRank};

/// An event and the rank that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEvent {
    /// Whose cache changed. Workers are numbered from zero; there is one rank each.
    pub rank: WorkerRank,
    /// How it changed.
    pub event: BlockEvent,
}

/// A kind of index that takes part.
pub trait Contender: Send + Sync {
    /// Its name in tables, and on command lines.
    fn name(&self) -> &str;

    /// An empty index.
    fn build(&self, setup: Setup) -> Box<dyn Backend>;

    /// Whether two threads can change it at once to any purpose.
    fn writers(&self) -> Writers {
        Writers::Many
    }

    /// Most holders of a block with which it can be filled in minutes; what needs more is not measured of it.
    fn holders_of_a_block_max(&self) -> usize {
        usize::MAX
    }
}

/// What an index is built for.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Workers, numbered from zero.
    pub workers: usize,
    /// Threads that apply events: an index with threads of its own starts so many, any other one is given so
    /// many [lanes](Backend::lane) at a time.
    pub event_threads: usize,
}

/// How many threads can change an index at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One; figures of two threads are left out.
    One,
    /// Several, each with workers of its own.
    Many,
}

/// One index, being measured.
pub trait Backend: Send + Sync {
    /// Makes a lane for these events, converted to the index's own types: not timed.
    ///
    /// Lanes that exist at the same time have no worker in common.
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a>;

    /// Makes something to ask with, for one thread: not timed.
    fn finder(&self) -> Box<dyn Finder + '_>;
}

/// Events on their way into an index.
pub trait Lane: Send {
    /// Applies the next so many events, or hands them to the index's own threads.
    fn apply(&mut self, events: usize);

    /// Returns when queries see everything that was applied.
    fn settle(&mut self) {}
}

/// Asks an index, keeping buffers between queries as its authors intend.
pub trait Finder {
    /// Copies a query into the index's own form: not timed.
    fn load(&mut self, query: &[LocalHash]);

    /// Answers the loaded query for every worker, in the index's own form of an answer.
    fn find(&mut self);

    /// Answers the loaded query for the `count` workers with the deepest matches. An index without
    /// such a query answers for all and keeps the deepest: see [`keep_deepest`].
    fn find_top(&mut self, count: usize);

    /// The last answer in figures: not timed.
    fn found(&self) -> Found;
}

/// An answer, or several, as figures that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// Matching workers.
    pub workers: u64,
    /// Leading **blocks** that they hold, all together.
    pub blocks: u64,
}

impl Found {
    /// An answer given as the depth of each worker that matches; zeros do not count.
    pub fn of(depths: impl Iterator<Item = u32>) -> Self {
        let mut found = Self::default();
        for depth in depths.filter(|&depth| depth > 0) {
            found.workers += 1;
            found.blocks += u64::from(depth);
        }
        found
    }
}

impl AddAssign for Found {
    fn add_assign(&mut self, other: Self) {
        self.workers += other.workers;
        self.blocks += other.blocks;
    }
}

/// Leaves the `count` entries with the greatest depth, in no particular order. Linear.
pub fn keep_deepest<T>(answer: &mut Vec<T>, count: usize, depth: impl Fn(&T) -> u32) {
    if count == 0 {
        answer.clear();
    } else if answer.len() > count {
        answer.select_nth_unstable_by_key(count - 1, |entry| std::cmp::Reverse(depth(entry)));
        answer.truncate(count);
    }
}
