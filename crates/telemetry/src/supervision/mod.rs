//! Supervision of the service's long-lived threads: panics, unexpected ends and standstills.
//!
//! Every thread is started by [`Supervisor::spawn`], which counts and logs a panic that ends the thread. A loop that can go
//! on after a panic runs each of its steps in [`Watch::guarded`] and rebuilds what the step may have broken. A sampling
//! thread looks at the progress of all threads; [`Supervisor::problems`] says what fails readiness.

mod liveness;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use tracing::{error, warn};

pub use self::watch::{ThreadKind, Watch, guarded, note_panic};
use crate::metrics::Metrics;

/// A thread that has not moved for so long while work is queued fails readiness.
pub const STANDSTILL_MAX: Duration = Duration::from_secs(5);
/// How often the progress of threads is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// The long-lived threads of one service.
pub struct Supervisor {
    metrics: Arc<Metrics>,
    threads: Mutex<Vec<Arc<Watch>>>,
    /// Ends the sampling thread when it is dropped.
    _sampling: Sender<()>,
}

/// A thread that was started by a [`Supervisor`].
#[derive(Debug)]
pub struct SupervisedThread {
    name: String,
    thread: JoinHandle<()>,
    /// Disconnected when the thread's work is done.
    ended: Receiver<()>,
}

impl Supervisor {
    /// Supervises from now on, with a thread that ends with the supervisor.
    ///
    /// # Errors
    ///
    /// When the sampling thread cannot be started.
    pub fn start(metrics: &Arc<Metrics>) -> std::io::Result<Arc<Self>> {
        let (sampling, stopped) = bounded(0);
        let supervisor =
            Arc::new(Self { metrics: Arc::clone(metrics), threads: Mutex::default(), _sampling: sampling });
        let weak = Arc::downgrade(&supervisor);
        supervisor.spawn(ThreadKind::Supervisor, None, move |watch| {
            while stopped.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A panic in here must not end the sampling.
                watch.guarded(|| weak.upgrade().map(|supervisor| supervisor.sample(Instant::now())));
            }
        })?;
        Ok(supervisor)
    }

    /// Starts a thread that takes its work from no queue.
    ///
    /// # Errors
    ///
    /// When there is no thread.
    pub fn spawn(
        &self,
        kind: ThreadKind,
        number: Option<usize>,
        work: impl FnOnce(&Arc<Watch>) + Send + 'static,
    ) -> std::io::Result<SupervisedThread> {
        self.spawn_with_queue(kind, number, || 0, work)
    }

    /// Starts a thread; `queued` says how many entries wait for it.
    ///
    /// # Errors
    ///
    /// When there is no thread.
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
            // Dropped last, also by a panic.
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

    /// Notes how far every thread has come.
    fn sample(&self, now: Instant) {
        let threads = self.threads.lock().clone();
        for watch in threads.iter().filter(|watch| watch.sample(now)) {
            if let Some(problem) = watch.problem(now) {
                error!(thread = watch.name(), "{problem}");
            }
        }
    }

    /// What keeps threads from their work: those that panicked for good, and those that stand still.
    pub fn problems(&self, now: Instant) -> Vec<String> {
        self.threads.lock().iter().filter_map(|watch| watch.problem(now)).collect()
    }

    /// The metrics in which panics are counted.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl SupervisedThread {
    /// Waits for the thread to end; one that does not by `deadline` is abandoned and logged. Whether it has ended.
    pub fn join_by(self, deadline: Instant) -> bool {
        // The thread sends nothing: the end is a disconnection.
        if self.ended.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            warn!(thread = self.name, "failed to end a thread within its deadline; it is abandoned");
            return false;
        }
        // A panic was counted and logged by the thread itself.
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
    fn a_thread_that_panics_is_counted_and_stays_a_problem() {
        let supervisor = supervisor();
        let thread =
            supervisor.spawn(ThreadKind::PeerCheck, None, |_| panic!("a test asked for it")).expect("a thread");
        assert!(thread.join_by(Instant::now() + PATIENCE));
        let problems = supervisor.problems(Instant::now());
        assert!(problems.len() == 1 && problems[0].contains("peer-check"), "{problems:?}");
        assert!(problems[0].contains("a test asked for it") && problems[0].contains("restart"), "{problems:?}");
        assert_eq!(supervisor.metrics.thread_panics(ThreadKind::PeerCheck), 1);
    }

    #[test]
    fn a_loop_goes_on_after_a_step_that_panics() {
        let supervisor = supervisor();
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&steps);
        let thread = supervisor.spawn(ThreadKind::Resolver, Some(3), move |watch| {
            for step in 0..3 {
                watch.guarded(|| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    assert!(step != 1, "a test asked for it");
                });
            }
        });
        assert!(thread.expect("a thread").join_by(Instant::now() + PATIENCE));
        assert_eq!(steps.load(Ordering::Relaxed), 3);
        assert_eq!(supervisor.metrics.thread_panics(ThreadKind::Resolver), 1);
        assert_eq!(supervisor.problems(Instant::now()), Vec::<String>::new());
    }

    #[test]
    fn a_thread_that_does_not_end_is_abandoned() {
        let supervisor = supervisor();
        let (release, blocked) = bounded::<()>(0);
        let (done, finished) = bounded(1);
        let thread = supervisor.spawn(ThreadKind::Writer, Some(0), move |_| {
            // Ends when the test lets it.
            let _ = blocked.recv();
            let _ = done.send(());
        });
        assert!(!thread.expect("a thread").join_by(Instant::now()));
        drop(release);
        finished.recv_timeout(PATIENCE).expect("the thread goes on by itself");
        wait_for("the end of the thread", PATIENCE, || {
            supervisor.threads.lock().iter().any(|watch| watch.is_finished()).then_some(())
        });
    }
}
