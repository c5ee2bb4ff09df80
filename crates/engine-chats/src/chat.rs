//! A chat request with the engine whose prompt is wanted.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use chat_template::{ChatError, ChatRequest, ChatTemplates, Effort, Json, Messages, check_rendered};

use super::body;
use super::content_format::ContentFormat;
use super::error::PrepareError;
use super::families::CodedFamily;
use super::fields::EngineFields;
use super::media::{Media, MediaCut, common_bytes};
use super::{sglang, trtllm, vllm};

/// Engines whose handling of chats is known.
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
    /// The fields that `transformers` knows.
    pub request: ChatRequest,
    /// The fields that only engines know.
    pub fields: EngineFields,
    /// The engine whose prompt is wanted. `None` renders the request as it is, as `transformers` does.
    pub engine: Option<ChatEngine>,
    /// The current time, of which some prompts have the date.
    pub now: Option<SystemTime>,
    /// The date in prompts of gpt-oss. `None` takes the day of `now` in UTC.
    pub gpt_oss_date: Option<Arc<str>>,
    /// Receives the rendering, for debugging.
    pub rendering: Option<Arc<OnceLock<Rendering>>>,
}

/// A chat request after an engine's changes: what the template is given, and how the text becomes tokens.
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
    /// Whether the engine tries again with bare functions in place of tools when the template fails.
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
    /// Where the text has special tokens, if what spells out one elsewhere is text. An empty range separates two texts.
    pub tokens: Option<Vec<Range<usize>>>,
    /// Where the text stops being known, if the chat has media.
    pub media: Option<MediaCut>,
}

impl From<ChatRequest> for Chat {
    fn from(request: ChatRequest) -> Self {
        Self { request, ..Self::default() }
    }
}

impl Chat {
    /// Reads the body of an OpenAI chat request at a time. Fields that no prompt depends on are ignored with any value.
    ///
    /// # Errors
    ///
    /// If the body is not JSON, or a field has another type.
    pub fn from_body(body: &[u8], engine: ChatEngine, now: SystemTime) -> Result<Self, serde_json::Error> {
        let (request, fields) = body::read(body, engine)?;
        Ok(Self { request, fields, engine: Some(engine), now: Some(now), gpt_oss_date: None, rendering: None })
    }

    /// Renders the chat as the engine does.
    ///
    /// # Errors
    ///
    /// If the engine rejects the request, the template is missing or broken or fails, or the prompt cannot be known.
    pub fn render(&self, templates: &ChatTemplates) -> Result<Rendering, PrepareError> {
        self.render_within(templates, Effort::Full)
    }

    /// Renders the chat as the engine does, if that takes no more than an effort.
    ///
    /// # Errors
    ///
    /// Those of [`Self::render`]. [`PrepareError::is_too_expensive`] is true if the effort was too small.
    pub fn render_within(&self, templates: &ChatTemplates, effort: Effort) -> Result<Rendering, PrepareError> {
        let media = Media::as_engine();
        let mut rendering = self.render_with(templates, &media, effort)?;
        if let Some(first) = media.first() {
            let other = first.is_placed.then(|| self.render_with(templates, &Media::as_private_character(), effort));
            let bytes = match other {
                Some(Ok(other)) => common_bytes(&rendering.text, &other.text),
                Some(Err(error)) if effort == Effort::Brief && error.is_too_expensive() => return Err(error),
                // Nothing is known for certain.
                Some(Err(_)) | None => 0,
            };
            rendering.media = Some(MediaCut { kind: first.kind, bytes });
        }
        self.checked(rendering)
    }

    /// Renders the chat as the engine's code does for a family of models. `has_token` is whether the model's vocabulary has a
    /// token.
    ///
    /// # Errors
    ///
    /// If the engine rejects the request, or the prompt cannot be known.
    pub fn render_by_code(
        &self,
        family: CodedFamily,
        has_token: &dyn Fn(&str) -> bool,
    ) -> Result<Rendering, PrepareError> {
        self.checked(family.encoder()?.render(self, has_token)?)
    }

    /// Checks a rendering, and copies it for debugging.
    fn checked(&self, rendering: Rendering) -> Result<Rendering, PrepareError> {
        check_rendered(&rendering.text)?;
        check_rendered(rendering.prepared.continuation.as_deref().unwrap_or_default())?;
        if let Some(slot) = &self.rendering {
            // A chat is rendered once.
            let _ = slot.set(rendering.clone());
        }
        Ok(rendering)
    }

    fn render_with(&self, templates: &ChatTemplates, media: &Media, effort: Effort) -> Result<Rendering, PrepareError> {
        let mut prepared = self.prepare(templates, media)?;
        let messages = if self.engine.is_some() { Messages::AsGiven } else { Messages::Completed };
        let render = |request: &ChatRequest| templates.render_within(request, messages, effort);
        let text = match render(&prepared.request) {
            Err(error @ ChatError::TooExpensive { .. }) => return Err(error.into()),
            Err(_) if prepared.retries_with_functions => {
                sglang::unwrap_functions(&mut prepared.request);
                render(&prepared.request)?
            }
            rendered => rendered?,
        };
        Ok(Rendering { prepared, text, ..Rendering::default() })
    }

    /// Changes the request as the engine does.
    fn prepare(&self, templates: &ChatTemplates, media: &Media) -> Result<PreparedChat, PrepareError> {
        match self.engine {
            None => Ok(PreparedChat { request: self.request.clone(), ..PreparedChat::default() }),
            Some(ChatEngine::Vllm) => vllm::prepare(&self.request, &self.fields, templates, media),
            Some(ChatEngine::Sglang) => sglang::prepare(&self.request, &self.fields, templates, media),
            Some(ChatEngine::TensorRtLlm) => trtllm::prepare(&self.request, &self.fields, templates, media),
        }
    }

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
