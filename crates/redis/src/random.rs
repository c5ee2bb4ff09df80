//! Numbers that nobody else comes up with.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that is not zero and that no other call, in whichever process, returns.
pub(crate) fn unique() -> u64 {
    // Keyed by the system's randomness.
    RandomState::new().build_hasher().finish().max(1)
}
