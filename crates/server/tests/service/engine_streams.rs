//! Engines whose events are streamed over gRPC, as servers for the SGLang gateway stream them.

use flash_indexer_proto::engine_events::KvEventBatch;
use flash_indexer_proto::engine_events::kv_cache_event::Data;
use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};
use tonic::Status;

use crate::support::fake_stream_server::{
    FakeStreamServer, History, batch, cleared, load, part, removed, stored, stored_on_host,
};
use crate::support::{BLOCK_TOKENS, PATIENCE, Service, tokens};

fn request(server: &FakeStreamServer, instance: u32) -> Value {
    json!({
        "instance_id": instance, "endpoint": server.endpoint(), "engine": "sglang", "model_name": "m",
        "block_size": BLOCK_TOKENS,
    })
}

/// Registers the server's engine as instance 1, and waits for its call.
fn register(service: &Service, server: &FakeStreamServer) {
    let (status, answer) = service.post("/register", &request(server, 1));
    assert_eq!(status, 201, "{answer}");
    server.wait_for_calls(1);
}

fn started(history: History) -> (Service, FakeStreamServer) {
    let (service, server) = (Service::start(), FakeStreamServer::start(history));
    register(&service, &server);
    (service, server)
}

/// Waits until rank 0 of instance 1 is in this state.
fn wait(service: &Service, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, PATIENCE, || Some(service.listener(&json!(1), 0)).filter(|now| condition(now)))
}

fn wait_seq(service: &Service, sequence: u64) -> Value {
    wait(service, "a message", |listener| listener["last_seq"] == json!(sequence))
}

fn wait_trust(service: &Service, trust: &str) -> Value {
    wait(service, trust, |listener| listener["trust"] == json!(trust))
}

/// Publishes batches 0 to 2, with blocks 1 to 3, and waits until they are applied.
fn publish_three(service: &Service, server: &FakeStreamServer) {
    server.publish(batch(0, [stored(None, &[1])]));
    server.publish(batch(1, [stored(Some(1), &[2])]));
    server.publish(batch(2, [stored(Some(2), &[3])]));
    assert_eq!(wait_seq(service, 2)["trust"], json!("exact"));
}

fn score(service: &Service, hashes: &[u64]) -> u64 {
    service.score(&tokens(hashes), "1", 0)
}

#[test]
fn streamed_blocks_are_found_in_their_tiers() {
    let (service, server) = started(History::Kept);
    server.publish(batch(0, [cleared(), stored(None, &[1, 2, 3])]));
    let listener = wait_seq(&service, 0);
    assert_eq!((&listener["trust"], &listener["status"]), (&json!("exact"), &json!("connected")), "{listener}");
    assert_eq!(score(&service, &[1, 2, 3]), 12);

    server.publish(load(0));
    server.publish(batch(1, [stored_on_host(Some(2), &[3]), removed(&[3])]));
    server.publish(batch(2, []));
    let listener = wait_seq(&service, 2);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})), "{listener}");
    let answer = service.query(&json!({ "token_ids": tokens(&[1, 2, 3]), "model_name": "m" }));
    assert_eq!(
        (&answer["instances"]["1"]["gpu"], &answer["instances"]["1"]["cpu"]),
        (&json!(8), &json!(12)),
        "{answer}"
    );

    server.publish(batch(3, [cleared()]));
    wait_seq(&service, 3);
    assert_eq!(score(&service, &[1, 2, 3]), 0);
    assert_eq!(server.starts(), [0]);
    let count = |outcome| service.metrics().value("flash_indexer_streamed_batches_total", &[("outcome", outcome)]);
    assert_eq!(
        ["events", "empty", "load", "other_rank", "snapshot", "failed"].map(count),
        [3.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    );
}

#[test]
fn a_gap_is_repaired_by_a_call_after_the_last_batch() {
    let (service, server) = started(History::Kept);
    publish_three(&service, &server);
    server.keep(batch(3, [stored(Some(3), &[4])]));
    server.publish(batch(4, [stored(Some(4), &[5])]));
    let listener = wait_seq(&service, 4);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})), "{listener}");
    assert_eq!(score(&service, &[1, 2, 3, 4, 5]), 20);
    assert_eq!(server.starts(), [0, 1], "the last batch is repeated");
}

#[test]
fn a_gap_of_a_server_without_history_degrades_the_rank_until_a_clear() {
    let (service, server) = started(History::Ignored);
    publish_three(&service, &server);
    server.publish(batch(9, [stored(Some(3), &[4])]));
    server.wait_for_calls(2);
    assert_ne!(service.listener(&json!(1), 0)["trust"], json!("exact"), "at once");
    server.publish(batch(10, [stored(Some(3), &[5])]));
    let listener = wait_seq(&service, 10);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(score(&service, &[1, 2, 3, 5]), 16, "what is known still counts");
    server.publish(batch(11, [stored(Some(5), &[6])]));
    assert_eq!(wait_seq(&service, 11)["trust"], json!("degraded"), "later batches do not end the loss");
    server.publish(batch(12, [cleared(), stored(None, &[1])]));
    assert_eq!(wait_seq(&service, 12)["trust"], json!("exact"));
    assert_eq!(server.starts(), [0, 1], "the server is asked once");
}

#[test]
fn a_lost_call_continues_where_it_ended() {
    let (service, server) = started(History::Kept);
    publish_three(&service, &server);
    server.end_calls(None);
    server.wait_for_calls(2);
    // No further batch: the repeated one shows that nothing is missing.
    let listener = wait_trust(&service, "exact");
    assert_eq!(listener["last_seq"], json!(2), "{listener}");
    assert_eq!(listener["rejected"], json!({ "stream_unreachable": 1 }), "the repeated batch is no duplicate");
    server.publish(batch(3, [stored(Some(3), &[4])]));
    assert_eq!(wait_seq(&service, 3)["trust"], json!("exact"));
    assert_eq!(score(&service, &[1, 2, 3, 4]), 16);
    assert_eq!(server.starts(), [0, 1]);
}

#[test]
fn a_server_that_ignores_the_start_number_leaves_the_rank_degraded() {
    for history in [History::Ignored, History::Refused] {
        let (service, server) = started(history);
        publish_three(&service, &server);
        server.end_calls(Some(Status::data_loss("the relay lost batches")));
        server.wait_for_calls(2);
        assert_ne!(service.listener(&json!(1), 0)["trust"], json!("exact"), "no batch has come");
        server.publish(batch(3, [stored(Some(3), &[4])]));
        let listener = wait_seq(&service, 3);
        assert_eq!(listener["trust"], json!("degraded"), "{history:?}: {listener}");
        assert_eq!(score(&service, &[1, 2, 3, 4]), 16);
        assert_eq!(server.starts().last(), Some(&0), "after data loss a call begins with 0");
    }
}

#[test]
fn a_refused_start_number_is_followed_by_a_call_from_zero() {
    let (service, server) = started(History::Refused);
    publish_three(&service, &server);
    server.end_calls(None);
    wait_for("another start", PATIENCE, || (server.starts() == [0, 1, 0]).then_some(()));
    let listener = wait(&service, "the error", |listener| listener["rejected"]["stream_lost_data"] == json!(1));
    assert_ne!(listener["trust"], json!("exact"), "{listener}");
}

#[test]
fn a_restarted_engine_replaces_its_blocks() {
    let (service, server) = started(History::Kept);
    publish_three(&service, &server);
    let address = server.address();
    drop(server);
    wait(&service, "the end of the connection", |listener| listener["status"] == json!("disconnected"));
    assert_ne!(service.listener(&json!(1), 0)["trust"], json!("exact"));
    let server = FakeStreamServer::at(address, History::Kept);
    server.wait_for_calls(1);
    server.publish(batch(0, [stored(None, &[7])]));
    let listener = wait_seq(&service, 0);
    assert_eq!(listener["trust"], json!("exact"), "{listener}");
    assert_eq!((score(&service, &[1, 2, 3]), score(&service, &[7])), (0, 4));
    assert_eq!(service.metrics().value("flash_indexer_engine_restarts_total", &[]), 1.0);
}

#[test]
fn a_restarted_engine_is_noticed_by_the_content_of_the_last_batch() {
    let (service, server) = started(History::Kept);
    publish_three(&service, &server);
    let address = server.address();
    drop(server);
    wait(&service, "the end of the connection", |listener| listener["status"] == json!("disconnected"));
    let other = |number, event: Data| KvEventBatch { timestamp: 1e3, ..batch(number, [event]) };
    let batches = vec![
        other(0, stored(None, &[7])),
        other(1, stored(Some(7), &[8])),
        other(2, removed(&[8])),
        other(3, stored(Some(7), &[9])),
    ];
    let _server = FakeStreamServer::keeping(address, History::Kept, batches);
    let listener = wait_seq(&service, 3);
    assert_eq!(listener["trust"], json!("degraded"), "batches 0 and 1 were not received: {listener}");
    assert_eq!(score(&service, &[1, 2, 3]), 0, "the blocks of the process before are removed");
}

#[test]
fn a_batch_that_is_too_long_is_lost_and_the_stream_goes_on() {
    let (service, server) = started(History::Kept);
    publish_three(&service, &server);
    let mut long = batch(3, [removed(&vec![i64::MAX; 2 << 20])]);
    long.dp_rank = Some(0);
    server.publish(long);
    // The decoder receives the error after the queued batches.
    wait(&service, "the error", |listener| {
        listener["rejected"]["stream_too_large"] == json!(1) && listener["trust"] != json!("exact")
    });
    wait_for("a call from 0", PATIENCE, || (server.starts() == [0, 0]).then_some(()));
    server.wait_for_calls(2);
    server.publish(batch(4, [stored(Some(3), &[4])]));
    let listener = wait_seq(&service, 4);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("16777216 bytes")), "{listener}");
    assert_eq!(service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "streamed_bytes")]), 1.0);
}

#[test]
fn blocks_of_another_size_are_rejected() {
    let (service, server) = (Service::start(), FakeStreamServer::start(History::Kept));
    let mut rank = request(&server, 1);
    rank["block_size"] = json!(BLOCK_TOKENS * 2);
    assert_eq!(service.post("/register", &rank).0, 201);
    server.wait_for_calls(1);
    server.publish(batch(0, [stored(None, &[1, 2])]));
    let listener = wait_seq(&service, 0);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(listener["rejected"], json!({ "block_size_mismatch": 1 }));
    let Data::Stored(mut mixed) = stored(None, &[1, 2]) else { unreachable!("it is a store") };
    mixed.blocks[1].token_ids.pop();
    server.publish(batch(1, [Data::Stored(mixed)]));
    let listener = wait_seq(&service, 1);
    assert_eq!(listener["rejected"], json!({ "block_size_mismatch": 1, "token_count_mismatch": 1 }));
}

#[test]
fn a_snapshot_replaces_the_state_as_a_whole() {
    let (service, server) = (Service::start(), FakeStreamServer::start(History::Kept));
    let parts = |unknown| {
        vec![
            part((0, 3), unknown, batch(40, [cleared(), stored(None, &[1])])),
            part((1, 3), unknown, batch(41, [stored(Some(1), &[2])])),
            part((2, 3), unknown, batch(42, [stored(Some(2), &[3])])),
        ]
    };
    server.begin_with(parts(0));
    register(&service, &server);
    let listener = wait_seq(&service, 42);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})), "{listener}");
    assert_eq!(score(&service, &[1, 2, 3]), 12);
    server.publish(batch(43, [stored(Some(3), &[4])]));
    assert_eq!(wait_seq(&service, 43)["trust"], json!("exact"));

    // A snapshot that lacks the batches before the record of the server.
    server.begin_with(parts(7));
    server.end_calls(Some(Status::data_loss("the relay lost batches")));
    let listener = wait(&service, "the loss", |listener| listener["rejected"]["snapshot_incomplete"] == json!(1));
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(score(&service, &[1, 2, 3, 4]), 12, "the state before is replaced");
}

#[test]
fn a_snapshot_that_is_cut_off_changes_nothing_and_is_asked_for_again() {
    let (service, server) = (Service::start(), FakeStreamServer::start(History::Kept));
    let parts = [
        part((0, 2), 0, batch(8, [cleared(), stored(None, &[1])])),
        part((1, 2), 0, batch(9, [stored(Some(1), &[2])])),
    ];
    server.begin_with(parts[..1].to_vec());
    register(&service, &server);
    server.end_calls(None);
    server.wait_for_calls(2);
    assert_eq!(service.listener(&json!(1), 0)["last_seq"], Value::Null, "a part is not applied");
    server.begin_with(parts.to_vec());
    // A batch in place of the missing part.
    server.publish(batch(9, [stored(None, &[5])]));
    let listener = wait_seq(&service, 9);
    assert_eq!(listener["trust"], json!("exact"), "{listener}");
    assert_eq!(listener["rejected"]["stream_failed"], json!(1), "{listener}");
    assert_eq!((score(&service, &[1, 2]), score(&service, &[5])), (8, 0));
    assert_eq!(server.starts(), [0, 0, 0]);
}

#[test]
fn ranks_of_one_server_have_streams_of_their_own() {
    let (service, server) = started(History::Kept);
    let mut second = request(&server, 1);
    second["dp_rank"] = json!(1);
    assert_eq!(service.post("/register", &second).0, 201);
    server.wait_for_calls(2);
    let of_rank = |rank, batch: KvEventBatch| KvEventBatch { dp_rank: Some(rank), ..batch };
    server.publish(of_rank(0, batch(0, [stored(None, &[1])])));
    server.publish(of_rank(1, batch(0, [stored(None, &[1, 2])])));
    server.publish(of_rank(1, batch(1, [stored(Some(2), &[3])])));
    wait_for("both ranks", PATIENCE, || {
        let last = [0, 1].map(|rank| service.listener(&json!(1), rank)["last_seq"].clone());
        (last == [json!(0), json!(1)]).then_some(())
    });
    let trust = [0, 1].map(|rank| service.listener(&json!(1), rank)["trust"].clone());
    assert_eq!(trust, [json!("exact"), json!("exact")]);
    assert_eq!([0, 1].map(|rank| service.score(&tokens(&[1, 2, 3]), "1", rank)), [4, 12]);
    wait_for("the counts", PATIENCE, || {
        let metrics = service.metrics();
        (metrics.value("flash_indexer_streamed_batches_total", &[("outcome", "other_rank")]) == 3.0).then_some(())
    });
}

#[test]
fn a_server_without_the_call_is_named_and_a_server_that_ends_is_found_again() {
    let (service, server) = (Service::start(), FakeStreamServer::start(History::Kept));
    let mut other = request(&server, 1);
    other["engine"] = json!("vllm");
    assert_eq!(service.post("/register", &other).0, 201);
    let listener = wait(&service, "the error", |listener| listener["rejected"]["stream_failed"].as_u64() > Some(0));
    let why = listener["last_error"].as_str().expect("a text");
    assert!(why.contains("has no SubscribeKvEvents"), "{why}");
    assert_eq!(service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m" })).0, 200);

    // Without a kind of engine, every service is tried, again and again.
    server.set_starting(true);
    let mut any = request(&server, 1);
    any.as_object_mut().expect("an object").remove("engine");
    assert_eq!(service.post("/register", &any).0, 201);
    wait_for("two early calls", PATIENCE, || (server.refused() >= 2).then_some(()));
    server.set_starting(false);
    server.wait_for_calls(1);
    let address = server.address();
    drop(server);
    wait(&service, "the end", |listener| listener["rejected"]["stream_unreachable"].as_u64() > Some(0));
    let server = FakeStreamServer::at(address, History::Kept);
    server.wait_for_calls(1);
    server.publish(batch(0, [stored(None, &[1])]));
    assert_eq!(wait_seq(&service, 0)["trust"], json!("exact"));
}

#[test]
fn addresses_outside_the_networks_and_replay_endpoints_are_refused() {
    let indexer = IndexerOptions {
        engine_networks: flash_indexer_types::networks::EngineNetworks::new(["10.0.0.0/8".parse().expect("a network")]),
        ..IndexerOptions::default()
    };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let server = FakeStreamServer::start(History::Kept);
    let (status, answer) = service.post("/register", &request(&server, 1));
    assert_eq!(status, 400, "{answer}");
    let mut named = request(&server, 1);
    named["endpoint"] = json!(format!("grpc://localhost:{}", server.address().port()));
    assert_eq!(service.post("/register", &named).0, 201, "a name is looked up later");
    let listener = wait(&service, "the refusal", |listener| listener["rejected"]["refused_address"].as_u64() > Some(0));
    assert_eq!(listener["status"], json!("connecting"), "{listener}");
    assert_eq!(server.starts(), [0; 0], "it is not dialled");

    let mut replayed = request(&server, 2);
    replayed["endpoint"] = json!("grpc://10.0.0.1:30001");
    replayed["replay_endpoint"] = json!("tcp://10.0.0.1:5558");
    let (status, answer) = service.post("/register", &replayed);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|why| why.contains("leave out replay_endpoint")), "{answer}");
}
