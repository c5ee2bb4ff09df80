//! Ready pods are engines, even while the connection to the cluster fails.

use std::time::Duration;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{DiscoveryOptions, DiscoverySource, EngineTemplate, KubernetesOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{Encoding, encode_batch};
use serde_json::{Value, json};

use crate::support::fake_cluster::FakeCluster;
use crate::support::{BLOCK_TOKENS, PATIENCE, Service, stored, tokens};

/// A service whose engines are the cluster's pods. A pod that is no longer listed is unregistered at once.
fn service(cluster: &FakeCluster) -> Service {
    let source = KubernetesOptions {
        selector: "app=vllm".to_owned(),
        namespace: "prod".parse().expect("a namespace"),
        api: Some(cluster.url()),
    };
    let template = EngineTemplate {
        model_name: Some("m".to_owned()),
        block_size: BlockSize::new(BLOCK_TOKENS),
        ..EngineTemplate::default()
    };
    let sources = vec![DiscoverySource::Kubernetes(source)];
    let discovery = DiscoveryOptions { sources, grace: Duration::ZERO, template };
    Service::start_with(ServerOptions { discovery, ..ServerOptions::default() })
}

fn until(what: &str, condition: impl Fn() -> bool) {
    wait_for(what, PATIENCE, || condition().then_some(()));
}

fn instances(service: &Service) -> Vec<String> {
    let (_, workers) = service.get("/workers");
    let names = workers.as_array().expect("a list").iter();
    names.map(|worker| worker["instance_id"].as_str().unwrap_or_default().to_owned()).collect()
}

fn source(service: &Service) -> Value {
    service.get("/discovery").1[0].clone()
}

#[test]
fn ready_pods_are_listened_to_and_leave_when_they_are_not() {
    let cluster = FakeCluster::start();
    let engine = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let port = engine.endpoint().rsplit_once(':').expect("a port").1.to_owned();
    cluster.set("vllm-0", "127.0.0.1", "True", &json!({ "port": port }));
    cluster.set("vllm-1", "127.0.0.2", "False", &json!({}));
    // More than one page.
    for (name, address) in [("vllm-2", "127.0.0.3"), ("vllm-3", "127.0.0.4"), ("vllm-4", "127.0.0.5")] {
        cluster.set(name, address, "True", &json!({}));
    }
    let service = service(&cluster);
    until("those that are ready", || instances(&service) == ["vllm-0", "vllm-2", "vllm-3", "vllm-4"]);
    assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    engine.publish(0, &encode_batch(1.0, &[stored(None, &[1, 2])], None, Encoding::Map)).expect("published");
    until("what it holds", || service.score(&tokens(&[1, 2]), "vllm-0", 0) == 8);

    cluster.set("vllm-1", "127.0.0.2", "True", &json!({}));
    until("one more", || instances(&service).len() == 5);
    cluster.set("vllm-2", "127.0.0.3", "False", &json!({}));
    cluster.remove("vllm-3");
    until("two less", || instances(&service) == ["vllm-0", "vllm-1", "vllm-4"]);
    cluster.set("vllm-4", "127.0.0.9", "True", &json!({}));
    until("another address", || service.listener(&json!("vllm-4"), 0)["endpoint"] == "tcp://127.0.0.9:5557");
    assert_eq!(service.score(&tokens(&[1, 2]), "vllm-0", 0), 8);
    assert_eq!(cluster.lists(), 1, "one watch delivered every change");
}

#[test]
fn annotations_say_what_an_engine_is() {
    let cluster = FakeCluster::start();
    let annotations = json!({
        "port": "7000", "replay-port": "8000", "data-parallel-size": "2", "block-size": "32", "model-name": "org/model",
        "tenant-id": "blue", "engine": "sglang", "removal": "last_copy", "lora-name": "l",
    });
    cluster.set("pod", "10.0.0.9", "True", &annotations);
    cluster.set("six", "fd00::7", "True", &json!({}));
    let service = service(&cluster);
    until("both", || instances(&service).len() == 2);
    let pod = || service.get("/workers?model_name=org%2Fmodel&tenant_id=blue").1;
    let endpoints = json!({ "0": "tcp://10.0.0.9:7000", "1": "tcp://10.0.0.9:7001" });
    until("both ranks", || pod()[0]["endpoints"] == endpoints);
    let workers = pod();
    assert_eq!(workers[0]["block_size"], 32);
    let rank = &workers[0]["listeners"]["1"];
    assert_eq!(rank["replay_endpoint"], "tcp://10.0.0.9:8001");
    assert_eq!([&rank["engine"], &rank["removal"], &rank["lora_name"]], ["sglang", "last_copy", "l"]);
    assert_eq!(service.listener(&json!("six"), 0)["endpoint"], "tcp://[fd00::7]:5557");

    // The error is reported, and earlier registrations stay.
    cluster.set("pod", "10.0.0.9", "True", &json!({ "port": "http" }));
    cluster.set("bad", "10.0.0.8", "True", &json!({ "engine": "other" }));
    until("both problems", || source(&service)["problems"].as_array().is_some_and(|problems| problems.len() == 2));
    let problems = source(&service)["problems"].to_string();
    assert!(problems.contains("pod prod/pod: flash-indexer/port cannot be \\\"http\\\": give a number"), "{problems}");
    assert!(problems.contains("pod prod/bad: flash-indexer/engine: unknown variant `other`"), "{problems}");
    assert_eq!(instances(&service).len(), 2);
}

#[test]
fn a_watch_that_breaks_goes_on_where_it_was() {
    let cluster = FakeCluster::start();
    cluster.set("a", "10.0.0.1", "True", &json!({}));
    let service = service(&cluster);
    until("the first", || instances(&service) == ["a"]);
    until("a watch", || cluster.watched_from().len() == 1);
    cluster.bookmark();
    cluster.set("b", "10.0.0.2", "True", &json!({}));
    until("the second", || instances(&service) == ["a", "b"]);
    cluster.bookmark();
    let at = cluster.version();
    cluster.set("c", "10.0.0.3", "True", &json!({}));
    until("the third", || instances(&service) == ["a", "b", "c"]);
    cluster.cut();
    cluster.remove("a");
    until("the departure", || instances(&service) == ["b", "c"]);
    assert_eq!(cluster.lists(), 1, "it went on");
    assert!(cluster.watched_from().iter().any(|&from| from > at), "{:?} after {at}", cluster.watched_from());
}

#[test]
fn a_watch_older_than_the_clusters_history_is_replaced_by_a_list() {
    let cluster = FakeCluster::start();
    cluster.set("a", "10.0.0.1", "True", &json!({}));
    cluster.set("b", "10.0.0.2", "True", &json!({}));
    let service = service(&cluster);
    until("both", || instances(&service) == ["a", "b"]);
    cluster.remove("a");
    cluster.set("c", "10.0.0.3", "True", &json!({}));
    cluster.forget();
    until("the others", || instances(&service) == ["b", "c"]);
    until("another list", || cluster.lists() >= 2);
    cluster.remove("b");
    until("the departure", || instances(&service) == ["c"]);
    assert_eq!(source(&service)["error"], Value::Null);
}

#[test]
fn a_cluster_that_does_not_answer_takes_nobody_away() {
    let cluster = FakeCluster::start();
    cluster.set("a", "10.0.0.1", "True", &json!({}));
    let service = service(&cluster);
    until("the engine", || instances(&service) == ["a"]);
    until("a watch", || cluster.watched_from().len() == 1);
    cluster.refuse_with(Some(403));
    cluster.cut();
    until("the error", || source(&service)["state"] == "failing");
    let error = source(&service)["error"].as_str().expect("a text").to_owned();
    assert!(error.contains("needs get, list and watch for pods") && error.contains("not so"), "{error}");
    cluster.remove("a");
    cluster.set("b", "10.0.0.2", "True", &json!({}));
    cluster.forget();
    cluster.refuse_with(Some(500));
    until("another error", || {
        source(&service)["error"].as_str().is_some_and(|error| error.contains("responded with 500"))
    });
    assert_eq!(instances(&service), ["a"], "what was named last stays");
    cluster.refuse_with(None);
    until("the others", || instances(&service) == ["b"]);
}
