//! `GET /openapi.json`: the description of this API.

use axum::Json;
use axum::response::IntoResponse;
use flash_indexer_api::document;

pub(super) async fn openapi() -> impl IntoResponse {
    Json(document())
}
