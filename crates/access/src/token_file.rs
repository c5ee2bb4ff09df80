//! The token file on disk.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::grant::{Denied, Grant};
use crate::tokens::{Tokens, TokensError};

/// Largest token file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The tokens of a file, replaced as a whole when the file changes.
///
/// Consistency: a request is checked against one version of the file. A version that cannot be read leaves the previous
/// one in force.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    tokens: ArcSwap<Tokens>,
}

/// Failure to load a token file.
#[derive(Debug, thiserror::Error)]
#[error("failed to load the token file {}: {cause}", .path.display())]
pub struct LoadError {
    path: PathBuf,
    cause: LoadCause,
}

#[derive(Debug, thiserror::Error)]
enum LoadCause {
    #[error("{0}; create it with `flash-indexer token`, or make it readable")]
    Read(#[from] io::Error),
    #[error("it exceeds {FILE_BYTES_MAX} bytes; remove unused tokens")]
    TooLarge,
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

impl TokenFile {
    /// Loads a token file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let tokens = read(path).map_err(|cause| LoadError { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), tokens: ArcSwap::from_pointee(tokens) })
    }

    /// Reads the file again. Returns whether the tokens have changed. It blocks on the file system.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid. The previous tokens stay in force.
    pub fn refresh(&self) -> Result<bool, LoadError> {
        let tokens = read(&self.path).map_err(|cause| LoadError { path: self.path.clone(), cause })?;
        let has_changed = **self.tokens.load() != tokens;
        if has_changed {
            self.tokens.store(Arc::new(tokens));
        }
        Ok(has_changed)
    }

    /// The grant of a bearer token.
    ///
    /// # Errors
    ///
    /// Fails if the file has no such token.
    pub fn grant(&self, token: &str) -> Result<Arc<Grant>, Denied> {
        self.tokens.load().grant(token).cloned()
    }

    /// Number of tokens.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.tokens.load().len()
    }
}

fn read(path: &Path) -> Result<Tokens, LoadCause> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(LoadCause::TooLarge);
    }
    Ok(Tokens::parse(&text)?)
}
