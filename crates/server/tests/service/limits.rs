//! Limits of tenants.

use std::path::PathBuf;

use flash_indexer_core::DpRank;
use flash_indexer_server::ServerOptions;
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, CacheGroup, Encoding, EngineEvent, encode_batch};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{PredictRequest, QueryRequest};
use crate::support::{Engine, PATIENCE, Service, removed, store, stored, tokens};

/// A service with limits, and their file.
struct Limited {
    service: Service,
    path: PathBuf,
    _folder: TempDir,
}

impl Limited {
    fn start(limits: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("limits.toml");
        std::fs::write(&path, limits).expect("a file");
        let limits_file = Some(path.clone());
        let options = ServerOptions { limits_file, grpc_port: Some(0), ..ServerOptions::default() };
        Self { service: Service::start_with(options), path, _folder: folder }
    }

    fn change(&self, limits: &str) {
        std::fs::write(&self.path, limits).expect("a file");
    }

    fn engine(&self, instance: &str, tenant: &str) -> Engine {
        Engine::registered(&self.service, json!(instance), 0, &json!({ "tenant_id": tenant }))
    }

    fn reached(&self, limit: &str) -> f64 {
        self.service.metrics().value("flash_indexer_limit_reached_total", &[("limit", limit)])
    }

    fn query(&self, tenant: &str, token_ids: &[u32]) -> (u16, Value) {
        self.service.post("/query", &query(tenant, token_ids))
    }
}

fn query(tenant: &str, token_ids: &[u32]) -> Value {
    json!({ "model_name": "m", "tenant_id": tenant, "token_ids": token_ids })
}

#[test]
fn queries_beyond_a_tenants_rate_are_answered_with_429_until_it_has_waited() {
    let limited = Limited::start("[tenants.a]\nqueries_per_second = 1\n");
    let _engines = [limited.engine("one", "a"), limited.engine("two", "b")];
    let refused = wait_for("a refusal", PATIENCE, || {
        let (status, answer) = limited.query("a", &[1]);
        (status != 200).then_some((status, answer))
    });
    assert_eq!(refused.0, 429, "{}", refused.1);
    let why = refused.1["error"].as_str().expect("an error");
    assert!(why.contains("tenant \"a\"") && why.contains("queries_per_second"), "{why}");
    assert!(limited.reached("tenant_queries") >= 1.0);
    for _ in 0..20 {
        assert_eq!(limited.query("b", &[1]).0, 200, "another tenant has its own rate");
    }
    wait_for("the next second", PATIENCE, || (limited.query("a", &[1]).0 == 200).then_some(()));
}

#[test]
fn a_large_prompt_uses_up_the_tenants_tokens_on_every_endpoint() {
    let limited = Limited::start(
        "[default]\nprompt_tokens_per_second = 10\n\n[tenants.free]\nprompt_tokens_per_second = 4000000000\n",
    );
    let service = &limited.service;
    let engine = limited.engine("one", "a");
    engine.say(service, 0, &[stored(None, &[1, 2])]);
    let _others = [limited.engine("two", "b"), limited.engine("three", "free")];
    let large: Vec<u32> = (0..10_000).collect();
    assert_eq!(limited.query("a", &large).0, 200, "the bucket was full");

    let prompt = query("a", &[1, 2]);
    let mut predicted = prompt.clone();
    predicted["pod"] = json!("one");
    let hashes = json!({ "model_name": "m", "tenant_id": "a", "block_hashes": [1] });
    let endpoints = [
        ("/query", &prompt),
        ("/query_by_hash", &hashes),
        ("/score_completions", &prompt),
        ("/predict", &predicted),
        ("/tokenize", &prompt),
        ("/render", &prompt),
        ("/explain", &prompt),
    ];
    for (path, body) in endpoints {
        let (status, answer) = service.post(path, body);
        assert_eq!(status, 429, "{path}: {answer}");
        let wait: u32 = service.header(path, body, "retry-after").expect("a header").parse().expect("seconds");
        assert!((100..=1_000).contains(&wait), "{path}: 10,000 tokens at 10 a second: {wait}");
    }
    assert_eq!(limited.reached("tenant_prompt_tokens"), 14.0);

    let mut client = RouterServiceClient::new(service.channel());
    let request = QueryRequest {
        model_name: "m".to_owned(),
        tenant_id: "a".to_owned(),
        token_ids: tokens(&[1]),
        ..QueryRequest::default()
    };
    let refused = service.block_on(client.query(request.clone())).expect_err("it is refused");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.metadata().contains_key("retry-after"));
    let prediction = PredictRequest {
        model_name: "m".to_owned(),
        tenant_id: "a".to_owned(),
        token_ids: tokens(&[1]),
        pod: "one".to_owned(),
        ..PredictRequest::default()
    };
    let refused = service.block_on(client.predict(prediction)).expect_err("it is refused");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let answers = service.block_on(client.query_stream(crate::grpc::Sent(requests)));
    let mut answers = answers.expect("a stream").into_inner();
    sender.blocking_send(request).expect("the stream is open");
    let answer = service.block_on(answers.message()).expect("a stream").expect("an answer");
    assert_eq!(answer.error.map(|error| error.code), Some(Code::ResourceExhausted.into()), "the stream continues");
    assert_eq!(limited.reached("tenant_prompt_tokens"), 17.0);

    // Each block of a query by hashes counts with its tokens.
    let hashes = json!({ "model_name": "m", "tenant_id": "b", "block_hashes": vec![1; 1_000] });
    assert_eq!(service.post("/query_by_hash", &hashes).0, 200);
    assert_eq!(service.post("/query_by_hash", &hashes).0, 429);
    for _ in 0..3 {
        assert_eq!(limited.query("free", &large).0, 200, "its entry replaces the default");
    }
}

#[test]
fn a_tenant_registers_as_many_ranks_as_its_limit() {
    let limited = Limited::start("[tenants.a]\nranks = 2\n");
    let register = |instance: &str, model: &str, tenant: &str| {
        let request = json!({
            "instance_id": instance, "endpoint": "tcp://127.0.0.1:9", "model_name": model, "block_size": 4,
            "tenant_id": tenant,
        });
        limited.service.post("/register", &request)
    };
    assert_eq!([register("1", "m", "a").0, register("2", "n", "a").0], [201, 201]);
    let (status, answer) = register("3", "m", "a");
    assert!(status == 429 && answer["error"].as_str().is_some_and(|why| why.contains("unregister some")), "{answer}");
    assert_eq!(limited.reached("tenant_ranks"), 1.0);
    assert_eq!(register("1", "m", "a").0, 200, "it is registered already");
    assert_eq!(register("3", "m", "b").0, 201, "another tenant has no limit");
    let end = json!({ "instance_id": "2", "model_name": "n", "tenant_id": "a" });
    assert_eq!(limited.service.post("/unregister", &end).0, 200);
    assert_eq!(register("3", "m", "a").0, 201);
}

#[test]
fn batches_name_no_more_ranks_than_the_limit_of_their_tenant() {
    let limited = Limited::start("[tenants.a]\nranks = 3\n");
    let engine = limited.engine("one", "a");
    let ranks = |service: &Service| {
        let workers = service.get("/workers").1;
        workers[0]["listeners"].as_object().expect("ranks").len()
    };
    for rank in 0..40 {
        let payload = encode_batch(1.0, &[stored(None, &[1 + u64::from(rank)])], Some(DpRank(rank)), Encoding::Map);
        engine.publisher.publish(u64::from(rank), &payload).expect("published");
    }
    engine.wait(&limited.service, "the last batch", |listener| listener["last_seq"] == json!(39));
    assert_eq!(ranks(&limited.service), 3);
    assert_eq!(limited.reached("tenant_batch_ranks"), 37.0, "each refusal is counted");
    let listener = limited.service.listener(&json!("one"), 0);
    assert_eq!(listener["rejected"]["too_many_ranks"], json!(37), "{listener}");
    // Ranks named by batches no longer count once their engine is unregistered.
    let end = json!({ "instance_id": "one", "model_name": "m", "tenant_id": "a" });
    assert_eq!(limited.service.post("/unregister", &end).0, 200);
    let other = limited.engine("two", "a");
    other.say(&limited.service, 0, &[stored(None, &[1])]);
}

#[test]
fn blocks_beyond_a_tenants_limit_are_refused_until_others_are_removed() {
    let limited = Limited::start("[tenants.a]\nheld_blocks = 3\n");
    let service = &limited.service;
    let (engine, other) = (limited.engine("one", "a"), limited.engine("two", "b"));
    engine.say(service, 0, &[stored(None, &[1, 2, 3])]);
    let held = |tenant: &str| {
        service.metrics().value("flash_indexer_held_blocks", &[("model_name", "m"), ("tenant_id", tenant)])
    };
    // The tenant's blocks are compared with the limit about every second.
    let mut sequence = 0;
    wait_for("a refusal", PATIENCE, || {
        sequence += 1;
        engine.say(service, sequence, &[stored(None, &[100 + sequence])]);
        (limited.reached("tenant_held_blocks") >= 1.0).then_some(())
    });
    let at_limit = held("a");
    let listener = service.listener(&json!("one"), 0);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("held_blocks")), "{listener}");
    engine.say(service, sequence + 1, &[stored(None, &[50]), removed(&[3])]);
    assert_eq!(held("a"), at_limit - 1.0, "removals are applied");
    other.say(service, 0, &[stored(None, &[1, 2, 3, 4, 5])]);
    assert_eq!(held("b"), 5.0, "another tenant has no limit");

    let all: Vec<u64> = (1..=2).chain(101..=100 + sequence).collect();
    engine.say(service, sequence + 2, &[removed(&all)]);
    assert_eq!(held("a"), 0.0);
    sequence += 2;
    wait_for("room", PATIENCE, || {
        sequence += 1;
        engine.say(service, sequence, &[stored(None, &[60])]);
        (held("a") == 1.0).then_some(())
    });
}

#[test]
fn blocks_beyond_the_bytes_of_a_tenant_are_refused() {
    let limited = Limited::start("[tenants.a]\nindex_bytes = 200000\n");
    let service = &limited.service;
    let (engine, other) = (limited.engine("one", "a"), limited.engine("two", "b"));
    let mut sequence = 0;
    wait_for("a refusal", PATIENCE, || {
        let first = 1 + sequence * 1_000;
        let chain: Vec<u64> = (first..first + 1_000).collect();
        engine.say(service, sequence, &[stored(None, &chain)]);
        sequence += 1;
        (limited.reached("tenant_held_blocks") >= 1.0).then_some(())
    });
    assert_eq!(service.listener(&json!("one"), 0)["trust"], json!("degraded"));
    for number in 0..sequence {
        let first = 1 + number * 1_000;
        let chain: Vec<u64> = (first..first + 1_000).collect();
        other.say(service, number, &[stored(None, &chain)]);
    }
    assert_eq!(service.listener(&json!("two"), 0)["trust"], json!("exact"), "another tenant has no limit");
}

#[test]
fn waiting_blocks_and_those_of_secondary_groups_count_in_the_bytes_of_a_tenant() {
    let thousand = |number: u64| (1 + number * 1_000..1 + (number + 1) * 1_000).collect::<Vec<_>>();
    let window = CacheGroup { idx: Some(1), kind: Some("sliding_window"), sliding_window: Some(8) };
    let waiting = |number| EngineEvent::Stored(store(Some(u64::MAX - number), &thousand(number)));
    let in_group = |number| EngineEvent::Stored(BlockStored { group: window, ..store(None, &thousand(number)) });
    let kinds: [&dyn Fn(u64) -> EngineEvent<'static>; 2] = [&waiting, &in_group];
    for kind in kinds {
        let limited = Limited::start("[tenants.a]\nindex_bytes = 200000\n");
        let (service, engine) = (&limited.service, limited.engine("one", "a"));
        engine.say(service, 0, &[stored(None, &[1])]);
        let mut sequence = 0;
        wait_for("a refusal", PATIENCE, || {
            sequence += 1;
            engine.say(service, sequence, &[kind(sequence)]);
            (limited.reached("tenant_held_blocks") >= 1.0).then_some(())
        });
        let refused = limited.reached("tenant_held_blocks");
        let further = Engine::registered(service, json!("two"), 0, &json!({ "tenant_id": "a", "model_name": "n" }));
        further.say(service, 0, &[stored(None, &[1, 2])]);
        assert_eq!(
            limited.reached("tenant_held_blocks"),
            refused + 2.0,
            "a new model begins with what its tenant has left"
        );
        let routed =
            json!({ "instance_id": "routed", "events": "none", "block_size": 4, "model_name": "n", "tenant_id": "a" });
        assert_eq!(service.post("/register", &routed).0, 201);
        let choice = json!({ "pod": "routed", "token_ids": tokens(&[7, 8]), "model_name": "n", "tenant_id": "a" });
        assert_eq!(service.post("/predict", &choice).1["blocks"], json!(0), "its blocks would be refused");
    }
}

#[test]
fn limits_are_read_again_when_their_file_changes() {
    let limited = Limited::start("[default]\nprompt_tokens_per_second = 1\n");
    let _engine = limited.engine("one", "a");
    assert_eq!(limited.query("a", &[1; 100_000]).0, 200);
    assert_eq!(limited.query("a", &[1]).0, 429);
    let failures = || limited.service.metrics().value("flash_indexer_reload_failures_total", &[("file", "limits")]);
    limited.change("[default]\nprompt_tokens = 1\n");
    wait_for("a failed read", PATIENCE, || (failures() > 0.0).then_some(()));
    assert_eq!(limited.query("a", &[1]).0, 429, "the previous limits stay in force");
    limited.change("[default]\nqueries_per_second = 1000\n");
    wait_for("the new limits", PATIENCE, || (limited.query("a", &[1]).0 == 200).then_some(()));
}

#[test]
fn a_server_without_a_valid_limits_file_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.toml");
    std::fs::write(&path, "[default]\nranks = 1\n\n[tenants.a]\nranks = 0\n").expect("a file");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let options = ServerOptions { port: 0, limits_file: Some(path.clone()), ..ServerOptions::default() };
    let error = runtime.block_on(flash_indexer_server::Server::start(options)).expect_err("the file is invalid");
    let error = error.to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("line 5"), "{error}");
}
