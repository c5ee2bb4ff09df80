//! Background work of registrations.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind};

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
    pub(crate) fn wait_until(self, deadline: Instant) -> bool {
        self.0.iter().all(|finished| finished.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout))
    }

    /// Waits for all work for up to [`CLEANUP_WAIT`], and returns whether it is finished.
    pub(crate) fn wait(self) -> bool {
        self.wait_until(Instant::now() + CLEANUP_WAIT)
    }

    /// Waits for all work without a deadline.
    pub(super) fn wait_for_all(self) {
        for finished in self.0 {
            // An error means that the service is stopping.
            let _ = finished.recv();
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that changes indexes for callers that must not wait for their locks. It stops with the indexer.
pub(super) struct Cleanup {
    jobs: Sender<Job>,
}

impl Cleanup {
    pub(super) fn start(supervisor: &Supervisor) -> std::io::Result<Self> {
        // Bounded by the number of registrations, each of which ends once.
        let (jobs, queue) = unbounded::<Job>();
        let queued = queue.clone();
        supervisor.spawn_with_queue(
            ThreadKind::Cleanup,
            None,
            move || queued.len(),
            move |watch| {
                for job in queue {
                    watch.begin(None);
                    watch.guarded(job);
                    watch.end();
                }
            },
        )?;
        Ok(Self { jobs })
    }

    /// Queues a job behind all earlier ones.
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
