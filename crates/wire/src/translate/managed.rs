//! Copies of blocks whose events name their manager, for clears of one manager's blocks.

use flash_indexer_core::groups::{ClearScope, ClearedGroups, GroupChange, GroupEvent, RankEvent, SecondaryGroup};
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{BlockEvent, RemovedCopies, SequenceHash, Tier};

use crate::event::StoreOrigin;

/// Limit of the managers that a rank names.
const MANAGERS_MAX: usize = 8;
/// Limit of the copies of all managers of a rank, in all tiers and groups. One clear removes all of them.
const MANAGED_COPIES_MAX: usize = 1 << 16;
/// Longest name of a manager, in bytes.
const MANAGER_BYTES_MAX: usize = 256;
/// Largest count of a manager's copies of one block. The manager may then have more copies, and the count stays there until
/// the tier is cleared.
const COPIES_MAX: u8 = u8::MAX;

/// Copies of a rank's blocks by manager: an engine names a block's manager if that is not the engine itself.
///
/// An index counts the copies of a block in a tier without their managers. An event that changes the copies of several holders, or
/// of an unnamed holder, makes the holders of the remaining copies doubtful. A clear of such a manager is uncertain.
///
/// Such blocks are rare, so each copy is counted by itself. A rank above a limit forgets the copies of all managers until
/// its whole cache is cleared.
#[derive(Debug, Default)]
pub(super) struct ManagedBlocks {
    managers: Vec<Box<str>>,
    blocks: KeyedMap<ManagedBlock, Holders>,
    /// Copies of all managers in `blocks`.
    copies: usize,
    /// Whether copies may be missing: a limit was reached, or the rank's state was imported without them.
    is_incomplete: bool,
}

/// A block in one tier and group; the primary group has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ManagedBlock {
    sequence: SequenceHash,
    tier: Tier,
    group: Option<SecondaryGroup>,
}

/// Copies of a block in one tier and group, if a manager has had one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Holders {
    /// Copies of each manager, by its position among the rank's managers; in doubt, at most this many.
    managers: [u8; MANAGERS_MAX],
    /// Copies of the engine itself, at least: it may have had others before a manager had one.
    engine: u8,
    /// Whether the holders of the remaining copies are in doubt.
    is_doubtful: bool,
    /// Whether a manager has every copy, according to a store that is the complete state of the block.
    is_whole: bool,
}

/// Effects of a clear of one manager's blocks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClearedManager {
    /// Removals of the manager's copies from an index.
    pub(super) removals: Vec<RankEvent>,
    /// Whether the manager may have further copies.
    pub(super) is_doubtful: bool,
}

impl ManagedBlocks {
    /// Records a copy of each block. A reused block has one already, and its manager may differ from the one that the event
    /// names.
    pub(super) fn stored(
        &mut self,
        manager: Option<&str>,
        (tier, origin): (Tier, Option<StoreOrigin>),
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        let is_reused = origin == Some(StoreOrigin::Reused);
        if let Some(manager) = manager.filter(|manager| !manager.is_empty()) {
            let Some(manager) = self.position_of(manager, blocks.len()) else { return };
            for &sequence in blocks {
                self.change(ManagedBlock { sequence, tier, group }, |holders| {
                    holders.is_whole = false;
                    match holders.managers[manager] {
                        0 if is_reused => (holders.managers[manager], holders.is_doubtful) = (1, true),
                        _ if is_reused => {}
                        _ => holders.add(manager),
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

    /// Records the complete state of blocks in a tier: only `manager`, or the engine itself, has copies there.
    pub(super) fn stored_as_state(
        &mut self,
        manager: Option<&str>,
        tier: Tier,
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        self.removed(None, (tier, RemovedCopies::All), group, blocks);
        let Some(manager) = manager.filter(|manager| !manager.is_empty()) else { return };
        let Some(manager) = self.position_of(manager, blocks.len()) else { return };
        for &sequence in blocks {
            self.change(ManagedBlock { sequence, tier, group }, |holders| {
                holders.managers[manager] = 1;
                holders.is_whole = true;
            });
        }
    }

    /// Records a removal of blocks. A removal of all copies includes those of every manager.
    pub(super) fn removed(
        &mut self,
        manager: Option<&str>,
        (tier, copies): (Tier, RemovedCopies),
        group: Option<SecondaryGroup>,
        blocks: &[SequenceHash],
    ) {
        let manager = manager.filter(|manager| !manager.is_empty());
        let position = manager.and_then(|manager| self.managers.iter().position(|known| **known == *manager));
        if let (RemovedCopies::AllBut(left), Some(manager)) = (copies, manager) {
            // They may be copies of the manager that were not published.
            let Some(manager) = self.position_of(manager, blocks.len()) else { return };
            for &sequence in blocks {
                self.change(ManagedBlock { sequence, tier, group }, |holders| holders.leave(left, Some(manager)));
            }
            return self.enforce_limit();
        }
        self.change_known(tier, group, blocks, |holders| match (copies, manager) {
            (RemovedCopies::All, _) => *holders = Holders::default(),
            (RemovedCopies::AllBut(left), _) => holders.leave(left, None),
            (RemovedCopies::One, _) if holders.is_whole => *holders = Holders::default(),
            (RemovedCopies::One, None) if holders.engine > 0 => holders.engine -= u8::from(holders.engine < COPIES_MAX),
            (RemovedCopies::One, _) => match position.map(|manager| &mut holders.managers[manager]) {
                Some(held @ 1..) => *held -= u8::from(*held < COPIES_MAX),
                // The copy was not published, or its manager differs from the one that a store named.
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
            let Some(before) = self.blocks.get(&ManagedBlock { sequence, tier: from, group }).copied() else {
                continue;
            };
            self.change(ManagedBlock { sequence, tier: to, group }, |holders| {
                let may_hold = |at: &usize| before.managers[*at] > 0;
                (0..MANAGERS_MAX).filter(may_hold).for_each(|manager| holders.add(manager));
                holders.is_doubtful = true;
            });
            self.change(ManagedBlock { sequence, tier: from, group }, |holders| match copies {
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

    /// Bytes of the table of the copies.
    pub(super) fn bytes(&self) -> usize {
        // A table is at most seven eighths full, and has one more byte for each entry.
        self.blocks.capacity() * 8 / 7 * (size_of::<(ManagedBlock, Holders)>() + 1)
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
    pub(super) fn clear_manager(&mut self, manager: &str, scope: ClearScope) -> Option<ClearedManager> {
        if self.is_incomplete {
            return None;
        }
        let (mut is_doubtful, mut cleared) = (false, KeyedMap::<_, Vec<SequenceHash>>::default());
        let known = self.managers.iter().position(|known| **known == *manager);
        for (&ManagedBlock { sequence, tier, group }, holders) in
            self.blocks.iter_mut().filter(|(block, _)| block.is_in(scope))
        {
            let Some(copies @ 1..) = known.map(|manager| std::mem::take(&mut holders.managers[manager])) else {
                continue;
            };
            self.copies -= usize::from(copies);
            if holders.is_doubtful {
                is_doubtful = true;
                continue;
            }
            // An index removes one copy at a time. A manager has nearly always one.
            for copy in 0..copies {
                cleared.entry((tier, group, holders.is_whole, copy)).or_default().push(sequence);
            }
        }
        self.blocks.retain(|_, holders| holders.copies() > 0);
        self.free_empty_table();
        let removals = cleared.into_iter().map(|((tier, group, is_whole, _), blocks)| {
            let copies = if is_whole { RemovedCopies::All } else { RemovedCopies::One };
            removal((tier, copies), group, blocks)
        });
        Some(ClearedManager { removals: removals.collect(), is_doubtful })
    }

    /// Records that the rank's earlier copies are unknown.
    pub(super) fn forget(&mut self) {
        *self = Self { is_incomplete: true, ..Self::default() };
    }

    fn enforce_limit(&mut self) {
        if self.copies > MANAGED_COPIES_MAX {
            self.forget();
        }
    }

    /// The position of a manager that gains copies of this many blocks. None if the copies of managers are unknown: they
    /// may exceed a limit.
    fn position_of(&mut self, manager: &str, blocks: usize) -> Option<usize> {
        if self.is_incomplete {
            return None;
        }
        let known = self.managers.iter().position(|known| **known == *manager);
        if self.copies + blocks > MANAGED_COPIES_MAX
            || manager.len() > MANAGER_BYTES_MAX
            || (known.is_none() && self.managers.len() >= MANAGERS_MAX)
        {
            self.forget();
            return None;
        }
        Some(known.unwrap_or_else(|| {
            self.managers.push(manager.into());
            self.managers.len() - 1
        }))
    }

    /// Changes the holders of those blocks that have had a copy of a manager.
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
            let block = ManagedBlock { sequence, tier, group };
            if self.blocks.contains_key(&block) {
                self.change(block, &change);
            }
        }
    }

    /// Changes the holders of a block, and drops a block that no manager holds any more.
    fn change(&mut self, block: ManagedBlock, change: impl FnOnce(&mut Holders)) {
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

    fn add(&mut self, manager: usize) {
        self.managers[manager] = self.managers[manager].saturating_add(1);
        self.is_doubtful |= self.managers[manager] == COPIES_MAX;
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

impl ManagedBlock {
    fn is_in(&self, scope: ClearScope) -> bool {
        let is_in_group = match (scope.groups, self.group) {
            (ClearedGroups::All, _) | (ClearedGroups::Primary, None) => true,
            (ClearedGroups::Secondary(cleared), Some(group)) => cleared == group.id,
            (ClearedGroups::Primary, Some(_)) | (ClearedGroups::Secondary(_), None) => false,
        };
        is_in_group && scope.tier.is_none_or(|cleared| cleared == self.tier)
    }
}

/// A removal of blocks from the primary group or a secondary one.
pub(super) fn removal(
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
    fn store(managed: &mut ManagedBlocks, manager: Option<&str>, count: u64) {
        managed.stored(manager, (Tier::Host, None), None, &blocks(count));
    }

    /// Copies that a clear of a manager removes, and whether it may have others.
    fn cleared(managed: &mut ManagedBlocks, manager: &str) -> Option<(usize, bool)> {
        let ClearedManager { removals, is_doubtful } = managed.clear_manager(manager, ALL)?;
        let removed = removals.iter().map(|removal| match removal {
            RankEvent::Primary(BlockEvent::Removed { tier: Tier::Host, blocks, .. }) => blocks.len(),
            other => panic!("{other:?}"),
        });
        Some((removed.sum(), is_doubtful))
    }

    #[test]
    fn a_manager_has_the_copies_that_its_events_left() {
        let mut managed = ManagedBlocks::default();
        (0..2).for_each(|_| store(&mut managed, Some("a"), 3));
        store(&mut managed, Some("b"), 3);
        store(&mut managed, None, 3);
        managed.removed(Some("a"), ONE, None, &blocks(1));
        managed.removed(None, ONE, None, &blocks(3));
        let disk = ClearScope { tier: Some(Tier::Disk), ..ALL };
        let nothing = ClearedManager { removals: Vec::new(), is_doubtful: false };
        assert_eq!(managed.clear_manager("a", disk), Some(nothing));
        assert_eq!(cleared(&mut managed, "a"), Some((1 + 2 + 2, false)));
        managed.removed(None, (Tier::Host, RemovedCopies::All), None, &blocks(2));
        assert_eq!(cleared(&mut managed, "b"), Some((1, false)), "one block is left");
        assert_eq!((managed.copies, managed.blocks.len()), (0, 0));
    }

    /// A clear of manager `a`, which has one copy of block 0 and of block 1, after a change of block 0.
    fn cleared_after(change: impl FnOnce(&mut ManagedBlocks)) -> Option<(usize, bool)> {
        let mut managed = ManagedBlocks::default();
        store(&mut managed, Some("a"), 2);
        change(&mut managed);
        let cleared = cleared(&mut managed, "a");
        assert_eq!(managed.copies, managed.blocks.values().map(Holders::copies).sum::<usize>());
        cleared
    }

    #[test]
    fn copies_whose_manager_is_in_doubt_make_a_clear_uncertain() {
        let uncertain = Some((1, true));
        let left = |left| (Tier::Host, RemovedCopies::AllBut(left));
        assert_eq!(cleared_after(|_| {}), Some((2, false)));
        // The engine itself or another manager has had no copy that an event ended.
        for manager in [None, Some(""), Some("b")] {
            assert_eq!(
                cleared_after(|managed| managed.removed(manager, ONE, None, &blocks(1))),
                uncertain,
                "{manager:?}"
            );
        }
        for manager in [None, Some("a"), Some("b")] {
            assert_eq!(
                cleared_after(|managed| managed.removed(manager, left(1), None, &blocks(1))),
                uncertain,
                "{manager:?}"
            );
        }
        assert_eq!(cleared_after(|managed| managed.removed(Some("a"), left(u32::MAX), None, &blocks(1))), uncertain);
        let reused = (Tier::Host, Some(StoreOrigin::Reused));
        assert_eq!(cleared_after(|managed| managed.stored(Some("b"), reused, None, &blocks(1))), uncertain);
        assert_eq!(cleared_after(|managed| managed.stored(Some("a"), reused, None, &blocks(1))), Some((2, false)));
        for tiers in [(Tier::Host, Tier::Disk), (Tier::Host, Tier::Device)] {
            let transfer =
                |managed: &mut ManagedBlocks| managed.transferred(tiers, RemovedCopies::One, None, &blocks(1));
            assert_eq!(cleared_after(transfer), uncertain);
        }
        // A doubt ends with the last copy.
        let ended = |managed: &mut ManagedBlocks| {
            managed.removed(None, left(1), None, &blocks(1));
            managed.removed(Some("a"), ONE, None, &blocks(1));
        };
        assert_eq!(cleared_after(ended), Some((1, false)));
    }

    #[test]
    fn a_copy_of_a_manager_that_was_never_published_is_in_doubt() {
        let mut managed = ManagedBlocks::default();
        managed.removed(Some("a"), (Tier::Host, RemovedCopies::AllBut(2)), None, &blocks(1));
        assert_eq!(cleared(&mut managed, "a"), Some((0, true)));
        managed.stored(Some("b"), (Tier::Host, Some(StoreOrigin::Reused)), None, &blocks(1));
        assert_eq!(cleared(&mut managed, "b"), Some((0, true)));
    }

    #[test]
    fn the_manager_of_a_complete_state_has_every_copy() {
        let mut managed = ManagedBlocks::default();
        store(&mut managed, Some("a"), 2);
        managed.stored_as_state(Some("b"), Tier::Host, None, &blocks(1));
        assert_eq!(cleared(&mut managed, "a"), Some((1, false)));
        let removals = managed.clear_manager("b", ALL).expect("known").removals;
        assert_eq!(removals, [removal((Tier::Host, RemovedCopies::All), None, blocks(1))]);
    }

    #[test]
    fn the_bytes_of_a_table_end_with_its_copies() {
        let mut managed = ManagedBlocks::default();
        assert_eq!(managed.bytes(), 0);
        store(&mut managed, Some("a"), MANAGED_COPIES_MAX as u64);
        let bytes = MANAGED_COPIES_MAX * size_of::<(ManagedBlock, Holders)>()..=MANAGED_COPIES_MAX * 100;
        assert!(bytes.contains(&managed.bytes()), "{} bytes", managed.bytes());
        let ends: [fn(&mut ManagedBlocks); 3] =
            [|managed| managed.clear(ALL), |managed| drop(managed.clear_manager("a", ALL)), ManagedBlocks::forget];
        for end in ends {
            let mut managed = ManagedBlocks::default();
            store(&mut managed, Some("a"), 1_000);
            end(&mut managed);
            assert_eq!(managed.bytes(), 0);
        }
    }

    #[test]
    fn managers_above_a_limit_are_unknown_until_the_cache_is_cleared() {
        let name = "n".repeat(MANAGER_BYTES_MAX + 1);
        let mut managed = ManagedBlocks::default();
        store(&mut managed, Some(&name), 1);
        assert_eq!(cleared(&mut managed, "a"), None);

        let mut managed = ManagedBlocks::default();
        for manager in 0..MANAGERS_MAX {
            store(&mut managed, Some(&manager.to_string()), 1);
        }
        assert!(cleared(&mut managed, "0").is_some());
        store(&mut managed, Some("another"), 1);
        assert_eq!(cleared(&mut managed, "1"), None);

        let mut managed = ManagedBlocks::default();
        (0..4).for_each(|_| store(&mut managed, Some("a"), MANAGED_COPIES_MAX as u64 / 4));
        assert!(!managed.is_incomplete);
        store(&mut managed, Some("a"), 1);
        assert_eq!(cleared(&mut managed, "a"), None, "copies of one block count each");
    }
}
