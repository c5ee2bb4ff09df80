//! `/register`, `/unregister` and `/workers`: registered engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ApiError;
use super::extract::{Body, Parameters};
use super::fields::ModelScope;
use super::{Api, blocking};
use flash_indexer_ingest::{Connection, ListenerReport};
use flash_indexer_types::{EngineKind, Removal};
use flash_indexer_types::{GivenInstanceId, InstanceId};
use flash_indexer_types::{Registered, Registration};

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct RegisterRequest {
    instance_id: GivenInstanceId,
    endpoint: String,
    #[serde(flatten)]
    scope: ModelScope,
    block_size: u32,
    dp_rank: Option<u32>,
    replay_endpoint: Option<String>,
    lora_name: Option<String>,
    engine: Option<EngineKind>,
    removal: Option<Removal>,
    extra_keys: Option<bool>,
}

pub(super) async fn register(
    State(api): State<Arc<Api>>,
    Body(request): Body<RegisterRequest>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let block_size = BlockSize::new(request.block_size).ok_or_else(|| {
        ApiError::unprocessable("block_size must be at least 1: give the engine's block size in tokens")
    })?;
    let registration = Registration {
        instance: request.instance_id.checked()?,
        dp_rank: DpRank(request.dp_rank.unwrap_or_default()),
        endpoint: request.endpoint,
        replay_endpoint: request.replay_endpoint,
        model: request.scope.key()?,
        block_size,
        lora_name: request.lora_name,
        engine: request.engine.map(EngineKind::name),
        removed_copies: request.removal.unwrap_or_default().into(),
        extra_keys: request.extra_keys.unwrap_or_default(),
    };
    let indexer = Arc::clone(&api.indexer);
    let registered = blocking(move || indexer.register(registration)).await??;
    let status = match registered {
        Registered::New => StatusCode::CREATED,
        Registered::Already => StatusCode::OK,
    };
    Ok((status, Json(json!({ "status": "ok" }))))
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct UnregisterRequest {
    instance_id: GivenInstanceId,
    #[serde(flatten)]
    scope: ModelScope,
    dp_rank: Option<u32>,
}

pub(super) async fn unregister(
    State(api): State<Arc<Api>>,
    Body(request): Body<UnregisterRequest>,
) -> Result<Json<Value>, ApiError> {
    let (model_name, tenant_id) = request.scope.model_and_tenant()?;
    let instance = request.instance_id.checked()?;
    let shown = format!("instance {instance} of model {model_name:?}");
    let indexer = Arc::clone(&api.indexer);
    let unregistered = blocking(move || {
        let dp_rank = request.dp_rank.map(DpRank);
        indexer.unregister(&instance, &model_name, tenant_id.as_deref(), dp_rank)
    })
    .await?;
    if unregistered.ranks == 0 {
        return Err(ApiError::not_found(format!(
            "failed to unregister {shown}: it is not registered with these fields; see GET /workers"
        )));
    }
    match unregistered.is_forgotten {
        true => Ok(Json(json!({ "status": "ok" }))),
        // No query finds its blocks any more; a writer still removes them.
        false => Ok(Json(json!({ "status": "ok", "forgetting": true }))),
    }
}

#[derive(Serialize)]
pub(super) struct Worker {
    instance_id: InstanceId,
    endpoints: BTreeMap<u32, String>,
    model_name: String,
    tenant_id: String,
    block_size: u32,
    status: Connection,
    listeners: BTreeMap<u32, ListenerReport>,
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Parameters(scope): Parameters<ModelScope>,
) -> Result<Json<Vec<Worker>>, ApiError> {
    let (model_name, tenant_id) = scope.names()?;
    let reports = api.indexer.instances(model_name.as_deref(), tenant_id.as_deref());
    let workers = reports.into_iter().map(|report| {
        let states = || report.listeners.values().map(|listener| listener.status);
        let unconnected = states().find(|&status| status != Connection::Connected);
        // An instance that is known only from a dump has no listener.
        let status = unconnected.or_else(|| states().next()).unwrap_or(Connection::Disconnected);
        Worker {
            instance_id: report.instance,
            endpoints: report.listeners.iter().map(|(rank, listener)| (rank.0, listener.endpoint.clone())).collect(),
            model_name: report.model.model_name,
            tenant_id: report.model.tenant_id,
            block_size: report.block_size.tokens(),
            status,
            listeners: report.listeners.into_iter().map(|(rank, listener)| (rank.0, listener)).collect(),
        }
    });
    Ok(Json(workers.collect()))
}
