//! CURVE: engines with keys that the service connects to, and engines that connect to it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use flash_indexer_curve::{Curve, CurveFiles, KeyPair};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_telemetry::metrics::CurveSocket;
use flash_indexer_test_support::wait_for;
use flash_indexer_types::{ConnectionStatus, Trust};
use tempfile::TempDir;

use super::fixture::{Fixture, PATIENCE, RANK, chain_after, payload};
use crate::{BoundOptions, QUEUE_BYTES_MIN};

/// A process with a key pair and both lists, as files.
struct Party {
    folder: TempDir,
    pair: KeyPair,
}

impl Party {
    fn new() -> Self {
        let (folder, pair) = (tempfile::tempdir().expect("a folder"), KeyPair::generate().expect("CURVE"));
        fs::write(folder.path().join("key"), pair.secret_certificate()).expect("written");
        let party = Self { folder, pair };
        party.knows(&[]);
        party.admits(&[]);
        party
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the list of server keys, all of `*` but the first.
    fn knows(&self, servers: &[&Party]) {
        let lines = servers.iter().map(|server| format!("{} 127.0.0.1\n", server.pair.public()));
        fs::write(self.file("servers"), lines.collect::<String>()).expect("written");
    }

    fn admits(&self, clients: &[&Party]) {
        let lines = clients.iter().map(|client| format!("{} a client\n", client.pair.public()));
        fs::write(self.file("clients"), lines.collect::<String>()).expect("written");
    }

    fn curve(&self) -> Arc<Curve> {
        let (servers, clients) = (Some(self.file("servers")), Some(self.file("clients")));
        Arc::new(Curve::load(&CurveFiles { key: self.file("key"), servers, clients }).expect("keys"))
    }

    fn publisher(&self) -> Publisher {
        let options = PublisherOptions { curve: Some(self.curve()), ..PublisherOptions::on_loopback() };
        Publisher::bind(options).expect("free ports")
    }
}

fn failed_handshakes(fixture: &Fixture, socket: CurveSocket) -> u64 {
    fixture.metrics().curve_handshakes_failed(socket)
}

#[test]
fn an_engine_with_a_key_is_followed_and_replays() {
    let (service, engine) = (Party::new(), Party::new());
    service.knows(&[&engine]);
    engine.admits(&[&service]);
    let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, Some(service.curve()));
    let publisher = engine.publisher();
    fixture.listen(publisher.endpoint(), Some(publisher.replay_endpoint().to_owned()));
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
    publisher.publish(0, &payload(1)).expect("published");
    fixture.wait(0, 0, Trust::Exact);
    publisher.keep(1, &chain_after(Some(1), 2, 1));
    publisher.publish(2, &chain_after(Some(2), 3, 1)).expect("published");
    fixture.wait(0, 2, Trust::Exact);
    assert_eq!(fixture.held_blocks(), 3, "the missed message was replayed");
    assert_eq!(failed_handshakes(&fixture, CurveSocket::Dialled), 0);
}

#[test]
fn an_engine_that_does_not_admit_the_service_is_counted_until_its_list_has_the_key() {
    let (service, engine) = (Party::new(), Party::new());
    service.knows(&[&engine]);
    let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, Some(service.curve()));
    let publisher = engine.publisher();
    let listener = fixture.listen(publisher.endpoint(), None);
    wait_for("a failed handshake", PATIENCE, || {
        listener.report(RANK).rejected.contains_key("curve_handshake").then_some(())
    });
    assert!(failed_handshakes(&fixture, CurveSocket::Dialled) > 0);
    let why = listener.report(RANK).last_error.expect("a reason");
    assert!(why.starts_with("failed to connect to the engine: "), "{why}");
    engine.admits(&[&service]);
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
    publisher.publish(0, &payload(1)).expect("published");
    fixture.wait(0, 0, Trust::Exact);
}

#[test]
fn a_wrong_server_key_is_counted_and_read_again() {
    let (service, engine, other) = (Party::new(), Party::new(), Party::new());
    service.knows(&[&other]);
    engine.admits(&[&service]);
    let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, Some(service.curve()));
    let publisher = engine.publisher();
    let listener = fixture.listen(publisher.endpoint(), None);
    wait_for("a failed handshake", PATIENCE, || {
        listener.report(RANK).rejected.contains_key("curve_handshake").then_some(())
    });
    service.knows(&[&engine]);
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
    publisher.publish(0, &payload(1)).expect("published");
    fixture.wait(0, 0, Trust::Exact);
}

#[test]
fn neither_side_falls_back_to_a_connection_without_curve() {
    let (service, engine) = (Party::new(), Party::new());
    service.knows(&[&engine]);
    engine.admits(&[&service]);
    let (fixture, without_keys) = (
        Fixture::without_engines(1, QUEUE_BYTES_MIN, Some(service.curve())),
        Fixture::without_engines(1, QUEUE_BYTES_MIN, None),
    );
    let plain = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let with_key = fixture.listen(plain.endpoint(), None);
    let secure = engine.publisher();
    let without_key = without_keys.listen(secure.endpoint(), None);
    let why = wait_for("a failed handshake", PATIENCE, || {
        let report = with_key.report(RANK);
        report.rejected.get("curve_handshake").and(report.last_error)
    });
    assert!(why.contains("does not use CURVE"), "{why}");
    fixture.listen(secure.endpoint(), None);
    assert!(secure.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
    secure.publish(0, &payload(1)).expect("published");
    fixture.wait(1, 0, Trust::Exact);
    for listener in [with_key, without_key] {
        assert_ne!(listener.connection(), ConnectionStatus::Connected);
        assert_eq!(listener.report(RANK).last_seq, None);
    }
}

#[test]
fn listed_engines_alone_connect_to_the_bound_socket() {
    let (service, listed, other) = (Party::new(), Party::new(), Party::new());
    service.admits(&[&listed]);
    for engine in [&listed, &other] {
        engine.knows(&[&service]);
    }
    let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, Some(service.curve()));
    let options = BoundOptions { endpoints: vec!["tcp://127.0.0.1:*".to_owned()], topic_prefix: "kv@".to_owned() };
    let endpoint = fixture.sockets.bind(&options).expect("a port").remove(0);
    let connect = |name: &str, curve: Option<Arc<Curve>>| {
        let topic = format!("kv@{name}@m").into_bytes();
        let options = PublisherOptions { endpoint: endpoint.clone(), topic, curve, ..PublisherOptions::on_loopback() };
        Publisher::connect(options).expect("an address")
    };
    let pending = fixture.decoders.pending_registrations();
    let mut refused = 0;
    for curve in [Some(other.curve()), None] {
        let publisher = connect("refused", curve);
        let failed = || failed_handshakes(&fixture, CurveSocket::Bound);
        refused = wait_for("a failed handshake", PATIENCE, || Some(failed()).filter(|now| *now > refused));
        publisher.publish(0, &payload(1)).expect("published");
    }
    let publisher = connect("listed", Some(listed.curve()));
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
    publisher.publish(0, &payload(1)).expect("published");
    let first = pending.recv_timeout(PATIENCE).expect("a pending registration");
    assert_eq!(first.name.instance.to_string(), "listed", "no message of a refused engine arrives");
    // The list is read again for each engine.
    service.admits(&[&listed, &other]);
    let publisher = connect("added", Some(other.curve()));
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
}
