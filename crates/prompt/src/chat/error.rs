//! Why a chat could not be rendered.

use std::path::PathBuf;

use thiserror::Error;

use super::engine::EngineError;

/// Why templates could not be read, or a chat not be rendered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A file of the model's directory cannot be read.
    #[error("failed to read {}: {source}; check that the file is whole and may be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// A file of the model's directory is not what it should be.
    #[error("failed to understand {}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The model has no template for the request.
    #[error("{0}")]
    NoTemplate(String),
    /// A template that is not one.
    #[error("the chat template {name} has an error in line {line}: {message}")]
    Syntax {
        /// Which one: a name, or `of the request`.
        name: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template refuses the chat, by `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template fails on the chat.
    #[error("the chat template {name} failed in line {line}: {message}")]
    Failed {
        /// Which one: a name, or `of the request`.
        name: String,
        /// From 1.
        line: usize,
        /// What failed.
        message: String,
    },
    /// The template does more than one rendering may.
    #[error(
        "the chat template {name} does more than one rendering may: shorten the conversation or simplify the template's loops"
    )]
    TooExpensive {
        /// Which one: a name, or `of the request`.
        name: String,
    },
    /// The request contradicts itself, or cannot be a chat.
    #[error("{0}")]
    Request(String),
}

impl ChatError {
    /// An error of the engine with the name of the template that it is about.
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
