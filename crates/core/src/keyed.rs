//! Keyed hashing, for tables whose keys clients choose.
//!
//! A client that can compute a table's hash can choose prompts or sequence hashes that all fall into one part of the
//! table. A secret key prevents that: without it, a client cannot find colliding keys offline.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// A hash table whose keys clients may choose.
pub type KeyedMap<K, V> = HashMap<K, V, KeyedState>;

/// A set whose members clients may choose.
pub type KeyedSet<K> = HashSet<K, KeyedState>;

/// Secret words that a hash mixes into its input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u64; 4]);

/// The process's key is already in use: existing tables cannot change their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to set hash key: a table of this process already uses one; set the key at startup")]
pub struct KeyInUse;

static PROCESS_KEY: OnceLock<HashKey> = OnceLock::new();

impl std::fmt::Debug for HashKey {
    /// Omits the words, because they are secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// A public key, for reproducible tests and measurements.
    pub const FIXED: Self =
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89]);

    /// Creates a key of random words.
    #[must_use]
    pub const fn new([first, second, third, fourth]: [u64; 4]) -> Self {
        // A factor with trailing zero bits would lose bits of the input.
        Self([first, second | 1, third, fourth | 1])
    }

    /// The key of this process: the one that was set, or [`HashKey::FIXED`] if a table was used before.
    #[inline]
    #[must_use]
    pub fn of_process() -> Self {
        *PROCESS_KEY.get_or_init(|| Self::FIXED)
    }

    /// Sets the key of this process. The core has no source of randomness, so the program sets it once at startup.
    ///
    /// # Errors
    ///
    /// [`KeyInUse`] if a key is in use already.
    pub fn set_for_process(self) -> Result<(), KeyInUse> {
        PROCESS_KEY.set(self).map_err(|_| KeyInUse)
    }

    /// Hashes two words in about ten processor cycles.
    ///
    /// Two rounds of a multiplication with folded halves. Both factors of the first round are secret, so chosen input
    /// differences do not lead to known output differences, as they would with a known factor. The second round
    /// spreads the remaining regularity of the inputs.
    #[inline]
    #[must_use]
    pub const fn hash(&self, first: u64, second: u64) -> u64 {
        let [a, b, c, d] = self.0;
        folded(folded(first ^ a, second ^ b) ^ c, d)
    }
}

#[inline]
const fn folded(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

/// Builds hashers with the key of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyedState;

/// A hasher with the key of this process.
#[derive(Debug, Clone, Copy)]
pub struct KeyedHasher {
    key: HashKey,
    state: u64,
}

impl BuildHasher for KeyedState {
    type Hasher = KeyedHasher;

    #[inline]
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { key: HashKey::of_process(), state: 0 }
    }
}

impl KeyedHasher {
    #[inline]
    fn add(&mut self, word: u64) {
        let [a, b, ..] = self.key.0;
        self.state = folded(self.state ^ word ^ a, b);
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.add(u64::from_le_bytes(word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
        self.add(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let [.., c, d] = self.key.0;
        folded(self.state ^ c, d)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Keys that the clients of a test do not know.
    fn secret_keys() -> impl Iterator<Item = HashKey> {
        let mut state = 7_u64;
        std::iter::repeat_with(move || {
            HashKey::new(std::array::from_fn(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed ^ (mixed >> 31)
            }))
        })
        .take(8)
    }

    /// The largest number of inputs that share the lower `bits` of their hashes.
    fn fullest(key: HashKey, inputs: &[u64], bits: u32) -> usize {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        inputs.iter().for_each(|&input| *counts.entry(key.hash(input, 0) & ((1 << bits) - 1)).or_default() += 1);
        counts.into_values().max().unwrap_or(0)
    }

    #[test]
    fn inputs_that_collide_under_one_key_do_not_under_another() {
        let collide = |input: &u64| HashKey::FIXED.hash(*input, 0).trailing_zeros() >= 10;
        let inputs: Vec<u64> = (0..).filter(collide).take(1_024).collect();
        assert_eq!(fullest(HashKey::FIXED, &inputs, 10), 1_024);
        for key in secret_keys() {
            // For random hashes, ten of 1,024 inputs in one of 1,024 buckets are rare.
            assert!(fullest(key, &inputs, 10) <= 12, "{}", fullest(key, &inputs, 10));
        }
    }

    #[test]
    fn regular_inputs_spread() {
        let strides = (0..54).map(|shift| (0..1_024).map(|at: u64| at << shift).collect::<Vec<_>>());
        let bits_apart = (0..48).map(|gap: u32| {
            let spread = |at: u64| (0..10).map(|bit| (at >> bit & 1) << (bit * 5 + gap % 14)).sum::<u64>();
            (0..1_024).map(spread).collect()
        });
        for inputs in strides.chain(bits_apart) {
            for key in secret_keys() {
                let fullest = fullest(key, &inputs, 10);
                assert!(fullest <= 16, "{fullest} of {:?}", &inputs[..3]);
            }
        }
    }

    #[test]
    fn hashers_tell_similar_keys_apart() {
        let of = |bytes: &[u8]| {
            let mut hasher = KeyedState.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        let texts: Vec<&[u8]> = vec![b"", b"\0", b"\0\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi"];
        for (at, text) in texts.iter().enumerate() {
            assert!(texts[at + 1..].iter().all(|other| of(other) != of(text)), "{text:?}");
        }
    }
}
