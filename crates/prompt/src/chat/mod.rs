//! Placeholder.
use std::path::Path;

/// A chat.
#[derive(Debug, Clone, Default, serde::Deserialize)]
pub struct ChatRequest {
    /// The last so many tokens are kept.
    pub truncate_prompt_tokens: Option<usize>,
}

/// What is wrong with a template or a request.
#[derive(Debug, thiserror::Error)]
#[error("placeholder")]
pub struct ChatError;

/// Templates of a model.
#[derive(Debug)]
pub struct ChatTemplates;

impl ChatTemplates {
    /// Reads a model's own templates.
    pub fn read(_: &Path) -> Result<Option<Self>, ChatError> {
        Ok(None)
    }

    /// Renders.
    pub fn render(&self, _: &ChatRequest) -> Result<String, ChatError> {
        Err(ChatError)
    }
}
