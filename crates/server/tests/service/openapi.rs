//! Every endpoint answers as the OpenAPI document specifies.

use std::collections::BTreeSet;

use flash_indexer_api as api;
use flash_indexer_snapshot::RankRecord;
use flash_indexer_test_support::{RedisNode, redis_server};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Engine, Service, replica, stored, to_host, tokens};

/// The JSON of a value that was read as a type. Fields that the type does not declare are lost.
fn declared<T: Serialize + DeserializeOwned>(value: &Value) -> Value {
    let read: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    serde_json::to_value(read).expect("JSON")
}

/// The JSON of a value without a declared type.
fn undeclared(value: &Value) -> Value {
    value.clone()
}

/// Checks a value against a schema of the document.
fn check(document: &Value, schema: &Value, value: &Value, what: &str) {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "components": document["components"],
        "allOf": [schema],
    });
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("document.json", schema).expect("a location");
    let mut schemas = boon::Schemas::new();
    let index = compiler.compile("document.json", &mut schemas).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    if let Err(error) = schemas.validate(value, index) {
        panic!("{what}: {error:#}: {value}");
    }
}

struct Request {
    path: &'static str,
    query: &'static str,
    /// None for GET.
    body: Option<Value>,
    declared: fn(&Value) -> Value,
}

fn get(path: &'static str, query: &'static str, declared: fn(&Value) -> Value) -> Request {
    Request { path, query, body: None, declared }
}

fn post(path: &'static str, body: Value, declared: fn(&Value) -> Value) -> Request {
    Request { path, query: "", body: Some(body), declared }
}

impl Request {
    /// Sends the request, and checks its body and the answer.
    fn check(&self, service: &Service, document: &Value, expected: u16) {
        let Self { path, query, body, declared } = self;
        let operation = &document["paths"][path][if body.is_some() { "post" } else { "get" }];
        if let Some(body) = body.as_ref().filter(|_| expected < 300) {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(schema.is_object(), "{path}: {operation}");
            check(document, schema, body, path);
        }
        let url = format!("{path}{query}");
        let (status, answer) = body.as_ref().map_or_else(|| service.get(&url), |body| service.post(&url, body));
        assert_eq!(status, expected, "{url}: {answer}");
        let responses = &operation["responses"];
        let response = responses.get(status.to_string()).unwrap_or(&responses["default"]);
        let content = &response["content"]["application/json"];
        assert!(content.is_object(), "{path} has no answer {status}: {operation}");
        if let Some(schema) = content.get("schema") {
            check(document, schema, &answer, path);
        }
        assert_eq!(declared(&answer), answer, "{url}");
    }
}

#[test]
fn every_endpoint_answers_as_the_document_says() {
    let service = Service::start();
    let (_, document) = service.get("/openapi.json");
    assert_eq!(document["openapi"], json!("3.1.0"));
    let engine = Engine::registered(&service, json!("pod-a"), 0, &json!({ "engine": "vllm" }));
    let other = Engine::registered(&service, json!(7), 1, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3]), to_host(2)]);
    other.say(&service, 0, &[stored(None, &[1])]);
    let prompt = tokens(&[1, 2, 3, 4]);
    let registration = |instance: Value| json!({ "instance_id": instance, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4 });
    let peer = json!({ "url": "http://127.0.0.1:9" });
    let requests = [
        (get("/health", "", declared::<api::Success>), 200),
        (get("/ready", "", declared::<api::Readiness>), 200),
        (get("/openapi.json", "", undeclared), 200),
        (get("/workers", "", declared::<Vec<api::Worker>>), 200),
        (get("/workers", "?model_name=m", declared::<Vec<api::Worker>>), 200),
        (post("/register", registration(json!(9)), declared::<api::Success>), 201),
        (post("/register", registration(json!(9)), declared::<api::Success>), 200),
        (post("/register", registration(json!(7)), declared::<api::Success>), 201),
        (post("/register", json!({}), declared::<api::ErrorBody>), 422),
        (
            post(
                "/query",
                json!({ "token_ids": prompt, "model_name": "m", "top_k": 2 }),
                declared::<api::QueryResponse>,
            ),
            200,
        ),
        (post("/query", json!({ "token_ids": prompt, "model_name": "x" }), declared::<api::ErrorBody>), 404),
        (
            post(
                "/query_by_hash",
                json!({ "block_hashes": [1, "0x2", -3], "model_name": "m" }),
                declared::<api::QueryResponse>,
            ),
            200,
        ),
        (
            post(
                "/query_tiered_by_hash",
                json!({ "block_hashes": [1], "model_name": "m" }),
                declared::<api::TieredQueryResponse>,
            ),
            200,
        ),
        (post("/score_completions", json!({ "prompt": prompt, "model_name": "m" }), declared::<api::PodScores>), 200),
        (
            post(
                "/score_completions",
                json!({ "token_ids": prompt, "model_name": "m", "detail": true, "pods": ["pod-a", 7] }),
                declared::<api::PodScores>,
            ),
            200,
        ),
        (
            post("/score_chat_completions", json!({ "messages": [], "model_name": "m" }), declared::<api::ErrorBody>),
            501,
        ),
        (
            post("/predict", json!({ "token_ids": prompt, "model_name": "m", "pod": 7 }), declared::<api::Prediction>),
            200,
        ),
        (
            post(
                "/pick",
                json!({ "token_ids": prompt, "model_name": "m", "request_id": "r", "detail": true }),
                declared::<api::Pick>,
            ),
            200,
        ),
        (post("/done", json!({ "request_id": "r", "model_name": "m" }), declared::<api::Success>), 200),
        (post("/tokenize", json!({ "token_ids": prompt, "model_name": "m" }), declared::<api::TokenizedPrompt>), 200),
        (post("/render", json!({ "token_ids": prompt, "model_name": "m" }), undeclared), 200),
        (post("/unregister", json!({ "instance_id": 9, "model_name": "m" }), declared::<api::Unregistration>), 200),
        (post("/explain", json!({ "token_ids": prompt, "model_name": "m" }), declared::<api::Explanation>), 200),
        (
            post(
                "/explain",
                json!({ "block_hashes": ["1"], "model_name": "m", "instance_id": "x" }),
                declared::<api::Explanation>,
            ),
            200,
        ),
        (post("/text_by_hash", json!({ "block_hashes": ["1"], "model_name": "m" }), declared::<api::ErrorBody>), 409),
        (get("/dump", "", undeclared), 200),
        (get("/digest", "?model_name=m&instance_id=pod-a", declared::<RankRecord>), 200),
        (get("/store", "", declared::<api::ErrorBody>), 404),
        (get("/discovery", "", declared::<Vec<api::DiscoverySource>>), 200),
        (post("/register_peer", peer.clone(), declared::<api::Success>), 201),
        (post("/register_peer", peer.clone(), declared::<api::Success>), 200),
        (get("/peers", "", declared::<Vec<String>>), 200),
        (post("/deregister_peer", peer, declared::<api::Success>), 200),
    ];
    let mut unchecked: BTreeSet<&str> =
        document["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
    for (request, expected) in &requests {
        request.check(&service, &document, *expected);
        unchecked.remove(request.path);
    }
    assert_eq!(unchecked, BTreeSet::from(["/metrics", "/ui", "/ui/", "/ui/events", "/ui/{file}"]), "these are no JSON");
    let parameters = document["paths"]["/dump"]["get"]["parameters"].as_array().expect("parameters").iter();
    let names: BTreeSet<&str> = parameters.filter_map(|parameter| parameter["name"].as_str()).collect();
    let aliases = ["model", "modelname", "routing_group"];
    assert_eq!(names, ["model_name", "tenant_id", "instance_id", "hashes"].into_iter().chain(aliases).collect());
    let (_, explained) = service.post("/explain?hashes=string", &json!({ "token_ids": prompt, "model_name": "m" }));
    check(&document, &json!({ "$ref": "#/components/schemas/Explanation" }), &explained, "hashes as texts");
}

#[test]
fn the_shared_store_answers_as_the_document_says() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let service = replica(&node);
    let (_, document) = service.get("/openapi.json");
    let engine = Engine::registered(&service, json!("pod-a"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    let prompt = tokens(&[1, 2]);
    get("/store", "", declared::<api::StoreState>).check(&service, &document, 200);
    get("/ready", "", declared::<api::Readiness>).check(&service, &document, 200);
    let query = json!({ "token_ids": prompt, "model_name": "m" });
    post("/query", query, declared::<api::QueryResponse>).check(&service, &document, 200);
    let detailed = json!({ "token_ids": prompt, "model_name": "m", "detail": true });
    post("/score_completions", detailed, declared::<api::PodScores>).check(&service, &document, 200);
}
