//! Canonical CBOR (RFC 7049), written item by item into a [`Sink`]: a hasher consumes it without a buffer.

/// Consumer of encoded bytes, in order.
pub trait Sink {
    /// Consumes the next bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The encoded null item.
pub const NULL: u8 = 0xf6;

const UNSIGNED: u8 = 0 << 5;
const NEGATIVE: u8 = 1 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;

/// Writes a non-negative integer.
#[inline]
pub fn unsigned(out: &mut impl Sink, value: u64) {
    head(out, UNSIGNED, value);
}

/// Writes an integer.
pub fn integer(out: &mut impl Sink, value: i64) {
    match u64::try_from(value) {
        Ok(value) => unsigned(out, value),
        // Two's complement: the complement of -1 - n is n.
        Err(_) => head(out, NEGATIVE, !value as u64),
    }
}

/// Writes a byte string.
pub fn bytes(out: &mut impl Sink, value: &[u8]) {
    head(out, BYTES, value.len() as u64);
    out.put(value);
}

/// Writes a text string.
pub fn text(out: &mut impl Sink, value: &str) {
    head(out, TEXT, value.len() as u64);
    out.put(value.as_bytes());
}

/// Writes the head of an array; `items` items follow.
pub fn array(out: &mut impl Sink, items: usize) {
    head(out, ARRAY, items as u64);
}

/// Writes null.
pub fn null(out: &mut impl Sink) {
    out.put(&[NULL]);
}

/// Writes a block's tokens as an array.
#[inline]
pub fn tokens(out: &mut impl Sink, tokens: &[u32]) {
    array(out, tokens.len());
    for &token in tokens {
        unsigned(out, token.into());
    }
}

/// Writes a head in its shortest form.
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
