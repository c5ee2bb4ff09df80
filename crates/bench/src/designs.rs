//! The designs of this project as contenders.

use flash_indexer_core::run::{INDEX_BYTES_MIN, MemoryTooSmall, RunIndex, RunLimits, RunMatches};
use flash_indexer_core::{LocalHash, MatchScores, PREFETCH_DISTANCE, RankMatch, SharedIndex, Tier, WorkerRank};
use flash_indexer_designs::Design;

use crate::backend::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent, keep_deepest};

/// An index design, measured through [`SharedIndex`].
#[derive(Debug, Clone, Copy)]
pub struct DesignContender(pub Design);

impl DesignContender {
    /// Every design.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Design::ALL.map(Self).to_vec()
    }
}

impl Contender for DesignContender {
    fn name(&self) -> &str {
        self.0.as_str()
    }

    /// A design with a faster query than [`SharedIndex::find`] is queried through it.
    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        match self.0 {
            Design::Run => Box::new(Run((0..setup.event_threads.max(1)).map(|_| RunIndex::default()).collect())),
            design => Box::new(SharedContender(design.build())),
        }
    }
}

/// The run index divided into a fixed number of shards, for every number of event threads: to measure a query's
/// cost of shards, and the cost of a prefix that workers of several shards hold.
#[derive(Debug, Clone, Copy)]
pub struct ShardsContender {
    name: &'static str,
    shards: usize,
}

impl ShardsContender {
    /// Two to sixteen shards. They are measured only by measures that name them.
    pub const ALL: [Self; 4] = [
        Self { name: "run-2-shards", shards: 2 },
        Self { name: "run-4-shards", shards: 4 },
        Self { name: "run-8-shards", shards: 8 },
        Self { name: "run-16-shards", shards: 16 },
    ];
}

impl Contender for ShardsContender {
    fn name(&self) -> &str {
        self.name
    }

    fn build(&self, _: Setup) -> Box<dyn Backend> {
        Box::new(Run((0..self.shards).map(|_| RunIndex::default()).collect()))
    }
}

/// The run index with a memory limit.
#[derive(Debug, Clone, Copy)]
pub struct BoundedContender {
    bytes_max: usize,
}

impl BoundedContender {
    /// Its name in tables.
    pub const NAME: &str = "run-bounded";

    /// An index of at most `bytes_max` bytes. Several event threads share the limit equally, each with at least
    /// [`INDEX_BYTES_MIN`].
    ///
    /// # Errors
    ///
    /// With a limit below [`INDEX_BYTES_MIN`].
    pub fn new(bytes_max: usize) -> Result<Self, MemoryTooSmall> {
        RunIndex::bounded(RunLimits::default(), bytes_max).map(|_| Self { bytes_max })
    }
}

impl Contender for BoundedContender {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        let threads = setup.event_threads.max(1);
        let bytes_max = (self.bytes_max / threads).max(INDEX_BYTES_MIN);
        let index = || RunIndex::bounded(RunLimits::default(), bytes_max).expect("at least INDEX_BYTES_MIN");
        Box::new(Run((0..threads).map(|_| index()).collect()))
    }
}

/// Run indexes, one for each event thread, with the workers whose number modulo the threads is the thread's. A query
/// searches all of them.
struct Run(Vec<RunIndex>);

impl Run {
    fn shard(&self, rank: WorkerRank) -> &RunIndex {
        &self.0[rank.worker.0 as usize % self.0.len()]
    }
}

impl Backend for Run {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        Box::new(RunLane { run: self, events, next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        let matches = self.0.iter().map(|_| RunMatches::default()).collect();
        Box::new(RunFinder { run: self, query: Vec::new(), matches, top: None })
    }
}

struct RunLane<'a> {
    run: &'a Run,
    events: Vec<&'a WorkerEvent>,
    next: usize,
}

impl Lane for RunLane<'_> {
    fn apply(&mut self, events: usize) {
        let events = &self.events[self.next..self.next + events];
        for (at, WorkerEvent { rank, event }) in events.iter().enumerate() {
            if let Some(WorkerEvent { rank, event }) = events.get(at + PREFETCH_DISTANCE) {
                self.run.shard(*rank).prefetch(*rank, event);
            }
            self.run.shard(*rank).apply(*rank, event);
        }
        self.next += events.len();
    }

    fn maintain(&mut self) -> bool {
        self.run.0.iter().filter(|shard| shard.maintain()).count() > 0
    }
}

struct RunFinder<'a> {
    run: &'a Run,
    query: Vec<LocalHash>,
    /// By shard.
    matches: Vec<RunMatches>,
    /// Depths of the longest matches, after a query for the top.
    top: Option<Vec<u32>>,
}

impl Finder for RunFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend_from_slice(query);
    }

    fn find(&mut self) {
        for (shard, matches) in self.run.0.iter().zip(&mut self.matches) {
            shard.find_depths(&self.query, matches);
        }
        self.top = None;
    }

    fn find_top(&mut self, count: usize) {
        let mut top = self.top.take().unwrap_or_default();
        top.clear();
        for (shard, matches) in self.run.0.iter().zip(&mut self.matches) {
            shard.find_top(&self.query, count, Tier::Device, matches);
            top.extend(matches.top().map(|(_, depth)| depth));
        }
        keep_deepest(&mut top, count, |&depth| depth);
        self.top = Some(top);
    }

    fn totals(&self) -> MatchTotals {
        if let Some(top) = &self.top {
            return MatchTotals::of(top.iter().copied());
        }
        let mut found = MatchTotals::default();
        for (shard, matches) in self.run.0.iter().zip(&self.matches) {
            // A depth without a holder belongs to a cleared rank.
            let holders = shard.holders().holders;
            let depths = matches.depths().iter().zip(&holders);
            found += MatchTotals::of(depths.filter(|(_, holder)| holder.is_some()).map(|(&depth, _)| depth));
        }
        found
    }
}

struct SharedContender(Box<dyn SharedIndex>);

impl Backend for SharedContender {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        Box::new(SharedLane { index: &*self.0, events, next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(SharedFinder { index: &*self.0, query: Vec::new(), scores: MatchScores::default() })
    }
}

struct SharedLane<'a> {
    index: &'a dyn SharedIndex,
    events: Vec<&'a WorkerEvent>,
    next: usize,
}

impl Lane for SharedLane<'_> {
    fn apply(&mut self, events: usize) {
        for WorkerEvent { rank, event } in &self.events[self.next..self.next + events] {
            self.index.apply(*rank, event);
        }
        self.next += events;
    }
}

struct SharedFinder<'a> {
    index: &'a dyn SharedIndex,
    query: Vec<LocalHash>,
    scores: MatchScores,
}

impl Finder for SharedFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend_from_slice(query);
    }

    fn find(&mut self) {
        self.scores = self.index.find(&self.query);
    }

    fn find_top(&mut self, count: usize) {
        self.find();
        keep_deepest(&mut self.scores.ranks, count, device);
    }

    fn totals(&self) -> MatchTotals {
        MatchTotals::of(self.scores.ranks.iter().map(device))
    }
}

fn device(found: &RankMatch) -> u32 {
    found.blocks[Tier::Device]
}
