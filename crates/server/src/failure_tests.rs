//! Injected faults, observed through the service's HTTP API.

mod answers;
mod background;
mod body_budget;
mod large_requests;
mod moved_ranks;
mod texts;

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_proto::flash_indexer::v1::PredictRequest;
use flash_indexer_proto::flash_indexer::v1::router_service_client::RouterServiceClient;
use flash_indexer_registry::faults;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_telemetry::supervision::ThreadKind;
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};
use tonic::Code;

use crate::{IndexerOptions, PodOptions, Server, ServerOptions};

const PATIENCE: Duration = Duration::from_secs(30);

/// A service and an HTTP client.
struct Service {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    agent: ureq::Agent,
}

impl Service {
    fn start(indexer: IndexerOptions) -> Self {
        Self::start_with(ServerOptions { indexer, ..ServerOptions::default() })
    }

    fn start_with(options: ServerOptions) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let options = ServerOptions { port: 0, ..options };
        let server = runtime.block_on(Server::start(options)).expect("a server");
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        Self { runtime, server: Some(server), agent: config.into() }
    }

    /// Starts a service with a socket to which engines connect.
    fn start_bound() -> Self {
        let pods = Some(PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]));
        Self::start_with(ServerOptions { pods, ..ServerOptions::default() })
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is stopped")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server().address())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut response = self.agent.get(self.url(path)).call().expect("an answer");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("text"))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut response = self.agent.post(self.url(path)).send(body.to_string()).expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        (response.status().as_u16(), serde_json::from_str(&text).expect("JSON"))
    }

    fn register(&self, instance: u64, model: &str, publisher: &Publisher, replay: bool) {
        let mut request = json!({
            "instance_id": instance, "endpoint": publisher.endpoint(), "model_name": model, "block_size": 1,
        });
        if replay {
            request["replay_endpoint"] = json!(publisher.replay_endpoint());
        }
        let (status, answer) = self.post("/register", &request);
        assert_eq!(status, 201, "{answer}");
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    }

    /// The listener of an instance, as `/workers` shows it.
    fn listener(&self, instance: u64) -> Value {
        let workers: Value = serde_json::from_str(&self.get("/workers").1).expect("JSON");
        let mut workers = workers.as_array().expect("a list").iter();
        workers.find(|worker| worker["instance_id"] == instance).map_or(Value::Null, |it| it["listeners"]["0"].clone())
    }

    fn wait(&self, what: &str, instance: u64, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, PATIENCE, || Some(self.listener(instance)).filter(&condition))
    }

    /// Waits until an instance is exact up to this message.
    fn wait_exact(&self, instance: u64, sequence: u64) {
        self.wait("an exact rank", instance, |it| it["trust"] == "exact" && it["last_seq"] == json!(sequence));
    }

    /// Leading tokens of a prompt that an instance holds in device memory.
    fn score(&self, instance: u64, tokens: &[u64]) -> u64 {
        let (status, answer) = self.post("/query", &json!({ "token_ids": tokens, "model_name": "m" }));
        assert_eq!(status, 200, "{answer}");
        answer["scores"][instance.to_string()]["0"].as_u64().unwrap_or_else(|| panic!("no score: {answer}"))
    }

    fn panics(&self, kind: ThreadKind) -> u64 {
        self.server().indexer().metrics().panics().get(kind.as_str()).copied().unwrap_or_default()
    }

    fn wait_ready(&self) {
        wait_for("readiness", PATIENCE, || (self.get("/ready").0 == 200).then_some(()));
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}

fn engine() -> Publisher {
    Publisher::bind(PublisherOptions::on_loopback()).expect("free ports")
}

/// A message that stores a block after `parent`; block *h* has the token *h*.
fn payload(parent: Option<u64>, hash: u64) -> Vec<u8> {
    encode_batch(1.0, &[EngineEvent::Stored(stored(parent, hash))], None, Encoding::Map)
}

fn stored<'a>(parent: Option<u64>, hash: u64) -> BlockStored<'a> {
    BlockStored {
        block_hashes: vec![SequenceHash(hash)],
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(vec![hash as u32]),
        block_size: 1,
        ..BlockStored::default()
    }
}

#[test]
fn an_index_in_which_a_change_panics_is_replaced_and_refilled_by_replay() {
    let service = Service::start(IndexerOptions::default());
    let (culprit, other, alone) = (engine(), engine(), engine());
    service.register(1, "m", &culprit, true);
    service.register(2, "m", &other, true);
    service.register(3, "m", &alone, false);
    for (instance, publisher) in [(1, &culprit), (2, &other), (3, &alone)] {
        publisher.publish(0, &payload(None, 1)).expect("published");
        publisher.publish(1, &payload(Some(1), 2)).expect("published");
        service.wait_exact(instance, 1);
        assert_eq!(service.score(instance, &[1, 2]), 2);
    }
    culprit.publish(2, &payload(Some(2), faults::PANICKING_BLOCK)).expect("published");
    wait_for("the panic", PATIENCE, || (service.panics(ThreadKind::Writer) == 1).then_some(()));
    // The rank with a replay is rebuilt; ranks without one start empty and are degraded.
    service.wait_exact(2, 1);
    assert_eq!(service.score(2, &[1, 2]), 2, "asked again");
    for instance in [1, 3] {
        service.wait("a rank that starts over", instance, |it| it["trust"] == "degraded");
        assert_eq!(service.score(instance, &[1, 2]), 0);
    }
    service.wait_ready();
    assert_eq!(service.server().indexer().metrics().index_replacements(), 1);
    assert!(service.get("/metrics").1.contains("flash_indexer_thread_panics_total{thread=\"writer\"} 1\n"));
    // Every rank applies later messages.
    culprit.publish(3, &payload(None, 1)).expect("published");
    alone.publish(2, &payload(None, 1)).expect("published");
    service.wait("the next message", 1, |it| it["last_seq"] == 3);
    service.wait("the next message", 3, |it| it["last_seq"] == 2);
    assert_eq!((service.score(1, &[1, 2]), service.score(3, &[1, 2])), (1, 1));
}

#[test]
fn a_decoder_that_panics_degrades_all_its_listeners_and_requests_replays() {
    let service = Service::start(IndexerOptions { decoder_threads: Some(1), ..IndexerOptions::default() });
    let (fails, other, alone) = (engine(), engine(), engine());
    service.register(1, "m", &fails, true);
    service.register(2, "m", &other, true);
    service.register(3, "m", &alone, false);
    for (instance, publisher) in [(1, &fails), (2, &other), (3, &alone)] {
        publisher.publish(0, &payload(None, 1)).expect("published");
        service.wait_exact(instance, 0);
    }
    fails
        .publish_frames(&[b"decoder fault".as_slice(), &1_u64.to_be_bytes(), &payload(Some(1), 2)])
        .expect("published");
    wait_for("the panic", PATIENCE, || (service.panics(ThreadKind::Decoder) == 1).then_some(()));
    service.wait("a rank that starts over", 3, |it| it["trust"] == "degraded");
    service.wait_exact(2, 0);
    service.wait_ready();
    other.publish(1, &payload(Some(1), 2)).expect("published");
    service.wait_exact(2, 1);
    assert_eq!(service.score(2, &[1, 2]), 2);
}

#[test]
fn a_job_that_panics_leaves_its_writer_and_the_index() {
    let service = Service::start(IndexerOptions::default());
    let publisher = engine();
    service.register(1, "m", &publisher, false);
    publisher.publish(0, &payload(None, 1)).expect("published");
    service.wait_exact(1, 0);
    service.server().indexer().run_on_writers(Arc::new(|| panic!("a test asked for it")));
    wait_for("the panic", PATIENCE, || (service.panics(ThreadKind::Writer) == 1).then_some(()));
    publisher.publish(1, &payload(Some(1), 2)).expect("published");
    service.wait_exact(1, 1);
    assert_eq!(service.score(1, &[1, 2]), 2);
    service.wait_ready();
}

#[test]
fn sockets_are_opened_again_after_their_thread_panicked() {
    let service = Service::start(IndexerOptions::default());
    let publisher = engine();
    service.register(1, "m", &publisher, true);
    publisher.publish(0, &payload(None, 1)).expect("published");
    service.wait_exact(1, 0);
    service.server().indexer().fail_sockets();
    wait_for("the panic", PATIENCE, || (service.panics(ThreadKind::EngineSockets) == 1).then_some(()));
    // After the reconnection, the messages published meanwhile are replayed.
    publisher.publish(1, &payload(Some(1), 2)).expect("published");
    service.wait_exact(1, 1);
    assert_eq!(service.score(1, &[1, 2]), 2);
    service.wait_ready();
    let more = engine();
    service.register(2, "m", &more, false);
}

#[test]
fn engines_that_connect_are_followed_after_the_bound_sockets_thread_panicked() {
    let service = Service::start_bound();
    let address = service.server().indexer().pod_addresses()[0].clone();
    let context = zmq::Context::new();
    let socket = context.socket(zmq::PUB).expect("a socket");
    socket.connect(&address).expect("an address");
    let publish = |topic: &str, sequence: u64, payload: &[u8]| {
        socket.send_multipart([topic.as_bytes(), &sequence.to_be_bytes(), payload], 0).expect("published");
    };
    let first = payload(None, 1);
    wait_for("the pod's registration", PATIENCE, || {
        // Messages before the subscription are dropped by ZeroMQ.
        publish("kv@pod@m", 0, &first);
        (service.get("/workers").1.contains("\"pod\"")).then_some(())
    });
    publish("kv@pod@fault", 1, &first);
    wait_for("the panic", PATIENCE, || (service.panics(ThreadKind::BoundSocket) == 1).then_some(()));
    wait_for("the panic of the registrar", PATIENCE, || {
        publish("kv@bad@registrar-fault", 0, &first);
        (service.panics(ThreadKind::Pods) == 1).then_some(())
    });
    wait_for("another pod's registration", PATIENCE, || {
        publish("kv@other@m", 0, &first);
        service.get("/workers").1.contains("\"other\"").then_some(())
    });
    service.wait_ready();
}

#[test]
fn a_stalled_writer_fails_readiness_and_blocks_no_other_work() {
    let options = IndexerOptions { writer_threads: 2, shards: Some(1), ..IndexerOptions::default() };
    let mut service = Service::start(options);
    let (wedged, gone, other) = (engine(), engine(), engine());
    service.register(1, "m", &wedged, false);
    service.register(2, "m", &gone, false);
    for (instance, publisher) in [(1, &wedged), (2, &gone)] {
        publisher.publish(0, &payload(None, 1)).expect("published");
        service.wait_exact(instance, 0);
    }
    service.wait_ready();
    let blocked = faults::WRITERS.lock();
    wedged.publish(1, &payload(Some(1), faults::BLOCKING_BLOCK)).expect("published");
    let why = wait_for("an unready service", PATIENCE, || {
        let (status, why) = service.get("/ready");
        (status == 503).then_some(why)
    });
    assert!(why.contains("index-writer-0 made no progress") && why.contains("instance 1 rank 0 of"), "{why}");
    // The other ranks are not blocked.
    let (status, metrics) = service.get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("flash_indexer_stalled_threads 1\n"), "{metrics}");
    let (status, answer) = service.post("/unregister", &json!({ "instance_id": 2, "model_name": "m" }));
    assert_eq!((status, &answer["forgetting"]), (200, &json!(true)), "{answer}");
    assert_eq!(service.listener(2), Value::Null);
    let (_, answer) = service.post("/query", &json!({ "token_ids": [1], "model_name": "m" }));
    assert_eq!(answer["scores"].as_object().expect("scores").keys().collect::<Vec<_>>(), ["1"], "{answer}");
    service.register(3, "another", &other, false);
    other.publish(0, &payload(None, 1)).expect("published");
    service.wait_exact(3, 0);
    // The service stops despite the stalled writer.
    service.stop();
    drop(blocked);
}

#[test]
fn events_of_other_models_and_shards_are_visible_while_a_writer_is_stalled() {
    const INSTANCES: u64 = 8;
    let options = IndexerOptions {
        writer_threads: 3,
        decoder_threads: Some(1),
        shards: Some(2),
        ingest_queue_bytes_max: Some(crate::QUEUE_BYTES_MIN),
        ..IndexerOptions::default()
    };
    let service = Service::start(options);
    let engines: Vec<_> = (0..=INSTANCES).map(|_| engine()).collect();
    for instance in 1..=INSTANCES {
        service.register(instance, "m", &engines[instance as usize], false);
    }
    // The two shards of the first model have two writers; this model has shards at the third and the first.
    let shard = |instance: u64| {
        let worker = service.server().indexer().worker(&crate::InstanceId::number(instance)).expect("registered");
        flash_indexer_core::shard_of(worker, 2)
    };
    let stalled = shard(1);
    let beside = (2..=INSTANCES).find(|&instance| shard(instance) != stalled).expect("an instance of the other shard");
    for instance in 1..=INSTANCES {
        engines[instance as usize].publish(0, &payload(None, 1)).expect("published");
        service.wait_exact(instance, 0);
    }
    let blocked = faults::WRITERS.lock();
    engines[1].publish(1, &payload(Some(1), faults::BLOCKING_BLOCK)).expect("published");
    for sequence in 2..2_000 {
        engines[1].publish(sequence, &payload(Some(1), sequence)).expect("published");
    }
    for sequence in 1..50 {
        engines[beside as usize].publish(sequence, &payload(Some(sequence), 1 + sequence)).expect("published");
        service.wait_exact(beside, sequence);
    }
    assert_eq!(service.listener(1)["last_seq"], json!(0), "its writer is still stalled");
    assert_eq!(service.score(beside, &[1, 2, 3]), 3);
    drop(blocked);
    service.wait_exact(1, 1_999);
}

#[test]
fn scores_that_wait_for_a_writer_block_no_other_request() {
    let service = Service::start(IndexerOptions::default());
    let publisher = engine();
    service.register(1, "m", &publisher, false);
    publisher.publish(0, &payload(None, 1)).expect("published");
    // The second block is only in host memory.
    let host = BlockStored { medium: Some("CPU"), ..stored(Some(1), 2) };
    let message = encode_batch(1.0, &[EngineEvent::Stored(host)], None, Encoding::Map);
    publisher.publish(1, &message).expect("published");
    service.wait_exact(1, 1);
    let score = || {
        let (status, answer) =
            service.post("/score_completions", &json!({ "token_ids": [1, 2], "model_name": "m", "detail": true }));
        assert_eq!(status, 200, "{answer}");
        answer["pods"]["1"]["score"].as_f64().expect("a score")
    };
    assert!((score() - 1.8).abs() < 1e-9);
    let busy = faults::TIER_LOOKUPS.lock();
    std::thread::scope(|scope| {
        // More scores than threads that serve requests, and more than the limit of tier lookups.
        let scores: Vec<_> = (0..64).map(|_| scope.spawn(score)).collect();
        assert_eq!(service.get("/health").0, 200);
        for score in scores {
            // No block is in a faster tier than one before it, so the estimate without a tier lookup is exact.
            assert!((score.join().expect("a score") - 1.8).abs() < 1e-9);
        }
    });
    assert!(!service.get("/metrics").1.contains("bounds_reached_total{bound=\"tier_lookups\"} 0\n"));
    drop(busy);
}

#[test]
fn a_report_of_a_prompt_does_not_wait_for_a_stalled_writer() {
    let service = Service::start(IndexerOptions { writer_threads: 1, ..IndexerOptions::default() });
    let wedged = engine();
    service.register(1, "m", &wedged, false);
    let routed = json!({ "instance_id": "routed", "model_name": "m", "block_size": 1, "events": "none" });
    assert_eq!(service.post("/register", &routed).0, 201);
    let score = || {
        let (status, answer) = service.post("/score_completions", &json!({ "token_ids": [7, 8], "model_name": "m" }));
        assert_eq!(status, 200, "{answer}");
        answer["routed"].as_f64().unwrap_or_default()
    };
    let blocked = faults::WRITERS.lock();
    wedged.publish(0, &payload(None, faults::BLOCKING_BLOCK)).expect("published");
    wait_for("the writer to stall", PATIENCE, || {
        let (_, answer) = service.post("/predict", &json!({ "pod": "routed", "token_ids": [7, 8], "model_name": "m" }));
        assert_eq!(answer, json!({ "status": "ok", "blocks": 2 }));
        service.get("/metrics").1.contains("limit_reached_total{limit=\"prediction_waits\"} 1\n").then_some(())
    });
    drop(blocked);
    wait_for("the prompt", PATIENCE, || (score() == 2.0).then_some(()));
}

#[test]
fn a_report_over_grpc_keeps_the_deadline_of_its_call() {
    let indexer = IndexerOptions { writer_threads: 1, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() });
    let wedged = engine();
    service.register(1, "m", &wedged, false);
    let routed = json!({ "instance_id": "routed", "model_name": "m", "block_size": 1, "events": "none" });
    assert_eq!(service.post("/register", &routed).0, 201);
    let blocked = faults::WRITERS.lock();
    wedged.publish(0, &payload(None, faults::BLOCKING_BLOCK)).expect("published");
    let mut client = RouterServiceClient::new(service.channel());
    wait_for("a late report", PATIENCE, || {
        let (model_name, pod) = ("m".to_owned(), "routed".to_owned());
        let mut report =
            tonic::Request::new(PredictRequest { model_name, pod, token_ids: vec![7, 8], ..PredictRequest::default() });
        report.set_timeout(Duration::from_millis(100));
        // Until the writer has stalled, reports are answered. The client's own deadline may pass first.
        if let Err(late) = service.runtime.block_on(client.predict(report)) {
            assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late}");
        }
        let late = "grpc_requests_total{method=\"Predict\",code=\"deadline_exceeded\"}";
        service.get("/metrics").1.contains(late).then_some(())
    });
    drop(blocked);
}

#[test]
fn a_registration_does_not_wait_for_an_unregistration_that_waits_for_a_writer() {
    let service = Service::start(IndexerOptions { writer_threads: 1, ..IndexerOptions::default() });
    let (wedged, other) = (engine(), engine());
    service.register(1, "m", &wedged, false);
    let blocked = faults::WRITERS.lock();
    wedged.publish(0, &payload(None, faults::BLOCKING_BLOCK)).expect("published");
    // The unregistration waits until the other call is answered.
    let waiting = faults::CLEANUP_WAITS.lock();
    std::thread::scope(|scope| {
        let unregistered = scope.spawn(|| service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m" })));
        wait_for("the end of the registration", PATIENCE, || service.listener(1).is_null().then_some(()));
        service.register(2, "m", &other, false);
        drop(waiting);
        assert_eq!(unregistered.join().expect("an answer").0, 200);
    });
    drop(blocked);
    wait_for("the removal of its blocks", PATIENCE, || (service.server().indexer().held_blocks() == 0).then_some(()));
}
