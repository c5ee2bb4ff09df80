//! Engines that connect to the service: several pods over one bound socket.

use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{IndexerOptions, PodOptions, ServerOptions};
use flash_indexer_sim::workload::{ConversationOptions, Conversations};
use flash_indexer_sim::{EngineOptions, Publisher, PublisherOptions, Request, SimulatedEngine};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, encode_batch};
use serde_json::{Value, json};

use crate::support::fake_peer::{FakeDump, FakePeer};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, tokens};

/// A service that engines connect to.
fn service(change: impl FnOnce(&mut PodOptions)) -> Service {
    let mut pods = PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]);
    change(&mut pods);
    let indexer = IndexerOptions { decoder_threads: Some(3), ..IndexerOptions::default() };
    Service::start_with(ServerOptions { pods: Some(pods), indexer, ..ServerOptions::default() })
}

/// A service that engines connect to, and that compares itself with its peers continuously.
fn checking() -> Service {
    let pods = Some(PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]));
    let peer_check_interval = Some(Duration::from_millis(50));
    Service::start_with(ServerOptions { pods, peer_check_interval, ..ServerOptions::default() })
}

fn address(service: &Service) -> String {
    service.indexer().pod_addresses().remove(0)
}

/// A pod of model `m` that is connected.
struct Pod {
    publisher: Publisher,
    name: &'static str,
}

impl Pod {
    fn connected(service: &Service, name: &'static str) -> Self {
        Self::with_topic(service, name, &format!("kv@{name}@m"))
    }

    fn with_topic(service: &Service, name: &'static str, topic: &str) -> Self {
        let options = PublisherOptions {
            endpoint: address(service),
            topic: topic.as_bytes().to_vec(),
            ..PublisherOptions::on_loopback()
        };
        let publisher = Publisher::connect(options).expect("an address");
        let pod = Self { publisher, name };
        pod.wait_for_service();
        pod
    }

    fn wait_for_service(&self) {
        assert!(self.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    }

    fn publish(&self, sequence: u64, events: &[EngineEvent<'_>]) {
        self.publisher.publish(sequence, &encode_batch(1.0, events, None, Encoding::Map)).expect("published");
    }

    /// Publishes events and waits until the service has applied them.
    fn say(&self, service: &Service, sequence: u64, events: &[EngineEvent<'_>]) -> Value {
        self.publish(sequence, events);
        self.wait(service, "a message", |listener| listener["last_seq"] == json!(sequence))
    }

    fn wait(&self, service: &Service, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, PATIENCE, || Some(service.listener(&json!(self.name), 0)).filter(|now| condition(now)))
    }

    fn is_listed(&self, service: &Service) -> bool {
        !service.listener(&json!(self.name), 0).is_null()
    }

    /// The same pod restarted, on another connection.
    fn restarted(self, service: &Service) -> Self {
        let Self { publisher, name } = self;
        drop(publisher);
        let listens = |listener: &Value| listener.is_null() || listener["status"] == json!("disconnected");
        wait_for("the end of the connection", PATIENCE, || listens(&service.listener(&json!(name), 0)).then_some(()));
        Self::connected(service, name)
    }

    fn register(&self, service: &Service, more: &Value) -> (u16, Value) {
        let mut request =
            json!({ "instance_id": self.name, "endpoint": "bound", "model_name": "m", "block_size": BLOCK_TOKENS });
        for (key, value) in more.as_object().into_iter().flatten() {
            request[key] = value.clone();
        }
        service.post("/register", &request)
    }
}

/// Number of messages rejected for this reason.
fn rejected(service: &Service, reason: &str) -> f64 {
    service.metrics().value("flash_indexer_rejected_total", &[("reason", reason)])
}

#[test]
fn pods_register_themselves_and_are_told_apart_by_their_topics() {
    let service = service(|_| {});
    let pods = ["a", "b", "c", "d"].map(|name| Pod::connected(&service, name));
    for (pod, block) in pods.iter().zip(1..) {
        pod.say(&service, 0, &[stored(None, &[block, block + 1])]);
        pod.say(&service, 1, &[stored(Some(block + 1), &[block + 2])]);
    }
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "a", 0), 12);
    assert_eq!(service.score(&tokens(&[2, 3, 4]), "b", 0), 12);
    assert_eq!(service.score(&tokens(&[2, 3, 4]), "a", 0), 0);
    let (_, workers) = service.get("/workers");
    assert_eq!(workers.as_array().map(Vec::len), Some(4));
    let first = &workers[0];
    assert_eq!((&first["instance_id"], &first["block_size"]), (&json!("a"), &json!(BLOCK_TOKENS)));
    let listener = service.listener(&json!("a"), 0);
    assert_eq!(listener["endpoint"], json!(format!("bound:{}", address(&service))));
    assert_eq!((&listener["status"], &listener["trust"]), (&json!("connected"), &json!("exact")));
    assert_eq!(service.metrics().value("flash_indexer_pods_registered_total", &[]), 4.0);

    // Another model of the same pod is another engine.
    let other = Pod::with_topic(&service, "a", "kv@a@other");
    other.publish(0, &[stored(None, &[9])]);
    wait_for("the other model", PATIENCE, || {
        let (status, answer) = service.post("/query", &json!({ "token_ids": tokens(&[9]), "model_name": "other" }));
        (status == 200 && answer["scores"]["a"]["0"] == json!(4)).then_some(())
    });
}

#[test]
fn what_comes_over_the_bound_socket_is_what_is_heard_of_dialled_engines() {
    let service = service(|_| {});
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    let names = ["a", "b", "c"];
    let mut engines: Vec<_> = names
        .iter()
        .map(|&name| {
            let engine = SimulatedEngine::new(EngineOptions {
                block_size,
                blocks: 600,
                dp_rank: DpRank(0),
                hash_seed: name.to_owned(),
                encoding: Encoding::Map,
            });
            let dialled = Engine::registered(&service, json!(name), 0, &json!({ "model_name": "dialled" }));
            (engine, Pod::connected(&service, name), dialled)
        })
        .collect();
    let requests: Vec<Request> = Conversations::new(ConversationOptions::default(), 5).take(60).collect();
    for (number, request) in requests.iter().enumerate() {
        let (engine, pod, dialled) = &mut engines[number % names.len()];
        // Prompts that do not fit are omitted.
        for batch in engine.serve(request, 1.0).map(|served| served.batches).unwrap_or_default() {
            pod.publisher.publish(batch.sequence, &batch.payload).expect("published");
            dialled.publisher.publish(batch.sequence, &batch.payload).expect("published");
        }
    }
    let last = |model: &str, name: &str| {
        let (_, workers) = service.get(&format!("/workers?model_name={model}"));
        let workers = workers.as_array().expect("a list").clone();
        let worker = workers.into_iter().find(|worker| worker["instance_id"] == json!(name));
        worker.map(|worker| worker["listeners"]["0"]["last_seq"].clone())
    };
    for (engine, pod, _) in &engines {
        let expected = Some(json!(engine.last_sequence().expect("it has stored blocks")));
        for model in ["m", "dialled"] {
            wait_for("all messages", PATIENCE, || (last(model, pod.name) == expected).then_some(()));
        }
    }
    for request in &requests {
        let ask = |model: &str| service.query(&json!({ "token_ids": request.prompt, "model_name": model }));
        let (bound, dialled) = (ask("m"), ask("dialled"));
        assert_eq!(bound, dialled);
        assert_eq!(bound["instances"]["a"]["trust"], json!("exact"));
    }
}

#[test]
fn a_pod_that_starts_again_is_built_up_anew_and_the_others_do_not_notice() {
    let service = service(|_| {});
    let (pod, other) = (Pod::connected(&service, "a"), Pod::connected(&service, "b"));
    pod.say(&service, 0, &[stored(None, &[1, 2])]);
    pod.say(&service, 1, &[stored(Some(2), &[3])]);
    other.say(&service, 0, &[stored(None, &[1, 2])]);
    let pod = pod.restarted(&service);
    let listener = pod.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!((&listener["trust"], &listener["status"]), (&json!("exact"), &json!("connected")));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "a", 0), 4);
    let listener = other.say(&service, 1, &[stored(Some(2), &[3])]);
    assert_eq!((&listener["trust"], &listener["gaps"]), (&json!("exact"), &json!(0)));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "b", 0), 12);

    // An epoch whose first messages were missed may continue at the number where the last one ended.
    let pod = pod.restarted(&service);
    let listener = pod.say(&service, 1, &[stored(None, &[5])]);
    assert_eq!(listener["trust"], json!("degraded"));
    assert_eq!(service.listener(&json!("b"), 0)["trust"], json!("exact"));
}

#[test]
fn ranks_of_a_pod_publish_each_for_itself() {
    let service = service(|_| {});
    let ranks = [Pod::connected(&service, "a"), Pod::connected(&service, "a")];
    for (sequence, rank, blocks) in [(0, 0, [1, 2]), (0, 1, [1, 2]), (1, 0, [3, 4]), (2, 1, [5, 6])] {
        let payload = encode_batch(1.0, &[stored(None, &blocks)], Some(DpRank(rank)), Encoding::Map);
        ranks[rank as usize].publisher.publish(sequence, &payload).expect("published");
        let listener = || service.listener(&json!("a"), rank);
        wait_for("a message", PATIENCE, || (listener()["last_seq"] == json!(sequence)).then_some(()));
    }
    let trust = |rank| service.listener(&json!("a"), rank)["trust"].clone();
    assert_eq!((trust(0), trust(1)), (json!("exact"), json!("degraded")), "a gap concerns its rank alone");
    let unregister = json!({ "instance_id": "a", "model_name": "m", "dp_rank": 1 });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    assert_eq!(service.score(&tokens(&[3, 4]), "a", 0), 8);
    assert!(service.listener(&json!("a"), 1).is_null());
}

#[test]
fn a_pod_that_is_older_than_the_service_is_degraded_until_its_replay_is_registered() {
    let service = service(|_| {});
    let pod = Pod::connected(&service, "a");
    pod.publisher.keep(0, &encode_batch(1.0, &[stored(None, &[1, 2])], None, Encoding::Map));
    let listener = pod.say(&service, 1, &[stored(Some(2), &[3])]);
    assert_eq!(listener["trust"], json!("degraded"));
    let replay = json!({ "replay_endpoint": pod.publisher.replay_endpoint() });
    assert_eq!(pod.register(&service, &replay), (201, json!({ "status": "ok" })));
    // The replay is requested at once: nothing more is published.
    pod.wait(&service, "the replay", |listener| listener["trust"] == json!("exact"));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "a", 0), 12);
    assert_eq!(pod.register(&service, &replay).0, 200, "the same again");
    assert_eq!(pod.register(&service, &json!({})).0, 409, "what was asked for gives way to nothing");
    assert_eq!(pod.register(&service, &json!({ "tenant_id": "t2" })).0, 409, "its messages are one tenant's");
    pod.publisher.keep(2, &encode_batch(1.0, &[stored(Some(3), &[4])], None, Encoding::Map));
    let listener = pod.say(&service, 3, &[stored(Some(4), &[5])]);
    assert_eq!((&listener["trust"], &listener["gaps"]), (&json!("exact"), &json!(1)));
    assert_eq!(service.score(&tokens(&[1, 2, 3, 4, 5]), "a", 0), 20);
}

#[test]
fn a_service_that_returns_finds_its_pods_and_says_what_it_has_missed() {
    let first = service(|_| {});
    let pods = ["a", "b"].map(|name| Pod::connected(&first, name));
    pods.iter().for_each(|pod| drop(pod.say(&first, 0, &[stored(None, &[1, 2])])));
    let bound = address(&first);
    drop(first);
    pods.iter().for_each(|pod| pod.publish(1, &[stored(Some(2), &[3])]));
    let second = service(|pods| pods.endpoints = vec![bound]);
    for pod in &pods {
        pod.wait_for_service();
        let listener = pod.say(&second, 2, &[stored(None, &[7])]);
        assert_eq!((&listener["trust"], &listener["status"]), (&json!("degraded"), &json!("connected")));
        assert_eq!(second.score(&tokens(&[7]), pod.name, 0), 4);
    }
}

#[test]
fn a_service_that_starts_from_a_dump_keeps_what_pods_have_told() {
    let first = service(|_| {});
    let pod = Pod::connected(&first, "a");
    pod.say(&first, 0, &[stored(None, &[1, 2])]);
    let dump = std::env::temp_dir().join(format!("flash-indexer-pods-{}", std::process::id()));
    std::fs::write(&dump, first.get_text("/dump")).expect("a file");
    let bound = address(&first);
    drop(first);
    let restarted = |endpoint: String, timeout: Option<Duration>| {
        let pods = PodOptions { timeout, ..PodOptions::new(vec![endpoint]) };
        let load = Some(dump.clone());
        Service::start_with(ServerOptions { pods: Some(pods), load, ..ServerOptions::default() })
    };
    let second = restarted(bound, None);
    pod.wait_for_service();
    let listener = pod.say(&second, 1, &[stored(Some(2), &[3])]);
    assert_eq!(listener["trust"], json!("degraded"), "it may have started again unseen");
    assert_eq!(second.score(&tokens(&[1, 2, 3]), "a", 0), 12);
    // If the pod does not connect, it is unregistered.
    let elsewhere = restarted("tcp://127.0.0.1:*".to_owned(), Some(Duration::from_millis(1)));
    wait_for("its end", PATIENCE, || (elsewhere.get("/workers").1 == json!([])).then_some(()));
    std::fs::remove_file(dump).expect("it is there");
}

#[test]
fn a_pod_that_was_unregistered_stays_away_as_long_as_its_connection_lasts() {
    let service = service(|_| {});
    let pod = Pod::connected(&service, "a");
    let other = Pod::connected(&service, "b");
    pod.say(&service, 0, &[stored(None, &[1])]);
    other.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.post("/unregister", &json!({ "instance_id": "a", "model_name": "m" })).0, 200);
    pod.publish(1, &[stored(Some(1), &[2])]);
    wait_for("the message", PATIENCE, || (rejected(&service, "unregistered") == 1.0).then_some(()));
    assert!(!pod.is_listed(&service));
    let pod = pod.restarted(&service);
    let listener = pod.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(listener["trust"], json!("exact"));
}

#[test]
fn topics_that_name_nobody_are_counted_and_nothing_else_is_lost() {
    let service = service(|pods| pods.topic_prefix = String::new());
    let pod = Pod::connected(&service, "a");
    let strange = Pod::with_topic(&service, "x", "kv-events");
    for sequence in 0..5 {
        strange.publish(sequence, &[stored(None, &[1])]);
        strange.publisher.publish_frames(&[b"kv@\xff@m".as_slice(), &[0; 8], b"x"]).expect("published");
        strange.publisher.publish_frames(&[b"kv@a@m".as_slice(), &[0; 8], b"no batch"]).expect("published");
        strange.publisher.publish_frames(&[b"kv@a@m".as_slice(), b"no number", b"x"]).expect("published");
        pod.say(&service, sequence, &[stored(None, &[sequence + 1])]);
    }
    for reason in ["topic_without_model", "bad_topic", "bad_frames"] {
        wait_for(reason, PATIENCE, || (rejected(&service, reason) == 5.0).then_some(()));
    }
    assert_eq!(pod.say(&service, 5, &[])["trust"], json!("exact"));
    assert_eq!(service.get("/workers").1.as_array().map(Vec::len), Some(1));
}

#[test]
fn only_pods_that_may_register_themselves() {
    let service = service(|pods| {
        pods.models = vec!["m".to_owned(), "org/*".to_owned()];
        pods.pods_max = 2;
        pods.tenant_id = "fleet".to_owned();
    });
    let first = Pod::connected(&service, "a");
    first.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.get("/workers").1[0]["tenant_id"], json!("fleet"));
    let foreign = Pod::with_topic(&service, "b", "kv@b@foreign");
    foreign.publish(0, &[stored(None, &[1])]);
    wait_for("a refusal", PATIENCE, || (rejected(&service, "model_not_allowed") >= 1.0).then_some(()));
    let second = Pod::with_topic(&service, "b", "kv@b@org/x");
    second.say(&service, 0, &[stored(None, &[1])]);
    let third = Pod::connected(&service, "c");
    third.publish(0, &[stored(None, &[1])]);
    wait_for("a refusal", PATIENCE, || (rejected(&service, "too_many_pods") >= 1.0).then_some(()));
    let bound = [("bound", "pods")];
    assert!(service.metrics().value("flash_indexer_bounds_reached_total", &bound) >= 1.0);

    // A pod may be registered manually with any model.
    assert_eq!(third.register(&service, &json!({ "tenant_id": "fleet" })).0, 201);
    assert_eq!(third.say(&service, 1, &[stored(None, &[5])])["trust"], json!("degraded"), "the first one was refused");
}

#[test]
fn a_pod_that_is_gone_leaves_and_one_that_was_registered_by_hand_stays() {
    let service = service(|pods| pods.timeout = Some(Duration::from_millis(1)));
    let (silent, gone, kept) =
        (Pod::connected(&service, "a"), Pod::connected(&service, "b"), Pod::connected(&service, "c"));
    assert_eq!(kept.register(&service, &json!({})).0, 201);
    for pod in [&silent, &gone, &kept] {
        pod.say(&service, 0, &[stored(None, &[1])]);
    }
    drop((gone.publisher, kept.publisher));
    wait_for("its end", PATIENCE, || service.listener(&json!("b"), 0).is_null().then_some(()));
    wait_for("the connection's end", PATIENCE, || {
        (service.listener(&json!("c"), 0)["status"] == json!("disconnected")).then_some(())
    });
    assert!(silent.is_listed(&service), "silence is no sign of an end");
    for name in ["flash_indexer_pods_unregistered_total", "flash_indexer_pods_left_total"] {
        assert_eq!(service.metrics().value(name, &[]), 1.0, "{name}");
    }
    let back = Pod::connected(&service, "b");
    assert_eq!(back.say(&service, 0, &[stored(None, &[1])])["trust"], json!("exact"));
}

#[test]
fn of_two_engines_under_one_name_the_later_one_counts() {
    let service = service(|_| {});
    let first = Pod::connected(&service, "a");
    first.say(&service, 0, &[stored(None, &[1])]);
    first.say(&service, 1, &[stored(None, &[2])]);
    let second = Pod::connected(&service, "a");
    second.say(&service, 0, &[stored(None, &[3])]);
    first.publish(2, &[stored(None, &[4])]);
    let listener = first.wait(&service, "the contradiction", |listener| {
        listener["rejected"]["duplicate_pod"] == json!(1) && listener["trust"] == json!("degraded")
    });
    assert_eq!(listener["last_seq"], json!(0));
    assert_eq!((service.score(&tokens(&[3]), "a", 0), service.score(&tokens(&[1]), "a", 0)), (4, 0));
    second.say(&service, 1, &[stored(None, &[5])]);
    assert_eq!(service.score(&tokens(&[4]), "a", 0), 0);
}

/// A store of one block with twice as many tokens.
fn large_block<'a>() -> EngineEvent<'a> {
    let tokens = store(None, &[1, 2]).token_ids;
    EngineEvent::Stored(BlockStored { token_ids: tokens, block_size: 2 * BLOCK_TOKENS, ..store(None, &[1]) })
}

#[test]
fn pods_may_come_back_with_blocks_of_another_size() {
    let service = service(|_| {});
    let pods = ["a", "b"].map(|name| Pod::connected(&service, name));
    pods.iter().for_each(|pod| drop(pod.say(&service, 0, &[stored(None, &[1])])));
    let [first, second] = pods;
    let first = first.restarted(&service);
    first.publish(0, &[large_block()]);
    wait_for("a refusal", PATIENCE, || (rejected(&service, "block_size_mismatch") >= 1.0).then_some(()));
    let second = second.restarted(&service);
    // The last pod creates the model again, and the first pod is considered again with its next message.
    let sequence = std::cell::Cell::new(1);
    second.publish(0, &[large_block()]);
    wait_for("both pods", PATIENCE, || {
        for pod in [&first, &second] {
            pod.publish(sequence.get(), &[large_block()]);
        }
        sequence.set(sequence.get() + 1);
        let (_, workers) = service.get("/workers");
        let sizes: Vec<_> = workers.as_array()?.iter().map(|worker| worker["block_size"].clone()).collect();
        (sizes == [json!(2 * BLOCK_TOKENS), json!(2 * BLOCK_TOKENS)]).then_some(())
    });
}

#[test]
fn a_pod_whose_first_store_is_a_partial_entry_gets_the_size_of_its_blocks() {
    let service = service(|_| {});
    let pod = Pod::connected(&service, "a");
    pod.say(&service, 0, &[stored(None, &[1])]);
    let block_size = || service.get("/workers").1[0]["block_size"].clone();
    assert_eq!(block_size(), json!(BLOCK_TOKENS));
    let sequence = std::cell::Cell::new(1);
    wait_for("the larger size", PATIENCE, || {
        pod.publish(sequence.get(), &[large_block()]);
        sequence.set(sequence.get() + 1);
        (block_size() == json!(2 * BLOCK_TOKENS)).then_some(())
    });
    wait_for("a block of that size", PATIENCE, || {
        pod.publish(sequence.get(), &[large_block()]);
        sequence.set(sequence.get() + 1);
        let answer = service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }));
        (answer["scores"]["a"]["0"] == json!(2 * BLOCK_TOKENS)).then_some(())
    });
}

#[test]
fn a_pod_is_known_before_it_has_stored_anything() {
    let service = service(|_| {});
    let pod = Pod::connected(&service, "a");
    // Neither message gives the block size.
    pod.publish(0, &[EngineEvent::Cleared]);
    pod.publish(1, &[]);
    let listener = pod.say(&service, 2, &[stored(None, &[1])]);
    assert_eq!((&listener["trust"], &listener["gaps"]), (&json!("exact"), &json!(0)), "the first messages have waited");
}

#[test]
fn a_service_that_waits_for_no_engines_says_so() {
    let service = Service::start();
    let request = json!({ "instance_id": 1, "endpoint": "bound", "model_name": "m", "block_size": BLOCK_TOKENS });
    let (status, answer) = service.post("/register", &request);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("--listen-events")), "{answer}");
}

/// Waits until a repair has ended with this outcome.
fn wait_for_repair(service: &Service, outcome: &str) {
    let repairs = || service.metrics().value("flash_indexer_peer_repairs_total", &[("outcome", outcome)]);
    wait_for("a repair", PATIENCE, || (repairs() > 0.0).then_some(()));
}

#[test]
fn what_was_missed_of_a_pod_is_taken_from_another_replica() {
    let (whole, late) = (service(|_| {}), checking());
    // Two publishers represent one whose messages a forwarder sends to both replicas.
    let (pod, copy) = (Pod::connected(&whole, "a"), Pod::connected(&late, "a"));
    pod.say(&whole, 0, &[stored(None, &[1, 2, 3])]);
    for (pod, service) in [(&pod, &whole), (&copy, &late)] {
        pod.say(service, 1, &[stored(Some(3), &[4])]);
    }
    copy.wait(&late, "a message without the one before it", |listener| listener["trust"] == json!("degraded"));
    assert_eq!(late.score(&tokens(&[1, 2, 3, 4]), "a", 0), 0);

    assert_eq!(late.post("/register_peer", &json!({ "url": whole.url("") })).0, 201);
    copy.wait(&late, "the repair", |listener| listener["trust"] == json!("exact"));
    wait_for_repair(&late, "complete");
    assert_eq!(late.score(&tokens(&[1, 2, 3, 4]), "a", 0), 16);
    // The stream continues at the peer's position, without a gap or a repetition.
    for (pod, service) in [(&pod, &whole), (&copy, &late)] {
        let listener = pod.say(service, 2, &[stored(Some(4), &[5]), stored(Some(4), &[6])]);
        assert_eq!((&listener["trust"], &listener["status"]), (&json!("exact"), &json!("connected")));
        pod.say(service, 3, &[removed(&[5])]);
        assert_eq!(service.score(&tokens(&[1, 2, 3, 4, 5]), "a", 0), 16);
        assert_eq!(service.score(&tokens(&[1, 2, 3, 4, 6]), "a", 0), 20);
    }
    // The replacement of the listener observes the end of the connection, and can be unregistered.
    let copy = copy.restarted(&late);
    copy.say(&late, 0, &[stored(None, &[7])]);
    assert_eq!(late.score(&tokens(&[7]), "a", 0), 4);
    assert_eq!(late.score(&tokens(&[1]), "a", 0), 0);
    assert_eq!(late.post("/unregister", &json!({ "instance_id": "a", "model_name": "m" })).0, 200);
    assert!(!copy.is_listed(&late));
}

#[test]
fn a_dispute_about_a_pod_is_settled_by_the_pod_or_left_open() {
    for replays in [true, false] {
        let service = checking();
        let pod = Pod::connected(&service, "a");
        let replay_endpoint = replays.then(|| pod.publisher.replay_endpoint().to_owned());
        assert_eq!(pod.register(&service, &json!({ "replay_endpoint": replay_endpoint })).0, 201);
        pod.say(&service, 0, &[stored(None, &[1, 2, 3])]);
        let (status, mut digest) = service.get("/digest?model_name=m&instance_id=a&at_sequence=0");
        assert_eq!((status, &digest["holds"]["blocks"]), (200, &json!(3)));
        digest["holds"] = json!({ "blocks": 3, "digest": "0000000000000001" });
        let liar = FakePeer::with_digest(service.get("/workers").1, FakeDump::Refuses, &digest);
        assert_eq!(service.post("/register_peer", &json!({ "url": liar.url })).0, 201);

        wait_for_repair(&service, if replays { "complete" } else { "failed" });
        drop(liar);
        let expected = if replays { "exact" } else { "degraded" };
        pod.wait(&service, "the end of it", |listener| listener["trust"] == json!(expected));
        pod.say(&service, 1, &[stored(Some(3), &[4])]);
        assert_eq!(service.score(&tokens(&[1, 2, 3, 4]), "a", 0), 16);
    }
}
