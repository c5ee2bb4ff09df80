//! How a query jumps, and goes back for what a jump has lost.

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{LocalHash, SequenceHash};

use super::entry::Entry;
use super::table::Table;
use super::{LostRankSearch, PositionalOptions};
use crate::matching::{Depths, Matching};

/// One query on its way through the table.
pub(super) struct Search<'q> {
    table: &'q Table,
    query: &'q [LocalHash],
    /// Prefix hashes of the query, as far as they were needed.
    prefixes: Vec<SequenceHash>,
}

impl<'q> Search<'q> {
    pub(super) fn new(table: &'q Table, query: &'q [LocalHash]) -> Self {
        Self { table, query, prefixes: Vec::new() }
    }

    pub(super) fn query(&self) -> &'q [LocalHash] {
        self.query
    }

    /// The ranks that hold the first block under any name.
    pub(super) fn start(&mut self) -> Option<Matching> {
        let &first = self.query.first()?;
        self.read(0, |entry| {
            let mut matching = Matching::default();
            let names = entry.with_twins(next_sequence_hash(None, first));
            names.for_each(|(_, holders)| matching.unite(holders));
            matching
        })
    }

    /// Reads what the table has for a block of the query; the search must not be used in it.
    pub(super) fn read<R>(&self, position: usize, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.table.read(position, self.query[position], look)
    }

    /// Records the depths of ranks that hold the first block and have neither holes nor twins.
    pub(super) fn jump(&mut self, mut matching: Matching, options: PositionalOptions, depths: &mut Depths) {
        let last = self.query.len() - 1;
        let mut checkpoint = 0;
        while checkpoint < last && !matching.is_empty() {
            let next = checkpoint.saturating_add(options.jump_size.get()).min(last);
            if let Some(lost) = self.split_off_lost(&mut matching, next) {
                match options.lost_rank_search {
                    LostRankSearch::Scan => self.scan(lost, checkpoint + 1, next, depths),
                    LostRankSearch::Binary => self.halve(lost, checkpoint, next, depths),
                }
            }
            checkpoint = next;
        }
        depths.record(&matching, self.query.len());
    }

    /// Records the depths of ranks that hold the first block, block by block.
    pub(super) fn follow(&mut self, matching: Matching, depths: &mut Depths) {
        self.scan(matching, 1, self.query.len(), depths);
    }

    /// Records the depths of ranks that hold the block before `from` and at most the one before `to`.
    fn scan(&mut self, mut matching: Matching, from: usize, to: usize, depths: &mut Depths) {
        for position in from..to {
            if matching.is_empty() {
                return;
            }
            if let Some(lost) = self.split_off_lost(&mut matching, position) {
                depths.record(&lost, position);
            }
        }
        depths.record(&matching, to);
    }

    /// Records the depths of ranks that hold the block at `held` and not the one at `lost`.
    fn halve(&mut self, matching: Matching, held: usize, lost: usize, depths: &mut Depths) {
        let mut pending = vec![(matching, held, lost)];
        while let Some((mut matching, held, lost)) = pending.pop() {
            if lost - held == 1 {
                depths.record(&matching, lost);
                continue;
            }
            let middle = held + (lost - held) / 2;
            let lost_before = self.split_off_lost(&mut matching, middle);
            pending.extend(lost_before.map(|matching| (matching, held, middle)));
            if !matching.is_empty() {
                pending.push((matching, middle, lost));
            }
        }
    }

    /// Takes out the ranks that do not hold the query's prefix up to a position there.
    fn split_off_lost(&mut self, matching: &mut Matching, position: usize) -> Option<Matching> {
        let prefix = self.prefix(position);
        let lost = self.read(position, |entry| Some(matching.split_off_lost(entry.holders(prefix)?)));
        match lost.flatten() {
            Some(lost) => lost,
            None => Some(std::mem::take(matching)),
        }
    }

    fn prefix(&mut self, position: usize) -> SequenceHash {
        while self.prefixes.len() <= position {
            let local = self.query[self.prefixes.len()];
            self.prefixes.push(next_sequence_hash(self.prefixes.last().copied(), local));
        }
        self.prefixes[position]
    }
}
