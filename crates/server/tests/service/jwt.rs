//! JSON web tokens of an issuer over HTTP and gRPC.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use flash_indexer_access::{JwtAlgorithm, JwtOptions, NewToken, Scope};
use flash_indexer_server::ServerOptions;
use flash_indexer_test_support::{JwtSigningKey, jwt_key_set, unsigned_jwt, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Code, Request, Status};

use crate::support::proto::QueryRequest;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::{Engine, PATIENCE, Service, tokens};

/// An issuer, with its keys in a file.
struct Issuer {
    _folder: TempDir,
    path: PathBuf,
    key: JwtSigningKey,
}

impl Issuer {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let issuer = Self { path: folder.path().join("jwks.json"), _folder: folder, key: JwtSigningKey::rsa("first") };
        issuer.publish(&[&issuer.key]);
        issuer
    }

    fn publish(&self, keys: &[&JwtSigningKey]) {
        std::fs::write(&self.path, jwt_key_set(keys)).expect("a file");
    }

    fn options(&self) -> ServerOptions {
        let jwt = JwtOptions {
            issuer: "https://issuer.example".to_owned(),
            audience: "flash-indexer".to_owned(),
            algorithms: JwtAlgorithm::ALL.to_vec(),
            scopes_claim: "scope".parse().expect("a name"),
            tenants_claim: Some("tenants".parse().expect("a name")),
        };
        ServerOptions { jwt: Some((self.path.clone(), jwt)), grpc_port: Some(0), ..ServerOptions::default() }
    }

    /// A token with every scope for every tenant.
    fn root(&self) -> String {
        self.key.sign(&claims("query events admin", "*", 600))
    }
}

fn claims(scopes: &str, tenants: &str, expires_in_s: i64) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    json!({
        "iss": "https://issuer.example", "aud": "flash-indexer", "sub": "router", "scope": scopes, "tenants": tenants,
        "exp": now.saturating_add_signed(expires_in_s)
    })
}

#[test]
fn http_and_grpc_accept_what_the_claims_permit() {
    let issuer = Issuer::new();
    let service = Service::start_for(issuer.options(), Some(&issuer.root()));
    let _engine = Engine::registered(&service, json!("one"), 0, &json!({ "tenant_id": "a" }));
    let reader = issuer.key.sign(&claims("openid query", "a", 600));
    let registrar = issuer.key.sign(&claims("events", "a", 600));
    let expired = issuer.key.sign(&claims("query", "a", -600));
    let others = JwtSigningKey::p256("other").sign(&claims("query", "a", 600));
    let unsigned = format!("{}.", unsigned_jwt(&json!({ "alg": "none", "kid": "first" }), &claims("query", "a", 600)));

    let mut client = RouterServiceClient::new(service.channel());
    let mut ask = |token: Option<&str>, tenant: &str| -> Result<usize, Status> {
        let tenant_id = tenant.to_owned();
        let message =
            QueryRequest { model_name: "m".to_owned(), tenant_id, token_ids: tokens(&[1]), ..QueryRequest::default() };
        let mut request = Request::new(message);
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("a value of metadata");
            request.metadata_mut().insert("authorization", value);
        }
        Ok(service.block_on(client.query(request))?.into_inner().ranks.len())
    };
    for (token, tenant, status, code, part) in [
        (Some(reader.as_str()), "a", 200, Code::Ok, ""),
        (Some(&reader), "b", 403, Code::PermissionDenied, "does not permit tenant \"b\""),
        (Some(&registrar), "a", 403, Code::PermissionDenied, "lacks the scope `query`; have the issuer add it"),
        (Some(&expired), "a", 401, Code::Unauthenticated, "token expired"),
        (Some(&others), "a", 401, Code::Unauthenticated, "unknown key id \"other\""),
        (Some(&unsigned), "a", 401, Code::Unauthenticated, "algorithm \"none\" of the JWT is not allowed"),
        (Some("secret"), "a", 401, Code::Unauthenticated, "not a valid JWT"),
        (None, "a", 401, Code::Unauthenticated, "no bearer token"),
    ] {
        let body = json!({ "model_name": "m", "token_ids": tokens(&[1]), "tenant_id": tenant });
        let (answered, answer) = service.post_with(token, "/query", &body);
        assert_eq!(answered, status, "{part}: {answer}");
        let answered = ask(token, tenant);
        match answered {
            Ok(ranks) => assert_eq!((ranks, code), (1, Code::Ok)),
            Err(denied) => {
                assert_eq!(denied.code(), code, "{denied}");
                let error = answer["error"].as_str().expect("a text");
                assert!(error.contains(part) && denied.message().contains(part), "{part}: {error} {denied}");
            }
        }
    }
    let denied = |reason| service.metrics().value("flash_indexer_access_denied_total", &[("reason", reason)]);
    let reasons = ["tenant", "scope", "jwt_expired", "jwt_unknown_key", "jwt_form", "no_token"];
    assert_eq!(reasons.map(denied), [2.0, 2.0, 2.0, 2.0, 4.0, 2.0]);
    assert_eq!(service.get_with(Some(&reader), "/workers").0, 200);
    assert_eq!(service.get_with(Some(&reader), "/dump").0, 403);
    assert_eq!(
        service.get_with(Some(&issuer.root()), "/store").0,
        404,
        "it permits all tenants, and there is no store"
    );
}

#[test]
fn keys_are_read_again_when_the_issuer_rotates_them() {
    let issuer = Issuer::new();
    let service = Service::start_for(issuer.options(), Some(&issuer.root()));
    let status = |token: &str| service.get_with(Some(token), "/workers").0;
    let next = JwtSigningKey::ed25519("next");
    let (by_first, by_next) = (issuer.root(), next.sign(&claims("query", "*", 600)));
    assert_eq!((status(&by_first), status(&by_next)), (200, 401));
    issuer.publish(&[&issuer.key, &next]);
    wait_for("the next key", PATIENCE, || (status(&by_next) == 200).then_some(()));
    assert_eq!(status(&by_first), 200);
    std::fs::write(&issuer.path, "{").expect("a file");
    let failures = || service.metrics().value("flash_indexer_reload_failures_total", &[("file", "jwt_keys")]);
    wait_for("the failure", PATIENCE, || (failures() > 0.0).then_some(()));
    assert_eq!((status(&by_first), status(&by_next)), (200, 200), "the previous keys stay in force");
    issuer.publish(&[&next]);
    wait_for("the end of the first key", PATIENCE, || (status(&by_first) == 401).then_some(()));
    assert_eq!(status(&by_next), 200);
}

#[test]
fn a_token_file_and_an_issuer_count_beside_each_other() {
    let issuer = Issuer::new();
    let token = NewToken::generate().expect("random bytes");
    let token_file = issuer.path.with_file_name("tokens.toml");
    std::fs::write(&token_file, token.entry("root", &[Scope::Query, Scope::Admin], &[])).expect("a file");
    let options = ServerOptions { token_file: Some(token_file), ..issuer.options() };
    let service = Service::start_for(options, Some(token.secret()));
    assert_eq!(service.get("/workers").0, 200);
    assert_eq!(service.get_with(Some(&issuer.root()), "/workers").0, 200);
    let (status, answer) = service.get_with(Some("secret"), "/workers");
    assert!(status == 401 && answer["error"].as_str().expect("a text").contains("token file"), "{status} {answer}");
    let (status, answer) = service.get_with(Some(&issuer.key.sign(&claims("query", "*", -600))), "/workers");
    assert!(status == 401 && answer["error"].as_str().expect("a text").contains("token expired"), "{status} {answer}");
}

#[test]
fn a_server_without_a_valid_key_set_does_not_start() {
    let issuer = Issuer::new();
    std::fs::write(&issuer.path, r#"{"keys": []}"#).expect("a file");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let options = ServerOptions { port: 0, ..issuer.options() };
    let error = runtime.block_on(flash_indexer_server::Server::start(options)).expect_err("there is no key");
    assert!(error.to_string().contains("failed to load the key set of JWTs"), "{error}");
}
