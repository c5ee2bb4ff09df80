//! Fingerprints of sections of local hashes. A reader compares one fingerprint from memory with one computed from the
//! query, instead of eight lines of memory.
//!
//! Two sums of products (low half + key) · (high half + key) modulo 2^64, each with its own keys, are equal for two
//! different sections with a probability of at most 2^-32 each (the NH family of Black, Halevi, Krawczyk, Krovetz and
//! Rogaway, 1999). The last step maps two different pairs of sums to one value with a probability of 2^-63. That is
//! about as rare as two different blocks with one local hash, which every exact answer assumes not to occur.

use super::layout::SECTION_BLOCKS;
use crate::LocalHash;

/// Random numbers: one for each block and sum, and four for the last step.
const KEYS: [u64; 2 * SECTION_BLOCKS + 4] = {
    let mut keys = [0; 2 * SECTION_BLOCKS + 4];
    let mut state: u64 = 0x243f_6a88_85a3_08d3;
    let mut at = 0;
    while at < keys.len() {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    keys
};

/// Computes the fingerprint of a section. Vector code, to be called within `widest`.
#[inline(always)]
pub(crate) fn fingerprint_of(section: &[LocalHash; SECTION_BLOCKS]) -> u64 {
    let mut sums = [0_u64; 2];
    for (at, local) in section.iter().enumerate() {
        for (sum, key) in sums.iter_mut().zip([KEYS[at], KEYS[SECTION_BLOCKS + at]]) {
            let low = (local.0 as u32).wrapping_add(key as u32);
            let high = ((local.0 >> 32) as u32).wrapping_add((key >> 32) as u32);
            *sum = sum.wrapping_add(u64::from(low) * u64::from(high));
        }
    }
    let key =
        |at: usize| u128::from(KEYS[2 * SECTION_BLOCKS + at]) << 64 | u128::from(KEYS[2 * SECTION_BLOCKS + at + 1]);
    let [first, second] = sums.map(u128::from);
    (first.wrapping_mul(key(0)).wrapping_add(second.wrapping_mul(key(2))) >> 64) as u64
}
