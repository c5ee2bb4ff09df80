//! Peers: their registration, recovery from them, and peers that respond wrongly or fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_server::{InstanceId, ModelKey, PeerDeadlines, RankId, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, ExtraKey, encode_batch};
use serde_json::{Value, json};

use crate::support::fake_peer::{FakeDump, FakePeer};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, tokens};

/// A service that has recovered from these peers. It abandons an answer that stalls for this time.
fn recovered(peers: &[&str], stall: Duration) -> Service {
    let peers = peers.iter().map(|url| url.parse().expect("a URL")).collect();
    let peer_deadlines = PeerDeadlines { stall, ..PeerDeadlines::default() };
    Service::recovered(ServerOptions { peers, peer_deadlines, ..ServerOptions::default() })
}

/// Answers to a fixed set of queries.
fn answers(service: &Service) -> Vec<Value> {
    let prompts = [&[1, 2, 3][..], &[1], &[1, 2, 4, 5], &[9], &[20, 21, 22, 23], &[1, 2, 3, 4, 5, 6]];
    let salted = |salt: Option<&str>| {
        prompts.map(|hashes| {
            let query = json!({ "model_name": "m", "token_ids": tokens(hashes), "cache_salt": salt });
            service.post("/query", &query).1
        })
    };
    [salted(None), salted(Some("s"))].concat()
}

/// Checks that both services report the same blocks, and the same trust as soon as both are connected to all engines.
fn same_answers(a: &Service, b: &Service) {
    for (a, b) in answers(a).iter().zip(answers(b)) {
        for part in ["scores", "tree_sizes", "frequencies"] {
            assert_eq!(a[part], b[part]);
        }
    }
    wait_for("the same trust", PATIENCE, || (answers(a) == answers(b)).then_some(()));
}

fn blocks_held(service: &Service) -> usize {
    let (status, dump) = service.get("/dump");
    assert_eq!(status, 200, "{dump}");
    dump.to_string().matches("block_hash").count()
}

#[test]
fn peers_come_and_go() {
    let service = Service::start();
    assert_eq!(service.get("/peers"), (200, json!([])));
    let post = |path: &str, url: &str| service.post(path, &json!({ "url": url })).0;
    assert_eq!(post("/register_peer", "http://replica-b:8090/"), 201);
    assert_eq!(post("/register_peer", "http://replica-b:8090"), 200, "it is known");
    assert_eq!(post("/register_peer", "http://[::1]:8091"), 201);
    assert_eq!(service.get("/peers").1, json!(["http://replica-b:8090", "http://[::1]:8091"]));
    assert_eq!(post("/deregister_peer", "http://replica-b:8090"), 200);
    assert_eq!(post("/deregister_peer", "http://replica-b:8090"), 404);
    assert_eq!(service.get("/peers").1, json!(["http://[::1]:8091"]));
    let bad = ["", "replica-b:8090", "tcp://b:1", "ftp://b", "http://", "http://b:x", "http://u@b", "http://b?x=1"];
    for url in bad {
        let (status, answer) = service.post("/register_peer", &json!({ "url": url }));
        assert_eq!(status, 400, "{url}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("http://replica-b:8090")), "{answer}");
    }
    assert_eq!(service.post("/register_peer", &json!({})).0, 422);
    let statuses: Vec<u16> = (0..64).map(|at| post("/register_peer", &format!("http://b{at}:1"))).collect();
    assert_eq!(statuses.iter().filter(|&&status| status == 503).count(), 1, "peers are bounded: {statuses:?}");
}

#[test]
fn a_server_starts_from_its_peer_while_engines_publish() {
    let survivor = Service::start();
    let engine = Engine::registered(&survivor, json!(1), 0, &json!({ "engine": "vllm" }));
    let other = Engine::registered(&survivor, json!("b"), 3, &json!({ "removal": "last_copy" }));
    let keys = vec![Some(vec![ExtraKey::Text("s")]), None];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[20, 21]) };
    engine.say(&survivor, 0, &[stored(None, &[1, 2, 3]), stored(Some(1), &[2]), EngineEvent::Stored(salted)]);
    other.say(&survivor, 0, &[stored(None, &[1, 2]), stored(Some(1), &[2])]);

    let stop = AtomicBool::new(false);
    // ZeroMQ reports a connection before the publisher has processed its subscription. The subscriber misses the messages in between, so
    // the dump is taken after the subscription, and after the survivor has applied the messages published before it.
    let (subscribed, allowed) = channel();
    let relayed = FakeDump::Relayed { url: survivor.url(""), allowed: Arc::new(Mutex::new(allowed)) };
    let relay = FakePeer::start(survivor.get("/workers").1, relayed);
    // The engine stays connected: a rank without a connection is not exact.
    let (_engine, started) = std::thread::scope(|scope| {
        let (stop, survivor) = (&stop, &survivor);
        let publishing = scope.spawn(move || {
            let mut sequence = 0;
            while !stop.load(Ordering::Relaxed) {
                sequence += 1;
                let hash = 100 + sequence % 50;
                let events = match sequence % 100 < 50 {
                    true => [stored(Some(3), &[hash])],
                    false => [removed(&[hash])],
                };
                let payload = encode_batch(sequence as f64, &events, None, Encoding::Map);
                engine.publisher.publish(sequence, &payload).expect("published");
                if engine.publisher.wait_for_subscriber(Duration::ZERO).expect("a socket") {
                    engine.wait(survivor, "the last message", |listener| listener["last_seq"] == json!(sequence));
                    subscribed.send(()).expect("the peer waits for it");
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            (engine, sequence)
        });
        let started = Service::from_peer(&relay.url);
        assert!(other.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
        wait_for("live messages", PATIENCE, || {
            let last = |service: &Service| service.listener(&json!(1), 0)["last_seq"].as_u64().unwrap_or_default();
            (last(&started) > 200).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        let (engine, last) = publishing.join().expect("it publishes");
        for service in [survivor, &started] {
            engine.wait(service, "the last message", |listener| listener["last_seq"] == json!(last));
        }
        // Blocks after a salted block inherit its salt. A block with two copies is still held when one copy is removed.
        let events = [stored(Some(21), &[22]), removed(&[2]), stored(Some(3), &[4])];
        let payload = encode_batch(0.5, &events, None, Encoding::Map);
        engine.publisher.publish(last + 1, &payload).expect("published");
        other.publisher.publish(1, &encode_batch(0.5, &[removed(&[2])], None, Encoding::Map)).expect("published");
        for service in [survivor, &started] {
            engine.wait(service, "the last message", |listener| listener["last_seq"] == json!(last + 1));
            other.wait(service, "the last message", |listener| listener["last_seq"] == json!(1));
        }
        (engine, started)
    });
    same_answers(&survivor, &started);
    assert_eq!(started.score(&tokens(&[1, 2, 3]), "1", 0), 12, "one of two copies was removed");
    assert_eq!(started.score(&tokens(&[1, 2, 3]), "b", 3), 4, "the last copy was removed");
    for (instance, rank) in [(json!(1), 0), (json!("b"), 3)] {
        let listener = started.listener(&instance, rank);
        assert_eq!(listener["trust"], json!("exact"), "{listener}");
        assert_eq!(listener["gaps"], json!(0), "{listener}");
        assert_eq!(listener["engine"], survivor.listener(&instance, rank)["engine"]);
    }
}

#[test]
fn a_rank_that_is_unregistered_during_recovery_is_not_restored() {
    let survivor = Service::start();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let engine = Engine::with_replay(&survivor, json!(1), publisher);
    let other = Engine::registered(&survivor, json!(2), 0, &json!({}));
    engine.say(&survivor, 0, &[stored(None, &[1, 2, 3])]);
    other.say(&survivor, 0, &[stored(None, &[1, 2])]);
    let (allow, allowed) = channel();
    let relayed = FakeDump::Relayed { url: survivor.url(""), allowed: Arc::new(Mutex::new(allowed)) };
    let relay = FakePeer::start(survivor.get("/workers").1, relayed);
    let peers = vec![relay.url.parse().expect("a URL")];
    let started = Service::start_with(ServerOptions { peers, ..ServerOptions::default() });
    let instances = || started.get("/workers").1.as_array().map_or(0, Vec::len);
    wait_for("the peer's ranks", PATIENCE, || (instances() == 2).then_some(()));
    for instance in [1, 2] {
        assert_eq!(started.post("/unregister", &json!({ "instance_id": instance, "model_name": "m" })).0, 200);
    }
    engine.register(&started, &json!({ "replay_endpoint": engine.publisher.replay_endpoint() }));
    allow.send(()).expect("the peer waits for it");
    wait_for("the end of the recovery", PATIENCE, || (started.get("/ready").0 == 200).then_some(()));
    assert_eq!(instances(), 1, "an unregistered rank is not listed again");
    engine.wait(&started, "the replay", |listener| listener["trust"] == json!("exact"));
    engine.say_to_both((&survivor, &started), 1, &[removed(&[3])]);
    assert_eq!(started.score(&tokens(&[1, 2, 3]), "1", 0), 8, "a block is held once, by its own stream");
}

#[test]
fn nothing_is_taken_from_a_peer_that_dies_or_lies() {
    let survivor = Service::start();
    let engine = Engine::registered(&survivor, json!(1), 0, &json!({}));
    engine.say(&survivor, 0, &[stored(None, &[1, 2, 3]), stored(Some(2), &[9])]);
    let workers = survivor.get("/workers").1;
    let request = ureq::get(survivor.url("/dump")).header("accept", "application/x-ndjson");
    let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
    let (half, most) = (dump.len() / 2, dump.rfind("{\"end\"").expect("an end"));
    let part = |length: usize| dump.as_bytes()[..length].to_vec();
    let broken = [
        FakeDump::Dies(part(half)),
        FakeDump::Dies(part(most)),
        FakeDump::Whole(part(half)),
        FakeDump::Whole(part(most)),
        FakeDump::Whole(dump.replacen("\"tokens_hash\":", "\"tokens_hash\":1", 1).into_bytes()),
        FakeDump::Whole(dump.replacen("{\"end\"", "garbage\n{\"end\"", 1).into_bytes()),
        FakeDump::Whole(b"<html>".to_vec()),
        FakeDump::Stalls(part(half)),
        FakeDump::Stalls(Vec::new()),
        FakeDump::Refuses,
    ];
    let fakes = broken.map(|dump| FakePeer::start(workers.clone(), dump));
    let urls: Vec<&str> = fakes.iter().map(|fake| fake.url.as_str()).collect();

    let alone = recovered(&urls, Duration::from_millis(300));
    assert!(fakes.iter().all(|fake| fake.dumps_asked.load(Ordering::Relaxed) == 1), "every peer is asked");
    assert_eq!(blocks_held(&alone), 0, "nothing is half applied");
    // The service still listens to the engine, and applies its events.
    assert_eq!(alone.listener(&json!(1), 0)["trust"], json!("cold"));
    drop(alone);

    // Long enough for a survivor on a busy processor.
    let helping = survivor.url("");
    let helped = recovered(&[&urls[..], &["http://127.0.0.1:9", &helping]].concat(), Duration::from_secs(5));
    same_answers(&survivor, &helped);
    assert_eq!(helped.score(&tokens(&[1, 2, 3]), "1", 0), 12);
    assert_eq!(helped.listener(&json!(1), 0)["trust"], json!("exact"));
    let metrics = helped.get_text("/metrics");
    for (outcome, times) in [("broken_dump", 9), ("refused", 1), ("unreachable", 1), ("complete", 1)] {
        let line = format!("flash_indexer_recoveries_total{{outcome=\"{outcome}\"}} {times}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}

#[test]
fn a_server_that_recovers_is_not_ready_and_no_source() {
    let stalls = FakePeer::start(json!([]), FakeDump::Stalls(Vec::new()));
    let peers = vec![stalls.url.parse().expect("a URL")];
    let service = Service::start_with(ServerOptions { peers, ..ServerOptions::default() });
    wait_for("the peer's answer", PATIENCE, || (stalls.dumps_asked.load(Ordering::Relaxed) == 1).then_some(()));
    assert_eq!(service.get("/health").0, 200);
    let (status, answer) = service.get("/ready");
    assert_eq!(status, 503);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains(&stalls.url)), "{answer}");
    assert_eq!(service.get("/dump").0, 503);
    let query = json!({ "model_name": "m", "token_ids": [1, 2, 3, 4] });
    let (status, answer) = service.post("/query", &query);
    assert_eq!(status, 503, "recovery may restore the model: {answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("recovering")), "{answer}");
    assert_eq!(service.header("/query", &query, "retry-after").as_deref(), Some("1"));
    let (digest, unregister) = ("/digest?model_name=m&instance_id=1", json!({ "instance_id": 1, "model_name": "m" }));
    assert_eq!(service.get(digest).0, 503, "recovery may restore the rank");
    assert_eq!(service.post("/unregister", &unregister).0, 503, "recovery may restore the rank");
    drop(stalls);
    wait_for("the end of the recovery", PATIENCE, || (service.get("/ready").0 == 200).then_some(()));
    assert_eq!(service.get("/dump").0, 200);
    assert_eq!(service.post("/query", &query).0, 404);
    assert_eq!(service.get(digest).0, 404);
    assert_eq!(service.post("/unregister", &unregister).0, 404);
}

#[test]
fn a_dump_of_another_indexer_is_taken_over_and_not_believed() {
    let survivor = Service::start();
    let engine = Engine::registered(&survivor, json!(1), 0, &json!({}));
    engine.say(&survivor, 0, &[stored(None, &[1, 2, 3])]);
    let mut dump = survivor.get("/dump").1;
    let model = dump["m:default"].as_object_mut().expect("a model");
    model.retain(|field, _| field == "block_size" || field == "events");
    let mut elsewhere = model["events"][0].clone();
    elsewhere["worker_id"] = json!(77);
    model["events"].as_array_mut().expect("events").push(elsewhere);
    let workers = json!([{ "instance_id": 1, "endpoints": { "0": engine.publisher.endpoint() } }]);
    let peer = FakePeer::start(workers, FakeDump::Whole(dump.to_string().into_bytes()));

    let service = Service::from_peer(&peer.url);
    for instance in ["1", "77"] {
        assert_eq!(service.score(&tokens(&[1, 2, 3]), instance, 0), 12);
    }
    let answer = service.query(&json!({ "model_name": "m", "token_ids": tokens(&[1]) }));
    for instance in ["1", "77"] {
        assert_eq!(answer["instances"][instance]["trust"], json!("degraded"), "no stream position is known: {answer}");
    }
    assert_eq!(service.get("/workers").1[1]["status"], json!("disconnected"));
    // They can be registered and unregistered like any other.
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(service.post("/register", &register).0, 201);
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12);
    assert_eq!(service.post("/unregister", &json!({ "instance_id": 77, "model_name": "m" })).0, 200);
    let answer = service.query(&json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]) }));
    assert_eq!(answer["scores"], json!({ "1": { "0": 12 } }));
}

/// A service that compares itself with its peers continuously, and recovers from none.
fn checking() -> Service {
    let peer_check_interval = Some(Duration::from_millis(50));
    Service::start_with(ServerOptions { peer_check_interval, ..ServerOptions::default() })
}

fn wait_for_metric(service: &Service, name: &str, outcome: &str) {
    let name = format!("flash_indexer_{name}_total");
    let counted = || service.metrics().value(&name, &[("outcome", outcome)]);
    wait_for(&format!("{name} {outcome}"), PATIENCE, || (counted() > 0.0).then_some(()));
}

#[test]
fn what_one_replica_has_missed_it_takes_from_another() {
    let (whole, late) = (Service::start(), checking());
    let engine = Engine::registered(&whole, json!(1), 0, &json!({}));
    engine.say(&whole, 0, &[stored(None, &[1, 2, 3])]);
    engine.say(&whole, 1, &[stored(Some(1), &[2]), stored(Some(3), &[4])]);
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(late.post("/register", &register).0, 201);
    let mut last = 1;
    wait_for("a message without those before it", PATIENCE, || {
        last += 1;
        engine.say(&whole, last, &[stored(Some(2), &[9])]);
        (late.listener(&json!(1), 0)["trust"] == json!("degraded")).then_some(())
    });
    assert_eq!(late.score(&tokens(&[1, 2, 3]), "1", 0), 0);

    assert_eq!(late.post("/register_peer", &json!({ "url": whole.url("") })).0, 201);
    engine.wait(&late, "the repair", |listener| listener["trust"] == json!("exact"));
    wait_for_metric(&late, "peer_repairs", "complete");
    same_answers(&whole, &late);
    // The stream continues at the peer's position, without a gap.
    engine.say(&whole, last + 1, &[removed(&[2]), stored(Some(4), &[5])]);
    engine.wait(&late, "the next message", |listener| listener["last_seq"] == json!(last + 1));
    same_answers(&whole, &late);
    assert_eq!(late.score(&tokens(&[1, 2, 3, 4, 5]), "1", 0), 20);
    wait_for_metric(&late, "peer_checks", "equal");
}

/// A dump has the removed ancestors of held blocks, because held blocks need parents. The ancestors are not held.
#[test]
fn blocks_that_an_engine_removed_below_held_ones_are_not_held_after_a_rebuild_from_a_peer() {
    let (whole, late) = (Service::start(), checking());
    let engine = Engine::registered(&whole, json!(1), 0, &json!({}));
    engine.say(&whole, 0, &[stored(None, &[1, 2, 3, 4, 5, 6])]);
    engine.say(&whole, 1, &[removed(&[2, 4])]);
    let found = |service: &Service| {
        let answer = service.query(&json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3, 4, 5, 6]) }));
        [&answer["scores"], &answer["tree_sizes"]].map(|of| of["1"]["0"].clone())
    };
    assert_eq!(found(&whole), [json!(4), json!(4)]);
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(late.post("/register", &register).0, 201);
    assert_eq!(late.post("/register_peer", &json!({ "url": whole.url("") })).0, 201);
    engine.wait(&late, "the rebuild", |listener| listener["trust"] == json!("exact"));
    assert_eq!(found(&late), [json!(4), json!(4)]);
    same_answers(&whole, &late);
    // The blocks that are held have their parents.
    engine.say(&whole, 2, &[stored(Some(1), &[2])]);
    engine.wait(&late, "the next message", |listener| listener["last_seq"] == json!(2));
    assert_eq!(found(&late), [json!(12), json!(5)]);
}

/// Later blocks inherit the salt of a block that their engine has removed.
#[test]
fn a_removed_block_below_held_ones_leaves_its_salt_to_a_replica() {
    let survivor = Service::start();
    let engine = Engine::registered(&survivor, json!(1), 0, &json!({}));
    let keys = vec![Some(vec![ExtraKey::Text("s")]), None, None];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[1, 2, 3]) };
    engine.say(&survivor, 0, &[EngineEvent::Stored(salted), removed(&[2])]);
    let started = Service::from_peer(&survivor.url(""));
    assert!(engine.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    let payload = encode_batch(0.5, &[stored(Some(2), &[4]), stored(Some(1), &[2])], None, Encoding::Map);
    engine.publisher.publish(1, &payload).expect("published");
    for service in [&survivor, &started] {
        engine.wait(service, "the next message", |listener| listener["last_seq"] == json!(1));
        let query = json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 4]), "cache_salt": "s" });
        let (_, answer) = service.post("/query", &query);
        assert_eq!(answer["instances"]["1"]["longest_matched"], json!(12), "{answer}");
        assert_eq!(answer["instances"]["1"]["trust"], json!("exact"), "{answer}");
    }
}

#[test]
fn a_peer_that_has_missed_the_last_message_as_well_ends_no_doubt() {
    let (peer, replica) = (Service::start(), checking());
    // Each service has its own socket of the engine. The last message arrives damaged at the replica, and never at the peer.
    let lost = Engine::registered(&peer, json!(1), 0, &json!({}));
    let damaged = Engine::registered(&replica, json!(1), 0, &json!({}));
    lost.say(&peer, 0, &[stored(None, &[1, 2, 3])]);
    damaged.say(&replica, 0, &[stored(None, &[1, 2, 3])]);
    damaged.publisher.publish_frames(&[&b"t"[..], &1u64.to_be_bytes(), b"\xc1"]).expect("published");
    damaged.wait(&replica, "the loss", |listener| listener["trust"] == json!("degraded"));

    assert_eq!(replica.post("/register_peer", &json!({ "url": peer.url("") })).0, 201);
    wait_for_metric(&replica, "peer_repairs", "failed");
    assert_eq!(replica.listener(&json!(1), 0)["trust"], json!("degraded"));
    assert_eq!(replica.metrics().value("flash_indexer_peer_repairs_total", &[("outcome", "complete")]), 0.0);
    // The next message shows the loss, and the peer, which has received it too, repairs it.
    lost.say(&peer, 1, &[removed(&[3])]);
    lost.say(&peer, 2, &[stored(Some(2), &[4])]);
    damaged.say(&replica, 2, &[stored(Some(2), &[4])]);
    wait_for_metric(&replica, "peer_repairs", "complete");
    assert_eq!(replica.score(&tokens(&[1, 2, 3]), "1", 0), 8);
}

#[test]
fn a_rank_that_was_unregistered_is_not_listed_again_after_a_repair() {
    let (whole, late) = (Service::start(), checking());
    let engine = Engine::registered(&whole, json!(1), 0, &json!({}));
    let publish = |sequence, dp_rank, events: &[EngineEvent<'_>]| {
        engine.publisher.publish(sequence, &of_rank(dp_rank, events)).expect("published");
        engine.wait(&late, "a message", |listener| listener["last_seq"] == json!(sequence));
    };
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(late.post("/register", &register).0, 201);
    engine.wait(&late, "a connection", |listener| listener["status"] == json!("connected"));
    wait_for("a message", PATIENCE, || {
        engine.publisher.publish(0, &of_rank(0, &[stored(None, &[1])])).expect("published");
        let has_both = [&whole, &late].iter().all(|service| service.listener(&json!(1), 0)["last_seq"] == json!(0));
        has_both.then_some(())
    });
    publish(1, 1, &[stored(None, &[2, 3])]);
    let unregister = json!({ "instance_id": 1, "model_name": "m", "dp_rank": 1 });
    assert_eq!(late.post("/unregister", &unregister).0, 200);
    // The peer lists both ranks, and one replica misses a message.
    late.indexer().mark_degraded(&rank_id(0), "fault injected by a test".to_owned());
    assert_eq!(late.post("/register_peer", &json!({ "url": whole.url("") })).0, 201);
    wait_for_metric(&late, "peer_repairs", "complete");
    publish(2, 1, &[stored(Some(3), &[4])]);
    publish(3, 0, &[stored(Some(1), &[5])]);
    let ranks =
        |service: &Service| service.query(&json!({ "model_name": "m", "token_ids": [] }))["scores"]["1"].clone();
    assert_eq!(ranks(&whole).as_object().map(|ranks| ranks.len()), Some(2));
    assert_eq!(ranks(&late), json!({ "0": 0 }));
}

fn rank_id(dp_rank: u32) -> RankId {
    RankId { model: ModelKey::new("m", None), instance: InstanceId::number(1), dp_rank: DpRank(dp_rank) }
}

#[test]
fn a_peer_whose_connection_stands_still_repairs_nothing() {
    let (stale, late) = (Service::start(), checking());
    // Two engines represent one: the peer receives none of the messages of the other engine.
    let stalled = Engine::registered(&stale, json!(1), 0, &json!({}));
    stalled.say(&stale, 0, &[stored(None, &[1, 2, 3])]);
    let engine = Engine::registered(&late, json!(1), 0, &json!({}));
    engine.say(&late, 0, &[stored(None, &[1, 2, 3])]);
    engine.say(&late, 2, &[removed(&[3, 2, 1])]);
    engine.wait(&late, "a gap", |listener| listener["trust"] == json!("degraded"));
    assert_eq!(stale.listener(&json!(1), 0)["trust"], json!("exact"));

    assert_eq!(late.post("/register_peer", &json!({ "url": stale.url("") })).0, 201);
    wait_for_metric(&late, "peer_checks", "not_compared");
    let listener = late.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["last_seq"]), (&json!("degraded"), &json!(2)));
    assert_eq!(late.score(&tokens(&[1, 2, 3]), "1", 0), 0);
}

#[test]
fn a_replica_does_not_forget_that_the_last_messages_were_lost() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    engine.publisher.publish(1, b"no batch").expect("published");
    engine.wait(&service, "the loss", |listener| listener["trust"] == json!("degraded"));
    let replica = Service::from_peer(&service.url(""));
    engine.wait(&replica, "a connection", |listener| listener["status"] == json!("connected"));
    assert_eq!(replica.listener(&json!(1), 0)["trust"], json!("degraded"));
}

/// A batch of one rank.
fn of_rank(dp_rank: u32, events: &[EngineEvent<'_>]) -> Vec<u8> {
    encode_batch(1.0, events, Some(DpRank(dp_rank)), Encoding::Map)
}

#[test]
fn a_rank_that_a_peer_does_not_list_is_degraded_if_its_messages_were_lost_there() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let publish = |on: &Service, sequence, dp_rank, events: &[EngineEvent<'_>]| {
        engine.publisher.publish(sequence, &of_rank(dp_rank, events)).expect("published");
        engine.wait(on, "a message", |listener| listener["last_seq"] == json!(sequence));
    };
    let trust = |service: &Service, dp_rank| service.listener(&json!(1), dp_rank)["trust"].clone();
    publish(&service, 0, 0, &[stored(None, &[1])]);
    publish(&service, 1, 1, &[stored(None, &[1, 2, 3])]);
    let unregister = json!({ "instance_id": 1, "model_name": "m", "dp_rank": 1 });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    // The rank is unregistered there, and listed here with its next message.
    let replica = Service::from_peer(&service.url(""));
    engine.wait(&replica, "a connection", |listener| listener["status"] == json!("connected"));
    publish(&replica, 2, 1, &[stored(Some(3), &[4])]);
    assert_eq!((trust(&replica, 0), trust(&replica, 1)), (json!("exact"), json!("degraded")));
    assert_eq!(replica.score(&tokens(&[1, 2, 3]), "1", 1), 0);
    // The only message that names a rank is lost. The other rank recovers.
    publish(&replica, 4, 0, &[EngineEvent::Cleared]);
    engine.wait(&replica, "a clear", |listener| listener["trust"] == json!("exact"));
    let third = Service::from_peer(&replica.url(""));
    engine.wait(&third, "a connection", |listener| listener["status"] == json!("connected"));
    publish(&third, 5, 2, &[stored(None, &[7])]);
    assert_eq!((trust(&third, 0), trust(&third, 2)), (json!("exact"), json!("degraded")));
}

#[test]
fn a_replica_that_is_sure_leaves_one_that_is_not_to_mend_itself() {
    let (whole, late) = (checking(), Service::start());
    let engine = Engine::registered(&whole, json!(1), 0, &json!({}));
    engine.say(&whole, 0, &[stored(None, &[1, 2, 3])]);
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(late.post("/register", &register).0, 201);
    let mut last = 0;
    wait_for("a message without those before it", PATIENCE, || {
        last += 1;
        engine.say(&whole, last, &[stored(Some(2), &[9])]);
        (late.listener(&json!(1), 0)["trust"] == json!("degraded")).then_some(())
    });
    engine.wait(&late, "the last message", |listener| listener["last_seq"] == json!(last));
    assert_eq!(whole.post("/register_peer", &json!({ "url": late.url("") })).0, 201);
    wait_for_metric(&whole, "peer_checks", "not_compared");
    let checks = |outcome| whole.metrics().value("flash_indexer_peer_checks_total", &[("outcome", outcome)]);
    assert_eq!((checks("drift"), checks("worse"), checks("dispute")), (0.0, 0.0, 0.0));
    assert_eq!(whole.listener(&json!(1), 0)["trust"], json!("exact"));
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn busy_replicas_are_compared_at_one_message() {
    let (first, second) = (Service::start(), checking());
    let engine = Engine::registered(&first, json!(1), 0, &json!({}));
    let register = json!({
        "instance_id": 1, "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(second.post("/register", &register).0, 201);
    assert_eq!(second.post("/register_peer", &json!({ "url": first.url("") })).0, 201);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Needed even when the test fails: the scope waits for the thread.
        let stops = StopOnDrop(&stop);
        let stop = &stop;
        scope.spawn(move || {
            let mut sequence = 0;
            while !stop.load(Ordering::Relaxed) {
                let payload = encode_batch(1.0, &[stored(None, &[sequence % 1_000])], None, Encoding::Map);
                engine.publisher.publish(sequence, &payload).expect("published");
                sequence += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        wait_for_metric(&second, "peer_checks", "equal");
        drop(stops);
    });
    for outcome in ["dispute", "drift"] {
        assert_eq!(second.metrics().value("flash_indexer_peer_checks_total", &[("outcome", outcome)]), 0.0);
    }
}

#[test]
fn a_dispute_is_settled_by_the_engine_or_left_open() {
    for replays in [true, false] {
        let service = checking();
        let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        let engine = Engine { publisher, instance: json!(1), rank: 0 };
        let replay_endpoint = replays.then(|| engine.publisher.replay_endpoint().to_owned());
        let register = json!({
            "instance_id": 1, "endpoint": engine.publisher.endpoint(), "replay_endpoint": replay_endpoint,
            "model_name": "m", "block_size": BLOCK_TOKENS,
        });
        assert_eq!(service.post("/register", &register).0, 201);
        assert!(engine.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
        engine.say(&service, 0, &[stored(None, &[1, 2, 3])]);
        assert_eq!(service.listener(&json!(1), 0)["trust"], json!("exact"));
        let (status, mut digest) = service.get("/digest?model_name=m&instance_id=1&at_sequence=0");
        assert_eq!((status, &digest["holds"]["blocks"]), (200, &json!(3)));
        digest["holds"] = json!({ "blocks": 3, "digest": "0000000000000001" });
        let liar = FakePeer::with_digest(service.get("/workers").1, FakeDump::Refuses, &digest);
        assert_eq!(service.post("/register_peer", &json!({ "url": liar.url })).0, 201);

        wait_for_metric(&service, "peer_checks", "dispute");
        wait_for_metric(&service, "peer_repairs", if replays { "complete" } else { "failed" });
        drop(liar);
        let expected = if replays { "exact" } else { "degraded" };
        engine.wait(&service, "the end of it", |listener| listener["trust"] == json!(expected));
        assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12, "nothing better is known");
    }
}

#[test]
fn a_digest_is_of_one_message() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let digest = |more: &str| service.get(&format!("/digest?model_name=m&instance_id=1{more}"));
    let (status, now) = digest("");
    assert_eq!((status, &now["stream"]["cursor"]["sequence"], &now["holds"]["blocks"]), (200, &json!(0), &json!(2)));
    assert_eq!(digest("&at_sequence=0"), (200, now));
    assert_eq!(digest("&at_sequence=1").0, 409, "it has not come");
    engine.say(&service, 1, &[removed(&[2])]);
    assert_eq!(digest("&at_sequence=0").0, 409, "it has passed");
    assert_eq!(digest("&at_sequence=1").1["holds"]["blocks"], json!(1));
    assert_eq!(digest("&dp_rank=7").0, 404);
    let no_number = "expected a whole number of at least 0";
    for (query, expected) in [
        ("?model_name=m", "missing field `instance_id`".to_owned()),
        ("?model_name=m&instance_id=1&wait_ms=a", format!("wait_ms: {no_number}")),
        ("?model_name=m&instance_id=1&dp_rank=", format!("dp_rank: {no_number}")),
        ("?model_name=%ff&instance_id=1", "model_name: not UTF-8; percent-encode the bytes of UTF-8 text".to_owned()),
    ] {
        let (status, answer) = service.get(&format!("/digest{query}"));
        assert_eq!((status, &answer["error"]), (400, &json!(format!("the query string does not fit: {expected}"))));
    }
}
