//! Which tiers hold the blocks of a match: only the writer knows of blocks that lie in a faster tier behind blocks
//! that do not.

use super::Writer;
use super::ranks::RankState;
use crate::designs::run::find::{Way, walk};
use crate::designs::run::matches::Step;
use crate::designs::run::published::ranks::RankSlot;
use crate::{LocalHash, PerTier, RankMatch, Tier, tiers};

impl Writer {
    /// For each match of a query, how many of its blocks have each tier as the fastest one that holds them. Costs one
    /// walk, and a look at each run of it for each match.
    pub(in crate::designs::run) fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let mut path = Vec::new();
        let way = walk(&self.published, self.published.edges.generation(), query, &mut path, |_, _| {});
        if way != Ok(Way::Single) {
            return tiers::fastest_tiers(query, found, |found| self.held(found.rank));
        }
        let along = |found: &RankMatch| match self.ranks.slot(found.rank) {
            Some(slot) => self.tiers_along(&path, slot, found.longest()),
            None => PerTier::default(),
        };
        found.iter().map(|found| tiers::in_device(found).unwrap_or_else(|| along(found))).collect()
    }

    fn tiers_along(&self, path: &[Step], slot: RankSlot, longest: u32) -> PerTier<u32> {
        let mut sum = PerTier::<u32>::default();
        for step in path.iter().take_while(|step| step.base < longest) {
            let wanted = step.matched.min(longest - step.base) as u16;
            let held = match self.exception(step.run, slot) {
                Some(coverage) => {
                    let held = coverage.reach(Tier::External).min(wanted);
                    for (sum, blocks) in sum.0.iter_mut().zip(coverage.fastest(held).0) {
                        *sum += blocks;
                    }
                    held
                }
                None => {
                    let rank: &RankState = self.ranks.get(slot);
                    let held = self.end(step.run, rank.home_holder()).min(wanted);
                    sum[rank.home] += u32::from(held);
                    held
                }
            };
            if u32::from(held) < step.matched {
                break;
            }
        }
        sum
    }
}
