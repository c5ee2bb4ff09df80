//! Fields of single events, by their names.

use crate::event::{
    BlockInactive, BlockRemoved, BlockStored, BlockTransferred, EngineEvent, RemovalReason, ScopedClear, TokenIds,
};
use crate::event_error::{EVENT_FIELDS_MAX, EventError};
use crate::fields::{self, BlockKeys};
use crate::msgpack::{Reader, Token};
use crate::unknown_fields::{FieldName, UnknownFields};

/// Reads the value of a field into an event.
pub(crate) fn set_field<'a>(
    event: &mut EngineEvent<'a>,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    let is_known = match event {
        EngineEvent::Stored(stored) => stored_field(stored, field, reader)?,
        EngineEvent::Removed(removed) => removed_field(removed, field, reader)?,
        EngineEvent::Transferred(transferred) => transferred_field(transferred, field, reader)?,
        EngineEvent::Inactive(inactive) => inactive_field(inactive, field, reader)?,
        EngineEvent::ClearedScope(scope) => cleared_field(scope, field, reader)?,
        EngineEvent::Cleared => return Ok(reader.skip()?),
    };
    // The tag of the event is not a field.
    if !is_known && field != b"type" {
        unknown.add(FieldName::Key(field));
    }
    if is_known { Ok(()) } else { Ok(reader.skip()?) }
}

/// Reads the entries of a map whose keys are texts, none of them twice. Returns the keys.
pub(crate) fn read_entries<'a>(
    reader: &mut Reader<'a>,
    len: u32,
    mut read: impl FnMut(&'a [u8], &mut Reader<'a>) -> Result<(), EventError>,
) -> Result<Vec<&'a [u8]>, EventError> {
    let mut keys = Vec::with_capacity(reader.capacity_for(len));
    for _ in 0..len {
        let Token::Text(key) = reader.next()? else { return Err(EventError::NotAnEvent) };
        if keys.contains(&key) {
            return Err(EventError::RepeatedField);
        }
        keys.push(key);
        read(key, reader)?;
    }
    Ok(keys)
}

/// Reads a field of a scoped clear. Returns whether it is known, and is read. A field of a wrong type is an error: without it the
/// clear would apply to more blocks.
fn cleared_field<'a>(scope: &mut ScopedClear<'a>, field: &[u8], reader: &mut Reader<'a>) -> Result<bool, EventError> {
    match field {
        b"medium" => scope.medium = fields::optional_text(reader, "medium")?,
        b"ownership" => scope.ownership = fields::optional_text(reader, "ownership")?,
        b"group_idx" => scope.group_idx = fields::optional_u32(reader, "group_idx")?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn stored_field<'a>(event: &mut BlockStored<'a>, field: &[u8], reader: &mut Reader<'a>) -> Result<bool, EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"parent_block_hash" => event.parent_block_hash = fields::optional_hash(reader, "parent_block_hash")?,
        b"token_ids" => event.token_ids = fields::token_ids(reader, "token_ids")?,
        b"hashed_tokens" => event.token_ids = TokenIds::Hashed(fields::hashed_tokens(reader, "hashed_tokens")?),
        b"block_size" => {
            event.block_size =
                fields::optional_u32(reader, "block_size")?.ok_or_else(|| fields::wrong("block_size"))?;
        }
        b"lora_id" => event.lora_id = fields::optional_integer(reader, "lora_id")?,
        b"medium" => event.medium = fields::optional_text(reader, "medium")?,
        b"lora_name" => event.lora_name = fields::optional_text(reader, "lora_name")?,
        b"extra_keys" => add_keys(&mut event.extra_keys, fields::extra_keys(reader, "extra_keys")?),
        b"mm_keys" => add_keys(&mut event.extra_keys, fields::mm_keys(reader, "mm_keys")?),
        b"cache_salt" => event.cache_salt = fields::optional_text(reader, "cache_salt")?,
        b"group_idx" => event.group.idx = fields::optional_u32(reader, "group_idx")?,
        b"kv_cache_spec_kind" => event.group.kind = fields::optional_text(reader, "kv_cache_spec_kind")?,
        b"kv_cache_spec_sliding_window" => {
            event.group.sliding_window = fields::lenient(reader, fields::optional_u32)?;
        }
        b"locality" => event.locality = fields::optional_text(reader, "locality")?,
        b"ownership" => event.ownership = fields::lenient(reader, fields::optional_text)?,
        b"session_id" => event.session_id = fields::lenient(reader, fields::optional_text)?,
        b"lookahead_token_ids" => event.lookahead_token_ids = fields::lenient(reader, fields::lookahead)?,
        b"skipped_parent_block_hash" => {
            if let Some(parent) = fields::optional_hash(reader, "skipped_parent_block_hash")? {
                event.skipped.get_or_insert_default().parent_block_hash = Some(parent);
            }
        }
        b"skipped_token_ids" => {
            let token_ids = fields::token_ids(reader, "skipped_token_ids")?;
            if !token_ids.is_empty() {
                event.skipped.get_or_insert_default().token_ids = token_ids;
            }
        }
        b"skipped_extra_keys" => {
            if let Some(keys) = fields::extra_keys(reader, "skipped_extra_keys")? {
                event.skipped.get_or_insert_default().extra_keys = Some(keys);
            }
        }
        b"origin" => event.origin = fields::lenient(reader, fields::origin)?,
        b"component_types" => event.components = fields::components(reader, "component_types")?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn removed_field<'a>(event: &mut BlockRemoved<'a>, field: &[u8], reader: &mut Reader<'a>) -> Result<bool, EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"medium" => event.medium = fields::optional_text(reader, "medium")?,
        b"group_idx" => event.group_idx = fields::optional_u32(reader, "group_idx")?,
        b"locality" => event.locality = fields::optional_text(reader, "locality")?,
        b"ownership" => event.ownership = fields::lenient(reader, fields::optional_text)?,
        b"remaining_copy_counts" => {
            event.remaining_copy_counts = fields::optional_counts(reader, "remaining_copy_counts")?;
        }
        b"reason" => {
            let text = fields::lenient(reader, fields::optional_text)?;
            event.reason = text.and_then(RemovalReason::of_text);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn transferred_field<'a>(
    event: &mut BlockTransferred<'a>,
    field: &[u8],
    reader: &mut Reader<'a>,
) -> Result<bool, EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"from_medium" => event.from_medium = fields::optional_text(reader, "from_medium")?,
        b"to_medium" => event.to_medium = fields::optional_text(reader, "to_medium")?,
        b"group_idx" => event.group_idx = fields::optional_u32(reader, "group_idx")?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn inactive_field<'a>(event: &mut BlockInactive, field: &[u8], reader: &mut Reader<'a>) -> Result<bool, EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"medium" | b"group_idx" | b"locality" | b"ownership" => reader.skip()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reads a map with the salt, in the place of the extra keys.
pub(crate) fn salt_in_map<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, EventError> {
    let Token::Map(len) = reader.next()? else { return Err(fields::wrong("extra_keys")) };
    let mut salt = None;
    for _ in 0..fields::limited(len, EVENT_FIELDS_MAX, "extra_keys")? {
        match reader.next()? {
            Token::Text(b"cache_salt") => salt = fields::optional_text(reader, "cache_salt")?,
            Token::Text(_) => reader.skip()?,
            _ => return Err(fields::wrong("extra_keys")),
        }
    }
    Ok(salt)
}

/// Appends the keys of `extra_keys` and `mm_keys`, which describe the same blocks.
fn add_keys<'a>(keys: &mut Option<BlockKeys<'a>>, more: Option<BlockKeys<'a>>) {
    let Some(more) = more else { return };
    let Some(keys) = keys else {
        *keys = Some(more);
        return;
    };
    if keys.len() < more.len() {
        keys.resize(more.len(), None);
    }
    for (block, more) in keys.iter_mut().zip(more) {
        if let Some(more) = more {
            block.get_or_insert_default().extend(more);
        }
    }
}
