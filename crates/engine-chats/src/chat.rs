//! A chat request, and the engine that defines its prompt.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use chat_template::{ChatRequest, Json};

use super::content_format::ContentFormat;
use super::fields::EngineFields;
use super::media::MediaCut;

/// Engines whose handling of chats is implemented.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChatEngine {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    TensorRtLlm,
}

/// A chat request.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// The fields that `transformers` reads.
    pub request: ChatRequest,
    /// The fields that only engines read.
    pub fields: EngineFields,
    /// The engine that defines the prompt. `None` renders the request as it is, as `transformers` does.
    pub engine: Option<ChatEngine>,
    /// The current time. Some prompts contain its date.
    pub now: Option<SystemTime>,
    /// The date in prompts of gpt-oss. `None` takes the day of `now` in UTC.
    pub gpt_oss_date: Option<Arc<str>>,
    /// Receives the rendering, for debugging.
    pub rendering: Option<Arc<OnceLock<Rendering>>>,
}

/// A chat request after an engine's changes: the input of the template, and how the text is tokenized.
#[derive(Debug, Clone, Default)]
pub struct PreparedChat {
    /// The request for the template.
    pub request: ChatRequest,
    /// The format of content that the engine detected.
    pub content_format: Option<ContentFormat>,
    /// The text that is tokenized by itself and appended, without a token that begins a sequence.
    pub continuation: Option<String>,
    /// Whether the tokenizer adds its special tokens.
    pub adds_special_tokens: bool,
    /// Whether the engine keeps all tokens, regardless of the request.
    pub is_whole: bool,
    /// Whether the engine retries with bare functions instead of tools when the template fails.
    pub retries_with_functions: bool,
}

/// A rendered chat.
#[derive(Debug, Clone, Default)]
pub struct Rendering {
    /// The request that the template was given.
    pub prepared: PreparedChat,
    /// The rendered text.
    pub text: String,
    /// Positions in the text that no token spans.
    pub cuts: Vec<usize>,
    /// Ranges of the text's special tokens, if spelled-out tokens elsewhere are plain text. An empty range separates two texts.
    pub tokens: Option<Vec<Range<usize>>>,
    /// The end of the known text, if the chat has media.
    pub media: Option<MediaCut>,
}

impl From<ChatRequest> for Chat {
    fn from(request: ChatRequest) -> Self {
        Self { request, ..Self::default() }
    }
}

impl Chat {
    /// Approximate size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let request = &self.request;
        let lists = [Some(&request.messages), request.tools.as_ref(), request.documents.as_ref()];
        let values = lists.into_iter().flatten().flatten().chain(&request.chat_template_kwargs);
        let template = request.chat_template.as_ref().map_or(0, String::len);
        template + values.map(Json::size).sum::<usize>()
    }
}
