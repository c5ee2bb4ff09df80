//! Snapshots of the index in a state directory: written at an interval and at the stop, loaded at the start.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_registry::Indexer;
use flash_indexer_snapshot::{DirectoryError, DumpForm, DumpWriter, SnapshotDirectory, StoredSnapshot};
use flash_indexer_telemetry::supervision::ThreadKind;
use flash_indexer_types::hashes::HashForm;
use flash_indexer_types::{InstanceId, ModelKey};
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::status::RecoveryStatus;

/// Longest time that the last snapshot may take, before the service stops without it.
const LAST_DEADLINE: Duration = Duration::from_secs(5);

/// Configuration of snapshots.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// The state directory. One service uses it at a time.
    pub directory: PathBuf,
    /// Interval between two snapshots.
    pub interval: Duration,
}

/// Writer of snapshots.
#[derive(Debug)]
pub struct Snapshots {
    indexer: Arc<Indexer>,
    interval: Duration,
    /// Locked while a snapshot is written.
    directory: Mutex<SnapshotDirectory>,
}

/// Guard that ends the periodic snapshots when it is dropped.
#[derive(Debug)]
pub struct SnapshotsGuard(#[expect(dead_code, reason = "it is dropped to disconnect the channel")] Sender<()>);

impl Snapshots {
    /// Opens the state directory.
    ///
    /// # Errors
    ///
    /// Fails if it is not writable, or another process uses it.
    pub fn open(options: &SnapshotOptions, indexer: Arc<Indexer>) -> Result<Self, DirectoryError> {
        let directory = Mutex::new(SnapshotDirectory::open(&options.directory)?);
        Ok(Self { indexer, interval: options.interval, directory })
    }

    /// The snapshots on disk, newest first. None if the directory cannot be read.
    #[must_use]
    pub fn newest_first(&self) -> Vec<StoredSnapshot> {
        self.directory.lock().snapshots().unwrap_or_else(|error| {
            warn!(%error, "failed to list the state directory; starting without its snapshots");
            Vec::new()
        })
    }

    /// Starts a thread that writes a snapshot at each interval once recovery has finished.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn start(self: &Arc<Self>, recovery: Arc<RecoveryStatus>) -> io::Result<SnapshotsGuard> {
        let (guard, dropped) = bounded(0);
        let snapshots = Arc::clone(self);
        let supervisor = Arc::clone(self.indexer.supervisor());
        supervisor.spawn(ThreadKind::Snapshots, None, move |watch| {
            while dropped.recv_timeout(snapshots.interval) == Err(RecvTimeoutError::Timeout) {
                if !recovery.is_running() {
                    // After a panic, the next snapshot is written at the next interval.
                    watch.guarded(|| snapshots.write(None));
                }
            }
        })?;
        Ok(SnapshotsGuard(guard))
    }

    /// Writes the last snapshot before a stop, unless it takes too long.
    pub fn write_last(&self) {
        self.write(Some(Instant::now() + LAST_DEADLINE));
    }

    /// Writes a snapshot. A failure leaves the earlier snapshots.
    fn write(&self, deadline: Option<Instant>) {
        let started = Instant::now();
        let written = match deadline {
            None => Some(self.directory.lock()),
            Some(deadline) => self.directory.try_lock_until(deadline),
        };
        let written = written.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut)).and_then(|directory| {
            directory.write(|out| {
                let writer = DumpWriter::start(DeadlineOutput { out, deadline }, DumpForm::Lines, HashForm::Number)?;
                let models = self.indexer.matching_models(None, None);
                write_models(&self.indexer, &models, None, writer).map(drop)
            })
        });
        let elapsed_ms = started.elapsed().as_millis() as u64;
        match written {
            Ok((snapshot, bytes)) => {
                self.indexer.metrics().snapshot_written(bytes);
                info!(path = %snapshot.path.display(), bytes, elapsed_ms, "wrote a snapshot");
            }
            Err(error) => {
                self.indexer.metrics().snapshot_ended("failed");
                warn!(
                    %error,
                    elapsed_ms,
                    "failed to write a snapshot; previous snapshots are kept; check free space and permissions of --state-dir"
                );
            }
        }
    }
}

/// Writes the ranks of these models, and ends the dump. At most one rank is in memory at a time.
///
/// # Errors
///
/// Returns the errors of the writer's output.
pub fn write_models<W: Write>(
    indexer: &Indexer,
    models: &[(ModelKey, BlockSize)],
    instance: Option<&InstanceId>,
    mut writer: DumpWriter<W>,
) -> io::Result<W> {
    for (key, block_size) in models {
        writer.model(key, block_size.tokens())?;
        for (record, rank) in indexer.records(key, instance) {
            writer.rank(record, &rank)?;
        }
    }
    writer.finish()
}

/// Output that fails after a deadline.
struct DeadlineOutput<'o> {
    out: &'o mut dyn Write,
    deadline: Option<Instant>,
}

impl Write for DeadlineOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(io::ErrorKind::TimedOut.into()),
            _ => self.out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
