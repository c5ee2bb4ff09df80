//! Two replicas of one fleet: a restarted replica gives the same answers as the other one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::support::{PATIENCE, Serve, flash_indexer, run, text};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

/// Four engines under load, killed on drop.
struct Fleet(Child);

impl Fleet {
    fn registered(serve: &Serve) -> Self {
        let mut command = flash_indexer(&["simulate", "--engines", "4", "--requests", "400", "--stay"]);
        command.args(["--port", "0", "--replay-port", "0", "--register", &serve.url, "--model-name", "m"]);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program runs"))
    }

    /// Waits until all requests are served.
    fn finish(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("staying up")), "they end early");
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Instance, last sequence number and trust state of each stream.
fn positions(serve: &Serve) -> Vec<(Value, Value, Value)> {
    let (_, workers) = serve.get("/workers");
    let position = |worker: &Value| {
        let listener = &worker["listeners"]["0"];
        (worker["instance_id"].clone(), listener["last_seq"].clone(), listener["trust"].clone())
    };
    workers.as_array().expect("a list").iter().map(position).collect()
}

/// Queries of held blocks: the prefixes of the chains in a dump's events.
fn queries(serve: &Serve) -> Vec<Value> {
    let (_, dump) = serve.get("/dump");
    let events = dump["m:default"]["events"].as_array().expect("events");
    let roots = events.iter().map(|event| &event["event"]["data"]["stored"]);
    let roots = roots.filter(|stored| stored["parent_hash"].is_null());
    let prefixes = |stored: &Value| {
        let blocks = stored["blocks"].as_array().expect("blocks");
        let hashes: Vec<Value> = blocks.iter().map(|block| block["tokens_hash"].clone()).collect();
        (1..=hashes.len()).map(|length| json!(hashes[..length])).collect::<Vec<_>>()
    };
    roots.flat_map(prefixes).take(200).collect()
}

fn answers(serve: &Serve, queries: &[Value]) -> Vec<Value> {
    let answer = |hashes: &Value| {
        let query = json!({ "model_name": "m", "block_hashes": hashes });
        let (status, answer) = serve.post("/query_by_hash", &query);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    queries.iter().map(answer).collect()
}

#[test]
fn a_replica_killed_under_load_recovers_from_its_peer() {
    let survivor = Serve::start(&[]);
    let mut fleet = Fleet::registered(&survivor);
    wait_for("engines", PATIENCE, || (positions(&survivor).len() == 4).then_some(()));
    let replica = Serve::start(&["--peers", &survivor.url]);
    replica.wait_until_ready();
    assert_eq!(replica.stop_with("-KILL"), None, "it is killed");
    let restarted = Serve::start(&["--peers", &survivor.url]);
    restarted.wait_until_ready();
    fleet.finish();
    wait_for("the same position", PATIENCE, || (positions(&restarted) == positions(&survivor)).then_some(()));
    assert!(positions(&restarted).iter().all(|(.., trust)| *trust == json!("exact")), "{:?}", positions(&restarted));
    let queries = queries(&survivor);
    assert!(queries.len() >= 4, "the dump has chains");
    assert_eq!(answers(&restarted, &queries), answers(&survivor, &queries));
    let output = run(&["diff", &survivor.url, &restarted.url]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn serve_starts_from_a_dump_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fleet.zst");
    let path = file.to_str().expect("a path of text");
    let serve = Serve::start(&[]);
    let mut fleet = Fleet::registered(&serve);
    fleet.finish();
    assert!(run(&["dump", &serve.url, "-o", path]).status.success());
    let loaded = Serve::start(&["--load", path]);
    loaded.wait_until_ready();
    wait_for("the same position", PATIENCE, || (positions(&loaded) == positions(&serve)).then_some(()));
    let output = run(&["diff", path, &loaded.url]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));

    let bytes = std::fs::read(&file).expect("a file");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("a file");
    for broken in [path, "/nonexistent"] {
        let output = run(&["serve", "--port", "0", "--load", broken]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("failed to load the dump"), "{}", text(&output.stderr));
    }
}
