//! A configuration file that is read again when it changes.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Parsed content of a configuration file.
pub trait FileContent: PartialEq + Sized {
    /// Name of the file in errors.
    const NAME: &'static str;
    /// What to do about a file that cannot be read.
    const REMEDY: &'static str;
    /// Failure to parse the text.
    type Error: Error + Send + Sync + 'static;

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// Fails if the text is not of the form.
    fn parse(text: &str) -> Result<Self, Self::Error>;
}

/// The content of a file, replaced as a whole when the file changes.
///
/// Consistency: a request is checked against one version of the file. A version that cannot be read leaves the previous
/// one in force.
#[derive(Debug)]
pub struct ConfigFile<T> {
    path: PathBuf,
    content: ArcSwap<T>,
}

/// Failure to load a configuration file.
#[derive(Debug, thiserror::Error)]
#[error("failed to load the {name} {}: {cause}", .path.display())]
pub struct LoadError {
    name: &'static str,
    path: PathBuf,
    cause: LoadCause,
}

#[derive(Debug, thiserror::Error)]
enum LoadCause {
    #[error("{error}; {remedy}")]
    Read { error: io::Error, remedy: &'static str },
    #[error("it exceeds {FILE_BYTES_MAX} bytes; remove unused entries")]
    TooLarge,
    #[error("{0}")]
    Content(Box<dyn Error + Send + Sync>),
}

impl<T: FileContent> ConfigFile<T> {
    /// Loads a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { path: path.to_owned(), content: ArcSwap::from_pointee(read(path)?) })
    }

    /// Reads the file again. Returns whether the content has changed. It blocks on the file system.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid. The previous content stays in force.
    pub fn refresh(&self) -> Result<bool, LoadError> {
        let content = read(&self.path)?;
        let has_changed = **self.content.load() != content;
        if has_changed {
            self.content.store(Arc::new(content));
        }
        Ok(has_changed)
    }

    /// The content as of the last read.
    pub(crate) fn content(&self) -> Guard<Arc<T>> {
        self.content.load()
    }
}

fn read<T: FileContent>(path: &Path) -> Result<T, LoadError> {
    let text = read_text(path, T::REMEDY);
    let content = text.and_then(|text| T::parse(&text).map_err(|error| LoadCause::Content(error.into())));
    content.map_err(|cause| LoadError { name: T::NAME, path: path.to_owned(), cause })
}

fn read_text(path: &Path, remedy: &'static str) -> Result<String, LoadCause> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| LoadCause::Read { error, remedy })?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(LoadCause::TooLarge) } else { Ok(text) }
}
