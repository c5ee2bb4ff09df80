//! `smg-radix-tree`: chains with interned sets of holders, for one writer.

use flash_indexer_bench::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent, Writers, keep_deepest};
use flash_indexer_core::{BlockEvent, LocalHash};
use parking_lot::RwLock;
use radix_tree::{Config, HolderId, Overlap, OverlapScratch, RadixTree};

use super::{SMG_RADIX_TREE, worker};

/// Its `RadixTree` behind a read-write lock, queried with reused scratch buffers.
pub(crate) struct SmgRadixTreePeer;

impl Contender for SmgRadixTreePeer {
    fn name(&self) -> &str {
        SMG_RADIX_TREE
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        let mut tree = RadixTree::new(Config::default());
        let holders = (0..setup.workers).map(|number| tree.create_holder(&number.to_string())).collect();
        Box::new(Smg { tree: RwLock::new(tree), holders })
    }

    fn writers(&self) -> Writers {
        Writers::One
    }

    /// Sets of holders are interned: with thousands of holders in each set, a change takes long.
    fn holders_of_a_block_max(&self) -> usize {
        1_000
    }
}

struct Smg {
    tree: RwLock<RadixTree>,
    holders: Vec<HolderId>,
}

enum Change {
    Stored { parent: Option<u64>, blocks: Vec<(u64, u64)> },
    Removed(Vec<u64>),
    Cleared,
}

fn change(event: &BlockEvent) -> Change {
    match event {
        BlockEvent::Stored { parent, blocks, .. } => Change::Stored {
            parent: parent.map(|parent| parent.0),
            blocks: blocks.iter().map(|block| (block.sequence.0, block.local.0)).collect(),
        },
        BlockEvent::Removed { blocks, .. } => Change::Removed(blocks.iter().map(|block| block.0).collect()),
        BlockEvent::Cleared => Change::Cleared,
        BlockEvent::Copied { .. } => unreachable!("a fleet has one tier"),
    }
}

impl Backend for Smg {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        let changes = events.iter().map(|event| (self.holders[worker(event)], change(&event.event)));
        Box::new(SmgLane { tree: &self.tree, changes: changes.collect(), next: 0 })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(SmgFinder {
            tree: &self.tree,
            query: Vec::new(),
            scratch: OverlapScratch::default(),
            answer: Vec::new(),
        })
    }
}

struct SmgLane<'a> {
    tree: &'a RwLock<RadixTree>,
    changes: Vec<(HolderId, Change)>,
    next: usize,
}

impl Lane for SmgLane<'_> {
    fn apply(&mut self, events: usize) {
        for (holder, change) in &self.changes[self.next..self.next + events] {
            let mut tree = self.tree.write();
            match change {
                Change::Stored { parent, blocks } => {
                    // A refused store is visible in the answers.
                    let _ = tree.store(*holder, *parent, blocks);
                }
                Change::Removed(blocks) => {
                    tree.remove(*holder, blocks);
                }
                Change::Cleared => tree.clear(*holder),
            }
        }
        self.next += events;
    }
}

struct SmgFinder<'a> {
    tree: &'a RwLock<RadixTree>,
    query: Vec<u64>,
    scratch: OverlapScratch,
    answer: Vec<Overlap>,
}

impl Finder for SmgFinder<'_> {
    fn load(&mut self, query: &[LocalHash]) {
        self.query.clear();
        self.query.extend(query.iter().map(|local| local.0));
    }

    fn find(&mut self) {
        self.tree.read().overlap(&self.query, &mut self.scratch, &mut self.answer);
    }

    fn find_top(&mut self, count: usize) {
        self.find();
        keep_deepest(&mut self.answer, count, |overlap| overlap.depth);
    }

    fn totals(&self) -> MatchTotals {
        MatchTotals::of(self.answer.iter().map(|overlap| overlap.depth))
    }
}
