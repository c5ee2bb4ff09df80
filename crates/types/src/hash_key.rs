//! The secret of this process's hash tables.

use std::hash::{BuildHasher, RandomState};

use flash_indexer_core::keyed::HashKey;

/// Gives the hash tables of this process a random key, if none of them has been used yet and it has none. A program
/// that fills tables before it starts an [`Indexer`](crate::Indexer) calls this first.
pub fn use_random_hash_key() {
    // A table that was filled keeps the key it was filled with.
    let _in_use = random_key().set_for_process();
}

fn random_key() -> HashKey {
    // The operating system's randomness, by way of the standard library's hash tables.
    let random = RandomState::new();
    HashKey::new(std::array::from_fn(|word| random.hash_one(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_another_one() {
        assert_ne!(random_key(), random_key());
    }
}
