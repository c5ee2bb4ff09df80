//! Listeners: one for each event stream of an engine, with its connection and trust.

mod activity;
mod log;
mod paused_ranks;
mod report;
mod restart;
mod sink;
mod status;
mod trust;

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{AppliedChanges, DpRank, WorkerId, WorkerRank};
use flash_indexer_wire::{PendingReason, Start, StreamPosition, StreamTrust};
use parking_lot::{Mutex, MutexGuard};

pub use self::activity::RankActivity;
use self::activity::StreamActivity;
use self::paused_ranks::PausedRanks;
pub use self::paused_ranks::ReleaseOutcome;
pub use self::report::{ListenerReport, ReplayProgress};
pub use self::sink::{MaintainedIndex, ModelSink, RankOwner};
use flash_indexer_types::names::shorten;
use flash_indexer_types::pods::PodName;
use flash_indexer_types::{ConnectionStatus, InstanceId, ListenerOptions, LossReason, Trust, UnrepairedGap};

use self::status::{SharedStatus, Status};
pub(crate) use self::trust::NoticeKind;
use self::trust::{LossPosition, TrustLedger};
use crate::log_listener;
use flash_indexer_queues::QueueClass;

/// Sends replay requests of listeners from the thread that owns their sockets.
pub trait ReplayClient: Send + Sync {
    /// Requests the messages from sequence number `from` on. Cancels an earlier request of the listener.
    fn request_replay(&self, listener: Arc<Listener>, attempt: u32, from: u64);

    /// Cancels the request of a listener, given by its id.
    fn cancel_replay(&self, listener: u64);

    /// Makes the thread panic.
    #[cfg(any(test, feature = "fault-injection"))]
    fn fail(&self);
}

/// One event stream of an engine. Shared by its socket thread, its decoder, its writer, and the threads that report it.
pub struct Listener {
    /// Unique in the process.
    pub id: u64,
    /// The model that its events are written into.
    pub model: Arc<dyn ModelSink>,
    /// The instance.
    pub instance: InstanceId,
    /// Id of the instance in the model's index.
    pub worker: WorkerId,
    /// The registered rank. A batch may name another rank.
    pub dp_rank: DpRank,
    /// Options of the registration.
    pub options: ListenerOptions,
    /// Whether messages are applied at once, or held.
    pub start: Start,
    /// Number of its decoder thread.
    pub decoder: usize,
    /// Last position of an earlier listener of the stream.
    pub resume_from: Option<StreamPosition>,
    /// Mutable state.
    pub state: ListenerState,
}

/// Mutable state of a listener.
pub struct ListenerState {
    /// Paused ranks: their messages wait until their state is restored.
    hold: Mutex<PausedRanks>,
    /// Set once the listener has a socket thread.
    replay_client: OnceLock<Box<dyn ReplayClient>>,
    /// Whether the stream's state is lost and the stream has not restarted yet.
    pub(super) needs_restart: AtomicBool,
    /// Number of the last replay request. It outlives the stream's state, and only the decoder's thread uses it.
    last_attempt: AtomicU32,
    /// Whether a replay would return a message that makes a thread panic.
    pub(super) is_replay_harmful: AtomicBool,
    /// Whether blocks of any rank wait for a parent. Only the writer stores it.
    has_waiting: AtomicBool,
    activity: StreamActivity,
    status: SharedStatus,
    /// Class of its queues, once it is known.
    class: OnceLock<QueueClass>,
}

impl ListenerState {
    /// State of a listener that has received no message.
    pub fn new(options: &ListenerOptions) -> Self {
        let never_exact = options.extra_keys.then_some(LossReason::ExtraKeys.as_str());
        Self {
            hold: Mutex::default(),
            replay_client: OnceLock::new(),
            needs_restart: AtomicBool::new(false),
            last_attempt: AtomicU32::new(0),
            is_replay_harmful: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            activity: StreamActivity::default(),
            status: SharedStatus::new(Status::new(never_exact)),
            class: OnceLock::new(),
        }
    }
}

impl Listener {
    /// Records that the messages of the stream have no sequence numbers. Its ranks are never exact, even if a later connection
    /// has numbers. Returns whether it was not recorded before.
    pub(super) fn set_unnumbered(&self) -> bool {
        self.state.status.lock().trust.set_never_exact(LossReason::Unnumbered.as_str())
    }

    /// Name of the listener's pod, if its messages arrive over the bound socket.
    pub(crate) fn pod_name(&self) -> PodName {
        PodName { instance: self.instance.clone(), model_name: self.model.key().model_name.clone() }
    }

    /// A rank of the stream in the model's index.
    pub(super) const fn rank(&self, dp_rank: DpRank) -> WorkerRank {
        WorkerRank { worker: self.worker, dp_rank }
    }

    /// Class of its queues, which is read for every message.
    pub(super) fn queue_class(&self) -> QueueClass {
        *self.state.class.get_or_init(|| self.model.key().into())
    }

    /// Paused ranks of the stream.
    pub fn hold(&self) -> MutexGuard<'_, PausedRanks> {
        self.state.hold.lock()
    }

    /// Trust state of a rank. Takes no lock for ranks below 32.
    pub fn trust(&self, dp_rank: DpRank) -> Trust {
        self.trust_of_engine(self.state.status.trust(dp_rank))
    }

    /// The trust state of a rank, derived from its trust state in the stream.
    fn trust_of_engine(&self, of_stream: Trust) -> Trust {
        match of_stream {
            _ if !self.options.has_events() => Trust::Approximate,
            Trust::Exact if self.needs_restart() => Trust::Degraded,
            trust => trust,
        }
    }

    /// The latest loss of a rank that is not exact, with its position.
    pub fn unrepaired_gap(&self, dp_rank: DpRank) -> Option<UnrepairedGap> {
        let status = self.state.status.lock();
        status.trust.unrepaired_gap(dp_rank, status.last_sequence)
    }

    /// Trust state of a rank as of the last applied message.
    pub(super) fn last_trust(&self, dp_rank: DpRank) -> Trust {
        self.state.status.lock().trust.last_trust(dp_rank)
    }

    /// Trust state of a rank for another replica that continues from the last applied message. That replica requests the
    /// later messages itself, if the engine can replay any.
    pub(super) fn exported_trust(&self, dp_rank: DpRank) -> Trust {
        self.exported(|ledger| ledger.last_trust(dp_rank))
    }

    /// [`Listener::exported_trust`] of ranks that no message has named yet.
    pub(super) fn exported_trust_of_unlisted(&self) -> Trust {
        self.exported(TrustLedger::last_trust_of_unlisted)
    }

    fn exported(&self, last_trust: impl FnOnce(&TrustLedger) -> Trust) -> Trust {
        let ledger = &self.state.status.lock().trust;
        match last_trust(ledger) {
            Trust::Exact if ledger.has_lost_tail() && self.options.replay_endpoint.is_none() => Trust::Degraded,
            trust => trust,
        }
    }

    /// Whether the registered rank has lost changes that no replay can return.
    pub(super) fn is_degraded(&self) -> bool {
        self.last_trust(self.dp_rank) == Trust::Degraded
    }

    /// Whether messages after the last applied one are known to be lost. The stream's next number shows how many.
    pub fn has_lost_tail(&self) -> bool {
        self.state.status.lock().trust.has_lost_tail()
    }

    /// Sequence number of the last applied message.
    pub fn last_sequence(&self) -> Option<u64> {
        self.state.status.lock().last_sequence
    }

    /// Sequence number of the last applied message or of the last received live message, whichever is higher.
    pub fn last_known_sequence(&self) -> Option<u64> {
        self.last_sequence().max(self.state.activity.last_received())
    }

    /// Counts an applied event of a rank. Only the writer calls it.
    pub(super) fn record_activity(&self, dp_rank: DpRank, event: &RankEvent, applied: &AppliedChanges) {
        self.state.activity.add(self.dp_rank, dp_rank, event, applied);
    }

    /// Records the sequence number of a live message that was received. Only the decoder calls it.
    pub(super) fn record_received(&self, sequence: u64) {
        self.state.activity.received(sequence);
    }

    /// State of the connection.
    pub fn connection(&self) -> ConnectionStatus {
        self.state.status.lock().connection
    }

    /// Records a change of the connection.
    pub fn set_connection(&self, connection: ConnectionStatus) {
        let repeated = {
            let mut status = self.state.status.lock();
            status.connection = connection;
            match connection {
                ConnectionStatus::Connected => {
                    status.failed_connect = None;
                    status.connects.count(Instant::now())
                }
                ConnectionStatus::Connecting | ConnectionStatus::Disconnected => {
                    status.disconnects.count(Instant::now())
                }
            }
        };
        match (connection, repeated) {
            (ConnectionStatus::Connected, Some(times)) => log_listener!(info, self, times, "engine connected"),
            (ConnectionStatus::Connected, None) => log_listener!(debug, self, "engine connected"),
            (_, Some(times)) => log_listener!(warn, self, times, "engine disconnected; reconnecting"),
            (_, None) => log_listener!(debug, self, "engine disconnected; reconnecting"),
        }
    }

    /// Sets the trust state of all ranks of the stream.
    pub(super) fn set_stream_trust(&self, trust: StreamTrust) {
        let last_event = self.model.last_event();
        let mut status = self.state.status.lock();
        let position = status.position(last_event);
        status.trust.set_all(trust, position);
        if trust == StreamTrust::Cold {
            // No message of the new epoch is applied yet.
            (status.last_sequence, status.last_message) = (None, None);
        }
    }

    /// Changes the trust in ranks of the stream as of the last applied message.
    fn change_trust(&self, change: impl FnOnce(&mut TrustLedger, LossPosition)) {
        let last_event = self.model.last_event();
        let mut status = self.state.status.lock();
        let position = status.position(last_event);
        change(&mut status.trust, position);
    }

    /// Records that the cache of a rank is empty.
    pub(super) fn cleared(&self, dp_rank: DpRank) {
        self.state.status.lock().trust.cleared(dp_rank);
    }

    /// Degrades a rank that shares the stream and is registered again, until its decoder has resumed it.
    pub fn begin_resume(&self, dp_rank: DpRank) {
        self.state.status.lock().trust.begin_resume(dp_rank);
    }

    /// Whether another listener of the instance receives the messages of the same stream: itself, or its shadow.
    pub fn is_same_stream(&self, other: &Self) -> bool {
        self.id == other.id
            || self.options == other.options && (!self.options.is_bound() || self.dp_rank == other.dp_rank)
    }

    /// Degrades a rank of the stream that batches of another stream name as well.
    pub fn record_rank_conflict(&self, dp_rank: DpRank, other: &Self) {
        self.state.status.lock().trust.record_rank_conflict(dp_rank, other.id);
    }

    /// Degrades a rank of the stream that has blocks of another one, until these are removed.
    pub fn record_rank_move(&self, dp_rank: DpRank, former: u64) {
        self.state.status.lock().trust.record_rank_move(dp_rank, former);
    }

    /// Records that the blocks of a displaced rank were removed with those of another stream, possibly together with blocks
    /// of this stream. Only the writer calls it.
    pub fn record_removal_after_move(&self, dp_rank: DpRank, former: u64) {
        self.change_trust(|trust, position| trust.record_removal_after_move(dp_rank, former, position));
    }

    /// Records that another stream of the instance is unregistered.
    pub fn end_contest(&self, other: &Self) {
        self.state.status.lock().trust.end_rank_conflicts(|_, stream| stream == other.id);
    }

    /// Records that a rank of the stream is unregistered.
    pub fn end_contests_of(&self, unregistered: DpRank) {
        self.state.status.lock().trust.end_rank_conflicts(|dp_rank, _| dp_rank == unregistered);
    }

    /// Records that the decoder has resumed a rank.
    pub(super) fn resumed(&self, dp_rank: DpRank) {
        self.state.status.lock().trust.resumed(dp_rank);
    }

    /// Blocks of a rank whose parent was never stored, as of the last applied event. Only the writer calls it.
    pub(super) fn waiting(&self, dp_rank: DpRank) -> usize {
        match self.state.has_waiting.load(Relaxed) {
            true => self.state.status.lock().trust.waiting(dp_rank),
            false => 0,
        }
    }

    /// Sets the number of blocks of a rank whose parent was never stored. Only the writer calls it.
    pub(super) fn set_waiting(&self, dp_rank: DpRank, blocks: usize) {
        if blocks == 0 && !self.state.has_waiting.load(Relaxed) {
            return;
        }
        self.change_trust(|trust, position| {
            let has_waiting = trust.set_waiting(dp_rank, blocks, position);
            self.state.has_waiting.store(has_waiting, Relaxed);
        });
    }

    /// Sets the reason why messages after the last applied one are missing.
    pub(super) fn set_pending(&self, pending: Option<PendingReason>) {
        self.state.status.lock().trust.set_pending(pending);
    }

    /// Records a lost change that no replay can return, of one rank or of any rank of the stream.
    pub fn record_loss(&self, dp_rank: Option<DpRank>, why: String) {
        self.change_trust(|trust, position| trust.record_loss(dp_rank, shorten(why), position));
    }

    /// Records a lost change of ranks other than these, which are registered or named in batches.
    pub(super) fn record_loss_of_unlisted(&self, listed: Vec<DpRank>, why: String) {
        self.change_trust(|trust, position| trust.record_loss_of_unlisted(listed, shorten(why), position));
    }

    /// Degrades all ranks of the stream until the decoder acknowledges this notice of an event that it has not handled yet.
    /// Returns the number of the notice.
    pub(super) fn send_notice(&self, kind: NoticeKind) -> u64 {
        self.state.status.lock().trust.send_notice(kind)
    }

    /// Records that the decoder has received a notice.
    pub(super) fn receive_notice(&self, kind: NoticeKind, number: u64) {
        self.state.status.lock().trust.receive_notice(kind, number);
    }

    /// The last notice of a kind that the decoder has received.
    pub(super) fn last_notice(&self, kind: NoticeKind) -> u64 {
        self.state.status.lock().trust.last_notice(kind)
    }

    /// Acknowledges the notices up to this one.
    pub(super) fn acknowledge_notices(&self, kind: NoticeKind, number: u64) {
        self.state.status.lock().trust.acknowledge_notices(kind, number);
    }

    /// Runs of dropped messages so far.
    pub fn drop_runs(&self) -> u64 {
        self.state.status.lock().trust.drop_runs()
    }

    /// Counts a gap in the stream.
    pub(super) fn count_gap(&self) {
        self.state.status.lock().gaps += 1;
    }

    /// Counts a rejected message or event.
    pub fn reject(&self, reason: &'static str, why: String) {
        let mut status = self.state.status.lock();
        *status.rejected.entry(reason).or_default() += 1;
        status.last_error = Some(shorten(why));
        status.failed_connect = None;
    }

    /// Records why the engine is not connected, until it is.
    pub(super) fn connect_failed(&self, why: String) {
        let mut status = self.state.status.lock();
        if status.connection != ConnectionStatus::Connected {
            status.failed_connect = Some(shorten(why));
        }
    }

    /// Number of rejections for this reason.
    pub(super) fn times_rejected(&self, reason: &'static str) -> u64 {
        self.state.status.lock().rejected.get(reason).copied().unwrap_or_default()
    }

    /// Records that the state up to a message was imported.
    pub(super) fn import_position(&self, sequence: u64) {
        self.state.status.lock().last_sequence = Some(sequence);
    }

    /// Records that a message is applied completely: queries see it.
    pub(super) fn message_applied(&self, sequence: u64, at: Instant) {
        let mut status = self.state.status.lock();
        status.last_sequence = Some(sequence);
        status.last_message = Some(at);
    }

    /// Sets the client that sends its replay requests. A listener is opened once: further clients are ignored.
    pub fn set_replay_client(&self, client: Box<dyn ReplayClient>) {
        let _ = self.state.replay_client.set(client);
    }

    /// Number of the last replay request.
    pub(crate) fn last_attempt(&self) -> u32 {
        self.state.last_attempt.load(Relaxed)
    }

    /// Requests a replay, if the listener has a socket thread.
    pub(crate) fn request_replay(self: &Arc<Self>, attempt: u32, from: u64) {
        self.state.last_attempt.store(attempt, Relaxed);
        if let Some(client) = self.state.replay_client.get() {
            client.request_replay(Arc::clone(self), attempt, from);
        }
    }

    /// Cancels the current replay request.
    pub(crate) fn cancel_replay(&self) {
        if let Some(client) = self.state.replay_client.get() {
            client.cancel_replay(self.id);
        }
    }

    /// Makes the thread of the listener's sockets panic.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn fail_sockets(&self) {
        self.state.replay_client.get().expect("the listener has a socket thread").fail();
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} rank {} of {}", self.instance, self.dp_rank, self.model.key())
    }
}
