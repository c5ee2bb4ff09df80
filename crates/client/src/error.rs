//! Errors of calls.

use std::time::Duration;

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The text given to the client is not a URL of HTTP.
    #[error("invalid service URL {url:?}: {cause}; give one such as http://127.0.0.1:8090")]
    Url {
        /// The text.
        url: String,
        /// The cause.
        cause: String,
    },
    /// The service refused the request. Its message has a remedy.
    #[error("{status}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The service's message.
        message: String,
    },
    /// The service could not be reached, or closed the connection.
    #[error("failed to reach {url}; check that the service runs")]
    Connection {
        /// URL of the service.
        url: String,
        /// The cause. It names no URL, whose query has names of models and tenants.
        #[source]
        source: reqwest::Error,
    },
    /// The deadline passed.
    #[error("no response from {path} within {deadline:?}; raise the deadline, or query /ready for the cause")]
    Deadline {
        /// Path of the endpoint.
        path: &'static str,
        /// The client's deadline.
        deadline: Duration,
    },
    /// A request has a value that JSON cannot express, or an answer is not one of the endpoint.
    #[error("failed to read the response of {path}; check that the URL is Flash Indexer's")]
    Answer {
        /// Path of the endpoint.
        path: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// An answer is larger than the client reads.
    #[error("the answer of {path} has more than {bytes_max} bytes; ask for less with top_k")]
    TooLarge {
        /// Path of the endpoint.
        path: &'static str,
        /// The limit.
        bytes_max: usize,
    },
    /// A chat is not a JSON object.
    #[error("a chat must be a JSON object, as OpenAI's clients send it")]
    NoChat,
}

impl ClientError {
    /// Whether no engine of the service holds the prefix of a cursor. The caller then sends the whole prompt.
    #[must_use]
    pub fn is_unknown_cursor(&self) -> bool {
        matches!(self, Self::Refused { status: 409, message } if message.contains("unknown cursor"))
    }
}
