//! Decoders: threads that turn the messages of their listeners into changes of indexes.

mod decoder;
mod delivery;
mod pod_routing;
mod restarts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded};
use flash_indexer_types::ConnectionStatus;
use flash_indexer_wire::ReplaySupport;
use parking_lot::Mutex;

use self::decoder::Decoder;
pub(crate) use self::delivery::last_number;
pub use self::delivery::{Delivery, OnRetired};
use self::delivery::{QueueKey, Work};
use super::bound_pods::{OpenConnections, PendingRegistration};
use super::listener::{Listener, NoticeKind};
use super::writer::Writers;
use flash_indexer_queues::{ProcessorTurn, QueuedWork, Queues};
use flash_indexer_telemetry::metrics::{Limit, Metrics, QueueState};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind};

/// Limit of the default number of decoders.
const THREADS_BY_DEFAULT_MAX: usize = 8;
/// Limit of pending registrations of pods.
const PENDING_REGISTRATIONS_MAX: usize = 1 << 10;

/// A fixed number of decoder threads. A listener that dials its engine is assigned to one round-robin. A listener of a
/// bound pod is assigned by the hash of the pod's name.
///
/// Delivering never blocks. If a socket thread blocked, ZeroMQ would stop reading the connection, miss its heartbeats and
/// close it. Each engine has its own queue. Models take turns at a decoder, and so do the engines of a model; a turn is one
/// entry. A decoder never waits for a writer: an engine with unwritten changes is skipped, and its messages stay in its
/// queue. All queues share one byte budget. When it is full, the largest queue loses its newest messages and all further
/// messages until the queue has drained. One replay then returns them. Threads take turns at the processors after a message of an
/// engine without queued messages arrived beside a backlog ([`ProcessorTurns`](flash_indexer_queues::ProcessorTurns)).
pub struct Decoders {
    queues: Arc<Queues<QueueKey, Work>>,
    assigned: AtomicUsize,
    pending_registrations: Receiver<PendingRegistration>,
    connections: Arc<OpenConnections>,
    threads: Mutex<Vec<SupervisedThread>>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
}

impl Decoders {
    /// Starts `count` decoders; by default one for each processor, up to [`THREADS_BY_DEFAULT_MAX`]. `queue_bytes_max` is
    /// the limit of received messages whose changes are not written yet, in bytes with their overhead.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(
        count: Option<usize>,
        queue_bytes_max: usize,
        writers: &Arc<Writers>,
        supervisor: &Arc<Supervisor>,
    ) -> std::io::Result<Self> {
        let metrics = supervisor.metrics();
        let processors = || std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_BY_DEFAULT_MAX);
        let count = count.unwrap_or_else(processors).max(1);
        let (registration_sender, pending_registrations) = bounded(PENDING_REGISTRATIONS_MAX);
        let clock = supervisor.clock();
        let queues = Arc::new(Queues::new(count, queue_bytes_max, clock.clone()));
        let connections = Arc::new(OpenConnections::default());
        let mut threads = Vec::new();
        for number in 0..count {
            let (registrations, connections) = (registration_sender.clone(), Arc::clone(&connections));
            let writers = Arc::clone(writers);
            let (queues, metrics, clock) = (Arc::clone(&queues), Arc::clone(metrics), clock.clone());
            let ready = Arc::clone(&queues);
            let ready = move || ready.ready(number);
            let decoder = Decoder::new(number, queues, registrations, connections, writers, metrics, clock);
            threads.push(supervisor.spawn_steps(ThreadKind::Decoder, Some(number), ready, decoder)?);
        }
        let (writers, metrics) = (Arc::clone(writers), Arc::clone(metrics));
        let (assigned, threads) = (AtomicUsize::new(0), Mutex::new(threads));
        Ok(Self { queues, assigned, pending_registrations, connections, threads, writers, metrics })
    }

    /// Assigns a decoder to a new listener, round-robin.
    pub fn assign(&self) -> usize {
        self.assigned.fetch_add(1, Ordering::Relaxed) % self.queues.count()
    }

    /// Messages that wait for each decoder.
    pub fn queues(&self) -> Vec<QueueState> {
        self.queues.states()
    }

    /// Bytes of received messages whose changes are not written yet.
    pub fn queue_bytes(&self) -> usize {
        self.queues.bytes()
    }

    /// Limit of [`Decoders::queue_bytes`].
    pub fn queue_bytes_max(&self) -> usize {
        self.queues.bytes_max()
    }

    /// The turn of a new thread that delivers messages.
    pub fn processor_turn(&self) -> ProcessorTurn {
        ProcessorTurn::new(Arc::clone(self.writers.processor_turns()))
    }

    /// Whether the service is stopping: messages are no longer applied.
    pub fn are_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    /// Queues a delivery for the decoder of its listener. Never blocks. When the budget is full, messages of the largest
    /// queue are dropped.
    pub fn deliver(&self, listener: &Arc<Listener>, delivery: Delivery) {
        let work = Work::Delivery { listener: Arc::clone(listener), delivery };
        self.push(&QueueKey::of(listener), listener.decoder, work);
    }

    /// Queues work, and counts the messages that are dropped for it.
    fn push(&self, key: &QueueKey, decoder: usize, work: Work) {
        let mut dropped = Vec::new();
        let is_beside_backlog = self.queues.push(key, decoder, work, |work| {
            let listener = match work {
                Work::Delivery { listener, .. } => Some(Arc::clone(listener)),
                _ => None,
            };
            dropped.push((listener, work.size().messages));
        });
        if is_beside_backlog {
            self.writers.processor_turns().start_period();
        }
        for (listener, messages) in dropped {
            self.metrics.limit_reached(Limit::Queue);
            (0..messages).for_each(|_| self.metrics.rejected(QUEUE_FULL));
            if let Some(listener) = listener {
                listener.reject(QUEUE_FULL, "messages arrive faster than they can be applied".to_owned());
            }
        }
    }

    /// Counts live messages of a listener that are dropped before they reach its decoder, and degrades its ranks. `last` is the
    /// highest sequence number that was seen on one of them, if any.
    pub fn drop_live(
        &self,
        listener: &Arc<Listener>,
        messages: usize,
        last: Option<u64>,
        reason: &'static str,
        why: &str,
    ) {
        (0..messages).for_each(|_| self.metrics.rejected(reason));
        listener.reject(reason, why.to_owned());
        self.lose_tail(listener, last);
    }

    /// Records that live messages after the last delivered one are missing. The ranks are not exact from now on.
    pub fn lose_tail(&self, listener: &Arc<Listener>, last: Option<u64>) {
        let run = listener.send_notice(NoticeKind::Dropped);
        self.deliver(listener, Delivery::Dropped { run, last });
    }

    /// Records a pause of this process, during which the engine may have dropped its last messages. The ranks are not exact until a
    /// replay returns the published messages or a message is received at or after `shown_from`. Earlier messages waited in queues.
    pub(crate) fn mark_tail_unverified(&self, listener: &Arc<Listener>, shown_from: Instant) {
        let run = listener.send_notice(NoticeKind::Dropped);
        self.deliver(listener, Delivery::Paused { run, shown_from });
    }

    /// Records that the engine of a listener is connected, before its messages.
    pub fn connect(&self, listener: &Arc<Listener>) {
        listener.set_connection(ConnectionStatus::Connected);
        self.deliver(listener, Delivery::Connected);
    }

    /// Records that the connection of a listener is lost. Its ranks are not exact from now on; its decoder receives the
    /// notice after the messages that were delivered before.
    pub fn disconnect(&self, listener: &Arc<Listener>) {
        let number = listener.send_notice(NoticeKind::Disconnected);
        listener.set_connection(ConnectionStatus::Disconnected);
        self.deliver(listener, Delivery::Disconnected(number));
    }

    /// Restarts streams whose state is lost. The stream of the listener `without_replay` requests no replay, which would
    /// return the message that caused the failure. Never blocks.
    pub fn restart_streams(&self, listeners: impl IntoIterator<Item = Arc<Listener>>, without_replay: Option<u64>) {
        for listener in listeners {
            let replay =
                if without_replay == Some(listener.id) { ReplaySupport::Unavailable } else { ReplaySupport::Available };
            self.deliver(&listener, Delivery::Restart(replay));
        }
    }

    /// Stops every decoder. Queued messages are dropped. A decoder that does not end by `deadline` is abandoned.
    pub fn stop(&self, deadline: Instant) {
        self.queues.stop();
        for thread in self.threads.lock().drain(..) {
            thread.join_by(deadline);
        }
    }
}

const QUEUE_FULL: &str = "queue_full";

#[cfg(test)]
mod tests {
    use flash_indexer_queues::TakenEntry;
    use flash_indexer_telemetry::clock::SimulatedTime;
    use flash_indexer_telemetry::metrics::MetricNames;
    use flash_indexer_types::Trust;

    use super::*;
    use crate::tests::fixture::{Fixture, PATIENCE, RANK, listener_of_first_decoder, payload};

    impl Decoders {
        /// One decoder without a thread, with a byte budget.
        pub(crate) fn detached(queue_bytes_max: usize) -> Self {
            let metrics = Arc::new(Metrics::new(MetricNames::Own));
            let supervisor = Supervisor::simulated(&metrics, SimulatedTime::starting_at(0), Box::new(|_| 0));
            Self {
                queues: Arc::new(Queues::new(1, queue_bytes_max, supervisor.clock().clone())),
                assigned: AtomicUsize::new(0),
                pending_registrations: bounded(1).1,
                connections: Arc::default(),
                threads: Mutex::default(),
                writers: Arc::new(Writers::start(1, &supervisor).expect("a thread")),
                metrics,
            }
        }

        /// Takes the next queued work of the detached decoder.
        pub(super) fn take_queued(&self) -> Option<Work> {
            match self.queues.take(0, 0, Some(Instant::now()), || {}) {
                TakenEntry::Work { work, .. } => Some(work),
                TakenEntry::Timeout | TakenEntry::Stopped => None,
            }
        }

        /// Takes all queued work of the detached decoder, and returns its kinds.
        pub(crate) fn take_kinds(&self) -> Vec<&'static str> {
            let kind = |work| match work {
                Work::Delivery { delivery: Delivery::Live(_), .. } => "live",
                Work::Delivery { delivery: Delivery::Dropped { .. }, .. } => "dropped",
                Work::Delivery { delivery: Delivery::Connected, .. } => "connected",
                Work::Delivery { delivery: Delivery::Disconnected(_), .. } => "disconnected",
                _ => "another",
            };
            std::iter::from_fn(|| self.take_queued()).map(kind).collect()
        }
    }

    #[test]
    fn messages_dropped_at_the_tail_are_replayed_without_a_further_message() {
        let fixture = Fixture::start(2, true);
        fixture.engines[0].keep(1, &payload(2));
        fixture.decoders.drop_live(&fixture.listener(0), 1, None, QUEUE_FULL, "for a test");
        fixture.wait(0, 1, Trust::Exact);
        assert_eq!(fixture.held_blocks(), 3);
    }

    #[test]
    fn messages_dropped_at_the_tail_without_replay_degrade_the_rank() {
        let fixture = Fixture::start(2, false);
        let listener = fixture.listener(0);
        fixture.decoders.drop_live(&listener, 1, None, QUEUE_FULL, "for a test");
        assert_eq!(listener.trust(RANK), Trust::Degraded, "at once");
        fixture.engines[0].publish(2, &payload(2)).expect("published");
        fixture.wait(0, 2, Trust::Degraded);
        assert_eq!(fixture.listener(1).trust(RANK), Trust::Exact);
    }

    #[test]
    fn a_rank_is_degraded_from_a_lost_connection_on_whatever_is_queued_before() {
        let fixture = Fixture::start(1, false);
        let listener = fixture.listener(0);
        let gate = fixture.models[0].gate.lock();
        fixture.engines[0].publish(1, &payload(2)).expect("published");
        assert_eq!(listener.trust(RANK), Trust::Exact);
        fixture.decoders.disconnect(&listener);
        assert_eq!((listener.last_sequence(), listener.trust(RANK)), (Some(0), Trust::Degraded), "at once");
        drop(gate);
        let (done, is_done) = bounded(1);
        let written = Delivery::Written(Box::new(move || done.send(()).expect("the test waits")));
        fixture.decoders.deliver(&listener, written);
        is_done.recv_timeout(PATIENCE).expect("all is written");
        assert_eq!(listener.trust(RANK), Trust::Degraded, "until the engine is reached again");
    }

    /// Messages of 64 KiB with their overhead.
    fn messages(count: usize) -> Delivery {
        let bytes = (64 << 10) - delivery::queued_bytes(&Vec::new());
        Delivery::Live(vec![vec![vec![0; bytes]]; count])
    }

    #[test]
    fn a_full_budget_drops_the_newest_messages_of_the_largest_queue_alone() {
        let fixture = Fixture::start(2, false);
        let decoders = Decoders::detached(64 * (64 << 10));
        let [flood, quiet] = [0, 1].map(|at| listener_of_first_decoder(&fixture.listener(at)));
        (0..64).for_each(|_| decoders.deliver(&flood, messages(1)));
        assert_ne!(flood.trust(RANK), Trust::Degraded, "all of them fit");
        decoders.deliver(&quiet, messages(2));
        assert_eq!(flood.trust(RANK), Trust::Degraded, "at once");
        assert_ne!(quiet.trust(RANK), Trust::Degraded);
        // An eighth of its queue was dropped to make room, and the flood does not fill that room again.
        decoders.deliver(&flood, messages(1));
        assert_eq!(decoders.queue_bytes(), (56 + 2) * (64 << 10));
        assert_eq!(flood.report(RANK).rejected.get(QUEUE_FULL), Some(&9));
        assert_eq!(quiet.report(RANK).rejected.get(QUEUE_FULL), None);
        let mut kinds = Vec::new();
        while let Some(Work::Delivery { listener, delivery }) = decoders.take_queued() {
            kinds.push((listener.id == flood.id, matches!(delivery, Delivery::Live(_))));
        }
        let by_flood: Vec<_> = kinds.iter().filter(|kind| kind.0).map(|kind| kind.1).collect();
        assert_eq!(by_flood.len(), 57, "the messages before the drop, and one notice");
        assert!(by_flood.iter().position(|is_live| !is_live) == Some(56), "the notice is after them");
        assert_eq!(kinds[..2], [(true, true), (false, true)], "the queues are taken in turn");
        assert_eq!(decoders.queue_bytes(), 0);
        decoders.deliver(&flood, messages(1));
        assert_eq!(decoders.take_kinds(), ["live"], "the queue has drained");
    }

    #[test]
    fn threads_take_turns_at_the_processors_once_a_quiet_engine_has_a_message_beside_a_backlog() {
        let fixture = Fixture::start(2, false);
        let decoders = Decoders::detached(64 * (64 << 10));
        let [flood, quiet] = [0, 1].map(|at| listener_of_first_decoder(&fixture.listener(at)));
        let turns = decoders.writers.processor_turns();
        (0..7).for_each(|_| decoders.deliver(&flood, messages(1)));
        decoders.deliver(&quiet, messages(1));
        assert!(!turns.is_period(), "seven entries are no backlog");
        (0..4).for_each(|_| decoders.deliver(&flood, messages(1)));
        decoders.deliver(&quiet, messages(1));
        assert!(!turns.is_period(), "both have messages before these");
        while decoders.queues.queued_since(&QueueKey::of(&quiet)).is_some() {
            decoders.take_queued().expect("work");
        }
        assert!(decoders.queues.entries(0) >= 8, "messages of the flooding engine are left");
        decoders.deliver(&quiet, Delivery::Connected);
        assert!(!turns.is_period(), "no message");
        decoders.take_kinds();
        (0..8).for_each(|_| decoders.deliver(&flood, messages(1)));
        decoders.deliver(&quiet, messages(1));
        assert!(turns.is_period());
    }

    #[test]
    fn dropped_messages_of_a_replay_fail_the_request() {
        let fixture = Fixture::start(1, true);
        let decoders = Decoders::detached(4 * (64 << 10));
        let listener = listener_of_first_decoder(&fixture.listener(0));
        let replayed = |attempt| {
            let Delivery::Live(messages) = messages(1) else { unreachable!() };
            Delivery::Replayed { attempt, messages }
        };
        (0..6).for_each(|_| decoders.deliver(&listener, replayed(3)));
        let mut deliveries = Vec::new();
        while let Some(Work::Delivery { delivery, .. }) = decoders.take_queued() {
            deliveries.push(delivery);
        }
        assert_eq!(deliveries.len(), 5, "one notice for both dropped deliveries");
        assert!(matches!(deliveries[4], Delivery::ReplayFailed { attempt: 3, .. }));
    }
}
