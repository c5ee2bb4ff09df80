//! Indexing of waiting blocks after their parent was stored: a bounded number of them with the event, the others with
//! later events and maintenance calls. A block that still waits counts in no match and in the rank's waiting blocks,
//! as if its parent were unknown.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::Writer;
use super::locate::{BlockLookup, Cursor};
use crate::run::limits::MOVED_BLOCKS_MAX;
use crate::run::published::layout::RunPosition;
use crate::run::published::rank_table::RankSlot;
use crate::{AppliedChanges, Block, BlockEvent, SequenceHash, Tier, WorkerId, WorkerRank};

/// Waiting blocks that one step of maintenance indexes.
const INDEXED_WITH_STEP: usize = 8;

/// Ranks with waiting blocks whose parent is stored.
#[derive(Debug, Default)]
pub(super) struct ReadyToIndex {
    /// Each rank once or more; a slot may belong to another rank meanwhile.
    queue: VecDeque<RankSlot>,
    /// Losses of ranks while maintenance indexed their blocks, until an event of the rank reports it.
    late_refusals: FxHashMap<WorkerRank, AppliedChanges>,
}

impl ReadyToIndex {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Writer {
    /// Stores blocks, and then indexes the blocks that waited for them, within the limit of moved blocks.
    pub(super) fn store_and_index_waiting(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let limit = self.limits.moved_blocks_max;
        let state = self.ranks.get_mut(slot);
        state.moves_left = state.moves_left.saturating_add(blocks.len()).min(limit);
        let limit = limit.min(MOVED_BLOCKS_MAX);
        let was_queued = !state.ready.is_empty();
        let mut applied = self.store(slot, parent, blocks, copies);
        if self.ranks.get(slot).ready.is_empty() {
            return applied;
        }
        // Each block is visited as a follower, and at most once as a parent.
        let (refused, _) = self.index_waiting(slot, 2 * (limit + blocks.len()));
        applied += refused;
        if !self.ranks.get(slot).ready.is_empty() {
            // The rank has waiting blocks, although none of the event's may wait.
            applied.waiting = applied.waiting.max(1);
            if !was_queued {
                self.ready_to_index.queue.push_back(slot);
            }
        }
        applied
    }

    /// Records that a block is indexed. Others may wait for it.
    pub(super) fn record_arrival(&mut self, slot: RankSlot, sequence: SequenceHash) {
        let rank = self.ranks.get_mut(slot);
        if rank.waiting.follower(sequence).is_some() {
            rank.ready.push(sequence);
        }
    }

    /// Indexes blocks whose parent is indexed, and then those that wait for them, up to `visits_max` visits of a block or a
    /// parent. Returns the blocks that it refused, and the visits.
    fn index_waiting(&mut self, slot: RankSlot, visits_max: usize) -> (AppliedChanges, usize) {
        let (mut refused, mut visited) = (AppliedChanges::default(), 0);
        while let Some(&parent) = self.ranks.get(slot).ready.last() {
            if visited >= visits_max {
                break;
            }
            visited += 1;
            self.steps.take(1);
            let follower = self.ranks.get(slot).waiting.follower(parent);
            let follower = follower.filter(|_| self.parent_position(slot, Some(parent)).is_some());
            let state = self.ranks.get_mut(slot);
            let waiting = follower.and_then(|sequence| state.waiting.remove(sequence));
            if state.waiting.follower(parent).is_none() || waiting.is_none() {
                state.ready.pop();
            }
            let Some(waiting) = waiting else { continue };
            self.uncount_waiting(slot, &waiting);
            let block = Block { sequence: waiting.sequence, local: waiting.local };
            for (tier, &copies) in waiting.copies.iter().filter(|&(_, &copies)| copies > 0) {
                let AppliedChanges { refused: blocks, twins_refused, moves_refused, .. } =
                    self.store_waiting_one(slot, Some(parent), &block, (tier, copies));
                refused +=
                    AppliedChanges { refused: blocks, twins_refused, moves_refused, ..AppliedChanges::default() };
                if moves_refused > 0 {
                    // The rank holds nothing any more.
                    return (refused, visited);
                }
            }
            self.record_arrival(slot, waiting.sequence);
        }
        (refused, visited)
    }

    /// Indexes a few waiting blocks of one rank. Returns the number of blocks or parents visited, at least one.
    pub(super) fn index_waiting_step(&mut self) -> usize {
        let Some(&slot) = self.ready_to_index.queue.front() else { return 0 };
        if !self.ranks.is_in_use(slot) || self.ranks.get(slot).ready.is_empty() {
            self.ready_to_index.queue.pop_front();
            return 1;
        }
        let rank = self.ranks.get(slot).rank;
        self.invalidate_pruning(slot);
        let (refused, visited) = self.index_waiting(slot, INDEXED_WITH_STEP);
        if refused.refused > 0 {
            // The copy might have had room for the refused blocks, so it could differ.
            self.abandon_copy();
            *self.ready_to_index.late_refusals.entry(rank).or_default() += refused;
        }
        self.finish(rank);
        visited.max(1)
    }

    /// Losses of the rank since its last event. Clearing a rank loses everything anyway.
    pub(super) fn take_late_refusals(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        if self.ready_to_index.late_refusals.is_empty() {
            return AppliedChanges::default();
        }
        let refused = self.ready_to_index.late_refusals.remove(&rank).unwrap_or_default();
        if matches!(event, BlockEvent::Cleared) { AppliedChanges::default() } else { refused }
    }

    /// Forgets the losses of the ranks of a removed worker.
    pub(in crate::run) fn forget_late_refusals(&mut self, worker: WorkerId) {
        self.ready_to_index.late_refusals.retain(|rank, _| rank.worker != worker);
    }

    /// [`Writer::store_one`] for a block that waited: it was counted when it was stored, so the limit of waiting
    /// blocks does not apply.
    fn store_waiting_one(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let domain = self.ranks.get(slot).domain;
        let at = self.parent_position(slot, parent);
        match at.map(|at| (at, self.locate(domain, at.position, block))) {
            Some((_, BlockLookup::Found(Cursor { position: RunPosition { run, offset }, .. }))) => {
                self.hold(slot, run, offset..offset + 1, copies)
            }
            Some((at, BlockLookup::WithoutHash(_) | BlockLookup::Absent)) => {
                self.store_chain(slot, at, parent, std::slice::from_ref(block), copies)
            }
            _ => self.store_one(slot, parent, block, copies),
        }
    }
}
