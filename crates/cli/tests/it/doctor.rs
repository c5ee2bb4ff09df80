//! `doctor` against real services and engines: it finds each fault and names its fix.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{PATIENCE, Serve, flash_indexer, hybrid_service, run, text};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::workload::{ConversationOptions, Conversations};
use flash_indexer_sim::{EngineOptions, PublishedBatch, Publisher, PublisherOptions, SimulatedEngine};
use flash_indexer_test_support::{RedisNode, redis_server, tiny_tokenizer, wait_for};
use flash_indexer_wire::Encoding;
use serde_json::{Value, json};

const BLOCK_SIZE: u32 = 16;
/// An endpoint on which no process listens.
const CLOSED_ENDPOINT: &str = "tcp://127.0.0.1:9";
const CLOSED_REPLAY: &str = "tcp://127.0.0.1:11";

/// An engine that has served a few requests and can replay all of them, with its next batches.
struct Engine {
    publisher: Publisher,
    next: Vec<PublishedBatch>,
    last: u64,
}

impl Engine {
    fn start() -> Self {
        let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        let mut engine = SimulatedEngine::new(EngineOptions {
            block_size: BlockSize::new(BLOCK_SIZE).expect("not zero"),
            blocks: 4_096,
            dp_rank: DpRank(0),
            hash_seed: "0".to_owned(),
            encoding: Encoding::Map,
        });
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        let requests = Conversations::new(ConversationOptions::default(), 1).take(4);
        let mut batches: Vec<_> =
            requests.flat_map(|request| engine.serve(&request, now_s).expect("it fits").batches).collect();
        let next = batches.split_off(batches.len() / 2);
        batches.iter().for_each(|batch| publisher.keep(batch.sequence, &batch.payload));
        let last = batches.last().expect("something was stored").sequence;
        Self { publisher, next, last }
    }

    /// Publishes the next batches.
    fn publish_next(&mut self) {
        for batch in std::mem::take(&mut self.next) {
            self.publisher.publish(batch.sequence, &batch.payload).expect("a socket");
            self.last = batch.sequence;
        }
    }

    fn register(&self, serve: &Serve, instance: &str, block_size: u32, replay_endpoint: &str) {
        let endpoint = self.publisher.endpoint();
        register(serve, instance, block_size, endpoint, replay_endpoint);
        assert!(self.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the service listens");
    }

    fn wait_until_applied(&self, serve: &Serve, instance: &str) {
        wait_for("the service to apply all messages", PATIENCE, || {
            let workers: Vec<Value> =
                ureq::get(format!("{}/workers", serve.url)).call().expect("an answer").body_mut().read_json().ok()?;
            let worker = workers.iter().find(|worker| worker["instance_id"] == json!(instance))?;
            (worker["listeners"]["0"]["last_seq"] == json!(self.last)).then_some(())
        });
    }
}

fn register(serve: &Serve, instance: &str, block_size: u32, endpoint: &str, replay_endpoint: &str) {
    let registration = json!({
        "instance_id": instance, "endpoint": endpoint, "replay_endpoint": replay_endpoint,
        "model_name": format!("model of {instance}"), "block_size": block_size,
    });
    ureq::post(format!("{}/register", serve.url)).send_json(registration).expect("it is registered");
}

fn doctor(serve: &Serve, more: &[&str]) -> Output {
    run(&[&["doctor", &serve.url, "--listen-s", "1"], more].concat())
}

/// The checks of one instance with this verdict.
fn checks(reports: &Value, instance: &str, verdict: &str) -> Vec<String> {
    let reports = reports.as_array().expect("reports");
    let report = reports.iter().find(|report| report["instance_id"] == json!(instance)).expect("a report");
    let findings = report["findings"].as_array().expect("findings").iter();
    let findings = findings.filter(|finding| finding["verdict"] == json!(verdict));
    findings.map(|finding| finding["check"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_healthy_fleet_passes_every_check() {
    let serve = Serve::start(&[]);
    let mut engine = Engine::start();
    engine.register(&serve, "a", BLOCK_SIZE, engine.publisher.replay_endpoint());
    engine.wait_until_applied(&serve, "a");
    // It publishes as soon as doctor listens.
    let output = std::thread::scope(|scope| {
        let examined = scope.spawn(|| doctor(&serve, &["--json"]));
        assert!(engine.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "doctor listens");
        engine.publish_next();
        examined.join().expect("it runs")
    });
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}{}", text(&output.stderr));
    let reports: Value = serde_json::from_str(&shown).expect("JSON");
    let healthy = checks(&reports, "a", "ok");
    for check in ["connection", "endpoint", "sequence", "block size", "hashes", "answers", "replay", "trust"] {
        assert!(healthy.iter().any(|healthy| healthy == check), "{check}: {shown}");
    }
    for seen in ["are found as the engine published them", "recomputed from their tokens are equal", "exact: "] {
        assert!(shown.contains(seen), "{seen}: {shown}");
    }
    let table = text(&doctor(&serve, &["--instance", "a"]).stdout);
    assert!(table.contains("the engine is idle") && table.ends_with("problems: 0, warnings: 0\n"), "{table}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let unread = flash_indexer(&["doctor", &serve.url, "--listen-s", "1"]).stdout(writer).output().expect("it runs");
    assert_eq!(unread.status.code(), Some(0), "its reader has closed the pipe: {}", text(&unread.stderr));
}

#[test]
fn answers_about_a_hybrid_engine_are_compared() {
    let (serve, _engine) = hybrid_service(&[2, 3]);
    let output = doctor(&serve, &["--json"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("1 prefixes of 3 blocks are found as the engine published them"), "{shown}");
}

#[test]
fn each_fault_is_found_at_its_instance() {
    let serve = Serve::start(&[]);
    let healthy_engine = Engine::start();
    let mut misregistered = Engine::start();
    let replayless = Engine::start();
    healthy_engine.register(&serve, "healthy", BLOCK_SIZE, healthy_engine.publisher.replay_endpoint());
    misregistered.register(&serve, "misregistered", BLOCK_SIZE * 2, misregistered.publisher.replay_endpoint());
    replayless.register(&serve, "replayless", BLOCK_SIZE, CLOSED_ENDPOINT);
    register(&serve, "gone", BLOCK_SIZE, CLOSED_ENDPOINT, CLOSED_REPLAY);
    misregistered.publish_next();
    healthy_engine.wait_until_applied(&serve, "healthy");
    misregistered.wait_until_applied(&serve, "misregistered");

    let output = doctor(&serve, &["--json"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    let reports: Value = serde_json::from_str(&shown).expect("JSON");
    assert!(checks(&reports, "healthy", "problem").is_empty(), "{shown}");
    assert_eq!(checks(&reports, "misregistered", "problem"), ["block size"], "{shown}");
    assert_eq!(checks(&reports, "replayless", "problem"), ["replay"], "{shown}");
    assert_eq!(checks(&reports, "gone", "problem"), ["endpoint"], "{shown}");

    let table = text(&doctor(&serve, &["--model-name", "model of misregistered"]).stdout);
    let fix = format!("register them with block_size {BLOCK_SIZE}");
    assert!(table.contains(&fix) && table.contains("problems: 1,") && !table.contains("replayless"), "{table}");
}

/// A listener with a full backlog: further connection attempts get no response, like behind a firewall.
struct FullListener {
    address: std::net::SocketAddr,
    _waiting: Vec<TcpStream>,
    _runtime: tokio::runtime::Runtime,
    _listener: tokio::net::TcpListener,
}

impl FullListener {
    fn bind() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            socket.listen(1).expect("a listener")
        });
        let address = listener.local_addr().expect("an address");
        let mut waiting = Vec::new();
        while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
            waiting.push(connection);
            assert!(waiting.len() < 64, "its queue never fills");
        }
        Self { address, _waiting: waiting, _runtime: runtime, _listener: listener }
    }
}

#[test]
fn stopped_dead_and_unreachable_engines_have_different_findings() {
    let serve = Serve::start(&[]);
    // The kernel accepts connections for a process that does not run.
    let stopped = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let [stopped_endpoint, stopped_replay] =
        stopped.each_ref().map(|socket| format!("tcp://{}", socket.local_addr().expect("an address")));
    let full = [(); 2].map(|()| FullListener::bind());
    let [full_endpoint, full_replay] = full.each_ref().map(|listener| format!("tcp://{}", listener.address));
    register(&serve, "stopped", BLOCK_SIZE, &stopped_endpoint, &stopped_replay);
    register(&serve, "dead", BLOCK_SIZE, CLOSED_ENDPOINT, CLOSED_REPLAY);
    register(&serve, "unreachable", BLOCK_SIZE, &full_endpoint, &full_replay);
    let output = doctor(&serve, &["--json"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    let reports: Value = serde_json::from_str(&shown).expect("JSON");
    for (instance, seen, fix) in [
        ("stopped", "no process answers", "SIGSTOP"),
        ("dead", "refuses connections", "start the engine"),
        ("unreachable", "no answer within", "network policies"),
    ] {
        assert_eq!(checks(&reports, instance, "problem"), ["endpoint"], "{shown}");
        let report = reports.as_array().expect("reports").iter().find(|of| of["instance_id"] == json!(instance));
        let findings = report.expect("a report")["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|finding| finding["check"] == "endpoint").expect("it was checked");
        let says = |field: &str, part: &str| finding[field].as_str().is_some_and(|text| text.contains(part));
        assert!(says("seen", seen) && says("fix", fix), "{instance}: {finding}");
    }
}

#[test]
fn stopped_dead_and_unreachable_services_have_different_errors() {
    let stopped = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let full = FullListener::bind();
    for (address, part) in [
        (stopped.local_addr().expect("an address").to_string(), "the process is stopped or overloaded"),
        (full.address.to_string(), "network policies and firewalls"),
        ("127.0.0.1:9".to_owned(), "refuses connections: start `flash-indexer serve` there"),
    ] {
        let output = run(&["doctor", &format!("http://{address}")]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        assert!(text(&output.stderr).contains(part), "{part}: {}", text(&output.stderr));
    }
}

#[test]
fn a_failed_check_exits_with_2() {
    for url in [&["http://127.0.0.1:9"][..], &["--url", "http://127.0.0.1:9"]] {
        for command in [&["doctor"][..], &["dump"], &["query", "--tokens", "1"]] {
            let output = run(&[command, url].concat());
            assert!(text(&output.stderr).contains("http://127.0.0.1:9 refuses"), "{}", text(&output.stderr));
        }
    }
    let output = run(&["doctor", "http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("flash-indexer serve"), "{}", text(&output.stderr));
    let serve = Serve::start(&[]);
    let output = doctor(&serve, &["--instance", "unknown"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("GET /workers"), "{}", text(&output.stderr));
}

/// The service's checks with this verdict: name, observation and fix.
fn service_checks(output: &Output, verdict: &str) -> Vec<(String, String, String)> {
    let shown = text(&output.stdout);
    let reports: Value = serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{shown}{}", text(&output.stderr)));
    let findings = reports[0]["findings"].as_array().expect("findings").iter();
    let findings = findings.filter(|finding| finding["verdict"] == json!(verdict));
    let part = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    findings.map(|finding| (part(finding, "check"), part(finding, "seen"), part(finding, "fix"))).collect()
}

#[test]
fn a_failing_discovery_source_is_a_problem_with_a_fix() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("engines.json");
    let file = path.to_str().expect("a path of text");
    std::fs::write(&path, "[]").expect("a file");
    let serve = Serve::start(&["--discovery-file", file, "--block-size", "16"]);
    serve.wait_until_ready();
    let output = doctor(&serve, &[]);
    assert_eq!(output.status.code(), Some(2), "no fault, and no engine to check");

    std::fs::write(&path, "[{]").expect("a file");
    wait_for("the failure", PATIENCE, || (serve.get("/discovery").1[0]["state"] == "failing").then_some(()));
    let output = doctor(&serve, &["--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let problems = service_checks(&output, "problem");
    let [(discovery, seen, fix), (engines, ..)] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!([discovery, engines], ["discovery", "engines"]);
    assert!(seen.contains(file) && seen.contains("line 1") && fix.contains("correct the file"), "{problems:?}");
}

#[test]
fn an_unavailable_store_is_a_problem() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let serve = Serve::start(&["--redis", &format!("redis://127.0.0.1:{}", node.port())]);
    let engine = Engine::start();
    engine.register(&serve, "a", BLOCK_SIZE, engine.publisher.replay_endpoint());
    engine.wait_until_applied(&serve, "a");
    let status = |status: &str| {
        wait_for(status, PATIENCE, || {
            let (_, store) = serve.get("/store");
            (store["status"] == *status && store["unfinished_ranks"] == 0).then_some(())
        });
    };
    status("ok");
    let of_store = |checks: Vec<(String, String, String)>| checks.into_iter().find(|(check, ..)| check == "store");
    let output = doctor(&serve, &["--json"]);
    assert!(of_store(service_checks(&output, "ok")).is_some(), "{}", text(&output.stdout));

    node.kill();
    status("unavailable");
    let output = doctor(&serve, &["--json"]);
    let (_, seen, fix) = of_store(service_checks(&output, "problem")).expect("a problem");
    assert!(seen.contains("unavailable") && fix.contains("--redis"), "{seen}: {fix}");
}

/// An engine's `/tokenize` with one answer; returns the bodies that it gets.
fn tokenizing_engine(status: &'static str, answer: Value) -> (String, std::sync::mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (bodies, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(connection.try_clone().expect("a socket"));
            let head: Vec<String> =
                reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            assert!(head[0].starts_with("POST /tokenize "), "{head:?}");
            let length =
                head.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.expect("a length")];
            reader.read_exact(&mut body).expect("a body");
            bodies.send(serde_json::from_slice(&body).expect("JSON")).ok();
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            connection.write_all(format!("{head}{answer}").as_bytes()).ok();
        }
    });
    (url, received)
}

#[test]
fn tokens_of_a_prompt_are_compared_with_the_engines() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("m");
    std::fs::create_dir(&model).expect("a folder");
    std::fs::write(model.join("tokenizer.json"), tiny_tokenizer().to_string()).expect("a tokenizer");
    let template = "{% for m in messages %}one {{ m.content }}{% endfor %}{{ tools | tojson if tools }}";
    std::fs::write(model.join("chat_template.jinja"), template).expect("a template");
    let serve = Serve::start(&["--tokenizer-dir", folder.path().to_str().expect("a path")]);
    let prompt = |more: &[&str], status: &'static str, answer: Value| {
        let (url, bodies) = tokenizing_engine(status, answer);
        let output = doctor(&serve, &[&["--json", "--model-name", "m", "--engine-url", &url], more].concat());
        let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = findings[0]["findings"].as_array().expect("findings").iter();
        let finding = findings.clone().find(|finding| finding["check"] == json!("prompt")).expect("a finding");
        (finding.clone(), bodies.recv_timeout(PATIENCE).expect("a body"))
    };
    let file = folder.path().join("request.json");
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": "two three" }], "stream": true });
    std::fs::write(&file, request.to_string()).expect("a file");
    let file = ["--request", file.to_str().expect("a path")];
    let tokens = |tokens: &[u32]| json!({ "count": tokens.len(), "max_model_len": 4096, "tokens": tokens });

    let (finding, sent) = prompt(&file, "200 OK", tokens(&[3, 4, 5]));
    assert_eq!((&finding["verdict"], &sent), (&json!("ok"), &request), "the request is sent unchanged: {finding}");
    let text_of = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    for (answered, seen) in [
        (vec![3, 4, 6], "number 2 on: the service has [5] of 3 tokens, the engine [6] of 3"),
        (vec![3, 4], "the engine [] of 2"),
    ] {
        let (finding, _) = prompt(&file, "200 OK", tokens(&answered));
        assert_eq!(finding["verdict"], json!("problem"), "{finding}");
        assert!(text_of(&finding, "seen").contains(seen) && text_of(&finding, "fix").contains("/render"), "{finding}");
    }
    let rejected = json!({ "error": { "message": "no such model", "code": 404 } });
    let (finding, _) = prompt(&file, "404 Not Found", rejected.clone());
    assert_eq!(finding["verdict"], json!("problem"), "{finding}");
    assert!(text_of(&finding, "seen").contains("no such model"), "{finding}");
    assert!(text_of(&finding, "fix").contains("--engine-url"), "{finding}");

    // Without a file, a request with every element that engines change.
    let (finding, sent) = prompt(&[], "404 Not Found", rejected);
    assert_eq!(finding["verdict"], json!("problem"), "the service takes it: {finding}");
    assert_eq!((&sent["model"], &sent["messages"][1]["content"]), (&json!("m"), &Value::Null));
    assert!(
        sent["messages"][1]["tool_calls"][0]["function"]["arguments"].is_string() && sent["tools"].is_array(),
        "{sent}"
    );

    let output = doctor(&serve, &["--json", "--model-name", "m", "--engine-url", "http://127.0.0.1:9"]);
    let shown = self::text(&output.stdout);
    assert!(shown.contains("start the engine's OpenAI API there"), "{shown}");
}
