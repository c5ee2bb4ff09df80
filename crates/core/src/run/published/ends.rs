//! The ends of a dense array, loaded many at a time.
//!
//! The language only offers loading shared words one by one and copying them before vector code can use them. That
//! took a third of the time of an answer for thousands of workers. On processors with vectors, a vector instruction
//! loads them directly from the shared words.

use super::atomics::{AtomicU64, Relaxed};

/// Calls `each` with each of `depths` and the end that belongs to it, as far as there are ends: four to a word.
///
/// Every end is one that was stored there at some moment of the call. Ends are small, so signed comparisons suffice,
/// which every processor with vectors has.
#[inline]
pub(crate) fn for_each_end(words: &[AtomicU64], depths: &mut [u32], each: impl Fn(&mut u32, i16)) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    return vectors::for_each_end(words, depths, each);
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    word_by_word(words, depths, each);
}

#[inline(always)]
fn word_by_word(words: &[AtomicU64], depths: &mut [u32], each: impl Fn(&mut u32, i16)) {
    for (word, depths) in words.iter().zip(depths.chunks_mut(4)) {
        let word = word.load(Relaxed);
        for (lane, depth) in depths.iter_mut().enumerate() {
            each(depth, (word >> (16 * lane)) as i16);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
#[allow(unsafe_code, reason = "the language has no loads of several atomic words at a time")]
mod vectors {
    use std::arch::asm;
    use std::arch::x86_64::{__m256i, __m512i};

    use super::{AtomicU64, word_by_word};

    #[inline]
    pub(super) fn for_each_end(words: &[AtomicU64], depths: &mut [u32], each: impl Fn(&mut u32, i16)) {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has the features that the function is compiled for.
            unsafe { by_eight_words(words, depths, each) }
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            unsafe { by_four_words(words, depths, each) }
        } else {
            word_by_word(words, depths, each);
        }
    }

    macro_rules! by_vectors {
        ($sequence:ident, $features:literal, $words:literal, $ends:literal, $vector:ty, $register:ident, $load:literal) => {
            #[target_feature(enable = $features)]
            fn $sequence(words: &[AtomicU64], depths: &mut [u32], each: impl Fn(&mut u32, i16)) {
                let (vectors, full) = (words.as_chunks::<$words>().0, depths.as_chunks_mut::<$ends>().0);
                let used = vectors.len().min(full.len());
                for (words, depths) in vectors.iter().zip(full) {
                    let ends: $vector;
                    // SAFETY: it only reads the bytes of `words`, which are live. Each word is aligned, and
                    // processors with these features load an aligned word at once, as the relaxed load would that
                    // this replaces for several words.
                    unsafe {
                        asm!(
                            $load,
                            words = in(reg) words.as_ptr(),
                            ends = out($register) ends,
                            options(nostack, preserves_flags, readonly),
                        );
                    }
                    let ends: [i16; $ends] = bytemuck::cast(ends);
                    for (depth, end) in depths.iter_mut().zip(ends) {
                        each(depth, end);
                    }
                }
                word_by_word(&words[used * $words..], &mut depths[used * $ends..], each);
            }
        };
    }

    by_vectors!(by_eight_words, "avx512f,avx512bw", 8, 32, __m512i, zmm_reg, "vmovdqu64 {ends}, [{words}]");
    by_vectors!(by_four_words, "avx2", 4, 16, __m256i, ymm_reg, "vmovdqu {ends}, [{words}]");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every length of either side, in whole vectors and not.
    #[test]
    fn for_each_end_pairs_each_depth_with_its_end() {
        let end_at = |at: usize| (at * 7 % 513) as i16;
        let word = |at: usize| (0..4).fold(0, |word, lane| word | (end_at(4 * at + lane) as u64) << (16 * lane));
        for word_count in 0..40 {
            let words: Vec<AtomicU64> = (0..word_count).map(|at| AtomicU64::new(word(at))).collect();
            for depth_count in 0..170 {
                let mut depths = vec![1_000; depth_count];
                for_each_end(&words, &mut depths, |depth, end| *depth += end as u32);
                for (at, &depth) in depths.iter().enumerate() {
                    let end = if at < 4 * word_count { end_at(at) as u32 } else { 0 };
                    assert_eq!(depth, 1_000 + end, "{at} of {depth_count}, {word_count} words");
                }
            }
        }
    }
}
