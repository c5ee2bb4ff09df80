//! Writers: threads that each own the write side of some models' indexes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};
use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::{EVENTS_AHEAD, SharedIndex, WorkerRank};
use parking_lot::Mutex;

use super::change::Change;
use super::listener::Listener;
use crate::metrics::{Bound, Metrics};
use crate::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};

/// Lots of changes that may wait for one writer; decoders wait when there are more. A lot is what one
/// message brings, or several small ones.
const QUEUED_LOTS_MAX: usize = 256;

/// Something to be done between two changes.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

enum Work {
    Changes(Arc<Listener>, Vec<Change>),
    Job(Job),
    Stop,
}

/// How long a decoder waits at a time for a writer that is behind, before it looks whether the service stops.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// A fixed number of writers; each model belongs to one.
pub(crate) struct Writers {
    queues: Vec<Sender<Work>>,
    threads: Mutex<Vec<SupervisedThread>>,
    stopping: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Writers {
    pub(crate) fn start(count: usize, supervisor: &Arc<Supervisor>) -> std::io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let metrics = supervisor.metrics();
        let mut queues = Vec::new();
        let mut threads = Vec::new();
        for number in 0..count {
            let (sender, work) = bounded(QUEUED_LOTS_MAX);
            let writer = Writer { work, stopping: Arc::clone(&stopping), metrics: Arc::clone(metrics) };
            let queue: Sender<Work> = sender.clone();
            let run = move |watch: &Arc<Watch>| writer.run(watch);
            threads.push(supervisor.spawn_with_queue(ThreadKind::Writer, Some(number), move || queue.len(), run)?);
            queues.push(sender);
        }
        Ok(Self { queues, threads: Mutex::new(threads), stopping, metrics: Arc::clone(metrics) })
    }

    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    /// How many lots of changes wait for each writer.
    pub(crate) fn queues(&self) -> Vec<usize> {
        self.queues.iter().map(Sender::len).collect()
    }

    /// Whether nothing is taken in any more.
    pub(crate) fn are_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Has changes of a stream made, after everything that was asked for before. Waits while the
    /// writer is behind.
    pub(super) fn write(&self, listener: &Arc<Listener>, changes: Vec<Change>) {
        self.send(listener, Work::Changes(Arc::clone(listener), changes));
    }

    /// Has something done between two changes, after everything that was asked for before.
    pub(crate) fn run(&self, listener: &Listener, job: Job) {
        self.send(listener, Work::Job(job));
    }

    fn send(&self, listener: &Listener, work: Work) {
        let queue = &self.queues[listener.model.writer];
        let Err(TrySendError::Full(mut work)) = queue.try_send(work) else { return };
        self.metrics.bound(Bound::WriterQueue);
        while let Err(SendTimeoutError::Timeout(unsent)) = queue.send_timeout(work, STOP_CHECK) {
            if self.are_stopping() {
                return;
            }
            work = unsent;
        }
    }

    /// Nothing is applied any more.
    pub(crate) fn stop_applying(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Ends every writer; one that does not end by `deadline` is abandoned. To be called after those that write.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.stop_applying();
        let threads = std::mem::take(&mut *self.threads.lock());
        for (queue, thread) in self.queues.iter().zip(threads) {
            // A writer that takes nothing by then is abandoned.
            let _ = queue.send_deadline(Work::Stop, deadline);
            thread.join_by(deadline);
        }
    }
}

struct Writer {
    work: Receiver<Work>,
    stopping: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Writer {
    fn run(self, watch: &Watch) {
        while let Ok(work) = self.work.recv() {
            match work {
                Work::Changes(listener, changes) => {
                    watch.begin(Some(Arc::clone(&listener) as _));
                    if !self.stopping.load(Relaxed) {
                        self.make(watch, &listener, changes);
                    }
                }
                Work::Job(job) => {
                    watch.begin(None);
                    watch.guarded(job);
                }
                Work::Stop => return,
            }
            watch.end();
        }
    }

    /// Makes the changes of one entry of the queue. If one panics, the others of the entry are dropped with the index.
    fn make(&self, watch: &Watch, listener: &Listener, changes: Vec<Change>) {
        let index = listener.model.index();
        let made = watch.guarded(|| {
            let now = Instant::now();
            let mut changes = changes.into_iter();
            while let Some(change) = changes.next() {
                if let Some(Change::Event(dp_rank, event)) = changes.as_slice().get(EVENTS_AHEAD - 1) {
                    let rank = WorkerRank { worker: listener.worker, dp_rank: *dp_rank };
                    index.prefetch_event(rank, event);
                }
                // What was sent before the stream started over is void.
                if matches!(change, Change::Restarted) || !listener.awaits_restart() {
                    self.change(watch, &index, listener, change, now);
                }
                watch.step();
            }
        });
        if made.is_none() {
            listener.model.give_up(&index, Some(listener.id));
        }
    }

    /// Makes one change of a lot that was begun at `now`.
    fn change(&self, watch: &Watch, index: &GroupedIndex, listener: &Listener, change: Change, now: Instant) {
        match change {
            Change::Event(dp_rank, event) => {
                let rank = WorkerRank { worker: listener.worker, dp_rank };
                let applied = listener.model.apply_to(index, rank, &event);
                self.metrics.applied(&event, &applied);
                let (bound, why) = match &event {
                    RankEvent::Indexed(event) => {
                        listener.model.history.note(rank, event, now);
                        (Bound::WaitingBlocks, "too many blocks wait for a parent that was never told")
                    }
                    RankEvent::Further(_) => {
                        (Bound::CacheGroups, "a hybrid model has more cache groups, or blocks in one, than are kept")
                    }
                };
                if applied.refused > 0 {
                    // A bounded index refuses as it forgets: what it says is too low then, and never wrong.
                    let is_indexed = matches!(event, RankEvent::Indexed(_));
                    if !is_indexed || index.memory_bound().is_none() {
                        self.metrics.bounded(bound, applied.refused);
                        listener.degrade_rank(dp_rank, why.to_owned());
                    }
                }
            }
            Change::TrustRank(dp_rank) => listener.trust_rank(dp_rank),
            Change::DegradeRank(dp_rank, why) => listener.degrade_rank(dp_rank, why),
            Change::Trust(trust) => listener.trust_all(trust),
            Change::Doubt(is_doubtful) => listener.doubt(is_doubtful),
            Change::DegradeAll(why) => listener.degrade_all(why),
            Change::Forget(dp_rank) => {
                let rank = WorkerRank { worker: listener.worker, dp_rank };
                listener.model.clear_in(index, rank);
                listener.model.history.forgotten(rank, now);
            }
            Change::TakenIn { sequence, stamped } => {
                if let Some(stamped) = stamped {
                    self.metrics.lag(stamped, SystemTime::now());
                }
                listener.taken_in(sequence, now);
            }
            Change::TakenOver(sequence) => listener.taken_over(sequence),
            Change::Restarted => listener.restarted(),
            // It changes no index.
            Change::Do(job) => drop(watch.guarded(job)),
        }
    }
}
