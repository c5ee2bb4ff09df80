//! Decoders: threads that turn the messages of their listeners into changes of indexes.

mod decoder;
mod delivery;
mod pod_routing;
mod restarts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use flash_indexer_wire::Replay;
use parking_lot::Mutex;

use self::decoder::Decoder;
pub use self::delivery::Delivery;
pub(crate) use self::delivery::Retired;
use self::delivery::Work;
use super::bound_pods::PendingRegistration;
use super::listener::Listener;
use super::queue::Queued;
use super::writer::Writers;
use flash_indexer_telemetry::metrics::{Limit, Metrics, QueueState};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};

/// Limit of a decoder's queue, in bytes of messages with their overhead.
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// A stream or pod may fill one part in this number of a decoder's queue: a flood of one leaves room for the others.
const SHARE: usize = 4;
/// Limit of the default number of decoders.
const THREADS_BY_DEFAULT_MAX: usize = 8;
/// Limit of pending registrations of pods.
const PENDING_REGISTRATIONS_MAX: usize = 1 << 10;

/// A fixed number of decoder threads. A listener that dials its engine is assigned to one round-robin. A listener of a
/// bound pod is assigned by the hash of the pod's name.
///
/// Delivering never blocks. If a socket thread blocked, ZeroMQ would stop reading the connection, miss its heartbeats and
/// close it. Messages that find their queue full are dropped and counted, and the next message shows the gap.
pub struct Decoders {
    queues: Vec<Queue>,
    assigned: AtomicUsize,
    pending_registrations: Receiver<PendingRegistration>,
    threads: Mutex<Vec<SupervisedThread>>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
}

struct Queue {
    sender: Sender<Work>,
    queued: Arc<Queued>,
}

impl Decoders {
    /// Starts `count` decoders; by default one for each processor, up to [`THREADS_BY_DEFAULT_MAX`].
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(count: Option<usize>, writers: &Arc<Writers>, supervisor: &Arc<Supervisor>) -> std::io::Result<Self> {
        let metrics = supervisor.metrics();
        let processors = || std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_BY_DEFAULT_MAX);
        let count = count.unwrap_or_else(processors).max(1);
        let (registration_sender, pending_registrations) = bounded(PENDING_REGISTRATIONS_MAX);
        let mut queues = Vec::new();
        let mut threads = Vec::new();
        for number in 0..count {
            let (sender, work) = unbounded();
            let queued = Arc::new(Queued::default());
            let (registrations, writers) = (registration_sender.clone(), Arc::clone(writers));
            let decoder = Decoder::new(work, Arc::clone(&queued), registrations, writers, Arc::clone(metrics));
            let queue: Sender<Work> = Sender::clone(&sender);
            let run = move |watch: &Arc<Watch>| decoder.run(watch);
            threads.push(supervisor.spawn_with_queue(ThreadKind::Decoder, Some(number), move || queue.len(), run)?);
            queues.push(Queue { sender, queued });
        }
        let (writers, metrics) = (Arc::clone(writers), Arc::clone(metrics));
        let (assigned, threads) = (AtomicUsize::new(0), Mutex::new(threads));
        Ok(Self { queues, assigned, pending_registrations, threads, writers, metrics })
    }

    /// Assigns a decoder to a new listener, round-robin.
    pub fn assign(&self) -> usize {
        self.assigned.fetch_add(1, Ordering::Relaxed) % self.queues.len()
    }

    /// Depth of each decoder's queue.
    pub fn queues(&self) -> Vec<QueueState> {
        self.queues.iter().map(|queue| queue.queued.state()).collect()
    }

    /// Whether the service is stopping: messages are no longer applied.
    pub(super) fn are_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    /// Queues a delivery for the decoder of its listener. Never blocks; drops messages when the queue is full.
    pub fn deliver(&self, listener: &Arc<Listener>, delivery: Delivery) {
        let queue = &self.queues[listener.decoder];
        let (messages, bytes) = delivery.size();
        let reached = (messages > 0).then(|| self.reserve(queue, &listener.state.queued, messages, bytes)).flatten();
        let delivery = match (reached, delivery) {
            (None, delivery) => delivery,
            (Some(bound), delivery) => {
                self.metrics.limit_reached(bound);
                let why = "messages arrive faster than they can be applied";
                let Delivery::Replayed { attempt, .. } = delivery else {
                    return self.drop_live(listener, messages, QUEUE_FULL, why);
                };
                (0..messages).for_each(|_| self.metrics.rejected(QUEUE_FULL));
                listener.reject(QUEUE_FULL, why.to_owned());
                // The replay is incomplete: the stream has to request it again.
                Delivery::ReplayFailed { attempt, why: "replayed messages were dropped: the queue is full".to_owned() }
            }
        };
        // It fails only after the decoder has ended, when the service stops.
        let _ = queue.sender.send(Work::Delivery { listener: Arc::clone(listener), delivery, at: Instant::now() });
    }

    /// Counts live messages of a listener that are dropped before they reach its decoder, and degrades its ranks.
    pub(crate) fn drop_live(&self, listener: &Arc<Listener>, messages: usize, reason: &'static str, why: &str) {
        (0..messages).for_each(|_| self.metrics.rejected(reason));
        listener.reject(reason, why.to_owned());
        if listener.state.queued.begins_dropping() {
            self.deliver(listener, Delivery::Dropped(listener.begin_drop_run()));
        }
    }

    /// Reserves space in a queue for messages of one stream or pod. Returns the limit that is reached, if there is no
    /// space.
    fn reserve(&self, queue: &Queue, own: &Queued, messages: usize, bytes: usize) -> Option<Limit> {
        if !own.add(messages, bytes, QUEUED_BYTES_MAX / SHARE) {
            return Some(Limit::PodQueue);
        }
        if !queue.queued.add(messages, bytes, QUEUED_BYTES_MAX) {
            own.take(messages, bytes);
            return Some(Limit::Queue);
        }
        own.end_dropping();
        None
    }

    /// Restarts streams whose state is lost. The stream of the listener `without_replay` requests no replay, which would
    /// return the message that caused the failure. Never blocks.
    pub fn restart_streams(&self, listeners: impl IntoIterator<Item = Arc<Listener>>, without_replay: Option<u64>) {
        for listener in listeners {
            let replay = if without_replay == Some(listener.id) { Replay::Unavailable } else { Replay::Available };
            self.deliver(&listener, Delivery::Restart(replay));
        }
    }

    /// Stops every decoder. Queued messages are dropped. A decoder that does not end by `deadline` is abandoned.
    pub fn stop(&self, deadline: Instant) {
        for queue in &self.queues {
            // It fails only if the decoder has ended already.
            let _ = queue.sender.send(Work::Stop);
        }
        for thread in self.threads.lock().drain(..) {
            thread.join_by(deadline);
        }
    }
}

const QUEUE_FULL: &str = "queue_full";

#[cfg(test)]
impl Decoders {
    /// Decoders without a thread, and a function that returns the kind of each delivery since its last call.
    pub(crate) fn detached() -> (Self, impl Fn() -> Vec<&'static str>) {
        let metrics = Arc::new(Metrics::new(flash_indexer_telemetry::metrics::MetricNames::Own));
        let supervisor = Supervisor::start(&metrics).expect("a thread");
        let (sender, work) = unbounded();
        let decoders = Self {
            queues: vec![Queue { sender, queued: Arc::new(Queued::default()) }],
            assigned: AtomicUsize::new(0),
            pending_registrations: bounded(1).1,
            threads: Mutex::default(),
            writers: Arc::new(Writers::start(1, &supervisor).expect("a thread")),
            metrics,
        };
        let kind = |work| match work {
            Work::Delivery { delivery: Delivery::Live(_), .. } => "live",
            Work::Delivery { delivery: Delivery::Dropped(_), .. } => "dropped",
            Work::Delivery { delivery: Delivery::Connected, .. } => "connected",
            Work::Delivery { delivery: Delivery::Disconnected, .. } => "disconnected",
            _ => "another",
        };
        (decoders, move || work.try_iter().map(kind).collect())
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_types::Trust;

    use super::*;
    use crate::fixture::{Fixture, RANK, listener_of_first_decoder, payload};

    #[test]
    fn messages_dropped_at_the_tail_are_replayed_without_a_further_message() {
        let fixture = Fixture::start(2, true);
        fixture.engines[0].keep(1, &payload(2));
        fixture.decoders.drop_live(&fixture.listener(0), 1, QUEUE_FULL, "for a test");
        fixture.wait(0, 1, Trust::Exact);
        assert_eq!(fixture.held_blocks(), 3);
    }

    #[test]
    fn messages_dropped_at_the_tail_without_replay_degrade_the_rank() {
        let fixture = Fixture::start(2, false);
        let listener = fixture.listener(0);
        fixture.decoders.drop_live(&listener, 1, QUEUE_FULL, "for a test");
        assert_eq!(listener.trust(RANK), Trust::Degraded, "at once");
        fixture.engines[0].publish(2, &payload(2)).expect("published");
        fixture.wait(0, 2, Trust::Degraded);
        assert_eq!(fixture.listener(1).trust(RANK), Trust::Exact);
    }

    #[test]
    fn a_full_queue_degrades_the_engine_that_fills_it_and_leaves_room_for_others() {
        let fixture = Fixture::start(2, false);
        let (flood, quiet) = (fixture.listener(0), fixture.listener(1));
        let metrics = Arc::new(Metrics::new(flash_indexer_telemetry::metrics::MetricNames::Own));
        let (sender, work) = unbounded();
        // No thread takes what is queued.
        let decoders = Decoders {
            queues: vec![Queue { sender, queued: Arc::new(Queued::default()) }],
            assigned: AtomicUsize::new(0),
            pending_registrations: bounded(1).1,
            threads: Mutex::default(),
            writers: Arc::new(Writers::start(1, &Supervisor::start(&metrics).expect("a thread")).expect("a thread")),
            metrics,
        };
        let flood = listener_of_first_decoder(&flood);
        let quiet = listener_of_first_decoder(&quiet);
        let message = || vec![vec![vec![0; 1 << 20]]];
        for _ in 0..QUEUED_BYTES_MAX >> 20 {
            decoders.deliver(&flood, Delivery::Live(message()));
        }
        assert_eq!(flood.trust(RANK), Trust::Degraded, "at once");
        decoders.deliver(&quiet, Delivery::Live(message()));
        assert_ne!(quiet.trust(RANK), Trust::Degraded);
        let deliveries: Vec<_> = work
            .try_iter()
            .map(|work| match work {
                Work::Delivery { listener, delivery: Delivery::Live(_), .. } => (listener.id == flood.id, true),
                Work::Delivery { listener, delivery: Delivery::Dropped(1), .. } => (listener.id == flood.id, false),
                _ => panic!("nothing else was delivered"),
            })
            .collect();
        let (notice, before) = (deliveries[deliveries.len() - 2], &deliveries[..deliveries.len() - 2]);
        assert!(before.iter().all(|&delivery| delivery == (true, true)));
        assert!(before.len() <= (QUEUED_BYTES_MAX / SHARE) >> 20 && before.len() > 32, "{}", before.len());
        assert_eq!(notice, (true, false), "one notice for the whole run of drops");
        assert_eq!(deliveries.last(), Some(&(false, true)), "the other engine has room");
    }
}
