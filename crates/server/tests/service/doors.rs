//! Attacks of a client, a web page, a pod or a peer that the service must withstand.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{
    DiscoveryOptions, DiscoverySource, EngineNetworks, EngineTemplate, IndexerOptions, PodOptions, ServerOptions,
};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{Encoding, encode_batch};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored};

fn register(endpoint: &str) -> Value {
    json!({ "instance_id": 9, "endpoint": endpoint, "model_name": "m", "block_size": BLOCK_TOKENS })
}

fn bound(service: &Service, name: &str) -> f64 {
    service.metrics().value("flash_indexer_bounds_reached_total", &[("bound", name)])
}

/// Answers each connection with this, and counts them.
struct Canned {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Canned {
    fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (address, requests) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&requests);
        // The thread ends with the test program.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

#[test]
fn redirects_of_peers_are_not_followed() {
    let internal = Canned::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]".to_owned());
    let redirect = format!(
        "HTTP/1.1 307 x\r\nlocation: http://{}/secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        internal.address
    );
    let peer = Canned::start(redirect);
    let url = format!("http://{}", peer.address);
    let service = Service::recovered(ServerOptions {
        peers: vec![url.parse().expect("a URL")],
        peer_check_interval: Some(Duration::from_millis(20)),
        ..ServerOptions::default()
    });
    let checked = || service.metrics().value("flash_indexer_peer_checks_total", &[("outcome", "unreachable")]);
    wait_for("two comparisons", PATIENCE, || (checked() >= 2.0).then_some(()));
    assert!(peer.requests() >= 3, "the recovery and the comparisons asked the peer");
    assert_eq!(internal.requests(), 0, "no redirect was followed");
}

#[test]
fn paths_and_addresses_of_one_machine_are_not_dialled() {
    let service = Service::start();
    let refused = [
        ("ipc:///etc/passwd", "--allow-ipc"),
        ("inproc://waker", "tcp://"),
        ("tcp://169.254.169.254:80", "link-local"),
        ("tcp://[fe80::1]:5557", "link-local"),
        ("tcp://[fe80::1%eth0]:5557", "link-local"),
        ("tcp://[::ffff:169.254.169.254]:80", "link-local"),
        ("tcp://[2002:a9fe:a9fe::]:80", "link-local"),
        ("tcp://100.100.100.200:80", "metadata service"),
        ("tcp://0.0.0.0:5557", "unspecified"),
        ("tcp://[::]:5557", "unspecified"),
        ("tcp://224.0.0.1:5557", "multicast"),
        ("tcp://2852039166:80", "169.254.169.254 is a link-local"),
        ("tcp://0xa9fea9fe:80", "169.254.169.254 is a link-local"),
        ("tcp://0251.0376.0251.0376:80", "169.254.169.254 is a link-local"),
        ("tcp://169.254.43518:80", "169.254.169.254 is a link-local"),
        ("tcp://169.254.169.254.:80", "169.254.169.254 is a link-local"),
        ("tcp://metadata.google.internal:80", "metadata service"),
        ("tcp://METADATA.google.internal.:80", "metadata service"),
        ("tcp://10.0.0.1:0", "port"),
        ("tcp://10.0.0.1:1;169.254.169.254:80", "neither a name nor an address"),
        ("tcp://[::1%lo]:5557", "leave out % and the zone"),
        ("tcp://2130706433:5557", "four decimal numbers; give an address"),
        ("tcp://127.1:5557", "four decimal numbers; give an address"),
    ];
    for (endpoint, part) in refused {
        for field in ["endpoint", "replay_endpoint"] {
            let mut request = register("tcp://127.0.0.1:9");
            request[field] = json!(endpoint);
            let (status, answer) = service.post("/register", &request);
            assert!(status == 400 && answer.to_string().contains(part), "{field} {endpoint}: {status} {answer}");
        }
    }
    assert_eq!(bound(&service, "addresses"), 34.0, "each refused path and address is counted");
    assert_eq!(service.get("/workers").1, json!([]));
    for (url, part) in [
        ("http://169.254.169.254", "link-local"),
        ("http://[fe80::1]:8090", "link-local"),
        ("http://[::ffff:169.254.169.254]:80", "link-local"),
        ("http://[2002:a9fe:a9fe::]:80", "link-local"),
        ("http://100.100.100.200", "metadata service"),
        ("http://2852039166:80", "link-local"),
        ("http://0xa9fea9fe", "link-local"),
        ("http://0251.0376.0251.0376", "link-local"),
        ("http://169.254.43518", "link-local"),
        ("http://169.254.169.254.", "link-local"),
        ("http://metadata.google.internal", "metadata service"),
        ("http://127.1:8090", "four decimal numbers"),
        ("http://0.0.0.0:8090", "unspecified"),
        ("http://10.0.0.1:0", "port"),
    ] {
        let (status, answer) = service.post("/register_peer", &json!({ "url": url }));
        assert!(status == 400 && answer.to_string().contains(part), "{url}: {status} {answer}");
    }
    assert_eq!(service.get("/peers").1, json!([]));

    let indexer = IndexerOptions { allow_ipc: true, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let path = std::env::temp_dir().join(format!("flash-indexer-doors-{}", std::process::id()));
    assert_eq!(service.post("/register", &register(&format!("ipc://{}", path.display()))).0, 201);
}

#[test]
fn engines_and_peers_outside_the_engine_networks_are_not_dialled() {
    let engine_networks = EngineNetworks::new(["10.0.0.0/8".parse().expect("a network")]);
    let indexer = IndexerOptions { engine_networks, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    // Every request of this test arrives at a loopback address, as a dialled connection would.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    for (at, host) in ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "8.8.8.8"].into_iter().enumerate() {
        for field in ["endpoint", "replay_endpoint"] {
            let mut request = register("tcp://10.0.0.1:9");
            request[field] = json!(format!("tcp://{host}:{port}"));
            let (status, answer) = service.post("/register", &request);
            assert!(status == 400 && answer.to_string().contains("--engine-networks"), "{host}: {status} {answer}");
        }
        let (status, answer) = service.post("/register_peer", &json!({ "url": format!("http://{host}:{port}") }));
        assert!(status == 400 && answer.to_string().contains("--engine-networks"), "{host}: {status} {answer}");
        assert_eq!(bound(&service, "addresses"), 3.0 * (at + 1) as f64, "each refusal is counted");
    }
    assert_eq!(service.post("/register", &register("tcp://10.0.0.1:9")).0, 201);
    assert_eq!(service.post("/register_peer", &json!({ "url": "http://10.0.0.1:8090" })).0, 201);

    // A name is refused after its lookup.
    let mut named = register(&format!("tcp://localhost:{port}"));
    named["instance_id"] = json!("named");
    assert_eq!(service.post("/register", &named).0, 201);
    let refused = wait_for("the lookup", PATIENCE, || {
        let listener = service.listener(&json!("named"), 0);
        (listener["rejected"]["refused_address"].as_u64() >= Some(1)).then_some(listener)
    });
    assert!(refused["last_error"].as_str().is_some_and(|why| why.contains("--engine-networks")), "{refused}");
    listener.set_nonblocking(true).expect("a socket");
    let dialled = listener.accept().map(|(_, from)| from);
    assert_eq!(dialled.expect_err("a connection").kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_discovery_source_names_no_path_of_this_machine() {
    let path = std::env::temp_dir().join(format!("flash-indexer-doors-{}.json", std::process::id()));
    let entry = json!([{ "instance_id": 1, "endpoint": "ipc:///etc/passwd", "model_name": "m" }]);
    std::fs::write(&path, entry.to_string()).expect("a file");
    let template = EngineTemplate { block_size: BlockSize::new(BLOCK_TOKENS), ..EngineTemplate::default() };
    let sources = vec![DiscoverySource::File(path.clone())];
    let discovery = DiscoveryOptions { sources, template, ..DiscoveryOptions::default() };
    let service = Service::start_with(ServerOptions { discovery, ..ServerOptions::default() });
    let target = wait_for("the target", PATIENCE, || {
        let target = service.get("/discovery").1[0]["targets"][0].clone();
        target["reason"].is_string().then_some(target)
    });
    std::fs::remove_file(path).expect("it is there");
    assert!(target["reason"].as_str().is_some_and(|reason| reason.contains("--allow-ipc")), "{target}");
    assert_eq!(service.get("/workers").1, json!([]));
}

/// The status and the text of an answer to a POST with these header lines.
fn raw_post(service: &Service, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(service.url("").trim_start_matches("http://")).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
}

#[test]
fn a_web_page_of_another_origin_cannot_post() {
    let service = Service::start();
    assert_eq!(service.post("/register", &register("tcp://127.0.0.1:9")).0, 201);
    let bodies = [
        ("/query", json!({ "token_ids": [1], "model_name": "m" }), 200),
        ("/query_by_hash", json!({ "block_hashes": [1], "model_name": "m" }), 200),
        ("/score_completions", json!({ "token_ids": [1], "model_name": "m" }), 200),
        ("/explain", json!({ "token_ids": [1], "model_name": "m" }), 200),
        ("/predict", json!({ "token_ids": [1], "model_name": "m", "pod": 9 }), 200),
        ("/register_peer", json!({ "url": "http://127.0.0.1:9" }), 201),
        ("/deregister_peer", json!({ "url": "http://127.0.0.1:9" }), 200),
        ("/register", register("tcp://127.0.0.1:9"), 200),
        ("/unregister", json!({ "instance_id": 9, "model_name": "m" }), 200),
    ];
    // Requests that browsers send to another origin without a preflight.
    let of_pages = [
        "content-type: text/plain\r\norigin: http://evil.example\r\n",
        "content-type: text/plain;charset=UTF-8\r\n",
        "content-type: application/x-www-form-urlencoded\r\norigin: null\r\n",
        "content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: cross-site\r\n",
        "content-type: multipart/form-data; boundary=x\r\norigin: http://evil.example\r\n",
        "origin: http://evil.example\r\n",
    ];
    for (path, body, _) in &bodies {
        for headers in of_pages {
            let (status, answer) = raw_post(&service, path, headers, &body.to_string());
            assert_eq!(status, 415, "{path} {headers}: {answer}");
            assert!(answer.contains("application/json"), "{path}: it says what to send: {answer}");
        }
    }
    // Clients that are not browsers: `curl -d`, no type at all, and JSON by any of its names.
    for headers in [
        "content-type: application/x-www-form-urlencoded\r\n",
        "",
        "content-type: application/json; charset=utf-8\r\n",
        "content-type: application/vnd.api+json\r\norigin: http://dashboard.example\r\n",
    ] {
        let (path, body, expected) = &bodies[0];
        assert_eq!(raw_post(&service, path, headers, &body.to_string()).0, *expected, "{headers}");
    }
    for (path, body, expected) in &bodies {
        assert_eq!(service.post(path, body).0, *expected, "{path} with application/json");
    }
    // The response to a browser's preflight grants no permission.
    let mut stream = TcpStream::connect(service.url("").trim_start_matches("http://")).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let ask = "OPTIONS /query HTTP/1.1\r\nhost: x\r\norigin: http://evil.example\r\nconnection: close\r\n\
               access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n";
    stream.write_all(ask.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 405 ") && !answer.contains("access-control-allow"), "{answer}");
}

fn connect_and_send(service: &Service, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(service.url("").trim_start_matches("http://")).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(bytes.as_bytes()).expect("sent");
    stream
}

#[test]
fn slow_connections_do_not_shut_others_out() {
    const CONNECTIONS_MAX: usize = 6;
    let options = ServerOptions { connections_max: CONNECTIONS_MAX, ..ServerOptions::default() };
    let service = Service::start_with(options);
    let slow = [
        "",
        "POST /query HT",
        "POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n",
        "POST /query HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    ];
    for bytes in slow {
        let held: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(|_| connect_and_send(&service, bytes)).collect();
        // Each over its own new connection.
        for path in ["/health", "/workers"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let mut answer = String::new();
            connect_and_send(&service, &request).read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path} beside {bytes:?}: {answer}");
        }
        let body = json!({ "token_ids": [1], "model_name": "none" }).to_string();
        assert_eq!(raw_post(&service, "/query", "", &body).0, 404, "beside {bytes:?}");
        drop(held);
    }
    assert!(bound(&service, "connections") >= (4 * CONNECTIONS_MAX) as f64, "each full house is counted");
}

#[test]
fn a_request_that_is_being_answered_keeps_its_connection() {
    const CONNECTIONS_MAX: usize = 6;
    let options = ServerOptions { connections_max: CONNECTIONS_MAX, ..ServerOptions::default() };
    let service = Service::start_with(options);
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    // These are closed first, while the service reads the request.
    let older: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect_and_send(&service, "GET /health HT")).collect();
    // It is answered when the next message has arrived.
    let waiting = "GET /digest?model_name=m&instance_id=1&at_sequence=1&wait_ms=10000 HTTP/1.1\r\nhost: x\r\n\
                   connection: close\r\n\r\n";
    let mut digest = connect_and_send(&service, waiting);
    let health = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut newer = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        newer.push(connect_and_send(&service, "GET /health HT"));
        let mut answer = String::new();
        connect_and_send(&service, health).read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    engine.say(&service, 1, &[stored(Some(1), &[2])]);
    let mut answer = String::new();
    digest.read_to_string(&mut answer).expect("the digest");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"sequence\":1"), "{answer}");
    drop((older, newer));
}

fn pods(service: &Service, topics: impl Iterator<Item = String>) -> Publisher {
    let endpoint = service.indexer().pod_addresses().remove(0);
    let publisher = Publisher::connect(PublisherOptions {
        endpoint,
        topic: b"kv@first@first".to_vec(),
        ..PublisherOptions::on_loopback()
    });
    let publisher = publisher.expect("an address");
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not listen");
    let payload = encode_batch(1.0, &[stored(None, &[1])], None, Encoding::Map);
    for topic in topics {
        publisher.publish_frames(&[topic.as_bytes(), &0_u64.to_be_bytes(), &payload]).expect("published");
    }
    publisher
}

#[test]
fn topics_leave_models_to_other_registrations_and_give_back_what_is_gone() {
    const MODELS_MAX: usize = 8;
    let pod_options = PodOptions { timeout: None, ..PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]) };
    let indexer = IndexerOptions { models_max: MODELS_MAX, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { pods: Some(pod_options), indexer, ..ServerOptions::default() });
    let flood = pods(&service, (0..50).map(|at| format!("kv@pod-{at}@model-{at}")));
    let models = || service.get("/workers").1.as_array().map_or(0, Vec::len);
    let refused = || service.metrics().value("flash_indexer_rejected_total", &[("reason", "too_many_pod_models")]);
    wait_for("all topics", PATIENCE, || (models() as f64 + refused() >= 50.0).then_some(()));
    assert_eq!(models(), MODELS_MAX / 2, "pods have half of all models");
    assert!(bound(&service, "pod_models") >= 46.0);
    for at in 0..MODELS_MAX / 2 {
        let mut request = register("tcp://127.0.0.1:9");
        request["model_name"] = json!(format!("manual-{at}"));
        assert_eq!(service.post("/register", &request).0, 201, "model {at} by hand");
    }
    // A pod of a manually registered model does not count against the limit of models.
    let same = pods(&service, ["kv@pod-x@manual-0".to_owned()].into_iter());
    wait_for("the pod of a known model", PATIENCE, || (!service.listener(&json!("pod-x"), 0).is_null()).then_some(()));

    drop(flood);
    wait_for("the loss of the connection", PATIENCE, || {
        let (_, workers) = service.get("/workers");
        let gone = |worker: &&Value| worker["status"] == "disconnected";
        (workers.as_array()?.iter().filter(gone).count() == MODELS_MAX / 2).then_some(())
    });
    let next = pods(&service, ["kv@pod-new@model-new".to_owned()].into_iter());
    wait_for("a model that was given back", PATIENCE, || {
        (!service.listener(&json!("pod-new"), 0).is_null()).then_some(())
    });
    assert_eq!(models(), MODELS_MAX + 1, "two pods and four instances, and three models of the lost connection");
    drop((same, next));
}
