//! Canonical CBOR (RFC 7049), written head by head into whatever takes bytes: engines hash it, so it need not lie
//! anywhere as a whole.

/// Takes encoded bytes in order.
pub trait Sink {
    /// Takes some bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The item that is nothing.
pub const NULL: u8 = 0xf6;

const UNSIGNED: u8 = 0 << 5;
const NEGATIVE: u8 = 1 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;
const MAP: u8 = 5 << 5;

/// An integer that is not negative.
#[inline]
pub fn unsigned(out: &mut impl Sink, value: u64) {
    head(out, UNSIGNED, value);
}

/// An integer.
pub fn integer(out: &mut impl Sink, value: i64) {
    match u64::try_from(value) {
        Ok(value) => unsigned(out, value),
        // Two's complement: the complement of -1 - n is n.
        Err(_) => head(out, NEGATIVE, !value as u64),
    }
}

/// A byte string.
pub fn bytes(out: &mut impl Sink, value: &[u8]) {
    head(out, BYTES, value.len() as u64);
    out.put(value);
}

/// A text.
pub fn text(out: &mut impl Sink, value: &str) {
    head(out, TEXT, value.len() as u64);
    out.put(value.as_bytes());
}

/// The head of an array, which so many items follow.
pub fn array(out: &mut impl Sink, items: usize) {
    head(out, ARRAY, items as u64);
}

/// The head of a map, which so many pairs of key and value follow, the shorter keys first and equally long ones in the
/// order of their bytes.
pub fn map(out: &mut impl Sink, pairs: usize) {
    head(out, MAP, pairs as u64);
}

/// Nothing.
pub fn null(out: &mut impl Sink) {
    out.put(&[NULL]);
}

/// The tokens of a block as an array.
#[inline]
pub fn tokens(out: &mut impl Sink, tokens: &[u32]) {
    array(out, tokens.len());
    for &token in tokens {
        unsigned(out, token.into());
    }
}

/// A head in its shortest form.
#[inline]
fn head(out: &mut impl Sink, major: u8, value: u64) {
    if value < 24 {
        out.put(&[major | value as u8]);
    } else if let Ok(value) = u8::try_from(value) {
        out.put(&[major | 24, value]);
    } else if let Ok(value) = u16::try_from(value) {
        let [a, b] = value.to_be_bytes();
        out.put(&[major | 25, a, b]);
    } else if let Ok(value) = u32::try_from(value) {
        let [a, b, c, d] = value.to_be_bytes();
        out.put(&[major | 26, a, b, c, d]);
    } else {
        out.put(&[major | 27]);
        out.put(&value.to_be_bytes());
    }
}
