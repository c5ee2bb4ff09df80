//! Copies of blocks whose events name their manager, for clears of one manager's blocks.

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
/// Copies of one block that a manager has at least if its count has reached the maximum. It stays there until the tier is
/// cleared.
const COPIES_MAX: u8 = u8::MAX;

/// Copies of a rank's blocks by manager: an engine names the manager of a block if it is not the engine itself.
///
/// An index counts the copies of a block in a tier without their managers. So an event that changes the copies of several
/// holders, or of one that it does not name, leaves in doubt whose copies are left. A clear of such a manager is uncertain.
///
/// Such blocks are rare, so each copy is counted by itself. A rank above a limit forgets the copies of all managers until
/// its whole cache is cleared.
#[derive(Debug, Default)]
pub(super) struct OwnedBlocks {
    owners: Vec<Box<str>>,
    blocks: KeyedMap<OwnedBlock, Holders>,
    /// Copies of all managers in `blocks`.
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

/// Copies of a block in one tier and group, of which a manager has had one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Holders {
    /// Copies of each manager, by its position among the rank's managers; in doubt, at most this many.
    managers: [u8; OWNERS_MAX],
    /// Copies of the engine itself, at least: it may have had others before a manager had one.
    engine: u8,
    /// Whether it is in doubt whose copies are left.
    is_doubtful: bool,
    /// Whether a manager has every copy, as a store says that is the complete state of the block.
    is_whole: bool,
}

/// Effects of a clear of one manager's blocks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClearedOwner {
    /// Removals of the manager's copies from an index.
    pub(super) removals: Vec<RankEvent>,
    /// Whether the manager may have further copies.
    pub(super) is_doubtful: bool,
}

impl OwnedBlocks {
    /// Records a copy of each block. A reused block has one already, and its manager may be another one than the event
    /// names.
    pub(super) fn stored(
        &mut self,
        owner: Option<&str>,
        (tier, origin): (Tier, Option<StoreOrigin>),
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        let is_reused = origin == Some(StoreOrigin::Reused);
        if let Some(owner) = owner.filter(|owner| !owner.is_empty()) {
            let Some(owner) = self.position_of(owner, blocks.len()) else { return };
            for &sequence in blocks {
                self.change(OwnedBlock { sequence, tier, group }, |holders| {
                    holders.is_whole = false;
                    match holders.managers[owner] {
                        0 if is_reused => (holders.managers[owner], holders.is_doubtful) = (1, true),
                        _ if is_reused => {}
                        _ => holders.add(owner),
                    }
                });
            }
        } else if !is_reused {
            self.change_known(tier, group, blocks, |holders| {
                holders.is_whole = false;
                holders.engine = holders.engine.saturating_add(1);
            });
        }
    }

    /// Records the complete state of blocks in a tier: no other than `owner`, or the engine itself, has copies there.
    pub(super) fn stored_as_state(
        &mut self,
        owner: Option<&str>,
        tier: Tier,
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        self.removed(None, (tier, RemovedCopies::All), group, blocks);
        let Some(owner) = owner.filter(|owner| !owner.is_empty()) else { return };
        let Some(owner) = self.position_of(owner, blocks.len()) else { return };
        for &sequence in blocks {
            self.change(OwnedBlock { sequence, tier, group }, |holders| {
                holders.managers[owner] = 1;
                holders.is_whole = true;
            });
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
        let owner = owner.filter(|owner| !owner.is_empty());
        let position = owner.and_then(|owner| self.owners.iter().position(|known| **known == *owner));
        if let (RemovedCopies::AllBut(left), Some(owner)) = (copies, owner) {
            // They may be copies of the manager that were not published.
            let Some(owner) = self.position_of(owner, blocks.len()) else { return };
            for &sequence in blocks {
                self.change(OwnedBlock { sequence, tier, group }, |holders| holders.leave(left, Some(owner)));
            }
            return self.enforce_limit();
        }
        self.change_known(tier, group, blocks, |holders| match (copies, owner) {
            (RemovedCopies::All, _) => *holders = Holders::default(),
            (RemovedCopies::AllBut(left), _) => holders.leave(left, None),
            (RemovedCopies::One, _) if holders.is_whole => *holders = Holders::default(),
            (RemovedCopies::One, None) if holders.engine > 0 => holders.engine -= u8::from(holders.engine < COPIES_MAX),
            (RemovedCopies::One, _) => match position.map(|owner| &mut holders.managers[owner]) {
                Some(held @ 1..) => *held -= u8::from(*held < COPIES_MAX),
                // Of a copy that was not published, or whose manager is another one than a store named.
                _ => holders.is_doubtful = true,
            },
        });
        self.enforce_limit();
    }

    /// Records that one copy of each block, of any manager, was moved between tiers.
    pub(super) fn transferred(
        &mut self,
        (from, to): (Tier, Tier),
        copies: RemovedCopies,
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        for &sequence in blocks {
            let Some(before) = self.blocks.get(&OwnedBlock { sequence, tier: from, group }).copied() else { continue };
            self.change(OwnedBlock { sequence, tier: to, group }, |holders| {
                let may_hold = |at: &usize| before.managers[*at] > 0;
                (0..OWNERS_MAX).filter(may_hold).for_each(|owner| holders.add(owner));
                holders.is_doubtful = true;
            });
            self.change(OwnedBlock { sequence, tier: from, group }, |holders| match copies {
                RemovedCopies::All => *holders = Holders::default(),
                RemovedCopies::One | RemovedCopies::AllBut(_) => holders.is_doubtful = true,
            });
        }
        self.enforce_limit();
    }

    /// Removes the blocks of a scope, of every manager.
    pub(super) fn clear(&mut self, scope: ClearScope) {
        self.blocks.retain(|block, _| !block.is_in(scope));
        self.copies = self.blocks.values().map(Holders::copies).sum();
        self.free_empty_table();
    }

    /// Bytes that the table of the copies takes.
    pub(super) fn bytes(&self) -> usize {
        // A table is at most seven eighths full, and has a byte beside each entry.
        self.blocks.capacity() * 8 / 7 * (size_of::<(OwnedBlock, Holders)>() + 1)
    }

    /// Whether the managers of the rank's copies are known.
    pub(super) const fn is_complete(&self) -> bool {
        !self.is_incomplete
    }

    /// Frees a table without entries, which would keep its size.
    fn free_empty_table(&mut self) {
        if self.blocks.is_empty() {
            self.blocks = KeyedMap::default();
        }
    }

    /// Removes one manager's blocks of a scope. None if they are not known.
    pub(super) fn clear_owner(&mut self, owner: &str, scope: ClearScope) -> Option<ClearedOwner> {
        if self.is_incomplete {
            return None;
        }
        let (mut is_doubtful, mut cleared) = (false, KeyedMap::<_, Vec<SequenceHash>>::default());
        let known = self.owners.iter().position(|known| **known == *owner);
        for (&OwnedBlock { sequence, tier, group }, holders) in
            self.blocks.iter_mut().filter(|(block, _)| block.is_in(scope))
        {
            let Some(copies @ 1..) = known.map(|owner| std::mem::take(&mut holders.managers[owner])) else { continue };
            self.copies -= usize::from(copies);
            is_doubtful |= holders.is_doubtful;
            let removed = match (holders.is_doubtful, holders.is_whole) {
                (true, _) => continue,
                (false, true) => RemovedCopies::All,
                (false, false) => RemovedCopies::One,
            };
            // An index removes one copy at a time. A manager has nearly always one.
            for copy in 0..copies {
                cleared.entry((tier, group, removed == RemovedCopies::All, copy)).or_default().push(sequence);
            }
        }
        self.blocks.retain(|_, holders| holders.copies() > 0);
        self.free_empty_table();
        let removals = cleared.into_iter().map(|((tier, group, is_whole, _), blocks)| {
            let copies = if is_whole { RemovedCopies::All } else { RemovedCopies::One };
            removal((tier, copies), group, blocks)
        });
        Some(ClearedOwner { removals: removals.collect(), is_doubtful })
    }

    /// Records that the rank's earlier copies are unknown.
    pub(super) fn forget(&mut self) {
        *self = Self { is_incomplete: true, ..Self::default() };
    }

    fn enforce_limit(&mut self) {
        if self.copies > OWNED_COPIES_MAX {
            self.forget();
        }
    }

    /// The position of a manager that gains copies of this many blocks. None if the copies of managers are unknown: they
    /// may exceed a limit.
    fn position_of(&mut self, owner: &str, blocks: usize) -> Option<usize> {
        if self.is_incomplete {
            return None;
        }
        let known = self.owners.iter().position(|known| **known == *owner);
        if self.copies + blocks > OWNED_COPIES_MAX
            || owner.len() > OWNER_BYTES_MAX
            || (known.is_none() && self.owners.len() >= OWNERS_MAX)
        {
            self.forget();
            return None;
        }
        Some(known.unwrap_or_else(|| {
            self.owners.push(owner.into());
            self.owners.len() - 1
        }))
    }

    /// Changes the holders of the blocks of which a manager has had a copy.
    fn change_known(
        &mut self,
        tier: Tier,
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
        change: impl Fn(&mut Holders),
    ) {
        if self.blocks.is_empty() {
            return;
        }
        for &sequence in blocks {
            let block = OwnedBlock { sequence, tier, group };
            if self.blocks.contains_key(&block) {
                self.change(block, &change);
            }
        }
    }

    /// Changes the holders of a block, and drops a block that no manager holds any more.
    fn change(&mut self, block: OwnedBlock, change: impl FnOnce(&mut Holders)) {
        let holders = self.blocks.entry(block).or_default();
        let before = holders.copies();
        change(holders);
        let after = holders.copies();
        self.copies = self.copies + after - before;
        if after == 0 {
            self.blocks.remove(&block);
        }
    }
}

impl Holders {
    /// Copies of all managers.
    fn copies(&self) -> usize {
        self.managers.iter().map(|&copies| usize::from(copies)).sum()
    }

    fn add(&mut self, owner: usize) {
        self.managers[owner] = self.managers[owner].saturating_add(1);
        self.is_doubtful |= self.managers[owner] == COPIES_MAX;
    }

    /// Records that this many copies are left, of any holder.
    fn leave(&mut self, left: u32, named: Option<usize>) {
        let left = u8::try_from(left).unwrap_or(COPIES_MAX);
        for (at, held) in self.managers.iter_mut().enumerate() {
            if *held > 0 || named == Some(at) {
                *held = left;
            }
        }
        (self.is_doubtful, self.is_whole) = (true, false);
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

fn removal(
    (tier, copies): (Tier, RemovedCopies),
    group: Option<SecondaryGroup>,
    blocks: Vec<SequenceHash>,
) -> RankEvent {
    match group {
        None => RankEvent::Primary(BlockEvent::Removed { tier, blocks, copies }),
        Some(group) => RankEvent::Secondary(GroupChange { group, event: GroupEvent::Removed { tier, blocks, copies } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ClearScope = ClearScope { tier: None, groups: ClearedGroups::All };
    const ONE: (Tier, RemovedCopies) = (Tier::Host, RemovedCopies::One);

    fn blocks(count: u64) -> Vec<SequenceHash> {
        (0..count).map(SequenceHash).collect()
    }

    /// A store of copies in host memory.
    fn store(owned: &mut OwnedBlocks, owner: Option<&str>, count: u64) {
        owned.stored(owner, (Tier::Host, None), None, &blocks(count));
    }

    /// Copies that a clear of a manager removes, and whether it may have others.
    fn cleared(owned: &mut OwnedBlocks, owner: &str) -> Option<(usize, bool)> {
        let ClearedOwner { removals, is_doubtful } = owned.clear_owner(owner, ALL)?;
        let removed = removals.iter().map(|removal| match removal {
            RankEvent::Primary(BlockEvent::Removed { tier: Tier::Host, blocks, .. }) => blocks.len(),
            other => panic!("{other:?}"),
        });
        Some((removed.sum(), is_doubtful))
    }

    #[test]
    fn a_manager_has_the_copies_that_its_events_left() {
        let mut owned = OwnedBlocks::default();
        (0..2).for_each(|_| store(&mut owned, Some("a"), 3));
        store(&mut owned, Some("b"), 3);
        store(&mut owned, None, 3);
        owned.removed(Some("a"), ONE, None, &blocks(1));
        owned.removed(None, ONE, None, &blocks(3));
        let disk = ClearScope { tier: Some(Tier::Disk), ..ALL };
        let nothing = ClearedOwner { removals: Vec::new(), is_doubtful: false };
        assert_eq!(owned.clear_owner("a", disk), Some(nothing));
        assert_eq!(cleared(&mut owned, "a"), Some((1 + 2 + 2, false)));
        owned.removed(None, (Tier::Host, RemovedCopies::All), None, &blocks(2));
        assert_eq!(cleared(&mut owned, "b"), Some((1, false)), "one block is left");
        assert_eq!((owned.copies, owned.blocks.len()), (0, 0));
    }

    /// A clear of manager `a` after a change of block 0, of which it has one copy and block 1 too.
    fn cleared_after(change: impl FnOnce(&mut OwnedBlocks)) -> Option<(usize, bool)> {
        let mut owned = OwnedBlocks::default();
        store(&mut owned, Some("a"), 2);
        change(&mut owned);
        let cleared = cleared(&mut owned, "a");
        assert_eq!(owned.copies, owned.blocks.values().map(Holders::copies).sum::<usize>());
        cleared
    }

    #[test]
    fn copies_whose_manager_is_in_doubt_make_a_clear_uncertain() {
        let uncertain = Some((1, true));
        let left = |left| (Tier::Host, RemovedCopies::AllBut(left));
        assert_eq!(cleared_after(|_| {}), Some((2, false)));
        // The engine itself or another manager has had no copy that an event ended.
        for owner in [None, Some(""), Some("b")] {
            assert_eq!(cleared_after(|owned| owned.removed(owner, ONE, None, &blocks(1))), uncertain, "{owner:?}");
        }
        for owner in [None, Some("a"), Some("b")] {
            assert_eq!(cleared_after(|owned| owned.removed(owner, left(1), None, &blocks(1))), uncertain, "{owner:?}");
        }
        assert_eq!(cleared_after(|owned| owned.removed(Some("a"), left(u32::MAX), None, &blocks(1))), uncertain);
        let reused = (Tier::Host, Some(StoreOrigin::Reused));
        assert_eq!(cleared_after(|owned| owned.stored(Some("b"), reused, None, &blocks(1))), uncertain);
        assert_eq!(cleared_after(|owned| owned.stored(Some("a"), reused, None, &blocks(1))), Some((2, false)));
        for tiers in [(Tier::Host, Tier::Disk), (Tier::Host, Tier::Device)] {
            let transfer = |owned: &mut OwnedBlocks| owned.transferred(tiers, RemovedCopies::One, None, &blocks(1));
            assert_eq!(cleared_after(transfer), uncertain);
        }
        // A doubt ends with the last copy.
        let ended = |owned: &mut OwnedBlocks| {
            owned.removed(None, left(1), None, &blocks(1));
            owned.removed(Some("a"), ONE, None, &blocks(1));
        };
        assert_eq!(cleared_after(ended), Some((1, false)));
    }

    #[test]
    fn a_copy_of_a_manager_that_was_never_published_is_in_doubt() {
        let mut owned = OwnedBlocks::default();
        owned.removed(Some("a"), (Tier::Host, RemovedCopies::AllBut(2)), None, &blocks(1));
        assert_eq!(cleared(&mut owned, "a"), Some((0, true)));
        owned.stored(Some("b"), (Tier::Host, Some(StoreOrigin::Reused)), None, &blocks(1));
        assert_eq!(cleared(&mut owned, "b"), Some((0, true)));
    }

    #[test]
    fn the_manager_of_a_complete_state_has_every_copy() {
        let mut owned = OwnedBlocks::default();
        store(&mut owned, Some("a"), 2);
        owned.stored_as_state(Some("b"), Tier::Host, None, &blocks(1));
        assert_eq!(cleared(&mut owned, "a"), Some((1, false)));
        let removals = owned.clear_owner("b", ALL).expect("known").removals;
        assert_eq!(removals, [removal((Tier::Host, RemovedCopies::All), None, blocks(1))]);
    }

    #[test]
    fn the_bytes_of_a_table_end_with_its_copies() {
        let mut owned = OwnedBlocks::default();
        assert_eq!(owned.bytes(), 0);
        store(&mut owned, Some("a"), OWNED_COPIES_MAX as u64);
        let bytes = OWNED_COPIES_MAX * size_of::<(OwnedBlock, Holders)>()..=OWNED_COPIES_MAX * 100;
        assert!(bytes.contains(&owned.bytes()), "{} bytes", owned.bytes());
        let ends: [fn(&mut OwnedBlocks); 3] =
            [|owned| owned.clear(ALL), |owned| drop(owned.clear_owner("a", ALL)), OwnedBlocks::forget];
        for end in ends {
            let mut owned = OwnedBlocks::default();
            store(&mut owned, Some("a"), 1_000);
            end(&mut owned);
            assert_eq!(owned.bytes(), 0);
        }
    }

    #[test]
    fn managers_above_a_limit_are_unknown_until_the_cache_is_cleared() {
        let name = "n".repeat(OWNER_BYTES_MAX + 1);
        let mut owned = OwnedBlocks::default();
        store(&mut owned, Some(&name), 1);
        assert_eq!(cleared(&mut owned, "a"), None);

        let mut owned = OwnedBlocks::default();
        for owner in 0..OWNERS_MAX {
            store(&mut owned, Some(&owner.to_string()), 1);
        }
        assert!(cleared(&mut owned, "0").is_some());
        store(&mut owned, Some("another"), 1);
        assert_eq!(cleared(&mut owned, "1"), None);

        let mut owned = OwnedBlocks::default();
        (0..4).for_each(|_| store(&mut owned, Some("a"), OWNED_COPIES_MAX as u64 / 4));
        assert!(!owned.is_incomplete);
        store(&mut owned, Some("a"), 1);
        assert_eq!(cleared(&mut owned, "a"), None, "copies of one block count each");
    }
}
