//! Errors of preparing a chat.

use chat_template::ChatError;

/// A chat whose prompt cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The engine, the template or its limits reject the chat.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The prompt cannot be known without the engine.
    #[error("{0}")]
    Unsupported(String),
}

impl PrepareError {
    /// Whether the rendering exceeds the effort that it was allowed.
    #[must_use]
    pub fn is_too_expensive(&self) -> bool {
        matches!(self, Self::Chat(ChatError::TooExpensive { .. }))
    }

    /// The engine rejects the request.
    pub(super) fn rejected(message: impl Into<String>) -> Self {
        Self::Chat(ChatError::Request(message.into()))
    }
}
