//! Lists of numbers as little-endian bytes, in HTTP bodies and fields of gRPC messages.

use flash_indexer_core::LocalHash;

/// Number with a fixed width.
pub trait LittleEndian: Sized {
    /// Bytes of a number.
    const BYTES: usize;

    /// Reads a list of numbers; none if the last one is incomplete.
    fn read_list(bytes: &[u8]) -> Option<Vec<Self>>;
}

/// A token.
impl LittleEndian for u32 {
    const BYTES: usize = size_of::<u32>();

    fn read_list(bytes: &[u8]) -> Option<Vec<Self>> {
        let (numbers, rest) = bytes.as_chunks();
        rest.is_empty().then(|| numbers.iter().copied().map(Self::from_le_bytes).collect())
    }
}

impl LittleEndian for LocalHash {
    const BYTES: usize = size_of::<u64>();

    fn read_list(bytes: &[u8]) -> Option<Vec<Self>> {
        let (numbers, rest) = bytes.as_chunks();
        rest.is_empty().then(|| numbers.iter().copied().map(u64::from_le_bytes).map(Self).collect())
    }
}
