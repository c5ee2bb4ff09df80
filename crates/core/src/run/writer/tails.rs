//! Tails: a chain that leaves a run shortly before its end continues in that run.
//!
//! The requests of a session leave the chain of the request before a few blocks from its end: an engine also caches what it
//! generated, and the next prompt may not repeat that. If each request started its own run, a query would visit a run for
//! each request of its session. So the few blocks after the position, the **tail**, move to a child run, and the new blocks
//! are appended in their place.

use smallvec::SmallVec;

use super::Writer;
use super::runs::DomainId;
use crate::Block;
use crate::run::published::atomics::Relaxed;
use crate::run::published::holdings::{HoldingsWord, HoldingsWriter};
use crate::run::published::layout::{HOLDINGS, INFO, Info, RunPosition};
use crate::run::published::rank_table::RankSlot;

/// Blocks of a tail that moves.
pub(in crate::run) const TAIL_BLOCKS_MAX: usize = 32;
/// Blocks before a tail that moves. A query of a shorter chain visits few runs anyway.
const DEPTH_MIN: usize = if cfg!(any(loom, debug_assertions)) { 1 } else { 192 };
/// Ranks that hold blocks of a tail that moves.
const TAIL_RANKS_MAX: usize = 8;
/// Children that are compared to find whether chains branch at a position, the latest first.
const CHILDREN_COMPARED: usize = 4;
/// Holders of a run whose ends are read to find these ranks: entries of a list, and elements of an array.
const LISTED_MAX: usize = 64;
const DENSE_MAX: u32 = 1_024;

/// Ranks with the ends of their intervals.
type Ends = SmallVec<[(RankSlot, u16); TAIL_RANKS_MAX]>;

impl Writer {
    /// Moves the blocks after `at` to a new child run, if they are few and only plain intervals of a few ranks refer to
    /// them. Returns whether the run of `at` ends there now.
    ///
    /// Happens at most once at a position: where a run is attached already, chains branch.
    pub(super) fn move_tail(&mut self, domain: DomainId, at: RunPosition) -> bool {
        let Some(holders) = self.holders_of_tail(domain, at) else { return false };
        let RunPosition { run, offset } = at;
        let (keep, end) = (offset + 1, self.runs.get(run).len);
        let moved = (keep..end).map(|offset| {
            let position = RunPosition { run, offset };
            Block { sequence: self.sequence_of(domain, position), local: self.local_of(position) }
        });
        let moved: SmallVec<[Block; TAIL_BLOCKS_MAX]> = moved.collect();
        self.drop_sequences(run, domain, keep);
        let tail = self.new_run(moved.len(), 0);
        let (filled, _) = self.fill(domain, tail, 0, &moved);
        debug_assert_eq!(filled, moved.len(), "the domain has dropped these sequence hashes");
        self.publish_length(tail, Info::new(at), 0, filled);
        for &(slot, end) in &holders {
            self.list(slot, tail);
            self.publish_plain(slot, tail, (0, end - keep));
        }
        // The tail has its checkpoints by now.
        self.remove_checkpoints(run, keep.into());
        // Readers that have read the run with its tail start again; others find the tail by its edge.
        self.shorten_to_position(at, &holders);
        let was_counted = self.is_counted(run);
        for &(slot, end) in &holders {
            self.rank_retains(slot, run, (end, keep));
            if !was_counted && self.is_counted(run) {
                // The count that has just begun has the new ends of all ranks.
                break;
            }
        }
        true
    }

    /// Whether a chain that leaves a run at `at` leaves only a tail behind, and none left it there lately: then it is
    /// the chain that continues.
    pub(super) fn leaves_tail(&self, at: RunPosition) -> bool {
        let tail = usize::from(self.runs.get(at.run).len - at.offset - 1);
        let mut latest = self.runs.children(at.run).take(CHILDREN_COMPARED);
        tail <= TAIL_BLOCKS_MAX && latest.all(|(_, offset)| offset != at.offset)
    }

    /// Ranks that hold blocks after `at` in its run; none if these blocks cannot move.
    fn holders_of_tail(&self, domain: DomainId, at: RunPosition) -> Option<Ends> {
        let RunPosition { run, offset } = at;
        let state = self.runs.get(run);
        let keep = offset + 1;
        let is_plain = usize::from(state.len - keep) <= TAIL_BLOCKS_MAX
            && (state.children == 0 || state.deepest_child < offset)
            && state.exceptions.is_none()
            && state.columns.is_single()
            && state.columns.get(domain).len == state.len
            // Eviction within a memory limit chooses whole runs.
            && self.bounded.is_none()
            && !self.is_pruning()
            && !self.trim_queue.contains(run);
        let form = HoldingsWord(self.published.run(run).record[HOLDINGS].load(Relaxed));
        let is_short = match form.holders_seen_max() {
            Some(listed) => listed <= LISTED_MAX,
            None => self.holders.end() <= DENSE_MAX,
        };
        if !is_plain || !is_short || self.depth_of(at) < DEPTH_MIN {
            return None;
        }
        let mut ends = Ends::new();
        let mut seen = 0;
        let mut are_few = true;
        self.published.run(run).holdings().for_each(|holder, end| {
            seen += 1;
            let slot = self.holders.owner(holder);
            // The holders of a rank's other levels have the same ends, because it has no exception.
            if end > keep && self.ranks.get(slot).home_holder() == holder {
                are_few &= ends.len() < TAIL_RANKS_MAX;
                if are_few {
                    ends.push((slot, end));
                }
            }
        });
        self.steps.take_holders(seen);
        let is_movable = |&(slot, end): &(RankSlot, u16)| {
            let (rank, tail) = (self.ranks.get(slot), keep..end);
            let uncounted = rank.reference_counts.without(run, rank.home, tail.clone());
            !self.ranks.is_retired(slot) && uncounted.first() == Some(&tail)
        };
        (are_few && ends.iter().all(is_movable)).then_some(ends)
    }

    /// Lowers the ends of these ranks and the length of a run to the block at a position, in one change.
    fn shorten_to_position(&mut self, RunPosition { run, offset }: RunPosition, holders: &Ends) {
        let keep = offset + 1;
        self.runs.get_mut(run).len = keep;
        self.version += 2;
        let Self { published, extents, holders: all, ranks, version, .. } = self;
        let record = published.run(run).record;
        let mut writer = HoldingsWriter { record, lists: &published.lists, extents, holders_end: all.end() };
        published.run(run).change(*version, || {
            for &(slot, _) in holders {
                let rank = ranks.get(slot);
                for (_, holder) in rank.levels.iter().filter(|&(tier, _)| tier >= rank.home) {
                    let changed = writer.set_end(holder, keep);
                    debug_assert_eq!(changed, None, "a lower end needs no other form");
                }
            }
            let info = Info(record[INFO].load(Relaxed)).with_len(keep.into());
            record[INFO].store(info.0, Relaxed);
        });
    }
}
