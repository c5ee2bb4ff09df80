//! The writer's state of each rank.

use rustc_hash::FxHashMap;

use super::reference_counts::ReferenceCounts;
use super::runs::DomainId;
use super::waiting::WaitingBlocks;
use crate::run::published::holdings::Holder;
use crate::run::published::layout::RunId;
use crate::run::published::rank_table::RankSlot;
use crate::{PerTier, RankSize, SequenceHash, Tier, WorkerRank};

/// One rank that holds blocks.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) rank: WorkerRank,
    pub(super) domain: DomainId,
    /// The first tier that the rank used: blocks there take the least memory.
    pub(super) home: Tier,
    /// For each tier in use, fastest first, the holder of its level. A level covers the blocks in that tier and all faster
    /// ones together.
    pub(super) levels: Levels,
    /// Runs in which the rank holds blocks, and some in which it no longer does.
    pub(super) runs: Vec<RunId>,
    /// Number of `runs` that are held.
    pub(super) runs_held: usize,
    /// Reference counts above one.
    pub(super) reference_counts: ReferenceCounts,
    pub(super) waiting: WaitingBlocks,
    /// Sequence hashes that are indexed and for which blocks may still wait.
    pub(super) ready: Vec<SequenceHash>,
    /// Blocks that the rank may still move before it stores further ones.
    pub(super) moves_left: usize,
    pub(super) size: RankSize,
    /// Its share of the writer's number of indexed blocks.
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
            waiting: WaitingBlocks::default(),
            ready: Vec::new(),
            moves_left: usize::MAX,
            size: RankSize::default(),
            indexed: 0,
        }
    }

    /// The holder of the home tier's level.
    pub(super) fn home_holder(&self) -> Holder {
        self.levels.0[self.home].expect("a rank uses its home tier")
    }

    pub(super) fn uses(&self, tier: Tier) -> bool {
        self.levels.0[tier].is_some()
    }
}

/// The holders of a rank's levels, by tier.
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

/// All ranks that hold blocks, by slot.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    by_rank: FxHashMap<WorkerRank, RankSlot>,
    states: Vec<Option<Box<RankState>>>,
    free: Vec<RankSlot>,
    /// Total capacity of the lists of runs.
    listed: usize,
}

/// Bytes of each slot ever used: its state, its holders, their published part, and entries of tables that are half
/// full in the worst case.
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

    /// Detaches the slot from its rank; the slot is not free yet.
    pub(super) fn retire(&mut self, slot: RankSlot) {
        let rank = self.get(slot).rank;
        self.by_rank.remove(&rank);
    }

    /// Frees the slot of a retired rank.
    pub(super) fn remove(&mut self, slot: RankSlot) -> Box<RankState> {
        self.free.push(slot);
        let state = self.states[slot.0 as usize].take().expect("the slot is in use");
        self.listed -= state.runs.capacity();
        state
    }

    /// Counts a change of the capacity of a list of runs.
    pub(super) fn count_list_capacity(&mut self, before: usize, after: usize) {
        self.listed = self.listed + after - before;
    }

    /// Whether one more rank takes no more memory.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Upper bound on [`Ranks::bytes`] and on the published memory of ranks. Constant time.
    pub(super) fn bytes_allocated(&self) -> usize {
        self.states.len() * RANK_BYTES + self.listed * size_of::<RunId>()
    }

    /// One more than the largest slot ever in use.
    pub(super) fn slot_count(&self) -> usize {
        self.states.len()
    }

    /// Whether the slot belongs to a rank that was not cleared.
    pub(super) fn is_in_use(&self, slot: RankSlot) -> bool {
        self.states[slot.0 as usize].is_some() && !self.is_retired(slot)
    }

    /// Whether the rank was cleared but still has entries in runs.
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

    /// Bytes of waiting blocks.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.states.iter().flatten().map(|state| state.waiting.bytes()).sum()
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.states.into_iter().flatten().flat_map(|state| {
            let reference_counts = state.reference_counts.into_runs().map(|_| 1);
            reference_counts.chain(std::iter::once(1))
        })
    }

    /// Ranks in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RankSlot, &RankState)> {
        self.by_rank.values().map(|&slot| (slot, self.get(slot)))
    }
}
