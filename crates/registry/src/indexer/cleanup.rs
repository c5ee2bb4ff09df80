//! Background work of registrations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use flash_indexer_ingest::Decoders;
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::supervision::{Step, Steps, Supervisor, ThreadKind, Watch};

use super::routing::{RoutedInstances, SWEEP_PERIOD};

/// Longest wait of registering and unregistering for decoders, writers and sockets. Work that takes longer continues
/// after the call.
pub(crate) const CLEANUP_WAIT: Duration = Duration::from_secs(2);

/// Work of other threads that a call may wait for.
#[derive(Debug, Default)]
#[must_use = "dropping it does not wait for the work"]
pub(crate) struct PendingWork(Vec<Receiver<()>>);

impl PendingWork {
    /// Adds work. It is finished when something is sent or the sender is dropped.
    pub(super) fn add(&mut self) -> Sender<()> {
        let (done, finished) = bounded(1);
        self.0.push(finished);
        done
    }

    /// Waits for all work until `deadline`, and returns whether it is finished.
    fn wait_until(self, supervisor: &Supervisor, deadline: Option<Instant>) -> bool {
        // A disconnected channel is finished work, also when the service is stopping.
        let is_finished = |done: &Receiver<()>| supervisor.wait(done, deadline) != Err(RecvTimeoutError::Timeout);
        self.0.iter().all(is_finished)
    }

    /// Waits for all work for up to [`CLEANUP_WAIT`], and returns whether it is finished.
    pub(crate) fn wait(self, supervisor: &Supervisor) -> bool {
        #[cfg(any(test, feature = "fault-injection"))]
        if !self.0.is_empty() {
            drop(crate::faults::CLEANUP_WAITS.lock());
        }
        self.wait_until(supervisor, Some(supervisor.clock().now() + CLEANUP_WAIT))
    }

    /// Waits for all work without a deadline.
    pub(super) fn wait_for_all(self, supervisor: &Supervisor) {
        self.wait_until(supervisor, None);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that changes indexes for callers that must not wait for their locks. While there are instances without events, it sweeps
/// them periodically. It stops with the indexer.
pub(super) struct Cleanup {
    jobs: Sender<Job>,
}

impl Cleanup {
    pub(super) fn start(
        supervisor: &Supervisor,
        routed: Arc<RoutedInstances>,
        decoders: Arc<Decoders>,
    ) -> std::io::Result<Self> {
        // Bounded by the number of registrations, each of which ends once.
        let (jobs, queue) = unbounded::<Job>();
        let queued = queue.clone();
        let queued = move || queued.len();
        let worker = CleanupWorker { queue, clock: supervisor.clock().clone(), routed, decoders, last_sweep: None };
        supervisor.spawn_steps(ThreadKind::Cleanup, None, queued, worker)?;
        Ok(Self { jobs })
    }

    /// Queues a job after all earlier ones.
    pub(super) fn run(&self, pending: &mut PendingWork, job: impl FnOnce() + Send + 'static) {
        let done = pending.add();
        // The thread runs as long as the sender exists.
        let _ = self.jobs.send(Box::new(move || {
            job();
            // The caller may have stopped waiting.
            let _ = done.send(());
        }));
    }
}

/// The thread of [`Cleanup`].
struct CleanupWorker {
    queue: Receiver<Job>,
    clock: Clock,
    routed: Arc<RoutedInstances>,
    decoders: Arc<Decoders>,
    /// Time at which the last sweep began; none while there are no instances without events.
    last_sweep: Option<Instant>,
}

impl CleanupWorker {
    /// Time of the next sweep.
    fn next_sweep(&mut self) -> Option<Instant> {
        if self.routed.is_empty() {
            self.last_sweep = None;
            return None;
        }
        let last = *self.last_sweep.get_or_insert_with(|| self.clock.now());
        Some(last + SWEEP_PERIOD)
    }
}

impl Steps for CleanupWorker {
    /// Waits for the next job or sweep and runs it.
    fn step(&mut self, watch: &Arc<Watch>) -> Step {
        let next_sweep = self.next_sweep();
        if next_sweep.is_some_and(|next| next <= self.clock.now()) {
            let now = self.clock.now();
            self.last_sweep = Some(now);
            watch.begin(None);
            watch.guarded(|| self.routed.sweep(now, &self.decoders));
            watch.end();
            return Step::Worked;
        }
        match self.clock.receive(&self.queue, next_sweep) {
            Ok(job) => {
                watch.begin(None);
                watch.guarded(job);
                watch.end();
                Step::Worked
            }
            Err(RecvTimeoutError::Timeout) => Step::Idle,
            Err(RecvTimeoutError::Disconnected) => Step::Ended,
        }
    }
}
