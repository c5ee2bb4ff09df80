//! Prefixes of a rank's sequence hashes, and the tiers in which its secondary groups hold them.

use smallvec::SmallVec;

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
type BlocksAtPrefix = SmallVec<[(SequenceHash, TierMask); 1]>;

impl HeldPrefixMap {
    pub(super) fn at(&self, prefix: SequenceHash) -> TierMask {
        self.sequences_at(prefix).fold(TierMask::default(), |all, (_, held)| all.or(held))
    }

    /// The sequence hashes of a prefix that groups hold.
    pub(super) fn sequences_at(&self, prefix: SequenceHash) -> impl Iterator<Item = (SequenceHash, TierMask)> {
        self.0.get(&prefix).into_iter().flatten().copied()
    }

    /// Sets the tiers in which the groups hold a sequence hash of a prefix.
    pub(super) fn set(&mut self, SequencePrefix { prefix, sequence }: SequencePrefix, held: TierMask) {
        let is_held = held != TierMask::default();
        match self.0.get_mut(&prefix) {
            None if is_held => drop(self.0.insert(prefix, SmallVec::from_buf([(sequence, held)]))),
            None => {}
            Some(blocks) => {
                blocks.retain(|(known, _)| *known != sequence);
                blocks.extend(is_held.then_some((sequence, held)));
                if blocks.is_empty() {
                    self.0.remove(&prefix);
                }
            }
        }
    }
}
