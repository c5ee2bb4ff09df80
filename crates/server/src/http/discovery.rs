//! `GET /discovery`: state of the discovery sources and of the engines that they list.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::Api;
use flash_indexer_discovery::{SourceState, SourceStatus, TargetStatus};

#[derive(Serialize)]
pub(super) struct Source {
    source: String,
    state: SourceState,
    last_success_ms_ago: Option<u64>,
    error: Option<String>,
    problems: Vec<String>,
    targets: Vec<TargetStatus>,
}

/// Lists every discovery source.
pub(super) async fn list(State(api): State<Arc<Api>>) -> Json<Vec<Source>> {
    let sources = api.discovery.as_ref().map(|status| status.sources()).unwrap_or_default().into_iter();
    let shown = sources.map(|SourceStatus { name, state, answered_at, error, problems, targets }| Source {
        source: name,
        state,
        last_success_ms_ago: answered_at.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)),
        error,
        problems,
        targets,
    });
    Json(shown.collect())
}
