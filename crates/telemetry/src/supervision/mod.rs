//! Supervision of the service's long-lived threads: panics, unexpected ends and stalls.
//!
//! Every thread is started by [`Supervisor::spawn`], which counts and logs a panic that ends the thread. A loop that survives
//! panics runs each step in [`Watch::guarded`] and rebuilds the state that the step may have broken. A sampling thread
//! measures the progress of all threads. [`Supervisor::problems`] lists what fails readiness.
//!
//! | file | role |
//! |---|---|
//! | `liveness.rs` | detects a thread without progress |
//! | `stepper.rs` | loops of threads in steps, and the steps of a simulation |
//! | `watch.rs` | progress, panics and current entry of one thread |

mod liveness;
mod stepper;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use tracing::{error, warn};

pub use self::stepper::{Step, Stepper, Steps, ThreadChoice};
pub use self::watch::{Watch, guarded, record_panic};
use crate::clock::{Clock, SimulatedTime};
use crate::metrics::Metrics;
pub use crate::thread_kind::ThreadKind;

/// Interval at which the progress of threads is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Supervisor of the long-lived threads of one service.
pub struct Supervisor {
    metrics: Arc<Metrics>,
    threads: Mutex<Vec<Arc<Watch>>>,
    clock: Clock,
    execution: Execution,
}

/// How threads that are loops of steps run.
enum Execution {
    /// Each on a thread of the system. Dropping the sender stops the sampling thread.
    Threads { _sampling: Sender<()> },
    /// All of them as steps of the thread that runs the simulation.
    Simulated(Stepper),
}

/// Handle of a thread that a [`Supervisor`] started.
#[derive(Debug)]
pub struct SupervisedThread {
    name: String,
    /// None in a simulation.
    thread: Option<JoinHandle<()>>,
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
        let execution = Execution::Threads { _sampling: sampling };
        let (metrics, clock) = (Arc::clone(metrics), Clock::System);
        let supervisor = Arc::new(Self { metrics, threads: Mutex::default(), clock, execution });
        let weak = Arc::downgrade(&supervisor);
        supervisor.spawn(ThreadKind::Supervisor, None, move |watch| {
            while stopped.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // A panic must not end the sampling.
                watch.guarded(|| weak.upgrade().map(|supervisor| supervisor.sample(Instant::now())));
            }
        })?;
        Ok(supervisor)
    }

    /// A supervisor whose threads are steps of the caller ([`Supervisor::stepper`]). `choose` chooses the thread of each
    /// step, and time passes only when the caller advances it.
    pub fn simulated(metrics: &Arc<Metrics>, time: Arc<SimulatedTime>, choose: ThreadChoice) -> Arc<Self> {
        let (metrics, clock) = (Arc::clone(metrics), Clock::Simulated(time));
        let execution = Execution::Simulated(Stepper::new(choose));
        Arc::new(Self { metrics, threads: Mutex::default(), clock, execution })
    }

    /// The steps of a simulation; none if threads are threads of the system.
    pub fn stepper(&self) -> Option<&Stepper> {
        match &self.execution {
            Execution::Threads { .. } => None,
            Execution::Simulated(stepper) => Some(stepper),
        }
    }

    /// Clocks of the threads.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Waits for a message of another thread until `deadline`, or without an end. In a simulation the other threads make
    /// steps meanwhile, and the deadline has passed when none of them has work.
    ///
    /// # Errors
    ///
    /// When the deadline has passed, or the sender is dropped.
    ///
    /// # Panics
    ///
    /// In a simulation, if there is no deadline and the message never arrives.
    pub fn wait<T>(&self, receiver: &Receiver<T>, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let Some(stepper) = self.stepper() else { return self.clock.receive(receiver, deadline) };
        let mut has_work = true;
        loop {
            match self.clock.receive(receiver, deadline) {
                Err(RecvTimeoutError::Timeout) if has_work => has_work = stepper.step(),
                Err(RecvTimeoutError::Timeout) if deadline.is_none() => panic!("a call waits without end"),
                received => return received,
            }
        }
    }

    /// Starts a thread that is a loop of steps. `queued` returns the number of the entries of its queue.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn spawn_steps(
        &self,
        kind: ThreadKind,
        number: Option<usize>,
        queued: impl Fn() -> usize + Send + Sync + 'static,
        mut steps: impl Steps + 'static,
    ) -> std::io::Result<SupervisedThread> {
        let watch = Arc::new(Watch::new(kind, number, Box::new(queued), &self.metrics));
        let Execution::Simulated(stepper) = &self.execution else {
            return self.start_thread(watch, move |watch| while steps.step(watch) != Step::Ended {});
        };
        stepper.add(Arc::clone(&watch), Box::new(steps));
        // No join is needed: the thread runs only when the caller steps it.
        let (name, (_, ended)) = (watch.name().to_owned(), bounded(0));
        self.threads.lock().push(watch);
        Ok(SupervisedThread { name, thread: None, ended })
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
        self.start_thread(Arc::new(Watch::new(kind, number, Box::new(|| 0), &self.metrics)), work)
    }

    /// Starts a thread of the operating system that reports its progress to `watch`.
    fn start_thread(
        &self,
        watch: Arc<Watch>,
        work: impl FnOnce(&Arc<Watch>) + Send + 'static,
    ) -> std::io::Result<SupervisedThread> {
        let (running, ended) = bounded(0);
        let (name, watched) = (watch.name().to_owned(), Arc::clone(&watch));
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            // Dropped when the thread ends, even by a panic.
            let _running: Sender<()> = running;
            match catch_unwind(AssertUnwindSafe(|| work(&watched))) {
                Ok(()) => watched.finish(),
                Err(panic) => watched.fail(&*panic),
            }
        })?;
        let mut threads = self.threads.lock();
        threads.retain(|watch| !watch.is_finished());
        threads.push(watch);
        Ok(SupervisedThread { name, thread: Some(thread), ended })
    }

    /// Samples the progress of every thread, and logs new stalls.
    fn sample(&self, now: Instant) {
        let threads = self.threads.lock().clone();
        for watch in threads.iter().filter(|watch| watch.sample(now)) {
            if let Some(problem) = watch.problem(now) {
                error!(thread = watch.name(), error = problem.as_str(), "thread stalled");
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
        let _ = self.thread.map(JoinHandle::join);
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
        assert_eq!(supervisor.metrics.panics(), [("peer_check", 1)].into());
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
        assert_eq!(supervisor.metrics.panics(), [("resolver", 1)].into());
        assert_eq!(supervisor.problems(Instant::now()), Vec::<String>::new());
    }

    /// Sends a number with each step, and panics or ends at the last one.
    struct Countdown {
        left: u32,
        sent: Sender<u32>,
        panics: bool,
    }

    impl Steps for Countdown {
        fn step(&mut self, _watch: &Arc<Watch>) -> Step {
            let Some(left) = self.left.checked_sub(1) else {
                assert!(!self.panics, "injected by a test");
                return Step::Ended;
            };
            self.left = left;
            self.sent.send(left).expect("a receiver");
            Step::Worked
        }
    }

    #[test]
    fn the_steps_of_a_thread_run_on_it_or_in_the_order_that_a_simulation_chooses() {
        let (sent, received) = crossbeam_channel::unbounded();
        let thread =
            supervisor().spawn_steps(ThreadKind::Writer, None, || 0, Countdown { left: 3, sent, panics: false });
        assert!(thread.expect("a thread").join_by(Instant::now() + PATIENCE));
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [2, 1, 0]);

        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let mut choices = [1, 1, 0, 1].into_iter();
        let choose = move |count| choices.next().unwrap_or_default() % count;
        let supervisor = Supervisor::simulated(&metrics, SimulatedTime::starting_at(0), Box::new(choose));
        let (sent, received) = crossbeam_channel::unbounded();
        for (first, panics) in [(12, false), (2, true)] {
            let steps = Countdown { left: first, sent: sent.clone(), panics };
            let thread = supervisor.spawn_steps(ThreadKind::Writer, None, || 0, steps).expect("no thread");
            assert!(thread.join_by(Instant::now()), "the end of a simulated thread is not waited for");
        }
        let stepper = supervisor.stepper().expect("a simulation");
        for _ in 0..4 {
            assert!(stepper.step());
        }
        // The second thread has panicked, so the first one made the last step.
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [1, 0, 11, 10]);
        assert_eq!(metrics.panics(), [("writer", 1)].into());
        assert_eq!(supervisor.problems(Instant::now()).len(), 1);
    }

    #[test]
    fn a_wait_of_a_simulation_runs_the_other_threads_until_none_has_work() {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let supervisor = Supervisor::simulated(&metrics, SimulatedTime::starting_at(0), Box::new(|_| 0));
        let (sent, received) = crossbeam_channel::unbounded();
        let steps = Countdown { left: 2, sent, panics: false };
        drop(supervisor.spawn_steps(ThreadKind::Writer, None, || 0, steps).expect("no thread"));
        assert_eq!(supervisor.wait(&received, None), Ok(1));
        assert_eq!(supervisor.wait(&received, None), Ok(0));
        let late = Some(supervisor.clock().now() + PATIENCE);
        assert_eq!(supervisor.wait(&received, late), Err(RecvTimeoutError::Disconnected), "the thread has ended");
        let (_sender, silent) = bounded::<()>(1);
        assert_eq!(supervisor.wait(&silent, late), Err(RecvTimeoutError::Timeout));
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
