//! Decoders: threads that each follow some listeners' streams and make changes of their messages.

mod bound_pods;
mod restarts;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use flash_indexer_core::DpRank;
use flash_indexer_wire::{Replay, StreamPosition, StreamTrust};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tracing::error;

use super::bound_pods::{ConnectionId, PendingRegistration, Pod, PodMessage, PodName, PodStreams, Refusal};
use super::listener::Listener;
use super::listener_decoder::{DECODER_PANICKED, ListenerDecoder};
use super::queue::Queued;
use super::resume_point::{DecoderState, DecoderStateDetail, Read, ReadAt};
use super::writer::Writers;
use flash_indexer_telemetry::metrics::{Bound, Metrics, QueueState};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch, guarded};

/// Bytes of messages that may wait for one decoder, each message with [`MESSAGE_OVERHEAD_BYTES`].
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// Of what may wait for one decoder, one stream or pod may take this part: a flood of one leaves room for the others.
const SHARE: usize = 4;
/// What a waiting message takes besides its frames' bytes: their allocations and its place in the queue.
const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Bytes of messages that one decoder's streams may keep while they wait for earlier ones.
const WAITING_BYTES_MAX: usize = 512 << 20;
/// Changes are handed to the writer when they come of so many bytes, or when there is nothing more at hand.
const BATCH_BYTES: usize = 1 << 20;
/// Decoders that are started where nobody says how many.
const THREADS_BY_DEFAULT_MAX: usize = 8;
/// Pods that may wait to be registered.
const PENDING_REGISTRATIONS_MAX: usize = 1 << 10;

/// A message as it came from a socket.
pub(crate) type Frames = Vec<Vec<u8>>;

/// Called by the writer once everything from a listener is forgotten, with where its stream stood.
pub(crate) type Retired = Box<dyn FnOnce(StreamPosition) + Send>;

/// What a decoder is told of a listener, in order.
pub enum Delivery {
    /// Live messages.
    Live(Vec<Frames>),
    /// Live messages were dropped after the last one that was delivered, in this run of drops.
    Dropped(u64),
    /// Messages of the answer to a request for missed ones.
    Replayed {
        /// Number of the request.
        attempt: u32,
        /// The messages, in order.
        messages: Vec<Frames>,
    },
    /// The request for missed messages could not be made.
    ReplayFailed {
        /// Number of the request.
        attempt: u32,
        /// Cause of the failure.
        why: String,
    },
    /// The messages of its pod, which come over the bound socket, are its own from now on.
    AttachToPod,
    /// They are its own as well as another listener's, whose place it is to take.
    AttachShadow,
    /// It has taken that place.
    PromoteShadow,
    /// The connection stands.
    Connected,
    /// The connection was lost: what comes next need not follow what came last.
    Disconnected,
    /// What is held is applied from now on.
    Release(Sender<()>),
    /// A rank is ignored from now on, and forgotten.
    IgnoreRank(DpRank, Sender<()>),
    /// A rank is ignored no more.
    ResumeRank(DpRank),
    /// Reads what the index holds of a rank at a known place of the stream.
    Read {
        /// The rank.
        dp_rank: DpRank,
        /// Position at which the index is read.
        at: ReadAt,
        /// Parts of the decoder state that are copied.
        detail: DecoderStateDetail,
        /// Called by the writer at that position.
        read: Read,
    },
    /// What the stream has said of a rank before it is gone on with.
    RestoreDecoderState(DpRank, DecoderState),
    /// What is known of the stream is lost: it starts over, with or without asking the engine for what it has published.
    Restart(Replay),
    /// The listener's sockets are closed: forget all that it told.
    Retire(Retired),
}

impl Delivery {
    fn messages(&self) -> &[Frames] {
        match self {
            Self::Live(messages) | Self::Replayed { messages, .. } => messages,
            _ => &[],
        }
    }

    /// Messages and their bytes.
    fn size(&self) -> (usize, usize) {
        let messages = self.messages();
        (messages.len(), messages.iter().map(queued_bytes).sum())
    }
}

/// What a message takes while it waits.
fn queued_bytes(frames: &Frames) -> usize {
    MESSAGE_OVERHEAD_BYTES + frames.iter().map(Vec::len).sum::<usize>()
}

enum Work {
    Delivery {
        listener: Arc<Listener>,
        delivery: Delivery,
        at: Instant,
    },
    /// Messages of a pod, from the bound socket.
    Pod {
        pod: Arc<Pod>,
        messages: Vec<PodMessage>,
        at: Instant,
    },
    /// Messages of a pod were dropped after the last ones; its listeners' runs of drops.
    PodDropped {
        pod: Arc<Pod>,
        runs: Vec<(Arc<Listener>, u64)>,
    },
    /// A connection to the bound socket is lost.
    ConnectionLost(ConnectionId),
    /// A pod's rank is not followed.
    Refused(PodName, DpRank, Refusal),
    Stop,
}

/// A fixed number of decoders; each listener belongs to one: those that dial their engine in turn, those of pods that
/// come over the bound socket by the pod's name.
///
/// Delivering never waits: a socket that is not read for long is not read by ZeroMQ either, which
/// then takes a silent heartbeat for a dead engine. What finds its queue full is dropped and
/// counted, and the message after it shows the gap.
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
    /// Starts so many, or as many as there are processors, up to a bound.
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
            let decoder = Decoder {
                work,
                queued: Arc::clone(&queued),
                listener_decoders: FxHashMap::default(),
                pods: PodStreams::default(),
                registration_sender: registration_sender.clone(),
                timers: BTreeSet::new(),
                waiting_bytes: 0,
                current: None,
                writers: Arc::clone(writers),
                metrics: Arc::clone(metrics),
            };
            let queue: Sender<Work> = Sender::clone(&sender);
            let run = move |watch: &Arc<Watch>| decoder.run(watch);
            threads.push(supervisor.spawn_with_queue(ThreadKind::Decoder, Some(number), move || queue.len(), run)?);
            queues.push(Queue { sender, queued });
        }
        let (writers, metrics) = (Arc::clone(writers), Arc::clone(metrics));
        let (assigned, threads) = (AtomicUsize::new(0), Mutex::new(threads));
        Ok(Self { queues, assigned, pending_registrations, threads, writers, metrics })
    }

    /// The decoder of the next listener: each in turn.
    pub fn assign(&self) -> usize {
        self.assigned.fetch_add(1, Ordering::Relaxed) % self.queues.len()
    }

    /// What waits for each decoder.
    pub fn queues(&self) -> Vec<QueueState> {
        self.queues.iter().map(|queue| queue.queued.state()).collect()
    }

    /// Whether nothing is taken in any more.
    pub(super) fn are_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    /// Hands a delivery to the decoder of its listener.
    pub fn deliver(&self, listener: &Arc<Listener>, delivery: Delivery) {
        let queue = &self.queues[listener.decoder];
        let (messages, bytes) = delivery.size();
        let reached = (messages > 0).then(|| self.reserve(queue, &listener.state.queued, messages, bytes)).flatten();
        let delivery = match (reached, delivery) {
            (None, delivery) => delivery,
            (Some(bound), delivery) => {
                self.metrics.bound(bound);
                let why = "messages arrive faster than they can be applied";
                let Delivery::Replayed { attempt, .. } = delivery else {
                    return self.drop_live(listener, messages, QUEUE_FULL, why);
                };
                (0..messages).for_each(|_| self.metrics.rejected(QUEUE_FULL));
                listener.reject(QUEUE_FULL, why.to_owned());
                // The answer lacks them, and may be longer than what is delivered of it.
                Delivery::ReplayFailed { attempt, why: "replayed messages were dropped: the queue is full".to_owned() }
            }
        };
        // It fails only when the decoder has ended, and with it everything.
        let _ = queue.sender.send(Work::Delivery { listener: Arc::clone(listener), delivery, at: Instant::now() });
    }

    /// Live messages of a listener are dropped before they reach its decoder, for this reason.
    pub(crate) fn drop_live(&self, listener: &Arc<Listener>, messages: usize, reason: &'static str, why: &str) {
        (0..messages).for_each(|_| self.metrics.rejected(reason));
        listener.reject(reason, why.to_owned());
        if listener.state.queued.begins_dropping() {
            self.deliver(listener, Delivery::Dropped(listener.begin_drop_run()));
        }
    }

    /// Makes room in a queue for messages of one stream or pod, or says which bound leaves none.
    fn reserve(&self, queue: &Queue, own: &Queued, messages: usize, bytes: usize) -> Option<Bound> {
        if !own.add(messages, bytes, QUEUED_BYTES_MAX / SHARE) {
            return Some(Bound::PodQueue);
        }
        if !queue.queued.add(messages, bytes, QUEUED_BYTES_MAX) {
            own.take(messages, bytes);
            return Some(Bound::Queue);
        }
        own.end_dropping();
        None
    }

    /// Has streams start over whose state is lost. With `without_replay`, the stream of that listener requests its engine for
    /// nothing: a replay would bring the message again that the failure came from. Never waits.
    pub fn restart_streams(&self, listeners: impl IntoIterator<Item = Arc<Listener>>, without_replay: Option<u64>) {
        for listener in listeners {
            let replay = if without_replay == Some(listener.id) { Replay::Unavailable } else { Replay::Available };
            self.deliver(&listener, Delivery::Restart(replay));
        }
    }

    /// Ends every decoder; what is still queued is dropped, because nothing outlives the process. One that does not end by
    /// `deadline` is abandoned.
    pub fn stop(&self, deadline: Instant) {
        for queue in &self.queues {
            // A decoder that has ended already needs no telling.
            let _ = queue.sender.send(Work::Stop);
        }
        for thread in self.threads.lock().drain(..) {
            thread.join_by(deadline);
        }
    }
}

const QUEUE_FULL: &str = "queue_full";

struct Decoder {
    work: Receiver<Work>,
    queued: Arc<Queued>,
    listener_decoders: FxHashMap<u64, ListenerDecoder>,
    pods: PodStreams,
    /// Where pods go that want to be registered.
    registration_sender: Sender<PendingRegistration>,
    /// When which listener's stream wants to know the time.
    timers: BTreeSet<(Instant, u64)>,
    /// Bytes that wait in all streams.
    waiting_bytes: usize,
    /// The listener whose decoder is taken out of `listener_decoders` at the moment.
    current: Option<Arc<Listener>>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
}

impl Decoder {
    fn run(mut self, watch: &Watch) {
        loop {
            let work = match self.timers.first() {
                Some(&(due, _)) => self.work.recv_deadline(due),
                None => self.work.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            watch.begin(None);
            match watch.guarded(|| self.step(work)) {
                Some(ControlFlow::Continue(())) => {}
                Some(ControlFlow::Break(())) => return,
                None => self.restart_all(),
            }
            watch.end();
        }
    }

    /// Does what one entry of the queue requests for, or what it is time for.
    fn step(&mut self, work: Result<Work, RecvTimeoutError>) -> ControlFlow<()> {
        // What was delivered before a deadline counts, however long it waited here.
        let time = match work {
            Ok(Work::Delivery { listener, delivery, at }) => {
                let (messages, bytes) = delivery.size();
                self.queued.take(messages, bytes);
                listener.state.queued.take(messages, bytes);
                if !self.writers.are_stopping() {
                    self.handle(&listener, delivery);
                }
                at
            }
            Ok(Work::Pod { pod, messages, at }) => {
                let (messages_count, bytes) = bound_pods::queued_size(&messages);
                self.queued.take(messages_count, bytes);
                pod.queued.take(messages_count, bytes);
                if !self.writers.are_stopping() {
                    self.route_messages(&pod, messages);
                }
                at
            }
            Ok(Work::PodDropped { pod, runs }) => {
                pod.queued.end_dropping();
                self.note_dropped(&pod.name, &runs);
                Instant::now()
            }
            Ok(Work::ConnectionLost(connection)) => {
                self.disconnect_pods(connection);
                Instant::now()
            }
            Ok(Work::Refused(name, dp_rank, refusal)) => {
                self.refuse(&name, dp_rank, &refusal);
                Instant::now()
            }
            Err(RecvTimeoutError::Timeout) => Instant::now(),
            Ok(Work::Stop) | Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
        };
        self.run_timers(time);
        ControlFlow::Continue(())
    }

    /// Lets every stream know the time that wants to by `time`.
    fn run_timers(&mut self, time: Instant) {
        while let Some(&(due, id)) = self.timers.first()
            && due <= time
        {
            self.timers.pop_first();
            if let Some(listener) = self.listener_decoders.get(&id).map(|decoder| Arc::clone(decoder.listener())) {
                self.with_decoder(&listener, |decoder, _| decoder.tick(Instant::now()));
            }
        }
    }

    fn handle(&mut self, listener: &Arc<Listener>, delivery: Delivery) {
        let now = Instant::now();
        #[cfg(any(test, feature = "fault-injection"))]
        restarts::inject_fault(&delivery);
        match delivery {
            Delivery::Restart(replay) => self.restart(listener, replay, now),
            Delivery::Live(messages) => self.each(listener, messages, |decoder, frames| decoder.live(frames, now)),
            Delivery::Dropped(run) => {
                listener.state.queued.end_dropping();
                self.with_decoder(listener, |decoder, _| decoder.dropped(run, now));
            }
            Delivery::Replayed { attempt, messages } => {
                self.each(listener, messages, |decoder, frames| decoder.replayed(attempt, frames, now));
            }
            Delivery::ReplayFailed { attempt, why } => {
                self.with_decoder(listener, |decoder, _| decoder.replay_failed(attempt, why, now));
            }
            Delivery::AttachToPod => self.attach(listener, now),
            Delivery::AttachShadow => self.attach_shadow(listener, now),
            Delivery::PromoteShadow => self.pods.promote_shadow(listener),
            Delivery::Connected => self.with_decoder(listener, |decoder, _| decoder.connected(now)),
            Delivery::Disconnected => self.with_decoder(listener, |decoder, _| decoder.disconnected()),
            Delivery::Release(done) => {
                self.with_decoder(listener, |decoder, _| decoder.release(now));
                self.when_written(listener, move || done.send(()));
            }
            Delivery::IgnoreRank(dp_rank, done) => {
                self.with_decoder(listener, |decoder, _| decoder.ignore_rank(dp_rank));
                self.when_written(listener, move || done.send(()));
            }
            Delivery::ResumeRank(dp_rank) => self.with_decoder(listener, |decoder, _| decoder.resume_rank(dp_rank)),
            Delivery::Read { dp_rank, at: ReadAt::Now, detail, read } => {
                let fresh = || {
                    ListenerDecoder::new(Arc::clone(listener), Arc::clone(&self.metrics)).resume_point(dp_rank, detail)
                };
                let resume_point = self
                    .listener_decoders
                    .get(&listener.id)
                    .map_or_else(fresh, |decoder| decoder.resume_point(dp_rank, detail));
                self.when_written(listener, move || read(resume_point()));
            }
            Delivery::Read { dp_rank, at: ReadAt::Message(sequence), detail, read } => {
                if self.listener_decoders.contains_key(&listener.id) {
                    self.with_decoder(listener, |decoder, _| decoder.read_at(sequence, dp_rank, detail, read));
                }
            }
            Delivery::RestoreDecoderState(dp_rank, decoder_state) => {
                self.with_decoder(listener, |decoder, _| decoder.restore_decoder_state(dp_rank, decoder_state));
            }
            Delivery::Retire(done) => {
                let mut position = None;
                self.with_decoder(listener, |decoder, _| position = Some(decoder.retire()));
                self.remove_decoder(listener.id);
                self.pods.detach(listener);
                let position = position.unwrap_or(START);
                self.when_written(listener, move || done(position));
            }
        }
    }

    /// Takes messages in, also those after one that a listener has failed on.
    fn each<M>(&mut self, listener: &Arc<Listener>, messages: Vec<M>, take: impl Fn(&mut ListenerDecoder, M)) {
        let mut messages = messages.into_iter();
        while messages.len() > 0 {
            self.with_decoder(listener, |decoder, out| {
                for message in messages.by_ref() {
                    take(decoder, message);
                    out.write_full_batch(decoder);
                }
            });
        }
    }

    /// Does something once all changes so far are made.
    fn when_written<T>(&self, listener: &Listener, job: impl FnOnce() -> T + Send + 'static) {
        self.writers.run(
            listener,
            Box::new(move || {
                // Whoever is_requested may have stopped waiting.
                let _ = job();
            }),
        );
    }

    /// Does something with a listener's decoder, hands on the changes, and keeps the books. A listener that
    /// fails is restarted by itself.
    fn with_decoder(&mut self, listener: &Arc<Listener>, work: impl FnOnce(&mut ListenerDecoder, &WriterSender<'_>)) {
        let out = WriterSender { writers: &self.writers, listener };
        self.current = Some(Arc::clone(listener));
        let kept = self.listener_decoders.remove(&listener.id);
        let (bytes_before, due_before) =
            kept.as_ref().map_or((0, None), |kept| (kept.waiting_bytes(), kept.wakes_at()));
        let mut decoder = kept.unwrap_or_else(|| ListenerDecoder::new(Arc::clone(listener), Arc::clone(&self.metrics)));
        let name = std::thread::current();
        let name = name.name().unwrap_or_default();
        if guarded(&self.metrics, ThreadKind::Decoder, name, || work(&mut decoder, &out)).is_none() {
            error!(endpoint = %listener.options.endpoint, "reading a message panicked: the listener starts anew");
            listener.require_restart(DECODER_PANICKED);
            self.metrics.listener_restart();
            decoder = decoder.after_panic(Instant::now());
        }
        self.waiting_bytes = self.waiting_bytes - bytes_before + decoder.waiting_bytes();
        if self.waiting_bytes > WAITING_BYTES_MAX && decoder.waiting_bytes() > 0 {
            let bytes = decoder.waiting_bytes();
            decoder.shed(Instant::now());
            self.waiting_bytes = self.waiting_bytes - bytes + decoder.waiting_bytes();
        }
        out.write(&mut decoder);
        if let Some(due) = due_before {
            self.timers.remove(&(due, listener.id));
        }
        self.timers.extend(decoder.wakes_at().map(|due| (due, listener.id)));
        self.listener_decoders.insert(listener.id, decoder);
        self.current = None;
    }

    fn remove_decoder(&mut self, id: u64) {
        if let Some(decoder) = self.listener_decoders.remove(&id) {
            self.waiting_bytes -= decoder.waiting_bytes();
            self.timers.retain(|&(_, other)| other != id);
        }
    }
}

/// Where a stream stands that was never seen.
const START: StreamPosition = StreamPosition { cursor: None, epoch: 1, trust: StreamTrust::Cold };

/// The way to a listener's writer.
struct WriterSender<'a> {
    writers: &'a Writers,
    listener: &'a Arc<Listener>,
}

impl WriterSender<'_> {
    /// Hands changes on once there is a lot of them.
    fn write_full_batch(&self, decoder: &mut ListenerDecoder) {
        if decoder.changed_bytes() >= BATCH_BYTES {
            self.write(decoder);
        }
    }

    fn write(&self, decoder: &mut ListenerDecoder) {
        let changes = decoder.changes();
        if !changes.is_empty() {
            self.writers.write(self.listener, changes);
        }
    }
}

#[cfg(test)]
impl Decoders {
    /// Decoders without a thread, and what is delivered to them from then on: a word for each delivery.
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
        let word = |work| match work {
            Work::Delivery { delivery: Delivery::Live(_), .. } => "live",
            Work::Delivery { delivery: Delivery::Dropped(_), .. } => "dropped",
            Work::Delivery { delivery: Delivery::Connected, .. } => "connected",
            Work::Delivery { delivery: Delivery::Disconnected, .. } => "disconnected",
            _ => "another",
        };
        (decoders, move || work.try_iter().map(word).collect())
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_types::Trust;

    use super::*;
    use crate::fixture::{Fixture, RANK, listener_of_first_decoder, payload};

    #[test]
    fn dropped_last_messages_are_replayed_without_a_further_one() {
        let fixture = Fixture::start(2, true);
        fixture.engines[0].keep(1, &payload(2));
        fixture.decoders.drop_live(&fixture.listener(0), 1, QUEUE_FULL, "for a test");
        fixture.wait(0, 1, Trust::Exact);
        assert_eq!(fixture.held_blocks(), 3);
    }

    #[test]
    fn dropped_last_messages_without_replay_leave_a_doubt() {
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
