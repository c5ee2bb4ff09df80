//! Work that goes on behind a change of the registrations.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind};

/// Longest wait of a registration or its end for decoders, writers and sockets. What they have not done by then they do
/// behind the answer.
pub(crate) const CLEANUP_WAIT: Duration = Duration::from_secs(2);

/// Work that other threads still do.
#[derive(Debug, Default)]
#[must_use = "it may be worth waiting for"]
pub(crate) struct PendingWork(Vec<Receiver<()>>);

impl PendingWork {
    /// More work, and its end: something sent, or the sender dropped.
    pub(super) fn add(&mut self) -> Sender<()> {
        let (done, finished) = bounded(1);
        self.0.push(finished);
        done
    }

    /// Waits for all of it, at most until `deadline`; whether it is done.
    pub(crate) fn wait_until(self, deadline: Instant) -> bool {
        self.0.iter().all(|finished| finished.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout))
    }

    /// Waits for [`CLEANUP_WAIT`] at most.
    pub(crate) fn wait(self) -> bool {
        self.wait_until(Instant::now() + CLEANUP_WAIT)
    }

    /// Waits for as long as it takes.
    pub(super) fn wait_for_all(self) {
        for finished in self.0 {
            // An error means that the service stops.
            let _ = finished.recv();
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that changes indexes where the one who asks must not wait for their locks. It ends with the indexer.
pub(super) struct Cleanup {
    jobs: Sender<Job>,
}

impl Cleanup {
    pub(super) fn start(supervisor: &Supervisor) -> std::io::Result<Self> {
        // Bounded by the registrations: each ends once.
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

    /// Has something done after everything that was asked for before.
    pub(super) fn run(&self, pending: &mut PendingWork, job: impl FnOnce() + Send + 'static) {
        let done = pending.add();
        // The thread lives as long as this.
        let _ = self.jobs.send(Box::new(move || {
            job();
            // The one who asked may have stopped waiting.
            let _ = done.send(());
        }));
    }
}
