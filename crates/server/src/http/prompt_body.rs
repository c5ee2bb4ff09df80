//! The body of requests with a prompt: tokens, a text or a chat.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use flash_indexer_prompt::normalize::{Chat, ChatEngine, Rendering};
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions, SpecialTokens};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Api;
use super::error::ApiError;
use super::extract::unfit;
use super::fields::ModelScope;
use super::prompt::PromptRequest;
use crate::engines::chat_engine;
use flash_indexer_registry::TokenPrompt;
use flash_indexer_types::{GivenInstanceId, ModelKey};

/// Every field of requests with a prompt. One struct without `flatten`, which would read fields that no endpoint has, so
/// that they may hold anything.
#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct PromptFields {
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) prompt: Option<PromptField>,
    /// Presence only: a chat is parsed from the whole body.
    pub(super) messages: Option<IgnoredAny>,
    model_name: Option<String>,
    modelname: Option<String>,
    model: Option<String>,
    tenant_id: Option<String>,
    routing_group: Option<String>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    /// Number of tokens to keep at the end; none, 0 or -1 keeps all.
    truncate_prompt_tokens: Option<i64>,
    add_special_tokens: Option<bool>,
    #[serde(alias = "pod_identifiers")]
    pub(super) pods: Option<Vec<GivenInstanceId>>,
    pub(super) top_k: Option<NonZeroUsize>,
    pub(super) detail: Option<bool>,
    pub(super) pod: Option<GivenInstanceId>,
    pub(super) ttl_ms: Option<u64>,
}

/// OpenAI's `prompt` field: a text or tokens, or a list with one of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "prompt must be a text or a list of token ids")]
pub(super) enum PromptField {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl PromptField {
    /// The prompt, if there is one only.
    fn single(self) -> Result<Self, ApiError> {
        let count = match &self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        };
        let single = match self {
            Self::Texts(texts) => texts.into_iter().next().map(Self::Text),
            Self::TokenLists(lists) => lists.into_iter().next().map(Self::Tokens),
            single => Some(single),
        };
        single.filter(|_| count == 1).ok_or_else(|| {
            ApiError::unprocessable(format!("the request does not fit: prompt has {count} prompts; send one at a time"))
        })
    }
}

impl PromptRequest for PromptFields {
    type Number = u32;
    const LIST: &str = "token_ids";

    fn list(&mut self) -> &mut Vec<u32> {
        self.token_ids.get_or_insert_default()
    }
}

/// Tokenized prompt with its model, tenant, adapter and salt.
pub(super) struct TokenizedPrompt {
    pub(super) key: ModelKey,
    pub(super) tokens: Vec<u32>,
    /// The text, if the prompt is one.
    pub(super) text: Option<String>,
    /// The engine and the rendering, if the prompt is a chat and they were asked for.
    pub(super) chat: Option<(ChatEngine, Arc<OnceLock<Rendering>>)>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

/// Whether the rendering of a chat is wanted besides its tokens.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Keep {
    Tokens,
    Rendering,
}

impl TokenizedPrompt {
    pub(super) fn as_prompt(&self) -> TokenPrompt<'_> {
        let (lora_name, cache_salt) = (self.lora_name.as_deref(), self.cache_salt.as_deref());
        TokenPrompt { tokens: &self.tokens, lora_name, cache_salt }
    }
}

impl PromptFields {
    /// Tokenizes the prompt. `body` is the body of these fields; a chat is parsed from it.
    pub(super) async fn tokenize(self, api: &Api, body: &[u8], keep: Keep) -> Result<TokenizedPrompt, ApiError> {
        let Self { model_name, modelname, model, tenant_id, routing_group, lora_name, cache_salt, .. } = self;
        let key = ModelScope { model_name, modelname, model, tenant_id, routing_group }.key()?;
        let prompts = [self.token_ids.is_some(), self.prompt.is_some(), self.messages.is_some()];
        if prompts.iter().filter(|given| **given).count() > 1 {
            return Err(ApiError::bad_request("token_ids, prompt and messages are alternatives: give one of them"));
        }
        let keep_last = match self.truncate_prompt_tokens {
            None | Some(-1 | 0) => None,
            Some(kept) => Some(usize::try_from(kept).map_err(|_| {
                ApiError::bad_request(format!("truncate_prompt_tokens is {kept}; send a number >= 0, or -1"))
            })?),
        };
        let mut options = PromptOptions { keep_last, ..PromptOptions::default() };
        let (mut text, mut chat) = (None, None);
        let tokens = match (self.token_ids, self.prompt.map(PromptField::single).transpose()?) {
            (Some(mut tokens), _) | (None, Some(PromptField::Tokens(mut tokens))) => {
                let cut = keep_last.map_or(0, |kept| tokens.len().saturating_sub(kept));
                tokens.drain(..cut);
                tokens
            }
            (None, Some(PromptField::Text(given))) => {
                if self.add_special_tokens == Some(false) {
                    options.special_tokens = SpecialTokens::Omitted;
                }
                text = (keep == Keep::Rendering).then(|| given.clone());
                api.indexer.tokens(&key.model_name, Prompt::Text(given), options).await?
            }
            (None, _) => {
                let engine = chat_engine(api.indexer.engine_of(&key));
                let mut prompt = Chat::from_body(body, engine).map_err(|error| unfit(&error))?;
                if keep == Keep::Rendering {
                    let slot = Arc::default();
                    prompt.rendering = Some(Arc::clone(&slot));
                    chat = Some((engine, slot));
                }
                api.indexer.tokens(&key.model_name, Prompt::Chat(Box::new(prompt)), options).await?
            }
        };
        Ok(TokenizedPrompt { key, tokens, text, chat, lora_name, cache_salt })
    }

    /// Whether the request has a prompt in any form.
    pub(super) fn has_prompt(&self) -> bool {
        self.token_ids.is_some() || self.prompt.is_some() || self.messages.is_some()
    }
}
