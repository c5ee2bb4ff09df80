//! Copies of blocks whose events name their manager, for clears of one manager's blocks.

use std::collections::BTreeMap;

use flash_indexer_core::groups::{ClearScope, ClearedGroups, GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{BlockEvent, RemovedCopies, SequenceHash, Tier};

use crate::event::StoreOrigin;

/// Limit of the managers that a rank names.
const OWNERS_MAX: usize = 8;
/// Limit of the copies of all managers of a rank, in all tiers and groups. One clear removes all of them.
const OWNED_COPIES_MAX: usize = 1 << 16;
/// Longest name of a manager, in bytes.
const OWNER_BYTES_MAX: usize = 256;

/// Blocks of one rank by manager: an engine names the manager of a block if it is not the engine itself.
///
/// Such blocks are rare, so each copy is counted by itself. A rank above a limit forgets the copies of all managers until
/// its whole cache is cleared.
#[derive(Debug, Default)]
pub(super) struct OwnedBlocks {
    by_owner: BTreeMap<Box<str>, KeyedMap<OwnedBlock, u32>>,
    copies: usize,
    /// Whether copies may be missing: a limit was reached, or the rank's state was imported without them.
    is_incomplete: bool,
}

/// A block in one tier and group; the primary group has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OwnedBlock {
    sequence: SequenceHash,
    tier: Tier,
    group: Option<SecondaryGroup>,
}

impl OwnedBlocks {
    /// Records a copy of each block. A reused block has one already, if its store was published.
    pub(super) fn stored(
        &mut self,
        owner: Option<&str>,
        (tier, origin): (Tier, Option<StoreOrigin>),
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        let Some(owner) = owner.filter(|owner| !owner.is_empty() && !self.is_incomplete) else { return };
        let is_new = !self.by_owner.contains_key(owner);
        if self.copies + blocks.len() > OWNED_COPIES_MAX
            || owner.len() > OWNER_BYTES_MAX
            || (is_new && self.by_owner.len() >= OWNERS_MAX)
        {
            return self.forget();
        }
        let owned = self.by_owner.entry(owner.into()).or_default();
        for &sequence in blocks {
            let copies = owned.entry(OwnedBlock { sequence, tier, group }).or_default();
            if origin != Some(StoreOrigin::Reused) || *copies == 0 {
                *copies += 1;
                self.copies += 1;
            }
        }
    }

    /// Records a removal of blocks. A removal of all copies includes those of every manager.
    pub(super) fn removed(
        &mut self,
        owner: Option<&str>,
        (tier, copies): (Tier, RemovedCopies),
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        for (name, owned) in &mut self.by_owner {
            if copies != RemovedCopies::All && owner != Some(name) {
                continue;
            }
            for &sequence in blocks {
                let block = OwnedBlock { sequence, tier, group };
                let Some(held) = owned.get_mut(&block) else { continue };
                let left = copies.left(*held).min(*held);
                self.copies -= (*held - left) as usize;
                *held = left;
                if left == 0 {
                    owned.remove(&block);
                }
            }
        }
    }

    /// Removes the blocks of a scope, of every manager.
    pub(super) fn clear(&mut self, scope: ClearScope) {
        for owned in self.by_owner.values_mut() {
            owned.retain(|block, _| !block.is_in(scope));
        }
        self.copies = self.by_owner.values().flat_map(KeyedMap::values).map(|&copies| copies as usize).sum();
    }

    /// Removes one manager's blocks of a scope, and returns the removals of their copies from an index. None if they are
    /// not known.
    pub(super) fn clear_owner(&mut self, owner: &str, scope: ClearScope) -> Option<Vec<RankEvent>> {
        if self.is_incomplete {
            return None;
        }
        let Some(owned) = self.by_owner.get_mut(owner) else { return Some(Vec::new()) };
        let cleared = owned.extract_if(|block, _| block.is_in(scope));
        let mut removals: KeyedMap<(Tier, Option<SecondaryGroup>, u32), Vec<SequenceHash>> = KeyedMap::default();
        for (OwnedBlock { sequence, tier, group }, copies) in cleared {
            // An index removes one copy at a time. A manager has nearly always one.
            for copy in 0..copies {
                removals.entry((tier, group, copy)).or_default().push(sequence);
            }
            self.copies -= copies as usize;
        }
        let removals = removals.into_iter().map(|((tier, group, _), blocks)| removal(tier, group, blocks));
        Some(removals.collect())
    }

    /// Records that the rank's earlier copies are unknown.
    pub(super) fn forget(&mut self) {
        *self = Self { is_incomplete: true, ..Self::default() };
    }
}

impl OwnedBlock {
    fn is_in(&self, scope: ClearScope) -> bool {
        let is_in_group = match (scope.groups, self.group) {
            (ClearedGroups::All, _) | (ClearedGroups::Primary, None) => true,
            (ClearedGroups::Secondary(cleared), Some(group)) => cleared == group.id,
            (ClearedGroups::Primary, Some(_)) | (ClearedGroups::Secondary(_), None) => false,
        };
        is_in_group && scope.tier.is_none_or(|cleared| cleared == self.tier)
    }
}

fn removal(tier: Tier, group: Option<SecondaryGroup>, blocks: Vec<SequenceHash>) -> RankEvent {
    let copies = RemovedCopies::One;
    match group {
        None => RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies }),
        Some(group) => RankEvent::Secondary(GroupChange { group, event: GroupEvent::Removed { tier, blocks, copies } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ClearScope = ClearScope { tier: None, groups: ClearedGroups::All };

    fn blocks(count: u64) -> Vec<SequenceHash> {
        (0..count).map(SequenceHash).collect()
    }

    #[test]
    fn a_manager_has_the_copies_that_its_events_left() {
        let mut owned = OwnedBlocks::default();
        let one = (Tier::Host, RemovedCopies::One);
        for _ in 0..2 {
            owned.stored(Some("a"), (Tier::Host, None), None, &blocks(3));
        }
        owned.stored(Some("b"), (Tier::Host, None), None, &blocks(3));
        owned.stored(None, (Tier::Host, None), None, &blocks(3));
        owned.removed(Some("a"), one, None, &blocks(1));
        owned.removed(None, one, None, &blocks(3));
        owned.removed(Some("c"), one, None, &blocks(3));
        let disk = ClearScope { tier: Some(Tier::Disk), ..ALL };
        assert_eq!(owned.clear_owner("a", disk), Some(Vec::new()));
        let removals = owned.clear_owner("a", ALL).expect("known");
        let removed = removals.iter().map(|removal| match removal {
            RankEvent::Primary(BlockEvent::Removed { tier: Tier::Host, blocks, copies: RemovedCopies::One }) => {
                blocks.len()
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(removed.sum::<usize>(), 1 + 2 + 2);
        owned.removed(None, (Tier::Host, RemovedCopies::All), None, &blocks(2));
        assert_eq!(owned.clear_owner("b", ALL).map(|removals| removals.len()), Some(1), "one block is left");
        assert_eq!(owned.copies, 0);
    }

    #[test]
    fn managers_above_a_limit_are_unknown_until_the_cache_is_cleared() {
        let name = "n".repeat(OWNER_BYTES_MAX + 1);
        let mut owned = OwnedBlocks::default();
        owned.stored(Some(&name), (Tier::Host, None), None, &blocks(1));
        assert_eq!(owned.clear_owner("a", ALL), None);

        let mut owned = OwnedBlocks::default();
        for owner in 0..OWNERS_MAX {
            owned.stored(Some(&owner.to_string()), (Tier::Host, None), None, &blocks(1));
        }
        assert!(owned.clear_owner("0", ALL).is_some());
        owned.stored(Some("another"), (Tier::Host, None), None, &blocks(1));
        assert_eq!(owned.clear_owner("1", ALL), None);

        let mut owned = OwnedBlocks::default();
        for _ in 0..4 {
            owned.stored(Some("a"), (Tier::Host, None), None, &blocks(OWNED_COPIES_MAX as u64 / 4));
        }
        assert!(!owned.is_incomplete);
        owned.stored(Some("a"), (Tier::Host, Some(StoreOrigin::New)), None, &blocks(1));
        assert_eq!(owned.clear_owner("a", ALL), None, "copies of one block count each");
    }
}
