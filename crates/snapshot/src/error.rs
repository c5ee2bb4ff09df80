//! Failures to read a dump.

use std::io;

use super::VERSION;
use super::tally::Tally;

/// Failure to read a dump. Entries that the sink received before are incomplete and must be discarded.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A file cannot be opened.
    #[error("failed to open the file: {0}; let the user of the service read it, or remove it")]
    Open(io::Error),
    /// Reading the input failed.
    #[error("failed to read the dump: {0}; get it again")]
    Read(io::Error),
    /// The dump ends early.
    #[error("failed to read the dump: it is cut off; get it again")]
    CutOff,
    /// The dump has an invalid part.
    #[error("failed to read the dump at {position}: {cause}; check that the input is a dump, or get it again")]
    Damaged {
        /// Position in the input.
        position: String,
        /// The cause.
        cause: String,
    },
    /// A newer program wrote the dump.
    #[error(
        "failed to read the dump: it has version {0}, and this program reads up to {VERSION}; use the program that wrote it"
    )]
    Version(u32),
    /// The blocks of the dump differ from its own totals.
    #[error("failed to read the dump: {of} should hold {declared} and holds {received}; get it again")]
    Incomplete {
        /// The part of the dump.
        of: String,
        /// Total that the dump declares.
        declared: Tally,
        /// Total of the blocks read.
        received: Tally,
    },
    /// The sink rejects the dump.
    #[error("{0}")]
    Refused(String),
}

impl DumpError {
    /// Whether the content of the dump is the reason. If not, another user or a newer program may be able to read it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Open(_) | Self::Version(_) => false,
            // Only the operating system's errors have a number; the decompressor's have none.
            Self::Read(source) => source.raw_os_error().is_none(),
            Self::CutOff | Self::Damaged { .. } | Self::Incomplete { .. } | Self::Refused(_) => true,
        }
    }
}

/// Reason why a sink rejects a dump.
#[derive(Debug)]
pub struct Rejection(pub String);

impl From<Rejection> for DumpError {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection.0)
    }
}

/// Maps a read error. A stream that ends in the middle of a compressed frame or of an HTTP body was cut off.
pub(super) fn read_error(error: io::Error) -> DumpError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DumpError::CutOff,
        _ => DumpError::Read(error),
    }
}
