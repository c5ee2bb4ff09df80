//! Effects of a message.

use std::fmt::Display;

use flash_indexer_core::AppliedChanges;
use flash_indexer_wire::ClearReason;

/// Effects of one message, or of the messages that became applicable with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageReport {
    /// Messages that were applied: none while earlier ones are missing and a replay can return them.
    pub messages: u64,
    /// Changed blocks.
    pub applied: AppliedChanges,
    /// Events and messages that were not applied, one entry for each reason.
    pub rejections: Vec<Rejection>,
    /// Unknown fields of events, which were ignored: at most [`UNKNOWN_FIELDS_MAX`](flash_indexer_wire::UNKNOWN_FIELDS_MAX).
    pub unknown_fields: Vec<String>,
    /// Messages missing between the last live message and this one.
    pub missed_messages: u64,
    /// Missing messages that were permanently lost since the last call.
    pub lost_messages: u64,
    /// Messages that were received before, byte for byte, and ignored.
    pub duplicates: u64,
    /// Why all blocks of the stream's ranks were dropped before the message was applied, if they were.
    pub cleared: Option<ClearReason>,
    /// The messages to request from the engine now. A later request replaces an earlier one.
    pub replay: Option<ReplayRequest>,
}

/// Events or messages that were not applied, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Label of the reason, for counters.
    pub reason: &'static str,
    /// Number of events or messages.
    pub count: u64,
    /// Explanation of the first of them.
    pub message: String,
}

/// Messages that a stream requests from its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayRequest {
    /// Number of the request. Replies are passed back with it.
    pub attempt: u32,
    /// First sequence number.
    pub from: u64,
}

impl MessageReport {
    /// Counts a rejection. The list has at most as many entries as there are reasons.
    pub(crate) fn reject(&mut self, reason: &'static str, why: &dyn Display) {
        match self.rejections.iter_mut().find(|known| known.reason == reason) {
            Some(known) => known.count += 1,
            None => self.rejections.push(Rejection { reason, count: 1, message: why.to_string() }),
        }
    }
}
