//! The OpenAPI document of the HTTP API.
//!
//! | file | role |
//! |---|---|
//! | `endpoint.rs` | one endpoint: parameters, bodies, responses |
//! | `limits.rs` | limits that the types of the schemas do not have: ranges of numbers, lengths of names, alternatives |

mod endpoint;
mod limits;

use flash_indexer_snapshot::RankRecord;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, Info, OpenApiBuilder, PathItem, PathsBuilder};

use self::endpoint::Requirement::{AnyOf, AtMost, Excludes, OneOf};
use self::endpoint::{BEARER, Endpoint, add_schemas, get, post};
use crate::{
    DigestParameters, DiscoverySource, DoneRequest, DumpParameters, ErrorBody, ExplainParameters, ExplainRequest,
    Explanation, HashQuery, ModelScope, PeerRequest, Pick, PodScores, Prediction, PrefixText, PrefixTextQuery,
    PromptFields, QueryResponse, Readiness, RegisterRequest, Registered, StoreState, Success, TieredQueryResponse,
    TokenQuery, TokenizedPrompt, UnregisterRequest, Unregistration, Worker,
};

const JSON: &str = "application/json";
const HTML: &str = "text/html";

/// The OpenAPI 3.1 document of all endpoints, as JSON.
///
/// # Panics
///
/// Panics if the document is not JSON, which depends on no input.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Vec::new();
    add_schemas::<ErrorBody>(&mut schemas);
    let (mut paths, mut bodies) = (PathsBuilder::new(), Vec::new());
    for endpoint in endpoints() {
        endpoint.schemas.iter().for_each(|add| add(&mut schemas));
        let (path, method) = (endpoint.path, endpoint.method.clone());
        bodies.push(limits::Body { path, needs: endpoint.needs.clone(), may_be_binary: endpoint.takes_bytes });
        paths = paths.path(path, PathItem::new(method, endpoint.operation()));
    }
    let mut info = Info::new("Flash Indexer", env!("CARGO_PKG_VERSION"));
    info.description = Some("An index of the KV blocks that inference engines hold.".to_owned());
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("Token of `--token-file`."));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(BEARER, SecurityScheme::Http(token.build()))
        .build();
    let document = OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build();
    let mut document = serde_json::to_value(document).expect("the document has texts as keys only");
    limits::add(&mut document, &bodies);
    document
}

/// Names of the field that names the model.
const MODEL: [&str; 3] = ["model_name", "modelname", "model"];
/// Alternative forms of a prompt.
const PROMPT: [&str; 3] = ["token_ids", "prompt", "messages"];
/// Longest time for which a prediction counts, in milliseconds.
const PREDICTION_TTL_MS_MAX: u64 = 600_000;
/// Failures of requests with a prompt that may be a text.
const PROMPT_FAILURES: [&str; 5] = ["404", "429", "500", "501", "502"];

/// Description of a binary body, which replaces a list in JSON.
const TOKENS: &str = "Tokens as little-endian 32-bit numbers; the other fields are in the query string.";
const HASHES: &str = "Local hashes as little-endian 64-bit numbers; the other fields are in the query string.";

/// An endpoint whose body names a model.
fn of_model<T: ToSchema>(path: &'static str, summary: &'static str) -> Endpoint {
    post(path, summary).takes::<T>().needs(AnyOf(&MODEL))
}

/// An endpoint whose body has a prompt, which may be a text.
fn of_prompt(path: &'static str, summary: &'static str) -> Endpoint {
    of_model::<PromptFields>(path, summary).needs(OneOf(&PROMPT)).fails(&PROMPT_FAILURES)
}

/// Every endpoint of the service.
fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/health", "Whether the process runs.").open().answers::<Success>("The process runs."),
        get("/ready", "Whether the service is ready.")
            .open()
            .answers::<Readiness>("The service is ready.")
            .fails(&["503"]),
        get("/metrics", "Metrics of Prometheus.")
            .answers_other("text/plain", "The metrics.")
            .answers_other("application/openmetrics-text", "The same in the format of OpenMetrics."),
        get("/openapi.json", "This document.").open().answers_other(JSON, "An OpenAPI document."),
        post("/register", "Registers a rank of an engine, or an engine that names its ranks.")
            .takes::<RegisterRequest>()
            .needs(AnyOf(&["endpoint", "events"]))
            .answers::<Registered>("The rank was registered in the same way before.")
            .answers_with::<Registered>("201", "The rank is registered.")
            .fails(&["409", "429"]),
        of_model::<UnregisterRequest>("/unregister", "Unregisters an instance or one of its ranks.")
            .answers::<Unregistration>("No answer has the ranks any more.")
            .fails(&["404"]),
        get("/workers", "Registered instances and their listeners.")
            .asks::<ModelScope>()
            .answers_list::<Worker>("The instances."),
        of_model::<TokenQuery>("/query", "The prefix of a prompt's tokens that each rank holds.")
            .takes_bytes(TOKENS)
            .answers::<QueryResponse>("The matches.")
            .fails(&["404", "409", "429"]),
        of_model::<HashQuery>("/query_by_hash", "The prefix of a prompt's blocks that each rank holds.")
            .takes_bytes(HASHES)
            .answers::<QueryResponse>("The matches.")
            .fails(&["404", "409", "429"]),
        of_model::<HashQuery>(
            "/query_tiered_by_hash",
            "The same by tier and in blocks, as Dynamo's selection service asks for it.",
        )
        .takes_bytes(HASHES)
        .answers::<TieredQueryResponse>("The matches.")
        .fails(&["409", "429"]),
        of_prompt("/score_completions", "Scores of instances for tokens or a text.")
            .needs(AnyOf(&["token_ids", "prompt"]))
            .takes_bytes(TOKENS)
            .answers::<PodScores>("The scores."),
        of_prompt("/score_chat_completions", "Scores of instances for a chat.")
            .needs(AnyOf(&["messages"]))
            .answers::<PodScores>("The scores."),
        of_prompt("/predict", "Records the instance to which a prompt was sent.")
            .needs(AnyOf(&["pod"]))
            .needs(AtMost("ttl_ms", PREDICTION_TTL_MS_MAX))
            .takes_bytes(TOKENS)
            .answers::<Prediction>("The prediction is recorded."),
        of_prompt("/pick", "Picks an instance for a prompt, by what it holds and by its load.")
            .takes_bytes(TOKENS)
            .answers::<Pick>("The picked instance."),
        of_model::<DoneRequest>("/done", "Reports that a request in flight has finished.")
            .answers::<Success>("The request is no longer in flight, or its prompt is computed.")
            .fails(&["404"]),
        of_prompt("/tokenize", "The tokens of a prompt, for debugging.")
            .takes_bytes(TOKENS)
            .answers::<TokenizedPrompt>("The tokens."),
        of_prompt("/render", "The chat that a template is given and the text that it makes of it, for debugging.")
            .takes_bytes(TOKENS)
            .answers_other(JSON, "The rendering: see docs/http-api.md."),
        of_model::<ExplainRequest>("/explain", "Reasons for which each rank's match ends where it does.")
            .asks::<ExplainParameters>()
            .needs(OneOf(&["token_ids", "block_hashes"]))
            .needs(Excludes("block_hashes", &["lora_name", "cache_salt"]))
            .takes_bytes(TOKENS)
            .answers::<Explanation>("The explanation.")
            .fails(&["404", "429"]),
        of_model::<PrefixTextQuery>("/text_by_hash", "The text of a prefix, if a kept prompt begins with its blocks.")
            .answers::<PrefixText>("The text.")
            .fails(&["404", "409", "501"]),
        get("/dump", "Every held block as events, or in lines.")
            .asks::<ModelScope>()
            .asks::<DumpParameters>()
            .answers_other(JSON, "The events by model and tenant: see docs/http-api.md.")
            .answers_other("application/x-ndjson", "The same in lines.")
            .fails(&["422", "503"]),
        get("/digest", "Count and digest of a rank's blocks.")
            .asks::<DigestParameters>()
            .answers::<RankRecord>("The rank.")
            .fails(&["404", "409", "422", "503"]),
        get("/store", "State of the shared store.").answers::<StoreState>("The state.").fails(&["404"]),
        get("/peers", "URLs of the known peers.").answers_texts("The URLs."),
        get("/discovery", "Reports of discovery sources.").answers_list::<DiscoverySource>("The sources."),
        post("/register_peer", "Adds a peer.")
            .takes::<PeerRequest>()
            .answers::<Success>("The peer was known before.")
            .answers_with::<Success>("201", "The peer is added."),
        post("/deregister_peer", "Removes a peer.")
            .takes::<PeerRequest>()
            .answers::<Success>("The peer is removed.")
            .fails(&["404"]),
        get("/ui", "The dashboard.").open().answers_other(HTML, "The page."),
        get("/ui/", "The dashboard.").open().answers_other(HTML, "A redirection to the page."),
        get("/ui/{file}", "A file of the dashboard.")
            .open()
            .names("file", "Name of the file.", r"^[a-z]+\.(css|js|svg)$")
            .answers_other("text/javascript", "The file.")
            .fails(&["404"]),
        get("/ui/events", "Counters each second, for the dashboard.")
            .answers_other("text/event-stream", "Server-sent events: see docs/http-api.md.")
            .fails(&["503"]),
    ]
}
