//! An index that keeps within a bound of memory.
//!
//! Memory that readers may look at is never given back, so what counts is what was ever taken. Before blocks
//! are stored the writer makes sure that they find room: in memory that is not taken yet while the bound
//! allows, then in records of runs that are forgotten for them ([`super::evict`]). A part of the bound
//! stays free for what cannot be foreseen block by block.
//!
//! What is not kept is forgotten as if its rank had removed it. So nothing waits for a parent here: what
//! follows a block that the index does not know its rank to hold could not count, and is refused.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Writer;
use super::chunked::CHUNK;
use super::names::LINE_NAMES;
use super::place::Cursor;
use super::ranks::RANK_BYTES;
use super::value::Values;
use crate::run::bound::{Counts, OnForgotten};
use crate::run::published::Published;
use crate::run::published::holdings::{Holder, HoldingsWriter};
use crate::run::published::layout::{CAPACITIES, HEADER_WORDS, RunId};
use crate::run::published::ranks::RankSlot;
use crate::run::touches::Touches;
use crate::{Applied, Block, BlockEvent, RemovedCopies, SequenceHash, Tier, WorkerRank};

/// Blocks that are stored, or removed, between two looks at the bound.
const STRETCH_BLOCKS_MAX: usize = 128;
/// One of so many bytes stays free of blocks.
const RESERVE_SHARE: usize = 16;
/// How often a rank forgets a run for one stretch of blocks, at most: what does not fit then is refused.
const FORGOTTEN_FOR_STRETCH_MAX: usize = 512;
/// Events between two looks at what queries have found.
const EVENTS_BETWEEN_TOUCHES: u32 = 64;
/// What an exception of a run may take, with its share of a list that doubles.
const EXCEPTION_BYTES: usize = 512;
/// A run of the smallest class, with what it is worth.
const SMALLEST_RUN_BYTES: usize = (CAPACITIES[0] as usize + HEADER_WORDS) * size_of::<u64>();
/// A name and its place in a directory, at worst.
const NAME_BYTES: usize = 32;
/// What an index takes that has hardly anything: chunks of names and of some classes of runs.
const EMPTY_BYTES: usize = FIXED_BYTES + 512 * 1024;
/// A copy takes somewhat more than what is in use of the original, and its making as much again.
const COPY_TAKES: usize = 3;
/// What every index takes: the tables of its arenas above all.
const FIXED_BYTES: usize = size_of::<Published>() + size_of::<Writer>() + size_of::<Bounded>() + Touches::BYTES;

/// What a bounded index has beside others.
pub(in crate::run) struct Bounded {
    bytes_max: usize,
    pub(super) values: Values,
    pub(super) counts: Arc<Counts>,
    touches: Arc<Touches>,
    on_forgotten: Option<OnForgotten>,
    /// Bytes of all directories.
    pub(super) directory_bytes: usize,
    /// The run that blocks are being stored behind.
    pub(super) pinned: RunId,
    /// The rank whose event is being applied.
    pub(super) current: Option<RankSlot>,
    pub(super) random: u64,
    /// The record that was last looked at when they were gone through in order.
    pub(super) gone_through: usize,
    events: u32,
    names: Vec<SequenceHash>,
}

impl std::fmt::Debug for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bounded").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl Bounded {
    pub(in crate::run) fn new(bytes_max: usize, counts: Arc<Counts>, touches: Arc<Touches>) -> Self {
        Self {
            bytes_max,
            values: Values::default(),
            counts,
            touches,
            on_forgotten: None,
            directory_bytes: 0,
            pinned: RunId::NONE,
            current: None,
            random: 0x9e37_79b9_7f4a_7c15,
            gone_through: 0,
            events: 0,
            names: Vec::new(),
        }
    }

    /// Blocks that are stored between two looks at the bound.
    fn stretch(&self) -> usize {
        (self.bytes_max >> 15).clamp(8, STRETCH_BLOCKS_MAX)
    }

    /// How much may be taken for blocks.
    fn bytes_for_blocks(&self) -> usize {
        self.bytes_max - self.bytes_max / RESERVE_SHARE
    }

    /// How much tables may take that hardly ever exist.
    fn bytes_for_rare(&self) -> usize {
        self.bytes_max / RESERVE_SHARE / 2
    }

    /// How much may be taken for what blocks need later: more holders of runs, longer lists, exceptions.
    fn bytes_for_others(&self) -> usize {
        self.bytes_max - self.bytes_max / RESERVE_SHARE / 2
    }
}

impl Writer {
    fn bounded(&self) -> &Bounded {
        self.bounded.as_ref().expect("only a bounded index comes here")
    }

    pub(super) fn bounded_mut(&mut self) -> &mut Bounded {
        self.bounded.as_mut().expect("only a bounded index comes here")
    }

    /// From now on the index is bounded. What is in it already must fit.
    pub(in crate::run) fn bind(&mut self, bounded: Bounded) {
        let mut bounded = Box::new(bounded);
        bounded.directory_bytes = self.domains.bytes();
        bounded.values.fill(&self.runs);
        self.bounded = Some(bounded);
        self.tell_bytes();
    }

    /// Whether the index could go on within a bound as it is.
    pub(in crate::run) fn fits(&self, bytes_max: usize) -> bool {
        self.bytes_allocated() <= bytes_max - bytes_max / RESERVE_SHARE / 2
    }

    /// The bound is another one, in which the index fits.
    pub(in crate::run) fn rebind(&mut self, bytes_max: usize) {
        self.bounded_mut().bytes_max = bytes_max;
    }

    /// What bounds the index, for the copy that takes its place.
    pub(in crate::run) fn unbind(&mut self, bytes_max: usize) -> Bounded {
        let bounded = self.bounded.take().expect("only a bounded index comes here");
        Bounded { bytes_max, values: Values::default(), ..*bounded }
    }

    /// Forgets what is least valuable until a copy of the rest, and what making it takes, has room.
    pub(in crate::run) fn forget_until_copy_fits(&mut self, spare_bytes: usize) {
        self.release_all_left_behind();
        let for_copy = spare_bytes.saturating_sub(EMPTY_BYTES) / COPY_TAKES;
        while self.used_bytes() > for_copy && self.evict(usize::MAX) > 0 {}
        self.release_all_left_behind();
    }

    /// About what is in use of runs, lists and names, with the directory slots of these.
    fn used_bytes(&self) -> usize {
        let blocks = self.runs.bytes().0 + self.names.bytes().0 + self.extents.bytes().0;
        blocks + self.names.count() * NAME_BYTES / 2
    }

    /// Registers a callback for what is forgotten.
    pub(in crate::run) fn on_forgotten(&mut self, on_forgotten: OnForgotten) {
        if let Some(bounded) = &mut self.bounded {
            bounded.on_forgotten = Some(on_forgotten);
        }
    }

    /// All that the index takes, or no less. Cheap.
    pub(super) fn bytes_allocated(&self) -> usize {
        let blocks = self.runs.bytes_allocated() + self.names.bytes_allocated() + self.extents.bytes_allocated();
        let bounded = self.bounded.as_ref();
        let own = bounded.map_or(0, |bounded| bounded.values.bytes() + bounded.directory_bytes);
        FIXED_BYTES
            + blocks
            + self.edges.bytes()
            + self.ranks.bytes_allocated()
            + self.rare_bytes
            + self.all_needs.bytes()
            + self.remains.bytes()
            + own
    }

    fn tell_bytes(&self) {
        self.bounded().counts.set_bytes(self.bytes_allocated());
    }

    /// [`Writer::apply`] with the bound kept.
    pub(super) fn apply_within_bound(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let bounded = self.bounded_mut();
        bounded.events = bounded.events.wrapping_add(1);
        if bounded.events.is_multiple_of(EVENTS_BETWEEN_TOUCHES) {
            self.take_touches();
        }
        let applied = match event {
            BlockEvent::Stored { copies: 0, .. } => return Applied::default(),
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                self.store_within_bound(rank, *parent, blocks, (*tier, *copies))
            }
            BlockEvent::Copied { tier, blocks } => {
                self.in_stretches(rank, blocks, |writer, slot, blocks| writer.copy_within_bound(slot, *tier, blocks))
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                self.in_stretches(rank, blocks, |writer, slot, blocks| writer.remove(slot, *tier, blocks, *copies))
            }
            BlockEvent::Cleared => {
                self.bounded().counts.set_whole(rank);
                let removed = self.ranks.slot(rank).map_or(0, |slot| self.clear(slot));
                Applied { removed, ..Applied::default() }
            }
        };
        self.bounded_mut().current = None;
        self.finish(rank);
        let slot = self.ranks.slot(rank);
        self.do_leftover_of_event(slot, event);
        self.tell_bytes();
        applied
    }

    /// Changes of blocks that the rank has, a few at a time; what is rare stays within its part.
    fn in_stretches(
        &mut self,
        rank: WorkerRank,
        blocks: &[SequenceHash],
        mut change: impl FnMut(&mut Self, RankSlot, &[SequenceHash]) -> Applied,
    ) -> Applied {
        let mut applied = Applied::default();
        let Some(slot) = self.ranks.slot(rank) else {
            return Applied { unknown: blocks.len() as u64, ..applied };
        };
        self.bounded_mut().current = Some(slot);
        for blocks in blocks.chunks(self.bounded().stretch()) {
            applied += change(self, slot, blocks);
            self.drop_exceptions(slot, blocks);
        }
        applied
    }

    fn copy_within_bound(&mut self, slot: RankSlot, tier: Tier, blocks: &[SequenceHash]) -> Applied {
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
    ) -> Applied {
        let Some(first) = blocks.first() else { return Applied::default() };
        let slot = self.ranks.slot(rank);
        let slot = slot.or_else(|| if self.affords_rank() { self.join(rank, copies.0, parent, first) } else { None });
        let Some(slot) = slot.filter(|&slot| self.affords_tier(slot, copies.0) && self.use_tier(slot, copies.0)) else {
            return self.refuse_tier(rank, copies.0, blocks.iter().map(|block| block.sequence));
        };
        self.bounded_mut().current = Some(slot);
        let (mut applied, mut parent, mut rest) = (Applied::default(), parent, blocks);
        while !rest.is_empty() && self.ranks.slot(rank) == Some(slot) {
            let (stretch, more) = rest.split_at(rest.len().min(self.bounded().stretch()));
            let Some(at) = self.admit(slot, parent, stretch) else { break };
            let stored = self.store_chain(slot, at, parent, stretch, copies);
            applied += stored;
            if stored.refused > 0 {
                // What follows has nothing to follow.
                rest = more;
                break;
            }
            parent = stretch.last().map(|block| block.sequence);
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

    /// Where blocks go that follow `parent`, once there is room for them; none if the rank is not known
    /// to hold the parent, or no room can be made.
    fn admit(&mut self, slot: RankSlot, parent: Option<SequenceHash>, blocks: &[Block]) -> Option<Cursor> {
        let at = self.held_parent(slot, parent)?;
        self.bounded_mut().pinned = at.place.run;
        if !self.make_room(slot, blocks) {
            return None;
        }
        // It may have gone with what hung from it.
        self.held_parent(slot, parent)
    }

    fn held_parent(&self, slot: RankSlot, parent: Option<SequenceHash>) -> Option<Cursor> {
        let Some(parent) = parent else { return Some(Cursor::ROOT) };
        let at = self.named(self.ranks.get(slot).domain, parent)?;
        self.holds(slot, at.place).then_some(at)
    }

    /// Makes sure that so many blocks of the rank find room, whatever way they go. Forgets others for them.
    fn make_room(&mut self, slot: RankSlot, blocks: &[Block]) -> bool {
        let mut forgotten = 0;
        while !self.reserve(slot, blocks) {
            if !self.untrimmed.is_empty() {
                self.trim_untrimmed();
                continue;
            }
            let for_this = self.evict(FORGOTTEN_FOR_STRETCH_MAX - forgotten);
            forgotten += for_this;
            if for_this == 0 || forgotten >= FORGOTTEN_FOR_STRETCH_MAX {
                return self.reserve(slot, blocks);
            }
        }
        true
    }

    /// Takes memory for tables as far as these blocks may need it. At worst each is a run of its own.
    fn reserve(&mut self, slot: RankSlot, blocks: &[Block]) -> bool {
        let count = blocks.len();
        let allocated = self.bytes_allocated();
        let spare = self.bounded().bytes_for_blocks().saturating_sub(allocated);
        let missing_runs = count.saturating_sub(self.runs.free_count());
        let runs = match missing_runs {
            0 => 0,
            missing => missing * SMALLEST_RUN_BYTES + self.bytes_for_smallest(),
        };
        let tables = self.names.bytes_for(count) + self.edges.bytes_for(count);
        let fits = spare.checked_sub(runs + tables).is_some_and(|spare| self.fits_directory(slot, blocks, spare));
        if !fits {
            return false;
        }
        self.names.reserve(count);
        self.edges.reserve(&self.published.edges, count);
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
        let Self { domains, names, ranks, .. } = self;
        let directory = &mut domains.get_mut(ranks.get(slot).domain).directory;
        let new = blocks.iter().map(|block| block.sequence);
        let reserved = directory.reserve(names, new, (blocks.len(), bytes_max));
        let (Ok(taken) | Err(taken)) = reserved;
        self.bounded_mut().directory_bytes += taken;
        reserved.is_ok()
    }

    /// A directory takes more or less than before: it has come or gone, or been filled.
    pub(super) fn count_directory(&mut self, (before, after): (usize, usize)) {
        if let Some(bounded) = &mut self.bounded {
            bounded.directory_bytes = bounded.directory_bytes + after - before;
        }
    }

    /// The class of a new run for `blocks` blocks that would be best in `wanted`: one for which there is memory.
    pub(super) fn class_within_bound(&self, wanted: usize, blocks: usize) -> usize {
        if self.runs.has_free(wanted) {
            return wanted;
        }
        let spare = self.bounded().bytes_for_blocks().saturating_sub(self.bytes_allocated());
        // Whatever way the others go, they must find room as well.
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

    /// Whether a rank more may join.
    fn affords_rank(&self) -> bool {
        self.ranks.has_free() || self.bytes_allocated() + 3 * RANK_BYTES <= self.bounded().bytes_for_others()
    }

    /// Whether the rank may use a tier: one that is new to it takes a holder for each of its runs.
    fn affords_tier(&mut self, slot: RankSlot, tier: Tier) -> bool {
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

    /// Whether all names of the rank may be told once more, in another domain.
    pub(super) fn affords_another_domain(&self, slot: RankSlot) -> bool {
        let blocks = self.ranks.get(slot).size.blocks;
        let runs = self.ranks.get(slot).runs_held;
        // Runs above those that it holds are named as well; a directory may be as good as empty.
        let lines = blocks.div_ceil(LINE_NAMES) + 2 * runs;
        let bytes = self.names.bytes_for(lines) + 4 * blocks * NAME_BYTES + 2 * runs * EXCEPTION_BYTES;
        self.bytes_allocated() + bytes <= self.bounded().bytes_for_others()
    }

    /// Blocks are not kept. So that the index cannot know better later than an engine that removes one of two
    /// copies, what it knew of them for this rank is forgotten as well.
    pub(super) fn refuse(&mut self, slot: RankSlot, blocks: &[Block]) -> Applied {
        let names: Vec<SequenceHash> = blocks.iter().map(|block| block.sequence).collect();
        for tier in Tier::ALL {
            if self.ranks.get(slot).uses(tier) {
                self.remove(slot, tier, &names, RemovedCopies::All);
            }
        }
        self.note_forgotten(slot, names.iter().copied());
        self.count_refused(blocks.len());
        Applied { refused: blocks.len() as u64, ..Applied::default() }
    }

    /// Copies in a tier are not kept: the index has no room for the tier, or for the rank. Of that tier it knew nothing for
    /// this rank, so what it knows of faster and slower ones stays right.
    fn refuse_tier(
        &mut self,
        rank: WorkerRank,
        tier: Tier,
        names: impl ExactSizeIterator<Item = SequenceHash>,
    ) -> Applied {
        let refused = names.len();
        self.report_forgotten(rank, &[tier], names);
        self.count_refused(refused);
        Applied { refused: refused as u64, ..Applied::default() }
    }

    fn count_refused(&self, blocks: usize) {
        self.bounded().counts.refused.fetch_add(blocks, Relaxed);
    }

    /// Forgets all that a rank holds.
    pub(super) fn forget_rank(&mut self, slot: RankSlot) {
        let held = self.held_by(slot);
        for run in self.runs_of(slot).into_iter().rev() {
            self.release_from(slot, run, 0);
        }
        self.note_forgotten(slot, held.into_iter().map(|block| block.sequence));
    }

    /// What is not one interval from the start of a run is forgotten where it takes too much, in the runs of
    /// these blocks.
    fn drop_exceptions(&mut self, slot: RankSlot, blocks: &[SequenceHash]) {
        let domain = self.ranks.get(slot).domain;
        for &name in blocks {
            if self.rare_bytes <= self.bounded().bytes_for_rare() {
                return;
            }
            let Some(at) = self.named(domain, name) else { continue };
            if self.exception(at.place.run, slot).is_none() {
                continue;
            }
            let mut held = Vec::new();
            self.held_in(slot, at.place.run, 0, &mut held);
            self.release_from(slot, at.place.run, 0);
            self.note_forgotten(slot, held.into_iter().map(|block| block.sequence));
        }
    }

    /// Reports that the rank holds these no more, in any tier.
    pub(super) fn note_forgotten(&mut self, slot: RankSlot, names: impl Iterator<Item = SequenceHash>) {
        let rank = self.ranks.get(slot).rank;
        let forgotten = self.report_forgotten(rank, &Tier::ALL, names);
        self.bounded().counts.forgotten.fetch_add(forgotten, Relaxed);
    }

    /// Reports blocks of which the index has no copy in these tiers although the rank may, and says how many. From now on the
    /// rank is partial.
    fn report_forgotten(
        &mut self,
        rank: WorkerRank,
        tiers: &[Tier],
        names: impl Iterator<Item = SequenceHash>,
    ) -> usize {
        let bounded = self.bounded_mut();
        bounded.names.clear();
        bounded.names.extend(names);
        bounded.counts.set_partial(rank);
        if let Some(on_forgotten) = &mut bounded.on_forgotten {
            on_forgotten(rank, tiers, &bounded.names);
        }
        bounded.names.len()
    }

    /// Takes in what queries have found.
    fn take_touches(&mut self) {
        let runs = self.runs.count();
        let Bounded { touches, values, .. } = self.bounded_mut();
        values.set_half_life(runs);
        touches.take(|run| values.touch(run));
    }
}
