//! The search of a query: jumps between checkpoints, and scans where a jump drops ranks.

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{LocalHash, SequenceHash};

use super::entry::Entry;
use super::table::Table;
use super::{DroppedRankSearch, PositionalOptions};
use crate::active_ranks::{ActiveRanks, Depths};

/// A query and its prefix hashes, computed as they are needed.
pub(super) struct Search<'q> {
    table: &'q Table,
    pub(super) query: &'q [LocalHash],
    /// Prefix hashes of the query's first blocks.
    prefixes: Vec<SequenceHash>,
}

impl<'q> Search<'q> {
    pub(super) fn new(table: &'q Table, query: &'q [LocalHash]) -> Self {
        Self { table, query, prefixes: Vec::new() }
    }

    /// The ranks that hold the first block, under any of their names.
    pub(super) fn start(&mut self) -> Option<ActiveRanks> {
        let &first = self.query.first()?;
        self.read(0, |entry| {
            let mut active = ActiveRanks::default();
            let names = entry.with_twins(next_sequence_hash(None, first));
            names.for_each(|(_, holders)| active.union_with(holders));
            active
        })
    }

    /// Runs `read` on the entry of the query's block at a position; none if there is no entry. `read` must not use the table.
    pub(super) fn read<R>(&self, position: usize, read: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.table.read(position, self.query[position], read)
    }

    /// Records the depths of ranks that hold the first block and have neither gaps nor twins.
    pub(super) fn jump(&mut self, mut active: ActiveRanks, options: PositionalOptions, depths: &mut Depths) {
        let last = self.query.len() - 1;
        let mut checkpoint = 0;
        while checkpoint < last && !active.is_empty() {
            let next = checkpoint.saturating_add(options.jump_size.get()).min(last);
            if let Some(dropped) = self.split_off_dropped(&mut active, next) {
                match options.dropped_rank_search {
                    DroppedRankSearch::Scan => self.scan(dropped, checkpoint + 1, next, depths),
                    DroppedRankSearch::Binary => self.bisect(dropped, checkpoint, next, depths),
                }
            }
            checkpoint = next;
        }
        depths.record(&active, self.query.len());
    }

    /// Records the depths of ranks that match up to `from` blocks at least and `to` blocks at most, by a linear scan.
    pub(super) fn scan(&mut self, mut active: ActiveRanks, from: usize, to: usize, depths: &mut Depths) {
        for position in from..to {
            if active.is_empty() {
                return;
            }
            if let Some(dropped) = self.split_off_dropped(&mut active, position) {
                depths.record(&dropped, position);
            }
        }
        depths.record(&active, to);
    }

    /// Records the depths of ranks that hold the block at `held` and not the block at `missing`, by a binary search.
    fn bisect(&mut self, active: ActiveRanks, held: usize, missing: usize, depths: &mut Depths) {
        let mut pending = vec![(active, held, missing)];
        while let Some((mut active, held, missing)) = pending.pop() {
            if missing - held == 1 {
                depths.record(&active, missing);
                continue;
            }
            let middle = held + (missing - held) / 2;
            let dropped = self.split_off_dropped(&mut active, middle);
            pending.extend(dropped.map(|active| (active, held, middle)));
            if !active.is_empty() {
                pending.push((active, middle, missing));
            }
        }
    }

    /// Removes the ranks that do not hold the query's block at `position` under the query's prefix hash, and returns them.
    fn split_off_dropped(&mut self, active: &mut ActiveRanks, position: usize) -> Option<ActiveRanks> {
        let prefix = self.prefix(position);
        let dropped = self.read(position, |entry| Some(active.split_off_dropped(entry.holders(prefix)?)));
        match dropped.flatten() {
            Some(dropped) => dropped,
            None => Some(std::mem::take(active)),
        }
    }

    /// The prefix hash of the query's block at a position.
    fn prefix(&mut self, position: usize) -> SequenceHash {
        while self.prefixes.len() <= position {
            let local = self.query[self.prefixes.len()];
            self.prefixes.push(next_sequence_hash(self.prefixes.last().copied(), local));
        }
        self.prefixes[position]
    }
}
