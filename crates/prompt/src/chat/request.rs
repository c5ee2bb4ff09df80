//! What a chat is asked to be rendered from.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected};

use super::json::Json;

/// An OpenAI chat request, as far as it has a say in the prompt. Unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ChatRequest {
    /// The conversation, oldest message first. Keys that are `null` count as missing.
    pub messages: Vec<Json>,
    /// Tools as JSON schemas. An empty list is not the same as none.
    #[serde(default)]
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval-augmented generation.
    #[serde(default)]
    pub documents: Option<Vec<Json>>,
    /// A template, or the name of one of the model's.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// Whether the prompt ends with the start of an answer. When missing it does, as in engines, unless a message is continued.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the prompt ends inside the last message.
    #[serde(default)]
    pub continue_final_message: Continuation,
    /// Further variables of the template. They come before fields of the same name.
    #[serde(default)]
    pub chat_template_kwargs: Option<Json>,
    /// Accepted, because clients send it; it changes nothing in the text.
    #[serde(default)]
    pub return_assistant_tokens_mask: Option<bool>,
    /// How many tokens of the prompt's end count. The text is rendered whole.
    #[serde(default)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// What is continued of the last message: in JSON `false`, `true` or a field's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Continuation {
    /// Nothing.
    #[default]
    Nothing,
    /// The content.
    Content,
    /// Another field, such as `reasoning_content`.
    Field(String),
}

impl Continuation {
    /// The field that is continued.
    pub(super) fn field(&self) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Content => Some("content"),
            Self::Field(field) => Some(field),
        }
    }

    pub(super) fn from_json(value: &Json) -> Option<Self> {
        Some(match value.0.as_str() {
            Some("") => Self::Nothing,
            Some(field) => Self::Field(field.to_owned()),
            None if value.is_null() => Self::Nothing,
            None => match bool::try_from(value.0.clone()).ok()? {
                true => Self::Content,
                false => Self::Nothing,
            },
        })
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
