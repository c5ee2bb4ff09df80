//! Errors of tokenization.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use super::limits::{MODEL_NAME_BYTES_MAX, SERVICE_MESSAGE_BYTES_MAX, UNCUT_BYTES_MAX};
use chat_template::ChatError;
use flash_indexer_engine_chats::PrepareError;

/// Failure to tokenize a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The queued prompts of one client have reached its share of the queue.
    #[error(
        "failed to queue the prompt: the prompts of this client that wait to be tokenized have too many bytes; retry later, or raise --tokenizer-queue-bytes-max"
    )]
    ClientShare,
    /// The queue is full.
    #[error(
        "failed to queue the prompt: the tokenization queue is full ({prompts} prompts, {bytes} bytes); retry later, or give the pool more workers"
    )]
    QueueFull {
        /// Prompts in the queue.
        prompts: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The pool has been stopped.
    #[error("failed to tokenize the prompt: the replica is shutting down; ask another replica")]
    Stopped,
    /// The prompt was withdrawn before a worker took it.
    #[error("failed to tokenize the prompt: it was withdrawn; retry")]
    Withdrawn,
    /// The model's name is too long.
    #[error("failed to find the model: its name has {bytes} bytes; names have at most {MODEL_NAME_BYTES_MAX}")]
    ModelName {
        /// Its length.
        bytes: usize,
    },
    /// No source has the model.
    #[error("failed to find a tokenizer for {0}")]
    UnknownModel(Arc<UnavailableModel>),
    /// At least one source has the model, but no source could load it.
    #[error("failed to load the tokenizer for {0}")]
    LoadFailed(Arc<UnavailableModel>),
    /// The chat cannot be rendered.
    #[error("failed to render the chat: {0}")]
    Chat(#[from] ChatError),
    /// Only the engine can make the chat's prompt.
    #[error("failed to render the chat: {0}")]
    Unsupported(String),
    /// The model's chat templates cannot be read.
    #[error("failed to load the model's chat templates: {0}")]
    BrokenChatTemplates(String),
    /// The tokenizer rejected the prompt.
    #[error("failed to tokenize the prompt: {0}")]
    Tokenizer(String),
    /// The tokenizer cannot decode tokens to text.
    #[error("failed to make text of tokens: {0}")]
    Decode(String),
    /// A text without places where it can be cut is too long.
    #[error(
        "failed to tokenize the prompt: {bytes} bytes of it have no place where this tokenizer's texts can be cut, and at most {UNCUT_BYTES_MAX} are tokenized at once; send token_ids"
    )]
    Uncut {
        /// Its bytes.
        bytes: usize,
    },
    /// The tokenizer service failed.
    #[error("failed to tokenize by service: {0}")]
    Service(#[from] ServiceError),
    /// Tokenizing panicked.
    #[error("failed to tokenize the prompt: the tokenizer panicked: {0}; check the model's files, or report a bug")]
    Panicked(String),
}

impl TokenizeError {
    /// The reason under which metrics count this failure.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::ClientShare | Self::QueueFull { .. } => FailureReason::QueueFull,
            Self::Stopped => FailureReason::Stopped,
            Self::Withdrawn => FailureReason::Withdrawn,
            Self::ModelName { .. } | Self::UnknownModel(_) => FailureReason::UnknownModel,
            Self::LoadFailed(_) | Self::BrokenChatTemplates(_) => FailureReason::LoadFailed,
            Self::Chat(_) => FailureReason::Chat,
            Self::Unsupported(_) | Self::Decode(_) => FailureReason::Unsupported,
            Self::Tokenizer(_) => FailureReason::Tokenizer,
            Self::Uncut { .. } => FailureReason::TooLong,
            Self::Service(ServiceError::Unreachable { .. }) => FailureReason::ServiceUnreachable,
            Self::Service(ServiceError::TimedOut { .. }) => FailureReason::ServiceTimedOut,
            Self::Service(_) => FailureReason::ServiceRefused,
            Self::Panicked(_) => FailureReason::Panicked,
        }
    }
}

impl From<PrepareError> for TokenizeError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Chat(error) => Self::Chat(error),
            PrepareError::Unsupported(why) => Self::Unsupported(why),
        }
    }
}

impl From<Arc<UnavailableModel>> for TokenizeError {
    fn from(why: Arc<UnavailableModel>) -> Self {
        if why.has_failed() { Self::LoadFailed(why) } else { Self::UnknownModel(why) }
    }
}

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
    #[error("a message to or from {address} exceeds {SERVICE_MESSAGE_BYTES_MAX} bytes: {why}; send shorter prompts")]
    TooLarge {
        /// Address of the service.
        address: String,
        /// The message, and its size.
        why: String,
    },
}

/// Reasons of failures, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureReason {
    /// The queue was full.
    QueueFull,
    /// The pool had been stopped.
    Stopped,
    /// The prompt was withdrawn before a worker took it.
    Withdrawn,
    /// No source has the model.
    UnknownModel,
    /// The model's tokenizer, or its chat templates for a chat, could not be loaded.
    LoadFailed,
    /// The chat could not be rendered.
    Chat,
    /// Only the engine can make the chat's prompt.
    Unsupported,
    /// The tokenizer rejected the prompt.
    Tokenizer,
    /// A text without places where it can be cut was too long.
    TooLong,
    /// The tokenizer service could not be reached.
    ServiceUnreachable,
    /// The tokenizer service did not answer in time.
    ServiceTimedOut,
    /// The tokenizer service refused the request or does not support it.
    ServiceRefused,
    /// Tokenizing panicked.
    Panicked,
}

impl FailureReason {
    /// The reason's name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Stopped => "stopped",
            Self::Withdrawn => "withdrawn",
            Self::UnknownModel => "unknown_model",
            Self::LoadFailed => "load_failed",
            Self::Chat => "chat",
            Self::Unsupported => "unsupported",
            Self::Tokenizer => "tokenizer",
            Self::TooLong => "too_long",
            Self::ServiceUnreachable => "service_unreachable",
            Self::ServiceTimedOut => "service_timed_out",
            Self::ServiceRefused => "service_refused",
            Self::Panicked => "panicked",
        }
    }
}

/// Failure of a source to load a tokenizer. The pool then tries the next source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The source does not have this model.
    #[error("{0}")]
    Absent(String),
    /// The source has this model, or may have it, and failed to load it.
    #[error("{0}")]
    Failed(String),
}

/// A model that no source could load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableModel {
    /// The model.
    pub model: String,
    /// The sources that were tried, in order.
    pub tried: Vec<FailedSource>,
    /// Time after which the sources are tried again.
    pub tried_again_in: Duration,
}

/// A source that was tried, and its error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedSource {
    /// The source's name.
    pub name: String,
    /// The source's error.
    pub error: LoadError,
}

impl UnavailableModel {
    /// Whether a source has the model, or may have it, and failed to load it.
    fn has_failed(&self) -> bool {
        self.tried.iter().any(|source| matches!(source.error, LoadError::Failed(_)))
    }
}

impl Display for UnavailableModel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "model {:?}: ", self.model)?;
        if self.tried.is_empty() {
            return f.write_str("no source of tokenizers is configured; configure paths, a directory or a service");
        }
        f.write_str("tried ")?;
        for (number, source) in self.tried.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", source.name, source.error)?;
        }
        let remedy = match self.has_failed() {
            true => "correct what failed, or add the model's tokenizer.json to one of these sources",
            false => "add the model's tokenizer.json to one of these sources, or request another model",
        };
        // Rounded up: a request after this time finds a model that was added.
        match self.tried_again_in.as_millis().div_ceil(1000) {
            0 => write!(f, "; {remedy}; the next request tries them again"),
            seconds => write!(f, "; {remedy}; requests try them again in {seconds} s"),
        }
    }
}
