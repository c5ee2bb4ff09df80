//! An index with a memory limit.
//!
//! The index never frees memory that readers may read, so the limit applies to all memory ever allocated. Before the
//! writer stores blocks, it secures room for them ([`super::room`]): first in memory that is not allocated yet, as
//! far as the limit allows, then in records of evicted runs ([`super::evict`]). A part of the limit stays free for
//! needs that cannot be predicted block by block.
//!
//! Evicting a block has the same effect as its removal by the rank. So no block waits for a parent here: a block
//! whose parent the rank does not hold in the index could not count, and is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Writer;
use super::locate::Cursor;
use super::run_values::Values;
use crate::run::bound::{BoundCounters, OnEvicted};
use crate::run::published::Published;
use crate::run::published::layout::RunId;
use crate::run::published::rank_table::RankSlot;
use crate::run::use_samples::UseSamples;
use crate::{AppliedChanges, Block, BlockEvent, RemovedCopies, SequenceHash, Tier, WorkerRank};

/// Blocks that are stored or removed between two checks of the limit.
const BATCH_BLOCKS_MAX: usize = 128;
/// One in this many bytes stays free of blocks.
const RESERVE_SHARE: usize = 16;
/// Events between two reads of the use samples.
const EVENTS_BETWEEN_SAMPLES: u32 = 64;
/// Upper bound on the bytes of a sequence hash and its directory entry.
pub(super) const SEQUENCE_BYTES: usize = 32;
/// Bytes of a nearly empty index: chunks of sequence hashes and of some run classes.
const EMPTY_BYTES: usize = FIXED_BYTES + 512 * 1024;
/// A copy takes somewhat more than the used memory of the original; making it takes as much again.
const COPY_FACTOR: usize = 3;
/// Bytes of every index: mainly the tables of its arenas.
const FIXED_BYTES: usize = size_of::<Published>() + size_of::<Writer>() + size_of::<BoundState>() + UseSamples::BYTES;

/// Additional state of a bounded index.
pub(in crate::run) struct BoundState {
    bytes_max: usize,
    pub(super) values: Values,
    pub(super) counters: Arc<BoundCounters>,
    use_samples: Arc<UseSamples>,
    on_evicted: Option<OnEvicted>,
    /// Bytes of all directories.
    pub(super) directory_bytes: usize,
    /// The run after which blocks are being stored; it cannot be evicted.
    pub(super) pinned: RunId,
    /// The rank whose event is being applied.
    pub(super) current: Option<RankSlot>,
    pub(super) random: u64,
    /// The last record visited by the sequential scan.
    pub(super) scanned: usize,
    events: u32,
    sequences: Vec<SequenceHash>,
}

impl std::fmt::Debug for BoundState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundState").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl BoundState {
    pub(in crate::run) fn new(bytes_max: usize, counters: Arc<BoundCounters>, use_samples: Arc<UseSamples>) -> Self {
        Self {
            bytes_max,
            values: Values::default(),
            counters,
            use_samples,
            on_evicted: None,
            directory_bytes: 0,
            pinned: RunId::NONE,
            current: None,
            random: 0x9e37_79b9_7f4a_7c15,
            scanned: 0,
            events: 0,
            sequences: Vec::new(),
        }
    }

    /// Blocks that are stored between two checks of the limit.
    fn batch_blocks(&self) -> usize {
        (self.bytes_max >> 15).clamp(8, BATCH_BLOCKS_MAX)
    }

    /// Limit of the memory for blocks, in bytes.
    pub(super) fn bytes_for_blocks(&self) -> usize {
        self.bytes_max - self.bytes_max / RESERVE_SHARE
    }

    /// Limit of the memory for rare tables, in bytes.
    pub(super) fn bytes_for_rare(&self) -> usize {
        self.bytes_max / RESERVE_SHARE / 2
    }

    /// Limit of the memory for blocks and for their later needs: more holders of runs, longer lists, exceptions.
    pub(super) fn bytes_for_others(&self) -> usize {
        self.bytes_max - self.bytes_max / RESERVE_SHARE / 2
    }
}

impl Writer {
    pub(super) fn bounded(&self) -> &BoundState {
        self.bounded.as_ref().expect("the index is bounded")
    }

    pub(super) fn bounded_mut(&mut self) -> &mut BoundState {
        self.bounded.as_mut().expect("the index is bounded")
    }

    /// Applies the limit from now on. The present content must fit.
    pub(in crate::run) fn bind(&mut self, bounded: BoundState) {
        let mut bounded = Box::new(bounded);
        bounded.directory_bytes = self.domains.bytes();
        bounded.values.fill(&self.runs);
        self.bounded = Some(bounded);
        self.publish_bytes();
    }

    /// Whether the index fits a limit without compaction.
    pub(in crate::run) fn fits(&self, bytes_max: usize) -> bool {
        self.bytes_allocated() <= bytes_max - bytes_max / RESERVE_SHARE / 2
    }

    /// Changes the limit to one in which the index fits.
    pub(in crate::run) fn rebind(&mut self, bytes_max: usize) {
        self.bounded_mut().bytes_max = bytes_max;
    }

    /// Takes the state of the limit, for the copy that replaces the index.
    pub(in crate::run) fn unbind(&mut self, bytes_max: usize) -> BoundState {
        let bounded = self.bounded.take().expect("the index is bounded");
        BoundState { bytes_max, values: Values::default(), ..*bounded }
    }

    /// Evicts the least valuable runs until a copy of the rest, and the memory for making it, fits.
    pub(in crate::run) fn evict_until_copy_fits(&mut self, spare_bytes: usize) {
        self.release_all_retired();
        let for_copy = spare_bytes.saturating_sub(EMPTY_BYTES) / COPY_FACTOR;
        while self.used_bytes() > for_copy && self.evict(usize::MAX) > 0 {}
        self.release_all_retired();
    }

    /// Estimates the used bytes of runs, lists and sequence hashes with their directory slots.
    fn used_bytes(&self) -> usize {
        let blocks = self.runs.bytes().0 + self.sequences.bytes().0 + self.extents.bytes().0;
        blocks + self.sequences.count() * SEQUENCE_BYTES / 2
    }

    /// Registers a callback for evicted blocks.
    pub(in crate::run) fn on_evicted(&mut self, on_evicted: OnEvicted) {
        if let Some(bounded) = &mut self.bounded {
            bounded.on_evicted = Some(on_evicted);
        }
    }

    /// An upper bound on the memory that the index takes. Constant time.
    pub(super) fn bytes_allocated(&self) -> usize {
        let blocks = self.runs.bytes_allocated() + self.sequences.bytes_allocated() + self.extents.bytes_allocated();
        let bounded = self.bounded.as_ref();
        let own = bounded.map_or(0, |bounded| bounded.values.bytes() + bounded.directory_bytes);
        FIXED_BYTES
            + blocks
            + self.edges.bytes()
            + self.checkpoints.bytes()
            + self.ranks.bytes_allocated()
            + self.rare_bytes
            + self.retention_table.bytes()
            + self.reclaim_queue.bytes()
            + own
    }

    fn publish_bytes(&self) {
        self.bounded().counters.set_bytes(self.bytes_allocated());
    }

    /// [`Writer::apply`] within the limit.
    pub(super) fn apply_within_bound(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let bounded = self.bounded_mut();
        bounded.events = bounded.events.wrapping_add(1);
        if bounded.events.is_multiple_of(EVENTS_BETWEEN_SAMPLES) {
            self.take_use_samples();
        }
        let applied = match event {
            BlockEvent::Stored { copies: 0, .. } => return AppliedChanges::default(),
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                self.store_within_bound(rank, *parent, blocks, (*tier, *copies))
            }
            BlockEvent::Copied { tier, blocks } => {
                self.in_batches(rank, blocks, |writer, slot, blocks| writer.copy_within_bound(slot, *tier, blocks))
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                self.in_batches(rank, blocks, |writer, slot, blocks| writer.remove(slot, *tier, blocks, *copies))
            }
            BlockEvent::Cleared => {
                self.bounded().counters.partial.remove(rank);
                let removed = self.ranks.slot(rank).map_or(0, |slot| self.clear(slot));
                AppliedChanges { removed, ..AppliedChanges::default() }
            }
        };
        self.bounded_mut().current = None;
        self.finish(rank);
        let slot = self.ranks.slot(rank);
        self.do_maintenance_of_event(slot, event);
        self.publish_bytes();
        applied
    }

    /// Applies a change of held blocks in batches; after each batch it drops exceptions beyond their limit.
    fn in_batches(
        &mut self,
        rank: WorkerRank,
        blocks: &[SequenceHash],
        mut change: impl FnMut(&mut Self, RankSlot, &[SequenceHash]) -> AppliedChanges,
    ) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let Some(slot) = self.ranks.slot(rank) else {
            return AppliedChanges { unknown: blocks.len() as u64, ..applied };
        };
        self.bounded_mut().current = Some(slot);
        for blocks in blocks.chunks(self.bounded().batch_blocks()) {
            applied += change(self, slot, blocks);
            self.drop_exceptions(slot, blocks);
        }
        applied
    }

    fn copy_within_bound(&mut self, slot: RankSlot, tier: Tier, blocks: &[SequenceHash]) -> AppliedChanges {
        if self.affords_tier(slot, tier) && self.use_tier(slot, tier) {
            return self.copy(slot, tier, blocks);
        }
        let rank = self.ranks.get(slot).rank;
        self.refuse_tier(rank, tier, blocks.iter().copied())
    }

    fn store_within_bound(
        &mut self,
        rank: WorkerRank,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let Some(first) = blocks.first() else { return AppliedChanges::default() };
        let slot = self.ranks.slot(rank);
        let slot = slot.or_else(|| if self.affords_rank() { self.join(rank, copies.0, parent, first) } else { None });
        let Some(slot) = slot.filter(|&slot| self.affords_tier(slot, copies.0) && self.use_tier(slot, copies.0)) else {
            return self.refuse_tier(rank, copies.0, blocks.iter().map(|block| block.sequence));
        };
        self.bounded_mut().current = Some(slot);
        let (mut applied, mut parent, mut rest) = (AppliedChanges::default(), parent, blocks);
        while !rest.is_empty() && self.ranks.slot(rank) == Some(slot) {
            let (batch_blocks, more) = rest.split_at(rest.len().min(self.bounded().batch_blocks()));
            let Some(at) = self.admit(slot, parent, batch_blocks) else { break };
            let stored = self.store_chain(slot, at, parent, batch_blocks, copies);
            applied += stored;
            if stored.refused > 0 {
                // The remaining blocks have lost their parent.
                rest = more;
                break;
            }
            parent = batch_blocks.last().map(|block| block.sequence);
            rest = more;
        }
        self.bounded_mut().pinned = RunId::NONE;
        if !rest.is_empty() {
            applied += match self.ranks.slot(rank) {
                Some(slot) => self.refuse(slot, rest),
                None => self.refuse_tier(rank, copies.0, rest.iter().map(|block| block.sequence)),
            };
        }
        applied
    }

    /// Secures room for blocks that follow `parent` and returns the parent's position. Returns none if the index does not
    /// have the parent as held by the rank, or if no room can be made.
    fn admit(&mut self, slot: RankSlot, parent: Option<SequenceHash>, blocks: &[Block]) -> Option<Cursor> {
        let at = self.held_parent(slot, parent)?;
        self.bounded_mut().pinned = at.position.run;
        if !self.make_room(slot, blocks) {
            return None;
        }
        // Making room may have evicted the parent with its descendants.
        self.held_parent(slot, parent)
    }

    fn held_parent(&self, slot: RankSlot, parent: Option<SequenceHash>) -> Option<Cursor> {
        let Some(parent) = parent else { return Some(Cursor::ROOT) };
        let at = self.find_sequence(self.ranks.get(slot).domain, parent)?;
        self.holds(slot, at.position).then_some(at)
    }

    /// Refuses blocks. An engine may later remove one of two copies; to stay consistent with it, the index also drops its
    /// state of these blocks for the rank.
    pub(super) fn refuse(&mut self, slot: RankSlot, blocks: &[Block]) -> AppliedChanges {
        let sequences: Vec<SequenceHash> = blocks.iter().map(|block| block.sequence).collect();
        for tier in Tier::ALL {
            if self.ranks.get(slot).uses(tier) {
                self.remove(slot, tier, &sequences, RemovedCopies::All);
            }
        }
        self.record_evicted(slot, sequences.iter().copied());
        self.count_refused(blocks.len());
        AppliedChanges { refused: blocks.len() as u64, ..AppliedChanges::default() }
    }

    /// Refuses copies in a tier for which, or for whose rank, the index has no room. The index has no blocks of the
    /// rank in that tier, so its content in faster and slower tiers stays correct.
    fn refuse_tier(
        &mut self,
        rank: WorkerRank,
        tier: Tier,
        sequences: impl ExactSizeIterator<Item = SequenceHash>,
    ) -> AppliedChanges {
        let refused = sequences.len();
        self.report_evicted(rank, &[tier], sequences);
        self.count_refused(refused);
        AppliedChanges { refused: refused as u64, ..AppliedChanges::default() }
    }

    fn count_refused(&self, blocks: usize) {
        self.bounded().counters.refused.fetch_add(blocks, Relaxed);
    }

    /// Evicts everything that a rank holds.
    pub(super) fn evict_rank(&mut self, slot: RankSlot) {
        let held = self.held_by(slot);
        for run in self.runs_of(slot).into_iter().rev() {
            self.release_from(slot, run, 0);
        }
        self.record_evicted(slot, held.into_iter().map(|block| block.sequence));
    }

    /// Evicts the rank's exceptions in the runs of these blocks while rare tables exceed their limit.
    fn drop_exceptions(&mut self, slot: RankSlot, blocks: &[SequenceHash]) {
        let domain = self.ranks.get(slot).domain;
        for &sequence in blocks {
            if self.rare_bytes <= self.bounded().bytes_for_rare() {
                return;
            }
            let Some(at) = self.find_sequence(domain, sequence) else { continue };
            if self.exception(at.position.run, slot).is_none() {
                continue;
            }
            self.evict_blocks_of(slot, at.position.run);
        }
    }

    /// Evicts the blocks of a run that a rank holds.
    pub(super) fn evict_blocks_of(&mut self, slot: RankSlot, run: RunId) {
        let mut held = Vec::new();
        self.held_in(slot, run, 0, &mut held);
        self.release_from(slot, run, 0);
        self.record_evicted(slot, held.into_iter().map(|block| block.sequence));
    }

    /// Reports blocks that the index no longer has for the rank in any tier.
    pub(super) fn record_evicted(&mut self, slot: RankSlot, sequences: impl Iterator<Item = SequenceHash>) {
        let rank = self.ranks.get(slot).rank;
        let evicted = self.report_evicted(rank, &Tier::ALL, sequences);
        self.bounded().counters.evicted.fetch_add(evicted, Relaxed);
    }

    /// Reports blocks without a copy in these tiers in the index, although the rank may have one, and returns their
    /// number. The rank is partial from then on.
    fn report_evicted(
        &mut self,
        rank: WorkerRank,
        tiers: &[Tier],
        sequences: impl Iterator<Item = SequenceHash>,
    ) -> usize {
        let bounded = self.bounded_mut();
        bounded.sequences.clear();
        bounded.sequences.extend(sequences);
        bounded.counters.partial.insert(rank);
        if let Some(on_evicted) = &mut bounded.on_evicted {
            on_evicted(rank, tiers, &bounded.sequences);
        }
        bounded.sequences.len()
    }

    /// Counts the sampled uses of runs.
    fn take_use_samples(&mut self) {
        let runs = self.runs.count();
        let BoundState { use_samples, values, .. } = self.bounded_mut();
        values.set_half_life(runs);
        use_samples.take(|run| values.count_use(run));
    }
}
