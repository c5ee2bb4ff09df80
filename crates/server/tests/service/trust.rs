//! Trust states of the service: never `exact` while a message is known to be missing.

use std::net::TcpListener;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{InstanceId, ModelKey, Registration, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions, ReplayLoss};
use flash_indexer_test_support::watch_until;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, to_host, tokens};

/// A batch of the epoch of an engine that started at `start`.
fn batch(start: f64, events: &[EngineEvent<'_>]) -> Vec<u8> {
    encode_batch(start, events, None, Encoding::Map)
}

fn bind(options: PublisherOptions) -> Publisher {
    Publisher::bind(options).expect("free ports")
}

fn trust(service: &Service, engine: &Engine) -> Value {
    service.listener(&engine.instance, engine.rank)["trust"].clone()
}

fn wait_for_state(engine: &Engine, service: &Service, last_seq: u64, trust: &str) -> Value {
    engine.wait(service, &format!("number {last_seq}, {trust}"), |listener| {
        listener["last_seq"] == json!(last_seq) && listener["trust"] == json!(trust)
    })
}

/// Publishes bytes that are not a batch under a number.
fn publish_unreadable(engine: &Engine, sequence: u64) {
    let frames = [&b"kv-events"[..], &sequence.to_be_bytes(), b"\xc1\xc1"];
    engine.publisher.publish_frames(&frames).expect("published");
}

fn wait_for_rejection(engine: &Engine, service: &Service, reason: &str, count: u64) {
    engine.wait(service, reason, |listener| listener["rejected"][reason] == json!(count));
}

#[test]
fn an_unreadable_last_message_ends_exact_at_once_and_is_replayed() {
    let service = Service::start();
    let engine = Engine::with_replay(&service, json!(1), bind(PublisherOptions::on_loopback()));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    wait_for_state(&engine, &service, 0, "exact");
    // The engine's kept copy is readable; no further message is published.
    engine.publisher.keep(1, &batch(1.0, &[removed(&[1, 2])]));
    publish_unreadable(&engine, 1);
    wait_for_state(&engine, &service, 1, "exact");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 0);
}

#[test]
fn an_unreadable_last_message_without_replay_leaves_a_doubt_until_the_next_one() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    publish_unreadable(&engine, 1);
    wait_for_rejection(&engine, &service, "malformed_batch", 1);
    let listener = engine.wait(&service, "the doubt", |listener| listener["trust"] == json!("degraded"));
    assert!(listener["last_error"].as_str().expect("a reason").contains("could not be decoded"), "{listener}");
    // The unreadable message did not use up its number.
    engine.say(&service, 1, &[]);
    let listener = wait_for_state(&engine, &service, 1, "exact");
    assert_eq!(listener["last_error"], Value::Null, "nothing is wrong any more");
    publish_unreadable(&engine, 2);
    wait_for_rejection(&engine, &service, "malformed_batch", 2);
    engine.say(&service, 3, &[]);
    let listener = wait_for_state(&engine, &service, 3, "degraded");
    assert!(listener["last_error"].as_str().expect("a reason").contains("1 message was lost"), "{listener}");
}

#[test]
fn an_unreadable_last_message_that_no_replay_has_leaves_a_doubt() {
    let service = Service::start();
    let engine = Engine::with_replay(&service, json!(1), bind(PublisherOptions::on_loopback()));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    wait_for_state(&engine, &service, 0, "exact");
    // Replays end after message 0, like those of an engine whose socket lost the last message.
    publish_unreadable(&engine, 1);
    let listener = wait_for_state(&engine, &service, 0, "degraded");
    assert!(
        listener["last_error"].as_str().expect("a reason").contains("the last messages may be missing"),
        "{listener}"
    );
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8, "what was applied is answered");
    engine.say(&service, 2, &[]);
    let listener = wait_for_state(&engine, &service, 2, "degraded");
    assert!(listener["last_error"].as_str().expect("a reason").contains("1 message was lost"), "{listener}");
}

#[test]
fn a_replay_that_cannot_be_read_either_degrades_for_good() {
    let service = Service::start();
    let engine = Engine::with_replay(&service, json!(1), bind(PublisherOptions::on_loopback()));
    engine.say(&service, 0, &[stored(None, &[1])]);
    engine.publisher.keep(1, b"\xc1\xc1");
    publish_unreadable(&engine, 1);
    wait_for_state(&engine, &service, 1, "degraded");
    engine.say(&service, 2, &[]);
    wait_for_state(&engine, &service, 2, "degraded");
    engine.say(&service, 3, &[EngineEvent::Cleared]);
    wait_for_state(&engine, &service, 3, "exact");
}

#[test]
fn an_event_of_an_unknown_kind_may_have_been_a_removal() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(trust(&service, &engine), json!("exact"));
    // [1.0, [["BlockForgotten"]]]
    let mut unknown = vec![0x92, 0xcb];
    unknown.extend(1.0_f64.to_be_bytes());
    unknown.extend([0x91, 0x91, 0xae]);
    unknown.extend(b"BlockForgotten");
    engine.publisher.publish(1, &unknown).expect("published");
    let listener = wait_for_state(&engine, &service, 1, "degraded");
    assert_eq!(listener["rejected"], json!({ "unknown_event_type": 1 }));
}

#[test]
fn a_redefinition_that_would_move_too_many_blocks_degrades_its_rank_alone() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let other = Engine::registered(&service, json!(2), 0, &json!({}));
    let long: Vec<u64> = (1..=10_000).collect();
    engine.say(&service, 0, &[stored(None, &long)]);
    other.say(&service, 0, &[stored(None, &[1, 2])]);
    for of in [&engine, &other] {
        wait_for_state(of, &service, 0, "exact");
    }
    let count = |name: &str, label| service.metrics().value(name, &[label]);
    let moved = || count("flash_indexer_limit_reached_total", ("limit", "moved_blocks"));
    assert_eq!(moved(), 0.0);
    let redefined = BlockStored { token_ids: TokenIds::Plain(tokens(&[20_000])), ..store(None, &[1]) };
    engine.say(&service, 1, &[EngineEvent::Stored(redefined)]);
    let listener = wait_for_state(&engine, &service, 1, "degraded");
    let why = listener["last_error"].as_str().expect("a reason");
    assert!(why.contains("gave a sequence hash with many descendants other content"), "{why}");
    assert_eq!(moved(), 10_001.0, "what it held, and the block of the event");
    assert_eq!(count("flash_indexer_blocks_total", ("result", "refused")), 10_001.0);
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 0);
    assert_eq!((trust(&service, &other), service.score(&tokens(&[1, 2]), "2", 0)), (json!("exact"), 8));
    engine.say(&service, 2, &[EngineEvent::Cleared, stored(None, &[1])]);
    wait_for_state(&engine, &service, 2, "exact");
}

#[test]
fn a_rank_is_recovering_while_a_silent_replay_endpoint_is_asked() {
    let service = Service::start();
    // It accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let replay = format!("tcp://{}", silent.local_addr().expect("an address"));
    let engine = Engine::registered(&service, json!(1), 0, &json!({ "replay_endpoint": replay }));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    wait_for_state(&engine, &service, 0, "exact");
    engine.publisher.publish(2, &batch(1.0, &[])).expect("published");
    let listener = wait_for_state(&engine, &service, 0, "recovering");
    assert_eq!(listener["replay"], json!({ "applied": 1, "published": 3 }));
    let answer = service.query(&json!({ "token_ids": tokens(&[1]), "model_name": "m" }));
    assert_eq!(answer["instances"]["1"]["trust"], json!("recovering"));
    let listener = wait_for_state(&engine, &service, 2, "degraded");
    assert!(listener["last_error"].as_str().expect("a reason").contains("1 message was lost"), "{listener}");
}

#[test]
fn a_gap_is_answered_as_recovering_until_it_is_repaired() {
    let service = Service::start();
    // A reply has three messages and is cut off.
    let options = PublisherOptions { replay_loss: ReplayLoss::RestAfter(3), ..PublisherOptions::on_loopback() };
    let publisher = bind(options);
    let chain =
        |sequence: u64| batch(1.0, &[stored(sequence.checked_sub(1).map(|before| before + 1), &[sequence + 1])]);
    (0..7).for_each(|sequence| publisher.keep(sequence, &chain(sequence)));
    let engine = Engine::with_replay(&service, json!(1), publisher);
    engine.publisher.publish(7, &chain(7)).expect("published");
    let seen = std::cell::RefCell::new(Vec::new());
    watch_until("the whole history", PATIENCE, || {
        let listener = service.listener(&json!(1), 0);
        let is_exact = listener["trust"] == json!("exact");
        if is_exact {
            assert_eq!(listener["last_seq"], json!(7), "{listener}");
        }
        seen.borrow_mut().push(listener.clone());
        is_exact.then_some(())
    });
    let seen = seen.into_inner();
    let progress = seen.iter().find(|listener| listener["replay"]["published"] == json!(8));
    let progress = progress.unwrap_or_else(|| panic!("no progress was shown: {seen:?}"));
    assert_eq!(progress["trust"], json!("recovering"));
    assert!(progress["replay"]["applied"].as_u64().is_some_and(|applied| applied < 8), "{progress}");
    assert_eq!(service.score(&tokens(&(1..=8).collect::<Vec<_>>()), "1", 0), 32);
}

#[test]
fn readiness_waits_for_the_history_of_engines_asked_for_at_the_start() {
    let options = PublisherOptions { replay_loss: ReplayLoss::RestAfter(3), ..PublisherOptions::on_loopback() };
    let publisher = bind(options);
    (0..6).for_each(|sequence| publisher.keep(sequence, &batch(1.0, &[stored(None, &[sequence + 1])])));
    let (instance, model) = (InstanceId::number(1), ModelKey::new("m", None));
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    let mut registration = Registration::new(instance, model, publisher.endpoint(), block_size);
    registration.options.replay_endpoint = Some(publisher.replay_endpoint().to_owned());
    let service = Service::start_with(ServerOptions { registrations: vec![registration], ..ServerOptions::default() });
    let reasons = std::cell::RefCell::new(String::new());
    watch_until("readiness", PATIENCE, || {
        let (status, answer) = service.get("/ready");
        // The rank is checked after the answer: the service is never ready before the rank's history is applied.
        let listener = service.listener(&json!(1), 0);
        reasons.borrow_mut().push_str(&answer.to_string());
        if status == 200 {
            assert_eq!(listener["last_seq"], json!(5), "{listener}");
        }
        (status == 200).then_some(())
    });
    let reasons = reasons.into_inner();
    assert!(reasons.contains("catching up") && reasons.contains("3 messages"), "{reasons}");
}

#[test]
fn an_engine_with_extra_keys_is_never_exact() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({ "engine": "sglang", "extra_keys": true }));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["extra_keys"]), (&json!("degraded"), &json!(true)));
    assert!(listener["last_error"].as_str().expect("a reason").contains("extra_keys"), "{listener}");
    engine.say(&service, 1, &[EngineEvent::Cleared]);
    assert_eq!(trust(&service, &engine), json!("degraded"), "a clear does not make its events say more");
}

#[test]
fn a_message_that_is_received_twice_is_counted_and_ignored() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    let last = batch(2.0, &[stored(Some(1), &[2])]);
    engine.publisher.publish(1, &last).expect("published");
    engine.publisher.publish(1, &last).expect("published");
    wait_for_rejection(&engine, &service, "duplicate_message", 1);
    wait_for_state(&engine, &service, 1, "exact");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8);
}

#[test]
fn a_restart_that_the_replay_shows_is_counted_once() {
    let service = Service::start();
    let mut engine = Engine::with_replay(&service, json!(1), bind(PublisherOptions::on_loopback()));
    (0..6).for_each(|sequence| engine.say(&service, sequence, &[stored(None, &[sequence + 1])]));
    let options = PublisherOptions {
        endpoint: engine.publisher.endpoint().to_owned(),
        replay_endpoint: engine.publisher.replay_endpoint().to_owned(),
        ..PublisherOptions::on_loopback()
    };
    engine.publisher = {
        drop(std::mem::replace(&mut engine.publisher, bind(PublisherOptions::on_loopback())));
        engine.wait(&service, "the loss of the connection", |listener| listener["status"] != json!("connected"));
        bind(options)
    };
    (0..2).for_each(|sequence| engine.publisher.keep(sequence, &batch(2.0, &[stored(None, &[sequence + 1])])));
    wait_for_state(&engine, &service, 1, "exact");
    // The first live message of the new epoch is below the last number of the old one.
    engine.say(&service, 2, &[stored(None, &[3])]);
    wait_for_state(&engine, &service, 2, "exact");
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 4, "what the replay brought is kept");
    let metrics = service.get_text("/metrics");
    let restarts = metrics.lines().find(|line| line.starts_with("flash_indexer_engine_restarts_total"));
    assert_eq!(restarts, Some("flash_indexer_engine_restarts_total 1"));
}

#[test]
fn blocks_whose_parent_was_never_stored_degrade_a_rank_until_it_is() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3]), removed(&[2])]);
    assert_eq!(trust(&service, &engine), json!("exact"), "the parent of 3 was stored, and is known to be removed");
    engine.say(&service, 1, &[stored(Some(4), &[5, 6])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    let why = listener["last_error"].as_str().expect("a reason");
    assert!(why.contains("2 blocks follow a parent that the engine never published"), "{why}");
    let answer = service.query(&json!({ "token_ids": tokens(&[1]), "model_name": "m" }));
    assert_eq!(answer["instances"]["1"]["trust"], json!("degraded"), "{answer}");
    engine.say(&service, 2, &[stored(Some(1), &[2]), stored(Some(3), &[4])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["last_error"]), (&json!("exact"), &Value::Null), "the parent was stored");
    assert_eq!(service.score(&tokens(&[1, 2, 3, 4, 5, 6]), "1", 0), 24);

    engine.say(&service, 3, &[stored(Some(8), &[9])]);
    assert_eq!(trust(&service, &engine), json!("degraded"));
    engine.say(&service, 4, &[EngineEvent::Cleared]);
    assert_eq!(trust(&service, &engine), json!("exact"), "nothing waits in an empty cache");
    engine.say(&service, 5, &[stored(Some(8), &[9])]);
    engine.say(&service, 6, &[removed(&[9])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!(listener["trust"], json!("degraded"), "the engine may hold the parent still: {listener}");
    engine.say(&service, 7, &[EngineEvent::Cleared]);
    assert_eq!(trust(&service, &engine), json!("exact"));
}

#[test]
fn a_store_without_tokens_of_a_block_that_is_not_known_is_counted_and_degrades() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1]), to_host(1)]);
    assert_eq!(trust(&service, &engine), json!("exact"), "the content of an offloaded block is known");
    let unknown = BlockStored { token_ids: TokenIds::default(), ..store(Some(1), &[2, 3]) };
    engine.say(&service, 1, &[EngineEvent::Stored(unknown)]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!(
        (&listener["trust"], &listener["rejected"]),
        (&json!("degraded"), &json!({ "no_token_ids": 1 })),
        "{listener}"
    );
    let why = listener["last_error"].as_str().expect("a reason");
    assert!(why.contains("2 blocks were stored without token_ids"), "{why}");
    let metrics = service.get_text("/metrics");
    assert!(metrics.contains("flash_indexer_rejected_total{reason=\"no_token_ids\"} 1\n"), "{metrics}");
    engine.say(&service, 2, &[stored(Some(1), &[2])]);
    assert_eq!(trust(&service, &engine), json!("degraded"), "3 is unknown still");
    engine.say(&service, 3, &[EngineEvent::Cleared]);
    assert_eq!(trust(&service, &engine), json!("exact"));
}

#[test]
fn a_rank_that_batches_of_two_endpoints_name_is_never_exact() {
    let service = Service::start();
    let [owner, other] = [0, 1].map(|rank| Engine::registered(&service, json!(1), rank, &json!({})));
    let publish = |engine: &Engine, sequence, dp_rank, event: EngineEvent<'_>| {
        let payload = encode_batch(1.0, &[event], Some(DpRank(dp_rank)), Encoding::Map);
        engine.publisher.publish(sequence, &payload).expect("published");
        engine.wait(&service, "a message", |listener| listener["last_seq"] == json!(sequence));
    };
    publish(&owner, 0, 0, stored(None, &[1, 2]));
    assert_eq!(trust(&service, &owner), json!("exact"));
    // The second endpoint was registered as rank 1, and its batches name rank 0.
    publish(&other, 0, 0, removed(&[1, 2]));
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8, "its events are not applied");
    assert_eq!((trust(&service, &owner), trust(&service, &other)), (json!("degraded"), json!("degraded")));
    wait_for_rejection(&other, &service, "rank_of_other_stream", 1);
    let why = service.listener(&json!(1), 0)["last_error"].clone();
    assert!(why.as_str().is_some_and(|why| why.contains("another endpoint of the instance")), "{why}");
    publish(&owner, 1, 0, EngineEvent::Cleared);
    publish(&other, 1, 0, EngineEvent::Cleared);
    assert_eq!((trust(&service, &owner), trust(&service, &other)), (json!("degraded"), json!("degraded")));
    let unregister = json!({ "instance_id": 1, "model_name": "m", "dp_rank": 1 });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    assert_eq!(trust(&service, &owner), json!("exact"), "its blocks are those of one stream");
}

#[test]
fn a_rank_that_went_to_another_endpoint_is_not_exact_while_batches_of_the_first_one_name_it() {
    let service = Service::start();
    let first = Engine::registered(&service, json!(1), 1, &json!({}));
    let publish = |sequence, dp_rank, event: EngineEvent<'_>| {
        let payload = encode_batch(1.0, &[event], Some(DpRank(dp_rank)), Encoding::Map);
        first.publisher.publish(sequence, &payload).expect("published");
        first.wait(&service, "a message", |listener| listener["last_seq"] == json!(sequence));
    };
    publish(0, 0, stored(None, &[1]));
    let unregister = json!({ "instance_id": 1, "model_name": "m", "dp_rank": 0 });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    publish(1, 0, stored(Some(1), &[2]));
    let second = Engine::registered(&service, json!(1), 0, &json!({}));
    second.say(&service, 0, &[stored(None, &[7])]);
    assert_eq!((trust(&service, &first), trust(&service, &second)), (json!("exact"), json!("exact")));

    // The first endpoint's engine restarts: it no longer has the rank.
    publish(0, 1, stored(None, &[5]));
    publish(1, 1, stored(None, &[6]));
    assert_eq!((service.score(&tokens(&[7]), "1", 0), trust(&service, &second)), (4, json!("exact")));

    publish(2, 0, stored(Some(2), &[3]));
    wait_for_rejection(&first, &service, "rank_of_other_stream", 1);
    assert_eq!((trust(&service, &first), trust(&service, &second)), (json!("degraded"), json!("degraded")));
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 0);
}

#[test]
fn a_store_after_a_parent_that_only_another_instance_holds_makes_no_match_too_long() {
    let service = Service::start();
    let [holder, other] = [1, 2].map(|instance| Engine::registered(&service, json!(instance), 0, &json!({})));
    holder.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    let held = |instance: &str| service.score(&tokens(&[1, 2, 3, 4, 5]), instance, 0);
    // The service never received the store of its parent, and no message is missing.
    other.say(&service, 0, &[stored(Some(3), &[4])]);
    assert_eq!((held("2"), trust(&service, &other)), (0, json!("exact")), "too short, and not known to be");
    holder.say(&service, 1, &[removed(&[3]), EngineEvent::Cleared]);
    assert_eq!((held("1"), held("2")), (0, 0));
    // Without any holder of the parent, the loss shows.
    other.say(&service, 1, &[stored(Some(9), &[10])]);
    assert_eq!(trust(&service, &other), json!("degraded"));
    other.say(&service, 2, &[stored(None, &[9]), stored(None, &[1, 2, 3]), stored(Some(4), &[5])]);
    assert_eq!((held("2"), trust(&service, &other)), (20, json!("exact")));
}
