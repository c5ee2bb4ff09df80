//! Random key of this process's hash tables.

use std::hash::{BuildHasher, RandomState};

use flash_indexer_core::keyed::HashKey;

/// Sets a random key for the hash tables of this process, unless a key is set or a table is in use. A program that fills
/// tables before it starts an indexer calls this first.
pub fn use_random_hash_key() {
    // A key that is already in use stays.
    let _in_use = random_key().set_for_process();
}

fn random_key() -> HashKey {
    // The standard library seeds its hash tables from the operating system's randomness.
    let random = RandomState::new();
    HashKey::new(std::array::from_fn(|word| random.hash_one(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_random_keys_differ() {
        assert_ne!(random_key(), random_key());
    }
}
