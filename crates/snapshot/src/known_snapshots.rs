//! Snapshots that a process may remove, and files that it has logged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use flash_indexer_regular_files::{self as regular_files, Symlinks};
use tracing::warn;

use super::VERSION;
use super::error::DumpError;
use super::read::read_version;

/// Limit of files of a state directory that are logged, each once.
const LOGGED_MAX: usize = 64;

/// Records of one process about the files of its state directory. Bounded by the number of files in the directory.
#[derive(Debug, Default)]
pub(crate) struct KnownSnapshots {
    /// Written by this process, or of a format that it reads.
    removable: BTreeSet<PathBuf>,
    /// Failures to read a snapshot that are not caused by its content.
    unreadable: BTreeMap<PathBuf, String>,
    logged: BTreeSet<PathBuf>,
}

impl KnownSnapshots {
    /// Records a snapshot that this process wrote.
    pub(crate) fn wrote(&mut self, path: &Path) {
        self.removable.insert(path.to_owned());
    }

    /// Records the result of a check.
    pub(crate) fn checked<T>(&mut self, path: &Path, result: &Result<T, DumpError>) {
        match result {
            Ok(_) => {
                self.removable.insert(path.to_owned());
            }
            // Its first line shows whether it is a damaged snapshot of a known format.
            Err(error) if error.is_damage() => {}
            Err(error) => drop(self.unreadable.insert(path.to_owned(), error.to_string())),
        }
    }

    /// Discards the records of snapshots that are not among these.
    pub(crate) fn retain<'p>(&mut self, paths: impl Iterator<Item = &'p Path>) {
        let paths: BTreeSet<&Path> = paths.collect();
        self.removable.retain(|path| paths.contains(path.as_path()));
        self.unreadable.retain(|path, _| paths.contains(path.as_path()));
    }

    /// Returns why a snapshot must not be removed, or none if it may be: this process wrote it or can read it, or its content is
    /// damaged. Reads the first line of a snapshot of another process, once.
    pub(crate) fn reason_to_keep(&mut self, path: &Path) -> Option<String> {
        if self.removable.contains(path) {
            return None;
        }
        if let Some(reason) = self.unreadable.get(path) {
            return Some(reason.clone());
        }
        match check_format(path) {
            Ok(()) => {
                self.removable.insert(path.to_owned());
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    /// Whether a file is to be logged: once, and not beyond the limit.
    pub(crate) fn is_first_log(&mut self, path: &Path) -> bool {
        if self.logged.len() >= LOGGED_MAX || !self.logged.insert(path.to_owned()) {
            return false;
        }
        if self.logged.len() == LOGGED_MAX {
            warn!(
                logged = LOGGED_MAX,
                "further files of the state directory are not logged; remove files of other origin"
            );
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn logged(&self) -> Vec<&Path> {
        self.logged.iter().map(PathBuf::as_path).collect()
    }
}

/// Checks that a snapshot has a format that this program reads. An empty file has lost all content, and passes.
fn check_format(path: &Path) -> Result<(), DumpError> {
    let file = regular_files::open(path, OpenOptions::new().read(true), Symlinks::Refuse).map_err(DumpError::Open)?;
    if file.metadata().map_err(DumpError::Read)?.len() == 0 {
        return Ok(());
    }
    let version = read_version(file)?;
    if version > VERSION { Err(DumpError::Version(version)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_logged_once_and_many_files_up_to_a_limit() {
        let mut known = KnownSnapshots::default();
        assert!(known.is_first_log(Path::new("a")));
        assert!(!known.is_first_log(Path::new("a")));
        let logged = (0..2 * LOGGED_MAX).filter(|at| known.is_first_log(Path::new(&at.to_string()))).count();
        assert_eq!(logged, LOGGED_MAX - 1);
    }
}
