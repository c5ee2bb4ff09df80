//! Errors of tokenizer services.

use std::time::Duration;

use super::connection::MESSAGE_BYTES_MAX;

/// Failure of a call to a tokenizer service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The service is unreachable. The next attempt is made when the back-off has passed.
    #[error("{address} is unreachable: {why}; start the service or correct its address; next attempt in {retry_in:?}")]
    Unreachable {
        /// Address of the service.
        address: String,
        /// Error of the last attempt.
        why: String,
        /// Time until the next attempt.
        retry_in: Duration,
    },
    /// The service did not respond in time.
    #[error("{address} did not respond within {deadline:?}; check its load, or configure a longer timeout")]
    TimedOut {
        /// Address of the service.
        address: String,
        /// The deadline of the call.
        deadline: Duration,
    },
    /// The service refused the request.
    #[error("{address} refused: {why}")]
    Refused {
        /// Address of the service.
        address: String,
        /// The service's message.
        why: String,
    },
    /// The service does not have the method.
    #[error(
        "{address} does not support the call: {why}; run a service that implements all of tokenization.TokenizationService"
    )]
    Unsupported {
        /// Address of the service.
        address: String,
        /// The service's message.
        why: String,
    },
    /// A message exceeds the maximum size.
    #[error("a message to or from {address} exceeds {MESSAGE_BYTES_MAX} bytes: {why}; send shorter prompts")]
    TooLarge {
        /// Address of the service.
        address: String,
        /// The message, and its size.
        why: String,
    },
}
