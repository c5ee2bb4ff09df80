//! Notes of a stream: metrics and logs of gaps, replays and rejections.

use std::time::Instant;

use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_wire::StreamEvent;
use tracing::{Span, debug_span};

use super::ListenerDecoder;
use crate::log_listener;

/// Why events of an engine that is pulled are missing, and what to do.
const EVENTS_MISSING: &str = "another client reads the engine's /kv_cache_events too, which takes events away, or they were \
     published before the registration, or its buffer overflowed; let one replica read the engine, register it before it serves, \
     raise its event_buffer_max_size, and restart it";

impl ListenerDecoder {
    /// Counts and logs a note of the stream. A replay has a debug span from its start to its end.
    pub(super) fn note(&mut self, note: StreamEvent) {
        match note {
            StreamEvent::Gap { missed } => {
                self.metrics.gap_detected(missed);
                self.listener.count_gap();
                match self.repeated_gaps.count(Instant::now()) {
                    Some(times) => log_listener!(info, self.listener, missed, times, "gap in the stream"),
                    None => log_listener!(debug, self.listener, missed, "gap in the stream"),
                }
            }
            StreamEvent::Lost { messages } => {
                self.metrics.messages_lost(messages);
                if self.listener.options.is_pulled() {
                    self.reject("events_missing", EVENTS_MISSING.to_owned());
                }
                log_listener!(debug, self.listener, messages, "messages cannot be replayed");
            }
            StreamEvent::ReplayStarted { from, end } => {
                self.replay_span = debug_span!("replay", from, end);
                let _span = self.replay_span.enter();
                match self.repeated_replays.count(Instant::now()) {
                    Some(times) => log_listener!(info, self.listener, from, end, times, "replay started"),
                    None => log_listener!(debug, self.listener, from, end, "replay started"),
                }
            }
            StreamEvent::Replay(outcome) => {
                let _span = std::mem::replace(&mut self.replay_span, Span::none()).entered();
                self.metrics.replay_ended(outcome);
                let seq = self.stream.position().cursor.map(|cursor| cursor.sequence);
                let outcome = outcome.as_str();
                match self.repeated_ends.count(Instant::now()) {
                    Some(times) => log_listener!(info, self.listener, seq, outcome, times, "replay ended"),
                    None => log_listener!(debug, self.listener, seq, outcome, "replay ended"),
                }
            }
            StreamEvent::Mismatch { sequence } => {
                log_listener!(
                    info,
                    self.listener,
                    seq = sequence,
                    "engine epoch changed: the message differs from the applied one"
                );
            }
            StreamEvent::Duplicate => self.reject("duplicate_message", "a message was received twice".to_owned()),
            StreamEvent::WaitingFull { dropped } => {
                let why = format!("too many messages are buffered after a gap: {dropped} of them dropped");
                self.reject("waiting_full", why);
                self.metrics.limit_reached(Limit::WaitingMessages);
            }
        }
    }

    /// Counts and logs a rejected message or event.
    pub(super) fn reject(&mut self, reason: &'static str, why: String) {
        self.metrics.rejected(reason);
        match self.repeated_rejections.count(Instant::now()) {
            Some(times) => {
                log_listener!(warn, self.listener, reason, times, error = why.as_str(), "message or event rejected")
            }
            None => log_listener!(debug, self.listener, reason, error = why.as_str(), "message or event rejected"),
        }
        self.listener.reject(reason, why);
    }
}
