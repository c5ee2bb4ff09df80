//! Dynamo's published crate and `flash-indexer serve` as clients and peers of each other.
//!
//! `FLASH_INDEXER` is the path of a built `flash-indexer`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dynamo_kv_router::indexer::{TieredMatchDetails, WireTieredMatchDetails};
use dynamo_kv_router::protocols::{StorageTier, WorkerWithDpRank};
use dynamo_kv_router::services::indexer::{IndexerConfig, run_server};
use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK_TOKENS: u32 = 4;
const WORKER: u64 = 7;

/// A running `flash-indexer serve`, killed on drop.
struct FlashIndexer {
    child: Child,
    url: String,
}

impl FlashIndexer {
    fn start(arguments: &[&str]) -> Self {
        let program = std::env::var_os("FLASH_INDEXER").map(PathBuf::from);
        let program = program.expect("FLASH_INDEXER is the path of a built flash-indexer; cargo build makes one");
        let mut child = Command::new(program)
            .args(["serve", "--port", "0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let url =
            lines.by_ref().find_map(|line| Some(format!("http://{}", line.ok()?.split_once("http://")?.1.trim())));
        // The log is read to the end, so the pipe never fills.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Self { child, url: url.expect("it logs its address") }
    }
}

impl Drop for FlashIndexer {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts Dynamo's standalone indexer in this process. It runs until the test ends.
fn start_dynamo(peers: Option<String>) -> String {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a free port").port();
    std::thread::spawn(move || {
        let config = IndexerConfig {
            block_size: None,
            port,
            threads: 1,
            workers: None,
            model_name: String::new(),
            routing_group: String::new(),
            peers,
            access_log: None,
            trace_id_header: http::HeaderName::from_static("x-request-id"),
            access_log_local_time: false,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(run_server(config))
    });
    let url = format!("http://127.0.0.1:{port}");
    wait_for("Dynamo's service", PATIENCE, || get(&format!("{url}/health")));
    url
}

fn get(url: &str) -> Option<String> {
    ureq::get(url).call().ok()?.body_mut().read_to_string().ok()
}

fn post(url: &str, body: &Value) -> Option<Value> {
    ureq::post(url).send_json(body).ok()?.body_mut().read_json().ok()
}

/// An engine that is registered with a service as worker 7.
fn registered(service: &str) -> Publisher {
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("a publisher");
    let registration = json!({
        "instance_id": WORKER, "endpoint": publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    post(&format!("{service}/register"), &registration).expect("it is registered");
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"));
    publisher
}

fn tokens(blocks: &[u64]) -> Vec<u32> {
    blocks.iter().flat_map(|&block| (0..BLOCK_TOKENS).map(move |at| 100 * block as u32 + at)).collect()
}

fn stored<'a>(parent: Option<u64>, blocks: &[u64], medium: &'a str) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored {
        block_hashes: blocks.iter().copied().map(SequenceHash).collect(),
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(tokens(blocks)),
        block_size: BLOCK_TOKENS,
        medium: Some(medium),
        ..BlockStored::default()
    })
}

fn publish(publisher: &Publisher, sequence: u64, events: &[EngineEvent<'_>]) {
    publisher.publish(sequence, &encode_batch(1.0, events, None, Encoding::Map)).expect("published");
}

fn signed_hashes(blocks: &[u64]) -> Vec<i64> {
    let size = BlockSize::new(BLOCK_TOKENS).expect("a size");
    let locals = local_hashes(HashVariant::default(), &tokens(blocks), size, TokenWindow::Block);
    locals.into_iter().map(|local| local.0.cast_signed()).collect()
}

/// Matched tokens of worker 7 in device memory, as both services answer.
fn matched(service: &str, blocks: &[u64]) -> Option<u64> {
    let query = json!({ "token_ids": tokens(blocks), "model_name": "m" });
    post(&format!("{service}/query"), &query)?["scores"]["7"]["0"].as_u64()
}

#[test]
fn dynamos_types_read_the_matches_by_tier() {
    let service = FlashIndexer::start(&[]);
    let engine = registered(&service.url);
    publish(&engine, 0, &[stored(None, &[1, 2, 3], "GPU"), stored(Some(1), &[2, 3], "CPU")]);
    let removed =
        BlockRemoved { block_hashes: vec![SequenceHash(3)].into(), medium: Some("GPU"), ..BlockRemoved::default() };
    publish(&engine, 1, &[EngineEvent::Removed(removed)]);
    wait_for("the removal", PATIENCE, || (matched(&service.url, &[1, 2, 3]) == Some(8)).then_some(()));

    let query = json!({ "block_hashes": signed_hashes(&[1, 2, 3]), "model_name": "m", "routing_group": "default" });
    let answer = post(&format!("{}/query_tiered_by_hash", service.url), &query).expect("an answer");
    assert_eq!(answer["block_size"], json!(BLOCK_TOKENS));
    let tiered: WireTieredMatchDetails = serde_json::from_value(answer["tiered"].clone()).expect("Dynamo's types");
    let tiered = TieredMatchDetails::from(tiered);
    let worker = WorkerWithDpRank { worker_id: WORKER, dp_rank: 0 };
    assert_eq!(tiered.device.overlap_scores.scores.get(&worker), Some(&2));
    assert_eq!(tiered.lower_tier[&StorageTier::HostPinned].hits.get(&worker), Some(&1));

    let query = json!({ "block_hashes": [1], "model_name": "unknown", "routing_group": "default" });
    let answer = post(&format!("{}/query_tiered_by_hash", service.url), &query).expect("no error");
    let tiered: WireTieredMatchDetails = serde_json::from_value(answer["tiered"].clone()).expect("Dynamo's types");
    assert!(tiered.device.scores.is_empty() && tiered.lower_tier.is_empty());
}

#[test]
fn dynamos_indexer_recovers_from_ours() {
    let ours = FlashIndexer::start(&[]);
    let engine = registered(&ours.url);
    publish(&engine, 0, &[stored(None, &[1, 2, 3], "GPU")]);
    wait_for("the store", PATIENCE, || (matched(&ours.url, &[1, 2, 3]) == Some(12)).then_some(()));
    let dynamo = start_dynamo(Some(ours.url.clone()));
    wait_for("the recovered blocks", PATIENCE, || (matched(&dynamo, &[1, 2, 3]) == Some(12)).then_some(()));
}

#[test]
fn ours_recovers_from_dynamos_indexer_and_says_that_the_state_may_be_incomplete() {
    let dynamo = start_dynamo(None);
    let engine = registered(&dynamo);
    publish(&engine, 0, &[stored(None, &[1, 2, 3], "GPU")]);
    wait_for("the store", PATIENCE, || (matched(&dynamo, &[1, 2, 3]) == Some(12)).then_some(()));
    let ours = FlashIndexer::start(&["--peers", &dynamo]);
    wait_for("the recovered blocks", PATIENCE, || (matched(&ours.url, &[1, 2, 3]) == Some(12)).then_some(()));
    let query = json!({ "token_ids": tokens(&[1, 2, 3]), "model_name": "m" });
    let answer = post(&format!("{}/query", ours.url), &query).expect("an answer");
    assert_eq!(
        answer["instances"]["7"]["trust"],
        json!("degraded"),
        "its dump has no position in the stream: {answer}"
    );
}
