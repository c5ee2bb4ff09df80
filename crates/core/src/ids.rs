//! Identities of blocks and workers, and the memory tiers that hold blocks.

use std::fmt;
use std::ops::{Index, IndexMut};

/// Engine-independent content id of one block: a hash of its tokens, adapter, salt and multimodal items, without its
/// prefix.
///
/// Two blocks with the same content have the same local hash at any position of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::TransparentWrapper)]
#[repr(transparent)]
pub struct LocalHash(pub u64);

impl LocalHash {
    /// The same hashes as local hashes, without a copy: callers in other languages have arrays of integers.
    #[must_use]
    pub fn of_slice(hashes: &[u64]) -> &[Self] {
        bytemuck::TransparentWrapper::wrap_slice(hashes)
    }
}

/// Engine-given id of a block and its whole prefix.
///
/// Opaque: engines choose the recipe and the seed, so two engines may give the same prefix different sequence hashes.
/// Within one worker rank a sequence hash identifies one prefix at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(pub u64);

/// One engine instance; the owner of the index assigns the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u64);

/// Data-parallel rank inside one worker; each rank has its own cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DpRank(pub u32);

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One cache: a data-parallel rank of a worker. Events and matches refer to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerRank {
    /// The engine instance.
    pub worker: WorkerId,
    /// The rank inside it.
    pub dp_rank: DpRank,
}

crate::named_enum! {
    /// The memory that holds a block, from fastest to slowest.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Tier {
        /// Device memory of the accelerator.
        Device = "device",
        /// Host memory, pinned or not.
        Host = "host_pinned",
        /// A local disk or file system.
        Disk = "disk",
        /// A store outside the instance, shared or remote.
        External = "external",
    }
}

/// One value for each [`Tier`], indexed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PerTier<T>(pub [T; Tier::ALL.len()]);

impl<T> PerTier<T> {
    /// Tiers with their values, fastest first.
    pub fn iter(&self) -> impl Iterator<Item = (Tier, &T)> {
        Tier::ALL.into_iter().zip(&self.0)
    }
}

impl PerTier<u32> {
    /// Whether every tier has zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; Tier::ALL.len()]
    }
}

impl<T> Index<Tier> for PerTier<T> {
    type Output = T;
    fn index(&self, tier: Tier) -> &T {
        &self.0[tier as usize]
    }
}

impl<T> IndexMut<Tier> for PerTier<T> {
    fn index_mut(&mut self, tier: Tier) -> &mut T {
        &mut self.0[tier as usize]
    }
}
