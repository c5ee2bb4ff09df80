//! Removal of blocks. Engines evict chains from their ends, so the next block of an event is usually the neighbour of
//! the last one, and one search serves many blocks.

use std::ops::Range;

use smallvec::SmallVec;

use super::Writer;
use super::locate::Cursor;
use super::sequence_columns::LINE_SEQUENCES;
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;
use crate::{AppliedChanges, RemovedCopies, SequenceHash, Tier};

/// Blocks of one run that an event removes from a rank.
#[derive(Debug)]
struct RemovedBlocks {
    run: RunId,
    /// In order; the rank holds each range completely.
    ranges: Ranges,
    /// Number of sequence hashes of the event that they cover.
    count: usize,
    /// The block of the next sequence hash, if that was already looked up.
    next: Option<Cursor>,
}

/// A run has few gaps.
type Ranges = SmallVec<[Range<u16>; 8]>;

impl Writer {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        blocks: &[SequenceHash],
        copies: RemovedCopies,
    ) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let (mut rest, mut next) = (blocks, None);
        while let Some(&sequence) = rest.first() {
            let at = next.take().or_else(|| self.find_indexed(slot, sequence));
            let held = at.map(|at| self.removed_blocks(slot, tier, at, rest)).filter(|held| held.count > 0);
            let Some(held) = held else {
                applied += self.remove_waiting(slot, tier, sequence, copies);
                rest = &rest[1..];
                continue;
            };
            rest = &rest[held.count..];
            next = held.next;
            let parent = self.runs.get(held.run).parent();
            if let (Some(&sequence), None) = (rest.first(), next) {
                // The chain continues in the parent run, which is loaded from memory while these blocks are released.
                self.domains.get(self.ranks.get(slot).domain).directory.prefetch(sequence);
                self.prefetch_position(parent);
            }
            applied.removed += held.count as u64;
            self.remove_ranges(slot, held.run, &held.ranges, (tier, copies));
            if !rest.is_empty() {
                self.prefetch_exceptions(parent.run);
            }
        }
        applied
    }

    /// Finds how many of `sequences`, starting at the cursor, the rank holds in the cursor's run, each once. They
    /// mostly run backward, also across gaps, which are scattered.
    fn removed_blocks(&self, slot: RankSlot, tier: Tier, at: Cursor, sequences: &[SequenceHash]) -> RemovedBlocks {
        let (mut at, run) = (at, at.position.run);
        let rank = self.ranks.get(slot);
        // If the rank has waiting blocks, each sequence hash is checked against them one by one.
        let sequences = if rank.waiting.is_empty() { sequences } else { &sequences[..1] };
        let coverage = self.coverage(run, slot);
        let held = coverage.tier(tier);
        let mut found = RemovedBlocks { run, ranges: Ranges::new(), count: 0, next: None };
        // All ranges found so far are within this span.
        let mut span = 0..0;
        while let Some((interval, end_before)) = held.containing(at.position.offset) {
            let from = if at.position.offset < span.start { interval.start } else { interval.start.max(span.end) };
            let before = &sequences[found.count + 1..];
            let most = before.len().min(usize::from(at.position.offset - from));
            let (count, first) = self.preceding_in_column(at, &before[..most]);
            let range = first.position.offset..at.position.offset + 1;
            span = if found.count == 0 { range.clone() } else { span.start.min(range.start)..span.end.max(range.end) };
            found.ranges.push(range);
            found.count += count + 1;
            found.next = None;
            // The chain continues in another run.
            let Some(&sequence) = before.get(count).filter(|_| first.position.offset > 0) else { break };
            let across_gap = end_before.filter(|_| first.position.offset == interval.start);
            found.next = across_gap
                .and_then(|end| self.sequence_at(first, end - 1, sequence))
                .or_else(|| self.find_sequence(rank.domain, sequence));
            match found.next.filter(|next| next.position.run == run && !span.contains(&next.position.offset)) {
                Some(next) => at = next,
                None => break,
            }
        }
        found.ranges.sort_unstable_by_key(|range| range.start);
        found
    }

    /// The block with this sequence hash in the rank's domain, unless it waits.
    fn find_indexed(&self, slot: RankSlot, sequence: SequenceHash) -> Option<Cursor> {
        let rank = self.ranks.get(slot);
        if rank.waiting.contains(sequence) { None } else { self.find_sequence(rank.domain, sequence) }
    }

    /// The block at an offset before the cursor, if it has this sequence hash.
    fn sequence_at(&self, behind: Cursor, offset: u16, sequence: SequenceHash) -> Option<Cursor> {
        let line = self.sequences.line_before(behind.line, behind.position.offset, offset);
        let is_it = self.sequences.line(line)[usize::from(offset) % LINE_SEQUENCES] == sequence.0;
        is_it.then_some(Cursor { position: RunPosition { offset, ..behind.position }, line })
    }

    /// Removes copies of blocks that the rank holds in the tier.
    fn remove_ranges(
        &mut self,
        slot: RankSlot,
        run: RunId,
        ranges: &[Range<u16>],
        (tier, copies): (Tier, RemovedCopies),
    ) {
        let extra = &self.ranks.get(slot).reference_counts;
        let leaves_copies = matches!(copies, RemovedCopies::AllBut(1..));
        if !extra.has_run(run) && !leaves_copies {
            return self.release(slot, run, ranges, tier);
        }
        let last_copies: Ranges = match copies {
            RemovedCopies::AllBut(1..) => Ranges::new(),
            RemovedCopies::All | RemovedCopies::AllBut(0) => ranges.into(),
            RemovedCopies::One => ranges.iter().flat_map(|range| extra.without(run, tier, range.clone())).collect(),
        };
        for range in ranges {
            self.change_copies(slot, run, (tier, range.clone()), |extra| {
                copies.left(extra.saturating_add(1)).saturating_sub(1)
            });
        }
        if !last_copies.is_empty() {
            self.release(slot, run, &last_copies, tier);
        }
    }

    fn remove_waiting(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        sequence: SequenceHash,
        copies: RemovedCopies,
    ) -> AppliedChanges {
        let rank = self.ranks.get_mut(slot);
        let Some(block) = rank.waiting.get_mut(sequence).filter(|block| block.copies[tier] > 0) else {
            return AppliedChanges { unknown: 1, ..AppliedChanges::default() };
        };
        block.copies[tier] = copies.left(block.copies[tier]);
        let mut applied = AppliedChanges { removed: 1, ..AppliedChanges::default() };
        if block.copies[tier] == 0 {
            rank.size.by_tier[tier] -= 1;
            if block.copies.is_zero() {
                rank.waiting.remove(sequence);
                rank.size.blocks -= 1;
                rank.size.waiting -= 1;
                applied.waiting_removed = 1;
            }
        }
        applied
    }
}
