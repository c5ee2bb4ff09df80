//! An operator can follow a rank in the logs: every event has the fields that name it.

use flash_indexer_redis::StoreOptions;
use flash_indexer_server::{DiscoveryOptions, DiscoverySource, IndexerOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{Encoding, encode_batch};
use serde_json::json;
use tracing::Level;

use crate::support::logs::{LogEvent, capture, logged};
use crate::support::{Engine, PATIENCE, Service, stored};

/// The events of an endpoint whose message begins with this text, once there is one.
fn wait_for_event(endpoint: &str, message: &str) -> LogEvent {
    wait_for(message, PATIENCE, || {
        logged("endpoint", endpoint).into_iter().find(|event| event.message().starts_with(message))
    })
}

#[test]
fn registration_connection_gap_disconnection_and_unregistration_are_logged_with_fields() {
    capture();
    let service = Service::start();
    let engine = Engine::registered(&service, json!("logged"), 3, &json!({ "tenant_id": "t" }));
    let endpoint = engine.publisher.endpoint().to_owned();
    engine.say(&service, 0, &[stored(None, &[1])]);
    engine.say(&service, 5, &[]);
    engine.wait(&service, "the gap", |listener| listener["trust"] == json!("degraded"));
    let Engine { publisher, instance, .. } = engine;
    drop(publisher);
    wait_for_event(&endpoint, "engine disconnected");
    wait_for_event(&endpoint, "failed to connect to the engine");
    let (status, _) = service.post("/unregister", &json!({ "instance_id": instance, "model_name": "m" }));
    assert_eq!(status, 200);

    let events = logged("endpoint", &endpoint);
    let position = |message: &str| {
        let at = events.iter().position(|event| event.message().starts_with(message));
        at.unwrap_or_else(|| panic!("{message}: {events:?}"))
    };
    let expected = [
        (Level::INFO, "rank registered"),
        (Level::INFO, "engine connected"),
        (Level::WARN, "engine disconnected"),
        (Level::WARN, "failed to connect to the engine"),
        (Level::INFO, "rank unregistered"),
    ];
    let positions = expected.map(|(_, message)| position(message));
    // An engine can be connected before the call that registers it has returned.
    assert!(positions[1..].is_sorted() && positions[0] < positions[2], "{events:?}");
    for ((level, _), at) in expected.into_iter().zip(positions) {
        let LogEvent { level: logged, fields } = &events[at];
        assert_eq!(*logged, level, "{fields:?}");
        for (field, value) in [("model", "m"), ("tenant", "t"), ("instance", "logged"), ("dp_rank", "3")] {
            assert_eq!(fields.get(field).map(String::as_str), Some(value), "{field} of {fields:?}");
        }
    }
    assert_eq!(events[positions[0]].fields["owner"], "manual");
    let is_loss = |event: &LogEvent| event.level == Level::WARN && event.message().contains("lost");
    let of_gap = events[positions[1]..positions[2]].iter().filter(|event| is_loss(event)).count();
    assert_eq!(of_gap, 1, "the gap: {events:?}");
}

#[test]
fn a_host_that_does_not_resolve_is_logged_with_its_endpoint() {
    capture();
    let service = Service::start();
    // A label has 63 characters at most, so the resolver refuses the name without asking a name server.
    let host = "x".repeat(64);
    let endpoint = format!("tcp://{host}:5557");
    let register = json!({
        "instance_id": "nowhere", "endpoint": endpoint, "model_name": "m", "block_size": 4, "dp_rank": 1,
    });
    assert_eq!(service.post("/register", &register).0, 201);
    let event = wait_for_event(&endpoint, "failed to resolve");
    assert_eq!(
        (event.level, event.fields["instance"].as_str(), event.fields["dp_rank"].as_str()),
        (Level::WARN, "nowhere", "1")
    );
    assert!(event.fields["error"].contains(&host), "{event:?}");
}

#[test]
fn a_replay_and_another_epoch_are_logged_with_their_positions() {
    capture();
    let service = Service::start();
    let payload = |hash| encode_batch(1.0, &[stored(None, &[hash])], None, Encoding::Map);
    let history = |first: u64| (0..3).map(|sequence| (sequence, payload(first + sequence))).collect::<Vec<_>>();
    let first = PublisherOptions { history: history(1), ..PublisherOptions::on_loopback() };
    let publisher = Publisher::bind(first).expect("free ports");
    let (endpoint, replay_endpoint) = (publisher.endpoint().to_owned(), publisher.replay_endpoint().to_owned());
    let Engine { publisher, instance, .. } = Engine::with_replay(&service, json!("replayed"), publisher);
    let started = wait_for_event(&endpoint, "replay started");
    assert_eq!((started.level, started.fields["from"].as_str()), (Level::INFO, "0"), "{started:?}");
    let ended = wait_for_event(&endpoint, "replay ended");
    let shown = (ended.level, ended.fields["seq"].as_str(), ended.fields["outcome"].as_str());
    assert_eq!(shown, (Level::INFO, "2", "complete"), "{ended:?}");
    // An engine of another epoch, at the same endpoints, has other messages of the same numbers.
    drop(publisher);
    wait_for("the loss of the connection", PATIENCE, || {
        (service.listener(&instance, 0)["status"] != json!("connected")).then_some(())
    });
    let (endpoint_again, history) = (endpoint.clone(), history(10));
    let options =
        PublisherOptions { endpoint: endpoint_again, replay_endpoint, history, ..PublisherOptions::on_loopback() };
    let _publisher = Publisher::bind(options).expect("its ports");
    let differs = wait_for_event(&endpoint, "engine epoch changed: the message differs from the applied one");
    assert_eq!((differs.level, differs.fields["seq"].as_str()), (Level::INFO, "2"), "{differs:?}");
}

#[test]
fn a_recovery_is_logged_with_its_peer_and_its_figures() {
    capture();
    let first = Service::start();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let engine = Engine::with_replay(&first, json!("recovered"), publisher);
    engine.say(&first, 0, &[stored(None, &[1, 2])]);
    let url = first.url("");
    let _second = Service::from_peer(&url);
    let events = logged("peer", url.trim_end_matches('/'));
    let messages: Vec<_> = events.iter().map(LogEvent::message).collect();
    assert_eq!(messages, ["recovery from a peer started", "recovery from a peer finished"], "{events:?}");
    let figures = &events[1].fields;
    assert_eq!((figures["ranks"].as_str(), figures["blocks"].as_str()), ("1", "2"), "{figures:?}");
}

#[test]
fn discovery_changes_are_logged_with_their_source() {
    capture();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("engines.json");
    let engines = json!([{
        "instance_id": "found", "endpoint": publisher.endpoint(), "model_name": "m", "block_size": 4,
    }]);
    std::fs::write(&path, engines.to_string()).expect("a file");
    let discovery =
        DiscoveryOptions { sources: vec![DiscoverySource::File(path.clone())], ..DiscoveryOptions::default() };
    let _service = Service::start_with(ServerOptions { discovery, ..ServerOptions::default() });
    let event = wait_for_event(publisher.endpoint(), "rank registered");
    let source = event.fields["owner"].clone();
    assert!(source.starts_with("file:"), "{event:?}");
    std::fs::write(&path, "[").expect("a file");
    let failed = wait_for("the failure", PATIENCE, || {
        logged("source", &source).into_iter().find(|event| event.message().starts_with("discovery source failed"))
    });
    assert!(failed.level == Level::ERROR && failed.fields.contains_key("error"), "{failed:?}");
}

#[test]
fn a_shared_store_that_cannot_be_reached_is_logged_with_its_endpoint() {
    capture();
    // A port that was free a moment ago: no process listens there.
    let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = address.expect("a free port").to_string();
    let store = StoreOptions::at(format!("redis://{address}").parse().expect("an address"));
    let indexer = IndexerOptions { store: Some(store), ..IndexerOptions::default() };
    let _service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let event = wait_for_event(&address, "failed to connect to the shared store");
    assert!(event.level == Level::WARN && event.fields["error"].contains("refused"), "{event:?}");
}
