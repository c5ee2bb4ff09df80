//! The ranks that still match while a query advances, and the depths of the ranks that dropped out.

use flash_indexer_core::{MatchScores, PerTier, RankMatch, Tier, WorkerRank};

use super::holders::Holders;
use super::rank_set::RankSet;

/// For each tier, the ranks that hold every block of the query so far in that tier or a faster one.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveRanks(pub(super) PerTier<RankSet>);

impl ActiveRanks {
    /// The ranks that hold a block.
    pub(super) fn holding(holders: &Holders) -> Self {
        let mut active = Self::default();
        active.union_with(holders);
        active
    }

    /// Adds the ranks that hold a block.
    pub(super) fn union_with(&mut self, holders: &Holders) {
        let mut within = RankSet::default();
        for tier in Tier::ALL {
            if let Some(set) = holders.ranks_in(tier) {
                within.union_with(set);
            }
            self.0[tier].union_with(&within);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.0.iter().all(RankSet::is_empty)
    }

    /// Removes the ranks that do not hold the block and returns them; none if every rank holds it.
    pub(super) fn split_off_dropped(&mut self, holders: &Holders) -> Option<Self> {
        if holders.is_device_only() {
            let device = holders.ranks_in(Tier::Device)?;
            if self.0.0.iter().all(|set| set.is_subset_of(device)) {
                return None;
            }
        }
        self.split_off_difference(&Self::holding(holders))
    }

    /// Removes the ranks that are not in `holding` and returns them; none if all are in it.
    pub(super) fn split_off_difference(&mut self, holding: &Self) -> Option<Self> {
        let mut dropped = Self::default();
        for tier in Tier::ALL {
            if !self.0[tier].is_subset_of(&holding.0[tier]) {
                dropped.0[tier] = self.0[tier].split_off_difference(&holding.0[tier]);
            }
        }
        (!dropped.is_empty()).then_some(dropped)
    }

    /// The highest slot of an active rank.
    pub(super) fn last(&self) -> Option<u32> {
        self.0.0.iter().filter_map(RankSet::last).max()
    }
}

/// Number of matched blocks by slot.
#[derive(Debug, Default)]
pub(super) struct Depths(Vec<PerTier<u32>>);

impl Depths {
    /// Raises the depth of every rank in `active` to at least `depth`.
    pub(super) fn record(&mut self, active: &ActiveRanks, depth: usize) {
        let Some(last) = active.last() else { return };
        self.grow_to(last);
        for tier in Tier::ALL {
            for slot in active.0[tier].iter() {
                let blocks = &mut self.0[slot as usize][tier];
                *blocks = (depth as u32).max(*blocks);
            }
        }
    }

    /// Raises the depths of one rank to at least `depths`.
    pub(super) fn record_rank(&mut self, slot: u32, depths: PerTier<u32>) {
        self.grow_to(slot);
        for (blocks, depth) in self.0[slot as usize].0.iter_mut().zip(depths.0) {
            *blocks = depth.max(*blocks);
        }
    }

    fn grow_to(&mut self, slot: u32) {
        let count = slot as usize + 1;
        if self.0.len() < count {
            self.0.resize(count, PerTier::default());
        }
    }

    /// The depths as scores. A slot without a rank is left out.
    pub(super) fn into_scores(self, rank_in: impl Fn(u32) -> Option<WorkerRank>) -> MatchScores {
        let by_slot = (0..).zip(self.0).filter(|(_, blocks)| !blocks.is_zero());
        let matches = by_slot.filter_map(|(slot, blocks)| Some(RankMatch { rank: rank_in(slot)?, blocks }));
        MatchScores { ranks: matches.collect() }
    }
}
