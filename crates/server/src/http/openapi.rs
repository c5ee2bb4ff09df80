//! `GET /openapi.json`: the description of this API.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use flash_indexer_api::document;

/// The document as JSON. It is made once: a request needs no token, and making the document takes milliseconds.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let json = serde_json::to_vec(&document()).expect("the document has text keys");
    json.into()
});

pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}
