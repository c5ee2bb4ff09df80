//! How much a rank holds, so that two accounts of it can be compared.

use std::ops::AddAssign;

use flash_indexer_core::{Block, SequenceHash, Tier};
use flash_indexer_wire::Age;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Blocks of a rank, counted and digested.
///
/// The digest is a sum over blocks: neither their order nor how they are spread over events is part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Blocks, once for each tier that they lie in.
    pub blocks: u64,
    /// Sum of XXH3-64 of each block's tier, copies, parent, name and content, or, in a further cache group, of
    /// its tier, copies and name, or, of a content that is remembered, of its age, parent, name and content; in
    /// hexadecimal digits.
    #[serde(with = "hex")]
    pub digest: u64,
}

impl Tally {
    /// Counts blocks of which each follows the one before it. Cost: a hash of 29 bytes for each.
    pub fn add(&mut self, tier: Tier, copies: u32, parent: Option<SequenceHash>, blocks: &[Block]) {
        let mut parent = parent;
        for block in blocks {
            self.blocks += 1;
            self.digest = self.digest.wrapping_add(block_digest(tier, copies, parent, block));
            parent = Some(block.sequence);
        }
    }

    /// Counts contents that a stream remembers, of blocks of which each follows the one before it.
    pub fn add_contents(&mut self, age: Age, parent: Option<SequenceHash>, blocks: &[Block]) {
        let age = match age {
            Age::Young => 0,
            Age::Old => 1,
        };
        self.add(Tier::Device, age, parent, blocks);
    }

    /// Counts blocks of a further cache group, which are told by name alone.
    pub fn add_names(&mut self, tier: Tier, copies: u32, names: &[SequenceHash]) {
        for name in names {
            self.blocks += 1;
            self.digest = self.digest.wrapping_add(name_digest(tier, copies, *name));
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// What one block adds to a rank's digest.
pub(super) fn block_digest(tier: Tier, copies: u32, parent: Option<SequenceHash>, block: &Block) -> u64 {
    let mut bytes = [0; 29];
    // A block without a parent is not one whose parent is called zero.
    bytes[0] = tier as u8 | u8::from(parent.is_some()) << 7;
    bytes[1..5].copy_from_slice(&copies.to_le_bytes());
    bytes[5..13].copy_from_slice(&parent.map_or(0, |parent| parent.0).to_le_bytes());
    bytes[13..21].copy_from_slice(&block.sequence.0.to_le_bytes());
    bytes[21..29].copy_from_slice(&block.local.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// What one block of a further cache group adds to the group's digest.
fn name_digest(tier: Tier, copies: u32, name: SequenceHash) -> u64 {
    let mut bytes = [0; 13];
    bytes[0] = tier as u8;
    bytes[1..5].copy_from_slice(&copies.to_le_bytes());
    bytes[5..13].copy_from_slice(&name.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// Digests as 16 hexadecimal digits: not every reader of JSON has integers of 64 bits.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{digest:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let digits = String::deserialize(deserializer)?;
        u64::from_str_radix(&digits, 16).map_err(|_| de::Error::custom(format!("{digits:?} is not a digest")))
    }
}
