//! `dynamo-kv-router`: its single-threaded radix tree.

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{LocalBlockHash, RouterEvent};
use flash_indexer_bench::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent, Writers};
use flash_indexer_core::LocalHash;
use parking_lot::Mutex;

use super::DYNAMO_RADIX_TREE;
use super::dynamo::{Answer, router_event};

/// `RadixTree` behind a lock. In Dynamo one thread owns the tree and others reach it through a channel; an uncontended lock
/// costs less, which favours the tree.
pub(crate) struct DynamoRadixTreePeer;

impl Contender for DynamoRadixTreePeer {
    fn name(&self) -> &str {
        DYNAMO_RADIX_TREE
    }

    fn build(&self, _setup: Setup) -> Box<dyn Backend> {
        Box::new(Locked(Mutex::new(Movable(RadixTree::new()))))
    }

    fn writers(&self) -> Writers {
        Writers::One
    }
}

/// A tree that can move between threads.
struct Movable(RadixTree);

// SAFETY: the tree's reference counts are not atomic, but all counted references are inside the tree: it returns none
// (answers are plain numbers, events are taken by value), so exclusive access to the tree is exclusive access to them.
#[allow(unsafe_code, reason = "the tree is not Send for references that never leave it")]
unsafe impl Send for Movable {}

struct Locked(Mutex<Movable>);

impl Backend for Locked {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        let events: Vec<RouterEvent> = events.into_iter().zip(0..).map(|(event, id)| router_event(event, id)).collect();
        Box::new(TreeLane { tree: &self.0, events: events.into_iter() })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(TreeFinder { tree: &self.0, query: Vec::new(), answer: Answer::default() })
    }
}

struct TreeLane<'a> {
    tree: &'a Mutex<Movable>,
    events: std::vec::IntoIter<RouterEvent>,
}

impl Lane for TreeLane<'_> {
    fn apply(&mut self, events: usize) {
        for event in self.events.by_ref().take(events) {
            // A rejected event is visible in the answers.
            let _ = self.tree.lock().0.apply_event(event);
        }
    }
}

struct TreeFinder<'a> {
    tree: &'a Mutex<Movable>,
    query: Vec<LocalBlockHash>,
    answer: Answer,
}

impl Finder for TreeFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query = query.iter().map(|local| LocalBlockHash(local.0)).collect();
    }

    fn find(&mut self) {
        self.answer = Answer::All(self.tree.lock().0.find_matches(std::mem::take(&mut self.query), false));
    }

    fn find_top(&mut self, count: usize) {
        self.answer = Answer::top(self.tree.lock().0.find_matches(std::mem::take(&mut self.query), false), count);
    }

    fn totals(&self) -> MatchTotals {
        self.answer.totals()
    }
}
