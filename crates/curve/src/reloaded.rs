//! A file that is read again before each use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flash_indexer_regular_files::{self as regular_files, ReadError};
use parking_lot::Mutex;
use tracing::warn;

use crate::keys::KeyError;
use crate::lists::ListError;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Failure to load a file with keys.
#[derive(Debug, thiserror::Error)]
#[error("failed to load the {role} {}: {cause}", .path.display())]
pub struct CurveFileError {
    role: &'static str,
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("{0}; create the file, or make it readable")]
    Read(io::Error),
    #[error("it exceeds {FILE_BYTES_MAX} bytes; remove unused keys")]
    TooLarge,
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    List(#[from] ListError),
}

/// The content of a file. A version that cannot be read leaves the previous one in force.
#[derive(Debug)]
pub(crate) struct ReloadedFile<T, E> {
    /// Name of the file in errors.
    role: &'static str,
    path: PathBuf,
    parse: fn(&str) -> Result<T, E>,
    last: Mutex<LastContent<T>>,
}

#[derive(Debug)]
struct LastContent<T> {
    content: Arc<T>,
    /// The error that was logged last, if the file cannot be read.
    error: Option<String>,
}

impl<T, E: Into<Cause>> ReloadedFile<T, E> {
    pub(crate) fn load(
        role: &'static str,
        path: &Path,
        parse: fn(&str) -> Result<T, E>,
    ) -> Result<Self, CurveFileError> {
        let content = Arc::new(read(role, path, parse)?);
        Ok(Self { role, path: path.to_owned(), parse, last: Mutex::new(LastContent { content, error: None }) })
    }

    /// Reads the file. It blocks on the file system.
    pub(crate) fn current(&self) -> Arc<T> {
        let read = read(self.role, &self.path, self.parse);
        let mut last = self.last.lock();
        match read {
            Ok(content) => *last = LastContent { content: Arc::new(content), error: None },
            Err(error) => {
                let error = error.to_string();
                if last.error.as_ref() != Some(&error) {
                    warn!(%error, "keeping the previous CURVE keys");
                    last.error = Some(error);
                }
            }
        }
        Arc::clone(&last.content)
    }
}

fn read<T, E: Into<Cause>>(
    role: &'static str,
    path: &Path,
    parse: fn(&str) -> Result<T, E>,
) -> Result<T, CurveFileError> {
    let text = regular_files::read_text(path, FILE_BYTES_MAX).map_err(|error| match error {
        ReadError::Io(error) => Cause::Read(error),
        ReadError::TooLarge { .. } => Cause::TooLarge,
    });
    let content = text.and_then(|text| parse(&text).map_err(E::into));
    content.map_err(|cause| CurveFileError { role, path: path.to_owned(), cause })
}
