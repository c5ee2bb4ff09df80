//! Salts of a rank's blocks, which later blocks of a sequence inherit.

use flash_indexer_core::hashing::Salt;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{PerTier, RemovedCopies, SequenceHash, Tier};

use super::RECENT_GENERATION_MAX;
use super::recent::RecentMap;
use crate::event::StoreOrigin;

/// Limit of the salted blocks that a rank holds.
const SALTED_BLOCKS_MAX: usize = 1 << 20;
/// Limit of the remembered salted blocks that a rank no longer holds, in each of two generations. A salt is remembered at
/// least as long as the content of its block, with which an engine may publish the block again.
const RELEASED_GENERATION_MAX: usize = RECENT_GENERATION_MAX;

/// Copies of a salted block in each tier.
pub type SaltedCopies = PerTier<u16>;

/// A salted block of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaltedBlock {
    /// The block's sequence hash.
    pub sequence: SequenceHash,
    /// Its salt.
    pub salt: Salt,
    /// Its copies; none of a block that the rank no longer holds. A count that has reached its maximum stays there until
    /// the rank is cleared.
    pub copies: SaltedCopies,
}

/// Salts of the blocks of one rank.
///
/// The salt of a held block is never forgotten: a store that would exceed the limit is to be rejected ([`Salts::has_room`]).
/// Copies are counted as an index counts them. A block without a copy is remembered for a while, because an engine may
/// publish the copy in a slower tier after it has removed the one on the device.
#[derive(Debug)]
pub(super) struct Salts {
    held: KeyedMap<SequenceHash, (Salt, SaltedCopies)>,
    released: RecentMap<Salt>,
    held_max: usize,
    /// Whether salts were imported: the translator that exported them may have forgotten some.
    is_imported: bool,
}

impl Default for Salts {
    fn default() -> Self {
        Self::new(SALTED_BLOCKS_MAX, RELEASED_GENERATION_MAX)
    }
}

impl Salts {
    fn new(held_max: usize, released_generation_max: usize) -> Self {
        let released = RecentMap::new(released_generation_max);
        Self { held: KeyedMap::default(), released, held_max, is_imported: false }
    }

    pub(super) fn get(&mut self, block: SequenceHash) -> Option<Salt> {
        self.held.get(&block).map(|&(salt, _)| salt).or_else(|| self.released.get(block))
    }

    /// Whether the salt of a block that the rank no longer holds may be forgotten.
    pub(super) fn has_forgotten(&self) -> bool {
        self.is_imported || self.released.has_evicted()
    }

    /// Whether salts of these blocks can be stored.
    pub(super) fn has_room(&self, blocks: &[SequenceHash]) -> bool {
        // Blocks that are held already need no room.
        self.held.len() + blocks.len() <= self.held_max
            || self.held.len() + blocks.iter().filter(|block| !self.held.contains_key(block)).count() <= self.held_max
    }

    /// Records a store of blocks with one salt, or of blocks without a salt, one copy of each.
    pub(super) fn stored(&mut self, copy: (Tier, Option<StoreOrigin>), blocks: &[SequenceHash], salt: Option<Salt>) {
        match salt {
            Some(salt) => blocks.iter().for_each(|&block| self.add_copy(copy, block, salt)),
            None if self.held.is_empty() && self.released.is_empty() => {}
            None => {
                for block in blocks {
                    self.held.remove(block);
                    self.released.remove(*block);
                }
            }
        }
    }

    /// Records a copy of a block that an engine publishes by sequence hash alone. Returns whether there was room.
    pub(super) fn copied(&mut self, copy: (Tier, Option<StoreOrigin>), block: SequenceHash) -> bool {
        let Some(salt) = self.get(block) else { return true };
        let has_room = self.has_room(&[block]);
        if has_room {
            self.add_copy(copy, block, salt);
        }
        has_room
    }

    fn add_copy(&mut self, (tier, origin): (Tier, Option<StoreOrigin>), block: SequenceHash, salt: Salt) {
        let (known, copies) = self.held.entry(block).or_insert((salt, SaltedCopies::default()));
        *known = salt;
        copies[tier] = match origin {
            Some(StoreOrigin::Reused) => copies[tier].max(1),
            Some(StoreOrigin::New) | None => copies[tier].saturating_add(1),
        };
    }

    /// Records a removal of blocks.
    pub(super) fn removed(&mut self, tier: Tier, blocks: &[SequenceHash], removed: RemovedCopies) {
        if self.held.is_empty() {
            return;
        }
        for block in blocks {
            let Some((salt, copies)) = self.held.get_mut(block) else { continue };
            copies[tier] = match (copies[tier], removed) {
                // The number of copies is unknown.
                (u16::MAX, RemovedCopies::One) => u16::MAX,
                (0, _) => 0,
                (count, removed) => u16::try_from(removed.left(count.into())).unwrap_or(u16::MAX),
            };
            if has_no_copy(copies) {
                self.released.insert(*block, *salt);
                self.held.remove(block);
            }
        }
    }

    /// Records a removal of all blocks from a tier. Costs the number of salted blocks.
    pub(super) fn cleared(&mut self, tier: Tier) {
        let released = &mut self.released;
        self.held.retain(|block, (salt, copies)| {
            copies[tier] = 0;
            let is_held = !has_no_copy(copies);
            if !is_held {
                released.insert(*block, *salt);
            }
            is_held
        });
    }

    /// All known salted blocks, in any order. A block may be among them twice, with and without copies.
    pub(super) fn iter(&self) -> impl Iterator<Item = SaltedBlock> {
        let released = self.released.iter();
        let released =
            released.map(|(sequence, salt, _)| SaltedBlock { sequence, salt, copies: SaltedCopies::default() });
        let held = self.held.iter();
        released.chain(held.map(|(&sequence, &(salt, copies))| SaltedBlock { sequence, salt, copies }))
    }

    /// Adds copies of a block. Returns whether there was room.
    pub(super) fn import(&mut self, SaltedBlock { sequence, salt, copies }: SaltedBlock) -> bool {
        self.is_imported = true;
        if has_no_copy(&copies) {
            self.released.insert(sequence, salt);
            return true;
        }
        if !self.has_room(&[sequence]) {
            return false;
        }
        let (_, known) = self.held.entry(sequence).or_insert((salt, SaltedCopies::default()));
        for (tier, &count) in copies.iter() {
            known[tier] = known[tier].saturating_add(count);
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.held = KeyedMap::default();
        self.released.clear();
        self.is_imported = false;
    }
}

fn has_no_copy(copies: &SaltedCopies) -> bool {
    copies.iter().all(|(_, &count)| count == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [SequenceHash; 6] =
        [SequenceHash(1), SequenceHash(2), SequenceHash(3), SequenceHash(4), SequenceHash(5), SequenceHash(6)];
    const SALT: Salt = Salt::from_bits(7);

    #[test]
    fn the_salt_of_a_held_block_is_never_forgotten() {
        let mut salts = Salts::new(2, 1);
        assert!(salts.has_room(&BLOCKS[..2]) && !salts.has_room(&BLOCKS[..3]));
        salts.stored((Tier::Device, None), &BLOCKS[..2], Some(SALT));
        salts.stored((Tier::Device, None), &BLOCKS[..1], Some(SALT));
        assert!(salts.has_room(&BLOCKS[..2]) && !salts.has_room(&BLOCKS[1..3]));
        for &block in &BLOCKS[1..] {
            salts.stored((Tier::Device, None), &[block], Some(SALT));
            salts.removed(Tier::Device, &[block], RemovedCopies::One);
            salts.removed(Tier::Device, &[block], RemovedCopies::One);
        }
        salts.removed(Tier::Device, &BLOCKS[..1], RemovedCopies::One);
        assert_eq!(BLOCKS.map(|block| salts.get(block).is_some()), [true, false, false, false, true, true]);
        assert!(salts.has_forgotten());
        salts.clear();
        assert!(!salts.has_forgotten() && salts.has_room(&BLOCKS[..2]));
    }

    #[test]
    fn copies_are_counted_in_each_tier() {
        let mut salts = Salts::new(1, 1);
        salts.stored((Tier::Device, None), &BLOCKS[..1], Some(SALT));
        assert!(salts.copied((Tier::Host, None), BLOCKS[0]) && salts.copied((Tier::Host, None), BLOCKS[0]));
        salts.removed(Tier::Device, &BLOCKS[..1], RemovedCopies::One);
        salts.removed(Tier::Device, &BLOCKS[..1], RemovedCopies::One);
        assert!(!salts.has_room(&BLOCKS[1..2]), "held in host memory");
        salts.removed(Tier::Host, &BLOCKS[..1], RemovedCopies::All);
        assert!(salts.has_room(&BLOCKS[1..2]));
        assert!(salts.copied((Tier::Host, None), BLOCKS[0]));
        assert!(!salts.has_room(&BLOCKS[1..2]), "held again, with its salt");
    }
}
