//! Decoding of a MessagePack payload into a batch of events.

use flash_indexer_core::DpRank;

use crate::adapter::EngineAdapter;
use crate::decode_event::event;
use crate::event::EngineEvent;
use crate::event_error::EventError;
use crate::msgpack::{MsgpackError, Reader, Token};
use crate::unknown_fields::UnknownField;

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
        self.events.clone().flatten().find_map(|event| match event {
            EngineEvent::Stored(it) if it.block_size > 0 && it.group.can_be_primary() => Some(it.block_size),
            _ => None,
        })
    }
}

impl EngineAdapter {
    /// Decodes a payload into a batch. Linear in its length.
    ///
    /// # Errors
    ///
    /// When the payload is not a batch or is cut short.
    pub fn batch(self, payload: &[u8]) -> Result<Batch<'_>, BatchError> {
        BatchOutline::of(payload).map(|outline| outline.batch(payload, self))
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
        let mut reader = Reader::new(payload);
        let (mut timestamp, mut dp_rank, mut events) = (0.0, None, None);
        match reader.next()? {
            Token::Array(len @ 2..=4) => {
                timestamp = read_timestamp(&mut reader)?;
                events = Some(skip_events(&mut reader)?);
                if len > 2 {
                    dp_rank = read_dp_rank(&mut reader)?;
                }
                if len > 3 {
                    reader.skip()?;
                }
            }
            Token::Map(len) => {
                for _ in 0..len {
                    let Token::Text(key) = reader.next()? else { return Err(BatchError::NotABatch) };
                    match key {
                        b"ts" | b"timestamp" => timestamp = read_timestamp(&mut reader)?,
                        b"events" => events = Some(skip_events(&mut reader)?),
                        b"data_parallel_rank" => dp_rank = read_dp_rank(&mut reader)?,
                        _ => reader.skip()?,
                    }
                }
            }
            _ => return Err(BatchError::NotABatch),
        }
        let (events_at, events) = events.ok_or(BatchError::NotABatch)?;
        if !reader.is_at_end() {
            return Err(BatchError::TrailingBytes);
        }
        Ok(Self { timestamp, dp_rank, events_at, events })
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

    /// The outline of the remaining events of an iterator over this batch.
    #[must_use]
    pub fn of_rest(self, rest: &Events<'_>) -> Self {
        Self { events_at: rest.offset(), events: rest.left, ..self }
    }

    /// The outline without the batch's events.
    #[must_use]
    pub const fn without_events(self) -> Self {
        Self { events: 0, ..self }
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
    /// Takes the unknown fields of the events decoded so far, at most [`UNKNOWN_FIELDS_MAX`](crate::UNKNOWN_FIELDS_MAX) and each once.
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
            // Unreachable: `BatchOutline::of` has skipped over the whole batch before. Ends the iteration in any case.
            self.left = 0;
        }
        Some(event)
    }
}

/// Limit of the events in a batch. The smallest event of an engine takes 16 bytes, so a message of 16 MiB has fewer.
pub const BATCH_EVENTS_MAX: u32 = 1 << 20;

/// The whole payload cannot be decoded: none of its events is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not MessagePack, or truncated.
    #[error("failed to decode the batch: {0}")]
    Malformed(#[from] MsgpackError),
    /// More events than a message can have in any engine's format.
    #[error("the batch has {count} events; at most {BATCH_EVENTS_MAX} are allowed: send fewer events in a message")]
    TooManyEvents {
        /// Events in the batch.
        count: u32,
    },
    /// MessagePack, but not `[timestamp, [event…], rank]`.
    #[error("not an event batch: expected [timestamp, [event, …], data_parallel_rank]")]
    NotABatch,
    /// A batch with further bytes after it, which may be events.
    #[error("bytes follow the batch: send one batch in a message")]
    TrailingBytes,
}

impl BatchError {
    /// Label for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed_batch",
            Self::NotABatch | Self::TrailingBytes => "not_a_batch",
            Self::TooManyEvents { .. } => "too_many_events",
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
    EngineAdapter::Detect.batch(payload)
}

/// Reads a timestamp. It is informative only: any other type is read as zero.
fn read_timestamp(reader: &mut Reader<'_>) -> Result<f64, BatchError> {
    let timestamp = match reader.clone().next()? {
        Token::Float(seconds) => seconds,
        Token::Unsigned(seconds) => seconds as f64,
        _ => 0.0,
    };
    reader.skip()?;
    Ok(timestamp)
}

fn read_dp_rank(reader: &mut Reader<'_>) -> Result<Option<DpRank>, BatchError> {
    match reader.next()? {
        Token::Nil => Ok(None),
        Token::Unsigned(rank) => u32::try_from(rank).map(|rank| Some(DpRank(rank))).map_err(|_| BatchError::NotABatch),
        _ => Err(BatchError::NotABatch),
    }
}

/// Skips the events. Returns the offset of the first one, and their number.
fn skip_events(reader: &mut Reader<'_>) -> Result<(usize, u32), BatchError> {
    let Token::Array(events) = reader.next()? else { return Err(BatchError::NotABatch) };
    let events_at = reader.position();
    for _ in 0..events {
        reader.skip()?;
    }
    if events > BATCH_EVENTS_MAX {
        return Err(BatchError::TooManyEvents { count: events });
    }
    Ok((events_at, events))
}
