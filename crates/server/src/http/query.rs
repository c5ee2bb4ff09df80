//! `POST /query` and `/query_by_hash`: prefix length that each rank holds of a prompt.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use flash_indexer_core::{LocalHash, Tier};
use serde::Serialize;

use super::Api;
use super::error::ApiError;
use super::fields::CheckedScope;
use super::prompt::{PromptBody, PromptRequest};
use flash_indexer_api::{HashQuery, TokenQuery};
use flash_indexer_registry::{Answer, QueryOptions};
use flash_indexer_registry::{Query, TokenPrompt};
use flash_indexer_types::Trust;

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
) -> Result<Json<QueryResponse>, ApiError> {
    let key = query.scope.key()?;
    let options = QueryOptions { top_k: query.top_k, min_score: query.min_score };
    let (lora_name, cache_salt) = (query.lora_name.as_deref(), query.cache_salt.as_deref());
    let prompt = Query::Tokens(TokenPrompt { tokens: &query.token_ids, lora_name, cache_salt });
    let answer = api.indexer.query(&key, prompt, options).await?;
    Ok(Json(QueryResponse::of(&answer)))
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
) -> Result<Json<QueryResponse>, ApiError> {
    let key = query.scope.key()?;
    let options = QueryOptions { top_k: query.top_k, min_score: query.min_score };
    let answer = api.indexer.query(&key, Query::Hashes(query.block_hashes.into()), options).await?;
    Ok(Json(QueryResponse::of(&answer)))
}

type ByRank<T> = BTreeMap<u32, T>;

/// Response of a query, by instance and then by rank. Scores are in tokens.
#[derive(Serialize, Default)]
pub(super) struct QueryResponse {
    scores: BTreeMap<String, ByRank<u64>>,
    frequencies: Vec<u32>,
    tree_sizes: BTreeMap<String, ByRank<usize>>,
    instances: BTreeMap<String, InstanceScores>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<&'static str>,
}

#[derive(Serialize)]
struct InstanceScores {
    longest_matched: u64,
    gpu: u64,
    dp: ByRank<u64>,
    cpu: u64,
    disk: u64,
    trust: Trust,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

impl QueryResponse {
    fn of(answer: &Answer) -> Self {
        let (frequencies, store) = (answer.frequencies.clone(), answer.store.as_str());
        let mut response = Self { frequencies, store, ..Self::default() };
        for rank in &answer.ranks {
            let (key, tokens) = (rank.instance.as_key(), rank.tokens);
            let device = tokens[Tier::Device];
            response.scores.entry(key.to_owned()).or_default().insert(rank.dp_rank.0, device);
            response.tree_sizes.entry(key.to_owned()).or_default().insert(rank.dp_rank.0, rank.blocks_held);
            let instance = response.instances.entry(key.to_owned()).or_insert_with(|| InstanceScores {
                longest_matched: 0,
                gpu: 0,
                dp: ByRank::new(),
                cpu: 0,
                disk: 0,
                trust: rank.trust,
                partial: false,
            });
            instance.longest_matched = instance.longest_matched.max(tokens[Tier::External]);
            instance.gpu = instance.gpu.max(device);
            instance.dp.insert(rank.dp_rank.0, device);
            instance.cpu = instance.cpu.max(tokens[Tier::Host]);
            instance.disk = instance.disk.max(tokens[Tier::Disk]);
            instance.trust = instance.trust.max(rank.trust);
            instance.partial |= rank.partial;
        }
        response
    }
}
