//! MessagePack reader that borrows from its input and never trusts a length.

use rmp::Marker;

/// The bytes are not MessagePack, or are truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed MessagePack at byte {at}")]
pub struct MsgpackError {
    /// Offset of the value that could not be read.
    pub at: usize,
}

/// One value, or the head of a container whose elements follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// Number of elements that follow.
    Array(u32),
    /// Number of key-value pairs that follow.
    Map(u32),
    Extension,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A reader that starts at offset `at`.
    pub(crate) fn starting_at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Bytes read since `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// Upper bound of the elements of a container that claims `len`: each element takes at least one byte.
    pub(crate) fn capacity_for(&self, len: u32) -> usize {
        (len as usize).min(self.bytes.len() - self.at)
    }

    pub(crate) fn next(&mut self) -> Result<Token<'a>, MsgpackError> {
        let start = self.at;
        self.read().ok_or(MsgpackError { at: start })
    }

    /// Skips one whole value without recursion.
    pub(crate) fn skip(&mut self) -> Result<(), MsgpackError> {
        let mut pending = 1u64;
        while pending > 0 {
            pending -= 1;
            // Fast path: most values of a batch are numbers.
            let len = self.bytes.get(self.at).map_or(0, |&marker| NUMBER_LENS[usize::from(marker)].into());
            if len > 0 {
                if len > self.bytes.len() - self.at {
                    return Err(MsgpackError { at: self.at });
                }
                self.at += len;
                continue;
            }
            match self.next()? {
                Token::Array(len) => pending = pending.saturating_add(u64::from(len)),
                Token::Map(len) => pending = pending.saturating_add(2 * u64::from(len)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the next value if it is an unsigned number of at most 32 bits and five more bytes are available;
    /// otherwise reads nothing. Token widths are hard to predict, so the widths share one branch.
    #[inline]
    pub(crate) fn next_u32(&mut self) -> Option<u32> {
        let &[marker, a, b, c, d] = self.bytes.get(self.at..)?.first_chunk()?;
        let following = u32::from_be_bytes([a, b, c, d]);
        let (len, value) = match marker {
            0x00..=0x7f => (1, marker.into()),
            0xcc..=0xce => {
                let bits = 8 << (marker - 0xcc);
                (1 + bits / 8, following >> (32 - bits))
            }
            _ => return None,
        };
        self.at += len as usize;
        Some(value)
    }

    fn read(&mut self) -> Option<Token<'a>> {
        let [marker] = self.array()?;
        Some(match Marker::from_u8(marker) {
            Marker::Null => Token::Nil,
            Marker::True | Marker::False => Token::Bool,
            Marker::FixPos(value) => Token::Unsigned(value.into()),
            Marker::U8 => Token::Unsigned(self.u8()?.into()),
            Marker::U16 => Token::Unsigned(self.u16()?.into()),
            Marker::U32 => Token::Unsigned(self.u32()?.into()),
            Marker::U64 => Token::Unsigned(u64::from_be_bytes(self.array()?)),
            Marker::FixNeg(value) => signed(value.into()),
            Marker::I8 => signed(i8::from_be_bytes(self.array()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.array()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.array()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Token::Float(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Token::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(len) => Token::Text(self.take(len.into())?),
            Marker::Str8 => Token::Text(self.u8().and_then(|len| self.take(len.into()))?),
            Marker::Str16 => Token::Text(self.u16().and_then(|len| self.take(len.into()))?),
            Marker::Str32 => Token::Text(self.u32().and_then(|len| self.take(len as usize))?),
            Marker::Bin8 => Token::Bytes(self.u8().and_then(|len| self.take(len.into()))?),
            Marker::Bin16 => Token::Bytes(self.u16().and_then(|len| self.take(len.into()))?),
            Marker::Bin32 => Token::Bytes(self.u32().and_then(|len| self.take(len as usize))?),
            Marker::FixArray(len) => Token::Array(len.into()),
            Marker::Array16 => Token::Array(self.u16()?.into()),
            Marker::Array32 => Token::Array(self.u32()?),
            Marker::FixMap(len) => Token::Map(len.into()),
            Marker::Map16 => Token::Map(self.u16()?.into()),
            Marker::Map32 => Token::Map(self.u32()?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.u8().and_then(|len| self.extension(len.into()))?,
            Marker::Ext16 => self.u16().and_then(|len| self.extension(len.into()))?,
            Marker::Ext32 => self.u32().and_then(|len| self.extension(len as usize))?,
            Marker::Reserved => return None,
        })
    }

    fn extension(&mut self, len: usize) -> Option<Token<'a>> {
        self.take(1)?; // the extension's type
        self.take(len)?;
        Some(Token::Extension)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

fn signed(value: i64) -> Token<'static> {
    u64::try_from(value).map_or(Token::Negative(value), Token::Unsigned)
}

/// Encoded length of a number by its marker, in bytes; zero for any other marker.
const NUMBER_LENS: [u8; 256] = {
    let mut lens = [0; 256];
    let mut marker = 0;
    while marker < lens.len() {
        lens[marker] = match marker {
            0x00..=0x7f | 0xe0..=0xff => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        marker += 1;
    }
    lens
};
