//! Reading and rendering of a chat, by the rules of its engine.

use std::time::SystemTime;

use chat_template::{ChatError, ChatRequest, ChatTemplates, Effort, Messages, check_rendered};

use super::body;
use super::chat::{Chat, ChatEngine, PreparedChat, Rendering};
use super::error::PrepareError;
use super::families::CodedFamily;
use super::media::{Media, MediaCut, common_bytes};
use super::{sglang, trtllm, vllm};

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

    /// Renders the chat as the engine does, within the limits of an effort.
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
                // No part of the prompt is certain.
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
}
