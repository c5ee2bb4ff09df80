//! The body of requests with a prompt: tokens, a text or a chat.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use flash_indexer_api::{ModelScope, PartialPrompt, PromptFields, json_error};
use flash_indexer_engine_chats::{Chat, ChatEngine, CompletionPrompt, LaxBool, LaxInteger, Rendering, TruncationSide};
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions, SpecialTokens};
use flash_indexer_registry::TokenPrompt;
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::ModelKey;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use super::extract::{Caller, unfit};
use super::fields::CheckedScope;
use crate::engines::{chat_engine, media_reason};

/// The prompt of a completion, if there is only one.
fn single(prompt: CompletionPrompt) -> Result<CompletionPrompt, ApiError> {
    let (count, first) = match prompt {
        CompletionPrompt::Texts(texts) => (texts.len(), texts.into_iter().next().map(CompletionPrompt::Text)),
        CompletionPrompt::TokenLists(lists) => (lists.len(), lists.into_iter().next().map(CompletionPrompt::Tokens)),
        single => (1, Some(single)),
    };
    first.filter(|_| count == 1).ok_or_else(|| {
        ApiError::unprocessable(format!("the request does not fit: prompt has {count} prompts; send one at a time"))
    })
}

/// Tokenized prompt with its model, tenant, adapter and salt.
pub(crate) struct TokenizedPrompt {
    pub(crate) key: ModelKey,
    pub(super) tokens: Vec<u32>,
    /// Type of the content part before which the tokens end.
    media: Option<&'static str>,
    /// The text, if the prompt is one.
    pub(super) text: Option<String>,
    /// The engine and the rendering, if the prompt is a chat and they were asked for.
    pub(super) chat: Option<(ChatEngine, Arc<OnceLock<Rendering>>)>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

/// Whether the rendering of a chat is returned with its tokens.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum PromptOutput {
    Tokens,
    Rendering,
}

impl TokenizedPrompt {
    pub(crate) fn as_prompt(&self) -> TokenPrompt<'_> {
        let (lora_name, cache_salt) = (self.lora_name.as_deref(), self.cache_salt.as_deref());
        TokenPrompt { tokens: &self.tokens, lora_name, cache_salt }
    }

    /// The part of the prompt after its known blocks, if it has one.
    pub(super) fn partial(&self, known_blocks: Option<usize>) -> Option<PartialPrompt> {
        let reason = media_reason(self.media?);
        Some(PartialPrompt { from_block: known_blocks, from_token: self.tokens.len(), reason })
    }
}

/// A value as the engines' request models read it.
pub(super) fn lax<T: DeserializeOwned>(value: Option<Value>, field: &str) -> Result<Option<T>, ApiError> {
    value.map(T::deserialize).transpose().map_err(|error: serde_json::Error| {
        ApiError::unprocessable(format!("the request does not fit: {field}: {}", json_error(&error)))
    })
}

/// Tokenizes a prompt. `body` is the body of the fields; a chat is parsed from it.
pub(super) async fn tokenize(
    fields: PromptFields,
    Caller { api, grant, client }: &Caller,
    body: &[u8],
    output: PromptOutput,
) -> Result<TokenizedPrompt, ApiError> {
    if fields.after.is_some() {
        return Err(ApiError::whole_prompt_needed());
    }
    let PromptFields { model_name, modelname, model, tenant_id, routing_group, lora_name, cache_salt, .. } = fields;
    let key = ModelScope { model_name, modelname, model, tenant_id, routing_group }.key(grant)?;
    let prompts = [fields.token_ids.is_some(), fields.prompt.is_some(), fields.messages.is_some()];
    if prompts.iter().filter(|given| **given).count() > 1 {
        return Err(ApiError::bad_request("token_ids, prompt and messages are alternatives: give one of them"));
    }
    let kept = lax(fields.truncate_prompt_tokens, "truncate_prompt_tokens")?;
    let keep_last = match kept.map(|LaxInteger(kept)| kept) {
        None | Some(-1) => None,
        Some(kept) => Some(usize::try_from(kept).map_err(|_| {
            ApiError::bad_request(format!("truncate_prompt_tokens is {kept}; send a number >= 0, or -1"))
        })?),
    };
    // Checked even where it has no effect, as engines do.
    let _: Option<LaxInteger> = lax(fields.top_k, "top_k")?;
    let engine = chat_engine(api.indexer.engine_of(&key));
    // SGLang has none of these fields. Others are checked for tokens too, where one has no effect, as engines do.
    let is_known = engine != ChatEngine::Sglang || fields.token_ids.is_some();
    let keep_last = keep_last.filter(|_| is_known);
    let add_special_tokens = lax(fields.add_special_tokens.filter(|_| is_known), "add_special_tokens")?;
    let truncation_side = lax(fields.truncation_side.filter(|_| is_known), "truncation_side")?;
    let mut options = PromptOptions { engine: Some(engine), keep_last, truncation_side, ..PromptOptions::default() };
    let (mut text, mut chat, mut media) = (None, None, None);
    let prompt = lax(fields.prompt, "prompt")?.map(single).transpose()?;
    if engine == ChatEngine::Vllm && prompt.is_some() && fields.suffix.is_some() {
        return Err(ApiError::unsupported(
            "failed to make the prompt of a completion with a suffix: only the engine knows its format; send token_ids",
        ));
    }
    let given = match (&fields.token_ids, &prompt) {
        (Some(tokens), _) | (None, Some(CompletionPrompt::Tokens(tokens))) => tokens.len(),
        _ => 0,
    };
    api.access.admit_query(&key, given)?;
    let model = (&*api.indexer, &*key.model_name);
    let tokens = match (fields.token_ids, prompt) {
        (Some(mut tokens), _) | (None, Some(CompletionPrompt::Tokens(mut tokens))) => {
            let cut = keep_last.map_or(0, |kept| tokens.len().saturating_sub(kept));
            match truncation_side {
                Some(TruncationSide::Right) => tokens.truncate(tokens.len() - cut),
                Some(TruncationSide::Left) | None => drop(tokens.drain(..cut)),
            }
            tokens
        }
        (None, Some(CompletionPrompt::Text(given))) => {
            if add_special_tokens == Some(LaxBool(false)) {
                options.special_tokens = SpecialTokens::Omitted;
            }
            text = (output == PromptOutput::Rendering).then(|| given.clone());
            let ids = api.bodies.texts.tokenize(model, *client, Prompt::Text(given), options).await?.ids;
            api.access.charge(&key, ids.len());
            ids
        }
        (None, _) => {
            let mut prompt = {
                let _parse = stage(Stage::Parse);
                Chat::from_body(body, engine, SystemTime::now()).map_err(|error| unfit(&error, &json_error(&error)))?
            };
            if output == PromptOutput::Rendering {
                let slot = Arc::default();
                prompt.rendering = Some(Arc::clone(&slot));
                chat = Some((engine, slot));
            }
            let tokenized = api.bodies.texts.tokenize(model, *client, Prompt::Chat(Box::new(prompt)), options).await?;
            api.access.charge(&key, tokenized.ids.len());
            media = tokenized.media;
            tokenized.ids
        }
    };
    Ok(TokenizedPrompt { key, tokens, media, text, chat, lora_name, cache_salt })
}
