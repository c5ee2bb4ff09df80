//! A file that is read again before each use.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flash_indexer_regular_files::{self as regular_files, ReadError};
use parking_lot::Mutex;
use tracing::warn;

use crate::keys::KeyPair;
use crate::lists::{ClientKeys, ServerKeys};

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
enum Cause {
    #[error("{0}; create the file, or make it readable")]
    Read(io::Error),
    #[error("it exceeds {FILE_BYTES_MAX} bytes; remove unused keys")]
    TooLarge,
    #[error("{0}")]
    Content(Box<dyn Error + Send + Sync>),
}

/// Content of a file.
pub(crate) trait Content: Sized {
    /// Name of the file in errors.
    const ROLE: &'static str;

    fn parse_text(text: &str) -> Result<Self, Box<dyn Error + Send + Sync>>;
}

impl Content for KeyPair {
    const ROLE: &'static str = "CURVE key pair";

    fn parse_text(text: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::parse(text)?)
    }
}

impl Content for ServerKeys {
    const ROLE: &'static str = "list of CURVE server keys";

    fn parse_text(text: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::parse(text)?)
    }
}

impl Content for ClientKeys {
    const ROLE: &'static str = "list of CURVE client keys";

    fn parse_text(text: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::parse(text)?)
    }
}

/// The content of a file. A version that cannot be read leaves the previous one in force.
#[derive(Debug)]
pub(crate) struct ReloadedFile<T> {
    path: PathBuf,
    last: Mutex<LastContent<T>>,
}

#[derive(Debug)]
struct LastContent<T> {
    content: Arc<T>,
    /// The error that was logged last, if the file cannot be read.
    error: Option<String>,
}

impl<T: Content> ReloadedFile<T> {
    pub(crate) fn load(path: &Path) -> Result<Self, CurveFileError> {
        let content = Arc::new(read(path)?);
        Ok(Self { path: path.to_owned(), last: Mutex::new(LastContent { content, error: None }) })
    }

    /// Reads the file. It blocks on the file system.
    pub(crate) fn current(&self) -> Arc<T> {
        let read = read(&self.path);
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

fn read<T: Content>(path: &Path) -> Result<T, CurveFileError> {
    let text = regular_files::read_text(path, FILE_BYTES_MAX).map_err(|error| match error {
        ReadError::Io(error) => Cause::Read(error),
        ReadError::TooLarge { .. } => Cause::TooLarge,
    });
    let text = text.and_then(|text| T::parse_text(&text).map_err(Cause::Content));
    text.map_err(|cause| CurveFileError { role: T::ROLE, path: path.to_owned(), cause })
}
