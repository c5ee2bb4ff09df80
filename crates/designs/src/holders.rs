//! The ranks that hold one block, tier by tier.

use flash_indexer_core::Tier;
use flash_indexer_core::rank_blocks::Tiers;

use super::rank_set::RankSet;

/// The ranks that have named a block of one prefix, and the tiers in which they hold it.
///
/// Most blocks are in device memory only, so the set of that tier is inline. The other sets are allocated when the first rank
/// needs one.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders {
    device: RankSet,
    others: Option<Box<OtherTiers>>,
}

#[derive(Debug, Clone, Default)]
struct OtherTiers {
    /// The tiers slower than device memory, fastest first.
    slower: [RankSet; Tier::ALL.len() - 1],
    /// Ranks that hold the block in no tier and keep its name, because they hold blocks after it.
    removed: RankSet,
}

impl OtherTiers {
    fn sets(&self) -> impl Iterator<Item = &RankSet> {
        self.slower.iter().chain([&self.removed])
    }
}

impl Holders {
    /// Whether the rank has a name for the block.
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.device.contains(slot)
            || self.others.as_ref().is_some_and(|others| others.sets().any(|set| set.contains(slot)))
    }

    /// Whether no rank has a name for the block.
    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty() && self.others.is_none()
    }

    /// The tiers in which the rank holds the block.
    pub(super) fn tiers_of(&self, slot: u32) -> Tiers {
        Tier::ALL.into_iter().filter(|&tier| self.ranks_in(tier).is_some_and(|set| set.contains(slot))).collect()
    }

    /// The ranks that hold the block in `tier`; none if the set is not allocated.
    pub(super) fn ranks_in(&self, tier: Tier) -> Option<&RankSet> {
        match tier as usize {
            0 => Some(&self.device),
            slower => self.others.as_ref().map(|others| &others.slower[slower - 1]),
        }
    }

    /// Whether every holder holds the block in device memory only.
    pub(super) fn is_device_only(&self) -> bool {
        self.others.is_none()
    }

    /// Adds a rank that holds the block in `tiers`, at least one.
    pub(super) fn join(&mut self, slot: u32, tiers: Tiers) {
        tiers.iter().for_each(|tier| self.set_mut(tier).insert(slot));
    }

    /// Adds a tier to a rank that has a name for the block.
    pub(super) fn hold(&mut self, slot: u32, tier: Tier) {
        self.set_mut(tier).insert(slot);
        if let Some(others) = &mut self.others {
            others.removed.remove(slot);
        }
        self.drop_unused();
    }

    /// Removes a tier from a rank. The rank keeps its name for the block.
    pub(super) fn release(&mut self, slot: u32, tier: Tier) {
        self.remove_tier(slot, tier);
        if self.tiers_of(slot) == Tiers::default() {
            self.others.get_or_insert_default().removed.insert(slot);
        }
    }

    /// Removes a tier from a rank. The rank loses its name for the block with its last tier.
    pub(super) fn remove_tier(&mut self, slot: u32, tier: Tier) {
        self.set_mut(tier).remove(slot);
        self.drop_unused();
    }

    /// Removes a rank and its name for the block.
    pub(super) fn leave(&mut self, slot: u32) {
        self.device.remove(slot);
        if let Some(others) = &mut self.others {
            others.slower.iter_mut().chain([&mut others.removed]).for_each(|set| set.remove(slot));
        }
        self.drop_unused();
    }

    fn set_mut(&mut self, tier: Tier) -> &mut RankSet {
        match tier as usize {
            0 => &mut self.device,
            slower => &mut self.others.get_or_insert_default().slower[slower - 1],
        }
    }

    fn drop_unused(&mut self) {
        if self.others.as_ref().is_some_and(|others| others.sets().all(RankSet::is_empty)) {
            self.others = None;
        }
    }
}
