//! Decoding of single fields: tolerant where engines differ, strict where a value changes a block's hash.

use flash_indexer_core::hashing::{Salt, TokenWindow};
use flash_indexer_core::{LocalHash, SequenceHash};

use crate::event::{Components, ExtraKey, HashedTokens, StoreOrigin, TokenIds};
use crate::event_error::{
    EVENT_BLOCKS_MAX, EVENT_COUNTS_MAX, EVENT_FIELDS_MAX, EVENT_KEYS_MAX, EVENT_TOKENS_MAX, EventError,
};
use crate::msgpack::{Reader, Token};

pub(crate) fn wrong(field: &'static str) -> EventError {
    EventError::WrongType { field }
}

/// Decodes an optional field that does not change the meaning of the event; a value of an unexpected type is treated
/// as absent.
pub(crate) fn lenient<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>, &'static str) -> Result<Option<T>, EventError>,
) -> Result<Option<T>, EventError> {
    let mut inside = reader.clone();
    let value = read(&mut inside, "").unwrap_or_default();
    reader.skip()?;
    Ok(value)
}

/// The length of a list, unless it exceeds its limit.
pub(crate) fn limited(len: u32, max: u32, field: &'static str) -> Result<u32, EventError> {
    if len > max { Err(EventError::TooLong { field, count: len, max }) } else { Ok(len) }
}

/// Decodes the elements of a list of this length.
fn elements<'a, T>(
    reader: &mut Reader<'a>,
    len: u32,
    mut element: impl FnMut(&mut Reader<'a>) -> Result<T, EventError>,
) -> Result<Vec<T>, EventError> {
    let mut elements = Vec::with_capacity(reader.capacity_for(len));
    for _ in 0..len {
        elements.push(element(reader)?);
    }
    Ok(elements)
}

/// Length of the list that follows; none for nil.
fn optional_list(reader: &mut Reader<'_>, max: u32, field: &'static str) -> Result<Option<u32>, EventError> {
    match reader.next()? {
        Token::Nil => Ok(None),
        Token::Array(len) => limited(len, max, field).map(Some),
        _ => Err(wrong(field)),
    }
}

/// A sequence hash from an integer of any width or sign, or from the last eight bytes of a byte string (big-endian).
fn hash_of(token: Token<'_>, field: &'static str) -> Result<SequenceHash, EventError> {
    match token {
        Token::Unsigned(value) => Ok(SequenceHash(value)),
        Token::Negative(value) => Ok(SequenceHash(value.cast_unsigned())),
        Token::Bytes([]) => Err(EventError::OutOfRange { field }),
        Token::Bytes(bytes) => {
            let tail = &bytes[bytes.len().saturating_sub(8)..];
            Ok(SequenceHash(tail.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))))
        }
        _ => Err(wrong(field)),
    }
}

pub(crate) fn hashes(reader: &mut Reader<'_>, field: &'static str) -> Result<Vec<SequenceHash>, EventError> {
    let Token::Array(len) = reader.next()? else { return Err(wrong(field)) };
    elements(reader, limited(len, EVENT_BLOCKS_MAX, field)?, |reader| hash_of(reader.next()?, field))
}

pub(crate) fn optional_hash(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<SequenceHash>, EventError> {
    match reader.next()? {
        Token::Nil => Ok(None),
        token => hash_of(token, field).map(Some),
    }
}

fn token_of(token: Token<'_>, field: &'static str) -> Result<u32, EventError> {
    match token {
        Token::Unsigned(value) => u32::try_from(value).map_err(|_| EventError::OutOfRange { field }),
        Token::Negative(_) => Err(EventError::OutOfRange { field }),
        _ => Err(wrong(field)),
    }
}

/// Decodes tokens or pairs of tokens, never both in one list; nil is an empty list.
pub(crate) fn token_ids(reader: &mut Reader<'_>, field: &'static str) -> Result<TokenIds, EventError> {
    let Some(len) = optional_list(reader, EVENT_TOKENS_MAX, field)? else { return Ok(TokenIds::default()) };
    let is_pair = |token: &Result<Token<'_>, _>| matches!(token, Ok(Token::Array(2)));
    if len > 0 && is_pair(&reader.clone().next()) {
        let pairs = elements(reader, len, |reader| {
            let Token::Array(2) = reader.next()? else { return Err(wrong(field)) };
            Ok([token_of(reader.next()?, field)?, token_of(reader.next()?, field)?])
        });
        return pairs.map(TokenIds::Bigrams);
    }
    plain_tokens(reader, len, field).map(TokenIds::Plain)
}

/// Decodes `hashed_tokens`: the number of the tokens, the tokens of a window beyond its block, the local hashes, and the salt.
pub(crate) fn hashed_tokens(reader: &mut Reader<'_>, field: &'static str) -> Result<HashedTokens, EventError> {
    let Token::Array(4) = reader.next()? else { return Err(wrong(field)) };
    let Token::Unsigned(count) = reader.next()? else { return Err(wrong(field)) };
    let count = u32::try_from(count).ok().filter(|&count| count > 0).ok_or(EventError::OutOfRange { field })?;
    let count = limited(count, EVENT_TOKENS_MAX, field)?;
    let window = match reader.next()? {
        Token::Unsigned(0) => TokenWindow::Block,
        Token::Unsigned(1) => TokenWindow::BlockAndNext,
        _ => return Err(wrong(field)),
    };
    let local_hashes = hashes(reader, field)?.into_iter().map(|SequenceHash(bits)| LocalHash(bits)).collect();
    let salt = optional_hash(reader, field)?.map(|SequenceHash(bits)| Salt::from_bits(bits));
    Ok(HashedTokens { count, window, local_hashes, salt })
}

fn plain_tokens(reader: &mut Reader<'_>, len: u32, field: &'static str) -> Result<Vec<u32>, EventError> {
    elements(reader, len, |reader| match reader.next_u32() {
        Some(token) => Ok(token),
        None => token_of(reader.next()?, field),
    })
}

/// Decodes a list of counts.
pub(crate) fn optional_counts(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<Vec<u32>>, EventError> {
    optional_list(reader, EVENT_COUNTS_MAX, field)?.map(|len| plain_tokens(reader, len, field)).transpose()
}

/// Decodes `origin`.
pub(crate) fn origin(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<StoreOrigin>, EventError> {
    Ok(optional_text(reader, field)?.and_then(|text| StoreOrigin::named(&text.to_ascii_uppercase())))
}

/// Decodes `component_types`. A name of another component is ignored.
pub(crate) fn components(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<Components>, EventError> {
    let Some(len) = optional_list(reader, EVENT_BLOCKS_MAX, field)? else { return Ok(None) };
    let mut components = Components::default();
    for _ in 0..len {
        let Token::Text(name) = reader.next()? else { return Err(wrong(field)) };
        match name {
            b"FULL" => components.full = true,
            b"SWA" => components.swa = true,
            b"MAMBA" => components.mamba = true,
            _ => {}
        }
    }
    Ok(Some(components))
}

pub(crate) fn lookahead(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<Vec<Vec<u32>>>, EventError> {
    let Some(len) = optional_list(reader, EVENT_BLOCKS_MAX, field)? else { return Ok(None) };
    let blocks = elements(reader, len, |reader| {
        let len = optional_list(reader, EVENT_TOKENS_MAX, field)?.unwrap_or(0);
        plain_tokens(reader, len, field)
    });
    blocks.map(Some)
}

pub(crate) fn text<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, EventError> {
    str::from_utf8(bytes).map_err(|_| EventError::OutOfRange { field })
}

pub(crate) fn optional_text<'a>(reader: &mut Reader<'a>, field: &'static str) -> Result<Option<&'a str>, EventError> {
    match reader.next()? {
        Token::Nil => Ok(None),
        Token::Text(bytes) => text(bytes, field).map(Some),
        _ => Err(wrong(field)),
    }
}

pub(crate) fn optional_integer(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<i64>, EventError> {
    match reader.next()? {
        Token::Nil => Ok(None),
        Token::Unsigned(value) => i64::try_from(value).map(Some).map_err(|_| EventError::OutOfRange { field }),
        Token::Negative(value) => Ok(Some(value)),
        _ => Err(wrong(field)),
    }
}

pub(crate) fn optional_u32(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<u32>, EventError> {
    let value = optional_integer(reader, field)?;
    value.map(|value| u32::try_from(value).map_err(|_| EventError::OutOfRange { field })).transpose()
}

/// Extra inputs of each block's hash; none for a block without any.
pub(crate) type BlockKeys<'a> = Vec<Option<Vec<ExtraKey<'a>>>>;

/// Decodes a list with nil or keys for each block; `keys` decodes the keys that begin with a token.
fn block_keys<'a>(
    reader: &mut Reader<'a>,
    field: &'static str,
    keys: impl Fn(Token<'a>, &mut Reader<'a>) -> Result<Vec<ExtraKey<'a>>, EventError>,
) -> Result<Option<BlockKeys<'a>>, EventError> {
    let Some(len) = optional_list(reader, EVENT_BLOCKS_MAX, field)? else { return Ok(None) };
    let mut count = 0;
    let blocks = elements(reader, len, |reader| match reader.next()? {
        Token::Nil => Ok(None),
        token => {
            let keys = keys(token, reader)?;
            count = limited(count + keys.len() as u32, EVENT_KEYS_MAX, field)?;
            Ok(Some(keys))
        }
    });
    blocks.map(Some)
}

/// Decodes `extra_keys`: for each block nil, a text, or a list of keys.
pub(crate) fn extra_keys<'a>(
    reader: &mut Reader<'a>,
    field: &'static str,
) -> Result<Option<BlockKeys<'a>>, EventError> {
    block_keys(reader, field, |token, reader| match token {
        Token::Text(bytes) => Ok(vec![ExtraKey::Text(text(bytes, field)?)]),
        Token::Array(len) => key_list(reader, len, field),
        _ => Err(wrong(field)),
    })
}

fn key_list<'a>(reader: &mut Reader<'a>, len: u32, field: &'static str) -> Result<Vec<ExtraKey<'a>>, EventError> {
    elements(reader, limited(len, EVENT_KEYS_MAX, field)?, |reader| {
        let start = reader.position();
        let mut inside = reader.clone();
        reader.skip()?;
        let opaque = ExtraKey::Opaque(reader.since(start));
        Ok(match inside.next()? {
            Token::Text(bytes) => ExtraKey::Text(text(bytes, field)?),
            Token::Array(len) => tuple(&mut inside, len)?.unwrap_or(opaque),
            _ => opaque,
        })
    })
}

/// Decodes the tuples that engines are known to send; none for any other.
fn tuple<'a>(reader: &mut Reader<'a>, len: u32) -> Result<Option<ExtraKey<'a>>, EventError> {
    if !(2..=3).contains(&len) {
        return Ok(None);
    }
    let Token::Text(first) = reader.next()? else { return Ok(None) };
    let second = reader.next()?;
    let third = if len == 3 { Some(reader.next()?) } else { None };
    Ok(match (str::from_utf8(first), second, third) {
        (Ok("cache_salt"), Token::Text(salt), None) => str::from_utf8(salt).ok().map(ExtraKey::Salt),
        (Ok("lora"), Token::Text(name), _) => str::from_utf8(name).ok().map(ExtraKey::Lora),
        (Ok("mm"), Token::Text(id), Some(offset)) => item(str::from_utf8(id).ok(), offset),
        (id, offset, None) => item(id.ok(), offset),
        _ => None,
    })
}

fn item<'a>(id: Option<&'a str>, offset: Token<'_>) -> Option<ExtraKey<'a>> {
    let offset = match offset {
        Token::Unsigned(offset) => i64::try_from(offset).ok()?,
        Token::Negative(offset) => offset,
        _ => return None,
    };
    id.map(|id| ExtraKey::Item { id, offset })
}

/// Decodes `mm_keys` of TensorRT-LLM: for each block nil, or a list of maps with `hash` and `start_offset`.
pub(crate) fn mm_keys<'a>(reader: &mut Reader<'a>, field: &'static str) -> Result<Option<BlockKeys<'a>>, EventError> {
    block_keys(reader, field, |token, reader| match token {
        Token::Map(len) => Ok(vec![mm_key(reader, len, field)?]),
        Token::Array(len) => elements(reader, limited(len, EVENT_KEYS_MAX, field)?, |reader| {
            let Token::Map(len) = reader.next()? else { return Err(wrong(field)) };
            mm_key(reader, len, field)
        }),
        _ => Err(wrong(field)),
    })
}

fn mm_key<'a>(reader: &mut Reader<'a>, len: u32, field: &'static str) -> Result<ExtraKey<'a>, EventError> {
    let (mut id, mut offset) = (None, 0);
    for _ in 0..limited(len, EVENT_FIELDS_MAX, field)? {
        let Token::Text(key) = reader.next()? else { return Err(wrong(field)) };
        match key {
            b"hash" => id = optional_text(reader, field)?,
            b"start_offset" => offset = optional_integer(reader, field)?.unwrap_or(0),
            _ => reader.skip()?,
        }
    }
    let id = id.ok_or(EventError::MissingField { field })?;
    Ok(ExtraKey::Item { id, offset })
}
