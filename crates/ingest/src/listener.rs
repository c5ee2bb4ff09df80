//! One subscription to one engine's stream, and what it has been through.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flash_indexer_core::{DpRank, RemovedCopies, WorkerId, WorkerRank};
use flash_indexer_wire::{Pending, Start, StreamPosition, StreamTrust, plural};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use super::held_ranks::HeldRanks;
use super::queue::Queued;
use super::sink::ModelSink;
use super::sockets::Mailbox;
use super::trust::{LossPosition, TrustLedger};
use crate::log_listener;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Removal;
use flash_indexer_types::Trust;
use flash_indexer_types::logs::Repeats;
use flash_indexer_types::names::shorten;
use flash_indexer_types::{Doubt, Ordinal};

/// State of a subscription's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// Not connected yet.
    Connecting,
    /// The engine answers.
    Connected,
    /// It was connected, and reconnects.
    Disconnected,
}

impl Connection {
    /// The name used in answers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
        }
    }
}

/// What a listener was registered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Endpoint of the event stream.
    pub endpoint: String,
    /// Endpoint that replays missed messages.
    pub replay_endpoint: Option<String>,
    /// Adapter of blocks that name none.
    pub lora_name: Option<String>,
    /// Kind of the engine, if it was declared.
    pub engine: Option<&'static str>,
    /// Copies that one removal takes.
    pub removed_copies: RemovedCopies,
    /// Whether requests carry keys beside their tokens that the engine's events do not.
    pub extra_keys: bool,
}

/// A subscription: shared by the threads that own its sockets, that decode it and that write what it
/// tells, and whoever requests.
pub struct Listener {
    /// Unique in the process.
    pub id: u64,
    /// The model that its events are written into.
    pub model: Arc<dyn ModelSink>,
    /// The instance.
    pub instance: InstanceId,
    /// Number of the instance in the model's index.
    pub worker: WorkerId,
    /// The rank it was registered for; a batch may name another.
    pub dp_rank: DpRank,
    /// What it was registered with.
    pub options: ListenerOptions,
    /// Whether its messages are applied at once.
    pub start: Start,
    /// Which decoder follows its stream.
    pub decoder: usize,
    /// Where an earlier listener of this stream had stopped.
    pub resume_from: Option<StreamPosition>,
    /// What becomes of it.
    pub state: ListenerState,
}

/// What a listener has been through.
pub struct ListenerState {
    /// Ranks that wait for their state, while it is held.
    hold: Mutex<HeldRanks>,
    /// The thread that owns its sockets.
    pub(super) mailbox: OnceLock<Mailbox>,
    /// Whether its state is lost, and the stream has not started over yet.
    pub(super) needs_restart: AtomicBool,
    /// Whether blocks of some rank wait for a parent. Written by its writer alone.
    has_waiting: AtomicBool,
    status: Mutex<Status>,
    /// What of its messages waits for its decoder.
    pub(super) queued: Queued,
}

impl ListenerState {
    /// Of a listener that has received nothing yet, with these options.
    pub fn new(options: &ListenerOptions) -> Self {
        let ceiling = options.extra_keys.then_some(EXTRA_KEYS);
        Self {
            hold: Mutex::default(),
            mailbox: OnceLock::new(),
            needs_restart: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            status: Mutex::new(Status::new(ceiling)),
            queued: Queued::default(),
        }
    }
}

/// Why ranks of an engine with extra keys are never exact.
const EXTRA_KEYS: &str =
    "the engine was registered with extra_keys, which its events do not carry: matches may be too long";

#[derive(Debug)]
struct Status {
    connection: Connection,
    connects: Repeats,
    disconnects: Repeats,
    trust: TrustLedger,
    last_sequence: Option<u64>,
    last_message: Option<Instant>,
    gaps: u64,
    rejected: BTreeMap<&'static str, u64>,
    last_error: Option<String>,
}

impl Status {
    fn new(ceiling: Option<&'static str>) -> Self {
        Self {
            connection: Connection::Connecting,
            connects: Repeats::default(),
            disconnects: Repeats::default(),
            trust: TrustLedger::new(ceiling),
            last_sequence: None,
            last_message: None,
            gaps: 0,
            rejected: BTreeMap::new(),
            last_error: None,
        }
    }

    /// What is missing of a rank; of one that is not trusted for another reason, the last thing that went wrong.
    fn last_error(&self, dp_rank: DpRank) -> Option<String> {
        match self.trust.rank_trust(dp_rank) {
            (Trust::Exact, _) => None,
            (_, Some(missing)) => Some(missing.to_string()),
            (_, None) => self.last_error.clone(),
        }
    }

    /// Where a loss happens that is noted now. `last_event` is the last one in the model's history.
    fn position(&self, last_event: Ordinal) -> LossPosition {
        LossPosition { after: self.last_sequence, since: last_event }
    }

    /// How far a repair is, if one runs.
    fn progress(&self) -> Option<ReplayProgress> {
        match self.trust.pending() {
            Some(Pending::Recovering { end }) => {
                let applied = self.last_sequence.map_or(0, |last| last.saturating_add(1));
                Some(ReplayProgress { applied, published: end.filter(|&end| end >= applied) })
            }
            _ => None,
        }
    }
}

/// How far a running repair of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReplayProgress {
    /// Messages of this epoch that are applied.
    pub applied: u64,
    /// Messages that the engine has published in this epoch, as far as its live messages show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
}

impl fmt::Display for ReplayProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.published {
            Some(published) => {
                write!(f, "{} of {published} {}", self.applied, plural(published, "message", "messages"))
            }
            None => write!(f, "{} {}", self.applied, plural(self.applied, "message", "messages")),
        }
    }
}

/// A listener whose first contact with its engine is not over.
pub struct CatchingUp {
    /// How far the replay is, if it has begun.
    pub replay: Option<ReplayProgress>,
}

/// A listener's state at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct ListenerReport {
    /// The source of discovery that keeps it registered; nothing where that is done by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where it listens.
    pub endpoint: String,
    /// Where missed messages could be is_requested for.
    pub replay_endpoint: Option<String>,
    /// The engine's kind, if it was registered.
    pub engine: Option<&'static str>,
    /// Adapter of blocks that name none.
    pub lora_name: Option<String>,
    /// What the engine means by removing a block.
    pub removal: Removal,
    /// State of the connection.
    pub status: Connection,
    /// Number of the last message taken in.
    pub last_seq: Option<u64>,
    /// Milliseconds since it was.
    pub last_event_ms_ago: Option<u64>,
    /// How often messages were missed.
    pub gaps: u64,
    /// How far the index can be relied on about the rank.
    pub trust: Trust,
    /// How far a running repair is. Only there while one runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayProgress>,
    /// Whether the engine was registered with extra keys. Only there if it was.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub extra_keys: bool,
    /// Whether the rank holds more than the index has room for. Only said where it does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Messages and events that could not be used, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// What is missing, or went wrong last. Nothing while the rank is exact.
    pub last_error: Option<String>,
}

impl Listener {
    /// Ranks that wait for their state.
    pub fn hold(&self) -> MutexGuard<'_, HeldRanks> {
        self.state.hold.lock()
    }

    /// The listener's state as far as `dp_rank` is concerned.
    pub fn report(&self, dp_rank: DpRank) -> ListenerReport {
        let trust = self.trust(dp_rank);
        let status = self.state.status.lock();
        let elapsed = status.last_message.map(|at| at.elapsed().as_millis());
        ListenerReport {
            source: None,
            endpoint: self.options.endpoint.clone(),
            replay_endpoint: self.options.replay_endpoint.clone(),
            engine: self.options.engine,
            lora_name: self.options.lora_name.clone(),
            removal: self.options.removed_copies.into(),
            status: status.connection,
            last_seq: status.last_sequence,
            last_event_ms_ago: elapsed.map(|elapsed| u64::try_from(elapsed).unwrap_or(u64::MAX)),
            gaps: status.gaps,
            trust,
            replay: status.progress(),
            extra_keys: self.options.extra_keys,
            partial: self.model.is_partial(WorkerRank { worker: self.worker, dp_rank }),
            rejected: status.rejected.clone(),
            last_error: status.last_error(dp_rank),
        }
    }

    /// Trust in a rank of the stream.
    pub fn trust(&self, dp_rank: DpRank) -> Trust {
        match self.state.status.lock().trust.rank_trust(dp_rank).0 {
            Trust::Exact if self.needs_restart() => Trust::Degraded,
            trust => trust,
        }
    }

    /// What is missing of a rank that is not exact, and from where on.
    pub fn doubt(&self, dp_rank: DpRank) -> Option<Doubt> {
        let status = self.state.status.lock();
        status.trust.doubt(dp_rank, status.last_sequence)
    }

    /// Trust in a rank as of the last applied message.
    pub(super) fn settled_trust(&self, dp_rank: DpRank) -> Trust {
        self.state.status.lock().trust.settled(dp_rank)
    }

    /// Whether something was lost for good, as far as its own rank is concerned.
    pub(super) fn is_degraded(&self) -> bool {
        self.settled_trust(self.dp_rank) == Trust::Degraded
    }

    /// What the first contact with the engine has left to do: nothing once it is over.
    pub fn catching_up(&self) -> Option<CatchingUp> {
        let status = self.state.status.lock();
        match status.trust.pending() {
            Some(Pending::FirstContact) => Some(CatchingUp { replay: None }),
            Some(Pending::Recovering { .. }) => Some(CatchingUp { replay: status.progress() }),
            Some(Pending::TailLost | Pending::Unverified) | None => None,
        }
    }

    /// Number of the last message that was taken in.
    pub fn last_sequence(&self) -> Option<u64> {
        self.state.status.lock().last_sequence
    }

    /// State of the connection.
    pub fn connection(&self) -> Connection {
        self.state.status.lock().connection
    }

    /// Records a change of the connection.
    pub fn set_connection(&self, connection: Connection) {
        let repeated = {
            let mut status = self.state.status.lock();
            status.connection = connection;
            match connection {
                Connection::Connected => status.connects.count(Instant::now()),
                Connection::Connecting | Connection::Disconnected => status.disconnects.count(Instant::now()),
            }
        };
        match (connection, repeated) {
            (Connection::Connected, Some(times)) => log_listener!(info, self, times, "engine connected"),
            (Connection::Connected, None) => log_listener!(debug, self, "engine connected"),
            (_, Some(times)) => log_listener!(warn, self, times, "engine disconnected; reconnecting"),
            (_, None) => log_listener!(debug, self, "engine disconnected; reconnecting"),
        }
    }

    /// Takes in what the stream says of all its ranks.
    pub(super) fn set_stream_trust(&self, trust: StreamTrust) {
        let last_event = self.model.last_event();
        let mut status = self.state.status.lock();
        let position = status.position(last_event);
        status.trust.set_all(trust, position);
        if trust == StreamTrust::Cold {
            // Of an epoch that has begun nothing was applied yet.
            (status.last_sequence, status.last_message) = (None, None);
        }
    }

    /// The cache of one rank is known to be empty.
    pub(super) fn cleared(&self, dp_rank: DpRank) {
        self.state.status.lock().trust.cleared(dp_rank);
    }

    /// Blocks of a rank that wait for a parent that was never stored, as of the last event applied. Only its writer requests.
    pub(super) fn waiting(&self, dp_rank: DpRank) -> usize {
        match self.state.has_waiting.load(Relaxed) {
            true => self.state.status.lock().trust.waiting(dp_rank),
            false => 0,
        }
    }

    /// So many blocks of a rank wait for a parent that was never stored. Only its writer says so.
    pub(super) fn set_waiting(&self, dp_rank: DpRank, blocks: usize) {
        if blocks == 0 && !self.state.has_waiting.load(Relaxed) {
            return;
        }
        let last_event = self.model.last_event();
        let mut status = self.state.status.lock();
        let position = status.position(last_event);
        let has_waiting = status.trust.set_waiting(dp_rank, blocks, position);
        self.state.has_waiting.store(has_waiting, Relaxed);
    }

    /// What is missing behind the last applied message.
    pub(super) fn set_pending(&self, pending: Option<Pending>) {
        self.state.status.lock().trust.set_pending(pending);
    }

    /// Records a change that was lost for good: of one rank, or of any rank of the stream.
    pub fn record_loss(&self, dp_rank: Option<DpRank>, why: String) {
        let last_event = self.model.last_event();
        let mut status = self.state.status.lock();
        let position = status.position(last_event);
        status.trust.record_loss(dp_rank, shorten(why), position);
    }

    /// Messages are dropped before the decoder receives them: no rank of the stream is exact from here on, until the
    /// decoder notes this run of drops.
    pub(super) fn begin_drop_run(&self) -> u64 {
        self.state.status.lock().trust.begin_drop_run()
    }

    /// Runs of dropped messages so far.
    pub(super) fn drop_runs(&self) -> u64 {
        self.state.status.lock().trust.drop_runs()
    }

    /// The decoder knows of all drops up to this run.
    pub(super) fn acknowledge_drops(&self, run: u64) {
        self.state.status.lock().trust.acknowledge_drops(run);
    }

    /// Messages did not follow each other.
    pub(super) fn count_gap(&self) {
        self.state.status.lock().gaps += 1;
    }

    /// A message or event could not be used.
    pub fn reject(&self, reason: &'static str, why: String) {
        let mut status = self.state.status.lock();
        *status.rejected.entry(reason).or_default() += 1;
        status.last_error = Some(shorten(why));
    }

    /// How often something could not be used for this reason.
    pub(super) fn times_rejected(&self, reason: &'static str) -> u64 {
        self.state.status.lock().rejected.get(reason).copied().unwrap_or_default()
    }

    /// Everything up to a message is known, though it did not come this way.
    pub(super) fn import_position(&self, sequence: u64) {
        self.state.status.lock().last_sequence = Some(sequence);
    }

    /// A message was taken in completely; queries see it.
    pub(super) fn message_applied(&self, sequence: u64, at: Instant) {
        let mut status = self.state.status.lock();
        status.last_sequence = Some(sequence);
        status.last_message = Some(at);
    }
}
