//! Panics of background threads and tasks.

use std::path::Path;

use flash_indexer_discovery::{DiscoveryOptions, DiscoverySource, DnsOptions};

use super::*;
use flash_indexer_peers::PeerUrl;

impl Service {
    fn peer(&self) -> PeerUrl {
        self.url("").parse().expect("an address")
    }

    fn add_peer(&self, peer: &Self) {
        assert_eq!(self.post("/register_peer", &json!({ "url": peer.url("") })).0, 201);
    }

    fn wait_for_panic(&self, kind: ThreadKind) {
        wait_for("the panic", PATIENCE, || (self.panics(kind) >= 1).then_some(()));
        assert!(self.get("/metrics").1.contains(&format!("thread_panics_total{{thread=\"{}\"}} ", kind.as_str())));
    }

    /// Waits until readiness fails with a message that contains these parts.
    fn wait_unready(&self, why: &[&str]) {
        wait_for("an unready service that says why", PATIENCE, || {
            let (status, answer) = self.get("/ready");
            (status == 503 && why.iter().all(|part| answer.contains(part))).then_some(())
        });
    }

    /// Waits until the service is ready and its readiness response counts panics of this kind.
    fn wait_ready_after(&self, kind: ThreadKind) {
        wait_for("a ready service that shows the panic", PATIENCE, || {
            let (status, answer) = self.get("/ready");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            (status == 200 && answer["panics"][kind.as_str()] == json!(self.panics(kind))).then_some(())
        });
    }

    fn source(&self) -> Value {
        serde_json::from_str::<Value>(&self.get("/discovery").1).expect("JSON")[0].clone()
    }
}

fn rank(instance: u64, model: &str, publisher: &Publisher) -> Value {
    json!({ "instance_id": instance, "endpoint": publisher.endpoint(), "model_name": model, "block_size": 1 })
}

#[test]
fn hosts_are_resolved_after_lookups_that_panicked() {
    let service = Service::start(IndexerOptions::default());
    // More lookups than resolver threads.
    for instance in 10..16 {
        let endpoint = "tcp://resolver-fault:5557";
        let register = json!({ "instance_id": instance, "endpoint": endpoint, "model_name": "m", "block_size": 1 });
        assert_eq!(service.post("/register", &register).0, 201);
    }
    for instance in 10..16 {
        let listener = service.wait("the reason", instance, |it| it["rejected"]["lookup_panicked"].is_u64());
        assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("panicked")), "{listener}");
        assert_ne!(listener["status"], "connected");
    }
    service.wait_ready_after(ThreadKind::Resolver);
    let publisher = engine();
    let endpoint = publisher.endpoint().replace("127.0.0.1", "localhost");
    let register = json!({ "instance_id": 1, "endpoint": endpoint, "model_name": "m", "block_size": 1 });
    assert_eq!(service.post("/register", &register).0, 201);
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    publisher.publish(0, &payload(None, 1)).expect("published");
    service.wait_exact(1, 0);
}

#[test]
fn ranks_are_compared_and_repaired_beside_one_whose_comparison_panics() {
    let whole = Service::start(IndexerOptions::default());
    let peer_check_interval = Some(Duration::from_millis(50));
    let late = Service::start_with(ServerOptions { peer_check_interval, ..ServerOptions::default() });
    let (fails, publisher) = (engine(), engine());
    for service in [&whole, &late] {
        service.register(2, "peer-check-fault", &fails, false);
    }
    fails.publish(0, &payload(None, 1)).expect("published");
    for service in [&whole, &late] {
        service.wait_exact(2, 0);
    }
    whole.register(1, "m", &publisher, false);
    publisher.publish(0, &payload(None, 1)).expect("published");
    whole.wait_exact(1, 0);
    assert_eq!(late.post("/register", &rank(1, "m", &publisher)).0, 201);
    let mut last = 0;
    wait_for("a message without the one before it", PATIENCE, || {
        last += 1;
        publisher.publish(last, &payload(Some(1), 2)).expect("published");
        whole.wait_exact(1, last);
        (late.listener(1)["trust"] == "degraded").then_some(())
    });
    late.add_peer(&whole);
    late.wait_for_panic(ThreadKind::PeerCheck);
    late.wait_exact(1, last);
    assert_eq!(late.score(1, &[1, 2]), 2);
    late.wait_ready_after(ThreadKind::PeerCheck);
}

#[test]
fn a_recovery_that_panics_continues_with_the_next_peer_and_follows_the_streams() {
    let (first, second) = (Service::start(IndexerOptions::default()), Service::start(IndexerOptions::default()));
    let (publisher, replayed) = (engine(), engine());
    for service in [&first, &second] {
        service.register(1, "m", &publisher, false);
    }
    first.register(2, "recovery-fault", &replayed, true);
    publisher.publish(0, &payload(None, 1)).expect("published");
    replayed.publish(0, &payload(None, 1)).expect("published");
    first.wait_exact(2, 0);
    for service in [&first, &second] {
        service.wait_exact(1, 0);
    }
    let peers = vec![first.peer(), second.peer()];
    let service = Service::start_with(ServerOptions { peers, ..ServerOptions::default() });
    service.wait_ready_after(ThreadKind::Recovery);
    assert_eq!(service.panics(ThreadKind::Recovery), 1);
    assert!(service.get("/metrics").1.contains("flash_indexer_recoveries_total{outcome=\"panicked\"} 1\n"));
    // One rank from the second peer, the other by a replay.
    service.wait_exact(1, 0);
    service.wait_exact(2, 0);
    assert_eq!(service.score(1, &[1]), 1);
    publisher.publish(1, &payload(Some(1), 2)).expect("published");
    service.wait_exact(1, 1);
}

#[test]
fn a_rank_whose_release_panics_after_recovery_starts_over_and_the_others_continue() {
    let peer = Service::start(IndexerOptions::default());
    let (publisher, replayed) = (engine(), engine());
    peer.register(1, "m", &publisher, false);
    peer.register(2, "release-fault", &replayed, true);
    publisher.publish(0, &payload(None, 1)).expect("published");
    replayed.publish(0, &payload(None, 1)).expect("published");
    peer.wait_exact(1, 0);
    peer.wait_exact(2, 0);
    let service = Service::start_with(ServerOptions { peers: vec![peer.peer()], ..ServerOptions::default() });
    service.wait_ready_after(ThreadKind::Recovery);
    // One rank from the peer, the other by a replay.
    service.wait_exact(1, 0);
    service.wait_exact(2, 0);
    replayed.publish(1, &payload(Some(1), 2)).expect("published");
    service.wait_exact(2, 1);
}

fn discovering(source: DiscoverySource) -> Service {
    let discovery = DiscoveryOptions { sources: vec![source], ..DiscoveryOptions::default() };
    Service::start_with(ServerOptions { discovery, ..ServerOptions::default() })
}

fn write(path: &Path, entries: &[Value]) {
    std::fs::write(path, json!(entries).to_string()).expect("a file");
}

#[test]
fn a_discovery_source_that_panics_is_failing_until_it_is_polled_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("engines.json");
    std::fs::write(&path, "source-fault").expect("a file");
    let service = discovering(DiscoverySource::File(path.clone()));
    service.wait_unready(&["discovery source panicked", "discovery has panicked"]);
    let (one, other) = (engine(), engine());
    write(&path, &[rank(1, "m", &one)]);
    service.wait_ready_after(ThreadKind::Discovery);
    std::fs::write(&path, "source-fault").expect("a file");
    wait_for("a failing source", PATIENCE, || (service.source()["state"] == "failing").then_some(()));
    assert_eq!(service.listener(1)["status"], "connected", "registrations of the source stay");
    write(&path, &[rank(1, "m", &one), rank(2, "m", &other)]);
    service.wait("the other engine", 2, |it| it["status"] == "connected");
    wait_for("a source without an error", PATIENCE, || (service.source()["state"] == "ok").then_some(()));
}

#[test]
fn readiness_fails_while_registrations_cannot_follow_discovery_because_of_a_panic() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("engines.json");
    let (one, other) = (engine(), engine());
    write(&path, &[rank(1, "m", &one)]);
    let service = discovering(DiscoverySource::File(path.clone()));
    service.wait_ready();
    write(&path, &[rank(1, "m", &one), rank(2, "runner-fault", &other)]);
    service.wait_unready(&["thread discovery panicked", "a test asked for a failure"]);
    assert_eq!(service.listener(1)["status"], "connected", "existing registrations stay");
    write(&path, &[rank(1, "m", &one), rank(3, "m", &other)]);
    service.wait("the other engine", 3, |it| it["status"] == "connected");
    service.wait_ready_after(ThreadKind::Discovery);
}

#[test]
fn a_dns_name_is_queried_again_after_its_task_panicked() {
    let name = "dns-fault.example:5557".parse().expect("a name");
    // The task panics before it queries a name server.
    let server = Some("127.0.0.1:9".parse().expect("an address"));
    let service = discovering(DiscoverySource::Dns(DnsOptions { name, interval: PATIENCE, server }));
    wait_for("another panic", PATIENCE, || (service.panics(ThreadKind::Discovery) >= 2).then_some(()));
    service.wait_unready(&["discovery source panicked", "discovery has panicked"]);
    assert_eq!(service.source()["state"], "failing");
}
