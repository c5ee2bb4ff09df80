//! Names that clients, engines, pods, peers and discovery sources choose are bounded, and are never repeated in full.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{
    DiscoveryOptions, DiscoverySource, ENDPOINT_BYTES_MAX, EngineTemplate, INSTANCE_ID_BYTES_MAX, KubernetesOptions,
    NAME_BYTES_MAX, PodOptions, SALT_BYTES_MAX, ServerOptions,
};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, encode_batch};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::fake_cluster::FakeCluster;
use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{GetPodScoresRequest, PredictRequest};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, store, stored, tokens};

/// Longest answer to a request that is refused, in bytes.
const ANSWER_BYTES_MAX: usize = 2_048;

/// A name that is far too long, within the limit of a body.
fn huge() -> String {
    "n".repeat(7 << 20)
}

fn with(mut body: Value, field: &str, value: &str) -> Value {
    body[field] = json!(value);
    body
}

fn register() -> Value {
    json!({ "instance_id": 9, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": BLOCK_TOKENS })
}

#[test]
fn a_request_with_a_long_name_is_refused_with_field_bound_and_length() {
    let service = Service::start();
    let query = || json!({ "token_ids": [1], "model_name": "m" });
    let by_hash = || json!({ "block_hashes": [1], "model_name": "m" });
    let unregister = || json!({ "instance_id": 9, "model_name": "m" });
    let predict = || json!({ "token_ids": [1], "model_name": "m", "pod": 9 });
    assert_eq!(service.post("/register", &register()).0, 201);
    let cases: [(&str, Value, &str, usize); 17] = [
        ("/register", register(), "model_name", NAME_BYTES_MAX),
        ("/register", register(), "tenant_id", NAME_BYTES_MAX),
        ("/register", register(), "lora_name", NAME_BYTES_MAX),
        ("/register", register(), "endpoint", ENDPOINT_BYTES_MAX),
        ("/register", register(), "replay_endpoint", ENDPOINT_BYTES_MAX),
        ("/unregister", unregister(), "model_name", NAME_BYTES_MAX),
        ("/unregister", unregister(), "tenant_id", NAME_BYTES_MAX),
        ("/query", query(), "model_name", NAME_BYTES_MAX),
        ("/query", query(), "tenant_id", NAME_BYTES_MAX),
        ("/query", query(), "lora_name", NAME_BYTES_MAX),
        ("/query", query(), "cache_salt", SALT_BYTES_MAX),
        ("/query_by_hash", by_hash(), "model_name", NAME_BYTES_MAX),
        ("/score_completions", query(), "cache_salt", SALT_BYTES_MAX),
        ("/score_completions", query(), "model_name", NAME_BYTES_MAX),
        ("/predict", predict(), "lora_name", NAME_BYTES_MAX),
        ("/explain", query(), "lora_name", NAME_BYTES_MAX),
        ("/explain", query(), "cache_salt", SALT_BYTES_MAX),
    ];
    for (path, body, field, bytes_max) in cases {
        for long in ["n".repeat(bytes_max + 1), huge()] {
            let (status, answer) = service.post(path, &with(body.clone(), field, &long));
            let error = answer["error"].as_str().expect("an error");
            assert_eq!(status, 400, "{path} {field}: {}", &error[..error.len().min(ANSWER_BYTES_MAX)]);
            assert!(error.len() < ANSWER_BYTES_MAX, "{path} {field} repeats the name");
            for part in [field.to_owned(), bytes_max.to_string(), long.len().to_string()] {
                assert!(error.contains(&part), "{path} {field}: {error}");
            }
        }
    }
    for (path, body) in [
        ("/register", with(register(), "instance_id", &huge())),
        ("/unregister", with(unregister(), "instance_id", &huge())),
        ("/predict", with(predict(), "pod", &huge())),
        ("/explain", with(query(), "instance_id", &huge())),
        ("/score_completions", json!({ "token_ids": [1], "model_name": "m", "pods": ["9", huge()] })),
    ] {
        let (status, answer) = service.post(path, &body);
        let error = answer["error"].as_str().expect("an error");
        let len = huge().len();
        let expected =
            format!("instance_id has {len} bytes; at most {INSTANCE_ID_BYTES_MAX} are allowed: give a shorter one");
        assert_eq!((status, error), (400, expected.as_str()), "{path}");
    }
    let (status, answer) = service.get(&format!("/workers?model_name={}", "n".repeat(NAME_BYTES_MAX + 1)));
    assert!(status == 400 && answer.to_string().contains("model_name"), "{answer}");
    let bounds = service.metrics().value("flash_indexer_bounds_reached_total", &[("bound", "names")]);
    assert_eq!(bounds, 40.0, "each refusal is counted once");
    assert!(service.get_text("/metrics").len() < 1 << 20, "no long name was retained");

    // A name of exactly the maximum length is accepted.
    let longest = with(with(register(), "model_name", &"m".repeat(NAME_BYTES_MAX)), "instance_id", &"i".repeat(256));
    assert_eq!(service.post("/register", &longest).0, 201);
}

#[test]
fn errors_and_metrics_repeat_no_long_and_no_raw_text() {
    let service = Service::start();
    let long = huge();
    let cases = [
        ("/register", with(register(), "engine", &long), 422),
        ("/register", with(register(), "block_size", &long), 422),
        ("/query", json!({ "token_ids": long, "model_name": "m" }), 422),
        ("/query_by_hash", json!({ "block_hashes": [long], "model_name": "m" }), 422),
        ("/query", json!({ "token_ids": [1], "model_name": long, "model": "m" }), 400),
        ("/register_peer", json!({ "url": long }), 400),
        ("/score_completions", json!({ "token_ids": long, "model_name": "m" }), 422),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = service.post(path, &body);
        assert_eq!(status, expected, "{path}");
        assert!(answer.to_string().len() < ANSWER_BYTES_MAX, "{path} repeats what was sent");
    }
    let (status, answer) = service.get(&format!("/{}", "p".repeat(30_000)));
    assert!(status == 404 && answer.to_string().len() < ANSWER_BYTES_MAX);

    let raw = "m\"} 1 flash_indexer_forged 1 \\";
    assert_eq!(service.post("/register", &with(register(), "model_name", raw)).0, 201);
    assert!(service.metrics().family("flash_indexer_forged").is_none(), "a name makes no metric");
}

#[test]
fn names_with_control_characters_are_refused_at_every_door() {
    let pods = Some(PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]));
    let service = Service::start_with(ServerOptions { pods, grpc_port: Some(0), ..ServerOptions::default() });
    assert_eq!(service.post("/register", &register()).0, 201);
    let query = || json!({ "token_ids": [1], "model_name": "m" });
    let raw = "m\n2026-01-01 ERROR forged";
    let cases = [
        ("/register", register(), "model_name"),
        ("/register", register(), "tenant_id"),
        ("/register", register(), "lora_name"),
        ("/register", register(), "instance_id"),
        ("/unregister", json!({ "instance_id": 9, "model_name": "m" }), "instance_id"),
        ("/query", query(), "model_name"),
        ("/query", query(), "lora_name"),
        ("/explain", query(), "instance_id"),
    ];
    for (path, body, field) in cases {
        let (status, answer) = service.post(path, &with(body, field, raw));
        let expected =
            format!("{field} has the control character U+000A at byte 1: give one without control characters");
        assert_eq!((status, &answer["error"]), (400, &json!(expected)), "{path} {field}");
    }
    let salted = with(query(), "cache_salt", raw);
    assert_eq!(service.post("/query", &salted).0, 200, "a salt is hashed, and shown in no line");
    let mut client = RouterServiceClient::new(service.channel());
    let request = PredictRequest { model_name: "m".to_owned(), pod: raw.to_owned(), ..Default::default() };
    let refused = service.block_on(client.predict(request)).expect_err("it has a line break");
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("U+000A"), "{refused}");

    let endpoint = service.indexer().pod_addresses().remove(0);
    let topic = format!("kv@pod@{raw}").into_bytes();
    let pod = Publisher::connect(PublisherOptions { endpoint, topic, ..PublisherOptions::on_loopback() }).expect("up");
    assert!(pod.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not listen");
    pod.publish(0, &encode_batch(1.0, &[stored(None, &[1])], None, Encoding::Map)).expect("published");
    wait_for("the refusal of the topic", PATIENCE, || {
        let rejected = service.metrics().value("flash_indexer_rejected_total", &[("reason", "bad_topic")]);
        (rejected > 0.0).then_some(())
    });

    let engine = Engine::registered(&service, json!(1), 0, &json!({ "model_name": "adapters" }));
    let adapter = BlockStored { lora_name: Some("a\u{1b}[2J"), ..store(None, &[2]) };
    engine.say(&service, 0, &[EngineEvent::Stored(adapter), stored(None, &[3])]);
    let listener = service.listener(&json!(1), 0);
    let rejected = &listener["rejected"]["adapter_name_control_character"];
    assert_eq!((&listener["trust"], rejected), (&json!("degraded"), &json!(1)), "{listener}");
    let counted = [("reason", "adapter_name_control_character")];
    assert_eq!(service.metrics().value("flash_indexer_rejected_total", &counted), 1.0);
}

#[test]
fn grpc_refuses_long_names_as_http_does() {
    let service = Service::start_with(ServerOptions { grpc_port: Some(0), ..ServerOptions::default() });
    assert_eq!(service.post("/register", &register()).0, 201);
    let mut client = RouterServiceClient::new(service.channel());
    let plain =
        PredictRequest { model_name: "m".to_owned(), pod: "9".to_owned(), token_ids: vec![1], ..Default::default() };
    let long = "n".repeat(3 << 20);
    for (field, request) in [
        ("model_name", PredictRequest { model_name: long.clone(), ..plain.clone() }),
        ("tenant_id", PredictRequest { tenant_id: long.clone(), ..plain.clone() }),
        ("instance_id", PredictRequest { pod: long.clone(), ..plain.clone() }),
        ("lora_name", PredictRequest { lora_name: long.clone(), ..plain.clone() }),
        ("cache_salt", PredictRequest { cache_salt: long.clone(), ..plain.clone() }),
    ] {
        let status = service.block_on(client.predict(request)).expect_err("it is too long");
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert!(status.message().contains(field) && status.message().len() < ANSWER_BYTES_MAX, "{}", status.message());
    }
    let bounds = service.metrics().value("flash_indexer_bounds_reached_total", &[("bound", "names")]);
    assert_eq!(bounds, 5.0, "each refusal is counted once");
    service.block_on(client.predict(plain)).expect("short names are names");
    let scored = GetPodScoresRequest {
        model_name: "m".to_owned(),
        token_ids: vec![1],
        pod_identifiers: vec!["p".repeat(257)],
        ..Default::default()
    };
    let mut client = IndexerServiceClient::new(service.channel());
    let status = service.block_on(client.get_pod_scores(scored)).expect_err("a pod's name is too long");
    assert!(status.code() == Code::InvalidArgument && status.message().contains("instance_id"), "{status}");
}

#[test]
fn an_engine_with_a_long_adapter_name_is_degraded_and_counted() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let adapter = |name: &'static str, hash: u64| BlockStored { lora_name: Some(name), ..store(None, &[hash]) };
    let (longest, too_long): (&'static str, &'static str) =
        ("a".repeat(NAME_BYTES_MAX).leak(), "a".repeat(NAME_BYTES_MAX + 1).leak());
    engine.say(&service, 0, &[EngineEvent::Stored(adapter(longest, 1))]);
    assert_eq!(service.listener(&json!(1), 0)["trust"], "exact");
    engine.say(&service, 1, &[EngineEvent::Stored(adapter(too_long, 2)), stored(None, &[3])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["rejected"]["adapter_name_too_long"]), (&json!("degraded"), &json!(1)));
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("513") && why.len() < 256), "{listener}");
    let query = json!({ "token_ids": tokens(&[1]), "model_name": "m", "lora_name": longest });
    assert_eq!(service.query(&query)["scores"]["1"]["0"], BLOCK_TOKENS);
    assert_eq!(service.score(&tokens(&[3]), "1", 0), u64::from(BLOCK_TOKENS), "the other events are applied");
    assert_eq!(service.metrics().value("flash_indexer_bounds_reached_total", &[("bound", "names")]), 1.0);
}

#[test]
fn a_topic_with_a_long_model_names_no_pod() {
    let pods = Some(PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]));
    let service = Service::start_with(ServerOptions { pods, ..ServerOptions::default() });
    let topic = format!("kv@pod@{}", "m".repeat(NAME_BYTES_MAX + 1)).into_bytes();
    let endpoint = service.indexer().pod_addresses().remove(0);
    let pod = Publisher::connect(PublisherOptions { endpoint, topic, ..PublisherOptions::on_loopback() }).expect("up");
    assert!(pod.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not listen");
    pod.publish(0, &encode_batch(1.0, &[stored(None, &[1])], None, Encoding::Map)).expect("published");
    wait_for("the refusal", PATIENCE, || {
        let rejected = service.metrics().value("flash_indexer_rejected_total", &[("reason", "bad_topic")]);
        (rejected > 0.0).then_some(())
    });
    assert_eq!(service.get("/workers").1, json!([]));
}

#[test]
fn a_discovered_pod_with_a_long_model_is_a_problem_of_its_source() {
    let cluster = FakeCluster::start();
    cluster.set("vllm-0", "127.0.0.1", "True", &json!({ "model-name": huge() }));
    cluster.set("vllm-1", "127.0.0.2", "True", &json!({ "port": huge() }));
    let source = KubernetesOptions {
        selector: "app=vllm".to_owned(),
        namespace: "prod".parse().expect("a namespace"),
        api: Some(cluster.url()),
    };
    let template = EngineTemplate { block_size: BlockSize::new(BLOCK_TOKENS), ..EngineTemplate::default() };
    let sources = vec![DiscoverySource::Kubernetes(source)];
    let discovery = DiscoveryOptions { sources, template, ..DiscoveryOptions::default() };
    let service = Service::start_with(ServerOptions { discovery, ..ServerOptions::default() });
    let problems = wait_for("both problems", PATIENCE, || {
        let shown = service.get("/discovery").1[0]["problems"].clone();
        (shown.as_array().map(Vec::len) == Some(2)).then_some(shown)
    });
    assert!(problems.to_string().contains("model_name has"), "{problems}");
    assert!(problems.to_string().len() < 2 * ANSWER_BYTES_MAX, "problems repeat no long text");
}

struct Nothing;

impl flash_indexer_snapshot::DumpSink for Nothing {
    fn rank(&mut self, _: flash_indexer_snapshot::RankRecord) -> Result<(), flash_indexer_snapshot::Rejection> {
        Ok(())
    }

    fn entry(
        &mut self,
        _: flash_indexer_snapshot::RankName<'_>,
        _: flash_indexer_snapshot::DumpEntry,
    ) -> Result<(), flash_indexer_snapshot::Rejection> {
        Ok(())
    }
}

#[test]
fn a_dump_with_a_long_name_is_damaged() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let lines = service.get_lines("/dump");
    let text = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    flash_indexer_snapshot::read_dump(text(&lines).as_bytes(), &mut Nothing).expect("it is whole");
    for path in ["/rank/model_name", "/rank/tenant_id", "/rank/engine/endpoint", "/rank/instance_id"] {
        let mut changed = lines.clone();
        let rank = changed.iter_mut().find(|line| line.get("rank").is_some_and(|rank| !rank.is_null()));
        *rank.and_then(|rank| rank.pointer_mut(path)).unwrap_or_else(|| panic!("no {path}")) = json!(huge());
        let error = flash_indexer_snapshot::read_dump(text(&changed).as_bytes(), &mut Nothing)
            .expect_err("too long")
            .to_string();
        let field = path.rsplit_once('/').map_or(path, |(_, field)| field);
        assert!(error.contains(field) && error.contains("at most"), "{path}: {}", &error[..error.len().min(500)]);
        assert!(error.len() < ANSWER_BYTES_MAX, "{path} is repeated");
    }
}
