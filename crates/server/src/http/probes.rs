//! Liveness, readiness and metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use flash_indexer_admission::accepted_weight;
use flash_indexer_api::{Readiness, ReadyStatus, Success};
use flash_indexer_discovery::CONNECT_PATIENCE;
use flash_indexer_telemetry::metrics::TextFormat;
use flash_indexer_types::RankId;

use super::Api;
use super::blocking;
use super::error::ApiError;
use super::shared_ranks;
use flash_indexer_peers::RecoveryState;

pub(super) async fn health() -> Json<Success> {
    Json(Success::default())
}

/// `GET /ready`: ready once recovery has finished, every configured listener has been connected at the same time, every
/// discovery source has listed its engines, and the earlier messages of the engines known by then are applied. The response
/// includes panics since the start.
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Result<Json<Readiness>, ApiError> {
    let panics = api.indexer.metrics().panics();
    if let Some(reason) = unready_reason(&api) {
        let counts = panics.iter().map(|(kind, count)| format!("; {kind} has panicked {count} times since the start"));
        return Err(ApiError::unavailable(reason + &counts.collect::<String>()));
    }
    // Without the shared store, answers cover only this replica's ranks, and are correct for these.
    let store = api.indexer.store_report().map(|report| shared_ranks::status(&report));
    let panics = panics.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
    let recovered_from = match api.recovery.state() {
        RecoveryState::Finished(source) => Some(source.to_string()),
        RecoveryState::Running(_) | RecoveryState::Failed(_) => None,
    };
    Ok(Json(Readiness { status: ReadyStatus::Ready, recovered_from, panics, store }))
}

/// Reason why the service is not ready, if there is one.
fn unready_reason(api: &Api) -> Option<String> {
    if !api.was_ready.load(Ordering::Relaxed) {
        if let RecoveryState::Running(step) = api.recovery.state() {
            return Some(format!("recovering: {step}"));
        }
        let missing = api.indexer.unconnected(&api.configured);
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Some(format!("not connected yet: {}", missing.join(", ")));
        }
        let unconnected = |ranks: &[RankId]| api.indexer.unconnected(&ranks.iter().cloned().collect());
        let undiscovered = api.discovery.as_ref().and_then(|discovery| discovery.not_ready_reason(unconnected));
        let reason = undiscovered.or_else(|| unconnected_after_recovery(api)).or_else(|| catching_up(api));
        if reason.is_some() {
            return reason;
        }
        api.was_ready.store(true, Ordering::Relaxed);
    }
    let problems = api.indexer.problems();
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// Time after the start for which readiness waits for replays. Ranks that are not done by then stay `recovering`.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(120);
/// Ranks that a readiness message lists.
const NAMED_MAX: usize = 8;

/// Restored ranks that are not connected, as a message. Their engines may have stopped, so readiness waits for a limited time.
fn unconnected_after_recovery(api: &Api) -> Option<String> {
    let released = api.recovery.released().filter(|released| released.at.elapsed() < CONNECT_PATIENCE)?;
    let missing = api.indexer.unconnected(&released.ranks);
    let shown = missing.iter().take(NAMED_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let patience = CONNECT_PATIENCE.as_secs();
    match missing.len() {
        0 => None,
        count if count > NAMED_MAX => Some(format!(
            "{count} restored ranks are not connected yet (waiting up to {patience} s): {shown}, and others"
        )),
        _ => Some(format!("restored, and not connected yet (waiting up to {patience} s): {shown}")),
    }
}

/// Ranks known at the start whose replay is still being applied, as a message.
fn catching_up(api: &Api) -> Option<String> {
    if api.started_at.elapsed() >= CATCH_UP_DEADLINE {
        return None;
    }
    let found = api.discovery.as_ref().map(|discovery| discovery.initial_ranks()).unwrap_or_default();
    let restored = api.recovery.released().into_iter().flat_map(|released| &released.ranks);
    let ranks = api.configured.iter().chain(restored).cloned().chain(found).collect();
    let behind = api.indexer.catching_up(&ranks);
    let shown = behind.iter().take(NAMED_MAX).map(|(rank, replay)| match replay {
        Some(progress) => format!("{rank}: {progress}"),
        None => format!("{rank}: waits for its replay"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match behind.len() {
        0 => None,
        count if count > NAMED_MAX => Some(format!("{count} ranks are catching up: {shown}, and others")),
        _ => Some(format!("catching up: {shown}")),
    }
}

/// The format of metrics for a request: OpenMetrics if the client accepts it at least as much as plain text.
fn accepted_format(headers: &HeaderMap) -> TextFormat {
    let weight = |name| accepted_weight(headers, &ACCEPT, name).unwrap_or_default();
    let open_metrics = weight("application/openmetrics-text");
    let is_preferred = open_metrics > 0.0 && open_metrics >= weight("text/plain");
    if is_preferred { TextFormat::OpenMetrics } else { TextFormat::Classic }
}

/// `GET /metrics`: in OpenMetrics for clients that accept it, else in the classic text format.
pub(super) async fn metrics(State(api): State<Arc<Api>>, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    let format = accepted_format(&headers);
    let indexer = Arc::clone(&api.indexer);
    // An index may wait for its writer before it reports its size.
    let text = blocking(move || indexer.metrics_text(format)).await?;
    Ok(([(CONTENT_TYPE, format.content_type())], text))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn openmetrics_is_sent_only_to_clients_that_prefer_it() {
        let format = |accept| accepted_format(&[(ACCEPT, HeaderValue::from_static(accept))].into_iter().collect());
        assert_eq!(accepted_format(&HeaderMap::new()), TextFormat::Classic);
        assert_eq!(format("text/plain;version=0.0.4, */*"), TextFormat::Classic);
        assert_eq!(format("application/openmetrics-text;q=0, text/plain"), TextFormat::Classic);
        assert_eq!(format("application/openmetrics-text;q=0.2, text/plain;q=0.5"), TextFormat::Classic);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(format(prometheus), TextFormat::OpenMetrics);
    }
}
