//! Supervision of the service's long-lived threads: panics, unexpected ends and stalls.
//!
//! Every thread is started by [`Supervisor::spawn`], which counts and logs a panic that ends the thread. A loop that survives
//! panics runs each step in [`Watch::guarded`] and rebuilds the state that the step may have broken. A sampling thread
//! measures the progress of all threads. [`Supervisor::problems`] lists what fails readiness.
//!
//! | file | role |
//! |---|---|
//! | `liveness.rs` | detects a thread without progress |
//! | `watch.rs` | progress, panics and current entry of one thread |

mod liveness;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use tracing::{error, warn};

pub use self::watch::{Watch, guarded, record_panic};
use crate::metrics::Metrics;
pub use crate::thread_kind::ThreadKind;

/// Interval at which the progress of threads is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Supervisor of the long-lived threads of one service.
pub struct Supervisor {
    metrics: Arc<Metrics>,
    threads: Mutex<Vec<Arc<Watch>>>,
    /// Stops the sampling thread when it is dropped.
    _sampling: Sender<()>,
}

/// Handle of a thread that a [`Supervisor`] started.
#[derive(Debug)]
pub struct SupervisedThread {
    name: String,
    thread: JoinHandle<()>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl Supervisor {
    /// Starts a supervisor and its sampling thread, which ends when the supervisor is dropped.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the sampling thread cannot be started.
    pub fn start(metrics: &Arc<Metrics>) -> std::io::Result<Arc<Self>> {
        let (sampling, stopped) = bounded(0);
        let supervisor =
            Arc::new(Self { metrics: Arc::clone(metrics), threads: Mutex::default(), _sampling: sampling });
        let weak = Arc::downgrade(&supervisor);
        supervisor.spawn(ThreadKind::Supervisor, None, move |watch| {
            while stopped.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A panic must not end the sampling.
                watch.guarded(|| weak.upgrade().map(|supervisor| supervisor.sample(Instant::now())));
            }
        })?;
        Ok(supervisor)
    }

    /// Starts a thread without a queue.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn spawn(
        &self,
        kind: ThreadKind,
        number: Option<usize>,
        work: impl FnOnce(&Arc<Watch>) + Send + 'static,
    ) -> std::io::Result<SupervisedThread> {
        self.spawn_with_queue(kind, number, || 0, work)
    }

    /// Starts a thread with a queue. `queued` returns the number of its entries.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn spawn_with_queue(
        &self,
        kind: ThreadKind,
        number: Option<usize>,
        queued: impl Fn() -> usize + Send + Sync + 'static,
        work: impl FnOnce(&Arc<Watch>) + Send + 'static,
    ) -> std::io::Result<SupervisedThread> {
        let watch = Arc::new(Watch::new(kind, number, Box::new(queued), &self.metrics));
        let (running, ended) = bounded(0);
        let (name, watched) = (watch.name().to_owned(), Arc::clone(&watch));
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            // Dropped when the thread ends, also by a panic.
            let _running: Sender<()> = running;
            match catch_unwind(AssertUnwindSafe(|| work(&watched))) {
                Ok(()) => watched.finish(),
                Err(panic) => watched.fail(&*panic),
            }
        })?;
        let mut threads = self.threads.lock();
        threads.retain(|watch| !watch.is_finished());
        threads.push(watch);
        Ok(SupervisedThread { name, thread, ended })
    }

    /// Samples the progress of every thread, and logs new stalls.
    fn sample(&self, now: Instant) {
        let threads = self.threads.lock().clone();
        for watch in threads.iter().filter(|watch| watch.sample(now)) {
            if let Some(problem) = watch.problem(now) {
                error!(thread = watch.name(), "{problem}");
            }
        }
    }

    /// Describes threads that ended by a panic, repeat a panicking step, or are stalled.
    pub fn problems(&self, now: Instant) -> Vec<String> {
        self.threads.lock().iter().filter_map(|watch| watch.problem(now)).collect()
    }

    /// Metrics in which panics are counted.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl SupervisedThread {
    /// Waits for the thread to end. Returns false if it has not ended by `deadline`; the thread is then abandoned and logged.
    pub fn join_by(self, deadline: Instant) -> bool {
        // The channel carries no message: its disconnection signals the end.
        if self.ended.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            warn!(thread = self.name, "failed to join a thread: deadline exceeded; abandoning it");
            return false;
        }
        // The thread has counted and logged its own panic.
        let _ = self.thread.join();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flash_indexer_test_support::wait_for;

    use super::*;
    use crate::metrics::MetricNames;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn supervisor() -> Arc<Supervisor> {
        Supervisor::start(&Arc::new(Metrics::new(MetricNames::Own))).expect("a thread")
    }

    #[test]
    fn a_panic_that_ends_a_thread_is_counted_and_stays_a_problem() {
        let supervisor = supervisor();
        let thread = supervisor.spawn(ThreadKind::PeerCheck, None, |_| panic!("injected by a test")).expect("a thread");
        assert!(thread.join_by(Instant::now() + PATIENCE));
        let problems = supervisor.problems(Instant::now());
        assert!(problems.len() == 1 && problems[0].contains("peer-check"), "{problems:?}");
        assert!(problems[0].contains("injected by a test") && problems[0].contains("restart"), "{problems:?}");
        assert_eq!(supervisor.metrics.thread_panics(ThreadKind::PeerCheck), 1);
    }

    #[test]
    fn a_loop_continues_after_a_step_panics() {
        let supervisor = supervisor();
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&steps);
        let thread = supervisor.spawn(ThreadKind::Resolver, Some(3), move |watch| {
            for step in 0..3 {
                watch.guarded(|| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    assert!(step != 1, "injected by a test");
                });
            }
        });
        assert!(thread.expect("a thread").join_by(Instant::now() + PATIENCE));
        assert_eq!(steps.load(Ordering::Relaxed), 3);
        assert_eq!(supervisor.metrics.thread_panics(ThreadKind::Resolver), 1);
        assert_eq!(supervisor.problems(Instant::now()), Vec::<String>::new());
    }

    #[test]
    fn a_thread_that_does_not_end_by_its_deadline_is_abandoned() {
        let supervisor = supervisor();
        let (release, blocked) = bounded::<()>(0);
        let (done, finished) = bounded(1);
        let thread = supervisor.spawn(ThreadKind::Writer, Some(0), move |_| {
            // Ends when the test drops `release`.
            let _ = blocked.recv();
            let _ = done.send(());
        });
        assert!(!thread.expect("a thread").join_by(Instant::now()));
        drop(release);
        finished.recv_timeout(PATIENCE).expect("an abandoned thread still finishes");
        wait_for("the end of the thread", PATIENCE, || {
            supervisor.threads.lock().iter().any(|watch| watch.is_finished()).then_some(())
        });
    }
}
