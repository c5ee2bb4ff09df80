//! One subscription to one engine's stream, and what it has been through.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flash_indexer_core::{DpRank, RemovedCopies, WorkerId, WorkerRank};
use flash_indexer_wire::{Degraded, Start, StreamPosition, StreamTrust};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::hold::Hold;
use super::sockets::Mailbox;
use crate::engine::Removal;
use crate::instance::InstanceId;
use crate::model::Model;

/// How far the index can be believed about a rank. What is less to be believed is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Every change since a known empty cache was taken in.
    Exact,
    /// Registered, and nothing received yet.
    Cold,
    /// Changes were missed, or the cache was not empty when the first one came.
    Degraded,
}

impl Trust {
    /// The name used in answers and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Cold => "cold",
            Self::Degraded => "degraded",
        }
    }
}

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
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
        }
    }
}

/// What a listener was registered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerOptions {
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
    pub(crate) lora_name: Option<String>,
    pub(crate) engine: Option<&'static str>,
    pub(crate) removed_copies: RemovedCopies,
}

/// A subscription: shared by the threads that own its sockets, that decode it and that write what it
/// tells, and whoever asks.
pub(crate) struct Listener {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) model: Arc<Model>,
    pub(crate) instance: InstanceId,
    pub(crate) worker: WorkerId,
    /// The rank it was registered for; a batch may name another.
    pub(crate) dp_rank: DpRank,
    pub(crate) options: ListenerOptions,
    pub(crate) start: Start,
    /// Which decoder follows its stream.
    pub(crate) decoder: usize,
    /// Where an earlier listener of this stream had stopped.
    pub(crate) remembered: Option<StreamPosition>,
    /// What becomes of it.
    pub(crate) state: ListenerState,
}

/// What a listener has been through; nothing yet by default.
#[derive(Default)]
pub(crate) struct ListenerState {
    /// Ranks that wait for their state, while it is held.
    hold: Mutex<Hold>,
    /// The thread that owns its sockets.
    pub(super) mailbox: OnceLock<Mailbox>,
    /// Whether its state is lost, and the stream has not started over yet.
    pub(super) awaits_restart: AtomicBool,
    status: Mutex<Status>,
}

#[derive(Debug)]
struct Status {
    connection: Connection,
    trust: StreamTrusts,
    is_doubtful: bool,
    last_sequence: Option<u64>,
    last_message: Option<Instant>,
    gaps: u64,
    rejected: BTreeMap<&'static str, u64>,
    last_error: Option<String>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            connection: Connection::Connecting,
            trust: StreamTrusts::of_all(Trust::Cold),
            is_doubtful: false,
            last_sequence: None,
            last_message: None,
            gaps: 0,
            rejected: BTreeMap::new(),
            last_error: None,
        }
    }
}

impl Status {
    /// What is exact is so again when the engine has shown that it is the same.
    fn trust_of(&self, dp_rank: DpRank) -> Trust {
        match self.trust.of(dp_rank) {
            Trust::Exact if self.is_doubtful => Trust::Degraded,
            trust => trust,
        }
    }

    fn last_error(&self, dp_rank: DpRank) -> Option<String> {
        match self.trust.of(dp_rank) {
            Trust::Exact if self.is_doubtful => Some(Degraded::Unverified.to_string()),
            _ => self.last_error.clone(),
        }
    }
}

/// Trust in the ranks of one stream: a gap concerns all of them, a clear only its own.
#[derive(Debug)]
struct StreamTrusts {
    /// Of ranks that nothing in particular has happened to.
    others: Trust,
    ranks: BTreeMap<DpRank, Trust>,
}

impl StreamTrusts {
    fn of_all(trust: Trust) -> Self {
        Self { others: trust, ranks: BTreeMap::new() }
    }

    fn of(&self, dp_rank: DpRank) -> Trust {
        self.ranks.get(&dp_rank).copied().unwrap_or(self.others)
    }
}

/// A listener's state at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct ListenerReport {
    /// The source of discovery that keeps it registered; nothing where that is done by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where it listens.
    pub endpoint: String,
    /// Where missed messages could be asked for.
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
    /// How far the index can be believed about the rank.
    pub trust: Trust,
    /// Whether the rank holds more than the index has room for. Only said where it does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Messages and events that could not be used, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

impl Listener {
    /// Ranks that wait for their state.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Hold> {
        self.state.hold.lock()
    }

    /// The listener's state as far as `dp_rank` is concerned.
    pub(crate) fn report(&self, dp_rank: DpRank) -> ListenerReport {
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
            partial: self.model.is_partial(WorkerRank { worker: self.worker, dp_rank }),
            rejected: status.rejected.clone(),
            last_error: status.last_error(dp_rank),
        }
    }

    pub(crate) fn trust(&self, dp_rank: DpRank) -> Trust {
        match self.state.status.lock().trust_of(dp_rank) {
            Trust::Exact if self.awaits_restart() => Trust::Degraded,
            trust => trust,
        }
    }

    /// Whether something was missed for good, as far as its own rank is concerned.
    pub(super) fn is_degraded(&self) -> bool {
        self.state.status.lock().trust.of(self.dp_rank) == Trust::Degraded
    }

    pub(crate) fn connection(&self) -> Connection {
        self.state.status.lock().connection
    }

    pub(crate) fn set_connection(&self, connection: Connection) {
        self.state.status.lock().connection = connection;
    }

    /// Every rank of the stream is to be trusted so.
    pub(super) fn trust_all(&self, trust: StreamTrust) {
        match trust {
            StreamTrust::Cold => {
                // Of a life that has begun nothing was taken in yet.
                let mut status = self.state.status.lock();
                status.trust = StreamTrusts::of_all(Trust::Cold);
                (status.last_sequence, status.last_message) = (None, None);
            }
            StreamTrust::Exact => self.state.status.lock().trust = StreamTrusts::of_all(Trust::Exact),
            StreamTrust::Degraded(why) => self.degrade_all(why.to_string()),
        }
    }

    /// The cache of one rank is known to be empty.
    pub(super) fn trust_rank(&self, dp_rank: DpRank) {
        self.state.status.lock().trust.ranks.insert(dp_rank, Trust::Exact);
    }

    /// Whether it is open if the engine is still the one that was listened to.
    pub(super) fn doubt(&self, is_doubtful: bool) {
        self.state.status.lock().is_doubtful = is_doubtful;
    }

    /// Something was missed: no rank of the stream need be what the index says.
    pub(super) fn degrade_all(&self, why: String) {
        let mut status = self.state.status.lock();
        status.trust = StreamTrusts::of_all(Trust::Degraded);
        status.last_error = Some(why);
    }

    /// A change of one rank was lost.
    pub(crate) fn degrade_rank(&self, dp_rank: DpRank, why: String) {
        let mut status = self.state.status.lock();
        status.trust.ranks.insert(dp_rank, Trust::Degraded);
        status.last_error = Some(why);
    }

    /// Messages did not follow each other.
    pub(super) fn gap(&self) {
        self.state.status.lock().gaps += 1;
    }

    /// A message or event could not be used.
    pub(crate) fn reject(&self, reason: &'static str, why: String) {
        let mut status = self.state.status.lock();
        *status.rejected.entry(reason).or_default() += 1;
        status.last_error = Some(why);
    }

    /// How often something could not be used for this reason.
    pub(super) fn times_rejected(&self, reason: &'static str) -> u64 {
        self.state.status.lock().rejected.get(reason).copied().unwrap_or_default()
    }

    /// Everything up to a message is known, though it did not come this way.
    pub(super) fn taken_over(&self, sequence: u64) {
        self.state.status.lock().last_sequence = Some(sequence);
    }

    /// A message was taken in completely; queries see it.
    pub(super) fn taken_in(&self, sequence: u64, at: Instant) {
        let mut status = self.state.status.lock();
        status.last_sequence = Some(sequence);
        status.last_message = Some(at);
    }
}
