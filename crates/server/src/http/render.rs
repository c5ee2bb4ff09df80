//! `/render` and `/tokenize`: the rendering and the tokens of a prompt, for debugging.

use axum::Json;
use axum::response::Response;
use chat_template::Json as TemplateJson;
use flash_indexer_api::{self as api, PromptFields};
use flash_indexer_engine_chats::{ContentFormat, PreparedChat};
use serde::Serialize;

use super::error::ApiError;
use super::extract::Caller;
use super::prompt::{ParsedRequest, PromptBody};
use super::prompt_body::{self, PromptOutput, TokenizedPrompt};
use crate::engines::engine_name;

pub(super) async fn tokenize(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    let answer = async move |prompted| {
        let prompt = read(&caller, prompted, PromptOutput::Tokens).await?;
        let partial = prompt.partial(None);
        Ok(Json(api::TokenizedPrompt { count: prompt.tokens.len(), tokens: prompt.tokens, partial }))
    };
    body.answer(answer).await
}

/// Input of the model's template, and the text that it made.
#[derive(Serialize)]
pub(super) struct RenderResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<TemplateJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<TemplateJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<TemplateJson>,
    prompt: Option<String>,
    /// A text that is tokenized separately and appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation: Option<String>,
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<api::PartialPrompt>,
}

pub(super) async fn render(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    body.answer(async move |prompted| answer_rendering(&caller, prompted).await).await
}

async fn answer_rendering(
    caller: &Caller,
    prompted: ParsedRequest<PromptFields>,
) -> Result<Json<RenderResponse>, ApiError> {
    let prompt = read(caller, prompted, PromptOutput::Rendering).await?;
    let partial = prompt.partial(None);
    let TokenizedPrompt { tokens, text, chat, .. } = prompt;
    let (engine, rendering) = chat.map(|(engine, slot)| (engine, slot.get().cloned())).unzip();
    // A tokenizer service renders by itself and does not return the text.
    let rendering = rendering.flatten();
    let (prepared, rendered) = rendering.map(|rendering| (rendering.prepared, rendering.text)).unzip();
    let PreparedChat { request, content_format, continuation, .. } = prepared.unwrap_or_default();
    Ok(Json(RenderResponse {
        engine: engine.map(engine_name),
        content_format: content_format.map(ContentFormat::name),
        messages: Some(shown(&request.messages)).filter(|messages| !messages.is_empty()),
        tools: request.tools.as_deref().map(shown),
        chat_template_kwargs: request.chat_template_kwargs.as_ref().map(TemplateJson::shown),
        prompt: rendered.or(text),
        continuation,
        count: tokens.len(),
        partial,
    }))
}

fn shown(values: &[TemplateJson]) -> Vec<TemplateJson> {
    values.iter().map(TemplateJson::shown).collect()
}

async fn read(
    caller: &Caller,
    ParsedRequest { request, json }: ParsedRequest<PromptFields>,
    output: PromptOutput,
) -> Result<TokenizedPrompt, ApiError> {
    if !request.has_prompt() {
        return Err(ApiError::missing_field("`messages`, `prompt` or `token_ids`"));
    }
    prompt_body::tokenize(request, caller, &json, output).await
}
