//! Progress and panics of one supervised thread.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use parking_lot::Mutex;
use tracing::error;

use super::liveness::Liveness;
use crate::metrics::Metrics;
use crate::thread_kind::ThreadKind;

/// Description of the entry that a thread is processing, shown when the thread is stalled.
type Task = Arc<dyn fmt::Display + Send + Sync>;

/// One supervised thread.
pub struct Watch {
    kind: ThreadKind,
    name: String,
    queued: Box<dyn Fn() -> usize + Send + Sync>,
    metrics: Arc<Metrics>,
    /// Steps of the thread since its start. Relaxed, like the flags: no other memory is published through them.
    steps: AtomicU64,
    is_busy: AtomicBool,
    is_finished: AtomicBool,
    task: Mutex<Option<Task>>,
    liveness: Mutex<Liveness>,
    /// Description of the panic that fails readiness, if there is one.
    failure: Mutex<Option<String>>,
}

impl Watch {
    pub(super) fn new(
        kind: ThreadKind,
        number: Option<usize>,
        queued: Box<dyn Fn() -> usize + Send + Sync>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let name = kind.thread_name();
        Self {
            kind,
            name: number.map_or_else(|| name.clone(), |number| format!("{name}-{number}")),
            queued,
            metrics: Arc::clone(metrics),
            steps: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            task: Mutex::default(),
            liveness: Mutex::new(Liveness::new(Instant::now())),
            failure: Mutex::default(),
        }
    }

    /// Name of the thread.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Marks the start of an entry of the thread's queue.
    pub fn begin(&self, task: Option<Task>) {
        *self.task.lock() = task;
        self.is_busy.store(true, Relaxed);
        self.step();
    }

    /// Counts a step within the entry.
    pub fn step(&self) {
        // Only the thread itself writes this counter.
        self.steps.store(self.steps.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Marks the end of the entry.
    pub fn end(&self) {
        self.step();
        self.is_busy.store(false, Relaxed);
    }

    /// Runs one step of the thread's loop. Returns none if the step panicked; the panic is counted and logged. The caller
    /// rebuilds any state that the step may have left broken.
    pub fn guarded<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        guarded(&self.metrics, self.kind, &self.name, step)
    }

    /// Runs a step that the loop repeats. Returns none if it panicked; readiness then fails until the step succeeds.
    pub fn attempt<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let attempted = catch_unwind(AssertUnwindSafe(step));
        let failed = |panic| format!("thread {} panicked: {}; it retries the step", self.name, message(panic));
        *self.failure.lock() = attempted.as_ref().err().map(|panic| failed(&**panic));
        attempted.map_err(|panic| record_panic(&self.metrics, self.kind, &self.name, &*panic)).ok()
    }

    /// Marks the regular end of the thread.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Relaxed);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Relaxed)
    }

    /// Records the panic that ended the thread.
    pub(super) fn fail(&self, panic: &(dyn Any + Send)) {
        record_panic(&self.metrics, self.kind, &self.name, panic);
        let (name, panic) = (&self.name, message(panic));
        *self.failure.lock() = Some(format!("thread {name} ended by a panic: {panic}; restart the service"));
    }

    /// Samples the thread's progress. Returns true once for each stall.
    pub(super) fn sample(&self, now: Instant) -> bool {
        self.liveness.lock().sample(self.steps.load(Relaxed), self.has_work(), now)
    }

    /// Describes the failure or stall of the thread, if there is one.
    pub(super) fn problem(&self, now: Instant) -> Option<String> {
        let failure = self.failure.lock().clone();
        if failure.is_some() || self.is_finished() {
            return failure;
        }
        let stalled = self.liveness.lock().stall(self.steps.load(Relaxed), self.has_work(), now)?;
        let task = self.task.lock().as_ref().map_or_else(String::new, |task| format!(", processing {task}"));
        let (name, seconds, queued) = (&self.name, stalled.as_secs(), (self.queued)());
        Some(format!("thread {name} made no progress for {seconds} s with {queued} entries queued{task}"))
    }

    fn has_work(&self) -> bool {
        self.is_busy.load(Relaxed) || (self.queued)() > 0
    }
}

/// Runs a step on a thread of this kind. Returns none if it panicked; the panic is counted and logged.
pub fn guarded<T>(metrics: &Metrics, kind: ThreadKind, thread: &str, step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| record_panic(metrics, kind, thread, &*panic)).ok()
}

/// Counts and logs a panic of a thread or task of this kind.
pub fn record_panic(metrics: &Metrics, kind: ThreadKind, thread: &str, panic: &(dyn Any + Send)) {
    metrics.thread_panicked(kind);
    error!(thread, kind = kind.as_str(), panic = message(panic), "thread panicked; report this bug with the log");
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
