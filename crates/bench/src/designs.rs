//! The designs of this project as contenders.

use flash_indexer_core::designs::{Design, RunIndex, RunMatches};
use flash_indexer_core::{LocalHash, MatchScores, RankMatch, SharedIndex, Tier};

use crate::backend::{Backend, Contender, Finder, Found, Lane, Setup, WorkerEvent, keep_deepest};

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

    /// A design whose query has a form of its own beside [`SharedIndex::find`] is asked in that form.
    fn build(&self, _setup: Setup) -> Box<dyn Backend> {
        match self.0 {
            Design::Run => Box::<Run>::default(),
            design => Box::new(Shared(design.build())),
        }
    }
}

/// The run index, which answers with an array of depths.
#[derive(Default)]
struct Run(RunIndex);

impl Backend for Run {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        Box::new(SharedLane { index: &self.0, events, next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(RunFinder { index: &self.0, query: Vec::new(), matches: RunMatches::default(), is_top: false })
    }
}

struct RunFinder<'a> {
    index: &'a RunIndex,
    query: Vec<LocalHash>,
    matches: RunMatches,
    is_top: bool,
}

impl Finder for RunFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend_from_slice(query);
    }

    fn find(&mut self) {
        self.index.find_depths(&self.query, &mut self.matches);
        self.is_top = false;
    }

    fn find_top(&mut self, count: usize) {
        self.index.find_top(&self.query, count, Tier::Device, &mut self.matches);
        self.is_top = true;
    }

    fn found(&self) -> Found {
        match self.is_top {
            true => Found::of(self.matches.top().map(|(_, depth)| depth)),
            false => Found::of(self.matches.depths().iter().copied()),
        }
    }
}

struct Shared(Box<dyn SharedIndex>);

impl Backend for Shared {
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

    fn found(&self) -> Found {
        Found::of(self.scores.ranks.iter().map(device))
    }
}

fn device(found: &RankMatch) -> u32 {
    found.blocks[Tier::Device]
}
