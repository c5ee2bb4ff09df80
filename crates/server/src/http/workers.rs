//! `/unregister` and `/workers`: registered engines.

use std::sync::Arc;

use axum::Json;
use axum::http::HeaderName;
use flash_indexer_api::{Listener, ModelScope, ReplayStatus, SuccessStatus, UnregisterRequest, Unregistration, Worker};
use flash_indexer_core::{DpRank, RankSize};
use flash_indexer_ingest::{ListenerReport, ReplayProgress};
use flash_indexer_types::ConnectionStatus;

use super::blocking;
use super::error::ApiError;
use super::extract::{Body, Caller, Parameters};
use super::fields::{CheckedScope, Selection};
use flash_indexer_peers::PROCESS_HEADER;

pub(super) async fn unregister(
    Caller { api, grant, .. }: Caller,
    Body(request): Body<UnregisterRequest>,
) -> Result<Json<Unregistration>, ApiError> {
    let (model_name, tenant_id) = request.scope.model_and_tenant(&grant)?;
    let instance = request.instance_id.checked()?;
    let shown = format!("instance {instance} of model {model_name:?}");
    let indexer = Arc::clone(&api.indexer);
    // Read first: a rank is registered before recovery ends.
    let is_recovering = indexer.is_recovering();
    let unregistered = blocking(move || {
        let dp_rank = request.dp_rank.map(DpRank);
        indexer.unregister(&instance, &model_name, tenant_id.as_deref(), dp_rank)
    })
    .await?;
    if unregistered.ranks == 0 {
        let failed = format!("failed to unregister {shown}: it is not registered with these fields");
        return Err(match is_recovering {
            true => ApiError::busy(format!("{failed} yet, and this indexer is recovering; retry")),
            false => ApiError::not_found(format!("{failed}; see GET /workers")),
        });
    }
    // No query finds the blocks any more, even while a writer still removes them.
    Ok(Json(Unregistration { status: SuccessStatus::Ok, forgetting: !unregistered.is_forgotten }))
}

pub(super) async fn list(
    Caller { api, grant, .. }: Caller,
    Parameters(scope): Parameters<ModelScope>,
) -> Result<([(HeaderName, String); 1], Json<Vec<Worker>>), ApiError> {
    let Selection { model, tenant } = scope.selection(&grant)?;
    let indexer = Arc::clone(&api.indexer);
    // An index may wait for its writer before it reports its size.
    let reports = blocking(move || indexer.instances(model.as_deref(), tenant.as_deref())).await?;
    let permitted = reports.into_iter().filter(|report| grant.permits_tenant(&report.model.tenant_id));
    let workers = permitted.map(|report| {
        let states = || report.listeners.values().map(|listener| listener.status);
        let unconnected = states().find(|&status| status != ConnectionStatus::Connected);
        // An instance that is known only from a dump has no listener.
        let status = unconnected.or_else(|| states().next()).unwrap_or(ConnectionStatus::Disconnected);
        let (instance_id, block_size) = (report.instance, report.block_size.tokens());
        let endpoints =
            report.listeners.iter().map(|(rank, listener)| (rank.0, listener.options.endpoint.clone())).collect();
        let sizes = report.sizes;
        let listeners = report
            .listeners
            .into_iter()
            .map(|(rank, report)| (rank.0, listener(report, sizes.get(&rank).copied().unwrap_or_default())));
        Worker {
            kind: instance_id.shared_cache(),
            instance_id,
            endpoints,
            attached: report.attached,
            model_name: report.model.model_name,
            tenant_id: report.model.tenant_id,
            block_size,
            status,
            listeners: listeners.collect(),
        }
    });
    let process = (HeaderName::from_static(PROCESS_HEADER), api.peers.process().to_owned());
    Ok(([process], Json(workers.collect())))
}

fn listener(report: ListenerReport, size: RankSize) -> Listener {
    let options = report.options;
    Listener {
        source: report.source,
        endpoint: options.endpoint,
        replay_endpoint: options.replay_endpoint,
        engine: options.engine,
        lora_name: options.lora_name,
        removal: options.removed_copies.into(),
        status: report.status,
        last_seq: report.last_seq,
        last_event_ms_ago: report.last_event_ms_ago,
        received_seq: report.received_seq,
        blocks: size.by_tier.into(),
        events: report.activity.events,
        stored_blocks: report.activity.stored_blocks,
        removed_blocks: report.activity.removed_blocks,
        gaps: report.gaps,
        trust: report.trust,
        replay: report.replay.map(|ReplayProgress { applied, published }| ReplayStatus { applied, published }),
        extra_keys: options.extra_keys,
        cache_blocks: options.cache_blocks,
        shared_caches: options.shared_caches.ids().to_vec(),
        partial: report.partial,
        rejected: report.rejected.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect(),
        last_error: report.last_error,
    }
}
