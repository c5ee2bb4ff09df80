//! Mistakes of a new user: each gets a clear error and disturbs nothing else.

use std::io::{Read, Write};
use std::net::TcpStream;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{InstanceId, ModelKey, Registration, Server, ServerOptions, StartError};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

use crate::support::{Engine, PATIENCE, Service, stored, tokens};

/// The status and the error text, which every failure must have.
fn refused(answer: (u16, Value)) -> (u16, String) {
    let (status, body) = answer;
    let text = body["error"].as_str().unwrap_or_else(|| panic!("no error in {status} {body}"));
    (status, text.to_owned())
}

#[test]
fn wrong_requests_are_refused_with_what_to_do() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    let endpoint = engine.publisher.endpoint();
    let register = |more: Value| {
        let mut body = json!({ "instance_id": 9, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4 });
        for (key, value) in more.as_object().expect("fields") {
            body[key] = value.clone();
        }
        body.to_string()
    };
    let cases: [(&str, String, u16, &str); 42] = [
        ("/query", "{\"token_ids\": [1,".into(), 400, "not JSON"),
        ("/query", String::new(), 400, "not JSON"),
        ("/query", "null".into(), 422, "a JSON object"),
        ("/query", "{}".into(), 422, "token_ids"),
        ("/query", json!({ "token_ids": [1] }).to_string(), 422, "model_name"),
        ("/query", json!({ "token_ids": "1", "model_name": "m" }).to_string(), 422, "token_ids: expected a list"),
        ("/query", json!({ "token_ids": [-1], "model_name": "m" }).to_string(), 422, "token_ids[0]: expected a whole"),
        ("/query", "[]".into(), 422, "fit: expected a JSON object, got a list"),
        ("/query", json!({ "token_ids": [4294967296u64], "model_name": "m" }).to_string(), 422, "4294967296"),
        ("/query", json!({ "token_ids": [1], "model_name": "none" }).to_string(), 404, "POST /register"),
        ("/query", json!({ "token_ids": [1], "model_name": "m", "tenant_id": "t" }).to_string(), 404, "\"t\""),
        (
            "/query",
            json!({ "token_ids": [1], "model_name": "m", "top_k": 0 }).to_string(),
            422,
            "top_k: expected a whole",
        ),
        (
            "/score_completions",
            json!({ "prompt": "a", "model": "m", "top_k": [] }).to_string(),
            422,
            "top_k: expected an",
        ),
        (
            "/query",
            json!({ "token_ids": [1], "model_name": "m", "tenant_id": "a", "routing_group": "b" }).to_string(),
            400,
            "routing_group",
        ),
        ("/query", json!({ "token_ids": [1], "model_name": "m", "model": "n" }).to_string(), 400, "names of one field"),
        ("/query_by_hash", json!({ "block_hashes": ["0xzz"], "model_name": "m" }).to_string(), 422, "0xzz"),
        ("/query_by_hash", json!({ "block_hashes": [1.5], "model_name": "m" }).to_string(), 422, "1.5"),
        ("/query_by_hash", json!({ "block_hashes": [1], "model_name": "none" }).to_string(), 404, "none"),
        ("/register", "{}".into(), 422, "instance_id"),
        ("/register", register(json!({ "instance_id": -1 })), 422, "instance_id"),
        ("/register", register(json!({ "instance_id": "" })), 422, "empty"),
        ("/register", register(json!({ "block_size": 0 })), 422, "at least 1"),
        ("/register", register(json!({ "block_size": "16" })), 422, "block_size: expected a whole number from 0 to"),
        ("/register", register(json!({ "model_name": "" })), 422, "model_name must not be empty"),
        ("/explain", json!({ "model_name": "m" }).to_string(), 422, "`block_hashes`"),
        ("/register", register(json!({ "endpoint": "gpu-1:5557" })), 400, "tcp://"),
        ("/register", register(json!({ "endpoint": "gpu-1:5557" })), 400, "vllm://host:port"),
        (
            "/register",
            register(json!({ "replay_endpoint": "tcp://127.0.0.1:9" })),
            400,
            "is the endpoint of the events",
        ),
        ("/register", register(json!({ "endpoint": "tcp://gpu-1" })), 400, "port"),
        ("/register", register(json!({ "endpoint": "tcp://gpu-1:70000" })), 400, "port"),
        ("/register", register(json!({ "endpoint": "tcp://*:5557" })), 400, "*"),
        ("/register", register(json!({ "endpoint": "tcp://two words:5557" })), 400, "two words"),
        ("/register", register(json!({ "removal": "sometimes" })), 422, "last_copy"),
        ("/register", register(json!({ "removal": 5 })), 422, "removal: expected a string, got 5"),
        ("/register", register(json!({ "engine": 5 })), 422, "engine: expected a string, got 5"),
        ("/register", register(json!({ "engine": {} })), 422, "got an object"),
        ("/register", register(json!({ "engine": "other" })), 422, "`sglang`"),
        (
            "/tokenize",
            json!({ "token_ids": [1], "model_name": "m", "truncation_side": 5 }).to_string(),
            422,
            "truncation_side: expected",
        ),
        ("/register", register(json!({ "replay_endpoint": "nonsense" })), 400, "nonsense"),
        ("/register", register(json!({ "block_size": 16 })), 409, "block_size 4"),
        ("/register", register(json!({ "instance_id": 1 })), 409, "unregister it first"),
        ("/unregister", json!({ "instance_id": 5, "model_name": "m" }).to_string(), 404, "GET /workers"),
    ];
    for (path, body, status, part) in &cases {
        let (found, error) = refused(service.post_text(path, body));
        assert_eq!(found, *status, "{path} {body}: {error}");
        assert!(error.contains(part), "{path} {body}: {error}");
    }
    assert_eq!(refused(service.get("/nothing")).0, 404);
    let (status, error) = refused(service.get("/query"));
    assert!(status == 405 && error.contains("Allow"), "{status} {error}");
    assert_eq!(refused(service.post("/workers", &json!({}))).0, 405);
    assert_eq!(refused(service.get("/dump?hashes=roman")).0, 400);

    // Refused requests have left no trace, and the existing instance still answers.
    assert_eq!(service.get("/workers").1.as_array().map(Vec::len), Some(1));
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 4);
    let again = json!({
        "instance_id": 1, "endpoint": endpoint, "model_name": "m", "model": "m", "block_size": 4,
        "dp_rank": null, "tenant_id": null, "removal": null, "engine": null,
    });
    assert_eq!(service.post("/register", &again), (200, json!({ "status": "ok" })), "an identical repeat");
    assert_eq!(service.get("/health").0, 200);
}

#[test]
fn a_registration_names_the_fields_that_it_ignored() {
    let service = Service::start();
    let register = |fields: &str| {
        let body =
            format!(r#"{{"instance_id":1,"endpoint":"tcp://127.0.0.1:9","model_name":"m","block_size":4{fields}}}"#);
        service.post_text("/register", &body)
    };
    let (status, answer) = register(r#","replay_endpont":"tcp://127.0.0.1:8","worker_type":"decode""#);
    assert_eq!((status, &answer["ignored_fields"]), (201, &json!(["replay_endpont", "worker_type"])), "{answer}");
    let many: String = (0..100).map(|field| format!(",\"{}{field}\":1", "x".repeat(100))).collect();
    let (status, answer) = register(&many);
    assert_eq!((status, answer["ignored_fields"].as_array().expect("a list").len()), (200, 8));
    assert_eq!(answer["ignored_fields"][7], json!("x".repeat(64)));
    assert_eq!(register(""), (200, json!({"status": "ok"})));
}

#[test]
fn an_unknown_field_may_hold_any_json() {
    let service = Service::start();
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let nested = ["[", "]"].map(|bracket| bracket.repeat(100_000)).concat();
    for value in ["\"\\ud800\"", &"9".repeat(400), "1e999", &nested] {
        for (path, fields) in [
            ("/query", r#""model_name":"m","token_ids":[1]"#),
            ("/query_by_hash", r#""model_name":"m","block_hashes":[1]"#),
            ("/explain", r#""model_name":"m","token_ids":[1]"#),
            ("/unregister", r#""model_name":"m","instance_id":1,"dp_rank":9"#),
            ("/tokenize", r#""model_name":"m","token_ids":[1]"#),
        ] {
            let without = service.post_text(path, &format!("{{{fields}}}"));
            let (status, answer) = service.post_text(path, &format!("{{{fields},\"unknown\":{value}}}"));
            assert_eq!(status, without.0, "{path} {:.20}: {answer}", value);
            assert!(![400, 422].contains(&status), "{path}: {answer}");
        }
    }
}

#[test]
fn a_body_of_a_hundred_megabytes_is_refused_and_the_connection_goes_on() {
    let service = Service::start();
    let url = service.url("");
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let body = vec![b'1'; 100 << 20];
    write!(stream, "POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len()).expect("sent");
    stream.write_all(&body).expect("the service reads what it does not want");
    let answer = read_until(&mut stream, "--body-bytes-max\"}");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    write!(stream, "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
    assert!(read_until(&mut stream, "{\"status\":\"ok\"}").starts_with("HTTP/1.1 200 "));

    // A client that sends `Expect` receives the error before it sends the body.
    let mut asking = TcpStream::connect(url.trim_start_matches("http://")).expect("a connection");
    asking.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let head = "POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: 104857600\r\nexpect: 100-continue\r\n\r\n";
    asking.write_all(head.as_bytes()).expect("sent");
    assert!(read_until(&mut asking, "--body-bytes-max\"}").starts_with("HTTP/1.1 413 "));

    // The service waits for no byte of a body that is larger than any client sends.
    let mut huge = TcpStream::connect(url.trim_start_matches("http://")).expect("a connection");
    huge.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    huge.write_all(b"POST /query HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000000000\r\n\r\n").expect("sent");
    assert!(read_until(&mut huge, "--body-bytes-max\"}").starts_with("HTTP/1.1 413 "));
}

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.contains(end) {
        let count = stream.read(&mut bytes).expect("an answer in time");
        assert!(count > 0, "the connection ended after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    text
}

#[test]
fn ready_names_what_is_missing_until_every_engine_asked_for_is_connected() {
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let endpoint = publisher.endpoint().to_owned();
    drop(publisher);
    let (instance, model) = (InstanceId::number(7), ModelKey::new("m", None));
    let registration = Registration::new(instance, model, endpoint.as_str(), BlockSize::new(4).expect("four"));
    let options = ServerOptions { registrations: vec![registration], ..ServerOptions::default() };
    let service = Service::start_with(options);
    let (status, error) = refused(service.get("/ready"));
    assert_eq!(status, 503);
    assert!(error.contains("instance 7 rank 0 of m:default"), "{error}");
    assert_eq!(service.get("/health").0, 200);
    let options = PublisherOptions { endpoint, ..PublisherOptions::on_loopback() };
    let publisher = Publisher::bind(options).expect("the port is free again");
    wait_for("readiness", PATIENCE, || (service.get("/ready").0 == 200).then_some(()));
    drop(publisher);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port();
    let error = runtime.block_on(Server::start(ServerOptions { port, ..ServerOptions::default() }));
    let error = error.expect_err("the port is taken");
    assert!(matches!(error, StartError::Bind { .. }) && error.to_string().contains("--port"), "{error}");
}

#[test]
fn too_many_connections_make_room_and_are_counted() {
    let service = Service::start_with(ServerOptions { connections_max: 2, ..ServerOptions::default() });
    let url = service.url("");
    let connect = || {
        let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let accept = "application/openmetrics-text";
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n").expect("sent");
        stream
    };
    let (mut first, mut second) = (connect(), connect());
    read_until(&mut first, "# EOF");
    read_until(&mut second, "# EOF");
    // Both stay open, and neither has a request that is being answered.
    let mut third = connect();
    let metrics = read_until(&mut third, "# EOF");
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("flash_indexer_bounds_reached_total{bound=\"connections\"} "));
    let times: u64 = line.expect("the metric").parse().expect("a number");
    assert!(times > 0, "{metrics}");
    drop((first, second));
}

#[test]
fn a_reader_that_stands_still_does_not_keep_the_service_from_stopping() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    // More than the sockets' buffers hold.
    let hashes: Vec<u64> = (0..100_000).collect();
    engine.say(&service, 0, &[stored(None, &hashes)]);
    let mut reader = TcpStream::connect(service.url("").trim_start_matches("http://")).expect("a connection");
    write!(reader, "GET /dump HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    let mut byte = [0];
    reader.read_exact(&mut byte).expect("the dump has begun");
    let (stopped, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(service);
        stopped.send(()).expect("the test waits");
    });
    seen.recv_timeout(PATIENCE).expect("the service stops although the dump is not read");
    let _ = engine;
}
