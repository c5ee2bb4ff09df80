//! Chunks of a list of tokens, read with the vector instructions of AVX2.

use pulp::x86::V3;

use super::{CHUNK_BYTES, ChunkReader, DIGITS_MAX, NUMBERS_MAX, Plain, WINDOW_BYTES};

/// Numbers that are converted together.
const LANES: usize = 4;
/// Bytes of a vector.
const VECTOR_BYTES: usize = 32;

/// A reader for processors with the instructions of x86-64-v3. Its methods are part of the caller: the instructions are only used where all code may use them.
#[derive(Clone, Copy)]
pub(super) struct Avx2(pub V3);

type Vectors = [[u8; VECTOR_BYTES]; 2];

impl Avx2 {
    /// Bit set of the bytes that equal this one.
    #[inline(always)]
    fn equal(self, [low, high]: Vectors, byte: u8) -> u64 {
        let Self(simd) = self;
        let byte = simd.avx._mm256_set1_epi8(byte.cast_signed());
        let low = simd.avx2._mm256_movemask_epi8(simd.avx2._mm256_cmpeq_epi8(pulp::cast(low), byte));
        let high = simd.avx2._mm256_movemask_epi8(simd.avx2._mm256_cmpeq_epi8(pulp::cast(high), byte));
        u64::from(low.cast_unsigned()) | (u64::from(high.cast_unsigned()) << VECTOR_BYTES)
    }

    /// Bit set of the digits of one vector.
    #[inline(always)]
    fn digits(self, bytes: [u8; VECTOR_BYTES]) -> u64 {
        let Self(simd) = self;
        let zero = simd.avx._mm256_set1_epi8(b'0'.cast_signed());
        let digits = simd.avx2._mm256_sub_epi8(pulp::cast(bytes), zero);
        let limited = simd.avx2._mm256_min_epu8(digits, simd.avx._mm256_set1_epi8(9));
        u64::from(simd.avx2._mm256_movemask_epi8(simd.avx2._mm256_cmpeq_epi8(limited, digits)).cast_unsigned())
    }

    /// The numbers at the ends of words, after this many bits of each word.
    #[inline(always)]
    fn numbers(self, words: [u64; LANES], before: [u64; LANES]) -> [u32; LANES] {
        let Self(simd) = self;
        let (words, before) = (pulp::cast(words), pulp::cast(before));
        // The bytes before a number become leading zeros.
        let digits = simd.avx2._mm256_xor_si256(words, simd.avx._mm256_set1_epi8(b'0'.cast_signed()));
        let digits = simd.avx2._mm256_sllv_epi64(simd.avx2._mm256_srlv_epi64(digits, before), before);
        // Each step multiplies the first of two neighbours by a power of ten, and adds the second.
        let pairs = simd.avx2._mm256_maddubs_epi16(digits, simd.avx._mm256_set1_epi16(weights(10, 8) as i16));
        let fours = simd.avx2._mm256_madd_epi16(pairs, simd.avx._mm256_set1_epi32(weights(100, 16)));
        let fours = simd.avx2._mm256_packus_epi32(fours, fours);
        let numbers = simd.avx2._mm256_madd_epi16(fours, simd.avx._mm256_set1_epi32(weights(10_000, 16)));
        // Packing left each half of the vector twice.
        let [a, b, _, _, c, d, _, _]: [u32; 2 * LANES] = pulp::cast(numbers);
        [a, b, c, d]
    }
}

/// A weight and, after this many bits, one.
const fn weights(first: i32, bits: u32) -> i32 {
    first | (1 << bits)
}

impl ChunkReader for Avx2 {
    #[inline(always)]
    fn other_bytes(self, chunk: &[u8; CHUNK_BYTES]) -> u64 {
        let [low, high]: Vectors = pulp::cast(*chunk);
        !(self.digits(low) | (self.digits(high) << VECTOR_BYTES))
    }

    #[inline(always)]
    fn plain(self, window: &[u8; WINDOW_BYTES], begin: u64, others: u64) -> Option<Plain> {
        let vectors: Vectors = pulp::cast(*window.last_chunk::<CHUNK_BYTES>()?);
        let (commas, spaces) = (self.equal(vectors, b','), self.equal(vectors, b' '));
        let (digits, is_new) = (!others, u64::from(begin == 0));
        let mut starts = digits & ((others << 1) | is_new);
        let two = digits & (digits >> 1);
        let four = two & (two >> 2);
        let too_long = four & (four >> 4) & (digits >> DIGITS_MAX);
        let leading_zeros = self.equal(vectors, b'0') & starts & (digits >> 1);
        let misplaced = (commas & !((digits << 1) | (is_new ^ 1))) | (spaces & !((commas << 1) | is_new));
        if commas == 0 || others != commas | spaces || misplaced | too_long | leading_zeros != 0 {
            return None;
        }
        let mut begin = begin;
        if is_new != 0 {
            begin = u64::from(starts.trailing_zeros());
            starts &= starts.wrapping_sub(1);
        } else {
            // A number that began in the chunk before.
            let length = u64::from(commas.trailing_zeros()).wrapping_sub(begin);
            let first = window[begin.wrapping_add(DIGITS_MAX as u64) as usize % WINDOW_BYTES];
            if length > DIGITS_MAX as u64 || (first == b'0' && length > 1) {
                return None;
            }
        }
        let mut numbers = [0; NUMBERS_MAX];
        let mut ends = commas;
        for numbers in numbers.as_chunks_mut().0 {
            let (mut words, mut before) = ([0; LANES], [0; LANES]);
            for lane in 0..LANES {
                // After the last number, lanes have any number, which is not counted.
                let end = u64::from(ends.trailing_zeros()) % CHUNK_BYTES as u64;
                ends &= ends.wrapping_sub(1);
                words[lane] = u64::from_le_bytes(*window[end as usize..].first_chunk()?);
                before[lane] = (DIGITS_MAX as u64).wrapping_sub(end.wrapping_sub(begin)).wrapping_mul(u8::BITS.into());
                begin = u64::from(starts.trailing_zeros());
                starts &= starts.wrapping_sub(1);
            }
            *numbers = self.numbers(words, before);
            if ends == 0 {
                break;
            }
        }
        // A number in progress begins after the last other byte.
        let begin = CHUNK_BYTES - others.leading_zeros() as usize;
        Some(Plain { numbers, count: commas.count_ones() as usize, begin })
    }
}
