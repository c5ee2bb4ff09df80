//! Fields of a chat request that only engines read.

use chat_template::Json;
use serde::Deserialize;

/// The fields of an OpenAI chat request that change the prompt in an engine, and are unknown to `transformers`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct EngineFields {
    /// The tool that the model must call.
    pub tool_choice: Option<Json>,
    /// The effort that the model spends on reasoning.
    pub reasoning_effort: Option<Json>,
    /// SGLang: the effort, and whether to reason.
    pub reasoning: Option<Json>,
    /// Whether the tokenizer adds its special tokens in addition to those in the template.
    pub add_special_tokens: Option<bool>,
    /// vLLM: the side at which `truncate_prompt_tokens` leaves tokens out.
    pub truncation_side: Option<TruncationSide>,
}

/// The side at which truncation leaves tokens out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TruncationSide {
    /// The last tokens are kept.
    Left,
    /// The first tokens are kept.
    Right,
}

impl TryFrom<String> for TruncationSide {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "left" => Ok(Self::Left),
            "right" => Ok(Self::Right),
            _ => Err(format!("{name:?} is not a side: write \"left\" or \"right\"")),
        }
    }
}
