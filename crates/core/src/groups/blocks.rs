//! Blocks of one secondary cache group of a rank, with readings of them in parts.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::links::Links;
use super::{BlockLink, GROUP_BLOCKS_MAX, GroupChange, GroupEvent, SecondaryGroup, TIERS};
use crate::keyed::{KeyedMap, KeyedState};
use crate::{AppliedChanges, PerTier, ReadingProgress, RemovedCopies, SequenceHash, Tier};

/// Limit of the places of a group's table that a part of a reading passes, for each block that it may read: a table keeps
/// its size when its blocks are removed.
const PLACES_PER_BLOCK: usize = 16;

/// A block of a secondary group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBlock {
    /// Its sequence hash.
    pub sequence: SequenceHash,
    /// Its copies, in at least one tier.
    pub copies: PerTier<u32>,
}

/// A reading of one secondary group of a rank, in parts.
///
/// Between two parts blocks of the group may be removed. The caller applies no event that stores blocks in the group: its
/// table may grow then, and the reading may miss blocks.
#[derive(Debug, Clone, Copy)]
pub struct GroupReading {
    group: SecondaryGroup,
    /// Place of the group's table at which the next part begins.
    place: usize,
}

/// A part of a [`GroupReading`].
#[derive(Debug, PartialEq, Eq)]
pub struct GroupPart {
    /// Blocks of the part, in no particular order.
    pub blocks: Vec<GroupBlock>,
    /// The known links of those blocks.
    pub links: Vec<BlockLink>,
    /// Whether it is the last part.
    pub progress: ReadingProgress,
}

impl GroupPart {
    /// The only part of a group without blocks.
    pub(super) const fn nothing() -> Self {
        Self { blocks: Vec::new(), links: Vec::new(), progress: ReadingProgress::Complete }
    }
}

impl GroupReading {
    /// A reading that has not begun.
    #[must_use]
    pub const fn new(group: SecondaryGroup) -> Self {
        Self { group, place: 0 }
    }

    /// The group.
    #[must_use]
    pub const fn group(&self) -> SecondaryGroup {
        self.group
    }
}

/// The sequence hashes of a group, with reference counts by tier.
#[derive(Debug)]
pub(super) struct GroupBlocks {
    pub(super) group: SecondaryGroup,
    /// Entries keep their places until an insertion grows or cleans the table.
    blocks: HashTable<GroupBlock>,
    /// Empty if the group's blocks are not smaller than those of the index.
    links: Links,
}

fn hash_of(sequence: SequenceHash) -> u64 {
    KeyedState.hash_one(sequence)
}

impl GroupBlocks {
    pub(super) fn new(group: SecondaryGroup) -> Self {
        Self { group, blocks: HashTable::new(), links: Links::default() }
    }

    /// Bytes of the blocks and their links.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<GroupBlock>() + self.links.bytes()
    }

    /// Sets the group's description. Reports held blocks that need a link from now on and have none.
    pub(super) fn describe(&mut self, group: SecondaryGroup) -> AppliedChanges {
        let needed_links = self.group.needs_links();
        self.group = group;
        let unlinked = match group.needs_links() && !needed_links {
            true => self.blocks.len() - self.links.held_count(),
            false => 0,
        };
        AppliedChanges { unknown: unlinked as u64, ..AppliedChanges::default() }
    }

    pub(super) fn link(&mut self, links: &[BlockLink]) {
        if self.group.size.is_finer() {
            for &link in links {
                let is_held = self.copies(link.block).is_some();
                self.links.set(link, is_held);
            }
        }
    }

    /// The fastest tiers, as numbers, in which the group holds a block and those before it.
    pub(super) fn tiers_backward(&self, sequence: SequenceHash) -> impl Iterator<Item = usize> {
        let mut next = Some(sequence);
        std::iter::repeat_with(move || {
            let block = next?;
            next = self.links.before(block);
            self.copies(block)?.iter().position(|(_, &copies)| copies > 0)
        })
        .map(|tier| tier.unwrap_or(TIERS))
    }

    /// Copies of a block, if there are any.
    pub(super) fn copies(&self, sequence: SequenceHash) -> Option<&PerTier<u32>> {
        self.blocks.find(hash_of(sequence), |block| block.sequence == sequence).map(|block| &block.copies)
    }

    pub(super) fn store(&mut self, sequence: SequenceHash, tier: Tier, copies: u32) -> AppliedChanges {
        let (hash, is_full) = (hash_of(sequence), self.blocks.len() >= GROUP_BLOCKS_MAX);
        if is_full && self.copies(sequence).is_none() {
            return AppliedChanges { refused: 1, ..AppliedChanges::default() };
        }
        let is_link_missing = self.group.size.is_finer() && !self.links.hold(sequence) && self.group.needs_links();
        let entry = self.blocks.entry(hash, |block| block.sequence == sequence, |block| hash_of(block.sequence));
        let mut entry = entry.or_insert_with(|| GroupBlock { sequence, copies: PerTier::default() });
        let held = &mut entry.get_mut().copies[tier];
        let before = std::mem::replace(held, held.saturating_add(copies));
        let applied = AppliedChanges { unknown: u64::from(is_link_missing), ..AppliedChanges::default() };
        match before {
            0 => AppliedChanges { stored: 1, ..applied },
            _ => AppliedChanges { duplicate: 1, ..applied },
        }
    }

    pub(super) fn remove(&mut self, sequence: SequenceHash, tier: Tier, copies: RemovedCopies) -> AppliedChanges {
        let entry = self.blocks.find_entry(hash_of(sequence), |block| block.sequence == sequence).ok();
        let Some(mut entry) = entry.filter(|entry| entry.get().copies[tier] > 0) else {
            return AppliedChanges { unknown: 1, ..AppliedChanges::default() };
        };
        let held = &mut entry.get_mut().copies;
        held[tier] = copies.left(held[tier]);
        if held.is_zero() {
            entry.remove();
            self.links.leave(sequence);
        }
        AppliedChanges { removed: 1, ..AppliedChanges::default() }
    }

    /// Removes every block at once, and frees the table.
    pub(super) fn clear(&mut self) {
        self.blocks = HashTable::new();
        self.links = Links::default();
    }

    /// Reads the next blocks: at most `blocks_max`, which is at least one.
    pub(super) fn read(&self, reading: &mut GroupReading, blocks_max: usize) -> GroupPart {
        let places = self.blocks.num_buckets();
        let places_end = reading.place.saturating_add(blocks_max.saturating_mul(PLACES_PER_BLOCK)).min(places);
        let mut blocks = Vec::new();
        while reading.place < places_end && blocks.len() < blocks_max {
            blocks.extend(self.blocks.get_bucket(reading.place).copied());
            reading.place += 1;
        }
        let is_complete = reading.place >= places;
        let links = blocks.iter().filter_map(|block| self.links.of_held(block.sequence)).collect();
        GroupPart {
            blocks,
            links,
            progress: if is_complete { ReadingProgress::Complete } else { ReadingProgress::More },
        }
    }

    /// Stored events that recreate the group.
    pub(super) fn stores(&self) -> Vec<GroupChange> {
        self.group.stores_of(self.blocks.iter(), self.links.iter())
    }
}

impl SecondaryGroup {
    /// Stored events that recreate the group with these blocks and their links. One without blocks recreates an empty group.
    pub fn stores_of<'b>(
        self,
        blocks: impl IntoIterator<Item = &'b GroupBlock>,
        links: impl IntoIterator<Item = BlockLink>,
    ) -> Vec<GroupChange> {
        let mut by_tier_and_count: KeyedMap<(Tier, u32), Vec<SequenceHash>> = KeyedMap::default();
        for block in blocks {
            for (tier, &copies) in block.copies.iter().filter(|&(_, &copies)| copies > 0) {
                by_tier_and_count.entry((tier, copies)).or_default().push(block.sequence);
            }
        }
        if by_tier_and_count.is_empty() {
            by_tier_and_count.insert((Tier::Device, 1), Vec::new());
        }
        let stores =
            by_tier_and_count.into_iter().map(|((tier, copies), blocks)| GroupEvent::Stored { tier, blocks, copies });
        // After the stores: more links than those of the held blocks are not kept for long.
        let links: Vec<BlockLink> = links.into_iter().collect();
        let links = (!links.is_empty()).then_some(GroupEvent::Linked(links));
        stores.chain(links).map(|event| GroupChange { group: self, event }).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::groups::{AttentionWindow, GroupBlockSize, GroupId};

    const GROUP: SecondaryGroup =
        SecondaryGroup { id: GroupId(1), window: AttentionWindow::Full, size: GroupBlockSize::REGISTERED };

    #[test]
    fn parts_of_a_group_have_each_block_once_while_read_blocks_are_removed() {
        for (stored, kept) in [(0, 0), (1, 1), (10_000, 10_000), (10_000, 3)] {
            let mut group = GroupBlocks::new(GROUP);
            for at in 0..stored {
                group.store(SequenceHash(at), Tier::Host, 1);
            }
            for at in kept..stored {
                group.remove(SequenceHash(at), Tier::Host, RemovedCopies::One);
            }
            let (mut reading, mut read) = (GroupReading::new(GROUP), Vec::new());
            loop {
                let before = reading.place;
                let GroupPart { blocks, progress, .. } = group.read(&mut reading, 100);
                assert!(blocks.len() <= 100 && reading.place - before <= 1_600, "{} blocks", blocks.len());
                for block in blocks {
                    assert_eq!(group.remove(block.sequence, Tier::Host, RemovedCopies::All).removed, 1);
                    read.push(block.sequence.0);
                }
                if progress == ReadingProgress::Complete {
                    break;
                }
            }
            read.sort_unstable();
            assert_eq!(read, (0..kept).collect::<Vec<_>>());
            assert_eq!(group.blocks.len(), 0);
        }
    }
}
