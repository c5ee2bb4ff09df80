//! Fastest tiers of the blocks of a match. Only the writer can compute them: a fast tier may hold blocks after blocks that
//! it does not hold.

use super::Writer;
use super::rank_states::RankState;
use crate::run::branching::{Branch, Branches};
use crate::run::find::{PathKind, walk};
use crate::run::matches::Step;
use crate::run::published::rank_table::RankSlot;
use crate::{LocalHash, PerTier, RankMatch, Tier, tiers};

impl Writer {
    /// For each match of a query, counts its blocks by the fastest tier that holds them. Costs one walk, and for each
    /// match a visit of each run on the path and its branches.
    pub(in crate::run) fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let mut path = Vec::new();
        let kind = walk(&self.published, self.published.edges.generation(), query, &mut path, |_, _| {});
        let generation = self.published.edges.generation();
        let mut branches = Branches::default();
        if kind == Ok(PathKind::Branching) {
            let followed = branches.follow(&self.published, generation, query, &path);
            debug_assert_eq!(followed, Ok(()), "only the writer changes anything");
        }
        let along = |found: &RankMatch| match self.ranks.slot(found.rank) {
            Some(slot) if self.holds_branch(slot, &branches) => {
                self.tiers_of_branches(&path, &branches, slot, found.longest())
            }
            Some(slot) => self.tiers_along(&path, slot, found.longest()),
            None => PerTier::default(),
        };
        found.iter().map(|found| tiers::in_device(found).unwrap_or_else(|| along(found))).collect()
    }

    fn holds_branch(&self, slot: RankSlot, branches: &Branches) -> bool {
        branches.runs().iter().any(|branch| self.coverage_end(branch.step.run, slot) > 0)
    }

    /// The same for a rank that holds some of the blocks under several sequence hashes: the fastest copy of each
    /// block counts.
    fn tiers_of_branches(&self, path: &[Step], branches: &Branches, slot: RankSlot, longest: u32) -> PerTier<u32> {
        let mut fastest: Vec<Option<Tier>> = vec![None; longest as usize];
        let mut on_path = 0;
        for step in path {
            if step.base == on_path {
                on_path += self.record_fastest(slot, step, &mut fastest);
            }
        }
        let mut depths: Vec<u32> = Vec::with_capacity(branches.runs().len());
        for Branch { step, above } in branches.runs() {
            let depth_above = above.map_or(on_path, |above| depths[above as usize]);
            let is_complete = depth_above >= step.base;
            depths.push(if is_complete { step.base + self.record_fastest(slot, step, &mut fastest) } else { 0 });
        }
        let mut sum = PerTier::<u32>::default();
        fastest.into_iter().map_while(|tier| tier).for_each(|tier| sum[tier] += 1);
        sum
    }

    /// Records the fastest tier of each block that the rank holds of a run from its start. Returns their number.
    fn record_fastest(&self, slot: RankSlot, step: &Step, fastest: &mut [Option<Tier>]) -> u32 {
        let coverage = self.coverage(step.run, slot);
        let held = u32::from(coverage.prefix_length(Tier::External)).min(step.matched);
        for (tier, blocks) in coverage.by_tier() {
            let blocks = u32::from(blocks.start)..u32::from(blocks.end).min(held);
            for block in blocks {
                if let Some(known) = fastest.get_mut((step.base + block) as usize) {
                    *known = Some(known.map_or(tier, |known| known.min(tier)));
                }
            }
        }
        held
    }

    fn tiers_along(&self, path: &[Step], slot: RankSlot, longest: u32) -> PerTier<u32> {
        let mut sum = PerTier::<u32>::default();
        for step in path.iter().take_while(|step| step.base < longest) {
            let wanted = step.matched.min(longest - step.base) as u16;
            let held = match self.exception(step.run, slot) {
                Some(coverage) => {
                    let held = coverage.prefix_length(Tier::External).min(wanted);
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
