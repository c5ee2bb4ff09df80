//! Prefixes of a rank's sequence hashes, and the tiers in which its secondary groups hold them.

use super::TierMask;
use crate::SequenceHash;
use crate::keyed::KeyedMap;

/// A sequence hash and the prefix that it identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SequencePrefix {
    /// Prefix hash, which a query can compute.
    pub(super) prefix: SequenceHash,
    pub(super) sequence: SequenceHash,
}

/// The tiers in which the secondary groups hold each prefix; prefixes that no group holds have no entry.
#[derive(Debug, Default)]
pub(super) struct HeldPrefixMap(KeyedMap<SequenceHash, BlocksAtPrefix>);

/// Nearly always one sequence hash; several if the rank has several for one prefix.
#[derive(Debug)]
enum BlocksAtPrefix {
    One(SequenceHash, TierMask),
    Several(Vec<(SequenceHash, TierMask)>),
}

impl HeldPrefixMap {
    pub(super) fn at(&self, prefix: SequenceHash) -> TierMask {
        match self.0.get(&prefix) {
            None => TierMask::default(),
            Some(BlocksAtPrefix::One(_, held)) => *held,
            Some(BlocksAtPrefix::Several(blocks)) => {
                blocks.iter().fold(TierMask::default(), |all, (_, held)| all.or(*held))
            }
        }
    }

    /// The sequence hashes of a prefix that groups hold.
    pub(super) fn sequences_at(&self, prefix: SequenceHash) -> impl Iterator<Item = (SequenceHash, TierMask)> {
        let (one, several) = match self.0.get(&prefix) {
            None => (None, &[][..]),
            Some(BlocksAtPrefix::One(sequence, held)) => (Some((*sequence, *held)), &[][..]),
            Some(BlocksAtPrefix::Several(blocks)) => (None, &blocks[..]),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// Sets the tiers in which the groups hold a sequence hash of a prefix.
    pub(super) fn set(&mut self, SequencePrefix { prefix, sequence }: SequencePrefix, held: TierMask) {
        let is_held = held != TierMask::default();
        match self.0.get_mut(&prefix) {
            None if is_held => drop(self.0.insert(prefix, BlocksAtPrefix::One(sequence, held))),
            None => {}
            Some(BlocksAtPrefix::One(known, old)) if *known == sequence => match is_held {
                true => *old = held,
                false => drop(self.0.remove(&prefix)),
            },
            Some(blocks @ BlocksAtPrefix::One(..)) if is_held => {
                let BlocksAtPrefix::One(known, old) = *blocks else { return };
                *blocks = BlocksAtPrefix::Several(vec![(known, old), (sequence, held)]);
            }
            Some(BlocksAtPrefix::One(..)) => {}
            Some(BlocksAtPrefix::Several(blocks)) => {
                blocks.retain(|(known, _)| *known != sequence);
                blocks.extend(is_held.then_some((sequence, held)));
                if blocks.is_empty() {
                    self.0.remove(&prefix);
                }
            }
        }
    }
}
