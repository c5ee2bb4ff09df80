//! The designs of this project as contenders.

use flash_indexer_core::designs::Design;
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

    /// A design whose query has a form of its own beside [`SharedIndex::find`] gets a backend of its own
    /// here, with a [`Finder`] that asks in that form.
    fn build(&self, _setup: Setup) -> Box<dyn Backend> {
        Box::new(Shared(self.0.build()))
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
