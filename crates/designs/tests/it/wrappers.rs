//! The wrapper that starts a thread: its end.

use std::sync::Arc;

use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, DpRank, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankSize, SequenceHash,
    SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::{Actor, RadixTree};

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

/// An index that owns a reference until it is dropped.
struct Referring {
    index: RadixTree,
    _reference: Arc<()>,
}

impl PrefixIndex for Referring {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        self.index.apply(rank, event)
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        self.index.find(query)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.index.ranks()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.index.held(rank)
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.index.clear_rank(rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.index.size(rank)
    }
}

#[test]
fn a_dropped_actor_ends_its_thread_and_drops_its_index() {
    let reference = Arc::new(());
    let actor = Actor::new(Referring { index: RadixTree::default(), _reference: Arc::clone(&reference) });
    let blocks = vec![Block { sequence: SequenceHash(1), local: LocalHash(1) }];
    let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 };
    assert_eq!(actor.apply(RANK, &stored).stored, 1);
    assert_eq!(actor.find(&[LocalHash(1)]).ranks.len(), 1);
    drop(actor);
    assert_eq!(Arc::strong_count(&reference), 1);
}
