//! Decoding of the events of Mooncake's master, which are maps with `event_type`.
//!
//! The master publishes the objects of its store. An object is usually one block, named by the hash that the engine's
//! connector gave it, without tokens and without its parent: its content is taken from the engine that has stored the block.
//! The master publishes whether a medium has a block, not how many copies of it.

use flash_indexer_core::SequenceHash;

use crate::event::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, StoreOrigin};
use crate::event_error::{EVENT_BLOCKS_MAX, EventError};
use crate::event_fields::read_entries;
use crate::fields;
use crate::msgpack::{Reader, Token};
use crate::unknown_fields::UnknownFields;

/// Shortest block hash in a text, in hexadecimal digits: eight bytes.
const HASH_DIGITS_MIN: usize = 16;

/// Fields without an effect on the meaning of the event.
const IGNORED_FIELDS: [&[u8]; 9] = [
    b"event_id",
    b"timestamp",
    b"type",
    b"model_name",
    b"tenant_id",
    b"backend_id",
    b"dp_rank",
    b"base_block_idx",
    b"cache_prefix",
];

/// Fields with the number of an object's part of a block, where a block is divided among devices.
const PART_FIELDS: [&[u8]; 5] = [b"tp_rank", b"head_or_tp_rank", b"pcp_rank", b"dcp_rank", b"pp_rank"];
/// The same in the key of an object, where the number follows.
const PARTS_OF_KEY: [&str; 5] = ["tp_rank:", "head_or_tp_rank:", "pcp", "dcp", "pp_rank:"];
/// The cache group in the key of an object, where its number follows.
const GROUP_OF_KEY: &str = "group:";

/// Fields of an event.
#[derive(Default)]
struct Fields<'a> {
    kind: &'a [u8],
    /// Hashes by which the store names the blocks.
    hashes: Vec<SequenceHash>,
    /// Hashes by which the engine names them.
    engine_hashes: Vec<SequenceHash>,
    /// The object's key.
    key: ObjectKey,
    /// Whether the object is not the first part of its blocks.
    is_further_part: bool,
    /// The other fields, as a store has them.
    stored: BlockStored<'a>,
}

/// Decodes an event, whose map has `len` entries, and advances the reader past it.
pub(crate) fn mooncake_event<'a>(
    reader: &mut Reader<'a>,
    len: u32,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<EngineEvent<'a>, EventError> {
    let mut event = Fields::default();
    read_entries(reader, len, |key, reader| event.read(key, reader, unknown))?;
    match event.kind {
        // The parts of a block are stored and removed independently: the first one alone does not show that the block is there.
        b"stored" if event.is_further_part || event.key.is_further_part => {
            Err(EventError::OutOfRange { field: "tp_rank" })
        }
        b"stored" => {
            let (block_hashes, origin) = (event.blocks()?, Some(StoreOrigin::Reused));
            let group = CacheGroup { idx: event.group_idx(), ..CacheGroup::default() };
            Ok(EngineEvent::Stored(BlockStored { block_hashes, group, origin, ..event.stored }))
        }
        b"removed" => {
            let block_hashes = event.blocks()?;
            let remaining_copy_counts = Some(vec![0; block_hashes.len()]);
            let (medium, group_idx) = (event.stored.medium, event.group_idx());
            let removed =
                BlockRemoved { block_hashes, medium, group_idx, remaining_copy_counts, ..BlockRemoved::default() };
            Ok(EngineEvent::Removed(removed))
        }
        b"cleared" => Ok(EngineEvent::Cleared),
        kind => Err(EventError::unknown_type(kind)),
    }
}

impl<'a> Fields<'a> {
    fn read(
        &mut self,
        field: &'a [u8],
        reader: &mut Reader<'a>,
        unknown: &mut UnknownFields<'a, '_>,
    ) -> Result<(), EventError> {
        let parent = &mut self.stored.parent_block_hash;
        match field {
            b"event_type" => {
                let Token::Text(kind) = reader.next()? else { return Err(EventError::NotAnEvent) };
                self.kind = kind;
            }
            b"seq_hashes" => self.add_hashes(fields::hashes(reader, "seq_hashes")?, "seq_hashes")?,
            b"block_hashes" => self.add_hashes(fields::hashes(reader, "block_hashes")?, "block_hashes")?,
            b"connector_block_hash" => self.engine_hashes = engine_hashes(reader)?,
            b"object_key" => {
                self.key = fields::optional_text(reader, "object_key")?.map(ObjectKey::of).unwrap_or_default();
            }
            b"parent_hash" => *parent = fields::optional_hash(reader, "parent_hash")?.or(*parent),
            b"parent_block_hash" => *parent = fields::optional_hash(reader, "parent_block_hash")?.or(*parent),
            b"token_ids" => self.stored.token_ids = fields::token_ids(reader, "token_ids")?,
            b"block_size" => self.stored.block_size = fields::optional_u32(reader, "block_size")?.unwrap_or(0),
            b"medium" => self.stored.medium = fields::optional_text(reader, "medium")?,
            b"lora_name" => self.stored.lora_name = fields::optional_text(reader, "lora_name")?,
            b"additional_salt" => self.stored.cache_salt = fields::optional_text(reader, "additional_salt")?,
            b"group_id" => self.stored.group.idx = group(reader)?,
            field if PART_FIELDS.contains(&field) => {
                self.is_further_part |= fields::optional_u32(reader, "tp_rank")?.is_some_and(|part| part > 0);
            }
            field if IGNORED_FIELDS.contains(&field) => reader.skip()?,
            // An object with one layer of a block is not the block.
            b"layer_id" => {
                if reader.next()? != Token::Nil {
                    return Err(EventError::OutOfRange { field: "layer_id" });
                }
            }
            field => unknown.skip_named(field, reader)?,
        }
        Ok(())
    }

    /// The cache group, by its field or else by the object's key.
    fn group_idx(&self) -> Option<u32> {
        self.stored.group.idx.or(self.key.group_idx)
    }

    /// Adds the hashes of one of two fields, which are the same where both have some.
    fn add_hashes(&mut self, hashes: Vec<SequenceHash>, field: &'static str) -> Result<(), EventError> {
        if self.hashes.is_empty() {
            self.hashes = hashes;
        } else if !hashes.is_empty() && hashes != self.hashes {
            return Err(EventError::OutOfRange { field });
        }
        Ok(())
    }

    /// The blocks, by the engine's hashes where the event names them.
    fn blocks(&mut self) -> Result<Vec<SequenceHash>, EventError> {
        let (hashes, engine_hashes) = (std::mem::take(&mut self.hashes), std::mem::take(&mut self.engine_hashes));
        match (hashes.len(), engine_hashes.len()) {
            (0, 0) => self.key.hash.map(|hash| vec![hash]).ok_or(EventError::MissingField { field: "seq_hashes" }),
            (_, 0) => Ok(hashes),
            (0, _) => Ok(engine_hashes),
            (named, by_engine) if named == by_engine => Ok(engine_hashes),
            _ => Err(EventError::OutOfRange { field: "connector_block_hash" }),
        }
    }
}

/// The engine's hash of the block, or one for each block.
fn engine_hashes(reader: &mut Reader<'_>) -> Result<Vec<SequenceHash>, EventError> {
    const FIELD: &str = "connector_block_hash";
    let one = |reader: &mut Reader<'_>| match reader.clone().next()? {
        Token::Text(text) => {
            reader.next()?;
            let hash = str::from_utf8(text).ok().and_then(hash_in_text);
            hash.map(Some).ok_or(EventError::OutOfRange { field: FIELD })
        }
        _ => fields::optional_hash(reader, FIELD),
    };
    let Token::Array(len) = reader.clone().next()? else { return Ok(one(reader)?.into_iter().collect()) };
    reader.next()?;
    let len = fields::limited(len, EVENT_BLOCKS_MAX, FIELD)?;
    let hashes = (0..len).map(|_| one(reader)?.ok_or_else(|| fields::wrong(FIELD)));
    hashes.collect()
}

/// The last eight bytes of a hash in hexadecimal digits.
fn hash_in_text(text: &str) -> Option<SequenceHash> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let is_hash = digits.len() >= HASH_DIGITS_MIN && digits.len().is_multiple_of(2);
    let is_hash = is_hash && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let tail = digits.get(digits.len().checked_sub(HASH_DIGITS_MIN)?..).filter(|_| is_hash)?;
    u64::from_str_radix(tail, 16).ok().map(SequenceHash)
}

/// Parts of the key that vLLM's connector gives an object: `MODEL@tp_rank:N@pcpN@dcpN@pp_rank:N@group:N@HASH`.
#[derive(Debug, Default, PartialEq, Eq)]
struct ObjectKey {
    hash: Option<SequenceHash>,
    group_idx: Option<u32>,
    is_further_part: bool,
}

impl ObjectKey {
    fn of(key: &str) -> Self {
        let Some((names, hash)) = key.rsplit_once('@') else { return Self::default() };
        let mut parsed = Self { hash: hash_in_text(hash), ..Self::default() };
        // The model comes first, and may have any name.
        for name in names.split('@').skip(1) {
            let number = |start: &&str| name.strip_prefix(start)?.parse::<u32>().ok();
            parsed.is_further_part |= PARTS_OF_KEY.iter().filter_map(number).any(|part| part > 0);
            parsed.group_idx = parsed.group_idx.or(number(&GROUP_OF_KEY).filter(|idx| *idx > 0));
        }
        parsed
    }
}

/// The cache group, a number that may be a text. Group 0 is the only one of most models. A text of another form is a name
/// that an application gave the object.
fn group(reader: &mut Reader<'_>) -> Result<Option<u32>, EventError> {
    let idx = match reader.next()? {
        Token::Nil => None,
        Token::Unsigned(idx) => Some(u32::try_from(idx).map_err(|_| EventError::OutOfRange { field: "group_id" })?),
        Token::Text(text) => str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        _ => return Err(fields::wrong("group_id")),
    };
    Ok(idx.filter(|idx| *idx > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_in_texts_are_their_last_eight_bytes() {
        for text in ["000000000000002a", "0x000000000000002a", "0123456789abcdef000000000000002A"] {
            assert_eq!(hash_in_text(text), Some(SequenceHash(0x2a)), "{text}");
        }
        for text in ["", "2a", "00000000000002a", "000000000000002a0", "000000000000002g", "0x", "日本語日本語日本"]
        {
            assert_eq!(hash_in_text(text), None, "{text}");
        }
        let key = |names: &str| ObjectKey::of(&format!("{names}@0123456789abcdef000000000000002a"));
        let hash = Some(SequenceHash(0x2a));
        let whole = ObjectKey { hash, group_idx: None, is_further_part: false };
        assert_eq!(key("org/model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0"), whole);
        assert_eq!(key("pcp7@tp_rank:0@pcp0@dcp0@pp_rank:0"), whole, "a model of this name");
        assert_eq!(key("m@tp_rank:0@group:2"), ObjectKey { group_idx: Some(2), ..whole });
        for part in ["tp_rank:1", "head_or_tp_rank:3", "pcp1", "dcp2", "pp_rank:1"] {
            assert!(key(&format!("prefix@m@{part}")).is_further_part, "{part}");
        }
        assert_eq!(ObjectKey::of("000000000000002a"), ObjectKey::default(), "a key of another application");
    }
}
