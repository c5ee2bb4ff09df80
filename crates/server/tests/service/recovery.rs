//! Faults of a stream, through real sockets, and their effects on the index.

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{InstanceId, ModelKey, RankPosition, Registration, ReleaseOutcome, Trust};
use flash_indexer_sim::{Publisher, PublisherOptions, ReplayFraming, ReplayLoss};
use flash_indexer_wire::{Encoding, EngineEvent, Start, encode_batch};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, stored, tokens};

/// A batch of an engine's epoch that began at `start`.
fn batch(start: f64, events: &[EngineEvent<'_>]) -> Vec<u8> {
    encode_batch(start, events, None, Encoding::Map)
}

/// The chain 1, 2, 3, …, a block in each batch.
fn chain(start: f64, sequence: u64) -> Vec<u8> {
    batch(start, &[stored(sequence.checked_sub(1).map(|before| before + 1), &[sequence + 1])])
}

fn chain_tokens(blocks: u64) -> Vec<u32> {
    tokens(&(1..=blocks).collect::<Vec<_>>())
}

/// The position of the stream of the only rank, as its dump has it.
fn stream_position(service: &Service, key: &ModelKey) -> RankPosition {
    let ranks: Vec<_> = service.indexer().records(key, None).map(|(_, dump)| dump).collect();
    let [rank] = ranks.as_slice() else { panic!("{} ranks", ranks.len()) };
    assert_eq!((&rank.instance, rank.dp_rank), (&InstanceId::number(1), DpRank(0)));
    rank.position.expect("it is listened to")
}

fn loopback() -> PublisherOptions {
    PublisherOptions { buffer_batches: 20_000, ..PublisherOptions::on_loopback() }
}

impl Engine {
    /// Closes the engine's sockets, opens them for another engine, and waits until the service listens to it.
    fn replaced(&mut self, service: &Service, buffer: impl Fn(&Publisher)) {
        let options = PublisherOptions {
            endpoint: self.publisher.endpoint().to_owned(),
            replay_endpoint: self.publisher.replay_endpoint().to_owned(),
            ..loopback()
        };
        let elsewhere = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        drop(std::mem::replace(&mut self.publisher, elsewhere));
        self.wait(service, "the loss of the connection", |listener| listener["status"] != json!("connected"));
        self.publisher = Publisher::bind(options).expect("the ports are free again");
        buffer(&self.publisher);
        assert!(self.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the listener does not reconnect");
    }

    fn wait_for(&self, service: &Service, last_seq: u64, trust: &str) -> Value {
        self.wait(service, &format!("number {last_seq}, {trust}"), |listener| {
            listener["last_seq"] == json!(last_seq) && listener["trust"] == json!(trust)
        })
    }
}

fn count(service: &Service, metric: &str) -> u64 {
    let text = service.get_text("/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("flash_indexer_{metric}")));
    let value = line.and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.parse().expect("a number"));
    value.unwrap_or_default()
}

#[test]
fn an_engine_that_is_warm_and_idle_is_known_from_its_replay_in_both_framings() {
    let service = Service::start();
    for (instance, framing) in [(1, ReplayFraming::WithTopic), (2, ReplayFraming::WithoutTopic)] {
        let publisher = Publisher::bind(PublisherOptions { framing, ..loopback() }).expect("free ports");
        (0..5).for_each(|sequence| publisher.keep(sequence, &chain(1.0, sequence)));
        let engine = Engine::with_replay(&service, json!(instance), publisher);
        engine.wait_for(&service, 4, "exact");
        assert_eq!(service.score(&chain_tokens(9), &instance.to_string(), 0), 20);
        engine.publisher.publish(5, &chain(1.0, 5)).expect("published");
        engine.wait_for(&service, 5, "exact");
        assert_eq!(service.score(&chain_tokens(9), &instance.to_string(), 0), 24);
    }
}

#[test]
fn an_engine_whose_start_is_gone_is_degraded_until_its_cache_is_cleared() {
    let service = Service::start();
    let publisher = Publisher::bind(PublisherOptions { buffer_batches: 3, ..loopback() }).expect("free ports");
    (0..5).for_each(|sequence| publisher.keep(sequence, &batch(1.0, &[stored(None, &[sequence + 1])])));
    let engine = Engine::with_replay(&service, json!(1), publisher);
    let listener = engine.wait_for(&service, 4, "degraded");
    assert!(listener["last_error"].as_str().is_some_and(|why| why.starts_with("2 messages")), "{listener}");
    assert_eq!((service.score(&tokens(&[2]), "1", 0), service.score(&tokens(&[3]), "1", 0)), (0, 4));
    engine.publisher.publish(5, &batch(1.0, &[EngineEvent::Cleared])).expect("published");
    engine.wait_for(&service, 5, "exact");
}

#[test]
fn ten_thousand_lost_messages_come_back_by_a_replay_that_loses_some_itself() {
    let service = Service::start();
    let options = PublisherOptions { replay_loss: ReplayLoss::EverySecondAfter(1_000), ..loopback() };
    let engine = Engine::with_replay(&service, json!(1), Publisher::bind(options).expect("free ports"));
    engine.publisher.publish(0, &chain(1.0, 0)).expect("published");
    engine.wait_for(&service, 0, "exact");
    (1..10_001).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    (10_001..10_010).for_each(|sequence| {
        engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published");
    });
    let listener = engine.wait_for(&service, 10_009, "exact");
    assert_eq!(listener["gaps"], json!(1));
    assert_eq!(service.score(&chain_tokens(10_010), "1", 0), 40_040);
    assert_eq!(count(&service, "missed_messages_total"), 10_000);
    assert_eq!(count(&service, "lost_messages_total"), 0);
}

#[test]
fn an_answer_that_breaks_off_is_asked_for_again() {
    let service = Service::start();
    let options = PublisherOptions { replay_loss: ReplayLoss::RestAfter(6), ..loopback() };
    let engine = Engine::with_replay(&service, json!(1), Publisher::bind(options).expect("free ports"));
    engine.publisher.publish(0, &chain(1.0, 0)).expect("published");
    engine.wait_for(&service, 0, "exact");
    (1..9).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    engine.publisher.publish(9, &chain(1.0, 9)).expect("published");
    engine.wait_for(&service, 9, "exact");
    assert_eq!(service.score(&chain_tokens(10), "1", 0), 40);
}

#[test]
fn what_cannot_be_repaired_is_shown_and_a_large_loss_forgets_what_was_known() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    engine.say(&service, 10, &[stored(Some(2), &[3])]);
    let listener = engine.wait_for(&service, 10, "degraded");
    assert_eq!(listener["last_error"], json!("9 messages were lost before number 10"));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12, "most of what was known is still so");
    engine.say(&service, 10_011, &[stored(None, &[7])]);
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 0, "little of what was known can be so");
    assert_eq!(service.score(&tokens(&[7]), "1", 0), 4);
    assert_eq!(count(&service, "lost_messages_total"), 10_009);
    let answer = service.query(&json!({ "token_ids": tokens(&[7]), "model_name": "m" }));
    assert_eq!(answer["instances"]["1"]["trust"], json!("degraded"));
}

#[test]
fn a_gap_beyond_the_engines_buffer_is_given_up() {
    let service = Service::start();
    let options = PublisherOptions { buffer_batches: 10, ..loopback() };
    let engine = Engine::with_replay(&service, json!(1), Publisher::bind(options).expect("free ports"));
    engine.publisher.publish(0, &chain(1.0, 0)).expect("published");
    engine.wait_for(&service, 0, "exact");
    (1..50).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    engine.publisher.publish(50, &batch(1.0, &[removed(&[1])])).expect("published");
    let listener = engine.wait_for(&service, 50, "degraded");
    assert_eq!(listener["last_error"], json!("40 messages were lost before number 41"));
    assert_eq!(count(&service, "replays_total{outcome=\"truncated\"}"), 1);
}

#[test]
fn after_a_break_of_the_connection_the_stream_goes_on_where_it_was() {
    let service = Service::start();
    let mut engine = Engine::with_replay(&service, json!(1), Publisher::bind(loopback()).expect("free ports"));
    for sequence in 0..3 {
        engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published");
    }
    engine.wait_for(&service, 2, "exact");
    // The same epoch, 40 messages later, without live messages.
    engine.replaced(&service, |publisher| (0..43).for_each(|sequence| publisher.keep(sequence, &chain(1.0, sequence))));
    engine.wait_for(&service, 42, "exact");
    assert_eq!(service.score(&chain_tokens(99), "1", 0), 43 * 4);
    assert_eq!(count(&service, "engine_restarts_total"), 0);
}

#[test]
fn nothing_is_exact_while_the_connection_is_lost() {
    let service = Service::start();
    let mut engine = Engine::with_replay(&service, json!(1), Publisher::bind(loopback()).expect("free ports"));
    (0..3).for_each(|sequence| engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published"));
    engine.wait_for(&service, 2, "exact");
    let options = PublisherOptions {
        endpoint: engine.publisher.endpoint().to_owned(),
        replay_endpoint: engine.publisher.replay_endpoint().to_owned(),
        ..loopback()
    };
    engine.publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let listener = engine.wait_for(&service, 2, "degraded");
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("the connection was lost")), "{listener}");
    let answer = service.query(&json!({ "token_ids": chain_tokens(3), "model_name": "m" }));
    let instance = &answer["instances"]["1"];
    assert_eq!((&instance["gpu"], &instance["trust"]), (&json!(12), &json!("degraded")), "it may still be so");

    engine.publisher = Publisher::bind(options).expect("the ports are free again");
    (0..4).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    let listener = engine.wait_for(&service, 3, "exact");
    assert_eq!(listener["last_error"], Value::Null);
}

#[test]
fn a_new_life_is_not_taken_for_the_old_one_and_is_built_up_again() {
    let service = Service::start();
    let mut engine = Engine::with_replay(&service, json!(1), Publisher::bind(loopback()).expect("free ports"));
    for sequence in 0..3 {
        engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published");
    }
    engine.wait_for(&service, 2, "exact");
    // The new epoch is at a later sequence number than the old one, and no listener was connected.
    let said = |sequence: u64| batch(2.0, &[stored(None, &[sequence + 10])]);
    engine.replaced(&service, |publisher| (0..5).for_each(|sequence| publisher.keep(sequence, &said(sequence))));
    engine.wait_for(&service, 4, "exact");
    assert_eq!(service.score(&chain_tokens(3), "1", 0), 0);
    assert_eq!(service.score(&tokens(&[14]), "1", 0), 4);
    assert_eq!(count(&service, "engine_restarts_total"), 1);
    // An epoch that has not reached this sequence number yet.
    engine.replaced(&service, |publisher| publisher.keep(0, &batch(3.0, &[stored(None, &[20])])));
    engine.wait_for(&service, 0, "exact");
    assert_eq!((service.score(&tokens(&[14]), "1", 0), service.score(&tokens(&[20]), "1", 0)), (0, 4));
}

#[test]
fn an_engine_that_starts_again_and_idles_holds_nothing_and_has_said_nothing() {
    let service = Service::start();
    let mut engine = Engine::with_replay(&service, json!(1), Publisher::bind(loopback()).expect("free ports"));
    (0..5).for_each(|sequence| engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published"));
    engine.wait_for(&service, 4, "exact");
    engine.replaced(&service, |_| {});
    let listener = engine.wait(&service, "the new life", |listener| listener["trust"] == json!("cold"));
    assert_eq!((&listener["last_seq"], &listener["last_event_ms_ago"]), (&Value::Null, &Value::Null), "{listener}");
    assert_eq!(service.score(&chain_tokens(5), "1", 0), 0);
}

#[test]
fn a_stream_that_is_registered_again_is_heard_from_its_start() {
    let service = Service::start();
    let key = ModelKey::new("m".to_owned(), None);
    let mut engine = Engine::with_replay(&service, json!(1), Publisher::bind(loopback()).expect("free ports"));
    engine.publisher.publish(0, &chain(1.0, 0)).expect("published");
    engine.wait_for(&service, 0, "exact");
    let unregister = json!({ "instance_id": 1, "model_name": "m" });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    (1..4).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    let with_replay = json!({ "replay_endpoint": engine.publisher.replay_endpoint() });
    engine.register(&service, &with_replay);
    engine.wait_for(&service, 3, "exact");
    assert_eq!(service.score(&chain_tokens(4), "1", 0), 16);
    let epoch = |service: &Service| stream_position(service, &key).epoch;
    assert_eq!(epoch(&service), 1, "the life it was in");

    assert_eq!(service.post("/unregister", &unregister).0, 200);
    let endpoint = engine.publisher.endpoint().to_owned();
    let replay_endpoint = engine.publisher.replay_endpoint().to_owned();
    engine.publisher = Publisher::bind(loopback()).expect("free ports");
    engine.publisher = Publisher::bind(PublisherOptions { endpoint, replay_endpoint, ..loopback() }).expect("free");
    (0..2).for_each(|sequence| engine.publisher.keep(sequence, &chain(2.0, sequence)));
    engine.register(&service, &with_replay);
    engine.wait_for(&service, 1, "exact");
    assert_eq!(epoch(&service), 2, "another life");
}

#[test]
fn ranks_that_only_batches_name_are_listed_and_unregistered_one_by_one() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let say = |sequence: u64, rank: u32, events: &[EngineEvent<'_>]| {
        let payload = encode_batch(1.0, events, Some(DpRank(rank)), Encoding::Map);
        engine.publisher.publish(sequence, &payload).expect("published");
        let listener = |rank| service.listener(&json!(1), rank);
        flash_indexer_test_support::wait_for("a message", PATIENCE, || {
            [0, 4, 5].into_iter().any(|rank| listener(rank)["last_seq"] == json!(sequence)).then_some(())
        });
    };
    let scores = || service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }))["scores"]["1"].clone();
    say(0, 4, &[stored(None, &[1, 2])]);
    say(1, 5, &[stored(None, &[1])]);
    say(2, 0, &[]);
    let (_, workers) = service.get("/workers");
    let endpoint = engine.publisher.endpoint();
    assert_eq!(workers[0]["endpoints"], json!({ "0": endpoint, "4": endpoint, "5": endpoint }));
    assert_eq!(workers[0]["listeners"]["5"]["trust"], json!("exact"));
    assert_eq!(scores(), json!({ "0": 0, "4": 8, "5": 4 }));

    let unregister =
        |rank: u32| service.post("/unregister", &json!({ "instance_id": 1, "model_name": "m", "dp_rank": rank })).0;
    assert_eq!(unregister(4), 200);
    assert_eq!(unregister(4), 404);
    say(3, 4, &[stored(None, &[1])]);
    assert_eq!(scores(), json!({ "0": 0, "5": 4 }), "its batches are ignored from then on");
    assert_eq!(unregister(0), 200);
    say(4, 5, &[stored(Some(1), &[2])]);
    assert_eq!(scores(), json!({ "5": 8 }), "the stream goes on for the ranks that are left");
    let again =
        json!({ "instance_id": 1, "dp_rank": 4, "endpoint": endpoint, "model_name": "m", "block_size": BLOCK_TOKENS });
    assert_eq!(service.post("/register", &again).0, 201);
    say(5, 4, &[stored(None, &[1])]);
    assert_eq!(scores(), json!({ "4": 4, "5": 8 }));
    assert_eq!(service.listener(&json!(1), 4)["trust"], json!("degraded"), "it was not listened to meanwhile");
    assert_eq!(service.listener(&json!(1), 5)["trust"], json!("exact"));
    assert_eq!((unregister(4), unregister(5)), (200, 200));
    assert_eq!(service.get("/workers").1, json!([]));
}

fn registration(engine: &Publisher) -> Registration {
    let (instance, model) = (InstanceId::number(1), ModelKey::new("m", None));
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    let mut registration = Registration::new(instance, model, engine.endpoint(), block_size);
    registration.options.replay_endpoint = Some(engine.replay_endpoint().to_owned());
    registration
}

#[test]
fn a_held_stream_goes_on_from_where_another_service_stood() {
    let (first, joiner) = (Service::start(), Service::start());
    let engine = Engine::with_replay(&first, json!(1), Publisher::bind(loopback()).expect("free ports"));
    let say = |sequence: u64| {
        engine.publisher.publish(sequence, &chain(1.0, sequence)).expect("published");
        engine.wait_for(&first, sequence, "exact");
    };
    (0..3).for_each(say);
    joiner.indexer().register_configured(registration(&engine.publisher), Start::Paused).expect("registered");
    engine.wait(&joiner, "the connection", |listener| listener["status"] == json!("connected"));
    (3..6).for_each(say);
    let key = ModelKey::new("m".to_owned(), None);
    let position = stream_position(&first, &key);
    assert_eq!((position.cursor.map(|cursor| cursor.sequence), position.trust), (Some(5), Trust::Exact));
    (6..9).for_each(say);
    assert_eq!(joiner.listener(&json!(1), 0)["last_seq"], Value::Null, "nothing is applied while it is held");
    let release = |position| joiner.indexer().release(&registration(&engine.publisher).rank_id(), position);
    assert_eq!(release(Some(position)), ReleaseOutcome::Now);
    assert_eq!(release(None), ReleaseOutcome::NotHeld);
    // The blocks held at the position were not restored with it: the blocks after it follow an unknown parent.
    engine.wait_for(&joiner, 8, "degraded");
    say(9);
    engine.wait_for(&joiner, 9, "degraded");
    let (_, dump) = joiner.get("/dump");
    let events = dump["m:default"]["events"].as_array().expect("events");
    let blocks = events.iter().flat_map(|event| event["event"]["data"]["stored"]["blocks"].as_array().expect("blocks"));
    let hashes: Vec<_> = blocks.map(|block| block["block_hash"].as_u64().expect("a hash")).collect();
    assert_eq!(hashes, [7, 8, 9, 10], "what comes after the position, and nothing of what is in it");
}

#[test]
fn a_held_stream_without_a_position_is_heard_from_its_start() {
    let service = Service::start();
    let engine = Engine { publisher: Publisher::bind(loopback()).expect("free ports"), instance: json!(1), rank: 0 };
    (0..3).for_each(|sequence| engine.publisher.keep(sequence, &chain(1.0, sequence)));
    service.indexer().register_configured(registration(&engine.publisher), Start::Paused).expect("registered");
    engine.wait(&service, "the connection", |listener| listener["status"] == json!("connected"));
    let key = ModelKey::new("m".to_owned(), None);
    let rank = registration(&engine.publisher).rank_id();
    assert_eq!(service.indexer().release(&rank, None), ReleaseOutcome::Now);
    engine.wait_for(&service, 2, "exact");

    // A position of another epoch is detected.
    let unregister = json!({ "instance_id": 1, "model_name": "m" });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    service.indexer().register_configured(registration(&engine.publisher), Start::Paused).expect("registered");
    engine.wait(&service, "the connection", |listener| listener["status"] == json!("connected"));
    let cursor = flash_indexer_wire::Cursor { sequence: 1, payload_digest: 7 };
    let position = RankPosition { cursor: Some(cursor), epoch: 3, trust: Trust::Exact, unlisted_degraded: false };
    assert_eq!(service.indexer().release(&rank, Some(position)), ReleaseOutcome::Now);
    engine.wait_for(&service, 2, "exact");
    assert_eq!(service.score(&chain_tokens(3), "1", 0), 12);
    assert_eq!(stream_position(&service, &key).epoch, 4);
}

#[test]
fn host_names_are_looked_up_and_one_that_is_unknown_says_so() {
    let service = Service::start();
    let by_name = |endpoint: &str| endpoint.replace("127.0.0.1", "localhost");
    let publisher = Publisher::bind(loopback()).expect("free ports");
    (0..3).for_each(|sequence| publisher.keep(sequence, &chain(1.0, sequence)));
    let engine = Engine { publisher, instance: json!(1), rank: 0 };
    let unknown = Engine { instance: json!(2), ..Engine::registered(&service, json!(3), 0, &json!({})) };
    let request = |instance: u32, endpoint: String, replay_endpoint: String| {
        json!({
            "instance_id": instance, "endpoint": endpoint, "replay_endpoint": replay_endpoint,
            "model_name": "m", "block_size": BLOCK_TOKENS,
        })
    };
    let [nowhere, replays] = [5557, 6557].map(|port| format!("tcp://no-such-host.invalid:{port}"));
    assert_eq!(service.post("/register", &request(2, nowhere, replays)).0, 201);
    let here = request(1, by_name(engine.publisher.endpoint()), by_name(engine.publisher.replay_endpoint()));
    assert_eq!(service.post("/register", &here).0, 201);
    engine.wait_for(&service, 2, "exact");
    unknown.wait(&service, "a reason", |listener| {
        listener["last_error"]
            .as_str()
            .is_some_and(|why| why.contains("failed to resolve the host name no-such-host.invalid"))
    });
}
