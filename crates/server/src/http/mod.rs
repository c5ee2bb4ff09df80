//! HTTP API: thin handlers over [`Indexer`].
//!
//! [`ROUTES`] lists every endpoint. A new endpoint is a file with a handler and a line there.
//!
//! | file | role |
//! |---|---|
//! | `dashboard.rs` | the dashboard at `/ui` |
//! | `digest.rs`, `discovery.rs`, `dump.rs`, `openapi.rs`, `peers.rs`, `probes.rs`, `register.rs`, `shared_ranks.rs`, `workers.rs` | handlers of the endpoints of these names |
//! | `query.rs`, `score.rs`, `explain.rs` | handlers of queries, scores, predictions and explanations |
//! | `pick.rs` | handlers of picks and of the ends of requests |
//! | `render.rs` | handlers of debugging endpoints: the rendering and the tokens of a prompt |
//! | `query_response.rs`, `tiered_response.rs`, `explanation.rs` | JSON of answers to queries, of answers by tier, and of explanations |
//! | `fields.rs` | checks of request fields that several endpoints share |
//! | `extract.rs` | extractors of bodies and query strings |
//! | `content.rs` | content types and encodings of bodies |
//! | `prefix_text.rs` | handler of the text of a prefix |
//! | `openai_prompt.rs` | the prompt of a request that a gateway forwards to an engine |
//! | `prompt_body.rs` | the fields of requests with a prompt, and its tokenization |
//! | `prompt.rs` | requests with a prompt, as JSON or as a binary body: their extractor |
//! | `error.rs` | mapping of errors to statuses |

mod content;
mod dashboard;
mod digest;
mod discovery;
mod dump;
mod error;
mod explain;
mod explanation;
mod extract;
mod fields;
mod openai_prompt;
mod openapi;
mod peers;
mod pick;
mod prefix_text;
mod probes;
mod prompt;
mod prompt_body;
mod query;
mod query_response;
mod register;
mod render;
mod score;
mod shared_ranks;
mod tiered_response;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get, post};
use flash_indexer_access::Scope;
use flash_indexer_admission::{accepted_weight, count_answer};
use flash_indexer_dashboard::LiveFigures;
use flash_indexer_discovery::DiscoveryStatus;
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::{Endpoint, Limit};
use flash_indexer_types::RankId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::consume_budget;
use tracing::{Instrument, debug, debug_span, field};

pub(crate) use self::dashboard::sample;
pub(crate) use self::error::ApiError;
use self::error::DeniedReason;
pub(crate) use self::extract::Caller;
pub(crate) use self::openai_prompt::{OpenAiEndpoint, tokenize_openai};
pub(crate) use self::pick::{NOT_IN_FLIGHT, none_ready};
pub(crate) use self::prompt_body::TokenizedPrompt;
use crate::access::{AccessControl, Permission};
use crate::body_limits::BodyLimits;
use crate::traced::{RequestTracer, finish_http};
use flash_indexer_connections::ConnectionHandle;
use flash_indexer_peers::{DIGESTS_MAX, Peers, RecoveryStatus};

/// Limit of concurrent dumps.
const DUMPS_MAX: usize = 4;
/// Limit of concurrent explanations.
const EXPLANATIONS_MAX: usize = 2;

/// State that every handler shares.
pub(crate) struct Api {
    pub(crate) indexer: Arc<Indexer>,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) bodies: BodyLimits,
    /// Ranks registered at the start, for which readiness waits.
    pub(crate) configured: BTreeSet<RankId>,
    /// Whether the server has been ready. A later restart of an engine does not make it unready.
    pub(crate) was_ready: AtomicBool,
    pub(crate) started_at: Instant,
    pub(crate) dumps: Arc<Semaphore>,
    pub(crate) explanations: Arc<Semaphore>,
    pub(crate) digests: Arc<Semaphore>,
    pub(crate) prefix_texts: Arc<Semaphore>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) recovery: Arc<RecoveryStatus>,
    /// Live figures for dashboards.
    pub(crate) live: Arc<LiveFigures>,
    /// State of the discovery sources, if any are configured.
    pub(crate) discovery: Option<Arc<DiscoveryStatus>>,
    /// Tracer of requests, if they are traced.
    pub(crate) tracer: Option<RequestTracer>,
}

impl Api {
    /// State without discovery sources or a tracer, whose live figures have no sampler.
    pub(crate) fn new(
        (indexer, access, bodies): (Arc<Indexer>, Arc<AccessControl>, BodyLimits),
        configured: BTreeSet<RankId>,
        peers: Arc<Peers>,
        recovery: Arc<RecoveryStatus>,
    ) -> Self {
        let permits = |count| Arc::new(Semaphore::new(count));
        Self {
            indexer,
            access,
            bodies,
            configured,
            was_ready: AtomicBool::new(false),
            started_at: Instant::now(),
            dumps: permits(DUMPS_MAX),
            explanations: permits(EXPLANATIONS_MAX),
            digests: permits(DIGESTS_MAX),
            prefix_texts: permits(1),
            peers,
            recovery,
            live: Arc::default(),
            discovery: None,
            tracer: None,
        }
    }

    /// A permit for work of which a limited number runs at a time. A refusal is counted.
    fn permit(&self, permits: &Arc<Semaphore>, limit: Limit, refusal: &str) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(permits).try_acquire_owned().map_err(|_| {
            self.indexer.metrics().limit_reached(limit);
            ApiError::busy(refusal)
        })
    }
}

/// Makes the methods and handlers of one path.
type Route = fn() -> MethodRouter<Arc<Api>>;

/// Every endpoint: its path, the permission that it needs, and the methods with their handlers.
const ROUTES: [(&str, Permission, Route); 30] = [
    ("/health", Permission::Open, || get(probes::health)),
    ("/ready", Permission::Open, || get(probes::ready)),
    ("/metrics", Permission::AllTenants(Scope::Query), || get(probes::metrics)),
    ("/openapi.json", Permission::Open, || get(openapi::openapi)),
    ("/register", Permission::Tenant(Scope::Events), || post(register::register)),
    ("/unregister", Permission::Tenant(Scope::Events), || post(workers::unregister)),
    ("/workers", Permission::Tenant(Scope::Query), || get(workers::list)),
    ("/query", Permission::Tenant(Scope::Query), || post(query::by_tokens)),
    ("/query_by_hash", Permission::Tenant(Scope::Query), || post(query::by_hashes)),
    ("/query_tiered_by_hash", Permission::Tenant(Scope::Query), || post(query::by_hashes_tiered)),
    ("/score_completions", Permission::Tenant(Scope::Query), || post(score::completions)),
    ("/score_chat_completions", Permission::Tenant(Scope::Query), || post(score::chat_completions)),
    ("/predict", Permission::Tenant(Scope::Query), || post(score::predict)),
    ("/pick", Permission::Tenant(Scope::Query), || post(pick::pick)),
    ("/done", Permission::Tenant(Scope::Query), || post(pick::done)),
    ("/tokenize", Permission::Tenant(Scope::Query), || post(render::tokenize)),
    ("/render", Permission::Tenant(Scope::Query), || post(render::render)),
    ("/explain", Permission::Tenant(Scope::Query), || post(explain::explain)),
    ("/text_by_hash", Permission::Tenant(Scope::Admin), || post(prefix_text::text)),
    ("/dump", Permission::Tenant(Scope::Admin), || get(dump::dump)),
    ("/digest", Permission::Tenant(Scope::Admin), || get(digest::digest)),
    ("/store", Permission::AllTenants(Scope::Admin), || get(shared_ranks::show)),
    ("/peers", Permission::AllTenants(Scope::Admin), || get(peers::list)),
    ("/discovery", Permission::AllTenants(Scope::Admin), || get(discovery::list)),
    ("/register_peer", Permission::AllTenants(Scope::Admin), || post(peers::register)),
    ("/deregister_peer", Permission::AllTenants(Scope::Admin), || post(peers::deregister)),
    ("/ui", Permission::Open, || get(dashboard::show)),
    ("/ui/", Permission::Open, || get(dashboard::without_slash)),
    ("/ui/{file}", Permission::Open, || get(dashboard::file)),
    ("/ui/events", dashboard::EVENTS_PERMISSION, || get(dashboard::events)),
];

/// Path under which requests to unknown paths are counted.
const OTHER_PATH: &str = "other";

/// Router over [`ROUTES`]. Every failure is answered with a JSON error.
pub(crate) fn router(api: Arc<Api>) -> Router {
    ROUTES
        .iter()
        .fold(Router::new(), |router, (path, _, handlers)| router.route(path, handlers()))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&api), check_access))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), observe_request))
        .with_state(api)
}

/// A browser at `/` is sent to the dashboard, relative to the path under which a proxy publishes the service.
async fn unknown_path(request: Request) -> Response {
    let weight = |name| accepted_weight(request.headers(), &ACCEPT, name);
    // Programs such as curl accept */*, and get the error.
    let accepts_page = weight("text/html").or_else(|| weight("text/*")) > Some(0.0);
    match (request.uri().path(), request.method()) {
        ("/", &(Method::GET | Method::HEAD)) if accepts_page => Redirect::temporary("ui").into_response(),
        (path, _) => {
            let error = format!("unknown path {path}; see /openapi.json for the endpoints, and /ui for the dashboard");
            ApiError::not_found(error).into_response()
        }
    }
}

async fn wrong_method(request: Request) -> ApiError {
    let (path, method) = (request.uri().path(), request.method());
    ApiError::wrong_method(format!(
        "{path} does not support {method}; see the Allow header for the methods that it supports"
    ))
}

/// Middleware that counts each request and gives it a span with `method`, `path` and, at the end, `status`.
async fn observe_request(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    // Requests that were sent together are answered without a wait. After some of them, other connections get their turn.
    consume_budget().await;
    let start = Instant::now();
    let connection = extract::connection(&request).cloned();
    let _in_flight = connection.as_ref().map(ConnectionHandle::request);
    let path = request.extensions().get::<MatchedPath>().map_or(request.uri().path(), MatchedPath::as_str);
    let route = ROUTES.iter().find(|(known, ..)| *known == path).map(|(known, ..)| *known);
    let endpoint = Endpoint {
        path: route.unwrap_or(OTHER_PATH),
        method: match *request.method() {
            Method::GET => "GET",
            Method::POST => "POST",
            _ => "other",
        },
    };
    let span = debug_span!("request", method = endpoint.method, path = endpoint.path, status = field::Empty);
    let traced = api.tracer.as_ref().and_then(|tracer| tracer.http(&request, endpoint, route));
    let response = next.run(request).instrument(span.clone());
    let response = match &traced {
        None => response.await,
        Some(traced) => traced.within(response).await,
    };
    let response = count_answer(response, &api.bodies.answers, connection.clone());
    let response = response.unwrap_or_else(|reached| ApiError::from(reached).into_response());
    let status = response.status();
    span.record("status", status.as_u16());
    if let Some(traced) = traced {
        finish_http(&traced, status);
    }
    debug!(parent: &span, "request finished");
    let metrics = api.indexer.metrics();
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        metrics.limit_reached(Limit::BodyBytes);
    }
    if let Some(&limit) = response.extensions().get::<Limit>() {
        metrics.limit_reached(limit);
    }
    if let Some(&DeniedReason(reason)) = response.extensions().get() {
        metrics.access_denied(reason);
    }
    metrics.request_answered(endpoint, status.as_u16(), start.elapsed());
    response
}

/// Middleware that admits a request to its endpoint, and passes the grant of its token on. Unknown paths need no token.
async fn check_access(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = path.and_then(|path| ROUTES.iter().find(|(known, ..)| *known == path));
    let needed = route.map_or(Permission::Open, |&(_, needed, _)| needed);
    let mut given = request.headers().get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let admitted = match (given.next(), given.next()) {
        // A proxy in front of the service may have checked a different one than the service would.
        (_, Some(_)) if needed != Permission::Open => {
            Err(ApiError::bad_request("the request has more than one header `Authorization`; send one"))
        }
        (authorization, _) => api.access.admit(authorization, needed).map_err(ApiError::from),
    };
    match admitted {
        Ok(grant) => {
            request.extensions_mut().insert(grant);
            next.run(request).await
        }
        Err(refused) => {
            extract::discard_body(request).await;
            refused.into_response()
        }
    }
}

/// Runs work that blocks on other threads outside the threads that serve requests.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let request = flash_indexer_traces::current();
    let work = move || {
        let _request = request.attach();
        work()
    };
    Ok(tokio::task::spawn_blocking(work).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_route_is_in_the_openapi_document_with_its_methods() {
        let document = flash_indexer_api::document();
        let paths = document["paths"].as_object().expect("paths");
        let documented: BTreeSet<&str> = paths.keys().map(String::as_str).collect();
        assert_eq!(documented, ROUTES.iter().map(|(path, ..)| *path).collect());
        for (path, needed, handlers) in ROUTES {
            let routed = format!("{:?}", handlers());
            for method in ["get", "post"] {
                let is_documented = paths[path].get(method).is_some_and(Value::is_object);
                assert_eq!(is_documented, !routed.contains(&format!("{method}: None")), "{method} {path}: {routed}");
                let needs_token = is_documented && needed != Permission::Open;
                let operation = &paths[path][method];
                assert_eq!(operation["security"].is_array(), needs_token, "{method} {path}");
                assert_eq!(operation["responses"]["403"].is_object(), needs_token, "{method} {path}");
            }
        }
    }
}
