//! Counters of the messages, events and blocks that engines publish.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use flash_indexer_core::groups::{GroupEvent, RankEvent};
use flash_indexer_core::{AppliedChanges, BlockEvent};
use flash_indexer_wire::ReplayOutcome;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::declarations::{Declarations, NamedCounters};
use super::histogram::Histogram;
use super::rejections::REASONS;
use super::{LabelValue, Metrics};

/// Buckets of event lag, in seconds: from loopback latency to an engine that was paused.
const LAGS: [f64; 16] =
    [0.5e-3, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0];

flash_indexer_types::named_enum! {
    /// Outcome of a batch that an engine's server streamed over gRPC.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StreamedBatch {
        /// A batch with events.
        Events = "events",
        /// A batch without events.
        Empty = "empty",
        /// A batch with the engine's load only.
        Load = "load",
        /// A batch of a rank that another listener follows, or none; it is left out.
        OtherRank = "other_rank",
        /// A part of a snapshot.
        Snapshot = "snapshot",
        /// A call that failed.
        Failed = "failed",
    }
}

flash_indexer_types::named_enum! {
    /// Outcome of a pull of an engine's events.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PullOutcome {
        /// The response has events.
        Events = "events",
        /// There were no events.
        Empty = "empty",
        /// The pull failed.
        Failed = "failed",
    }
}

flash_indexer_types::named_enum! {
    /// Which socket a CURVE handshake was of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CurveSocket {
        /// The service connects to an engine.
        Dialled = "dialled",
        /// An engine connects to the service.
        Bound = "bound",
    }
}

/// Kinds of applied events.
const KINDS: [LabelValue; 4] = [
    ("stored", "Blocks were stored."),
    ("copied", "Blocks appeared in another tier."),
    ("removed", "Blocks were removed."),
    ("cleared", "A cache, or a part of it, was cleared."),
];
/// In the order of [`results`].
const RESULTS: [LabelValue; 7] = [
    ("stored", "Added to the index."),
    ("duplicate", "A further copy of a held block."),
    ("waiting", "Stored, and its parent is not held; counted in `stored` too."),
    ("moved", "Stored under a sequence hash that had other content; counted in `stored` too."),
    ("refused", "Not stored, because of a limit."),
    ("removed", "Removed from the index."),
    ("unknown", "A removal of a block that is not held."),
];

const fn results(applied: &AppliedChanges) -> [u64; RESULTS.len()] {
    let AppliedChanges {
        stored,
        duplicate,
        waiting,
        moved,
        refused,
        twins_refused: _,
        moves_refused: _,
        removed,
        waiting_removed: _,
        unknown,
    } = *applied;
    [stored, duplicate, waiting, moved, refused, removed, unknown]
}

/// Types of engine events.
const EVENT_TYPES: [&str; 5] = ["BlockStored", "BlockRemoved", "BlockTransferred", "BlockInactive", "AllBlocksCleared"];

#[derive(Debug)]
pub(super) struct IngestMetrics {
    messages: Counter,
    missed_messages: Counter,
    gaps: Counter,
    restarts: Counter,
    replayed_messages: Counter,
    lost_messages: Counter,
    replays: [Counter; ReplayOutcome::ALL.len()],
    listener_restarts: Counter,
    pods_registered: Counter,
    pods_unregistered: Counter,
    inactive_blocks: Counter,
    unnumbered_streams: Counter,
    curve_handshakes_failed: [Counter; CurveSocket::ALL.len()],
    pulls: [Counter; PullOutcome::ALL.len()],
    streamed_batches: [Counter; StreamedBatch::ALL.len()],
    partial_blocks: Counter,
    events: [Counter; KINDS.len()],
    blocks: [Counter; RESULTS.len()],
    rejected: NamedCounters,
    /// By type of the event.
    unknown_fields: Family<[(&'static str, &'static str); 1], Counter>,
    lag: Histogram,
    batches_from_the_future: Counter,
    clock_lead: Gauge<f64, AtomicU64>,
    managed_bytes: Gauge,
}

impl IngestMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Events applied, by kind; an event of more than 4,096 blocks counts once for each part";
        let events = declarations.counters("events", help, "kind", &KINDS);
        let help = "Blocks in applied events, by result; a stored block may also count as waiting or moved";
        let blocks = declarations.counters("blocks", help, "result", &RESULTS);
        let help = "Replays requested from engines, by outcome";
        let replays = declarations.counters("replays", help, "outcome", &ReplayOutcome::DESCRIPTIONS);
        let help = "Messages and events that were rejected or dropped, by reason";
        let rejected = declarations.named_counters("rejected", help, "reason", &REASONS);
        let help = "Unknown fields of events, each counted once in a stream, by type of the event";
        let unknown_fields: Family<_, Counter> = declarations.add("unknown_fields", help, Family::default());
        for event in EVENT_TYPES {
            drop(unknown_fields.get_or_create(&[("event", event)]));
        }
        let help = "Pulls of engines' events over HTTP, by outcome";
        let pulls = declarations.counters("pulls", help, "outcome", &PullOutcome::DESCRIPTIONS);
        let help = "Batches of engines' events over gRPC, by outcome";
        let streamed_batches = declarations.counters("streamed_batches", help, "outcome", &StreamedBatch::DESCRIPTIONS);
        let help = "CURVE handshakes that failed, by socket";
        let curve_handshakes_failed =
            declarations.counters("curve_handshakes_failed", help, "socket", &CurveSocket::DESCRIPTIONS);
        let help = "Time from an engine's time stamp on a batch until queries see the batch; a stamp in the future counts as 0";
        let lag = declarations.durations("event_lag", help, &LAGS);
        let help = "Largest lead of an engine's clock over this machine's clock, measured when a batch is applied";
        let clock_lead = declarations.add_with_unit("engine_clock_lead", help, Unit::Seconds, Gauge::default());
        let help = "Memory of the copies of blocks whose events name a manager, which is not part of --memory-max";
        let managed_bytes = declarations.add_with_unit("managed_copies", help, Unit::Bytes, Gauge::default());
        let help = "Ranks of pods that were unregistered after their connection was lost";
        let pods_unregistered = declarations.counter("pods_unregistered", help);
        declarations.add("pods_left", "Alias of pods_unregistered until 1.0", pods_unregistered.clone());
        let mut counter = |name, help| declarations.counter(name, help);
        Self {
            messages: counter("messages", "Messages received from engines"),
            missed_messages: counter("missed_messages", "Published messages that were missing in gaps"),
            gaps: counter("gaps", "Gaps in the sequence numbers of live messages"),
            restarts: counter(
                "engine_restarts",
                "Engine restarts detected in streams; the engines' blocks were cleared",
            ),
            replayed_messages: counter("replayed_messages", "Missing messages received by replay"),
            lost_messages: counter("lost_messages", "Missing messages that no replay returned"),
            listener_restarts: counter("listener_restarts", "Listeners that were restarted after a panic"),
            pods_registered: counter("pods_registered", "Ranks of pods that registered themselves by connecting"),
            pods_unregistered,
            inactive_blocks: counter("inactive_blocks", "Blocks that no request of their engine uses any more"),
            unnumbered_streams: counter(
                "unnumbered_streams",
                "Streams whose messages have no sequence numbers; their ranks are never exact",
            ),
            pulls,
            streamed_batches,
            curve_handshakes_failed,
            partial_blocks: counter(
                "partial_blocks",
                "Pulled blocks with fewer tokens than a block, which no request matches",
            ),
            replays,
            events,
            blocks,
            lag,
            batches_from_the_future: counter(
                "batches_from_the_future",
                "Batches whose time stamp was later than the time at which they were applied",
            ),
            clock_lead,
            managed_bytes,
            rejected,
            unknown_fields,
        }
    }
}

impl Metrics {
    /// Records a change of the bytes that copies of blocks with a named manager take.
    pub fn managed_bytes_changed(&self, before: usize, after: usize) {
        self.ingest.managed_bytes.inc_by(after as i64 - before as i64);
    }

    /// Bytes that copies of blocks with a named manager take.
    #[must_use]
    pub fn managed_bytes(&self) -> i64 {
        self.ingest.managed_bytes.get()
    }

    /// Counts a message that was received.
    pub fn message_received(&self) {
        self.ingest.messages.inc();
    }

    /// Counts a gap of `missed` messages in an engine's stream.
    pub fn gap_detected(&self, missed: u64) {
        self.ingest.gaps.inc();
        self.ingest.missed_messages.inc_by(missed);
    }

    /// Counts a missing message that an engine replayed.
    pub fn message_replayed(&self) {
        self.ingest.replayed_messages.inc();
    }

    /// Counts missing messages that no replay can return any more.
    pub fn messages_lost(&self, messages: u64) {
        self.ingest.lost_messages.inc_by(messages);
    }

    /// Counts a CURVE handshake that failed.
    pub fn curve_handshake_failed(&self, socket: CurveSocket) {
        self.ingest.curve_handshakes_failed[socket as usize].inc();
    }

    /// CURVE handshakes that failed so far.
    pub fn curve_handshakes_failed(&self, socket: CurveSocket) -> u64 {
        self.ingest.curve_handshakes_failed[socket as usize].get()
    }

    /// Counts a listener that restarted after a failure.
    pub fn listener_restarted(&self) {
        self.ingest.listener_restarts.inc();
    }

    /// Counts a rank that was registered because its engine connected.
    pub fn pod_registered(&self) {
        self.ingest.pods_registered.inc();
    }

    /// Counts a self-registered rank that was removed after its engine disconnected.
    pub fn pod_unregistered(&self) {
        self.ingest.pods_unregistered.inc();
    }

    /// Counts a stream whose messages have no sequence numbers.
    pub fn unnumbered_stream(&self) {
        self.ingest.unnumbered_streams.inc();
    }

    /// Counts a batch that was received over gRPC.
    pub fn streamed_batch(&self, outcome: StreamedBatch) {
        self.ingest.streamed_batches[outcome as usize].inc();
    }

    /// Counts a pull of an engine's events, and the partial blocks in it.
    pub fn pulled(&self, outcome: PullOutcome, partial_blocks: u64) {
        self.ingest.pulls[outcome as usize].inc();
        self.ingest.partial_blocks.inc_by(partial_blocks);
    }

    /// Streams without sequence numbers so far.
    pub fn unnumbered_streams_count(&self) -> u64 {
        self.ingest.unnumbered_streams.get()
    }

    /// Counts a restart of an engine.
    pub fn engine_restarted(&self) {
        self.ingest.restarts.inc();
    }

    /// Counts a replay that ended.
    pub fn replay_ended(&self, outcome: ReplayOutcome) {
        self.ingest.replays[outcome as usize].inc();
    }

    /// Counts an applied event and the result of each of its blocks.
    pub fn event_applied(&self, event: &RankEvent, applied: &AppliedChanges) {
        let kind = match event {
            RankEvent::Primary(BlockEvent::Stored { .. }) => 0,
            RankEvent::Primary(BlockEvent::Copied { .. }) => 1,
            RankEvent::Primary(BlockEvent::Removed { .. }) => 2,
            RankEvent::Primary(BlockEvent::Cleared) | RankEvent::ClearedScope(_) => 3,
            RankEvent::Secondary(change) => match change.event {
                GroupEvent::Stored { .. } => 0,
                GroupEvent::Removed { .. } => 2,
                // They belong to the store that shows them.
                GroupEvent::Linked(_) => return,
            },
        };
        self.ingest.events[kind].inc();
        for (counter, blocks) in self.ingest.blocks.iter().zip(results(applied)) {
            if blocks > 0 {
                counter.inc_by(blocks);
            }
        }
    }

    /// Counts blocks that no request of their engine uses any more.
    pub fn blocks_inactive(&self, blocks: u64) {
        self.ingest.inactive_blocks.inc_by(blocks);
    }

    /// Blocks that engines have published as inactive so far.
    pub fn inactive_blocks_count(&self) -> u64 {
        self.ingest.inactive_blocks.get()
    }

    /// Counts a rejected message or event.
    pub fn rejected(&self, reason: &'static str) {
        self.ingest.rejected.inc(reason);
    }

    /// Counts an unknown field that a stream has for the first time.
    pub fn unknown_field(&self, event: &'static str) {
        debug_assert!(EVENT_TYPES.contains(&event), "add {event} to EVENT_TYPES, so that it is exported at zero");
        self.ingest.unknown_fields.get_or_create(&[("event", event)]).inc();
    }

    /// Unknown fields of this type of event counted so far.
    pub fn unknown_fields_count(&self, event: &'static str) -> u64 {
        self.ingest.unknown_fields.get_or_create(&[("event", event)]).get()
    }

    /// Records the lag of a batch that became visible to queries at `now`. `stamped` is the engine's time in seconds since
    /// the Unix epoch; an invalid time is not recorded.
    pub fn observe_lag(&self, stamped: f64, now: SystemTime) {
        let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH).as_ref().map(Duration::as_secs_f64) else { return };
        if !stamped.is_finite() || stamped <= 0.0 {
            return;
        }
        let lag = now - stamped;
        if lag < 0.0 {
            self.ingest.batches_from_the_future.inc();
            // Positive floats and their bits have the same order.
            self.ingest.clock_lead.inner().fetch_max((-lag).to_bits(), Relaxed);
        }
        self.ingest.lag.observe(lag.max(0.0));
    }

    /// Events applied since the start.
    pub fn events_applied(&self) -> u64 {
        self.ingest.events.iter().map(Counter::get).sum()
    }
}
