//! Comparisons of ranks with a peer: several at a time, and no more than the limit.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use flash_indexer_server::ServerOptions;
use flash_indexer_test_support::wait_for;
use serde_json::json;

use crate::support::{Engine, PATIENCE, Service, stored};

/// Comparisons that may run with one peer at a time.
const AT_ONCE_MAX: usize = 16;
const ENGINES: u64 = 20;

/// Digests that a gate has received.
#[derive(Default)]
struct Seen {
    in_flight: usize,
    in_flight_most: usize,
    targets: BTreeSet<String>,
    /// Remaining requests to refuse because the peer is busy.
    refusals_left: usize,
    refused: usize,
}

/// A proxy in front of a service that delays each digest until several are in flight at once.
struct Gate {
    address: SocketAddr,
    seen: Arc<(Mutex<Seen>, Condvar)>,
}

impl Gate {
    fn before(service: &Service, wanted_in_flight: usize, refusals: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new((Mutex::new(Seen { refusals_left: refusals, ..Seen::default() }), Condvar::new()));
        let (shared, target) = (Arc::clone(&seen), service.url("").trim_start_matches("http://").to_owned());
        // The thread ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, target) = (Arc::clone(&shared), target.clone());
                std::thread::spawn(move || serve(stream, &target, &shared, wanted_in_flight));
            }
        });
        Self { address, seen }
    }

    fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.0.lock().expect("no panic"))
    }
}

fn serve(mut client: TcpStream, target: &str, (seen, changed): &(Mutex<Seen>, Condvar), wanted: usize) {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&part[..read]),
        }
    }
    let request = String::from_utf8(request).expect("text");
    let path = request.split(' ').nth(1).expect("a path").to_owned();
    let is_digest = path.starts_with("/digest");
    if is_digest {
        let mut now = seen.lock().expect("no panic");
        if now.refusals_left > 0 {
            (now.refusals_left, now.refused) = (now.refusals_left - 1, now.refused + 1);
            let refusal = "HTTP/1.1 503 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            let _ = client.write_all(refusal.as_bytes());
            return;
        }
        now.in_flight += 1;
        now.in_flight_most = now.in_flight_most.max(now.in_flight);
        changed.notify_all();
        let waited = changed.wait_timeout_while(now, PATIENCE, |now| now.in_flight_most < wanted);
        let (mut now, _) = waited.expect("no panic");
        let instance = path.split('&').find(|field| field.starts_with("instance_id=")).expect("an instance");
        now.targets.insert(instance.to_owned());
    }
    let mut server = TcpStream::connect(target).expect("the service");
    let forwarded = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    server.write_all(forwarded.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).expect("an answer");
    if is_digest {
        seen.lock().expect("no panic").in_flight -= 1;
    }
    let _ = client.write_all(&answer);
}

fn compared_through(wanted_in_flight: usize, refusals: usize) -> (Gate, Service, Service) {
    let other = Service::start();
    let gate = Gate::before(&other, wanted_in_flight, refusals);
    let service = Service::start_with(ServerOptions {
        peer_check_interval: Some(Duration::from_millis(50)),
        ..ServerOptions::default()
    });
    for number in 1..=ENGINES {
        let engine = Engine::registered(&service, json!(number), 0, &json!({}));
        engine.register(&other, &json!({}));
        engine.say_to_both((&service, &other), 0, &[stored(None, &[number, number + 100])]);
        // Its blocks stay, and it publishes nothing more.
        std::mem::forget(engine);
    }
    let url = format!("http://{}", gate.address);
    assert_eq!(service.post("/register_peer", &json!({ "url": url })).0, 201);
    (gate, service, other)
}

fn equal(service: &Service) -> f64 {
    service.metrics().value("flash_indexer_peer_checks_total", &[("outcome", "equal")])
}

#[test]
fn ranks_are_compared_several_at_a_time_and_all_of_them() {
    let (gate, service, _other) = compared_through(4, 0);
    wait_for("all ranks", PATIENCE, || (gate.seen(|seen| seen.targets.len()) == ENGINES as usize).then_some(()));
    wait_for("their outcomes", PATIENCE, || (equal(&service) >= ENGINES as f64).then_some(()));
    let most = gate.seen(|seen| seen.in_flight_most);
    assert!((4..=AT_ONCE_MAX).contains(&most), "{most} comparisons at once");
}

#[test]
fn a_peer_that_is_busy_is_asked_again() {
    let (gate, service, _other) = compared_through(1, 10);
    wait_for("all ranks", PATIENCE, || (equal(&service) >= ENGINES as f64).then_some(()));
    assert_eq!(gate.seen(|seen| (seen.refused, seen.targets.len())), (10, ENGINES as usize));
    let skipped = service.metrics().value("flash_indexer_peer_checks_total", &[("outcome", "not_compared")]);
    assert_eq!(skipped, 0.0, "no rank was left out because the peer was busy");
}

#[test]
fn a_replica_skips_itself_among_its_peers() {
    let service = Service::start_with(ServerOptions {
        peer_check_interval: Some(Duration::from_millis(50)),
        ..ServerOptions::default()
    });
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    let own = service.url("");
    assert_eq!(service.post("/register_peer", &json!({ "url": own })).0, 201);
    let own_peers = || {
        let answer = ureq::get(service.url("/peers")).call().expect("an answer");
        answer.headers().get("flash-indexer-own-peers").map(|own| own.to_str().expect("ASCII").to_owned())
    };
    assert_eq!(wait_for("the replica to recognise itself", PATIENCE, own_peers), own);
    assert_eq!(service.get("/peers").1, json!([own]));
    let compared = |outcome| service.metrics().value("flash_indexer_peer_checks_total", &[("outcome", outcome)]);
    assert_eq!(["equal", "not_compared", "unreachable"].map(compared), [0.0; 3]);
    assert_eq!(service.post("/deregister_peer", &json!({ "url": own })).0, 200);
    assert_eq!(own_peers(), None);
}
