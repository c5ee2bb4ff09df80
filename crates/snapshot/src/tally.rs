//! Count and digest of blocks, by which two sets of blocks are compared.

use std::fmt;
use std::ops::AddAssign;

use flash_indexer_core::groups::BlockLink;
use flash_indexer_core::{Block, SequenceHash, Tier};
use flash_indexer_wire::Age;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use xxhash_rust::xxh3::xxh3_64;

/// Count and digest of a set of blocks.
///
/// The digest is a sum over blocks, so it depends neither on their order nor on their division into events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tally {
    /// Blocks, counted once for each tier.
    pub blocks: u64,
    /// Sum of XXH3-64 over blocks, in hexadecimal digits. The input is the tier, reference count, parent, sequence hash and
    /// local hash of a block; in a secondary cache group the tier, reference count and sequence hash, and of each link the two
    /// sequence hashes; in decoder state the age, parent, sequence hash and local hash.
    #[serde(with = "hex")]
    #[schema(value_type = String)]
    pub digest: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks with digest {:016x}", self.blocks, self.digest)
    }
}

impl Tally {
    /// Adds a chain of blocks. Cost: a hash of 29 bytes for each block.
    pub fn add(&mut self, tier: Tier, copies: u32, mut parent: Option<SequenceHash>, blocks: &[Block]) {
        for block in blocks {
            let digest = block_digest(tier, copies, parent.replace(block.sequence), block);
            self.blocks += 1;
            self.digest = self.digest.wrapping_add(digest);
        }
    }

    /// Adds a chain of blocks of decoder state.
    pub fn add_contents(&mut self, age: Age, parent: Option<SequenceHash>, blocks: &[Block]) {
        self.add(Tier::Device, u32::from(age == Age::Old), parent, blocks);
    }

    /// Adds blocks of a secondary cache group.
    pub fn add_sequence_hashes(&mut self, tier: Tier, copies: u32, hashes: &[SequenceHash]) {
        for &hash in hashes {
            self.blocks += 1;
            self.digest = self.digest.wrapping_add(sequence_hash_digest(tier, copies, hash));
        }
    }

    /// Adds links between blocks of a secondary cache group. Links are not counted as blocks.
    pub fn add_links(&mut self, links: &[BlockLink]) {
        for link in links {
            self.digest = self.digest.wrapping_add(link_digest(link));
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// Digest of one block.
pub(super) fn block_digest(tier: Tier, copies: u32, parent: Option<SequenceHash>, block: &Block) -> u64 {
    let mut bytes = [0; 29];
    // The top bit distinguishes a block without a parent from one whose parent's hash is zero.
    bytes[0] = tier as u8 | u8::from(parent.is_some()) << 7;
    bytes[1..5].copy_from_slice(&copies.to_le_bytes());
    bytes[5..13].copy_from_slice(&parent.map_or(0, |parent| parent.0).to_le_bytes());
    bytes[13..21].copy_from_slice(&block.sequence.0.to_le_bytes());
    bytes[21..29].copy_from_slice(&block.local.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// Digest of one block of a secondary cache group.
fn sequence_hash_digest(tier: Tier, copies: u32, hash: SequenceHash) -> u64 {
    let mut bytes = [0; 13];
    bytes[0] = tier as u8;
    bytes[1..5].copy_from_slice(&copies.to_le_bytes());
    bytes[5..13].copy_from_slice(&hash.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// Digest of one link.
fn link_digest(link: &BlockLink) -> u64 {
    let mut bytes = [0; 17];
    // The first byte of a block is its tier.
    bytes[0] = 0x40 | u8::from(link.before.is_some());
    bytes[1..9].copy_from_slice(&link.block.0.to_le_bytes());
    bytes[9..17].copy_from_slice(&link.before.map_or(0, |before| before.0).to_le_bytes());
    xxh3_64(&bytes)
}

/// Digests as 16 hexadecimal digits, because not every JSON reader has 64-bit integers.
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
