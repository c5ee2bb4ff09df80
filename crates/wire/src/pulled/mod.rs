//! TensorRT-LLM's pull API: responses to `POST /kv_cache_events`, as messages of a stream.
//!
//! A response is a JSON list of the events since the last read, and a read takes them from the engine. Each event has the number
//! `event_id` in its attention rank's stream, which begins with 0 in each process. [`PullReader`] makes one message of each event.
//! Its batch has the events of other engines, in MessagePack: decoders, streams and recordings handle one form only.
//!
//! | event of the engine | events of the message |
//! |---|---|
//! | the first one of a rank | `BlockStored` without blocks for each cache group, which announces it; full attention first |
//! | `created` | none: it names the window of a cache |
//! | `stored` | `BlockStored` of complete blocks, one event for each run of blocks in one memory |
//! | `removed` | `BlockRemoved` from the memory that holds the block, with no copy left |
//! | `updated` with another `cache_level` | `BlockTransferred` |
//!
//! # Numbers
//!
//! All ranks of an engine share one stream. The sequence number of a message counts the events of all ranks before it,
//! including the missing ones. With one rank it is `event_id`. If a rank's numbers begin again, the engine has restarted,
//! and the sequence numbers begin again as well.
//!
//! # Partial blocks
//!
//! The engine stores the last block of a sequence even if it has fewer tokens than a block. No other request can reuse the
//! complete partial block, so the reader leaves it out, together with its removal.

mod convert;
mod error;
mod json;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, SequenceHash};
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;

pub use self::error::{PullEventError, PullResponseError};
use self::json::{Envelope, Unsigned};
use crate::encode::{BatchWriter, Encoding, encode_batch_leaving_out};
use crate::event::{CacheGroup, EngineEvent};
use crate::left_out::{LeftOutEvent, WHY_CHARS_MAX};

/// Limit of the blocks of one engine that a reader follows: those outside device memory, and partial ones.
pub const FOLLOWED_BLOCKS_MAX: usize = 1 << 19;
/// Limit of the attention ranks of one engine.
const RANKS_MAX: usize = 1 << 10;
/// Number of events, from the first one of a rank on, that show its cache groups. An engine begins with one `created` for each group.
const FIRST_EVENTS: usize = 256;
/// Limit of the events in a response. An engine's buffer has some thousand for each rank.
const EVENTS_MAX: usize = 1 << 18;

/// Reader of one engine's responses, in order.
///
/// Memory: about 40 bytes for each block outside device memory and each partial block, up to [`FOLLOWED_BLOCKS_MAX`].
#[derive(Debug)]
pub struct PullReader {
    block_size: BlockSize,
    /// Next event number of each rank; of the rank `None` if the engine has one rank.
    ranks: FxHashMap<Option<u32>, u64>,
    /// Next sequence number.
    next: u64,
    /// The largest attention window that the engine has named, in tokens: that of full attention.
    largest_window: i64,
    followed: FxHashMap<BlockKey, FollowedBlock>,
}

/// A block of one rank and cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockKey {
    rank: Option<u32>,
    group: Option<u32>,
    sequence: SequenceHash,
}

/// A block whose removal differs from that of a complete block in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowedBlock {
    /// It has fewer tokens than a block, and is not in the index.
    Partial,
    /// It is in this level of the engine's memory.
    InLevel(u32),
}

/// Whether a rank has had an event in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RankAge {
    New,
    Known,
}

/// Whether a response has shown a restart of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    Possible,
    Seen,
}

/// Messages of a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PulledMessages {
    /// The messages, in order.
    pub messages: Vec<PulledMessage>,
    /// Errors of events that are left out. A message stands for each, and its decoder reports the error in its place.
    pub left_out: Vec<PullEventError>,
    /// Errors of events without a readable number. No message stands for them.
    pub unnumbered: Vec<PullEventError>,
    /// Partial blocks that are left out.
    pub partial_blocks: u64,
}

/// A message of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledMessage {
    /// Sequence number.
    pub sequence: u64,
    /// The batch, as [`encode_batch`](crate::encode_batch) writes it.
    pub payload: Vec<u8>,
}

impl PullReader {
    /// A reader of an engine that was registered with this block size.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size, ranks: FxHashMap::default(), next: 0, largest_window: 0, followed: FxHashMap::default() }
    }

    /// Decodes a response that was received at `timestamp`, in seconds since the Unix epoch. Linear in its length.
    ///
    /// The time is part of every message: an event of a restarted engine differs from the earlier event with the same
    /// number.
    ///
    /// # Errors
    ///
    /// When the response is not a list of events. An unusable event is left out.
    pub fn read(&mut self, response: &[u8], timestamp: f64) -> Result<PulledMessages, PullResponseError> {
        let events: Vec<&RawValue> =
            serde_json::from_slice(response).map_err(|error| PullResponseError::Malformed(error.to_string()))?;
        if events.len() > EVENTS_MAX {
            return Err(PullResponseError::TooManyEvents(events.len()));
        }
        let mut pulled = PulledMessages::default();
        let mut envelopes: Vec<Envelope<'_>> = Vec::with_capacity(events.len());
        for event in events {
            match serde_json::from_str(event.get()) {
                Ok(envelope) => envelopes.push(envelope),
                Err(error) => pulled.unnumbered.push(PullEventError::Malformed(error.to_string())),
            }
        }
        // All events of a response are of one process.
        let mut restart = Restart::Possible;
        for (at, envelope) in envelopes.iter().enumerate() {
            let first = &envelopes[at..envelopes.len().min(at + FIRST_EVENTS)];
            let (sequence, rank) = self.number(envelope, first, &mut restart);
            let groups = match rank {
                Ok(RankAge::New) => convert::groups(first, self.largest_window),
                Ok(RankAge::Known) | Err(_) => Vec::new(),
            };
            let converted = rank.and_then(|_| self.convert(envelope, &groups, timestamp, &mut pulled.partial_blocks));
            let payload = converted.unwrap_or_else(|error| {
                let why = error.to_string().chars().take(WHY_CHARS_MAX).collect();
                let left_out = LeftOutEvent { reason: error.reason(), why };
                pulled.left_out.push(error);
                let rank = envelope.attention_dp_rank.map(DpRank);
                encode_batch_leaving_out(timestamp, &[], &[left_out], rank, Encoding::Map)
            });
            pulled.messages.push(PulledMessage { sequence, payload });
        }
        Ok(pulled)
    }

    /// The sequence number of an event, and whether its rank is new. `first` are the events from this one on: at the start of an
    /// epoch they show the windows of the engine's caches.
    fn number(
        &mut self,
        envelope: &Envelope<'_>,
        first: &[Envelope<'_>],
        restart: &mut Restart,
    ) -> (u64, Result<RankAge, PullEventError>) {
        let (rank, Unsigned(id)) = (envelope.attention_dp_rank, envelope.event_id);
        if self.ranks.get(&rank).is_some_and(|&next| id < next) {
            if *restart == Restart::Seen {
                let sequence = self.next;
                self.next = sequence.saturating_add(1);
                return (sequence, Err(PullEventError::StepBack));
            }
            *restart = Restart::Seen;
            *self = Self::new(self.block_size);
        }
        if self.ranks.is_empty() {
            let windows = first.iter().filter_map(|envelope| envelope.window_size);
            self.largest_window = windows.max().unwrap_or_default();
        }
        self.largest_window = self.largest_window.max(envelope.window_size.unwrap_or_default());
        let is_known = self.ranks.contains_key(&rank);
        let mut sequence = self.next;
        let mut counted = Ok(if is_known { RankAge::Known } else { RankAge::New });
        if is_known || self.ranks.len() < RANKS_MAX {
            let next = self.ranks.entry(rank).or_default();
            sequence = sequence.saturating_add(id - *next);
            *next = id.saturating_add(1);
        } else {
            counted = Err(PullEventError::TooManyRanks);
        }
        self.next = sequence.saturating_add(1);
        (sequence, counted)
    }

    fn convert(
        &mut self,
        envelope: &Envelope<'_>,
        groups: &[CacheGroup<'static>],
        timestamp: f64,
        partial_blocks: &mut u64,
    ) -> Result<Vec<u8>, PullEventError> {
        let rank = envelope.attention_dp_rank.map(DpRank);
        let group = convert::group(envelope, self.largest_window);
        let block_size = self.block_size.tokens();
        let encode = |events: &[EngineEvent<'_>]| {
            let mut batch = BatchWriter::new(timestamp, groups.len() + events.len(), Encoding::Map);
            groups.iter().for_each(|&group| batch.event(&convert::announcement(group, block_size)));
            events.iter().for_each(|event| batch.event(event));
            batch.finish(rank)
        };
        let mut blocks = convert::Blocks {
            rank: envelope.attention_dp_rank,
            group,
            block_size: self.block_size,
            followed: &mut self.followed,
        };
        blocks.convert(envelope.data.get(), partial_blocks, encode)
    }
}
