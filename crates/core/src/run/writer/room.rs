//! Room for blocks in a bounded index: memory that a change may need, taken or freed before the change.

use std::ops::Range;

use super::Writer;
use super::bounded::SEQUENCE_BYTES;
use super::chunked::CHUNK;
use super::rank_states::RANK_BYTES;
use super::sequence_columns::LINE_SEQUENCES;
use crate::cursor::CHECKPOINT_BLOCKS;
use crate::run::published::holdings::{Holder, HoldingsWriter};
use crate::run::published::layout::{CAPACITIES, HEADER_WORDS, RunId};
use crate::run::published::rank_table::RankSlot;
use crate::{Block, Tier};

/// Upper bound on evictions of a (run, rank) pair for one batch of blocks. Blocks that do not fit then are refused.
const EVICTIONS_FOR_BATCH_MAX: usize = 512;
/// Upper bound on the bytes of an exception, with its share of a list that doubles.
const EXCEPTION_BYTES: usize = 512;
/// Bytes of a run of the smallest class, with its value.
const SMALLEST_RUN_BYTES: usize = (CAPACITIES[0] as usize + HEADER_WORDS) * size_of::<u64>();

impl Writer {
    /// Secures room for the blocks of a rank, whether they extend runs or start new ones. Evicts other blocks if
    /// necessary. Returns whether it succeeded.
    pub(super) fn make_room(&mut self, slot: RankSlot, blocks: &[Block]) -> bool {
        let mut evicted = 0;
        while !self.reserve(slot, blocks) {
            if !self.trim_queue.is_empty() {
                self.trim_next_queued();
                continue;
            }
            let for_this = self.evict(EVICTIONS_FOR_BATCH_MAX - evicted);
            evicted += for_this;
            if for_this == 0 || evicted >= EVICTIONS_FOR_BATCH_MAX {
                return self.reserve(slot, blocks);
            }
        }
        true
    }

    /// Reserves table memory for the blocks. In the worst case each block is a separate run.
    fn reserve(&mut self, slot: RankSlot, blocks: &[Block]) -> bool {
        let count = blocks.len();
        // The blocks follow each other.
        let checkpoints = count / CHECKPOINT_BLOCKS + 1;
        let allocated = self.bytes_allocated();
        let spare = self.bounded().bytes_for_blocks().saturating_sub(allocated);
        let missing_runs = count.saturating_sub(self.runs.free_count());
        let runs = match missing_runs {
            0 => 0,
            missing => missing * SMALLEST_RUN_BYTES + self.bytes_for_smallest(),
        };
        let tables =
            self.sequences.bytes_for(count) + self.edges.bytes_for(count) + self.checkpoints.bytes_for(checkpoints);
        let fits = spare.checked_sub(runs + tables).is_some_and(|spare| self.fits_directory(slot, blocks, spare));
        if !fits {
            return false;
        }
        self.sequences.reserve(count);
        self.edges.reserve(&self.published.edges, count);
        self.checkpoints.reserve(&self.published.checkpoints, checkpoints);
        if missing_runs > 0 {
            self.runs.reserve_smallest();
            let last = self.runs.touched(0) + CHUNK / 2;
            self.bounded_mut().values.reserve(0, last);
        }
        true
    }

    fn bytes_for_smallest(&self) -> usize {
        let values = self.bounded().values.bytes_for(0, self.runs.touched(0) + CHUNK / 2);
        self.runs.bytes_for_smallest() + values
    }

    fn fits_directory(&mut self, slot: RankSlot, blocks: &[Block], bytes_max: usize) -> bool {
        let Self { domains, sequences, ranks, .. } = self;
        let directory = &mut domains.get_mut(ranks.get(slot).domain).directory;
        let new = blocks.iter().map(|block| block.sequence);
        let reserved = directory.reserve(sequences, new, (blocks.len(), bytes_max));
        let (Ok(taken) | Err(taken)) = reserved;
        self.bounded_mut().directory_bytes += taken;
        reserved.is_ok()
    }

    /// Counts a change of a directory's size.
    pub(super) fn count_directory(&mut self, (before, after): (usize, usize)) {
        if let Some(bounded) = &mut self.bounded {
            bounded.directory_bytes = bounded.directory_bytes + after - before;
        }
    }

    /// Chooses the class of a new run for `blocks` blocks whose best class is `wanted`: one for which there is
    /// memory.
    pub(super) fn class_within_bound(&self, wanted: usize, blocks: usize) -> usize {
        if self.runs.has_free(wanted) {
            return wanted;
        }
        let spare = self.bounded().bytes_for_blocks().saturating_sub(self.bytes_allocated());
        // The remaining blocks must find room as well, in any runs.
        let others = blocks.saturating_sub(self.runs.free_count()) * SMALLEST_RUN_BYTES;
        let bytes = |class: usize| {
            self.runs.bytes_for(class) + self.bounded().values.bytes_for(class, self.runs.touched(class))
        };
        let affords = |class: usize| self.runs.has_free(class) || bytes(class) + others <= spare;
        let twice = 2 * CAPACITIES[wanted];
        let somewhat_larger =
            (wanted + 1..CAPACITIES.len()).find(|&class| CAPACITIES[class] <= twice && self.runs.has_free(class));
        let larger = || (wanted + 1..CAPACITIES.len()).find(|&class| self.runs.has_free(class));
        if affords(wanted) {
            return wanted;
        }
        somewhat_larger.or_else(|| (0..wanted).rev().find(|&class| affords(class))).or_else(larger).unwrap_or(0)
    }

    /// Whether one more rank may join.
    pub(super) fn affords_rank(&self) -> bool {
        self.ranks.has_free() || self.bytes_allocated() + 3 * RANK_BYTES <= self.bounded().bytes_for_others()
    }

    /// Whether the rank may use a tier. A tier that is new to it adds a holder to each of its runs.
    pub(super) fn affords_tier(&mut self, slot: RankSlot, tier: Tier) -> bool {
        if self.ranks.get(slot).uses(tier) {
            return true;
        }
        let runs = self.runs_of(slot);
        let holder = Holder(self.holders.end());
        let bytes: usize = runs.into_iter().map(|run| self.bytes_to_hold(run, holder)).sum();
        self.bytes_allocated() + bytes <= self.bounded().bytes_for_others()
    }

    fn bytes_to_hold(&mut self, run: RunId, holder: Holder) -> usize {
        let Self { published, extents, holders, .. } = self;
        let record = published.run(run).record;
        HoldingsWriter { record, lists: &published.lists, extents, holders_end: holders.end() }.bytes_for(holder)
    }

    /// Whether the rank may hold more of a run.
    pub(super) fn affords_holding(
        &mut self,
        slot: RankSlot,
        run: RunId,
        range: Range<u16>,
        copies: (Tier, u32),
    ) -> bool {
        let (tier, copies) = copies;
        let rank = self.ranks.get(slot);
        let (levels, home) = (rank.levels, rank.home);
        let list = match rank.runs.len() == rank.runs.capacity() {
            true => 2 * rank.runs.len() * size_of::<RunId>(),
            false => 0,
        };
        let is_plain = tier == home && self.exception(run, slot).is_none();
        let end = self.end(run, rank.home_holder());
        let is_rare = !is_plain || range.start != end || copies > 1;
        if is_rare && self.rare_bytes + EXCEPTION_BYTES > self.bounded().bytes_for_rare() {
            return false;
        }
        let holders: Vec<Holder> = levels.iter().map(|(_, holder)| holder).collect();
        let lists: usize = holders.into_iter().map(|holder| self.bytes_to_hold(run, holder)).sum();
        let bytes = list + lists;
        bytes == 0 || self.bytes_allocated() + bytes <= self.bounded().bytes_for_others()
    }

    /// Whether another domain has room for a second column of the rank's sequence hashes.
    pub(super) fn affords_another_domain(&self, slot: RankSlot) -> bool {
        let blocks = self.ranks.get(slot).size.blocks;
        let runs = self.ranks.get(slot).runs_held;
        // The ancestors of held runs have columns as well. A directory may be nearly empty.
        let lines = blocks.div_ceil(LINE_SEQUENCES) + 2 * runs;
        let bytes = self.sequences.bytes_for(lines) + 4 * blocks * SEQUENCE_BYTES + 2 * runs * EXCEPTION_BYTES;
        self.bytes_allocated() + bytes <= self.bounded().bytes_for_others()
    }
}
