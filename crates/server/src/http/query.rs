//! `POST /query`, `/query_by_hash` and `/query_tiered_by_hash`: length of a prompt's prefix that each rank holds.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use flash_indexer_access::Grant;
use flash_indexer_api::{HashQuery, TieredQueryResponse, TokenQuery};
use flash_indexer_registry::{Answer, Query, QueryError, QueryOptions, TokenPrompt};
use flash_indexer_types::ModelKey;
use flash_indexer_types::hashes::AnyHash;

use super::Api;
use super::error::ApiError;
use super::extract::Access;
use super::fields::CheckedScope;
use super::prompt::{ParsedRequest, PromptBody};
use super::query_response::QueryResponse;
use super::tiered_response::tiered_response;
use crate::access::tokens_of_blocks;

pub(super) async fn by_tokens(
    State(api): State<Arc<Api>>,
    Access(grant): Access,
    body: PromptBody,
) -> Result<Response, ApiError> {
    body.answer(async move |ParsedRequest { request, .. }| answer_tokens(&api, &grant, request).await).await
}

async fn answer_tokens(api: &Api, grant: &Arc<Grant>, query: TokenQuery) -> Result<QueryResponse, ApiError> {
    let key = query.scope.key(grant)?;
    api.access.admit_query(&key, query.token_ids.len())?;
    let options = options_of(query.top_k, query.min_score, query.after);
    let (lora_name, cache_salt) = (query.lora_name.as_deref(), query.cache_salt.as_deref());
    let prompt = Query::Tokens(TokenPrompt { tokens: &query.token_ids, lora_name, cache_salt });
    let answer = api.indexer.query(&key, prompt, options).await?;
    Ok(QueryResponse(answer))
}

pub(super) async fn by_hashes(
    State(api): State<Arc<Api>>,
    Access(grant): Access,
    body: PromptBody,
) -> Result<Response, ApiError> {
    let answer = async move |ParsedRequest { request, .. }| {
        let (key, query) = admit_hashes(&api, &grant, request)?;
        Ok::<_, ApiError>(QueryResponse(query_hashes(&api, &key, query).await?))
    };
    body.answer(answer).await
}

/// Dynamo's selection service fails every request of its clients after an error, so a model without ranks has no matches.
pub(super) async fn by_hashes_tiered(
    State(api): State<Arc<Api>>,
    Access(grant): Access,
    body: PromptBody,
) -> Result<Response, ApiError> {
    let answer = async move |ParsedRequest { request, .. }| {
        let (key, query) = admit_hashes(&api, &grant, request)?;
        match query_hashes(&api, &key, query).await {
            Ok(answer) => Ok(Json(tiered_response(&answer))),
            Err(QueryError::UnknownModel(_) | QueryError::Recovering(_)) => Ok(Json(TieredQueryResponse::default())),
            Err(error) => Err(ApiError::from(error)),
        }
    };
    body.answer(answer).await
}

/// The model of a query that the limits of its tenant admit.
fn admit_hashes(api: &Api, grant: &Arc<Grant>, mut query: HashQuery) -> Result<(ModelKey, HashQuery), ApiError> {
    let key = std::mem::take(&mut query.scope).key(grant)?;
    api.access.admit_query(&key, tokens_of_blocks(&api.indexer, &key, query.block_hashes.len()))?;
    Ok((key, query))
}

async fn query_hashes(api: &Api, key: &ModelKey, query: HashQuery) -> Result<Answer, QueryError> {
    let options = options_of(query.top_k, query.min_score, query.after);
    api.indexer.query(key, Query::Hashes(query.block_hashes.into()), options).await
}

fn options_of(top_k: Option<NonZeroUsize>, min_score: Option<u64>, after: Option<AnyHash>) -> QueryOptions {
    QueryOptions { top_k, min_score, after: after.map(|AnyHash(cursor)| cursor) }
}
