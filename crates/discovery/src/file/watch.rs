//! Looking at a file again and again.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use xxhash_rust::xxh3::xxh3_128;

use super::parse;
use crate::report::{DiscoveredTargets, Reporter};
use crate::template::EngineTemplate;

/// How often a file is looked at. Elsewhere than on a local disk nobody tells of changes, and one `stat` a second
/// costs nothing.
const LOOKS: Duration = Duration::from_secs(1);
/// A file that was changed so recently is read again: it may change once more and keep its time.
const TIME_GRAIN: Duration = Duration::from_secs(3);
/// Bytes of a file.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Looks at a file until `stopped`.
pub(crate) fn watch(path: PathBuf, template: EngineTemplate, reporter: &Reporter, stopped: &Receiver<()>) {
    let mut looked = FileState::default();
    loop {
        match looked.look(&path, &template) {
            Ok(found) => reporter.found(found),
            Err(error) => reporter.failed(error),
        }
        if stopped.recv_timeout(LOOKS) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// What was seen last.
#[derive(Default)]
struct FileState {
    metadata: Option<(SystemTime, u64)>,
    digest: Option<u128>,
    outcome: Option<Result<DiscoveredTargets, String>>,
}

impl FileState {
    fn look(&mut self, path: &Path, template: &EngineTemplate) -> Result<DiscoveredTargets, String> {
        match self.read_if_changed(path) {
            Ok(None) => {}
            Ok(Some(text)) => {
                // No text is known to make the thread fail, so one does.
                #[cfg(any(test, feature = "fault-injection"))]
                assert!(text != "source-fault", "a test asked for a failure");
                let targets = parse(&text, template);
                let found = targets.map(|targets| DiscoveredTargets::new(targets, Vec::new()));
                self.outcome = Some(found.map_err(|error| {
                    format!("{} {error}; what it named before stands until this is fixed", path.display())
                }));
            }
            Err(error) => {
                *self = Self::default();
                return Err(format!("failed to read {}: {error}; what it named before stands", path.display()));
            }
        }
        self.outcome.clone().unwrap_or_else(|| Err(format!("failed to read {}", path.display())))
    }

    /// The text, unless it is what it was.
    fn read_if_changed(&mut self, path: &Path) -> io::Result<Option<String>> {
        // Opened anew each time: another file may have been put in its place.
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let seen = (metadata.modified()?, metadata.len());
        if self.metadata == Some(seen) && !is_recent(&metadata) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
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
    // A time in the future tells nothing.
    age.is_none_or(|age| age < TIME_GRAIN)
}
