//! Redefinition of a sequence hash: a rank stores it with another parent or local hash.
//!
//! The rank is alone in its domain at that point. It has left any shared domain, because the other ranks still use
//! the old definition. The index drops the rank's blocks under the old definition, and the blocks that follow the
//! sequence hash wait until it is stored again.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::Writer;
use super::runs::DomainId;
use crate::run::effort::{self, Effort};
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;
use crate::{AppliedChanges, HeldBlock, Tier};

/// Child runs that are always examined before the rank's own runs are.
const CHILDREN_MIN: usize = 64;

impl Writer {
    /// Releases the block at `position` and moves everything that the rank holds below it to the waiting blocks. The
    /// rank must be alone in its domain; afterwards the domain has no sequence hash for the position. Costs what the
    /// rank holds below it, and a visit of the child runs there or of all runs of the rank, whichever are fewer.
    ///
    /// Returns false if that is more than the rank may move. Then a part of it may be released.
    pub(super) fn release_with_descendants(&mut self, slot: RankSlot, position: RunPosition) -> bool {
        let domain = self.ranks.get(slot).domain;
        let sequence = self.sequence_of(domain, position);
        let moves_left = self.moves_left(slot);
        let mut visited = 0;
        let below = self.descendants(slot, position, (&mut visited, moves_left));
        self.steps.take(visited);
        self.spend_moves(slot, visited.saturating_sub(CHILDREN_MIN));
        let Some(mut below) = below else { return false };
        let spans = below.iter().map(|&(run, from)| usize::from(self.coverage_end(run, slot).saturating_sub(from)));
        let blocks = spans.sum();
        if blocks > moves_left {
            return false;
        }
        self.steps.take(blocks);
        self.spend_moves(slot, blocks);
        let mut followers = Vec::new();
        for &(run, from) in &below {
            self.held_in(slot, run, from, &mut followers);
        }
        below[0].1 = position.offset;
        // Ends first, so that trimming visits no run twice.
        for (run, from) in below.into_iter().rev() {
            self.release_from(slot, run, from);
            // A run without blocks of the rank may have kept its sequence hashes for those below, or for a deferred trim.
            if self.runs.get(run).columns.get(domain).len > from {
                self.trim(run, domain);
            }
        }
        self.move_to_waiting(slot, followers);
        // The old definition must be gone, even if its trimming was deferred.
        let mut trims_left = moves_left.max(CHILDREN_MIN);
        while self.find_sequence(domain, sequence).is_some() && trims_left > 0 {
            match self.trim_next_queued() {
                0 => return true,
                visited => trims_left = trims_left.saturating_sub(visited),
            }
        }
        trims_left > 0
    }

    /// Drops all that a rank holds, because a redefined sequence hash moves too much of it, and refuses it with `blocks`
    /// blocks of the event. Costs a few stores, as a clear does.
    pub(super) fn drop_rank(&mut self, slot: RankSlot, blocks: usize) -> AppliedChanges {
        let refused = self.clear(slot) + blocks as u64;
        AppliedChanges { refused, moves_refused: refused, ..AppliedChanges::default() }
    }

    /// Blocks that the rank may move now. In a bounded index, the memory limit bounds the moves of a rank.
    pub(super) fn moves_left(&self, slot: RankSlot) -> usize {
        if self.bounded.is_some() {
            return usize::MAX;
        }
        self.ranks.get(slot).moves_left.min(self.limits.moved_blocks_max)
    }

    /// Counts moved blocks, or as many visits.
    pub(super) fn spend_moves(&mut self, slot: RankSlot, moves: usize) {
        let rank = self.ranks.get_mut(slot);
        rank.moves_left = rank.moves_left.saturating_sub(moves);
    }

    /// The runs below a position that have a column of the rank's domain, each with the first offset below; ancestors
    /// come first. Adds up the visits; returns none if they are many more than `moves_max`.
    fn descendants(
        &self,
        slot: RankSlot,
        position: RunPosition,
        (visited, moves_max): (&mut usize, usize),
    ) -> Option<Vec<(RunId, u16)>> {
        let domain = self.ranks.get(slot).domain;
        let runs = self.ranks.get(slot).runs.len();
        // A prompt that all ranks share has children of all of them.
        let children_max = runs.min(moves_max) + CHILDREN_MIN;
        let below = self.descendants_by_children(domain, position, (visited, children_max));
        below.or_else(|| {
            let visits_max = visited.saturating_add(moves_max.saturating_mul(2)).saturating_add(4 * CHILDREN_MIN);
            self.descendants_by_runs(slot, position, (visited, visits_max))
        })
    }

    /// The same from the top down, unless there are more than `children_max` children.
    fn descendants_by_children(
        &self,
        domain: DomainId,
        position: RunPosition,
        (visited, children_max): (&mut usize, usize),
    ) -> Option<Vec<(RunId, u16)>> {
        let mut below = vec![(position.run, position.offset + 1)];
        let mut at = 0;
        while let Some(&(run, from)) = below.get(at) {
            for (child, offset) in self.runs.children(run) {
                effort::spend(Effort::MovedRun, 1);
                *visited += 1;
                if *visited > children_max {
                    return None;
                }
                if offset + 1 >= from && self.runs.get(child).columns.get(domain).len > 0 {
                    below.push((child, 0));
                }
            }
            at += 1;
        }
        Some(below)
    }

    /// The same from the rank's own runs upward: a domain of one rank has columns only for the runs that the rank
    /// holds and for their ancestors. None if that takes more than `visits_max` visits.
    fn descendants_by_runs(
        &self,
        slot: RankSlot,
        position: RunPosition,
        (visited, visits_max): (&mut usize, usize),
    ) -> Option<Vec<(RunId, u16)>> {
        if self.ranks.get(slot).runs.len() > visits_max {
            return None;
        }
        let mut below = vec![(position.run, position.offset + 1)];
        let mut is_below: FxHashMap<RunId, bool> = FxHashMap::default();
        is_below.insert(position.run, false);
        is_below.insert(RunId::NONE, false);
        let mut path = Vec::new();
        for run in self.runs_of(slot) {
            let mut run = run;
            let found = loop {
                effort::spend(Effort::MovedRun, 1);
                *visited += 1;
                if *visited > visits_max {
                    return None;
                }
                if let Some(&known) = is_below.get(&run) {
                    break known;
                }
                path.push(run);
                let parent = self.runs.get(run).parent();
                if parent.run == position.run {
                    break parent.offset >= position.offset;
                }
                run = parent.run;
            };
            for run in path.drain(..).rev() {
                is_below.insert(run, found);
                if found {
                    below.push((run, 0));
                }
            }
        }
        Some(below)
    }

    /// Releases all copies of all blocks from an offset on.
    pub(super) fn release_from(&mut self, slot: RankSlot, run: RunId, from: u16) {
        let coverage = self.coverage(run, slot);
        let held: Vec<(Tier, Range<u16>)> = coverage.by_tier().filter(|(_, blocks)| blocks.end > from).collect();
        for (tier, blocks) in held {
            let range = blocks.start.max(from)..blocks.end;
            self.change_copies(slot, run, (tier, range.clone()), |_| 0);
            self.release(slot, run, std::slice::from_ref(&range), tier);
        }
    }

    /// A bounded index has no waiting blocks: it evicts them.
    pub(super) fn move_to_waiting(&mut self, slot: RankSlot, blocks: Vec<HeldBlock>) {
        if self.bounded.is_some() {
            return self.record_evicted(slot, blocks.iter().map(|block| block.sequence));
        }
        let rank = self.ranks.get_mut(slot);
        if let Some(compaction) = &mut self.compaction {
            compaction.follow_waiting(rank.rank, blocks.iter().map(|block| block.sequence));
        }
        for block in blocks {
            rank.size.blocks += 1;
            rank.size.waiting += 1;
            for (tier, &copies) in block.copies.iter() {
                rank.size.by_tier[tier] += usize::from(copies > 0);
            }
            rank.waiting.insert(block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::run::RunIndex;
    use crate::{Block, BlockEvent, DpRank, LocalHash, SequenceHash, SharedIndex, WorkerId, WorkerRank};

    const PROMPT_BLOCKS: u64 = 32;
    const OWN: u64 = 1 << 40;

    fn rank(number: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(number), dp_rank: DpRank(0) }
    }

    fn stored(parent: Option<u64>, blocks: impl Iterator<Item = (u64, u64)>) -> BlockEvent {
        let blocks =
            blocks.map(|(sequence, local)| Block { sequence: SequenceHash(sequence), local: LocalHash(local) });
        BlockEvent::Stored { tier: Tier::Device, parent: parent.map(SequenceHash), blocks: blocks.collect(), copies: 1 }
    }

    /// Steps for finding the descendants of a redefined block next to this many children of other ranks.
    fn steps_to_redefine(children: u64) -> usize {
        let index = RunIndex::default();
        let prompt = |sequences: u64| stored(None, (1..=PROMPT_BLOCKS).map(move |at| (sequences + at, at)));
        index.apply(rank(1), &prompt(0));
        for child in 0..children {
            index.apply(rank(1), &stored(Some(PROMPT_BLOCKS), std::iter::once((1_000 + child, 1_000 + child))));
        }
        // A rank with private sequence hashes and a few child runs of its own.
        index.apply(rank(2), &prompt(OWN));
        for child in 0..5 {
            let child = (OWN + 1_000 + child, 1_000 + child);
            index.apply(rank(2), &stored(Some(OWN + PROMPT_BLOCKS), std::iter::once(child)));
        }
        // A sequence hash in the middle gets another local hash; its descendants follow it.
        let moves = stored(Some(OWN + 10), std::iter::once((OWN + 11, 777)));
        let steps = effort::of(Effort::MovedRun, || assert_eq!(index.apply(rank(2), &moves).moved, 1));
        let query: Vec<LocalHash> =
            (1..=10).chain([777]).chain(12..=PROMPT_BLOCKS).chain([1_003]).map(LocalHash).collect();
        assert_eq!(index.find(&query).get(rank(2)).map(|found| found.longest()), Some(PROMPT_BLOCKS as u32 + 1));
        assert_eq!(index.find(&query).get(rank(1)).map(|found| found.longest()), Some(10));
        steps
    }

    #[test]
    fn redefining_a_sequence_hash_visits_no_children_of_other_ranks() {
        let (few, many) = (steps_to_redefine(10), steps_to_redefine(5_000));
        assert!(few <= 32, "{few}");
        assert!(many <= 2 * CHILDREN_MIN + 32, "{many} steps beside many children of other ranks, {few} beside few");
    }
}
