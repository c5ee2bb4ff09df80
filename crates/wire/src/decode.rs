//! Decoding of a MessagePack payload into a batch of events.

use std::fmt::{self, Write};

use flash_indexer_core::DpRank;

use crate::adapter::{EngineAdapter, StoredField, missing_stored_field};
use crate::event::{BlockRemoved, BlockStored, EngineEvent, ScopedClear};
use crate::fields::{self, BlockKeys};
use crate::msgpack::{Malformed, Reader, Token};
use crate::translate::is_known_medium;

/// One decoded message.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch<'a> {
    /// Time at which the engine made the batch, in seconds since the Unix epoch.
    pub timestamp: f64,
    /// The data-parallel rank that made the batch, if the batch names it.
    pub dp_rank: Option<DpRank>,
    /// The events, in order. They are decoded during iteration, one at a time.
    pub events: Events<'a>,
}

impl Batch<'_> {
    /// Tokens in a block of the engine, if the batch shows it: taken from the first store of a group that can be
    /// primary, because the other cache groups of a hybrid model may have other block sizes. Decodes events up to
    /// that store.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        let mut stores = self.events.clone().filter_map(|event| match event {
            Ok(EngineEvent::Stored(stored)) if stored.block_size > 0 && stored.group.can_be_primary() => Some(stored),
            _ => None,
        });
        stores.next().map(|stored| stored.block_size)
    }
}

/// Offsets of a batch's parts in its payload: computed once, decoded later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchOutline {
    timestamp: f64,
    dp_rank: Option<DpRank>,
    events_at: usize,
    events: u32,
}

impl BatchOutline {
    /// Scans a payload. Linear in its length.
    ///
    /// # Errors
    ///
    /// As [`decode_batch`].
    pub fn of(payload: &[u8]) -> Result<Self, BatchError> {
        let Batch { timestamp, dp_rank, events } = decode_batch(payload)?;
        Ok(Self { timestamp, dp_rank, events_at: events.reader.position(), events: events.left })
    }

    /// Time at which the engine made the batch, in seconds since the Unix epoch.
    #[must_use]
    pub const fn timestamp(&self) -> f64 {
        self.timestamp
    }

    /// The data-parallel rank that made the batch, if the batch names it.
    #[must_use]
    pub const fn dp_rank(&self) -> Option<DpRank> {
        self.dp_rank
    }

    /// The outline of the events that an iterator over this batch has left.
    #[must_use]
    pub fn of_rest(self, rest: &Events<'_>) -> Self {
        Self { events_at: rest.offset(), events: rest.left, ..self }
    }

    /// The batch of the payload that this outline was computed from, decoded in an engine's format. The result for
    /// any other payload is meaningless.
    #[must_use]
    pub fn batch<'a>(&self, payload: &'a [u8], adapter: EngineAdapter) -> Batch<'a> {
        let events = Events {
            reader: Reader::starting_at(payload, self.events_at),
            left: self.events,
            adapter,
            unknown_fields: Vec::new(),
        };
        Batch { timestamp: self.timestamp, dp_rank: self.dp_rank, events }
    }
}

/// Iterator over the events of a batch. An event that cannot be used is an `Err` with the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Events<'a> {
    reader: Reader<'a>,
    left: u32,
    adapter: EngineAdapter,
    unknown_fields: Vec<UnknownField<'a>>,
}

impl<'a> Events<'a> {
    /// Takes the unknown fields of the events decoded so far, at most [`UNKNOWN_FIELDS_MAX`] and each once.
    pub fn take_unknown_fields(&mut self) -> Vec<UnknownField<'a>> {
        std::mem::take(&mut self.unknown_fields)
    }

    /// Offset of the next event in the payload, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.reader.position()
    }

    /// Whether no event is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<EngineEvent<'a>, EventError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut inside = self.reader.clone();
        let event = event(&mut inside, self.adapter, &mut self.unknown_fields);
        if event.is_ok() {
            self.reader = inside;
        } else if self.reader.skip().is_err() {
            // Unreachable: `decode_batch` has skipped over the whole batch before. Ends the iteration in any case.
            self.left = 0;
        }
        Some(event)
    }
}

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
struct UnknownFields<'a, 'f> {
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
}

/// Limit of the events in a batch. The smallest event of an engine takes 16 bytes, so a message of 16 MiB has fewer.
pub const BATCH_EVENTS_MAX: u32 = 1 << 20;

/// The whole payload cannot be decoded: none of its events is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not MessagePack, or truncated.
    #[error("failed to decode the batch: {0}")]
    Malformed(#[from] Malformed),
    /// More events than a message can have in any engine's format.
    #[error("the batch has {count} events; at most {BATCH_EVENTS_MAX} are allowed: send fewer events in a message")]
    TooManyEvents {
        /// Events in the batch.
        count: u32,
    },
    /// MessagePack, but not `[timestamp, [event…], rank]`.
    #[error("not an event batch: expected [timestamp, [event, …], data_parallel_rank]")]
    NotABatch,
}

impl BatchError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed_batch",
            Self::NotABatch => "not_a_batch",
            Self::TooManyEvents { .. } => "too_many_events",
        }
    }
}

/// One event cannot be used; the other events of its batch can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Neither a tagged array nor a map with `type`.
    #[error("not an event: expected [\"BlockStored\", …] or {{\"type\": \"BlockStored\", …}}")]
    NotAnEvent,
    /// A type other than the known ones.
    #[error("unknown event type {kind:?}")]
    UnknownType {
        /// The type as sent, truncated to 64 characters.
        kind: String,
    },
    /// A mandatory field is absent.
    #[error("field {field} is missing")]
    MissingField {
        /// The field's name.
        field: &'static str,
    },
    /// A field has a type that no known engine sends.
    #[error("field {field} has the wrong type")]
    WrongType {
        /// The field's name.
        field: &'static str,
    },
    /// A field's value is out of range.
    #[error("field {field} has a value out of range")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
    },
    /// The event's own MessagePack is malformed.
    #[error("failed to decode the event: {0}")]
    Malformed(#[from] Malformed),
}

impl EventError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotAnEvent => "not_an_event",
            Self::UnknownType { .. } => "unknown_event_type",
            Self::MissingField { .. } => "missing_field",
            Self::WrongType { .. } => "wrong_type",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Malformed(_) => "malformed_event",
        }
    }
}

/// Decodes a batch of any engine: an array of two to four elements, or a map with `ts`, `events` and
/// `data_parallel_rank`. Linear in the payload. Events are skipped here and decoded during iteration; each allocates
/// no more elements than it has bytes.
///
/// # Errors
///
/// When the payload is not a batch or is truncated. An unusable event is an `Err` among the events.
pub fn decode_batch(payload: &[u8]) -> Result<Batch<'_>, BatchError> {
    let mut reader = Reader::new(payload);
    let mut batch = Parts::default();
    match reader.next()? {
        Token::Array(len @ 2..=4) => {
            batch.timestamp(&mut reader)?;
            batch.events(&mut reader)?;
            if len > 2 {
                batch.dp_rank(&mut reader)?;
            }
            if len > 3 {
                reader.skip()?;
            }
        }
        Token::Map(len) => {
            for _ in 0..len {
                let Token::Text(key) = reader.next()? else { return Err(BatchError::NotABatch) };
                match key {
                    b"ts" | b"timestamp" => batch.timestamp(&mut reader)?,
                    b"events" => batch.events(&mut reader)?,
                    b"data_parallel_rank" => batch.dp_rank(&mut reader)?,
                    _ => reader.skip()?,
                }
            }
        }
        _ => return Err(BatchError::NotABatch),
    }
    let events = batch.events.ok_or(BatchError::NotABatch)?;
    Ok(Batch { timestamp: batch.timestamp, dp_rank: batch.dp_rank, events })
}

#[derive(Default)]
struct Parts<'a> {
    timestamp: f64,
    dp_rank: Option<DpRank>,
    events: Option<Events<'a>>,
}

impl<'a> Parts<'a> {
    /// The timestamp is informative only: any other type is read as zero.
    fn timestamp(&mut self, reader: &mut Reader<'a>) -> Result<(), BatchError> {
        self.timestamp = match reader.clone().next()? {
            Token::Float(seconds) => seconds,
            Token::Unsigned(seconds) => seconds as f64,
            _ => 0.0,
        };
        Ok(reader.skip()?)
    }

    fn dp_rank(&mut self, reader: &mut Reader<'a>) -> Result<(), BatchError> {
        self.dp_rank = match reader.next()? {
            Token::Nil => None,
            Token::Unsigned(rank) => Some(DpRank(u32::try_from(rank).map_err(|_| BatchError::NotABatch)?)),
            _ => return Err(BatchError::NotABatch),
        };
        Ok(())
    }

    fn events(&mut self, reader: &mut Reader<'a>) -> Result<(), BatchError> {
        let Token::Array(left) = reader.next()? else { return Err(BatchError::NotABatch) };
        self.events =
            Some(Events { reader: reader.clone(), left, adapter: EngineAdapter::Detect, unknown_fields: Vec::new() });
        for _ in 0..left {
            reader.skip()?;
        }
        if left > BATCH_EVENTS_MAX {
            return Err(BatchError::TooManyEvents { count: left });
        }
        Ok(())
    }
}

/// Longest unknown event type that an error repeats, in characters.
const KIND_CHARS_MAX: usize = 64;

/// Decodes one event and advances the reader past it.
fn event<'a>(
    reader: &mut Reader<'a>,
    adapter: EngineAdapter,
    unknown_fields: &mut Vec<UnknownField<'a>>,
) -> Result<EngineEvent<'a>, EventError> {
    match reader.next()? {
        Token::Array(len) if len > 0 => {
            let Token::Text(kind) = reader.next()? else { return Err(EventError::NotAnEvent) };
            let kind = Kind::of(kind)?;
            let mut unknown = UnknownFields { event: kind.as_str(), found: unknown_fields };
            from_array(reader, kind, len as usize - 1, adapter, &mut unknown)
        }
        Token::Map(len) => {
            let kind = Kind::of(kind_of_map(&mut reader.clone(), len)?)?;
            from_map(reader, kind, len, &mut UnknownFields { event: kind.as_str(), found: unknown_fields })
        }
        _ => Err(EventError::NotAnEvent),
    }
}

fn kind_of_map<'a>(reader: &mut Reader<'a>, len: u32) -> Result<&'a [u8], EventError> {
    for _ in 0..len {
        if reader.next()? == Token::Text(b"type") {
            let Token::Text(kind) = reader.next()? else { return Err(EventError::NotAnEvent) };
            return Ok(kind);
        }
        reader.skip()?;
    }
    Err(EventError::NotAnEvent)
}

fn unknown(kind: &[u8]) -> EventError {
    EventError::UnknownType { kind: String::from_utf8_lossy(kind).chars().take(KIND_CHARS_MAX).collect() }
}

/// Known types of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

impl Kind {
    fn of(kind: &[u8]) -> Result<Self, EventError> {
        match kind {
            b"BlockStored" => Ok(Self::Stored),
            b"BlockRemoved" => Ok(Self::Removed),
            b"AllBlocksCleared" => Ok(Self::Cleared),
            kind => Err(unknown(kind)),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "BlockStored",
            Self::Removed => "BlockRemoved",
            Self::Cleared => "AllBlocksCleared",
        }
    }
}

/// Fields of an array `BlockRemoved`, in order; later fields are skipped.
const REMOVED_FIELDS: [&str; 5] = ["block_hashes", "medium", "group_idx", "locality", "ownership"];

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
                match REMOVED_FIELDS.get(at) {
                    Some(field) => removed_field(&mut removed, field.as_bytes(), reader, unknown)?,
                    None => unknown.skip(at, reader)?,
                }
            }
            Ok(EngineEvent::Removed(removed))
        }
        Kind::Cleared => {
            let mut scope = ScopedClear::default();
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
        Kind::Cleared => EngineEvent::ClearedScope(ScopedClear::default()),
    };
    let (mut has_hashes, mut has_block_size) = (false, false);
    for _ in 0..len {
        let Token::Text(key) = reader.next()? else { return Err(EventError::NotAnEvent) };
        has_hashes |= key == b"block_hashes";
        has_block_size |= key == b"block_size";
        match &mut event {
            EngineEvent::Stored(stored) => stored_field(stored, key, reader, unknown)?,
            EngineEvent::Removed(removed) => removed_field(removed, key, reader, unknown)?,
            EngineEvent::ClearedScope(scope) => cleared_field(scope, key, reader, unknown)?,
            EngineEvent::Cleared => reader.skip()?,
        }
    }
    // Every other absent field is nil: the start of a sequence, or a store without tokens.
    match event {
        EngineEvent::Stored(_) | EngineEvent::Removed(_) if !has_hashes => {
            Err(EventError::MissingField { field: "block_hashes" })
        }
        EngineEvent::Stored(_) if !has_block_size => Err(EventError::MissingField { field: "block_size" }),
        EngineEvent::ClearedScope(scope) => Ok(cleared(scope)),
        event => Ok(event),
    }
}

/// A clear of the whole cache if no field restricts it.
fn cleared(scope: ScopedClear<'_>) -> EngineEvent<'_> {
    let is_set = |text: &&str| !text.is_empty();
    let scope = ScopedClear { medium: scope.medium.filter(is_set), ownership: scope.ownership.filter(is_set), ..scope };
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
        _ => skip_named(field, reader, unknown)?,
    }
    Ok(())
}

fn salt_in_map<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, EventError> {
    let Token::Map(len) = reader.next()? else { return Err(fields::wrong("extra_keys")) };
    let mut salt = None;
    for _ in 0..len {
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
