//! Why a prompt has no tokens.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use super::service::ServiceError;
use super::source::{LoadError, MODEL_NAME_BYTES_MAX};
use chat_template::ChatError;

/// Why a prompt was not tokenized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// Too many prompts wait.
    #[error(
        "the tokenization queue is full ({prompts} prompts of {bytes} bytes wait): ask again later, or give the pool more workers"
    )]
    QueueFull {
        /// Prompts that wait.
        prompts: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The pool has been stopped.
    #[error("tokenization is shutting down: ask another replica")]
    Stopped,
    /// Whoever had asked did not wait for it.
    #[error("the prompt was withdrawn: ask again")]
    Withdrawn,
    /// The name is too long to be a model's.
    #[error("the model's name has {bytes} bytes: names have at most {MODEL_NAME_BYTES_MAX}")]
    ModelName {
        /// Its length.
        bytes: usize,
    },
    /// No place has the model.
    #[error("no tokenizer for {0}")]
    UnknownModel(Arc<Unavailable>),
    /// A place has the model, and no place has it in a form that can be used.
    #[error("failed to load the tokenizer for {0}")]
    LoadFailed(Arc<Unavailable>),
    /// The chat cannot be rendered.
    #[error("failed to render the chat: {0}")]
    Chat(#[from] ChatError),
    /// The model's chat templates cannot be read.
    #[error("the model's chat templates cannot be used: {0}")]
    BrokenChatTemplates(String),
    /// The tokenizer refused the prompt.
    #[error("failed to tokenize the prompt: {0}")]
    Tokenizer(String),
    /// The tokenizer service gave no tokens.
    #[error("the tokenizer service at {0}")]
    Service(#[from] ServiceError),
    /// Tokenizing panicked.
    #[error("tokenizing panicked, which is a fault in this program or in the model's files: {0}")]
    Panicked(String),
}

impl TokenizeError {
    /// Which kind of failure this is counted as.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::QueueFull { .. } => FailureReason::QueueFull,
            Self::Stopped => FailureReason::Stopped,
            Self::Withdrawn => FailureReason::Withdrawn,
            Self::ModelName { .. } | Self::UnknownModel(_) => FailureReason::UnknownModel,
            Self::LoadFailed(_) | Self::BrokenChatTemplates(_) => FailureReason::LoadFailed,
            Self::Chat(_) => FailureReason::Chat,
            Self::Tokenizer(_) => FailureReason::Tokenizer,
            Self::Service(ServiceError::Unreachable { .. }) => FailureReason::ServiceUnreachable,
            Self::Service(ServiceError::Late { .. }) => FailureReason::ServiceLate,
            Self::Service(_) => FailureReason::ServiceRefused,
            Self::Panicked(_) => FailureReason::Panicked,
        }
    }
}

impl From<Arc<Unavailable>> for TokenizeError {
    fn from(why: Arc<Unavailable>) -> Self {
        if why.has_failed() { Self::LoadFailed(why) } else { Self::UnknownModel(why) }
    }
}

/// Kinds of failures, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The queue was full.
    QueueFull,
    /// The pool had been stopped.
    Stopped,
    /// It was withdrawn before its turn.
    Withdrawn,
    /// No place has the model.
    UnknownModel,
    /// The model's tokenizer, or its chat templates for a chat, could not be loaded.
    LoadFailed,
    /// The chat could not be rendered.
    Chat,
    /// The tokenizer refused the prompt.
    Tokenizer,
    /// The tokenizer service could not be reached.
    ServiceUnreachable,
    /// The tokenizer service did not answer in time.
    ServiceLate,
    /// The tokenizer service refused, or cannot do what was asked.
    ServiceRefused,
    /// Something panicked.
    Panicked,
}

impl FailureReason {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::QueueFull,
        Self::Stopped,
        Self::Withdrawn,
        Self::UnknownModel,
        Self::LoadFailed,
        Self::Chat,
        Self::Tokenizer,
        Self::ServiceUnreachable,
        Self::ServiceLate,
        Self::ServiceRefused,
        Self::Panicked,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Stopped => "stopped",
            Self::Withdrawn => "withdrawn",
            Self::UnknownModel => "unknown_model",
            Self::LoadFailed => "load_failed",
            Self::Chat => "chat",
            Self::Tokenizer => "tokenizer",
            Self::ServiceUnreachable => "service_unreachable",
            Self::ServiceLate => "service_late",
            Self::ServiceRefused => "service_refused",
            Self::Panicked => "panicked",
        }
    }
}

/// A model that no place gave a tokenizer for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// The model.
    pub model: String,
    /// The places that were asked, in order.
    pub tried: Vec<Place>,
}

/// A place that was asked, and what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Why it gave nothing.
    pub error: LoadError,
}

impl Unavailable {
    /// Whether a place has the model, or would, and it cannot be used.
    fn has_failed(&self) -> bool {
        self.tried.iter().any(|place| matches!(place.error, LoadError::Failed(_)))
    }
}

impl Display for Unavailable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "model {:?}: ", self.model)?;
        if self.tried.is_empty() {
            return f
                .write_str("no place is configured that tokenizers come from: name paths, a directory or a service");
        }
        f.write_str("tried ")?;
        for (number, place) in self.tried.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", place.name, place.error)?;
        }
        if self.has_failed() {
            return f.write_str("; mend what failed, or put the model's tokenizer.json where one of them looks");
        }
        f.write_str("; put the model's tokenizer.json where one of them looks, or ask for a model that is there")
    }
}
