//! `POST /query` and `/query_by_hash`: prefix length that each rank holds of a prompt.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::extract::State;
use flash_indexer_core::LocalHash;
use serde::Deserialize;

use super::Api;
use super::error::ApiError;
use super::fields::ModelScope;
use super::prompt::{PromptBody, PromptRequest};
use super::query_response::QueryResponse;
use flash_indexer_registry::QueryOptions;
use flash_indexer_registry::{Query, TokenPrompt};
use flash_indexer_types::hashes::{self, AnyHash};

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct TokenQuery {
    token_ids: Vec<u32>,
    #[serde(flatten)]
    scope: ModelScope,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    top_k: Option<NonZeroUsize>,
    min_score: Option<u64>,
    after: Option<AnyHash>,
}

impl PromptRequest for TokenQuery {
    type Number = u32;
    const LIST: &str = "token_ids";

    fn list(&mut self) -> &mut Vec<u32> {
        &mut self.token_ids
    }
}

pub(super) async fn by_tokens(
    State(api): State<Arc<Api>>,
    PromptBody { request: query, .. }: PromptBody<TokenQuery>,
) -> Result<QueryResponse, ApiError> {
    let key = query.scope.key()?;
    let options = QueryOptions {
        top_k: query.top_k,
        min_score: query.min_score,
        after: query.after.map(|AnyHash(cursor)| cursor),
    };
    let (lora_name, cache_salt) = (query.lora_name.as_deref(), query.cache_salt.as_deref());
    let prompt = Query::Tokens(TokenPrompt { tokens: &query.token_ids, lora_name, cache_salt });
    let answer = api.indexer.query(&key, prompt, options).await?;
    Ok(QueryResponse(answer))
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct HashQuery {
    #[serde(deserialize_with = "hashes::local_hashes")]
    block_hashes: Vec<LocalHash>,
    #[serde(flatten)]
    scope: ModelScope,
    top_k: Option<NonZeroUsize>,
    min_score: Option<u64>,
    after: Option<AnyHash>,
}

impl PromptRequest for HashQuery {
    type Number = LocalHash;
    const LIST: &str = "block_hashes";

    fn list(&mut self) -> &mut Vec<LocalHash> {
        &mut self.block_hashes
    }
}

pub(super) async fn by_hashes(
    State(api): State<Arc<Api>>,
    PromptBody { request: query, .. }: PromptBody<HashQuery>,
) -> Result<QueryResponse, ApiError> {
    let key = query.scope.key()?;
    let options = QueryOptions {
        top_k: query.top_k,
        min_score: query.min_score,
        after: query.after.map(|AnyHash(cursor)| cursor),
    };
    let answer = api.indexer.query(&key, Query::Hashes(query.block_hashes.into()), options).await?;
    Ok(QueryResponse(answer))
}
