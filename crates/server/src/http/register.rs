//! `/register`: registration of engines.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use flash_indexer_access::Grant;
use flash_indexer_api::{Events, RegisterRequest, Registered, SuccessStatus, WorkerKind};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_discovery::{VllmAddress, VllmEngine, VllmError};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::endpoints::{NO_EVENTS, is_bound};
use flash_indexer_types::{EngineKind, InstanceId, ListenerOptions, Registration, RegistrationOutcome, SharedCaches};
use tracing::warn;

use super::error::ApiError;
use super::extract::{BodyWithIgnored, Caller};
use super::fields::CheckedScope;
use super::{Api, blocking};

/// Start of an endpoint that is the address of an engine's gRPC server. The server names the endpoints of the engine's events.
const VLLM_SCHEME: &str = "vllm://";

pub(super) async fn register(
    Caller { api, grant, .. }: Caller,
    BodyWithIgnored(request, ignored_fields): BodyWithIgnored<RegisterRequest>,
) -> Result<(StatusCode, Json<Registered>), ApiError> {
    let given_id = request.instance_id.clone();
    let named = request.endpoint.as_deref().and_then(|endpoint| endpoint.strip_prefix(VLLM_SCHEME));
    let indexer = Arc::clone(&api.indexer);
    let registered = match named.map(str::to_owned) {
        Some(address) => {
            let ranks = ranks_of_vllm(&api, &grant, &address, request).await?;
            let register = move || {
                let mut outcome = RegistrationOutcome::Already;
                for rank in ranks {
                    if indexer.register_replacing(rank)? == RegistrationOutcome::New {
                        outcome = RegistrationOutcome::New;
                    }
                }
                Ok::<_, ApiError>(outcome)
            };
            blocking(register).await??
        }
        None => {
            let registration = registration(request, &grant)?;
            blocking(move || indexer.register(registration)).await??
        }
    };
    if !ignored_fields.is_empty()
        && registered == RegistrationOutcome::New
        && let Ok(instance) = given_id.checked()
    {
        warn!(%instance, ?ignored_fields, "ignored unknown fields of a registration; one may be misspelt");
    }
    let status = match registered {
        RegistrationOutcome::New => StatusCode::CREATED,
        RegistrationOutcome::Already => StatusCode::OK,
    };
    Ok((status, Json(Registered { status: SuccessStatus::Ok, ignored_fields })))
}

/// The registration of a request. Its endpoint is the one that the request names.
fn registration(request: RegisterRequest, grant: &Arc<Grant>) -> Result<Registration, ApiError> {
    let missing = || ApiError::missing_field("`block_size`: give the engine's block size in tokens");
    let block_size = request.block_size.ok_or_else(missing)?;
    let block_size = BlockSize::new(block_size).ok_or_else(|| {
        ApiError::unprocessable("block_size must be at least 1: give the engine's block size in tokens")
    })?;
    let endpoint = match (request.endpoint, request.events.unwrap_or(Events::Published)) {
        (Some(endpoint), Events::Published) => endpoint,
        (None, Events::None) => NO_EVENTS.to_owned(),
        (None, Events::Published) => {
            let missing = "`endpoint`: give the endpoint of the engine's events, or \"events\": \"none\"";
            return Err(ApiError::missing_field(missing));
        }
        (Some(_), Events::None) => {
            let error =
                "the request does not fit: `endpoint` and \"events\": \"none\" are alternatives; give one of them";
            return Err(ApiError::unprocessable(error));
        }
    };
    if is_bound(&endpoint) {
        // A pod is registered in one tenant, and this registration would move it to another.
        grant.check_all_tenants()?;
    }
    let instance = request.instance_id.checked()?;
    check_kind(&instance, request.kind)?;
    Ok(Registration {
        instance,
        dp_rank: DpRank(request.dp_rank.unwrap_or_default()),
        model: request.scope.key(grant)?,
        block_size,
        options: ListenerOptions {
            endpoint,
            replay_endpoint: request.replay_endpoint,
            lora_name: request.lora_name,
            engine: request.engine,
            removed_copies: request.removal.unwrap_or_default().into(),
            extra_keys: request.extra_keys.unwrap_or_default(),
            cache_blocks: request.cache_blocks,
            shared_caches: SharedCaches::new(request.shared_caches.into_iter().flatten())?,
        },
    })
}

/// The ranks of a vLLM engine, queried from its server: all, or the one that the request names. The engine names its model
/// and block size if the request does not.
async fn ranks_of_vllm(
    api: &Api,
    grant: &Arc<Grant>,
    address: &str,
    mut request: RegisterRequest,
) -> Result<Vec<Registration>, ApiError> {
    let refused_field = match () {
        _ if request.replay_endpoint.is_some() => Some("replay_endpoint"),
        _ if request.cache_blocks.is_some() => Some("cache_blocks"),
        _ if request.kind.is_some_and(|kind| kind != WorkerKind::Instance) => Some("kind"),
        _ if request.engine.is_some_and(|engine| engine != EngineKind::Vllm) => Some("engine"),
        _ => None,
    };
    if let Some(field) = refused_field {
        let error = format!("the request does not fit: an engine of vLLM names its endpoints; leave out `{field}`");
        return Err(ApiError::unprocessable(error));
    }
    // A token without the tenant must not make the service dial.
    request.scope.clone().selection(grant)?;
    let address: VllmAddress = address.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    let engine = VllmEngine::ask(&address, api.indexer.engine_networks()).await.map_err(|error| {
        let text = format!("failed to ask {address} for its KV event sources: {error}; nothing is registered");
        match error {
            _ if error.is_refused() => {
                api.indexer.metrics().limit_reached(Limit::Addresses);
                ApiError::bad_request(text)
            }
            VllmError::Unimplemented => ApiError::unprocessable(text),
            _ => ApiError::unavailable(text),
        }
    })?;
    if !engine.problems.is_empty() {
        return Err(ApiError::unprocessable(engine.problems.join("; ")));
    }
    let own = engine.block_size.map(BlockSize::tokens);
    if let (Some(asked), Some(own)) = (request.block_size, own)
        && asked != own
    {
        return Err(ApiError::unprocessable(format!(
            "{address} has blocks of {own} tokens, not {asked}: leave out block_size"
        )));
    }
    request.block_size = request.block_size.or(own);
    if request.block_size.is_none() {
        let error = format!("{address} does not name the size of its blocks: give block_size");
        return Err(ApiError::unprocessable(error));
    }
    let scope = &mut request.scope;
    if scope.model_name.is_none() && scope.modelname.is_none() && scope.model.is_none() {
        scope.model_name = engine.model_name;
    }
    let wanted = request.dp_rank;
    let of_request = registration(request, grant)?;
    let ranks = engine.ranks.into_iter().filter(|rank| wanted.is_none_or(|wanted| rank.dp_rank == DpRank(wanted)));
    let ranks: Vec<_> = ranks
        .map(|rank| Registration {
            dp_rank: rank.dp_rank,
            options: ListenerOptions {
                endpoint: rank.endpoint,
                replay_endpoint: rank.replay_endpoint,
                engine: Some(EngineKind::Vllm),
                ..of_request.options.clone()
            },
            ..of_request.clone()
        })
        .collect();
    match ranks.is_empty() {
        true => Err(ApiError::unprocessable(format!("{address} names no rank {}", wanted.unwrap_or_default()))),
        false => Ok(ranks),
    }
}

/// Rejects a registration whose kind is not the one in its id. An instance with the id of a shared cache would be in no answer.
fn check_kind(instance: &InstanceId, kind: Option<WorkerKind>) -> Result<(), ApiError> {
    let of_id = WorkerKind::from(instance.shared_cache());
    let error = match (of_id, kind.unwrap_or(WorkerKind::Instance)) {
        (of_id, kind) if of_id == kind => return Ok(()),
        (WorkerKind::Instance, _) => {
            format!("instance_id {instance} is that of an instance: name a shared cache node:NAME or pool:NAME")
        }
        (of_id, _) => {
            let kind = if of_id == WorkerKind::Node { "node" } else { "pool" };
            format!("instance_id {instance} is that of a shared cache: add \"kind\": \"{kind}\", or choose another id")
        }
    };
    Err(ApiError::bad_request(error))
}
