//! `/peers`, `/register_peer` and `/deregister_peer`: the peers of this replica.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flash_indexer_api::{PeerRequest, Success};
use flash_indexer_telemetry::metrics::Limit;

use super::Api;
use super::error::ApiError;
use super::extract::Body;
use flash_indexer_peers::{PEERS_MAX, PeerAddition, PeerUrl};

fn url(request: &PeerRequest) -> Result<PeerUrl, ApiError> {
    request.url.parse().map_err(|error: flash_indexer_peers::PeerUrlError| ApiError::bad_request(error.to_string()))
}

pub(super) async fn register(
    State(api): State<Arc<Api>>,
    Body(request): Body<PeerRequest>,
) -> Result<(StatusCode, Json<Success>), ApiError> {
    let url = url(&request)?;
    if let Err(refused) = api.peers.networks().check_host(&url.host()) {
        api.indexer.metrics().limit_reached(Limit::Addresses);
        return Err(ApiError::bad_request(format!("invalid peer URL {:?}: {refused}", url.as_str())));
    }
    let status = match api.peers.add(url) {
        PeerAddition::New => StatusCode::CREATED,
        PeerAddition::Already => StatusCode::OK,
        PeerAddition::TooMany => {
            api.indexer.metrics().limit_reached(Limit::Peers);
            let error =
                format!("failed to register a peer: at most {PEERS_MAX} peers are allowed; deregister one first");
            return Err(ApiError::unavailable(error));
        }
    };
    Ok((status, Json(Success::default())))
}

pub(super) async fn deregister(
    State(api): State<Arc<Api>>,
    Body(request): Body<PeerRequest>,
) -> Result<Json<Success>, ApiError> {
    let url = url(&request)?;
    match api.peers.remove(&url) {
        true => Ok(Json(Success::default())),
        false => {
            Err(ApiError::not_found(format!("failed to deregister peer {url}: it is not registered; see GET /peers")))
        }
    }
}

/// Header with the registered peers that are this replica itself, separated by commas. It compares itself with the others.
const OWN_HEADER: HeaderName = HeaderName::from_static("flash-indexer-own-peers");

pub(super) async fn list(State(api): State<Arc<Api>>) -> Response {
    let mut response = Json(api.peers.urls()).into_response();
    let own: Vec<_> = api.peers.own().iter().map(|url| url.as_str().to_owned()).collect();
    if let Some(own) = HeaderValue::try_from(own.join(", ")).ok().filter(|own| !own.is_empty()) {
        response.headers_mut().insert(OWN_HEADER, own);
    }
    response
}
