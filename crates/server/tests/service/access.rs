//! Access control: tokens, scopes and tenants at every interface.

use std::path::{Path, PathBuf};

use flash_indexer_access::{NewToken, Scope};
use flash_indexer_server::{ClientFiles, PeerUrl, ServerOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Code, Request, Status};

use crate::support::proto::QueryRequest;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

const ALL: &[Scope] = &[Scope::Query, Scope::Events, Scope::Admin];

/// A token file.
struct TokenFile {
    _folder: TempDir,
    path: PathBuf,
    /// Token with every scope for every tenant.
    root: String,
    entries: String,
}

impl TokenFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("tokens.toml");
        let mut file = Self { _folder: folder, path, root: String::new(), entries: String::new() };
        file.root = file.add("root", ALL, &[]);
        file
    }

    /// Adds a token, and returns it.
    fn add(&mut self, name: &str, scopes: &[Scope], tenants: &[&str]) -> String {
        let token = NewToken::generate().expect("random bytes");
        let tenants: Vec<String> = tenants.iter().map(|&tenant| tenant.to_owned()).collect();
        self.entries.push_str(&token.entry(name, scopes, &tenants));
        std::fs::write(&self.path, &self.entries).expect("a file");
        token.secret().to_owned()
    }

    fn options(&self) -> ServerOptions {
        ServerOptions { token_file: Some(self.path.clone()), grpc_port: Some(0), ..ServerOptions::default() }
    }

    fn service(&self) -> Service {
        Service::start_for(self.options(), Some(&self.root))
    }
}

fn engine(service: &Service, instance: &str, tenant: &str) -> Engine {
    let engine = Engine::registered(service, json!(instance), 0, &json!({ "tenant_id": tenant }));
    engine.say(service, 0, &[stored(None, &[1, 2])]);
    engine
}

fn query(tenant: Option<&str>) -> Value {
    json!({ "model_name": "m", "token_ids": tokens(&[1, 2]), "tenant_id": tenant })
}

#[test]
fn every_endpoint_but_probes_and_the_document_needs_a_token_with_its_scope() {
    let mut file = TokenFile::new();
    let each =
        [Scope::Query, Scope::Events, Scope::Admin].map(|scope| (scope, file.add(scope.as_str(), &[scope], &[])));
    let service = file.service();
    let (status, document) = service.get_with(None, "/openapi.json");
    assert_eq!(status, 200);
    let mut open = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let request = |token: Option<&str>| match methods.get("post") {
            Some(_) => service.post_with(token, path, &json!({})),
            None if path == "/metrics" || path.starts_with("/ui") => (service.status_with(token, path), Value::Null),
            None => service.get_with(token, path),
        };
        let (status, answer) = request(None);
        if status != 401 {
            open.push((path.as_str(), status));
            continue;
        }
        let error = answer["error"].as_str().unwrap_or("Authorization: Bearer");
        assert!(error.contains("Authorization: Bearer"), "{path}: {answer}");
        assert_eq!(request(Some("unknown")).0, 401, "{path}");
        let permitted: Vec<_> =
            each.iter().filter(|(_, token)| ![401, 403].contains(&request(Some(token)).0)).collect();
        assert_eq!(permitted.len(), 1, "{path} needs one scope: {permitted:?}");
    }
    let expected =
        [("/health", 200), ("/openapi.json", 200), ("/ready", 200), ("/ui", 200), ("/ui/", 200), ("/ui/{file}", 404)];
    assert_eq!(open, expected);
    let denied = |reason| service.metrics().value("flash_indexer_access_denied_total", &[("reason", reason)]);
    assert_eq!([denied("no_token"), denied("unknown_token"), denied("scope")], [24.0, 24.0, 48.0]);
}

#[test]
fn a_denied_request_says_how_to_authenticate() {
    let file = TokenFile::new();
    let service = Service::start_for(file.options(), None);
    let challenge = service.header("/query", &query(None), "www-authenticate");
    assert_eq!(challenge.as_deref(), Some("Bearer"));
    // The body is larger than the buffers of the sockets, and the client reads the answer after it.
    let (status, _) = service.post_text("/query", &" ".repeat(7 << 20));
    assert_eq!(status, 401);
}

#[test]
fn a_request_with_two_tokens_is_refused() {
    let file = TokenFile::new();
    let service = Service::start_for(file.options(), None);
    let token = format!("Bearer {}", file.root);
    for second in [token.as_str(), "Bearer unknown", "Basic dTpw"] {
        let [first, second] = [&token, second].map(|value| ("authorization", value));
        for (path, status) in [("/query", 400), ("/health", 405), ("/nothing", 404)] {
            let (answered, answer) = service.post_bytes(path, &[first, second], b"{}");
            assert_eq!(answered, status, "{path} {second:?}: {answer}");
        }
        let (_, answer) = service.post_bytes("/query", &[first, second], b"{}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("more than one")), "{answer}");
        assert_eq!(service.post_bytes("/query", &[first], b"{}").0, 422, "one is enough");
    }
    let mut client = RouterServiceClient::new(service.channel());
    let mut request = with_token(Some(&file.root), QueryRequest::default());
    request.metadata_mut().append("authorization", token.parse().expect("a token"));
    let refused = service.block_on(client.query(request)).expect_err("it has two tokens");
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("more than one"), "{refused}");
}

#[test]
fn a_token_of_a_tenant_sees_and_changes_that_tenant_only() {
    let mut file = TokenFile::new();
    let token = file.add("team-a", ALL, &["a"]);
    let service = file.service();
    let (first, _second) = (engine(&service, "one", "a"), engine(&service, "two", "b"));
    let as_a = Some(token.as_str());

    let (status, answer) = service.post_with(as_a, "/query", &query(Some("a")));
    assert_eq!((status, &answer["scores"]["one"]["0"]), (200, &json!(2 * BLOCK_TOKENS)));
    for tenant in [Some("b"), None] {
        let body = query(tenant);
        for path in ["/query", "/score_completions", "/explain", "/tokenize", "/render", "/pick"] {
            let (status, answer) = service.post_with(as_a, path, &body);
            assert_eq!(status, 403, "{path} {tenant:?}: {answer}");
        }
        let hashes = json!({ "model_name": "m", "block_hashes": [1], "tenant_id": tenant });
        assert_eq!(service.post_with(as_a, "/query_by_hash", &hashes).0, 403);
        assert_eq!(service.post_with(as_a, "/text_by_hash", &hashes).0, 403);
        let chat = json!({ "model": "m", "messages": [], "tenant_id": tenant });
        assert_eq!(service.post_with(as_a, "/score_chat_completions", &chat).0, 403);
        let mut prediction = body.clone();
        prediction["pod"] = json!("two");
        assert_eq!(service.post_with(as_a, "/predict", &prediction).0, 403);
        let done = json!({ "model_name": "m", "request_id": "r", "tenant_id": tenant });
        assert_eq!(service.post_with(as_a, "/done", &done).0, 403);
        let registration = json!({
            "instance_id": "three", "endpoint": first.publisher.endpoint(), "model_name": "m",
            "block_size": BLOCK_TOKENS, "tenant_id": tenant,
        });
        assert_eq!(service.post_with(as_a, "/register", &registration).0, 403);
        let end = json!({ "instance_id": "two", "model_name": "m", "tenant_id": tenant });
        assert_eq!(service.post_with(as_a, "/unregister", &end).0, 403);
    }
    let bound = json!({
        "instance_id": "pod", "endpoint": "bound", "model_name": "m", "block_size": BLOCK_TOKENS, "tenant_id": "a",
    });
    assert_eq!(service.post_with(as_a, "/register", &bound).0, 403, "the pod may be of another tenant");
    // An alias is checked like the field.
    let aliased = json!({ "model_name": "m", "token_ids": [1], "routing_group": "b" });
    assert_eq!(service.post_with(as_a, "/query", &aliased).0, 403);

    let instances = |path: &str| {
        let (status, workers) = service.get_with(as_a, path);
        assert_eq!(status, 200, "{workers}");
        workers.as_array().expect("a list").iter().map(|worker| worker["instance_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(instances("/workers"), ["one"]);
    assert_eq!(instances("/workers?model_name=m"), ["one"]);
    assert_eq!(service.get_with(as_a, "/workers?tenant_id=b").0, 403);
    let (status, dump) = service.get_with(as_a, "/dump");
    assert_eq!((status, dump.to_string().contains("two")), (200, false));
    assert!(dump.to_string().contains("one"));
    assert_eq!(service.get_with(as_a, "/dump?tenant_id=b").0, 403);
    let digest = |tenant: &str| format!("/digest?model_name=m&instance_id=two&dp_rank=0&tenant_id={tenant}");
    assert_eq!(service.get_with(as_a, &digest("b")).0, 403);
    for path in ["/metrics", "/store", "/peers", "/discovery"] {
        assert_eq!(service.status_with(as_a, path), 403, "{path}");
    }
    assert_eq!(service.post_with(as_a, "/register_peer", &json!({ "url": "http://b:1" })).0, 403);
    assert_eq!(service.get("/workers").1.as_array().map(Vec::len), Some(2), "the other tenant is as it was");
}

#[test]
fn a_revoked_token_is_refused_while_the_service_runs() {
    let mut file = TokenFile::new();
    let service = file.service();
    let token = file.add("late", &[Scope::Query], &[]);
    let status = |token: &str| service.get_with(Some(token), "/workers").0;
    wait_for("the new token", PATIENCE, || (status(&token) == 200).then_some(()));

    std::fs::write(&file.path, "nonsense").expect("a file");
    let failures = || service.metrics().value("flash_indexer_token_file_failures_total", &[]);
    wait_for("a failed read", PATIENCE, || (failures() > 0.0).then_some(()));
    assert_eq!(status(&token), 200, "the previous tokens stay in force");

    let kept: String = file.entries.split_inclusive("[[token]]").take(2).collect();
    std::fs::write(&file.path, kept.trim_end_matches("[[token]]")).expect("a file");
    wait_for("the revocation", PATIENCE, || (status(&token) == 401).then_some(()));
    assert_eq!(status(&file.root), 200);
}

fn with_token<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a token"));
    }
    request
}

#[test]
fn grpc_needs_the_same_tokens() {
    let mut file = TokenFile::new();
    let (reader, registrar) = (file.add("a", &[Scope::Query], &["a"]), file.add("e", &[Scope::Events], &[]));
    let service = file.service();
    let _engine = engine(&service, "one", "a");
    let mut client = RouterServiceClient::new(service.channel());
    let request = |tenant: &str| QueryRequest {
        model_name: "m".to_owned(),
        tenant_id: tenant.to_owned(),
        token_ids: tokens(&[1, 2]),
        ..QueryRequest::default()
    };
    let mut ask = |token: Option<&str>, tenant: &str| -> Result<usize, Status> {
        let answer = service.block_on(client.query(with_token(token, request(tenant))))?;
        Ok(answer.into_inner().ranks.len())
    };
    assert_eq!(ask(Some(&reader), "a").expect("it is permitted"), 1);
    let code = |answer: Result<usize, Status>| answer.expect_err("it is denied").code();
    assert_eq!(code(ask(None, "a")), Code::Unauthenticated);
    assert_eq!(code(ask(Some("unknown"), "a")), Code::Unauthenticated);
    assert_eq!(code(ask(Some(&registrar), "a")), Code::PermissionDenied);
    assert_eq!(code(ask(Some(&reader), "b")), Code::PermissionDenied);
    assert_eq!(code(ask(Some(&reader), "")), Code::PermissionDenied, "the default tenant is a tenant");
    let denied = |reason| service.metrics().value("flash_indexer_access_denied_total", &[("reason", reason)]);
    assert_eq!([denied("no_token"), denied("unknown_token"), denied("scope"), denied("tenant")], [1.0, 1.0, 1.0, 2.0]);
}

#[test]
fn each_request_of_a_grpc_stream_is_checked() {
    let mut file = TokenFile::new();
    let reader = file.add("a", &[Scope::Query], &["a"]);
    let service = file.service();
    let _engines = [engine(&service, "one", "a"), engine(&service, "two", "b")];
    let mut client = RouterServiceClient::new(service.channel());
    let request = |id: u64, tenant: &str| QueryRequest {
        request_id: id,
        model_name: "m".to_owned(),
        tenant_id: tenant.to_owned(),
        token_ids: tokens(&[1, 2]),
        ..QueryRequest::default()
    };
    let (sender, requests) = tokio::sync::mpsc::channel(4);
    let stream = crate::grpc::Sent(requests);
    let mut answers =
        service.block_on(client.query_stream(with_token(Some(&reader), stream))).expect("it is permitted").into_inner();
    let mut next = |id: u64, tenant: &str| {
        sender.blocking_send(request(id, tenant)).expect("the stream is open");
        let answer = service.block_on(answers.message()).expect("a stream").expect("an answer");
        (answer.ranks.len(), answer.error.map(|error| error.code))
    };
    assert_eq!(next(1, "a"), (1, None));
    assert_eq!(next(2, "b"), (0, Some(Code::PermissionDenied.into())));
    assert_eq!(next(3, "a"), (1, None), "the stream continues");

    let kept: String = file.entries.split_inclusive("[[token]]").take(2).collect();
    std::fs::write(&file.path, kept.trim_end_matches("[[token]]")).expect("a file");
    let unauthenticated = (0, Some(Code::Unauthenticated.into()));
    wait_for("the revocation", PATIENCE, || (next(4, "a") == unauthenticated).then_some(()));

    let (_sender, requests) = tokio::sync::mpsc::channel(1);
    let refused = service.block_on(client.query_stream(with_token(None, crate::grpc::Sent(requests))));
    assert_eq!(refused.expect_err("it is denied").code(), Code::Unauthenticated);
}

#[test]
fn a_replica_recovers_from_a_peer_with_its_token() {
    let mut file = TokenFile::new();
    let peer = file.add("peer", &[Scope::Query, Scope::Admin], &[]);
    let service = file.service();
    let _engine = engine(&service, "one", "default");
    let url: PeerUrl = service.url("").parse().expect("a URL");
    let recovered = |token: Option<&str>| {
        let path = token.map(|token| {
            let path = file.path.with_extension("peer");
            std::fs::write(&path, format!("{token}\n")).expect("a file");
            path
        });
        let peer_credentials = ClientFiles { token: path, ..ClientFiles::default() };
        Service::recovered(ServerOptions { peers: vec![url.clone()], peer_credentials, ..ServerOptions::default() })
    };
    let held = |replica: &Service| replica.get("/dump").1.to_string().matches("block_hash").count();
    assert!(held(&recovered(Some(&peer))) > 0);
    assert_eq!(held(&recovered(None)), 0, "the peer answers 401");
}

#[test]
fn a_server_without_a_valid_token_file_does_not_start() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let options = ServerOptions { port: 0, token_file: Some(Path::new("/nonexistent").into()), ..Default::default() };
    let error = runtime.block_on(flash_indexer_server::Server::start(options)).expect_err("there is no file");
    assert!(error.to_string().contains("failed to load the token file /nonexistent"), "{error}");
}
