//! The dashboard at `/ui`: its files, its headers, and the stream of live figures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use flash_indexer_server::Server;
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

use crate::support::{Engine, PATIENCE, Service, removed, stored, to_host, tokens};

/// A response with its status line and headers read.
struct Streamed {
    head: Vec<String>,
    body: BufReader<TcpStream>,
}

impl Streamed {
    fn get(server: &Server, path: &str) -> Self {
        let mut socket = TcpStream::connect(server.address()).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut body = BufReader::new(socket);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            body.read_line(&mut line).expect("a head");
            let line = line.trim_end().to_lowercase();
            if line.is_empty() {
                return Self { head, body };
            }
            head.push(line);
        }
    }

    fn status(&self) -> &str {
        self.head[0].split(' ').nth(1).expect("a status")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.body.read_to_string(&mut rest).expect("the rest");
        rest
    }

    /// The next sample of the stream.
    fn sample(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.body.read_line(&mut line).expect("a line") > 0, "the stream ended");
            if let Some(json) = line.strip_prefix("data: ") {
                return serde_json::from_str(json).expect("JSON");
            }
        }
    }
}

#[test]
fn a_browser_at_the_root_is_sent_to_the_dashboard_and_a_program_learns_the_endpoints() {
    let service = Service::start();
    let ask = |method: &str, accept: &str| {
        let mut socket = TcpStream::connect(service.server().address()).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        let request =
            format!("{method} / HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer.to_lowercase()
    };
    for accept in ["text/html,application/xhtml+xml,*/*;q=0.8", "Text/HTML", "text/*", "x/y\r\naccept: text/html;q=0.1"]
    {
        for method in ["GET", "HEAD"] {
            let page = ask(method, accept);
            assert!(page.starts_with("http/1.1 307") && page.contains("location: ui\r\n"), "{method} {accept}: {page}");
        }
    }
    for accept in ["*/*", "text/html;q=0, */*", "text/html;q=0, text/*", "text/*;q=0", "text/html-sandboxed"] {
        let program = ask("GET", accept);
        assert!(
            program.starts_with("http/1.1 404") && program.contains("/openapi.json") && program.contains("/ui"),
            "{accept}: {program}"
        );
        assert!(ask("HEAD", accept).starts_with("http/1.1 404"), "{accept}");
    }
    assert!(ask("POST", "text/html").starts_with("http/1.1 404"));
}

#[test]
fn every_file_is_served_with_its_type_and_a_strict_policy() {
    let service = Service::start();
    let page = Streamed::get(service.server(), "/ui");
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let text = page.rest();
    let names: Vec<&str> = text.split("\"ui/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.contains(&"app.js") && names.contains(&"style.css"), "{names:?}");
    for name in names {
        let file = Streamed::get(service.server(), &format!("/ui/{name}"));
        let expected = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!((file.status(), file.header("content-type")), ("200", Some(expected)), "{name}");
        assert_eq!(file.header("content-security-policy"), Some(policy.as_str()), "{name}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{name}");
    }
    let slash = Streamed::get(service.server(), "/ui/");
    assert_eq!((slash.status(), slash.header("location")), ("308", Some("../ui")));
    for missing in ["/ui/other.js", "/ui/..%2f..%2fetc%2fpasswd", "/ui/index.html"] {
        let (status, answer) = service.get(missing);
        assert_eq!(status, 404, "{missing}: {answer}");
    }
    let requests = |path| service.metrics().value("flash_indexer_requests_total", &[("endpoint", path)]);
    assert_eq!((requests("/ui"), requests("/ui/")), (1.0, 1.0));
    assert!(requests("/ui/{file}") >= 5.0, "files are counted by their route");
}

#[test]
fn the_live_figures_follow_events_and_queries() {
    let service = Service::start();
    let mut stream = Streamed::get(service.server(), "/ui/events");
    assert_eq!((stream.status(), stream.header("content-type")), ("200", Some("text/event-stream")));
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(2), &[3])]);
    for _ in 0..3 {
        service.query(&json!({ "token_ids": tokens(&[1, 2, 9, 9]), "model_name": "m" }));
    }
    let expected = json!({ "events": 2, "queries": 3, "queried_blocks": 12, "found_blocks": 6 });
    let sample = wait_for("the figures", PATIENCE, || {
        let sample = stream.sample();
        expected.as_object().expect("an object").iter().all(|(name, value)| sample[name] == *value).then_some(sample)
    });
    let counts = sample["latencies"].as_array().expect("buckets");
    assert_eq!(counts.len(), sample["bounds_s"].as_array().expect("bounds").len() + 1);
    assert_eq!(counts.iter().filter_map(Value::as_u64).sum::<u64>(), 3);
}

#[test]
fn live_streams_are_bounded_and_end_when_the_service_stops() {
    let service = Service::start();
    let reached = || {
        let labels = [("limit", "dashboard_subscribers")];
        service.metrics().value("flash_indexer_limit_reached_total", &labels)
    };
    let streams: Vec<Streamed> = (0..16).map(|_| Streamed::get(service.server(), "/ui/events")).collect();
    assert!(streams.iter().all(|stream| stream.status() == "200"));
    assert_eq!(reached(), 0.0);
    let (status, answer) = service.get("/ui/events");
    assert_eq!(status, 503, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("16 dashboards")), "{answer}");
    assert_eq!(reached(), 1.0);

    let readers: Vec<_> = streams.into_iter().map(|stream| std::thread::spawn(|| stream.rest())).collect();
    drop(service.stop());
    for reader in readers {
        let rest = reader.join().expect("the stream");
        assert!(rest.ends_with("\r\n0\r\n\r\n"), "the stream ended in the middle: {rest}");
    }
}

#[test]
fn a_listed_rank_has_its_blocks_by_tier_its_activity_and_its_lag() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let silent = Engine::registered(&service, json!(2), 0, &json!({}));
    engine.say(&service, 4, &[stored(None, &[1, 2, 3]), to_host(2), removed(&[3])]);
    let listed = service.listener(&engine.instance, 0);
    assert_eq!(listed["blocks"], json!({ "device": 2, "host_pinned": 1, "disk": 0, "external": 0 }));
    let counts =
        ["events", "stored_blocks", "removed_blocks", "last_seq", "received_seq"].map(|name| listed[name].clone());
    assert_eq!(counts, [json!(3), json!(4), json!(1), json!(4), json!(4)]);
    let listed = service.listener(&silent.instance, 0);
    assert_eq!((&listed["received_seq"], &listed["events"]), (&Value::Null, &json!(0)));
}
