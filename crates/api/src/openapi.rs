//! The OpenAPI document of the HTTP API.

use std::collections::BTreeMap;

use flash_indexer_snapshot::RankRecord;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Object, Type};
use utoipa::openapi::{
    ComponentsBuilder, Content, Info, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref, RefOr, Required,
    ResponseBuilder, Schema,
};
use utoipa::{IntoParams, ToSchema};

use crate::{
    DigestParameters, DiscoverySource, DoneRequest, DumpParameters, ErrorBody, ExplainParameters, ExplainRequest,
    Explanation, HashQuery, ModelScope, PeerRequest, Pick, PodScores, Prediction, PromptFields, QueryResponse,
    Readiness, RegisterRequest, StoreState, Success, TieredQueryResponse, TokenQuery, TokenizedPrompt,
    UnregisterRequest, Unregistration, Worker,
};

const JSON: &str = "application/json";
const HTML: &str = "text/html";
const OCTET_STREAM: &str = "application/octet-stream";

/// The OpenAPI 3.1 document of all endpoints.
#[must_use]
pub fn document() -> OpenApi {
    let mut schemas = Vec::new();
    add_schemas::<ErrorBody>(&mut schemas);
    let mut paths = PathsBuilder::new();
    for endpoint in endpoints() {
        endpoint.schemas.iter().for_each(|add| add(&mut schemas));
        let (path, method) = (endpoint.path, endpoint.method.clone());
        paths = paths.path(path, PathItem::new(method, endpoint.operation()));
    }
    let mut info = Info::new("Flash Indexer", env!("CARGO_PKG_VERSION"));
    info.description = Some("An index of the KV blocks that inference engines hold.".to_owned());
    let components = ComponentsBuilder::new().schemas_from_iter(schemas);
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components.build())).build()
}

/// Every endpoint of the service.
fn endpoints() -> Vec<Endpoint> {
    let tokens = "Tokens as little-endian 32-bit numbers; the other fields are in the query string.";
    let hashes = "Local hashes as little-endian 64-bit numbers; the other fields are in the query string.";
    vec![
        get("/health", "Whether the process runs.").answers::<Success>("The process runs."),
        get("/ready", "Whether the service is ready.").answers::<Readiness>("The service is ready."),
        get("/metrics", "Metrics of Prometheus.").answers_other("text/plain", "The metrics."),
        get("/openapi.json", "This document.").answers_other(JSON, "An OpenAPI document."),
        post("/register", "Registers a rank of an engine.")
            .takes::<RegisterRequest>()
            .answers::<Success>("The rank was registered in the same way before.")
            .answers_with::<Success>("201", "The rank is registered."),
        post("/unregister", "Unregisters an instance or one of its ranks.")
            .takes::<UnregisterRequest>()
            .answers::<Unregistration>("No answer has the ranks any more."),
        get("/workers", "Registered instances and their listeners.")
            .asks::<ModelScope>()
            .answers_list::<Worker>("The instances."),
        post("/query", "The prefix of a prompt's tokens that each rank holds.")
            .takes::<TokenQuery>()
            .takes_bytes(tokens)
            .answers::<QueryResponse>("The matches."),
        post("/query_by_hash", "The prefix of a prompt's blocks that each rank holds.")
            .takes::<HashQuery>()
            .takes_bytes(hashes)
            .answers::<QueryResponse>("The matches."),
        post("/query_tiered_by_hash", "The same by tier and in blocks, as Dynamo's selection service asks for it.")
            .takes::<HashQuery>()
            .takes_bytes(hashes)
            .answers::<TieredQueryResponse>("The matches."),
        post("/score_completions", "Scores of instances for tokens or a text.")
            .takes::<PromptFields>()
            .takes_bytes(tokens)
            .answers::<PodScores>("The scores."),
        post("/score_chat_completions", "Scores of instances for a chat.")
            .takes::<PromptFields>()
            .answers::<PodScores>("The scores."),
        post("/predict", "Records the instance to which a prompt was sent.")
            .takes::<PromptFields>()
            .takes_bytes(tokens)
            .answers::<Prediction>("The prediction is recorded."),
        post("/pick", "Picks an instance for a prompt, by what it holds and by its load.")
            .takes::<PromptFields>()
            .takes_bytes(tokens)
            .answers::<Pick>("The picked instance."),
        post("/done", "Reports that a request in flight has finished.")
            .takes::<DoneRequest>()
            .answers::<Success>("The request is no longer in flight, or its prompt is computed."),
        post("/tokenize", "The tokens of a prompt, for debugging.")
            .takes::<PromptFields>()
            .takes_bytes(tokens)
            .answers::<TokenizedPrompt>("The tokens."),
        post("/render", "The chat that a template is given and the text that it makes of it, for debugging.")
            .takes::<PromptFields>()
            .takes_bytes(tokens)
            .answers_other(JSON, "The rendering: see docs/http-api.md."),
        post("/explain", "Reasons for which each rank's match ends where it does.")
            .asks::<ExplainParameters>()
            .takes::<ExplainRequest>()
            .takes_bytes(tokens)
            .answers::<Explanation>("The explanation."),
        get("/dump", "Every held block as events, or in lines.")
            .asks::<ModelScope>()
            .asks::<DumpParameters>()
            .answers_other(JSON, "The events by model and tenant: see docs/http-api.md.")
            .answers_other("application/x-ndjson", "The same in lines."),
        get("/digest", "Count and digest of a rank's blocks.")
            .asks::<DigestParameters>()
            .answers::<RankRecord>("The rank."),
        get("/store", "State of the shared store.").answers::<StoreState>("The state."),
        get("/peers", "URLs of the known peers.").answers_texts("The URLs."),
        get("/discovery", "Reports of discovery sources.").answers_list::<DiscoverySource>("The sources."),
        post("/register_peer", "Adds a peer.")
            .takes::<PeerRequest>()
            .answers::<Success>("The peer was known before.")
            .answers_with::<Success>("201", "The peer is added."),
        post("/deregister_peer", "Removes a peer.").takes::<PeerRequest>().answers::<Success>("The peer is removed."),
        get("/ui", "The dashboard.").answers_other(HTML, "The page."),
        get("/ui/", "The dashboard.").answers_other(HTML, "A redirection to the page."),
        get("/ui/{file}", "A file of the dashboard.")
            .names("file", "Name of the file.")
            .answers_other("text/javascript", "The file."),
        get("/ui/events", "Counters each second, for the dashboard.")
            .answers_other("text/event-stream", "Server-sent events: see docs/http-api.md."),
    ]
}

/// Schemas by name.
type Schemas = Vec<(String, RefOr<Schema>)>;

/// Adds the schema of a type and the schemas that it refers to.
fn add_schemas<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// One endpoint of the document.
struct Endpoint {
    path: &'static str,
    method: HttpMethod,
    summary: &'static str,
    parameters: Vec<Parameter>,
    body: RequestBodyBuilder,
    takes_body: bool,
    responses: BTreeMap<&'static str, ResponseBuilder>,
    schemas: Vec<fn(&mut Schemas)>,
}

fn get(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint::new(path, HttpMethod::Get, summary)
}

fn post(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint::new(path, HttpMethod::Post, summary)
}

fn reference<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

impl Endpoint {
    fn new(path: &'static str, method: HttpMethod, summary: &'static str) -> Self {
        let error = ResponseBuilder::new()
            .description("The request failed; the error says why and what to do.")
            .content(JSON, Content::new(Some(reference::<ErrorBody>())));
        Self {
            path,
            method,
            summary,
            parameters: Vec::new(),
            body: RequestBodyBuilder::new().required(Some(Required::True)),
            takes_body: false,
            responses: BTreeMap::from([("default", error)]),
            schemas: Vec::new(),
        }
    }

    /// Adds parameters of the query string.
    fn asks<T: IntoParams>(mut self) -> Self {
        self.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
        self
    }

    /// Adds a parameter of the path.
    fn names(mut self, parameter: &str, description: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(parameter)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(description))
            .schema(Some(Object::with_type(Type::String)));
        self.parameters.push(parameter.build());
        self
    }

    /// Adds a JSON body.
    fn takes<T: ToSchema>(mut self) -> Self {
        self.schemas.push(add_schemas::<T>);
        self.takes_body = true;
        self.body = self.body.content(JSON, Content::new(Some(reference::<T>())));
        self
    }

    /// Adds a binary body.
    fn takes_bytes(mut self, description: &str) -> Self {
        let content = Content::builder().description(Some(description)).build();
        self.body = self.body.content(OCTET_STREAM, content);
        self
    }

    /// Adds a JSON response with status 200.
    fn answers<T: ToSchema>(self, description: &str) -> Self {
        self.answers_with::<T>("200", description)
    }

    fn answers_with<T: ToSchema>(mut self, status: &'static str, description: &str) -> Self {
        self.schemas.push(add_schemas::<T>);
        self.answers_content(status, description, JSON, Content::new(Some(reference::<T>())))
    }

    fn answers_list<T: ToSchema>(mut self, description: &str) -> Self {
        self.schemas.push(add_schemas::<T>);
        let list: RefOr<Schema> = ArrayBuilder::new().items(Ref::from_schema_name(T::name())).into();
        self.answers_content("200", description, JSON, Content::new(Some(list)))
    }

    fn answers_texts(self, description: &str) -> Self {
        let list: RefOr<Schema> = ArrayBuilder::new().items(Object::with_type(Type::String)).into();
        self.answers_content("200", description, JSON, Content::new(Some(list)))
    }

    /// Adds a response without a schema.
    fn answers_other(self, content_type: &'static str, description: &str) -> Self {
        self.answers_content("200", description, content_type, Content::new(None::<RefOr<Schema>>))
    }

    fn answers_content(
        mut self,
        status: &'static str,
        description: &str,
        content_type: &str,
        content: Content,
    ) -> Self {
        let response = self.responses.remove(status).unwrap_or_else(|| ResponseBuilder::new().description(description));
        self.responses.insert(status, response.content(content_type, content));
        self
    }

    fn operation(self) -> OperationBuilder {
        let operation = OperationBuilder::new()
            .operation_id(Some(self.path.trim_start_matches('/').replace('.', "_")))
            .summary(Some(self.summary))
            .parameters(Some(self.parameters))
            .request_body(self.takes_body.then(|| self.body.build()));
        self.responses.into_iter().fold(operation, |operation, (status, response)| operation.response(status, response))
    }
}
