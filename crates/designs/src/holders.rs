//! Which ranks hold one block, tier by tier.

use flash_indexer_core::Tier;
use flash_indexer_core::naming::Tiers;

use super::rank_set::RankSet;

/// The ranks that have a name for one place, and the tiers in which they hold the block.
///
/// Most blocks lie in device memory alone, so that set is inline and the others are made when the
/// first rank needs them.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders {
    device: RankSet,
    others: Option<Box<Others>>,
}

#[derive(Debug, Clone, Default)]
struct Others {
    /// Tiers behind the device, fastest first.
    slower: [RankSet; Tier::ALL.len() - 1],
    /// Ranks that hold the block nowhere any more and have blocks after it.
    kept: RankSet,
}

impl Others {
    fn sets(&self) -> impl Iterator<Item = &RankSet> {
        self.slower.iter().chain([&self.kept])
    }
}

impl Holders {
    /// Whether the rank has a name for the place.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.device.contains(slot)
            || self.others.as_ref().is_some_and(|others| others.sets().any(|set| set.contains(slot)))
    }

    /// Whether no rank has a name for the place.
    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty() && self.others.is_none()
    }

    /// Where the rank holds the block.
    pub(super) fn tiers_of(&self, slot: u32) -> Tiers {
        Tier::ALL.into_iter().filter(|&tier| self.held_in(tier).is_some_and(|set| set.contains(slot))).collect()
    }

    /// The ranks that hold the block in `tier`, if there was need for a set.
    pub(super) fn held_in(&self, tier: Tier) -> Option<&RankSet> {
        match tier as usize {
            0 => Some(&self.device),
            slower => self.others.as_ref().map(|others| &others.slower[slower - 1]),
        }
    }

    /// Whether every holder holds it in device memory.
    pub(super) fn is_device_only(&self) -> bool {
        self.others.is_none()
    }

    /// Adds a rank that holds the block in `tiers`, which are not none.
    pub(super) fn join(&mut self, slot: u32, tiers: Tiers) {
        tiers.iter().for_each(|tier| self.set_mut(tier).insert(slot));
    }

    /// The rank, which has a name for the place, now holds the block in `tier`.
    pub(super) fn hold(&mut self, slot: u32, tier: Tier) {
        self.set_mut(tier).insert(slot);
        if let Some(others) = &mut self.others {
            others.kept.remove(slot);
        }
        self.drop_unused();
    }

    /// The rank no longer holds the block in `tier`, but keeps its name for the place.
    pub(super) fn release(&mut self, slot: u32, tier: Tier) {
        self.withdraw(slot, tier);
        if self.tiers_of(slot) == Tiers::default() {
            self.others.get_or_insert_default().kept.insert(slot);
        }
    }

    /// The rank no longer holds the block in `tier`, and has no name for it unless in another tier.
    pub(super) fn withdraw(&mut self, slot: u32, tier: Tier) {
        self.set_mut(tier).remove(slot);
        self.drop_unused();
    }

    /// The rank has no name for the place any more.
    pub(super) fn leave(&mut self, slot: u32) {
        self.device.remove(slot);
        if let Some(others) = &mut self.others {
            others.slower.iter_mut().chain([&mut others.kept]).for_each(|set| set.remove(slot));
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
