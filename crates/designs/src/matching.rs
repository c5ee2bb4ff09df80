//! The ranks that a query has not lost yet, and how deep those went that it has.

use flash_indexer_core::{MatchScores, PerTier, RankMatch, Tier, WorkerRank};

use super::holders::Holders;
use super::rank_set::RankSet;

/// For each tier, the ranks that hold every block of the query so far in it or a faster one.
#[derive(Debug, Clone, Default)]
pub(super) struct Matching(pub(super) PerTier<RankSet>);

impl Matching {
    /// The ranks that hold one block.
    pub(super) fn holding(holders: &Holders) -> Self {
        let mut matching = Self::default();
        matching.unite(holders);
        matching
    }

    /// Adds the ranks that hold one block.
    pub(super) fn unite(&mut self, holders: &Holders) {
        let mut within = RankSet::default();
        for tier in Tier::ALL {
            if let Some(set) = holders.held_in(tier) {
                within.unite(set);
            }
            self.0[tier].unite(&within);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.0.iter().all(RankSet::is_empty)
    }

    /// Removes the ranks that do not hold the block, and returns them; none if all go on.
    pub(super) fn split_off_lost(&mut self, holders: &Holders) -> Option<Self> {
        if holders.is_device_only() {
            let device = holders.held_in(Tier::Device)?;
            if self.0.0.iter().all(|set| set.is_subset_of(device)) {
                return None;
            }
        }
        self.split_off_outside(&Self::holding(holders))
    }

    /// Removes the ranks that are not in `kept`, and returns them; none if all are.
    pub(super) fn split_off_outside(&mut self, kept: &Self) -> Option<Self> {
        let mut lost = Self::default();
        for tier in Tier::ALL {
            if !self.0[tier].is_subset_of(&kept.0[tier]) {
                lost.0[tier] = self.0[tier].split_off_outside(&kept.0[tier]);
            }
        }
        (!lost.is_empty()).then_some(lost)
    }

    /// The highest slot of a matching rank.
    pub(super) fn last(&self) -> Option<u32> {
        self.0.0.iter().filter_map(RankSet::last).max()
    }
}

/// Matched blocks by slot.
#[derive(Debug, Default)]
pub(super) struct Depths(Vec<PerTier<u32>>);

impl Depths {
    /// All of `matching` hold so many leading blocks, at least.
    pub(super) fn record(&mut self, matching: &Matching, depth: usize) {
        let Some(last) = matching.last() else { return };
        self.make_room_for(last);
        for tier in Tier::ALL {
            for slot in matching.0[tier].iter() {
                let blocks = &mut self.0[slot as usize][tier];
                *blocks = (depth as u32).max(*blocks);
            }
        }
    }

    /// One rank holds so many leading blocks, at least.
    pub(super) fn record_rank(&mut self, slot: u32, depths: PerTier<u32>) {
        self.make_room_for(slot);
        for (blocks, depth) in self.0[slot as usize].0.iter_mut().zip(depths.0) {
            *blocks = depth.max(*blocks);
        }
    }

    fn make_room_for(&mut self, slot: u32) {
        let count = slot as usize + 1;
        if self.0.len() < count {
            self.0.resize(count, PerTier::default());
        }
    }

    /// The depths as scores of the ranks in the slots; of slots without a rank there are none.
    pub(super) fn into_scores(self, rank_in: impl Fn(u32) -> Option<WorkerRank>) -> MatchScores {
        let by_slot = (0..).zip(self.0).filter(|(_, blocks)| !blocks.is_zero());
        let matches = by_slot.filter_map(|(slot, blocks)| Some(RankMatch { rank: rank_in(slot)?, blocks }));
        MatchScores { ranks: matches.collect() }
    }
}
