//! `/ui`: the dashboard's files, and the stream of live figures.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::Redirect;
use flash_indexer_access::Scope;
use flash_indexer_dashboard::{Asset, LiveEvents, PAGE, SUBSCRIBERS_MAX, Sample, asset};
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::Limit;

use super::Api;
use super::error::ApiError;
use crate::access::Permission;

/// Paths of the requests that count as queries.
const QUERY_PATHS: [&str; 5] =
    ["/query", "/query_by_hash", "/query_tiered_by_hash", "/score_completions", "/score_chat_completions"];
/// gRPC methods that count as queries.
const QUERY_METHODS: [&str; 2] = ["Query", "QueryStream"];

pub(super) async fn show() -> Asset {
    PAGE
}

/// The page refers to its files relative to the path without the slash.
pub(super) async fn without_slash() -> Redirect {
    Redirect::permanent("../ui")
}

pub(super) async fn file(Path(name): Path<String>) -> Result<Asset, ApiError> {
    asset(&name).ok_or_else(|| ApiError::not_found("the dashboard has no such file; open /ui"))
}

/// Permission that [`events`] requires, when the request is made and before each sample.
pub(super) const EVENTS_PERMISSION: Permission = Permission::AllTenants(Scope::Query);

/// `GET /ui/events`: samples of counters, one each second, until the client closes the connection, its token is removed or
/// expires, or the service stops.
pub(super) async fn events(State(api): State<Arc<Api>>, headers: HeaderMap) -> Result<LiveEvents, ApiError> {
    let authorization = headers.get(AUTHORIZATION).map(|value| value.as_bytes().to_vec());
    let access = Arc::clone(&api.access);
    let is_permitted = move || access.admit(authorization.as_deref(), EVENTS_PERMISSION).is_ok();
    api.live.subscribe(is_permitted).map_err(|_| {
        api.indexer.metrics().limit_reached(Limit::DashboardSubscribers);
        ApiError::busy(format!(
            "failed to follow the live figures: {SUBSCRIBERS_MAX} dashboards follow them; close one, or retry later"
        ))
    })
}

/// Reads the counters of a sample. Linear in the models.
pub(crate) fn sample(indexer: &Indexer) -> Sample {
    let queries = indexer.query_totals();
    let latencies = indexer.metrics().latencies(&QUERY_PATHS, &QUERY_METHODS);
    Sample {
        events: indexer.events_applied(),
        queries: queries.queries,
        queried_blocks: queries.queried_blocks,
        found_blocks: queries.found_blocks,
        reported_prompt_tokens: queries.reported_prompt_tokens,
        reported_cached_tokens: queries.reported_cached_tokens,
        latency_bounds_s: latencies.bounds_s,
        latencies: latencies.counts,
    }
}
