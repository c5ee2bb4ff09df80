//! `/health`, `/ready`, and responses that only report success or an error.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::StoreStatus;

/// Response of a successful request without another result.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
pub struct Success {
    /// `ok`.
    pub status: SuccessStatus,
}

/// Status of a successful request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SuccessStatus {
    /// The request succeeded.
    #[default]
    Ok,
}

/// Response of `GET /ready` of a ready service.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ready`.
    pub status: ReadyStatus,
    /// Source from which the index was filled at the start, before the engines' streams: `engines` (none), or `snapshot`,
    /// `peer` or `dump` and its path or URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_from: Option<String>,
    /// Panics since the start, by thread; absent if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub panics: BTreeMap<String, u64>,
    /// State of the shared store; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreStatus>,
}

/// Status of a ready service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReadyStatus {
    /// The service is ready.
    Ready,
}

/// Response of a failed request.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Cause, and what to do.
    pub error: String,
}
