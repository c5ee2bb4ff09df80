//! The HTTP API: thin handlers over [`Indexer`].

mod digest;
mod discovery;
mod dump;
mod error;
mod explain;
mod explanation;
mod extract;
mod fields;
mod peers;
mod probes;
mod prompt;
mod query;
mod score;
mod shared_ranks;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use tracing::error;

use self::error::ApiError;
use crate::connections::ConnectionHandle;
use crate::peers::{Peers, RecoveryStatus};
use flash_indexer_discovery::DiscoveryStatus;
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::{Bound, Endpoint};
use flash_indexer_types::RankId;

/// Dumps that may run at the same time.
const DUMPS_MAX: usize = 4;
/// Explanations that may be made at the same time.
const EXPLANATIONS_MAX: usize = 2;
/// Digests that may be waited for at the same time, by all peers.
pub(crate) const DIGESTS_MAX: usize = 64;

/// What every handler shares.
pub(crate) struct Api {
    pub(crate) indexer: Arc<Indexer>,
    /// Largest body of a request, in bytes.
    pub(crate) body_bytes_max: usize,
    /// Listeners asked for at the start, which readiness waits for.
    pub(crate) asked: BTreeSet<RankId>,
    /// Once ready, a server stays ready: an engine that restarts later is not its fault.
    pub(crate) was_ready: AtomicBool,
    pub(crate) started_at: Instant,
    pub(crate) dumps: Arc<Semaphore>,
    pub(crate) explanations: Arc<Semaphore>,
    pub(crate) digests: Arc<Semaphore>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) recovery: Arc<RecoveryStatus>,
    /// Sources of discovery, if there are any.
    pub(crate) discovery: Option<Arc<DiscoveryStatus>>,
}

impl Api {
    pub(crate) fn new(
        indexer: Arc<Indexer>,
        body_bytes_max: usize,
        asked: BTreeSet<RankId>,
        peers: Arc<Peers>,
        recovery: Arc<RecoveryStatus>,
        discovery: Option<Arc<DiscoveryStatus>>,
    ) -> Self {
        let dumps = Arc::new(Semaphore::new(DUMPS_MAX));
        let explanations = Arc::new(Semaphore::new(EXPLANATIONS_MAX));
        let digests = Arc::new(Semaphore::new(DIGESTS_MAX));
        let was_ready = AtomicBool::new(false);
        Self {
            indexer,
            body_bytes_max,
            asked,
            was_ready,
            started_at: Instant::now(),
            dumps,
            explanations,
            digests,
            peers,
            recovery,
            discovery,
        }
    }
}

/// All routes. Whatever fails answers with a JSON error.
pub(crate) fn router(api: Api) -> Router {
    let api = Arc::new(api);
    Router::new()
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/metrics", get(probes::metrics))
        .route("/register", post(workers::register))
        .route("/unregister", post(workers::unregister))
        .route("/workers", get(workers::list))
        .route("/query", post(query::by_tokens))
        .route("/query_by_hash", post(query::by_hashes))
        .route("/score_completions", post(score::completions))
        .route("/score_chat_completions", post(score::chat_completions))
        .route("/predict", post(score::predict))
        .route("/explain", post(explain::explain))
        .route("/dump", get(dump::dump))
        .route("/digest", get(digest::digest))
        .route("/store", get(shared_ranks::show))
        .route("/peers", get(peers::list))
        .route("/discovery", get(discovery::list))
        .route("/register_peer", post(peers::register))
        .route("/deregister_peer", post(peers::deregister))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&api), count_request))
        .with_state(api)
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::not_found(format!("there is nothing at {}: see docs/http-api.md for what there is", request.uri().path()))
}

async fn wrong_method(request: Request) -> ApiError {
    let (path, method) = (request.uri().path(), request.method());
    ApiError::wrong_method(format!("{path} does not take {method}: the Allow header says what it takes"))
}

/// Paths that are counted by name; anything else is counted together.
const COUNTED: [&str; 19] = [
    "/health",
    "/ready",
    "/metrics",
    "/register",
    "/unregister",
    "/workers",
    "/query",
    "/query_by_hash",
    "/score_completions",
    "/score_chat_completions",
    "/predict",
    "/explain",
    "/dump",
    "/digest",
    "/store",
    "/peers",
    "/discovery",
    "/register_peer",
    "/deregister_peer",
];

async fn count_request(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let _request = extract::connection(&request).map(ConnectionHandle::request);
    let path = request.extensions().get::<MatchedPath>().map_or(request.uri().path(), MatchedPath::as_str);
    let endpoint = Endpoint {
        path: COUNTED.into_iter().find(|counted| *counted == path).unwrap_or("other"),
        method: match *request.method() {
            Method::GET => "GET",
            Method::POST => "POST",
            _ => "other",
        },
    };
    let response = next.run(request).await;
    let metrics = api.indexer.metrics();
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        metrics.bound(Bound::BodyBytes);
    }
    if let Some(&bound) = response.extensions().get::<Bound>() {
        metrics.bound(bound);
    }
    metrics.answered(endpoint, response.status().as_u16(), start.elapsed());
    response
}

/// Runs what waits for other threads where it holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|failed| match failed.is_panic() {
        true => {
            error!(%failed, "request panicked; this is a fault of the program");
            ApiError::unavailable("the request panicked, a fault of this program: report it with the log")
        }
        false => ApiError::unavailable("the service is stopping"),
    })
}
