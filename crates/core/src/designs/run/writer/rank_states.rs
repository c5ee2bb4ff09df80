//! What the writer knows of each rank.

use rustc_hash::FxHashMap;

use super::reference_counts::ReferenceCounts;
use super::runs::DomainId;
use super::waiting::Waiting;
use crate::designs::run::published::holdings::Holder;
use crate::designs::run::published::layout::RunId;
use crate::designs::run::published::rank_table::RankSlot;
use crate::{PerTier, RankSize, Tier, WorkerRank};

/// One rank that holds something.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) rank: WorkerRank,
    pub(super) domain: DomainId,
    /// The first tier that the rank used: what it holds there needs the least memory.
    pub(super) home: Tier,
    /// For each tier in use, fastest first, the holder of the level that it ends: what the rank holds
    /// when that tier and the faster ones are used together.
    pub(super) levels: Levels,
    /// Runs that the rank holds something of, and some that it no longer does.
    pub(super) runs: Vec<RunId>,
    /// How many of `runs` are held.
    pub(super) runs_held: usize,
    /// Copies of a block beyond the first.
    pub(super) reference_counts: ReferenceCounts,
    pub(super) waiting: Waiting,
    pub(super) size: RankSize,
    /// Its part of the writer's sum of placed blocks.
    pub(super) indexed: usize,
}

impl RankState {
    pub(super) fn new(rank: WorkerRank, domain: DomainId, home: Tier) -> Self {
        Self {
            rank,
            domain,
            home,
            levels: Levels::default(),
            runs: Vec::new(),
            runs_held: 0,
            reference_counts: ReferenceCounts::default(),
            waiting: Waiting::default(),
            size: RankSize::default(),
            indexed: 0,
        }
    }

    /// The holder of the level that the home tier ends.
    pub(super) fn home_holder(&self) -> Holder {
        self.levels.0[self.home].expect("a rank uses its home tier")
    }

    pub(super) fn uses(&self, tier: Tier) -> bool {
        self.levels.0[tier].is_some()
    }
}

/// The holders of a rank's levels, by the tier that ends each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Levels(PerTier<Option<Holder>>);

impl Levels {
    pub(super) fn set(&mut self, tier: Tier, holder: Holder) {
        self.0[tier] = Some(holder);
    }

    /// Levels in use, fastest tier first.
    pub(super) fn iter(self) -> impl DoubleEndedIterator<Item = (Tier, Holder)> {
        Tier::ALL.into_iter().filter_map(move |tier| Some((tier, self.0[tier]?)))
    }
}

/// Every rank that holds something, by small numbers.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    by_rank: FxHashMap<WorkerRank, RankSlot>,
    states: Vec<Option<Box<RankState>>>,
    free: Vec<RankSlot>,
    /// Room in all lists of runs together.
    listed: usize,
}

/// Bytes of a rank that there ever was: its state, its holders, what readers see of it, and its places in
/// tables that are at worst half full.
pub(super) const RANK_BYTES: usize = size_of::<RankState>() + 320;

impl Ranks {
    pub(super) fn slot(&self, rank: WorkerRank) -> Option<RankSlot> {
        self.by_rank.get(&rank).copied()
    }

    pub(super) fn insert(&mut self, state: RankState) -> RankSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.states.push(None);
            RankSlot(u32::try_from(self.states.len() - 1).expect("fewer than 2^32 ranks"))
        });
        self.by_rank.insert(state.rank, slot);
        self.states[slot.0 as usize] = Some(Box::new(state));
        slot
    }

    /// The slot is not the rank's any more, and not free yet.
    pub(super) fn retire(&mut self, slot: RankSlot) {
        let rank = self.get(slot).rank;
        self.by_rank.remove(&rank);
    }

    /// Frees the slot of a rank that was retired.
    pub(super) fn remove(&mut self, slot: RankSlot) -> Box<RankState> {
        self.free.push(slot);
        let state = self.states[slot.0 as usize].take().expect("the slot is in use");
        self.listed -= state.runs.capacity();
        state
    }

    /// Notes that a list of runs has another capacity than before.
    pub(super) fn count_list_capacity(&mut self, before: usize, after: usize) {
        self.listed = self.listed + after - before;
    }

    /// Whether one more rank takes no more memory.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// No less than [`Ranks::bytes`] and all that readers see of ranks, at no cost.
    pub(super) fn bytes_allocated(&self) -> usize {
        self.states.len() * RANK_BYTES + self.listed * size_of::<RunId>()
    }

    /// One more than the largest slot ever in use.
    pub(super) fn slot_count(&self) -> usize {
        self.states.len()
    }

    /// Whether the slot is a rank's that was not cleared.
    pub(super) fn is_in_use(&self, slot: RankSlot) -> bool {
        self.states[slot.0 as usize].is_some() && !self.is_retired(slot)
    }

    /// Whether the rank was cleared and has left something behind.
    pub(super) fn is_retired(&self, slot: RankSlot) -> bool {
        self.by_rank.get(&self.get(slot).rank) != Some(&slot)
    }

    #[inline]
    pub(super) fn get(&self, slot: RankSlot) -> &RankState {
        self.states[slot.0 as usize].as_ref().expect("the slot is in use")
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: RankSlot) -> &mut RankState {
        self.states[slot.0 as usize].as_mut().expect("the slot is in use")
    }

    pub(super) fn bytes(&self) -> usize {
        let of_runs = |state: &RankState| state.runs.capacity() * size_of::<RunId>();
        self.states.iter().flatten().map(|state| size_of::<RankState>() + of_runs(state)).sum()
    }

    /// Gives the memory back piece by piece, each with the steps that it takes.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.states.into_iter().flatten().flat_map(|state| {
            let RankState { waiting, reference_counts, .. } = *state;
            let waiting = waiting.into_sets().map(|(_, sequences)| 1 + sequences.len());
            let reference_counts = reference_counts.into_runs().map(|_| 1);
            waiting.chain(reference_counts).chain(std::iter::once(1))
        })
    }

    /// Ranks that are in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RankSlot, &RankState)> {
        self.by_rank.values().map(|&slot| (slot, self.get(slot)))
    }
}
