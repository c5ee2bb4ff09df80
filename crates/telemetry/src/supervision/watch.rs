//! One supervised thread, as the thread itself and readiness see it.

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

/// What a supervised thread is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    /// Applies changes to indexes.
    Writer,
    /// Decodes messages.
    Decoder,
    /// Owns the sockets to dialled engines.
    EngineSockets,
    /// Owns the socket that engines connect to.
    BoundSocket,
    /// Looks host names up.
    Resolver,
    /// Registers pods.
    Pods,
    /// Compares this replica with its peers.
    PeerCheck,
    /// Takes over what a peer or a dump holds.
    Recovery,
    /// Follows a discovery source, or the changes that all of them ask for.
    Discovery,
    /// Changes indexes behind a change of the registrations.
    Cleanup,
    /// Runs requests that wait for other threads.
    Request,
    /// Samples the progress of the others.
    Supervisor,
}

impl ThreadKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Writer,
        Self::Decoder,
        Self::EngineSockets,
        Self::BoundSocket,
        Self::Resolver,
        Self::Pods,
        Self::PeerCheck,
        Self::Recovery,
        Self::Discovery,
        Self::Cleanup,
        Self::Request,
        Self::Supervisor,
    ];

    /// The name used in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Decoder => "decoder",
            Self::EngineSockets => "engine_sockets",
            Self::BoundSocket => "bound_socket",
            Self::Resolver => "resolver",
            Self::Pods => "pods",
            Self::PeerCheck => "peer_check",
            Self::Recovery => "recovery",
            Self::Discovery => "discovery",
            Self::Cleanup => "cleanup",
            Self::Request => "request",
            Self::Supervisor => "supervisor",
        }
    }

    /// The name of the operating system's thread.
    const fn thread_name(self) -> &'static str {
        match self {
            Self::Writer => "index-writer",
            Self::EngineSockets => "engine-sockets",
            Self::BoundSocket => "bound-socket",
            Self::PeerCheck => "peer-check",
            _ => self.as_str(),
        }
    }
}

/// What a thread is at work on, for those who ask why it stands still.
type Task = Arc<dyn fmt::Display + Send + Sync>;

/// One supervised thread.
pub struct Watch {
    kind: ThreadKind,
    name: String,
    queued: Box<dyn Fn() -> usize + Send + Sync>,
    metrics: Arc<Metrics>,
    /// Steps of the thread so far. Relaxed, as the flags: nothing is read through them.
    moves: AtomicU64,
    is_busy: AtomicBool,
    is_finished: AtomicBool,
    task: Mutex<Option<Task>>,
    liveness: Mutex<Liveness>,
    /// The panic that keeps the thread from its work, if one does.
    failure: Mutex<Option<Failure>>,
}

/// A panic after which the work of a thread is not done.
enum Failure {
    /// It has ended the thread.
    Ended(String),
    /// The step is repeated.
    Repeats(String),
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
            name: number.map_or_else(|| name.to_owned(), |number| format!("{name}-{number}")),
            queued,
            metrics: Arc::clone(metrics),
            moves: AtomicU64::new(0),
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

    /// The thread begins with an entry of its queue.
    pub fn begin(&self, task: Option<Task>) {
        *self.task.lock() = task;
        self.is_busy.store(true, Relaxed);
        self.step();
    }

    /// The thread has come a step further with the entry.
    pub fn step(&self) {
        // Only the thread itself counts.
        self.moves.store(self.moves.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The thread is done with the entry.
    pub fn end(&self) {
        self.step();
        self.is_busy.store(false, Relaxed);
    }

    /// Runs one step of the thread's loop; none if the step panicked, which is counted and logged. What the step may have
    /// left broken is for the caller to rebuild.
    pub fn guarded<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        guarded(&self.metrics, self.kind, &self.name, step)
    }

    /// The same for a step that the loop repeats: a panic fails readiness until the step succeeds.
    pub fn attempt<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let attempted = catch_unwind(AssertUnwindSafe(step));
        let failed = attempted.as_ref().err().map(|panic| Failure::Repeats(message(&**panic).to_owned()));
        *self.failure.lock() = failed;
        attempted.map_err(|panic| note_panic(&self.metrics, self.kind, &self.name, &*panic)).ok()
    }

    /// The thread has ended as it should.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Relaxed);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Relaxed)
    }

    /// A panic has ended the thread.
    pub(super) fn fail(&self, panic: &(dyn Any + Send)) {
        note_panic(&self.metrics, self.kind, &self.name, panic);
        *self.failure.lock() = Some(Failure::Ended(message(panic).to_owned()));
    }

    /// Notes how far the thread has come; true once for each standstill that becomes too long.
    pub(super) fn sample(&self, now: Instant) -> bool {
        self.liveness.lock().sample(self.moves.load(Relaxed), self.has_work(), now)
    }

    /// What keeps the thread from its work, if anything does.
    pub(super) fn problem(&self, now: Instant) -> Option<String> {
        let name = &self.name;
        match &*self.failure.lock() {
            Some(Failure::Ended(panic)) => {
                return Some(format!("thread {name} has ended by a panic ({panic}): restart the service"));
            }
            Some(Failure::Repeats(panic)) => {
                return Some(format!("thread {name} panicked ({panic}) and repeats what it did"));
            }
            None => {}
        }
        if self.is_finished() {
            return None;
        }
        let stood = self.liveness.lock().standstill(self.moves.load(Relaxed), self.has_work(), now)?;
        let task = self.task.lock().as_ref().map_or_else(String::new, |task| format!(", at work on {task}"));
        let (seconds, queued) = (stood.as_secs(), (self.queued)());
        Some(format!("thread {name} has not moved for {seconds} s with {queued} entries queued{task}"))
    }

    fn has_work(&self) -> bool {
        self.is_busy.load(Relaxed) || (self.queued)() > 0
    }
}

/// Runs something of a thread of this kind; none if it panicked, which is counted and logged.
pub fn guarded<T>(metrics: &Metrics, kind: ThreadKind, thread: &str, step: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(done) => Some(done),
        Err(panic) => {
            note_panic(metrics, kind, thread, &*panic);
            None
        }
    }
}

/// Counts and logs a panic of a thread, or task, of this kind.
pub fn note_panic(metrics: &Metrics, kind: ThreadKind, thread: &str, panic: &(dyn Any + Send)) {
    metrics.thread_panicked(kind);
    error!(thread, kind = kind.as_str(), panic = message(panic), "thread panicked; this is a fault of the program");
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
