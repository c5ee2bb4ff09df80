//! `GET /digest`: digest of the blocks that a rank holds.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use flash_indexer_api::DigestParameters;
use flash_indexer_core::DpRank;
use flash_indexer_ingest::ReadAt;
use flash_indexer_snapshot::RankRecord;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{InstanceId, ModelKey, RankId};

use super::error::ApiError;
use super::extract::{Caller, Parameters};

/// Longest wait for a sequence number, in milliseconds.
const WAIT_MS_MAX: u64 = 10_000;

pub(super) async fn digest(
    Caller { api, grant, .. }: Caller,
    Parameters(parameters): Parameters<DigestParameters>,
) -> Result<Json<RankRecord>, ApiError> {
    let busy = "failed to digest a rank: too many digests are running; retry later";
    let permit = api.permit(&api.digests, Limit::Digests, busy)?;
    let instance = InstanceId::parse(&parameters.instance_id)?;
    let model = ModelKey::new(parameters.model_name, parameters.tenant_id);
    model.check()?;
    grant.check_tenant(&model.tenant_id)?;
    let rank = RankId { model, instance, dp_rank: DpRank(parameters.dp_rank) };
    let at = parameters.at_sequence.map_or(ReadAt::Now, ReadAt::Message);
    let patience = Duration::from_millis(parameters.wait_ms.min(WAIT_MS_MAX));
    let indexer = Arc::clone(&api.indexer);
    let digest = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        indexer.digest(&rank, at, patience)
    });
    let digest = digest.await.map_err(|_| ApiError::unavailable("the service is stopping"))?;
    Ok(Json(digest?))
}
