//! Whether the service lives, is ready, and how it fares.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::Api;
use super::error::ApiError;
use crate::peers::RecoveryState;

pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Ready once what peers know is taken over, and every listener asked for at the start has been connected at the
/// same time.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Result<Json<Value>, ApiError> {
    if !api.was_ready.load(Ordering::Relaxed) {
        if let RecoveryState::Running(step) = api.recovery.state() {
            return Err(ApiError::unavailable(format!("recovering from peers: {step}")));
        }
        let missing = api.indexer.unconnected(&api.asked);
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(ApiError::unavailable(format!("not connected yet: {}", missing.join(", "))));
        }
        api.was_ready.store(true, Ordering::Relaxed);
    }
    Ok(Json(json!({ "status": "ready" })))
}

pub(super) async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let totals = api.indexer.totals();
    let text = api.indexer.metrics().encode(totals.models, totals.instances, totals.held_blocks);
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
