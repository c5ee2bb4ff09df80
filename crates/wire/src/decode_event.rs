//! Decoding of single events, in arrays and maps.

use std::fmt::{self, Write};

use crate::adapter::{EngineAdapter, StoredField, missing_stored_field};
use crate::decode::{EVENT_FIELDS_MAX, EventError};
use crate::decode_mooncake::mooncake_event;
use crate::event::{
    BlockInactive, BlockRemoved, BlockStored, BlockTransferred, EngineEvent, RemovalReason, ScopedClear,
};
use crate::fields::{self, BlockKeys};
use crate::msgpack::{Reader, Token};
use crate::pulled;
use crate::translate::is_known_medium;

/// Field of a known event that this version does not know. The event is used without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnknownField<'a> {
    /// Type of the event.
    pub event: &'static str,
    /// The field.
    pub name: FieldName<'a>,
}

/// Name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldName<'a> {
    /// Key in a map, as sent.
    Key(&'a [u8]),
    /// Position in an array, counted from the event's type, which is at zero.
    Position(usize),
}

impl fmt::Display for FieldName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => {
                String::from_utf8_lossy(key).chars().take(KIND_CHARS_MAX).try_for_each(|c| f.write_char(c))
            }
            Self::Position(at) => write!(f, "field {at}"),
        }
    }
}

/// Limit of the unknown fields that the events of a batch report together.
pub const UNKNOWN_FIELDS_MAX: usize = 16;

/// Collects the unknown fields of one event.
pub(crate) struct UnknownFields<'a, 'f> {
    event: &'static str,
    found: &'f mut Vec<UnknownField<'a>>,
}

impl<'a> UnknownFields<'a, '_> {
    fn add(&mut self, name: FieldName<'a>) {
        let field = UnknownField { event: self.event, name };
        if self.found.len() < UNKNOWN_FIELDS_MAX && !self.found.contains(&field) {
            self.found.push(field);
        }
    }

    /// Skips a field at a position of an array. Nil says nothing.
    fn skip(&mut self, at: usize, reader: &mut Reader<'a>) -> Result<(), EventError> {
        if reader.clone().next()? != Token::Nil {
            self.add(FieldName::Position(at + 1));
        }
        Ok(reader.skip()?)
    }

    /// Skips a field of a map.
    pub(crate) fn skip_named(&mut self, field: &'a [u8], reader: &mut Reader<'a>) -> Result<(), EventError> {
        self.add(FieldName::Key(field));
        Ok(reader.skip()?)
    }
}

/// Longest unknown event type that an error repeats, in characters.
const KIND_CHARS_MAX: usize = 64;

/// Decodes one event and advances the reader past it.
pub(crate) fn event<'a>(
    reader: &mut Reader<'a>,
    adapter: EngineAdapter,
    unknown_fields: &mut Vec<UnknownField<'a>>,
) -> Result<EngineEvent<'a>, EventError> {
    match reader.next()? {
        Token::Array(len) if len > 0 => {
            fields::limited(len, EVENT_FIELDS_MAX, "fields")?;
            let Token::Text(kind) = reader.next()? else { return Err(EventError::NotAnEvent) };
            let kind = Kind::of(kind)?;
            let mut unknown = UnknownFields { event: kind.as_str(), found: unknown_fields };
            from_array(reader, kind, len as usize - 1, adapter, &mut unknown)
        }
        Token::Map(len) => {
            fields::limited(len, EVENT_FIELDS_MAX, "fields")?;
            match kind_of_map(&mut reader.clone(), len)? {
                MapKind::Engine(kind) if kind == pulled::LEFT_OUT.as_bytes() => Err(pulled::left_out(reader, len)?),
                MapKind::Engine(kind) => {
                    let kind = Kind::of(kind)?;
                    from_map(reader, kind, len, &mut UnknownFields { event: kind.as_str(), found: unknown_fields })
                }
                MapKind::Mooncake => {
                    mooncake_event(reader, len, &mut UnknownFields { event: MOONCAKE, found: unknown_fields })
                }
            }
        }
        _ => Err(EventError::NotAnEvent),
    }
}

/// Name of the events of Mooncake's master in metrics and logs.
const MOONCAKE: &str = "mooncake";

/// Type of an event in a map.
enum MapKind<'a> {
    /// An engine's, in the field `type`.
    Engine(&'a [u8]),
    /// Mooncake's, in `event_type`, which comes before a `type` for readers of engine events.
    Mooncake,
}

fn kind_of_map<'a>(reader: &mut Reader<'a>, len: u32) -> Result<MapKind<'a>, EventError> {
    for _ in 0..len {
        match reader.next()? {
            Token::Text(b"type") => {
                let Token::Text(kind) = reader.next()? else { return Err(EventError::NotAnEvent) };
                return Ok(MapKind::Engine(kind));
            }
            Token::Text(b"event_type") => return Ok(MapKind::Mooncake),
            _ => reader.skip()?,
        }
    }
    Err(EventError::NotAnEvent)
}

pub(crate) fn unknown_type(kind: &[u8]) -> EventError {
    EventError::UnknownType { kind: String::from_utf8_lossy(kind).chars().take(KIND_CHARS_MAX).collect() }
}

/// Known types of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stored,
    Removed,
    Transferred,
    Inactive,
    Cleared,
}

impl Kind {
    fn of(kind: &[u8]) -> Result<Self, EventError> {
        match kind {
            b"BlockStored" => Ok(Self::Stored),
            b"BlockRemoved" => Ok(Self::Removed),
            b"BlockTransferred" => Ok(Self::Transferred),
            b"BlockInactive" => Ok(Self::Inactive),
            b"AllBlocksCleared" => Ok(Self::Cleared),
            kind => Err(unknown_type(kind)),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "BlockStored",
            Self::Removed => "BlockRemoved",
            Self::Transferred => "BlockTransferred",
            Self::Inactive => "BlockInactive",
            Self::Cleared => "AllBlocksCleared",
        }
    }
}

/// Fields of an array `BlockRemoved`, in order; later fields are skipped.
const REMOVED_FIELDS: [&str; 7] =
    ["block_hashes", "medium", "group_idx", "locality", "ownership", "remaining_copy_counts", "reason"];

/// The field at a position of an array `BlockRemoved`. The only list after the hashes are the counts, whatever fields
/// come before them.
fn removed_field_at(at: usize, reader: &Reader<'_>) -> Option<&'static str> {
    let is_list = at > 0 && matches!(reader.clone().next(), Ok(Token::Array(_)));
    if is_list { Some("remaining_copy_counts") } else { REMOVED_FIELDS.get(at).copied() }
}

/// Fields of an array `BlockTransferred`, in order; later fields are skipped.
const TRANSFERRED_FIELDS: [&str; 4] = ["block_hashes", "from_medium", "to_medium", "group_idx"];

/// Fields of an array `BlockInactive`, in order; later fields are skipped.
const INACTIVE_FIELDS: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Fields of an array `AllBlocksCleared`, in order; later fields are skipped.
const CLEARED_FIELDS: [&str; 3] = ["medium", "ownership", "group_idx"];

/// The field at a position of an array `AllBlocksCleared`. An engine without the medium has the manager in its place: a
/// text that names no medium.
fn cleared_field_at(at: usize, reader: &Reader<'_>) -> Option<&'static str> {
    let is_manager = at == 0
        && matches!(reader.clone().next(), Ok(Token::Text(text)) if !str::from_utf8(text).is_ok_and(is_known_medium));
    if is_manager { Some("ownership") } else { CLEARED_FIELDS.get(at).copied() }
}

fn from_array<'a>(
    reader: &mut Reader<'a>,
    kind: Kind,
    len: usize,
    adapter: EngineAdapter,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<EngineEvent<'a>, EventError> {
    match kind {
        Kind::Stored => {
            if let Some(field) = missing_stored_field(len) {
                return Err(EventError::MissingField { field });
            }
            let mut stored = BlockStored::default();
            for at in 0..len {
                match adapter.stored_field(at, reader) {
                    StoredField::Named(field) => stored_field(&mut stored, field.as_bytes(), reader, unknown)?,
                    StoredField::SaltMap => stored.cache_salt = salt_in_map(reader)?,
                    StoredField::Skipped => unknown.skip(at, reader)?,
                }
            }
            Ok(EngineEvent::Stored(stored))
        }
        Kind::Removed => {
            if len == 0 {
                return Err(EventError::MissingField { field: REMOVED_FIELDS[0] });
            }
            let mut removed = BlockRemoved::default();
            for at in 0..len {
                match removed_field_at(at, reader) {
                    Some(field) => removed_field(&mut removed, field.as_bytes(), reader, unknown)?,
                    None => unknown.skip(at, reader)?,
                }
            }
            checked(EngineEvent::Removed(removed))
        }
        Kind::Transferred => {
            let mut transferred = BlockTransferred::default();
            if let Some(field) = TRANSFERRED_FIELDS[..3].get(len) {
                return Err(EventError::MissingField { field });
            }
            for at in 0..len {
                match TRANSFERRED_FIELDS.get(at) {
                    Some(field) => transferred_field(&mut transferred, field.as_bytes(), reader, unknown)?,
                    None => unknown.skip(at, reader)?,
                }
            }
            Ok(EngineEvent::Transferred(transferred))
        }
        Kind::Inactive => {
            let mut inactive = BlockInactive::default();
            if len == 0 {
                return Err(EventError::MissingField { field: INACTIVE_FIELDS[0] });
            }
            for at in 0..len {
                match INACTIVE_FIELDS.get(at) {
                    Some(field) => inactive_field(&mut inactive, field.as_bytes(), reader, unknown)?,
                    None => unknown.skip(at, reader)?,
                }
            }
            Ok(EngineEvent::Inactive(inactive))
        }
        Kind::Cleared => {
            let mut scope = ScopedClear::default();
            if len == 1 && matches!(reader.clone().next(), Ok(Token::Text(b""))) {
                // An empty medium is the device's, and an empty manager is none: it may be either.
                return Err(EventError::OutOfRange { field: CLEARED_FIELDS[0] });
            }
            for at in 0..len {
                match cleared_field_at(at, reader) {
                    Some(field) => cleared_field(&mut scope, field.as_bytes(), reader, unknown)?,
                    None => unknown.skip(at, reader)?,
                }
            }
            Ok(cleared(scope))
        }
    }
}

fn from_map<'a>(
    reader: &mut Reader<'a>,
    kind: Kind,
    len: u32,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<EngineEvent<'a>, EventError> {
    let mut event = match kind {
        Kind::Stored => EngineEvent::Stored(BlockStored::default()),
        Kind::Removed => EngineEvent::Removed(BlockRemoved::default()),
        Kind::Transferred => EngineEvent::Transferred(BlockTransferred::default()),
        Kind::Inactive => EngineEvent::Inactive(BlockInactive::default()),
        Kind::Cleared => EngineEvent::ClearedScope(ScopedClear::default()),
    };
    let (mut has_hashes, mut has_block_size, mut has_target) = (false, false, false);
    let mut keys = Vec::with_capacity(reader.capacity_for(len));
    for _ in 0..len {
        let Token::Text(key) = reader.next()? else { return Err(EventError::NotAnEvent) };
        if keys.contains(&key) {
            return Err(EventError::RepeatedField);
        }
        keys.push(key);
        has_hashes |= key == b"block_hashes";
        has_block_size |= key == b"block_size";
        has_target |= key == b"to_medium";
        match &mut event {
            EngineEvent::Stored(stored) => stored_field(stored, key, reader, unknown)?,
            EngineEvent::Removed(removed) => removed_field(removed, key, reader, unknown)?,
            EngineEvent::Transferred(transferred) => transferred_field(transferred, key, reader, unknown)?,
            EngineEvent::Inactive(inactive) => inactive_field(inactive, key, reader, unknown)?,
            EngineEvent::ClearedScope(scope) => cleared_field(scope, key, reader, unknown)?,
            EngineEvent::Cleared => reader.skip()?,
        }
    }
    // Every other absent field is nil: the start of a sequence, or a store without tokens.
    match event {
        EngineEvent::Stored(_) | EngineEvent::Removed(_) | EngineEvent::Transferred(_) | EngineEvent::Inactive(_)
            if !has_hashes =>
        {
            Err(EventError::MissingField { field: "block_hashes" })
        }
        EngineEvent::Transferred(_) if !has_target => Err(EventError::MissingField { field: "to_medium" }),
        EngineEvent::Stored(_) if !has_block_size => Err(EventError::MissingField { field: "block_size" }),
        EngineEvent::ClearedScope(scope) => Ok(cleared(scope)),
        event => checked(event),
    }
}

/// The event, unless its counts are not one for each of its blocks.
fn checked(event: EngineEvent<'_>) -> Result<EngineEvent<'_>, EventError> {
    match &event {
        EngineEvent::Removed(BlockRemoved { block_hashes, remaining_copy_counts: Some(counts), .. })
            if counts.len() != block_hashes.len() =>
        {
            Err(EventError::OutOfRange { field: "remaining_copy_counts" })
        }
        _ => Ok(event),
    }
}

/// A clear of the whole cache if no field restricts it. An empty medium is the device's, as in every event; an empty manager
/// is none.
fn cleared(scope: ScopedClear<'_>) -> EngineEvent<'_> {
    let scope = ScopedClear { ownership: scope.ownership.filter(|owner| !owner.is_empty()), ..scope };
    if scope == ScopedClear::default() { EngineEvent::Cleared } else { EngineEvent::ClearedScope(scope) }
}

/// A field of a wrong type is an error: without it the clear would apply to more blocks.
fn cleared_field<'a>(
    scope: &mut ScopedClear<'a>,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    match field {
        b"medium" => scope.medium = fields::optional_text(reader, "medium")?,
        b"ownership" => scope.ownership = fields::optional_text(reader, "ownership")?,
        b"group_idx" => scope.group_idx = fields::optional_u32(reader, "group_idx")?,
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

/// Skips an unknown field of a map. The tag of the event is not a field.
fn skip_named<'a>(
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    if field != b"type" {
        unknown.add(FieldName::Key(field));
    }
    Ok(reader.skip()?)
}

fn stored_field<'a>(
    event: &mut BlockStored<'a>,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"parent_block_hash" => event.parent_block_hash = fields::optional_hash(reader, "parent_block_hash")?,
        b"token_ids" => event.token_ids = fields::token_ids(reader, "token_ids")?,
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
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

fn removed_field<'a>(
    event: &mut BlockRemoved<'a>,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
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
            event.reason = text.and_then(RemovalReason::named);
        }
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

fn transferred_field<'a>(
    event: &mut BlockTransferred<'a>,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"from_medium" => event.from_medium = fields::optional_text(reader, "from_medium")?,
        b"to_medium" => event.to_medium = fields::optional_text(reader, "to_medium")?,
        b"group_idx" => event.group_idx = fields::optional_u32(reader, "group_idx")?,
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

fn inactive_field<'a>(
    event: &mut BlockInactive,
    field: &'a [u8],
    reader: &mut Reader<'a>,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<(), EventError> {
    match field {
        b"block_hashes" => event.block_hashes = fields::hashes(reader, "block_hashes")?,
        b"medium" | b"group_idx" | b"locality" | b"ownership" => reader.skip()?,
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

fn salt_in_map<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, EventError> {
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
