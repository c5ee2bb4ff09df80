//! Fast parsing of a JSON list of tokens.
//!
//! The parser first finds the bytes that end a number, 64 bytes at a time. Then it reads each number from the eight bytes
//! before its end. No number waits for the length of the number before it, so the processor works on several at once. With the
//! instructions of x86-64-v3, AVX2 among them, it reads four numbers of a [plain chunk](Plain) together.

#[cfg(target_arch = "x86_64")]
mod avx2;

/// Bytes that are searched for the ends of numbers at a time.
const CHUNK_BYTES: usize = 64;
/// A byte that is neither part of a list of numbers nor a digit. It fills the last chunk.
const FILL: u8 = b'"';
/// Digits of a number that is read at once.
const DIGITS_MAX: usize = size_of::<u64>();
/// One in each byte.
const EACH: u64 = 0x0101_0101_0101_0101;
/// A chunk and the bytes before it that belong to a number which ends in it.
const WINDOW_BYTES: usize = DIGITS_MAX + CHUNK_BYTES;
/// Numbers that can end in a chunk: each has a digit and a comma.
const NUMBERS_MAX: usize = CHUNK_BYTES / 2;

/// How a kind of processor reads the chunks of a list.
trait ChunkReader: Copy {
    /// Bit set of the bytes that are not digits.
    fn other_bytes(self, chunk: &[u8; CHUNK_BYTES]) -> u64;

    /// The numbers that end in a chunk, the last bytes of `window`; none if the chunk is not plain, or this kind of processor reads each number
    /// alone. `begin` is where the first number begins, as a wrapping distance from the chunk's start. `others` is the bit set of
    /// [`ChunkReader::other_bytes`].
    fn plain(self, window: &[u8; WINDOW_BYTES], begin: u64, others: u64) -> Option<Plain>;
}

/// The numbers that end in a plain chunk: it has digits, at most eight in a row, commas after digits, and spaces after commas.
struct Plain {
    /// Any numbers after the first `count` ones.
    numbers: [u32; NUMBERS_MAX],
    count: usize,
    /// Where the next number begins, or a space before it: its distance from the chunk's start.
    begin: usize,
}

/// A reader for all processors.
#[derive(Clone, Copy)]
struct Words;

impl ChunkReader for Words {
    #[inline(always)]
    fn other_bytes(self, chunk: &[u8; CHUNK_BYTES]) -> u64 {
        let (words, _) = chunk.as_chunks();
        words.iter().rev().fold(0, |others, word| (others << 8) | other_bytes_of_word(*word))
    }

    #[inline(always)]
    fn plain(self, _: &[u8; WINDOW_BYTES], _: u64, _: u64) -> Option<Plain> {
        None
    }
}

/// Reads a list of tokens, from the byte after its opening bracket on. Returns the tokens and the position after the
/// closing bracket; none unless all elements are numbers of 32 bits without sign, fraction, exponent or leading zeros.
#[must_use]
pub fn read_token_list(bytes: &[u8], start: usize) -> Option<(Vec<u32>, usize)> {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        struct Read<'a>(avx2::Avx2, &'a [u8], usize);
        impl pulp::NullaryFnOnce for Read<'_> {
            type Output = Option<(Vec<u32>, usize)>;

            #[inline(always)]
            fn call(self) -> Self::Output {
                let Self(reader, bytes, start) = self;
                read(reader, bytes, start)
            }
        }
        return simd.vectorize(Read(avx2::Avx2(simd), bytes, start));
    }
    read(Words, bytes, start)
}

#[inline(always)]
fn read(reader: impl ChunkReader, bytes: &[u8], start: usize) -> Option<(Vec<u32>, usize)> {
    // A token and its comma have at least two bytes, and typically six.
    let mut tokens = Vec::with_capacity((bytes.len() - start) / 6 + NUMBERS_MAX);
    let mut expects_number = true;
    let mut begin = start;
    for (index, chunk) in bytes[start..].chunks(CHUNK_BYTES).enumerate() {
        let chunk_start = start + index * CHUNK_BYTES;
        let mut ends = match chunk.as_array() {
            Some(chunk) => reader.other_bytes(chunk),
            None => reader.other_bytes(&filled(chunk)),
        };
        if expects_number
            && chunk.len() == CHUNK_BYTES
            && let Some(window) = bytes[..chunk_start + CHUNK_BYTES].last_chunk()
            && let Some(plain) = reader.plain(window, begin.wrapping_sub(chunk_start) as u64, ends)
        {
            // Copying a fixed number of them is faster.
            let count = tokens.len() + plain.count;
            tokens.extend_from_slice(&plain.numbers);
            tokens.truncate(count);
            begin = chunk_start + plain.begin;
            continue;
        }
        while ends != 0 {
            let end = chunk_start + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            let delimiter = *bytes.get(end)?;
            if end > begin {
                if !expects_number {
                    return None;
                }
                tokens.push(token(bytes, begin, end)?);
                expects_number = false;
            }
            begin = end + 1;
            match delimiter {
                b',' if !expects_number => expects_number = true,
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b']' if !expects_number || tokens.is_empty() => return Some((tokens, begin)),
                _ => return None,
            }
        }
    }
    None
}

fn filled(chunk: &[u8]) -> [u8; CHUNK_BYTES] {
    let mut whole = [FILL; CHUNK_BYTES];
    whole[..chunk.len()].copy_from_slice(chunk);
    whole
}

/// Bit set of the bytes of one word that are not digits.
#[inline(always)]
fn other_bytes_of_word(word: [u8; 8]) -> u64 {
    let digits = u64::from_le_bytes(word) ^ (EACH * u64::from(b'0'));
    // Sets the top bit of each byte that is not a digit, without a carry into the next byte.
    let others = (((digits & (EACH * 0x7f)) + EACH * (0x7f - 9)) | digits) & (EACH * 0x80);
    // Moves the top bit of byte i to bit i of the highest byte.
    (others >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The number between two positions that has only digits.
#[inline(always)]
fn token(bytes: &[u8], begin: usize, end: usize) -> Option<u32> {
    let digits = end - begin;
    if digits > 1 && bytes[begin] == b'0' {
        return None;
    }
    match bytes[..end].last_chunk() {
        Some(word) if digits <= DIGITS_MAX => Some(number_at_end(*word, digits)),
        _ => str::from_utf8(&bytes[begin..end]).ok()?.parse().ok(),
    }
}

/// The number of one to eight digits at the end of a word.
fn number_at_end(word: [u8; DIGITS_MAX], digits: usize) -> u32 {
    let before = 8 * (DIGITS_MAX - digits);
    // Replaces the bytes before the number with leading zeros, then combines digits to pairs, pairs to fours, and fours to
    // the number.
    let digits = (u64::from_le_bytes(word) ^ (EACH * u64::from(b'0'))) >> before << before;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ODD: [&str; 12] =
        ["-1", "01", "1.5", "4294967296", "99999999999", "", "1 2", "\u{ff10}", "00", "99999999", "0", "1]"];

    fn number() -> impl Strategy<Value = String> {
        let token = any::<u32>().prop_flat_map(|max| 0..=max).prop_map(|token| token.to_string());
        prop_oneof![50 => token, 1 => odd()]
    }

    fn odd() -> impl Strategy<Value = String> {
        prop::sample::select(ODD.to_vec()).prop_map(str::to_owned)
    }

    fn space() -> impl Strategy<Value = &'static str> {
        prop_oneof![5 => Just(""), 3 => Just(" "), 1 => Just("\n\t ")]
    }

    /// A list's items: with any spaces, or as most writers of JSON format them, where few chunks or none have anything odd.
    fn items() -> impl Strategy<Value = Vec<String>> {
        let spaced =
            (space(), number(), space()).prop_map(|(before, number, after)| format!("{before}{number}{after}"));
        let plain = |before: &'static str| {
            let digits = |count| 0..10_u32.pow(count);
            let usual = prop_oneof![9 => digits(6), 4 => digits(1), 1 => digits(8), 1 => 0..=u32::MAX]
                .prop_map(|token| token.to_string());
            prop_oneof![300 => usual, 1 => odd(), 1 => space().prop_map(|space| format!("7{space}"))]
                .prop_map(move |number| format!("{before}{number}"))
        };
        prop_oneof![
            prop::collection::vec(spaced, 0..60),
            prop::collection::vec(plain(""), 0..200),
            prop::collection::vec(plain(" "), 0..200),
        ]
    }

    /// Checks both readers against the general parser.
    fn check(list: &str, before: usize, after: &str) {
        let body = format!("{}{list}{after}", "x".repeat(before));
        let mut values = serde_json::Deserializer::from_str(list).into_iter::<Vec<u32>>();
        let expected = values.next().and_then(Result::ok).map(|tokens| (tokens, before + values.byte_offset()));
        assert_eq!(read_token_list(body.as_bytes(), before + 1), expected, "{body}");
        assert_eq!(read(Words, body.as_bytes(), before + 1), expected, "{body}");
    }

    #[test]
    fn odd_items_are_found_at_every_position_of_a_chunk() {
        let numbers = ["12345"; 25].join(",");
        for indent in (0..CHUNK_BYTES).map(|indent| " ".repeat(indent)) {
            for odd in ODD {
                for space in ["", " "] {
                    check(&format!("[{indent}{numbers},{space}{odd},{numbers}]"), 3, "}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_list_is_parsed_as_the_general_parser_parses_it(
            items in items(),
            end in prop_oneof![9 => Just("]"), 1 => Just(""), 1 => Just(",]"), 1 => Just("x]")],
            before in 0_usize..70,
            after in prop_oneof![Just(""), Just("}"), Just(", \"a\": [1]}")],
        ) {
            let list = format!("[{}{end}", items.join(","));
            check(&list, before, after);
        }
    }

    #[test]
    fn every_byte_that_is_no_digit_is_found() {
        for byte in 0..=u8::MAX {
            for position in 0..CHUNK_BYTES {
                let mut chunk = [b'7'; CHUNK_BYTES];
                chunk[position] = byte;
                let expected = if byte.is_ascii_digit() { 0 } else { 1 << position };
                assert_eq!(Words.other_bytes(&chunk), expected, "{byte} at {position}");
                #[cfg(target_arch = "x86_64")]
                if let Some(simd) = pulp::x86::V3::try_new() {
                    assert_eq!(avx2::Avx2(simd).other_bytes(&chunk), expected, "{byte} at {position}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_every_length_are_parsed() {
        for token in (0..8).flat_map(|power| [10_u32.pow(power) - 1, 10_u32.pow(power), 12_345_678 / 10_u32.pow(power)])
        {
            let text = format!("\u{ff}\u{ff},9:{token}");
            let word = text.as_bytes().last_chunk().map_or_else(|| panic!("{text} is too short"), |word| *word);
            assert_eq!(number_at_end(word, token.to_string().len()), token);
        }
    }
}
