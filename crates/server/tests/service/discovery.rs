//! Engines are registered and unregistered automatically, from a file or a name in DNS.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{
    DiscoveryOptions, DiscoverySource, DnsOptions, EngineNetworks, EngineTemplate, IndexerOptions, ModelKey, PeerUrl,
    Query, QueryOptions, ServerOptions, VllmOptions,
};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::{wait_for, watch_until};
use flash_indexer_wire::{Encoding, EngineEvent, encode_batch};
use hickory_resolver::proto::op::ResponseCode;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};

use crate::support::fake_dns::{FakeDns, Says};
use crate::support::fake_vllm_control::{self, FakeVllmControl};
use crate::support::{BLOCK_TOKENS, PATIENCE, Service, stored, tokens};

/// A file of engines, replaced atomically.
struct EngineFile {
    folder: tempfile::TempDir,
}

impl EngineFile {
    fn holding(text: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().expect("a folder") };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("engines.json")
    }

    fn write(&self, text: &str) {
        let beside = self.folder.path().join("engines.json.new");
        std::fs::write(&beside, text).expect("it can be written");
        std::fs::rename(beside, self.path()).expect("it can be renamed");
    }

    fn name<'e>(&self, engines: impl IntoIterator<Item = (u64, &'e Publisher)>) {
        let entries = engines.into_iter().map(|(instance, publisher)| {
            json!({ "instance_id": instance, "endpoint": publisher.endpoint(),
                    "replay_endpoint": publisher.replay_endpoint() })
        });
        self.write(&Value::from_iter(entries).to_string());
    }

    fn sources(&self) -> Vec<DiscoverySource> {
        vec![DiscoverySource::File(self.path())]
    }
}

fn publisher() -> Publisher {
    Publisher::bind(PublisherOptions::on_loopback()).expect("free ports")
}

fn options(sources: Vec<DiscoverySource>, grace: Duration) -> ServerOptions {
    let template = EngineTemplate {
        model_name: Some("m".to_owned()),
        block_size: BlockSize::new(BLOCK_TOKENS),
        ..EngineTemplate::default()
    };
    ServerOptions { discovery: DiscoveryOptions { sources, grace, template }, ..ServerOptions::default() }
}

/// A grace longer than any test, in which no engine is unregistered.
const FOR_EVER: Duration = Duration::from_secs(3_600);
const SOON: Duration = Duration::from_millis(200);

fn say(publisher: &Publisher, sequence: u64, events: &[EngineEvent<'_>]) {
    publisher.publish(sequence, &encode_batch(1.0, events, None, Encoding::Map)).expect("published");
}

/// Endpoints by instance.
fn endpoints(service: &Service) -> Vec<(String, String)> {
    let (_, workers) = service.get("/workers");
    let workers = workers.as_array().expect("a list").iter();
    let endpoint = |worker: &Value| worker["endpoints"]["0"].as_str().unwrap_or_default().to_owned();
    workers.map(|worker| (worker["instance_id"].to_string().replace('"', ""), endpoint(worker))).collect()
}

fn instances(service: &Service) -> Vec<String> {
    endpoints(service).into_iter().map(|(instance, _)| instance).collect()
}

fn source(service: &Service) -> Value {
    service.get("/discovery").1[0].clone()
}

/// State of an instance that the first source names.
fn state(service: &Service, instance: u64) -> String {
    let source = source(service);
    let targets = source["targets"].as_array().cloned().unwrap_or_default();
    let target = targets.into_iter().find(|target| target["instance_id"] == json!(instance));
    target.map_or(String::new(), |target| target["state"].as_str().unwrap_or_default().to_owned())
}

fn until(what: &str, condition: impl Fn() -> bool) {
    wait_for(what, PATIENCE, || condition().then_some(()));
}

/// Waits until the source has been polled twice more.
fn until_looked_again(service: &Service, outcome: &str) {
    let name = source(service)["source"].as_str().expect("a name").to_owned();
    let labels = [("source", name.as_str()), ("outcome", outcome)];
    let looks = || service.metrics().value("flash_indexer_discovery_polls_total", &labels);
    let before = looks();
    until("further looks", || looks() >= before + 2.0);
}

#[test]
fn engines_of_a_file_are_listened_to_and_leave_after_the_grace() {
    let (first, second, by_hand) = (publisher(), publisher(), publisher());
    let file = EngineFile::holding("[]");
    let service = Service::start_with(options(file.sources(), SOON));
    until("readiness", || service.get("/ready").0 == 200);
    assert_eq!(endpoints(&service), []);
    let request = json!({ "instance_id": 3, "endpoint": by_hand.endpoint(), "model_name": "m", "block_size": 4 });
    assert_eq!(service.post("/register", &request).0, 201);

    file.name([(1, &first), (2, &second)]);
    until("both engines", || instances(&service) == ["1", "2", "3"]);
    for (publisher, blocks) in [(&first, vec![1, 2]), (&second, vec![1])] {
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
        say(publisher, 0, &[stored(None, &blocks)]);
    }
    until("what they hold", || {
        service.score(&tokens(&[1, 2]), "1", 0) == 8 && service.score(&tokens(&[1, 2]), "2", 0) == 4
    });
    let listener = service.listener(&json!(1), 0);
    assert_eq!(listener["source"], json!(format!("file:{}", file.path().display())));
    assert_eq!(service.listener(&json!(3), 0).get("source"), None, "no discovery source registered it");

    file.name([(1, &first)]);
    until("the departure", || instances(&service) == ["1", "3"]);
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8, "who stays keeps what it holds");
    let answer = service.query(&json!({ "token_ids": tokens(&[1]), "model_name": "m" }));
    assert_eq!(answer["scores"].get("2"), None);
}

#[test]
fn an_engine_at_a_new_address_begins_anew_at_once() {
    let (old, new) = (publisher(), publisher());
    let file = EngineFile::holding("[]");
    file.name([(1, &old)]);
    let service = Service::start_with(options(file.sources(), FOR_EVER));
    assert!(old.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    say(&old, 0, &[stored(None, &[1, 2])]);
    until("what it holds", || service.score(&tokens(&[1, 2]), "1", 0) == 8);
    file.name([(1, &new)]);
    assert!(new.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    say(&new, 0, &[stored(None, &[1])]);
    until("what it holds now", || service.score(&tokens(&[1, 2]), "1", 0) == 4);
    assert_eq!(endpoints(&service), [("1".to_owned(), new.endpoint().to_owned())]);
}

#[test]
fn an_engine_that_moves_leaves_no_moment_in_which_its_model_is_unknown() {
    let engines = [publisher(), publisher()];
    let file = EngineFile::holding("[]");
    file.name([(1, &engines[0])]);
    let service = Service::start_with(options(file.sources(), FOR_EVER));
    until("the engine", || instances(&service) == ["1"]);
    let model = ModelKey::new("m".to_owned(), None);
    let ask = || service.indexer().query_local(&model, Query::Hashes(Cow::Borrowed(&[])), QueryOptions::default());
    let has_moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let router = scope.spawn(|| {
            while !has_moved.load(Ordering::Relaxed) {
                assert!(ask().is_ok(), "the model is unknown");
            }
        });
        for to in engines.iter().cycle().skip(1).take(3) {
            file.name([(1, to)]);
            until("its new address", || endpoints(&service) == [("1".to_owned(), to.endpoint().to_owned())]);
        }
        has_moved.store(true, Ordering::Relaxed);
        router.join().expect("it is always known");
    });
    file.write("[]");
    service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m" }));
    until("that the model is unknown", || ask().is_err());
}

#[test]
fn an_engine_that_comes_back_with_other_blocks_begins_anew() {
    let engine = publisher();
    let file = EngineFile::holding("[]");
    let name = |block_size: u32| {
        let engine =
            json!({ "instance_id": 1, "endpoint": engine.endpoint(), "model_name": "m", "block_size": block_size });
        file.write(&json!([engine]).to_string());
    };
    let block_size = |service: &Service| service.get("/workers").1[0]["block_size"].clone();
    name(4);
    let service = Service::start_with(options(file.sources(), FOR_EVER));
    until("the engine", || block_size(&service) == 4);
    name(8);
    until("its larger blocks", || block_size(&service) == 8);
}

#[test]
fn a_model_that_is_left_makes_room_for_another_at_once() {
    let engine = publisher();
    let file = EngineFile::holding("[]");
    let name = |model: &str| {
        let engine = json!({ "instance_id": 1, "endpoint": engine.endpoint(), "model_name": model, "block_size": 4 });
        file.write(&json!([engine]).to_string());
    };
    let mut options = options(file.sources(), Duration::ZERO);
    options.indexer.models_max = 1;
    name("old");
    let service = Service::start_with(options);
    let model = || service.get("/workers").1[0]["model_name"].clone();
    until("the engine", || model() == "old");
    name("new");
    until("its other model", || model() == "new");
    let refused = [("change", "refused")];
    assert_eq!(service.metrics().value("flash_indexer_discovery_changes_total", &refused), 0.0);
}

#[test]
fn a_file_that_cannot_be_read_takes_nothing_away() {
    let (first, second) = (publisher(), publisher());
    let file = EngineFile::holding("[]");
    file.name([(1, &first)]);
    let service = Service::start_with(options(file.sources(), Duration::ZERO));
    until("the engine", || instances(&service) == ["1"]);

    file.write("[\n{\"instance_id\": 1,\n\"endpont\": \"tcp://h:1\"}]");
    until("the error", || source(&service)["state"] == "failing");
    let error = source(&service)["error"].as_str().expect("a text").to_owned();
    assert!(error.contains("line 3") && error.contains("unknown field `endpont`"), "{error}");
    until_looked_again(&service, "failed");
    assert_eq!(instances(&service), ["1"]);

    std::fs::remove_file(file.path()).expect("it is there");
    until("another error", || source(&service)["error"].as_str().is_some_and(|error| error.contains("No such file")));
    until_looked_again(&service, "failed");
    assert_eq!(instances(&service), ["1"]);
    assert_eq!(state(&service, 1), "registered");

    // Opening it for reading would wait for a writer.
    mkfifoat(CWD, file.path(), Mode::RUSR | Mode::WUSR).expect("a FIFO");
    until("a third error", || source(&service)["error"].as_str().is_some_and(|error| error.contains("regular file")));
    std::fs::remove_file(file.path()).expect("it is there");

    file.name([(2, &second)]);
    until("the other engine alone", || instances(&service) == ["2"]);
    until("the end of the error", || {
        let source = source(&service);
        source["state"] == "ok" && source["error"].is_null()
    });
}

#[test]
fn the_service_is_ready_when_sources_have_told_which_engines_there_are() {
    let file = EngineFile::holding("[");
    let service = Service::start_with(options(file.sources(), FOR_EVER));
    watch_until("the error", PATIENCE, || {
        let (status, answer) = service.get("/ready");
        assert_eq!(status, 503, "{answer}");
        answer["error"].as_str()?.contains("the file is truncated").then_some(())
    });
    let engine = publisher();
    file.name([(1, &engine)]);
    until("readiness", || service.get("/ready").0 == 200);
    assert_eq!(instances(&service), ["1"]);
}

#[test]
fn what_people_do_goes_before_what_sources_say() {
    let (discovered, by_hand) = (publisher(), publisher());
    let file = EngineFile::holding("[]");
    let service = Service::start_with(options(file.sources(), Duration::ZERO));
    let register = json!({ "instance_id": 1, "endpoint": by_hand.endpoint(), "model_name": "m", "block_size": 4 });
    let unregister = json!({ "instance_id": 1, "model_name": "m" });
    let at = |publisher: &Publisher| vec![("1".to_owned(), publisher.endpoint().to_owned())];
    assert_eq!(service.post("/register", &register).0, 201);
    file.name([(1, &discovered)]);
    until("the source's wish", || state(&service, 1) == "by_hand");
    assert_eq!(endpoints(&service), at(&by_hand));

    assert_eq!(service.post("/unregister", &unregister).0, 200);
    until("the source's turn", || state(&service, 1) == "registered");
    assert_eq!(endpoints(&service), at(&discovered));

    assert_eq!(service.post("/unregister", &unregister).0, 200);
    until("the dismissal", || state(&service, 1) == "dismissed");
    until_looked_again(&service, "ok");
    assert_eq!(endpoints(&service), []);

    file.write("[]");
    until("that it is no longer named", || state(&service, 1).is_empty());
    file.name([(1, &discovered)]);
    until("its return", || endpoints(&service) == at(&discovered));
}

#[test]
fn ranks_that_only_a_stream_names_leave_with_it() {
    let engine = publisher();
    let file = EngineFile::holding("[]");
    file.name([(1, &engine)]);
    let service = Service::start_with(options(file.sources(), Duration::ZERO));
    assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    engine.publish(0, &encode_batch(1.0, &[stored(None, &[1])], Some(DpRank(3)), Encoding::Map)).expect("published");
    until("the rank", || service.listener(&json!(1), 3) != Value::Null);
    file.write("[]");
    until("the departure", || endpoints(&service).is_empty());
}

#[test]
fn what_cannot_be_registered_is_tried_again_when_it_can() {
    let (in_the_way, wanted) = (publisher(), publisher());
    let file = EngineFile::holding("[]");
    let service = Service::start_with(options(file.sources(), Duration::ZERO));
    let register = json!({ "instance_id": 9, "endpoint": in_the_way.endpoint(), "model_name": "m", "block_size": 64 });
    assert_eq!(service.post("/register", &register).0, 201);
    file.name([(1, &wanted)]);
    until("the refusal", || state(&service, 1) == "refused");
    let target = &source(&service)["targets"][0];
    assert!(target["reason"].as_str().is_some_and(|reason| reason.contains("blocks of 64 tokens")), "{target}");
    assert_eq!(service.post("/unregister", &json!({ "instance_id": 9, "model_name": "m" })).0, 200);
    until("the registration", || instances(&service) == ["1"]);
}

#[test]
fn a_replica_lets_go_of_what_its_peer_had_discovered() {
    let (gone, by_hand, here) = (publisher(), publisher(), publisher());
    let there = EngineFile::holding("[]");
    there.name([(1, &gone), (3, &here)]);
    let peer = Service::start_with(options(there.sources(), FOR_EVER));
    let request = json!({ "instance_id": 2, "endpoint": by_hand.endpoint(), "model_name": "m", "block_size": 4 });
    assert_eq!(peer.post("/register", &request).0, 201);
    until("all three", || instances(&peer) == ["1", "2", "3"]);

    let file = EngineFile::holding("[]");
    file.name([(3, &here)]);
    let url: PeerUrl = peer.url("").parse().expect("a URL");
    let service = Service::start_with(ServerOptions { peers: vec![url], ..options(file.sources(), SOON) });
    until("readiness", || service.get("/ready").0 == 200);
    until("the departure", || instances(&service) == ["2", "3"]);
    assert!(service.listener(&json!(3), 0)["source"].as_str().is_some_and(|source| source.starts_with("file:")));
}

#[test]
fn discovery_is_counted() {
    let engine = publisher();
    let file = EngineFile::holding("[]");
    let service = Service::start_with(options(file.sources(), Duration::ZERO));
    let name = format!("file:{}", file.path().display());
    let value = |metric: &str, label: (&str, &str)| {
        let labels = [("source", name.as_str()), label];
        service.metrics().value(&format!("flash_indexer_discovery_{metric}"), &labels)
    };
    file.name([(1, &engine)]);
    until("the engine", || value("targets", ("state", "registered")) == 1.0);
    assert_eq!(value("targets", ("state", "refused")), 0.0);
    assert!(value("last_success_timestamp_seconds", ("source", &name)) > 1.7e9);
    file.write("nonsense");
    until("a failure", || value("looks_total", ("outcome", "failed")) > 0.0);
    assert!(value("looks_total", ("outcome", "ok")) > 0.0);
    assert_eq!(service.metrics().value("flash_indexer_discovery_changes_total", &[("change", "registered")]), 1.0);
}

/// One engine at several addresses of loopback, all at one port.
fn engines_at(last: &[u8]) -> (u16, Vec<Publisher>) {
    let bind = |last: u8, port: &str| {
        let endpoint = format!("tcp://127.0.0.{last}:{port}");
        Publisher::bind(PublisherOptions { endpoint, ..PublisherOptions::on_loopback() })
    };
    // The port that is free at the first address may be taken at another.
    wait_for("a port that is free at all of them", PATIENCE, || {
        let first = bind(last[0], "*").ok()?;
        let port = first.endpoint().rsplit_once(':')?.1.to_owned();
        let others: Vec<Publisher> = last[1..].iter().map(|&last| bind(last, &port).ok()).collect::<Option<_>>()?;
        Some((port.parse().ok()?, std::iter::once(first).chain(others).collect()))
    })
}

fn dns(server: &FakeDns, name: &str) -> Vec<DiscoverySource> {
    let name = name.parse().expect("a name");
    vec![DiscoverySource::Dns(DnsOptions { name, interval: Duration::from_secs(1), server: Some(server.address) })]
}

#[test]
fn each_address_of_a_name_is_an_engine() {
    let (port, engines) = engines_at(&[2, 3]);
    let server = FakeDns::start(Says::v4(&[2, 3]));
    let service = Service::start_with(options(dns(&server, &format!("engines.test.:{port}")), Duration::ZERO));
    for engine in &engines {
        assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    }
    assert_eq!(instances(&service), ["127.0.0.2", "127.0.0.3"]);
    say(&engines[1], 0, &[stored(None, &[1, 2])]);
    until("what it holds", || service.score(&tokens(&[1, 2]), "127.0.0.3", 0) == 8);

    // A failing name server unregisters no engine.
    server.say(Says::fails_with(ResponseCode::ServFail));
    until("the failure", || source(&service)["state"] == "failing");
    until_looked_again(&service, "failed");
    assert_eq!(instances(&service), ["127.0.0.2", "127.0.0.3"]);

    server.say(Says::v4(&[3]));
    until("the departure", || instances(&service) == ["127.0.0.3"]);
    // A response that the name does not exist unregisters them.
    server.say(Says::fails_with(ResponseCode::NXDomain));
    until("all departures", || instances(&service).is_empty());
    assert!(server.asked() > 0);
}

#[test]
fn an_engine_with_addresses_of_both_kinds_is_one_engine() {
    let v6 = vec!["::1".parse().expect("an address")];
    let server = FakeDns::start(Says { v6: v6.clone(), ..Says::v4(&[2]) });
    let service = Service::start_with(options(dns(&server, "engines.test.:9"), Duration::ZERO));
    until("the engine", || endpoints(&service) == [("127.0.0.2".to_owned(), "tcp://127.0.0.2:9".to_owned())]);
    server.say(Says { v6, ..Says::default() });
    until("the other address", || endpoints(&service) == [("::1".to_owned(), "tcp://[::1]:9".to_owned())]);
}

#[test]
fn service_records_name_engines_with_their_ports() {
    let services = vec![("gpu-1.test.", 5557), ("gpu-2.test.", 6000), ("gpu-2.test.", 5999)];
    let server = FakeDns::start(Says { services, ..Says::default() });
    let mut options = options(dns(&server, "_kv._tcp.engines.test."), Duration::ZERO);
    options.discovery.template.data_parallel_size = 2.try_into().expect("more than 0");
    options.discovery.template.replay_port = Some(7_000);
    let service = Service::start_with(options);
    let at = |host: &str, port: u16| (host.to_owned(), format!("tcp://{host}:{port}"));
    until("both", || endpoints(&service) == [at("gpu-1.test", 5557), at("gpu-2.test", 5999)]);
    let second = service.listener(&json!("gpu-1.test"), 1);
    assert_eq!(second["endpoint"], "tcp://gpu-1.test:5558");
    assert_eq!(second["replay_endpoint"], "tcp://gpu-1.test:7001");
    let problems = json!(["gpu-2.test has several ports: 6000 and the lowest one is used"]);
    until("the problem", || source(&service)["problems"] == problems);
}

/// Event sources of these publishers, which bind every address.
fn named_by_vllm(publishers: &[&Publisher]) -> Vec<flash_indexer_proto::vllm_control::KvEventSource> {
    let wildcard = |endpoint: &str| endpoint.replace("127.0.0.1", "*");
    let sources = (0..).zip(publishers);
    let named = sources.map(|(rank, publisher)| {
        fake_vllm_control::source(&wildcard(publisher.endpoint()), &wildcard(publisher.replay_endpoint()), rank)
    });
    named.collect()
}

#[test]
fn an_engine_of_vllm_is_registered_by_the_address_of_its_grpc_server() {
    let (first, second, restarted) = (publisher(), publisher(), publisher());
    let server = FakeVllmControl::start(named_by_vllm(&[&first, &second]));
    let address = server.address().to_string();
    let options =
        VllmOptions { interval: Duration::from_millis(100), ..VllmOptions::new(address.parse().expect("an address")) };
    let service = Service::start_with(self::options(vec![DiscoverySource::Vllm(options)], Duration::ZERO));
    for publisher in [&first, &second] {
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    }
    let listener = service.listener(&json!(address), 1);
    assert_eq!((&listener["endpoint"], &listener["engine"]), (&json!(second.endpoint()), &json!("vllm")), "{listener}");
    assert_eq!(listener["replay_endpoint"], json!(second.replay_endpoint()));
    say(&second, 0, &[stored(None, &[1, 2])]);
    until("what it holds", || service.score(&tokens(&[1, 2]), &address, 1) == 8);

    // A server that does not answer unregisters no engine.
    server.answer(Err(tonic::Status::unavailable("starting")));
    until("the failure", || source(&service)["state"] == "failing");
    until_looked_again(&service, "failed");
    assert_eq!(instances(&service), [address.as_str()]);

    // The engine has restarted, with one rank at other ports.
    server.answer(Ok(named_by_vllm(&[&restarted])));
    until("the other port", || endpoints(&service) == [(address.clone(), restarted.endpoint().to_owned())]);
    until("the departure of rank 1", || service.listener(&json!(address), 1) == Value::Null);
    server.answer(Ok(Vec::new()));
    until("the problem", || {
        source(&service)["problems"][0].as_str().is_some_and(|problem| problem.contains("--kv-events-config"))
    });
    until("the departure", || instances(&service).is_empty());
}

#[test]
fn a_server_without_the_call_is_a_failing_source() {
    let server = FakeVllmControl::start(Vec::new());
    server.answer(Err(tonic::Status::unimplemented("GetKvEventSources")));
    let options = VllmOptions::new(server.address().to_string().parse().expect("an address"));
    let service = Service::start_with(self::options(vec![DiscoverySource::Vllm(options)], Duration::ZERO));
    until("the failure", || source(&service)["state"] == "failing");
    let source = source(&service);
    assert!(source["error"].as_str().is_some_and(|why| why.contains("vllm.Control/GetKvEventSources")), "{source}");
}

#[test]
fn an_engine_of_vllm_names_its_block_size_and_its_model() {
    let publisher = publisher();
    let server = FakeVllmControl::start(named_by_vllm(&[&publisher]));
    let address = server.address().to_string();
    let watched =
        VllmOptions { interval: Duration::from_millis(100), ..VllmOptions::new(address.parse().expect("an address")) };
    let discovery = DiscoveryOptions { sources: vec![DiscoverySource::Vllm(watched)], ..DiscoveryOptions::default() };
    let service = Service::start_with(ServerOptions { discovery, ..ServerOptions::default() });
    until("the failure", || source(&service)["state"] == "failing");
    assert!(source(&service)["error"].as_str().is_some_and(|why| why.contains("--block-size")), "{}", source(&service));

    server.describe(BLOCK_TOKENS, "m");
    until("its registration", || instances(&service) == [address.as_str()]);
    let worker = service.get("/workers").1[0].clone();
    assert_eq!((&worker["model_name"], &worker["block_size"]), (&json!("m"), &json!(BLOCK_TOKENS)), "{worker}");
    say(&publisher, 0, &[stored(None, &[1, 2])]);
    until("what it holds", || service.score(&tokens(&[1, 2]), &address, 0) == 8);
}

#[test]
fn a_request_registers_an_engine_of_vllm_by_the_address_of_its_grpc_server() {
    let (first, second, restarted) = (publisher(), publisher(), publisher());
    let server = FakeVllmControl::start(named_by_vllm(&[&first, &second]));
    let service = Service::start();
    let endpoint = format!("vllm://{}", server.address());
    let register = |fields: Value| {
        let mut body = json!({ "instance_id": "a", "endpoint": endpoint });
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        service.post("/register", &body)
    };
    let refused = |fields: Value, status: u16, text: &str| {
        let (got, body) = register(fields);
        assert!(got == status && body["error"].as_str().is_some_and(|why| why.contains(text)), "{got} {body}");
    };
    // It names neither its model nor its block size.
    refused(json!({ "model_name": "m" }), 422, "give block_size");
    refused(json!({ "block_size": 4 }), 422, "model_name");
    server.describe(BLOCK_TOKENS, "m");
    refused(json!({ "block_size": BLOCK_TOKENS + 1 }), 422, "leave out block_size");
    refused(json!({ "replay_endpoint": "tcp://127.0.0.1:1" }), 422, "replay_endpoint");
    refused(json!({ "engine": "sglang" }), 422, "engine");
    refused(json!({ "dp_rank": 2 }), 422, "no rank 2");
    refused(json!({ "endpoint": "vllm://169.254.169.254:80" }), 400, "169.254.169.254");
    refused(json!({ "endpoint": "vllm://gpu-1" }), 400, "gpu-1:50051");
    assert_eq!(service.get("/workers").1, json!([]), "nothing is registered");

    assert_eq!(register(json!({})).0, 201);
    assert_eq!(register(json!({})).0, 200, "the same ranks at the same endpoints");
    let listener = service.listener(&json!("a"), 1);
    assert_eq!((&listener["endpoint"], &listener["engine"]), (&json!(second.endpoint()), &json!("vllm")), "{listener}");
    assert!(second.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    say(&second, 0, &[stored(None, &[1, 2])]);
    until("what it holds", || service.score(&tokens(&[1, 2]), "a", 1) == 8);

    // The engine has restarted, with other ports.
    server.answer(Ok(named_by_vllm(&[&restarted, &second])));
    assert_eq!(register(json!({})).0, 201);
    assert_eq!(service.listener(&json!("a"), 0)["endpoint"], json!(restarted.endpoint()));
    assert_eq!(service.score(&tokens(&[1, 2]), "a", 1), 8, "a rank that has not moved keeps its blocks");

    server.answer(Ok(Vec::new()));
    refused(json!({}), 422, "--kv-events-config");
    server.answer(Err(tonic::Status::unimplemented("GetKvEventSources")));
    refused(json!({}), 422, "vllm.Control/GetKvEventSources");
    server.answer(Err(tonic::Status::unavailable("starting")));
    refused(json!({}), 503, "starting");
    assert_eq!(service.listener(&json!("a"), 0)["endpoint"], json!(restarted.endpoint()), "its registration stays");
}

#[test]
fn an_engine_of_vllm_outside_the_networks_of_engines_is_not_asked() {
    let server = FakeVllmControl::start(Vec::new());
    let watched = VllmOptions::new(server.address().to_string().parse().expect("an address"));
    let networks = EngineNetworks::new(["10.0.0.0/8".parse().expect("a network")]);
    let indexer = IndexerOptions { engine_networks: networks, ..IndexerOptions::default() };
    let options = self::options(vec![DiscoverySource::Vllm(watched)], Duration::ZERO);
    let service = Service::start_with(ServerOptions { indexer, ..options });
    until("the failure", || source(&service)["state"] == "failing");
    assert!(source(&service)["error"].as_str().is_some_and(|why| why.contains("--engine-networks")));
    let body = json!({ "instance_id": "a", "model_name": "m", "endpoint": format!("vllm://{}", server.address()) });
    let (status, body) = service.post("/register", &body);
    assert!(status == 400 && body["error"].as_str().is_some_and(|why| why.contains("--engine-networks")), "{body}");
}
