//! Errors of reading templates and rendering chats.

use std::path::PathBuf;

use thiserror::Error;

use super::engine::EngineError;

/// Failure to read templates or to render a chat.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A file of the model's directory cannot be read.
    #[error("failed to read {}: {source}; check that the file is UTF-8 text and readable", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file of the model's directory cannot be parsed.
    #[error("failed to parse {}: {reason}; download the model's files again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The model has no template for the request.
    #[error("{0}")]
    NoTemplate(String),
    /// A template has a syntax error.
    #[error("failed to compile the chat template {name}: line {line}: {message}")]
    Syntax {
        /// The template's name, or `of the request`.
        name: String,
        /// Line of the template, from 1.
        line: usize,
        /// The cause.
        message: String,
    },
    /// The template rejected the chat by `raise_exception`. The message is the template's.
    #[error("{0}")]
    Raised(String),
    /// The template failed on the chat.
    #[error("failed to render the chat template {name}: line {line}: {message}")]
    Failed {
        /// The template's name, or `of the request`.
        name: String,
        /// Line of the template, from 1.
        line: usize,
        /// The cause.
        message: String,
    },
    /// The template exceeded the work limit of one rendering.
    #[error(
        "failed to render the chat template {name}: it exceeds the work limit; shorten the conversation or simplify the template's loops"
    )]
    TooExpensive {
        /// The template's name, or `of the request`.
        name: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
}

impl ChatError {
    /// Adds the template's name to an error of the engine.
    pub(super) fn of_template(name: &str, error: EngineError) -> Self {
        let name = name.to_owned();
        match error {
            EngineError::Syntax { line, message } => Self::Syntax { name, line, message },
            EngineError::Raised(message) => Self::Raised(message),
            EngineError::Failed { line, message } => Self::Failed { name, line, message },
            EngineError::TooExpensive => Self::TooExpensive { name },
        }
    }
}
