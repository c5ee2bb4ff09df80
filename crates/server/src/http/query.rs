//! `POST /query`, `/query_by_hash` and `/query_tiered_by_hash`: length of a prompt's prefix that each rank holds.

use std::num::NonZeroUsize;

use axum::Json;
use axum::response::Response;
use flash_indexer_api::{HashQuery, TieredQueryResponse, TokenQuery};
use flash_indexer_registry::{Answer, Query, QueryError, QueryOptions, TokenPrompt};
use flash_indexer_types::hashes::AnyHash;

use super::error::ApiError;
use super::extract::Caller;
use super::fields::CheckedScope;
use super::prompt::{ParsedRequest, PromptBody};
use super::query_response::QueryResponse;
use super::tiered_response::tiered_response;
use crate::access::tokens_of_blocks;

pub(super) async fn by_tokens(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    body.answer(async move |ParsedRequest { request, .. }| answer_tokens(&caller, request).await).await
}

async fn answer_tokens(Caller { api, grant, .. }: &Caller, query: TokenQuery) -> Result<QueryResponse, ApiError> {
    let key = query.scope.key(grant)?;
    api.access.admit_query(&key, query.token_ids.len())?;
    let options = options_of(query.top_k, query.min_score, query.after);
    let (lora_name, cache_salt) = (query.lora_name.as_deref(), query.cache_salt.as_deref());
    let prompt = Query::Tokens(TokenPrompt { tokens: &query.token_ids, lora_name, cache_salt });
    let answer = api.indexer.query(&key, prompt, options).await?;
    Ok(QueryResponse(answer))
}

pub(super) async fn by_hashes(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    let answer = async move |ParsedRequest { request, .. }| {
        Ok::<_, ApiError>(QueryResponse(answer_hashes(&caller, request).await??))
    };
    body.answer(answer).await
}

/// Dynamo's selection service fails every request of its clients after an error, so a model without ranks has no matches.
pub(super) async fn by_hashes_tiered(caller: Caller, body: PromptBody) -> Result<Response, ApiError> {
    let answer = async move |ParsedRequest { request, .. }| match answer_hashes(&caller, request).await? {
        Ok(answer) => Ok(Json(tiered_response(&answer))),
        Err(QueryError::UnknownModel(_) | QueryError::Recovering(_)) => Ok(Json(TieredQueryResponse::default())),
        Err(error) => Err(ApiError::from(error)),
    };
    body.answer(answer).await
}

/// The answer to a query of a permitted tenant whose limits admit it.
async fn answer_hashes(
    Caller { api, grant, .. }: &Caller,
    query: HashQuery,
) -> Result<Result<Answer, QueryError>, ApiError> {
    let key = query.scope.key(grant)?;
    api.access.admit_query(&key, tokens_of_blocks(&api.indexer, &key, query.block_hashes.len()))?;
    let options = options_of(query.top_k, query.min_score, query.after);
    Ok(api.indexer.query(&key, Query::Hashes(query.block_hashes.into()), options).await)
}

fn options_of(top_k: Option<NonZeroUsize>, min_score: Option<u64>, after: Option<AnyHash>) -> QueryOptions {
    QueryOptions { top_k, min_score, after: after.map(|AnyHash(cursor)| cursor) }
}
