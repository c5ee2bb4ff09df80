//! Writers: threads that each own the write side of some models' indexes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tracing::warn;

use super::intake::Intake;
use super::listener::Listener;
use crate::metrics::{Bound, Metrics, QueueState};

/// Messages that may wait for one writer.
const QUEUED_MESSAGES_MAX: usize = 1 << 16;
/// Bytes of messages that may wait for one writer.
const QUEUED_BYTES_MAX: usize = 256 << 20;
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

    /// What waits for each writer.
    pub(crate) fn queues(&self) -> Vec<QueueState> {
        let queued = self.queues.iter().map(|queue| &queue.queued);
        queued
            .map(|queued| QueueState { messages: queued.messages.load(Relaxed), bytes: queued.bytes.load(Relaxed) })
            .collect()
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
            self.metrics.bound(Bound::Queue);
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
                        intake.interrupt();
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
