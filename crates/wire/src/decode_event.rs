//! Decoding of single events, in arrays and maps.

use crate::adapter::{EngineAdapter, StoredField, missing_stored_field};
use crate::decode_mooncake::mooncake_event;
use crate::event::{BlockInactive, BlockRemoved, BlockStored, BlockTransferred, EngineEvent, ScopedClear};
use crate::event_error::{EVENT_FIELDS_MAX, EventError};
use crate::event_fields::{read_entries, salt_in_map, set_field};
use crate::fields;
use crate::left_out::{LEFT_OUT, left_out};
use crate::msgpack::{Reader, Token};
use crate::translate::is_known_medium;
use crate::unknown_fields::{UnknownField, UnknownFields};

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
                MapKind::Engine(kind) if kind == LEFT_OUT.as_bytes() => Err(left_out(reader, len)?),
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

flash_indexer_core::named_enum! {
    /// Known types of events.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Kind {
        Stored = "BlockStored",
        Removed = "BlockRemoved",
        Transferred = "BlockTransferred",
        Inactive = "BlockInactive",
        Cleared = "AllBlocksCleared",
    }
}

impl Kind {
    fn of(kind: &[u8]) -> Result<Self, EventError> {
        let known = Self::ALL.into_iter().find(|known| known.as_str().as_bytes() == kind);
        known.ok_or_else(|| EventError::unknown_type(kind))
    }
}

/// Fields of an array `BlockRemoved`, in order; later fields are skipped.
const REMOVED_FIELDS: [&str; 7] =
    ["block_hashes", "medium", "group_idx", "locality", "ownership", "remaining_copy_counts", "reason"];

/// Fields of an array `BlockTransferred`, in order; later fields are skipped.
const TRANSFERRED_FIELDS: [&str; 4] = ["block_hashes", "from_medium", "to_medium", "group_idx"];

/// Fields of an array `BlockInactive`, in order; later fields are skipped.
const INACTIVE_FIELDS: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Fields of an array `AllBlocksCleared`, in order; later fields are skipped.
const CLEARED_FIELDS: [&str; 3] = ["medium", "ownership", "group_idx"];

/// The field at a position of an array `BlockRemoved`. The only list after the hashes are the counts, regardless of the fields
/// before them.
fn removed_field_at(at: usize, reader: &Reader<'_>) -> Option<&'static str> {
    let is_list = at > 0 && matches!(reader.clone().next(), Ok(Token::Array(_)));
    if is_list { Some("remaining_copy_counts") } else { REMOVED_FIELDS.get(at).copied() }
}

/// The field at a position of an array `AllBlocksCleared` of `len` fields. An engine without the medium has the manager in
/// its place: a text that names no medium, and no field after it.
fn cleared_field_at(at: usize, len: usize, reader: &Reader<'_>) -> Option<&'static str> {
    let is_manager = len == 1
        && matches!(reader.clone().next(), Ok(Token::Text(text)) if !str::from_utf8(text).is_ok_and(is_known_medium));
    if is_manager { Some("ownership") } else { CLEARED_FIELDS.get(at).copied() }
}

impl Kind {
    /// An event of this type without fields.
    fn event<'a>(self) -> EngineEvent<'a> {
        match self {
            Self::Stored => EngineEvent::Stored(BlockStored::default()),
            Self::Removed => EngineEvent::Removed(BlockRemoved::default()),
            Self::Transferred => EngineEvent::Transferred(BlockTransferred::default()),
            Self::Inactive => EngineEvent::Inactive(BlockInactive::default()),
            Self::Cleared => EngineEvent::ClearedScope(ScopedClear::default()),
        }
    }

    /// Name of the first mandatory field that is absent from an array of this length.
    fn missing_field(self, len: usize) -> Option<&'static str> {
        match self {
            Self::Stored => missing_stored_field(len),
            Self::Removed => REMOVED_FIELDS[..1].get(len).copied(),
            Self::Transferred => TRANSFERRED_FIELDS[..3].get(len).copied(),
            Self::Inactive => INACTIVE_FIELDS[..1].get(len).copied(),
            Self::Cleared => None,
        }
    }

    /// Meaning of the field at a position of an array of `len` fields, counted from the field after the tag.
    fn field_at(self, at: usize, len: usize, adapter: EngineAdapter, reader: &Reader<'_>) -> StoredField {
        let name = match self {
            Self::Stored => return adapter.stored_field(at, reader),
            Self::Removed => removed_field_at(at, reader),
            Self::Transferred => TRANSFERRED_FIELDS.get(at).copied(),
            Self::Inactive => INACTIVE_FIELDS.get(at).copied(),
            Self::Cleared => cleared_field_at(at, len, reader),
        };
        name.map_or(StoredField::Skipped, StoredField::Named)
    }
}

fn from_array<'a>(
    reader: &mut Reader<'a>,
    kind: Kind,
    len: usize,
    adapter: EngineAdapter,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<EngineEvent<'a>, EventError> {
    if let Some(field) = kind.missing_field(len) {
        return Err(EventError::MissingField { field });
    }
    if kind == Kind::Cleared && len == 1 && matches!(reader.clone().next(), Ok(Token::Text(b""))) {
        // An empty medium is the device's, and an empty manager is none: it may be either.
        return Err(EventError::OutOfRange { field: CLEARED_FIELDS[0] });
    }
    let mut event = kind.event();
    for at in 0..len {
        match (kind.field_at(at, len, adapter, reader), &mut event) {
            (StoredField::Named(field), event) => set_field(event, field.as_bytes(), reader, unknown)?,
            (StoredField::SaltMap, EngineEvent::Stored(stored)) => stored.cache_salt = salt_in_map(reader)?,
            (StoredField::SaltMap | StoredField::Skipped, _) => unknown.skip(at, reader)?,
        }
    }
    checked(event)
}

fn from_map<'a>(
    reader: &mut Reader<'a>,
    kind: Kind,
    len: u32,
    unknown: &mut UnknownFields<'a, '_>,
) -> Result<EngineEvent<'a>, EventError> {
    let mut event = kind.event();
    let keys = read_entries(reader, len, |key, reader| set_field(&mut event, key, reader, unknown))?;
    // Every other absent field is nil: the start of a sequence, or a store without tokens.
    let mandatory: &[&'static str] = match kind {
        Kind::Stored => &["block_hashes", "block_size"],
        Kind::Removed | Kind::Inactive => &["block_hashes"],
        Kind::Transferred => &["block_hashes", "to_medium"],
        Kind::Cleared => &[],
    };
    match mandatory.iter().find(|field| !keys.contains(&field.as_bytes())) {
        Some(&field) => Err(EventError::MissingField { field }),
        None => checked(event),
    }
}

/// The complete event: a removal has one count for each of its blocks, and a clear without a scope is of the whole cache.
fn checked(event: EngineEvent<'_>) -> Result<EngineEvent<'_>, EventError> {
    match &event {
        EngineEvent::Removed(BlockRemoved { block_hashes, remaining_copy_counts: Some(counts), .. })
            if counts.len() != block_hashes.len() =>
        {
            Err(EventError::OutOfRange { field: "remaining_copy_counts" })
        }
        EngineEvent::ClearedScope(scope) => Ok(cleared(*scope)),
        _ => Ok(event),
    }
}

/// A clear of the whole cache if no field restricts it. An empty medium is the device's, as in every event; an empty manager
/// is none.
fn cleared(scope: ScopedClear<'_>) -> EngineEvent<'_> {
    let scope = ScopedClear { ownership: scope.ownership.filter(|owner| !owner.is_empty()), ..scope };
    if scope == ScopedClear::default() { EngineEvent::Cleared } else { EngineEvent::ClearedScope(scope) }
}
