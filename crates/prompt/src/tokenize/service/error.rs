//! Why a tokenizer service gave no tokens.

use std::time::Duration;

use super::connection::MESSAGE_BYTES_MAX;

/// Why a tokenizer service gave no tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// It cannot be reached; it is tried again at the latest when the time has passed.
    #[error("{address} cannot be reached ({why}): start it or mend its address; it is tried again in {again_in:?}")]
    Unreachable {
        /// Its address.
        address: String,
        /// What the last attempt said.
        why: String,
        /// Until then nobody tries.
        again_in: Duration,
    },
    /// It did not answer in time.
    #[error("{address} did not answer within {deadline:?}: see what keeps it busy, or allow it more time")]
    Late {
        /// Its address.
        address: String,
        /// The time that it had.
        deadline: Duration,
    },
    /// It answered that it cannot.
    #[error("{address} refused: {why}")]
    Refused {
        /// Its address.
        address: String,
        /// What it said.
        why: String,
    },
    /// It does not have the method.
    #[error("{address} cannot do this ({why}): run a service that has all of tokenization.TokenizationService")]
    Unsupported {
        /// Its address.
        address: String,
        /// What it said.
        why: String,
    },
    /// A message is larger than what is sent or taken.
    #[error("a message to or from {address} has more than {MESSAGE_BYTES_MAX} bytes ({why}): send shorter prompts")]
    TooLarge {
        /// Its address.
        address: String,
        /// Which one.
        why: String,
    },
}
