//! `GET /store`: the index shared with other replicas through the store.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use flash_indexer_api::{PublishedRank, StoreState, StoreStatus};
use flash_indexer_redis::StoreReport;

use super::Api;
use super::error::ApiError;

/// State of the shared store as responses name it.
pub(super) fn status(report: &StoreReport) -> StoreStatus {
    if report.is_connected { StoreStatus::Ok } else { StoreStatus::Unavailable }
}

pub(super) async fn show(State(api): State<Arc<Api>>) -> Result<Json<StoreState>, ApiError> {
    let (Some(report), Some(fleet)) = (api.indexer.store_report(), api.indexer.fleet()) else {
        return Err(ApiError::not_found(
            "no shared store is configured; start the service with --redis to share the index",
        ));
    };
    let (now, mut ranks) = (Instant::now(), Vec::new());
    // Models come in the order of their names.
    for (key, model) in fleet.models() {
        let mut listed: Vec<_> = model.ranks.values().collect();
        listed.sort_by_key(|rank| (&rank.instance, rank.dp_rank));
        ranks.extend(listed.into_iter().map(|rank| PublishedRank {
            instance_id: rank.instance.clone(),
            dp_rank: rank.dp_rank.0,
            model_name: key.model_name.clone(),
            tenant_id: key.tenant_id.clone(),
            block_size: model.block_size.tokens(),
            trust: rank.trust_at(now),
            blocks: rank.blocks,
            publisher: rank.publisher.to_string(),
        }));
    }
    Ok(Json(StoreState {
        status: status(&report),
        url: report.url,
        last_error: Some(report.last_error).filter(|error| !error.is_empty()),
        publisher: report.publisher.to_string(),
        published_ranks: report.published.published_ranks,
        unfinished_ranks: report.published.unfinished_ranks,
        waiting_changes: report.published.waiting_changes,
        ranks,
    }))
}
