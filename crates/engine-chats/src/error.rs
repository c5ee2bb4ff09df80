//! Errors of preparing a chat.

use chat_template::{ChatError, Json};

/// Reads each item of a list of a request. An error names the rejected item by its index.
pub(super) fn read_each<'j, T>(
    list: &str,
    items: &'j [Json],
    read: impl Fn(&'j Json) -> Result<T, PrepareError>,
) -> Result<Vec<T>, PrepareError> {
    let read = |(index, item)| read(item).map_err(|error| error.of_item(list, index));
    items.iter().enumerate().map(read).collect()
}

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

    /// The error of one item of a list of the request.
    fn of_item(self, list: &str, index: usize) -> Self {
        match self {
            Self::Chat(ChatError::Request(cause)) => Self::rejected(format!("{list}[{index}]: {cause}")),
            other => other,
        }
    }

    /// The engine rejects the request.
    pub(super) fn rejected(message: impl Into<String>) -> Self {
        Self::Chat(ChatError::Request(message.into()))
    }
}
