//! `GET /discovery`: state of the discovery sources and of the engines that they list.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use flash_indexer_api::{DiscoverySource, DiscoveryTarget};
use flash_indexer_discovery::{SourceStatus, TargetStatus};

use super::Api;

/// Lists every discovery source.
pub(super) async fn list(State(api): State<Arc<Api>>) -> Json<Vec<DiscoverySource>> {
    let sources = api.discovery.as_ref().map(|status| status.sources()).unwrap_or_default().into_iter();
    let shown = sources.map(|SourceStatus { name, state, answered_at, error, problems, targets }| DiscoverySource {
        source: name,
        state,
        last_success_ms_ago: answered_at.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)),
        error,
        problems,
        targets: targets.into_iter().map(target).collect(),
    });
    Json(shown.collect())
}

fn target(TargetStatus { rank, endpoint, state, reason }: TargetStatus) -> DiscoveryTarget {
    DiscoveryTarget {
        instance_id: rank.instance,
        dp_rank: rank.dp_rank.0,
        model_name: rank.model.model_name,
        tenant_id: rank.model.tenant_id,
        endpoint,
        state,
        reason,
    }
}
