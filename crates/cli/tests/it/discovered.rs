//! `serve` with a discovery file.

use crate::support::{PATIENCE, Serve, run, text};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

fn get(serve: &Serve, path: &str) -> Value {
    let mut response = ureq::get(format!("{}{path}", serve.url)).call().expect("an answer");
    serde_json::from_str(&response.body_mut().read_to_string().expect("text")).expect("JSON")
}

#[test]
fn engines_of_a_discovery_file_are_registered_and_unregistered() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("engines.json");
    let engine = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let entries = json!([{ "instance_id": "a", "endpoint": engine.endpoint() }]);
    std::fs::write(&path, entries.to_string()).expect("it can be written");
    let path = path.to_str().expect("a path of text");
    let serve = Serve::start(&[
        "--discovery-file",
        path,
        "--discovery-grace-s",
        "0",
        "--block-size",
        "16",
        "--model-name",
        "m",
    ]);
    assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not subscribe");
    // The subscription precedes the entry in /workers.
    let workers = wait_for("the engine", PATIENCE, || {
        Some(get(&serve, "/workers")).filter(|workers| workers.as_array().is_some_and(|workers| !workers.is_empty()))
    });
    assert_eq!([&workers[0]["instance_id"], &workers[0]["model_name"]], ["a", "m"]);

    std::fs::write(path, "[{]").expect("it can be written");
    wait_for("the error", PATIENCE, || {
        get(&serve, "/discovery")[0]["error"].as_str().filter(|error| error.contains("line 1")).map(drop)
    });
    assert_eq!(get(&serve, "/workers").as_array().map(Vec::len), Some(1));

    std::fs::write(path, "[]").expect("it can be written");
    wait_for("the unregistration", PATIENCE, || {
        get(&serve, "/workers").as_array().filter(|workers| workers.is_empty()).map(drop)
    });
    assert_eq!(serve.stop_with("-TERM"), Some(0));
}

#[test]
fn invalid_discovery_options_are_rejected() {
    for (arguments, hint) in [
        (vec!["--discovery-dns", "10.0.0.1:5557", "--block-size", "16"], "it is an address"),
        (vec!["--discovery-dns", "engines.test:5557"], "--block-size"),
        (vec!["--discovery-kubernetes", "app=vllm", "--discovery-kubernetes-namespace", "A b"], "invalid namespace"),
        (vec!["--discovery-kubernetes-namespace", "prod"], "--discovery-kubernetes"),
        (vec!["--discovery-port", "0"], "--discovery-port"),
    ] {
        let output = run(&[&["serve", "--port", "0"], arguments.as_slice()].concat());
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(hint), "{arguments:?}: {error}");
    }
}
