//! Engines whose events are pulled over HTTP, as TensorRT-LLM's server publishes them.

use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};

use crate::support::fake_trtllm::{FakeTrtllm, Says, created, events, moved, removed, stored};
use crate::support::{BLOCK_TOKENS, PATIENCE, Service, tokens};

fn request(engine: &FakeTrtllm, instance: u32) -> Value {
    json!({ "instance_id": instance, "endpoint": engine.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS })
}

fn register(service: &Service, engine: &FakeTrtllm, instance: u32) {
    let (status, answer) = service.post("/register", &request(engine, instance));
    assert_eq!(status, 201, "{answer}");
}

/// Waits until a listener is in this state.
fn wait(service: &Service, instance: u32, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, PATIENCE, || Some(service.listener(&json!(instance), 0)).filter(|now| condition(now)))
}

fn wait_seq(service: &Service, instance: u32, sequence: u64) -> Value {
    wait(service, instance, "a message", |listener| listener["last_seq"] == json!(sequence))
}

#[test]
fn blocks_of_a_pulled_engine_are_found_in_their_tiers() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1, 2, 3])]);
    let listener = wait_seq(&service, 1, 1);
    assert_eq!((&listener["trust"], &listener["engine"]), (&json!("exact"), &json!("trtllm")), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12);

    engine.publish(2, &[moved(3, 0, 1), stored(Some(3), &[4])]);
    wait_seq(&service, 1, 3);
    let matches = |hashes: &[u64]| {
        let answer = service.query(&json!({ "token_ids": tokens(hashes), "model_name": "m" }));
        let instance = answer["instances"]["1"].clone();
        (instance["gpu"].as_u64().expect("a number"), instance["cpu"].as_u64().expect("a number"))
    };
    assert_eq!(matches(&[1, 2, 3, 4]), (8, 16), "the third block is in host memory");
    engine.publish(4, &[removed(&[3, 2])]);
    let listener = wait_seq(&service, 1, 4);
    assert_eq!(matches(&[1, 2, 3, 4]), (4, 4));
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("exact"), &json!({})), "{listener}");

    assert_eq!(engine.requests(), ["POST /kv_cache_events HTTP/1.1"]);
    assert_eq!(engine.opened(), 1, "one connection");
    let metrics = service.metrics();
    assert_eq!(metrics.value("flash_indexer_pulls_total", &[("outcome", "events")]), 3.0);
    wait_for("a pull without events", PATIENCE, || {
        (service.metrics().value("flash_indexer_pulls_total", &[("outcome", "empty")]) > 0.0).then_some(())
    });
    assert_eq!(metrics.value("flash_indexer_blocks_total", &[("result", "unknown")]), 0.0);
}

#[test]
fn partial_blocks_are_not_matched_and_do_not_end_trust() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    let mut store = stored(None, &[1, 2]);
    store["blocks"][1]["tokens"].as_array_mut().expect("a list").pop();
    engine.publish(0, &[created(), store, removed(&[2])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!(listener["trust"], json!("exact"), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 4);
    let metrics = service.metrics();
    assert_eq!(metrics.value("flash_indexer_partial_blocks_total", &[]), 1.0);
    assert_eq!(metrics.value("flash_indexer_blocks_total", &[("result", "unknown")]), 0.0);
}

#[test]
fn sliding_windows_are_cache_groups() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    let event = |id: u64, window: u32, data: &Value| json!({ "event_id": id, "window_size": window, "data": data });
    let chain = stored(None, &[1, 2, 3]);
    engine.say(Says::Events(json!([
        event(0, 5, &created()),
        event(1, 4096, &created()),
        event(2, 5, &chain),
        event(3, 4096, &chain),
        event(4, 5, &removed(&[1])),
    ])));
    let listener = wait_seq(&service, 1, 4);
    assert_eq!(listener["trust"], json!("exact"), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12, "the window needs the last block only");
    engine.say(Says::Events(json!([event(5, 5, &removed(&[2, 3]))])));
    wait_seq(&service, 1, 5);
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 0, "the window has lost every block");
}

#[test]
fn attention_ranks_of_one_endpoint_are_ranks_of_the_instance() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    let event = |rank: u32, id: u64, data: &Value| json!({ "event_id": id, "window_size": 4096, "attention_dp_rank": rank, "data": data });
    engine.say(Says::Events(json!([
        event(0, 0, &created()),
        event(1, 0, &created()),
        event(1, 1, &stored(None, &[1, 2])),
        event(0, 1, &stored(None, &[1])),
    ])));
    wait_seq(&service, 1, 3);
    let scores = || [0, 1].map(|rank| service.score(&tokens(&[1, 2]), "1", rank));
    assert_eq!(scores(), [4, 8]);
    assert_eq!(service.listener(&json!(1), 1)["trust"], json!("exact"));
}

#[test]
fn missing_events_degrade_the_rank_and_the_error_names_a_second_reader() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1])]);
    wait(&service, 1, "the first events", |listener| listener["trust"] == json!("exact"));
    engine.publish(5, &[stored(Some(1), &[2])]);
    let listener = wait_seq(&service, 1, 5);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(listener["rejected"], json!({ "events_missing": 1 }));
    let why = listener["last_error"].as_str().expect("a text");
    assert!(
        why.starts_with("3 messages were lost") && why.contains("another client reads") && why.contains("one replica"),
        "{why}"
    );
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8, "what is known still counts");
}

#[test]
fn events_before_the_registration_are_missing() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(7, &[stored(None, &[1])]);
    let listener = wait_seq(&service, 1, 7);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(listener["rejected"], json!({ "events_missing": 1 }));
}

#[test]
fn a_restarted_engine_begins_again_and_is_exact() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1, 2])]);
    wait_seq(&service, 1, 1);
    let address = engine.address();
    drop(engine);
    wait(&service, 1, "the end of the connection", |listener| listener["trust"] != json!("exact"));
    let engine = FakeTrtllm::at(address);
    // The first event equals that of the previous process.
    engine.publish(0, &[created(), stored(None, &[1]), stored(Some(1), &[3])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!(listener["trust"], json!("exact"), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 4, "the blocks of the process before are removed");
    assert_eq!(service.metrics().value("flash_indexer_engine_restarts_total", &[]), 1.0);
}

#[test]
fn another_connection_without_a_restart_is_in_doubt() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1])]);
    wait_seq(&service, 1, 1);
    engine.say(Says::Raw("200 OK\r\nconnection: close", b"[]".to_vec()));
    wait_for("another connection", PATIENCE, || (engine.opened() == 2).then_some(()));
    engine.publish(2, &[stored(Some(1), &[2])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!(listener["trust"], json!("degraded"), "the numbers alone do not show that it is the same process");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8);
}

#[test]
fn an_engine_that_does_not_answer_holds_no_other_one_up() {
    let (service, slow, quick) = (Service::start(), FakeTrtllm::start(), FakeTrtllm::start());
    slow.say(Says::Nothing);
    register(&service, &slow, 1);
    wait_for("the pull", PATIENCE, || (slow.pulls() == 1).then_some(()));
    register(&service, &quick, 2);
    for (id, event) in [created(), stored(None, &[1]), stored(Some(1), &[2])].into_iter().enumerate() {
        quick.publish(id as u64, &[event]);
        wait_seq(&service, 2, id as u64);
    }
    assert_eq!(slow.pulls(), 1, "it is still waited for");
    assert_eq!(service.listener(&json!(2), 0)["trust"], json!("exact"));
    let (status, answer) = service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m" }));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(service.listener(&json!(1), 0), Value::Null, "the call does not wait for the engine");
}

#[test]
fn answers_that_are_no_events_are_counted_and_redirects_are_not_followed() {
    let (service, engine, other) = (Service::start(), FakeTrtllm::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1])]);
    wait_seq(&service, 1, 1);
    let redirect = format!("307 Temporary Redirect\r\nlocation: {}/kv_cache_events", other.endpoint());
    engine.say(Says::Raw(redirect.leak(), Vec::new()));
    // The decoder receives the error after the queued events.
    let listener = wait(&service, 1, "the redirect", |listener| {
        listener["rejected"]["pull_failed"] == json!(1) && listener["trust"] != json!("exact")
    });
    let why = listener["last_error"].as_str().expect("a text");
    assert!(why.contains("answered 307, a redirect, which is not followed"), "{why}");
    engine.say(Says::Raw("500 Internal Server Error", b"event buffer is off".to_vec()));
    let listener = wait(&service, 1, "the error", |listener| listener["rejected"]["pull_failed"] == json!(2));
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("event_buffer_max_size")), "{listener}");
    for (garbage, count) in [("<html></html>", 1), ("{\"events\":[]}", 2), ("[{\"event_id\":", 3)] {
        engine.say(Says::Raw("200 OK", garbage.into()));
        wait(&service, 1, garbage, |listener| listener["rejected"]["malformed_batch"] == json!(count));
    }
    // The list exceeds the limit of a response.
    let mut long = vec![b' '; (64 << 20) + 2];
    (long[0], *long.last_mut().expect("a byte")) = (b'[', b']');
    engine.say(Says::Raw("200 OK", long));
    wait(&service, 1, "the long response", |listener| listener["rejected"]["pull_too_large"] == json!(1));
    engine.publish(2, &[stored(Some(1), &[2])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8);
    assert_eq!(other.pulls(), 0);
    let metrics = service.metrics();
    assert_eq!(metrics.value("flash_indexer_rejected_total", &[("reason", "pull_failed")]), 2.0);
    assert_eq!(metrics.value("flash_indexer_limit_reached_total", &[("limit", "pulled_bytes")]), 1.0);
    assert_eq!(metrics.value("flash_indexer_pulls_total", &[("outcome", "failed")]), 6.0);
}

#[test]
fn an_event_that_cannot_be_used_degrades_its_rank_and_costs_no_other_event() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), json!({ "type": "compacted" }), stored(None, &[1])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    assert_eq!(listener["rejected"], json!({ "unknown_event_type": 1 }));
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 4);
    let mut list = events(3, &[stored(Some(1), &[2])]);
    list.as_array_mut().expect("a list").insert(0, json!({}));
    engine.say(Says::Events(list));
    wait_seq(&service, 1, 3);
    wait(&service, 1, "the event without a number", |listener| listener["rejected"]["malformed_event"] == json!(1));
    // The engine's block size differs from its registration.
    let other_size = json!([{ "block_hash": 9, "tokens": [{ "token_id": 1 }] }, { "block_hash": 10, "tokens": [{ "token_id": 2 }] }]);
    engine.publish(4, &[json!({ "type": "stored", "parent_hash": null, "blocks": other_size })]);
    let listener = wait_seq(&service, 1, 4);
    assert_eq!(listener["rejected"]["block_size_mismatch"], json!(1), "{listener}");
}

#[test]
fn an_unregistered_engine_is_not_pulled_any_more() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1])]);
    wait_seq(&service, 1, 1);
    let (status, answer) = service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m" }));
    assert_eq!(status, 200, "{answer}");
    wait_for("the end of the connection", PATIENCE, || (engine.open() == 0).then_some(()));
}

#[test]
fn a_replica_leaves_the_pulled_engines_of_its_peer_to_it() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    register(&service, &engine, 1);
    engine.publish(0, &[created(), stored(None, &[1])]);
    wait_seq(&service, 1, 1);
    let replica = Service::from_peer(&service.url(""));
    assert_eq!(replica.get("/workers").1, json!([]));
    engine.publish(2, &[stored(Some(1), &[2])]);
    let listener = wait_seq(&service, 1, 2);
    assert_eq!((&listener["trust"], engine.opened()), (&json!("exact"), 1), "{listener}");
}

#[test]
fn addresses_outside_the_networks_are_refused_before_and_after_a_name_is_resolved() {
    let networks = ["10.0.0.0/8".parse().expect("a network")];
    let indexer = IndexerOptions {
        engine_networks: flash_indexer_types::networks::EngineNetworks::new(networks),
        ..IndexerOptions::default()
    };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let engine = FakeTrtllm::start();
    let (status, answer) = service.post("/register", &request(&engine, 1));
    assert!(status == 400 || status == 403, "{status} {answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("--engine-networks")), "{answer}");
    let mut by_name = request(&engine, 1);
    by_name["endpoint"] = json!(format!("http://localhost:{}", engine.address().port()));
    assert_eq!(service.post("/register", &by_name).0, 201);
    let listener = wait(&service, 1, "the refusal", |listener| listener["rejected"].get("refused_address").is_some());
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("--engine-networks")), "{listener}");
    assert_eq!(engine.opened(), 0);
}

#[test]
fn registrations_that_cannot_be_pulled_are_refused() {
    let (service, engine) = (Service::start(), FakeTrtllm::start());
    for (change, expected) in [
        (json!({ "replay_endpoint": "tcp://127.0.0.1:6557" }), "leave out replay_endpoint"),
        (json!({ "engine": "vllm" }), "from TensorRT-LLM only"),
        (json!({ "endpoint": "http://127.0.0.1" }), "there is no port"),
        (json!({ "endpoint": "http://127.0.0.1:8000/kv_cache_events" }), "the port is not a number"),
        (json!({ "endpoint": "http://169.254.169.254:80" }), "link-local"),
        (
            json!({ "endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": "http://127.0.0.1:8000" }),
            "cannot be replayed",
        ),
    ] {
        let mut request = request(&engine, 1);
        for (key, value) in change.as_object().expect("a map") {
            request[key] = value.clone();
        }
        let (status, answer) = service.post("/register", &request);
        assert!((400..500).contains(&status), "{status} {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(expected)), "{change}: {answer}");
    }
    let mut with_kind = request(&engine, 1);
    with_kind["engine"] = json!("trtllm");
    assert_eq!(service.post("/register", &with_kind).0, 201);
    assert_eq!(service.post("/register", &request(&engine, 1)).0, 200, "the kind is implied");
}
