//! Polling of a file.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use flash_indexer_regular_files::{self as regular_files, Symlinks};
use xxhash_rust::xxh3::xxh3_128;

use super::parse;
use crate::report::{DiscoveredTargets, Reporter};
use crate::template::EngineTemplate;

/// Interval of polls. Network file systems report no changes, and one `stat` a second costs nothing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A file that was modified within this time is read again: a later change may keep its modification time.
const MODIFIED_TIME_GRAIN: Duration = Duration::from_secs(3);
/// Limit of a file's size.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Polls a file until `stopped`.
pub(crate) fn watch(path: PathBuf, template: EngineTemplate, reporter: &Reporter, stopped: &Receiver<()>) {
    let mut state = FileState::default();
    loop {
        match state.poll(&path, &template) {
            Ok(found) => reporter.found(found),
            Err(error) => reporter.failed(error),
        }
        if stopped.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// State of the last poll.
#[derive(Default)]
struct FileState {
    metadata: Option<(SystemTime, u64)>,
    digest: Option<u128>,
    outcome: Option<Result<DiscoveredTargets, String>>,
}

impl FileState {
    fn poll(&mut self, path: &Path, template: &EngineTemplate) -> Result<DiscoveredTargets, String> {
        match self.read_if_changed(path) {
            Ok(None) => {}
            Ok(Some(text)) => {
                // A test injects a panic by this text.
                #[cfg(any(test, feature = "fault-injection"))]
                assert!(text != "source-fault", "a test asked for a failure");
                let targets = parse(&text, template);
                let found = targets.map(|targets| DiscoveredTargets::new(targets, Vec::new()));
                self.outcome = Some(found.map_err(|error| {
                    format!(
                        "failed to parse {}: {error}; its engines stay registered until this is fixed",
                        path.display()
                    )
                }));
            }
            Err(error) => {
                *self = Self::default();
                return Err(format!("failed to read {}: {error}; its engines stay registered", path.display()));
            }
        }
        self.outcome.clone().unwrap_or_else(|| Err(format!("failed to read {}", path.display())))
    }

    /// The text, unless it is unchanged.
    fn read_if_changed(&mut self, path: &Path) -> io::Result<Option<String>> {
        // Opened each time: another file may have been renamed into its place.
        let file = regular_files::open(path, OpenOptions::new().read(true), Symlinks::Follow)?;
        let metadata = file.metadata()?;
        let seen = (metadata.modified()?, metadata.len());
        if self.metadata == Some(seen) && !is_recent(&metadata) {
            return Ok(None);
        }
        let bytes = regular_files::read_opened(file, FILE_BYTES_MAX).map_err(io::Error::other)?;
        let digest = xxh3_128(&bytes);
        self.metadata = Some(seen);
        if self.digest.replace(digest) == Some(digest) {
            return Ok(None);
        }
        String::from_utf8(bytes).map(Some).map_err(io::Error::other)
    }
}

fn is_recent(metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
    // A modification time in the future does not show the age.
    age.is_none_or(|age| age < MODIFIED_TIME_GRAIN)
}
