//! Writers: threads that each own the write side of some models' indexes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use flash_indexer_core::{BlockEvent, DpRank, WorkerRank};
use flash_indexer_wire::{
    Arrival, Batch, EventError, LiveMessage, SequenceTracker, Translator, TranslatorOptions, Unusable, decode_batch,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use super::listener::{Listener, Trust};
use crate::metrics::Metrics;

/// Messages that may wait for one writer.
const QUEUED_MESSAGES_MAX: usize = 1 << 16;
/// Bytes of messages that may wait for one writer.
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// Ranks that the batches of one listener may name.
const RANKS_PER_LISTENER_MAX: usize = 1024;

/// What a writer is told, in order.
pub(crate) enum Delivery {
    /// A listener's message, as frames.
    Message(Arc<Listener>, Vec<Vec<u8>>),
    /// The listener's connection was lost: what comes next need not follow what came last.
    Interrupted(Arc<Listener>),
    /// The listener's socket is closed: forget all that it told, and say so.
    Retire(Arc<Listener>, Sender<()>),
}

enum Work {
    Delivery(Delivery),
    Stop,
}

/// A fixed number of writers; each model belongs to one.
///
/// Delivering never waits: a socket that is not read for long is not read by ZeroMQ either, which
/// then takes a silent heartbeat for a dead engine. What finds its queue full is dropped and
/// counted, and the message after it shows the gap.
pub(crate) struct Writers {
    queues: Vec<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopping: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

struct Queue {
    sender: Sender<Work>,
    queued: Arc<Queued>,
}

/// What waits in a queue. Relaxed throughout: the figures bound memory, nothing is read through them.
#[derive(Default)]
struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Queued {
    fn add(&self, bytes: usize) -> bool {
        let fits = self.messages.load(Relaxed) < QUEUED_MESSAGES_MAX
            && self.bytes.load(Relaxed).saturating_add(bytes) <= QUEUED_BYTES_MAX;
        if fits {
            self.messages.fetch_add(1, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
        fits
    }

    fn take(&self, bytes: usize) {
        self.messages.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

fn byte_count(frames: &[Vec<u8>]) -> usize {
    frames.iter().map(Vec::len).sum()
}

impl Writers {
    pub(crate) fn start(count: usize, metrics: &Arc<Metrics>) -> std::io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut queues = Vec::new();
        let mut threads = Vec::new();
        for number in 0..count {
            let (sender, work) = unbounded();
            let queued = Arc::new(Queued::default());
            let writer = Writer {
                work,
                queued: Arc::clone(&queued),
                stopping: Arc::clone(&stopping),
                intakes: FxHashMap::default(),
                metrics: Arc::clone(metrics),
            };
            let builder = std::thread::Builder::new().name(format!("index-writer-{number}"));
            threads.push(builder.spawn(move || writer.run())?);
            queues.push(Queue { sender, queued });
        }
        Ok(Self { queues, threads: Mutex::new(threads), stopping, metrics: Arc::clone(metrics) })
    }

    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Whether nothing is taken in any more.
    pub(crate) fn are_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Hands a delivery to the writer of its model.
    pub(crate) fn deliver(&self, delivery: Delivery) {
        let (Delivery::Message(listener, _) | Delivery::Interrupted(listener) | Delivery::Retire(listener, _)) =
            &delivery;
        let queue = &self.queues[listener.model.writer];
        if let Delivery::Message(listener, frames) = &delivery
            && !queue.queued.add(byte_count(frames))
        {
            self.metrics.rejected(QUEUE_FULL);
            listener.reject(QUEUE_FULL, "messages arrive faster than they can be applied".to_owned());
            return;
        }
        // It fails only when the writer has ended, and with it everything.
        let _ = queue.sender.send(Work::Delivery(delivery));
    }

    /// Ends every writer; what is still queued is dropped, because nothing outlives the process.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        for queue in &self.queues {
            // A writer that has ended already needs no telling.
            let _ = queue.sender.send(Work::Stop);
        }
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                warn!("an index writer had panicked");
            }
        }
    }
}

const QUEUE_FULL: &str = "queue_full";

struct Writer {
    work: Receiver<Work>,
    queued: Arc<Queued>,
    stopping: Arc<AtomicBool>,
    intakes: FxHashMap<u64, Intake>,
    metrics: Arc<Metrics>,
}

impl Writer {
    fn run(mut self) {
        while let Ok(Work::Delivery(delivery)) = self.work.recv() {
            match delivery {
                Delivery::Message(listener, frames) => {
                    self.queued.take(byte_count(&frames));
                    if !self.stopping.load(Relaxed) {
                        let intake = self.intakes.entry(listener.id).or_insert_with(|| Intake::new(listener));
                        intake.take(&frames, &self.metrics);
                    }
                }
                Delivery::Interrupted(listener) => {
                    if let Some(intake) = self.intakes.get_mut(&listener.id) {
                        intake.interrupted = true;
                    }
                }
                Delivery::Retire(listener, done) => {
                    let intake = self.intakes.remove(&listener.id).unwrap_or_else(|| Intake::new(listener));
                    intake.forget_ranks();
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
            }
        }
    }
}

/// What a writer knows of one listener between its messages.
struct Intake {
    listener: Arc<Listener>,
    sequence: SequenceTracker,
    translators: FxHashMap<DpRank, Translator>,
    hybrid_reported: bool,
    /// The connection was lost since the last message.
    interrupted: bool,
}

impl Intake {
    fn new(listener: Arc<Listener>) -> Self {
        Self {
            listener,
            sequence: SequenceTracker::default(),
            translators: FxHashMap::default(),
            hybrid_reported: false,
            interrupted: false,
        }
    }

    /// Takes in one message: counts what cannot be used, applies the rest.
    fn take(&mut self, frames: &[Vec<u8>], metrics: &Metrics) {
        metrics.message();
        let message = match LiveMessage::from_frames(frames) {
            Ok(message) => message,
            Err(error) => {
                metrics.rejected(error.reason());
                self.listener.reject(error.reason(), error.to_string());
                return;
            }
        };
        let batch = match decode_batch(message.payload) {
            Ok(batch) => batch,
            Err(error) => {
                // Its number is not believed: if it was the engine's, the next one shows a gap.
                metrics.rejected(error.reason());
                self.listener.reject(error.reason(), error.to_string());
                return;
            }
        };
        let arrival = self.sequence.take(message.sequence);
        self.arrived(arrival, metrics);
        self.apply(batch, metrics);
        self.listener.taken_in(message.sequence, Instant::now());
    }

    /// Draws the conclusions from a message's number.
    fn arrived(&mut self, arrival: Arrival, metrics: &Metrics) {
        metrics.missed(arrival.missed());
        let name = &self.listener.options.endpoint;
        let interrupted = std::mem::take(&mut self.interrupted);
        match arrival {
            Arrival::Next if interrupted => {
                let why = "the connection was lost, and the engine may have started again unseen";
                self.listener.degrade_all(why.to_owned());
            }
            Arrival::Next => {}
            Arrival::First { missed: 0 } => self.listener.trust_all(),
            Arrival::First { missed } => {
                self.listener.degrade_all(format!("{missed} messages were published before the first one received"));
            }
            Arrival::Gap { missed } => {
                // Once for each fall: a stream that loses much would fill the log.
                if self.listener.trust(self.listener.dp_rank) != Trust::Degraded {
                    warn!(endpoint = %name, missed, "messages were lost");
                }
                self.listener.gap(format!("{missed} messages were lost before {:?}", self.sequence.last()));
            }
            Arrival::Restart { missed } => {
                info!(endpoint = %name, "the engine has started again: its blocks are forgotten");
                metrics.restart();
                self.forget_ranks();
                self.translators.clear();
                if missed == 0 {
                    self.listener.trust_all();
                } else {
                    self.listener.gap(format!("{missed} messages were lost after the engine started again"));
                }
            }
        }
    }

    fn apply(&mut self, batch: Batch<'_>, metrics: &Metrics) {
        let dp_rank = batch.dp_rank.unwrap_or(self.listener.dp_rank);
        if !self.translators.contains_key(&dp_rank) && self.translators.len() >= RANKS_PER_LISTENER_MAX {
            metrics.rejected("too_many_ranks");
            self.listener.reject("too_many_ranks", format!("more than {RANKS_PER_LISTENER_MAX} ranks in one stream"));
            return;
        }
        let rank = WorkerRank { worker: self.listener.worker, dp_rank };
        for event in batch.events {
            let listener = &self.listener;
            let translator = self.translators.entry(dp_rank).or_insert_with(|| {
                Translator::new(TranslatorOptions {
                    block_size: listener.model.block_size,
                    lora_name: listener.options.lora_name.clone(),
                    removed_copies: listener.options.removed_copies,
                })
            });
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    self.reject_event(dp_rank, &error, metrics);
                    continue;
                }
            };
            match translator.translate(&event) {
                Ok(event) => {
                    let (window, is_hybrid) = (translator.window(), translator.is_hybrid());
                    self.listener.model.windows.note(window);
                    let applied = self.listener.model.index.write().apply(rank, &event);
                    metrics.applied(&applied);
                    if event == BlockEvent::Cleared && !is_hybrid {
                        // Whatever was missed before, the rank's cache is empty now.
                        self.listener.trust_rank(dp_rank);
                    }
                }
                Err(unusable) => self.reject_unusable(dp_rank, &unusable, metrics),
            }
        }
    }

    fn reject_event(&self, dp_rank: DpRank, error: &EventError, metrics: &Metrics) {
        metrics.rejected(error.reason());
        self.listener.reject(error.reason(), error.to_string());
        // An event of a new kind may be harmless; a broken one was a change of the cache.
        if !matches!(error, EventError::UnknownType { .. }) {
            self.listener.degrade_rank(dp_rank, error.to_string());
        }
    }

    fn reject_unusable(&mut self, dp_rank: DpRank, unusable: &Unusable, metrics: &Metrics) {
        let reason = unusable.reason();
        metrics.rejected(reason);
        self.listener.reject(reason, unusable.to_string());
        match unusable {
            // Other memory than the tiers that are asked for: the tiers stay exact.
            Unusable::UnknownMedium { .. } => {}
            Unusable::HybridGroup { .. } => {
                if !std::mem::replace(&mut self.hybrid_reported, true) {
                    warn!(endpoint = %self.listener.options.endpoint, "{unusable}: matches can be too long");
                }
                self.listener.degrade_rank(dp_rank, unusable.to_string());
            }
            Unusable::BlockSize { .. } | Unusable::TokenCount { .. } => {
                self.listener.degrade_rank(dp_rank, unusable.to_string())
            }
        }
    }

    /// Clears every rank that the listener has fed.
    fn forget_ranks(&self) {
        let mut index = self.listener.model.index.write();
        for &dp_rank in self.translators.keys() {
            index.clear_rank(WorkerRank { worker: self.listener.worker, dp_rank });
        }
    }
}
