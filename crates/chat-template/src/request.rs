//! The chat request.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected};

use super::json::Json;

/// The fields of an OpenAI chat request that affect the prompt. Deserialization ignores unknown fields.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ChatRequest {
    /// The conversation, oldest message first. Keys that are `null` count as missing.
    pub messages: Vec<Json>,
    /// Tools as JSON schemas. An empty list differs from `None`.
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval-augmented generation.
    pub documents: Option<Vec<Json>>,
    /// A template's source, or the name of one of the model's templates.
    pub chat_template: Option<String>,
    /// Whether the prompt ends with the start of an answer. `None` means true unless a message is continued, as in
    /// vLLM and SGLang.
    pub add_generation_prompt: Option<bool>,
    /// Whether the prompt ends inside the last message.
    #[serde(default)]
    pub continue_final_message: Continuation,
    /// Further variables of the template. They take precedence over fields of the same name.
    pub chat_template_kwargs: Option<Json>,
    /// Accepted because clients send it. It does not change the text, and excludes a continuation.
    pub return_assistant_tokens_mask: Option<bool>,
    /// Number of tokens to keep from the end of the prompt, for the caller that tokenizes it. Rendering ignores it.
    pub truncate_prompt_tokens: Option<i64>,
}

/// The field of the final message that the prompt continues. In JSON: `false`, `true` or the field's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Continuation {
    /// The prompt continues no message.
    #[default]
    Nothing,
    /// The field `content`.
    Content,
    /// Another field, such as `reasoning_content`.
    Field(String),
}

impl Continuation {
    /// The name of the continued field.
    pub(super) fn field(&self) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Content => Some("content"),
            Self::Field(field) => Some(field),
        }
    }

    pub(super) fn from_json(value: &Json) -> Option<Self> {
        match value.as_str() {
            Some("") => Some(Self::Nothing),
            Some(field) => Some(Self::Field(field.to_owned())),
            // Values that are false in Python.
            None if !value.is_true() => Some(Self::Nothing),
            None => value.as_bool().map(|_| Self::Content),
        }
    }
}

impl<'de> Deserialize<'de> for Continuation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        Self::from_json(&value).ok_or_else(|| {
            D::Error::invalid_value(Unexpected::Other(&value.to_text()), &"a boolean or the name of a message's field")
        })
    }
}
