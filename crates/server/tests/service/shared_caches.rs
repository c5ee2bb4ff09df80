//! Caches of hosts and pools, and the instances that are attached to them.

use flash_indexer_server::{PodOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::{EventVector, event_vectors, wait_for};
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, to_host, tokens};

/// A service that shared caches and engines may connect to.
fn listening() -> Service {
    let pods = Some(PodOptions::new(vec!["tcp://127.0.0.1:*".to_owned()]));
    Service::start_with(ServerOptions { pods, ..ServerOptions::default() })
}

/// A publisher that connects to the service and names itself in its topic.
fn connected(service: &Service, topic: &str) -> Publisher {
    let endpoint = service.indexer().pod_addresses().remove(0);
    let options = PublisherOptions { endpoint, topic: topic.as_bytes().to_vec(), ..PublisherOptions::on_loopback() };
    let publisher = Publisher::connect(options).expect("an address");
    assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    publisher
}

/// A shared cache that the service listens to.
fn cache(service: &Service, id: &str, kind: &str) -> Engine {
    Engine::registered(service, json!(id), 0, &json!({ "kind": kind }))
}

fn engine(service: &Service, instance: &str, caches: &[&str]) -> Engine {
    Engine::registered(service, json!(instance), 0, &json!({ "shared_caches": caches }))
}

/// Blocks that a shared cache stores, with their tokens, in a medium.
fn in_medium<'a>(parent: Option<u64>, hashes: &[u64], medium: Option<&'a str>) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { medium, ..store(parent, hashes) })
}

fn publish(publisher: &Publisher, sequence: u64, events: &[EngineEvent<'_>]) {
    publisher.publish(sequence, &encode_batch(1.0, events, None, Encoding::Array)).expect("published");
}

fn wait_for_message(service: &Service, instance: &str, sequence: u64) -> Value {
    let listener = || service.listener(&json!(instance), 0);
    wait_for("a message", PATIENCE, || (listener()["last_seq"] == json!(sequence)).then_some(()));
    // Read again: the list counts blocks before it reads the sequence number.
    listener()
}

/// An instance's part of the answer to a query of these blocks.
fn instance(service: &Service, instance: &str, prompt: &[u64]) -> Value {
    let answer = service.query(&json!({ "token_ids": tokens(prompt), "model_name": "m" }));
    answer["instances"][instance].clone()
}

/// Matches in blocks: in device memory, with host memory, with disks, in all tiers.
fn depths(answer: &Value) -> [u64; 4] {
    let blocks = |field: &str| answer[field].as_u64().unwrap_or_else(|| panic!("{answer}")) / u64::from(BLOCK_TOKENS);
    ["gpu", "cpu", "disk", "longest_matched"].map(blocks)
}

fn vector(name: &str) -> EventVector {
    let found = event_vectors().into_iter().find(|vector| vector.name == name);
    found.unwrap_or_else(|| panic!("no vector {name:?}"))
}

#[test]
fn a_node_continues_the_match_of_an_engine_that_loads_blocks_behind_its_own() {
    let service = Service::start();
    let fields = json!({ "shared_caches": ["node:h", "pool:p"], "engine": "sglang" });
    let behind = Engine::registered(&service, json!("behind"), 0, &fields);
    let from_start = engine(&service, "start", &["node:h", "pool:p"]);
    let (node, pool) = (cache(&service, "node:h", "node"), cache(&service, "pool:p", "pool"));
    let prompt: Vec<u64> = (1..=30).collect();
    // Only the instances hold the parent of the node's first block.
    node.say(&service, 0, &[stored(Some(10), &prompt[10..20])]);
    for instance in [&behind, &from_start] {
        instance.say(&service, 0, &[stored(None, &prompt[..10])]);
    }
    // The pool has removed the blocks that the others hold.
    pool.say(&service, 0, &[stored(None, &prompt), removed(&prompt[..20])]);
    let credited = instance(&service, "behind", &prompt);
    assert_eq!(depths(&credited), [10, 20, 20, 30]);
    let tokens_of = |blocks: u32| blocks * BLOCK_TOKENS;
    assert_eq!(credited["shared_caches"], json!({ "node:h": tokens_of(20), "pool:p": tokens_of(30) }));
    assert_eq!(credited["trust"], "degraded", "the node's first block waits for its parent");
    let plain = instance(&service, "start", &prompt);
    assert_eq!(depths(&plain), [10; 4], "its engine looks the prompt up from its start");
    let body = json!({ "model": "m", "detail": true, "token_ids": tokens(&prompt) });
    let (_, scores) = service.post("/score_completions", &body);
    let detail = &scores["pods"]["behind"];
    assert_eq!(
        (&detail["held_blocks"], &detail["score"]),
        (&json!(30), &json!(10.0 + 10.0 * 0.8 + 10.0 * 0.4)),
        "{scores}"
    );
    let (_, pick) = service.post("/pick", &json!({ "model": "m", "token_ids": tokens(&prompt) }));
    assert_eq!(pick["pod"], "behind", "{pick}");

    service.post("/unregister", &json!({ "instance_id": "node:h", "model_name": "m" }));
    assert_eq!(depths(&instance(&service, "behind", &prompt)), [10; 4], "nothing continues to the pool's blocks");
}

#[test]
fn an_attached_instance_is_credited_with_what_its_node_and_its_pool_hold() {
    let service = listening();
    let attached = engine(&service, "a", &["pool:p", "node:h"]);
    let other = engine(&service, "b", &[]);
    attached.say(&service, 0, &[stored(None, &[1, 2])]);
    other.say(&service, 0, &[stored(None, &[1])]);
    let node = connected(&service, "kv@node:h@m");
    // LMCache names no medium of an engine.
    publish(
        &node,
        0,
        &[in_medium(None, &[1, 2, 3], Some("lmcache-l1")), in_medium(Some(3), &[4], Some("lmcache-l2-fs"))],
    );
    let listener = wait_for_message(&service, "node:h", 0);
    assert_eq!(listener["trust"], "exact");
    let pool = connected(&service, "kv@pool:p@m");
    publish(&pool, 0, &[in_medium(None, &[1, 2, 3, 4, 5, 6], None)]);
    wait_for_message(&service, "pool:p", 0);

    let prompt = [1, 2, 3, 4, 5, 6, 7];
    let credited = instance(&service, "a", &prompt);
    assert_eq!(depths(&credited), [2, 3, 4, 6]);
    assert_eq!(credited["shared_caches"], json!({ "node:h": 16, "pool:p": 24 }));
    assert_eq!(credited["trust"], "exact");
    assert_eq!(credited["dp"], json!({ "0": 8 }));
    let plain = instance(&service, "b", &prompt);
    assert_eq!(depths(&plain), [1, 1, 1, 1]);
    assert_eq!(plain.get("shared_caches"), None);
    // Held by the instance itself: the answer does not list the caches.
    assert_eq!(instance(&service, "a", &[1, 2]).get("shared_caches"), None);

    let answer = service.query(&json!({ "token_ids": tokens(&prompt), "model_name": "m" }));
    for field in ["scores", "tree_sizes", "instances"] {
        let names: Vec<_> = answer[field].as_object().expect("an object").keys().collect();
        assert_eq!(names, ["a", "b"], "{field}: a shared cache is no target");
    }
    assert_eq!(answer["tree_sizes"]["a"], json!({ "0": 2 }));
    let top = service.query(&json!({ "token_ids": tokens(&[1, 2, 3]), "model_name": "m", "top_k": 1 }));
    assert_eq!(depths(&top["instances"]["a"]), [2, 3, 3, 3]);
    assert_eq!(top["instances"].as_object().map(|all| all.len()), Some(1));
    assert_eq!(top["instances"]["a"]["shared_caches"], json!({ "node:h": 12, "pool:p": 12 }));

    let (_, scores) =
        service.post("/score_completions", &json!({ "model": "m", "detail": true, "token_ids": tokens(&prompt) }));
    let detail = &scores["pods"]["a"];
    // Two blocks in device memory, one in the host's, one on its disk, two in the pool.
    assert_eq!(detail["score"], json!(2.0 + 0.8 + 0.5 + 2.0 * 0.4));
    assert_eq!((&detail["held_blocks"], &detail["shared_caches"]), (&json!(6), &json!({ "node:h": 4, "pool:p": 6 })));
    assert_eq!(scores["pods"].as_object().map(|pods| pods.len()), Some(2));
    assert_eq!(scores["pods"]["b"].get("shared_caches"), None);

    let (_, workers) = service.get("/workers");
    let worker = |id: &str| {
        let workers = workers.as_array().expect("a list");
        workers.iter().find(|worker| worker["instance_id"] == id).expect("a worker").clone()
    };
    assert_eq!((&worker("node:h")["kind"], &worker("node:h")["attached"]), (&json!("node"), &json!(["a"])));
    assert_eq!(worker("pool:p")["kind"], "pool");
    assert_eq!(worker("a").get("kind"), None);
    assert_eq!(worker("a")["listeners"]["0"]["shared_caches"], json!(["node:h", "pool:p"]));
    assert_eq!(worker("b")["listeners"]["0"].get("shared_caches"), None);
    let metrics = service.metrics();
    let labels = [("model_name", "m"), ("tenant_id", "default")];
    assert_eq!(metrics.value("flash_indexer_instances", &labels), 2.0);
    assert_eq!(metrics.value("flash_indexer_shared_caches", &labels), 2.0);
}

#[test]
fn a_match_is_never_longer_than_what_one_holder_has_from_the_start() {
    let service = Service::start();
    let attached = engine(&service, "a", &["node:h"]);
    let node = cache(&service, "node:h", "node");
    attached.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    node.say(&service, 0, &[in_medium(None, &[1, 2, 3, 4], Some("CPU"))]);
    assert_eq!(depths(&instance(&service, "a", &[1, 2, 3, 4])), [3, 4, 4, 4]);
    // The node evicts its first block: the blocks after it are not reachable from the start of its own prefix.
    let evicted = EngineEvent::Removed(BlockRemoved {
        block_hashes: vec![flash_indexer_core::SequenceHash(1)],
        medium: Some("CPU"),
        ..BlockRemoved::default()
    });
    node.say(&service, 1, &[evicted]);
    let credited = instance(&service, "a", &[1, 2, 3, 4]);
    assert_eq!(depths(&credited), [3, 3, 3, 3]);
    assert_eq!(credited.get("shared_caches"), None);
}

#[test]
fn the_trust_of_an_answer_is_the_worse_one_only_where_the_shared_cache_contributes() {
    let service = Service::start();
    let attached = engine(&service, "a", &["node:h"]);
    let node = cache(&service, "node:h", "node");
    attached.say(&service, 0, &[stored(None, &[1, 2])]);
    node.say(&service, 0, &[in_medium(None, &[1, 2, 3], None)]);
    assert_eq!(instance(&service, "a", &[1, 2, 3])["trust"], "exact");
    // A message is lost.
    node.say(&service, 2, &[in_medium(Some(3), &[4], None)]);
    node.wait(&service, "the lost message", |listener| listener["trust"] == "degraded");
    let trust = |prompt: &[u64]| instance(&service, "a", prompt)["trust"].clone();
    assert_eq!((trust(&[1, 2, 3]), trust(&[1, 2])), (json!("degraded"), json!("exact")));
    let score = |prompt: &[u64]| {
        let request = json!({ "model": "m", "detail": true, "token_ids": tokens(prompt) });
        service.post("/score_completions", &request).1["pods"]["a"]["trust"].clone()
    };
    assert_eq!((score(&[1, 2, 3]), score(&[1, 2])), (json!("degraded"), json!("exact")));
}

#[test]
fn a_pool_that_vanishes_costs_its_own_contribution_only() {
    let service = Service::start();
    let attached = engine(&service, "a", &["node:h", "pool:p"]);
    let (node, pool) = (cache(&service, "node:h", "node"), cache(&service, "pool:p", "pool"));
    attached.say(&service, 0, &[stored(None, &[1])]);
    node.say(&service, 0, &[in_medium(None, &[1, 2], None)]);
    pool.say(&service, 0, &[in_medium(None, &[1, 2, 3], None)]);
    let prompt = [1, 2, 3];
    assert_eq!(depths(&instance(&service, "a", &prompt)), [1, 2, 2, 3]);
    drop(pool.publisher);
    let left = |depths: [u64; 4], what: &str| {
        wait_for(what, PATIENCE, || {
            let credited = instance(&service, "a", &prompt);
            (self::depths(&credited) == depths && credited["trust"] == "exact").then_some(())
        });
    };
    left([1, 2, 2, 2], "the lost connection");
    let gone = json!({ "instance_id": "node:h", "model_name": "m" });
    assert_eq!(service.post("/unregister", &gone).0, 200);
    left([1, 1, 1, 1], "the unregistered node");
    assert_eq!(attached.wait(&service, "it", |_| true)["trust"], "exact");
}

#[test]
fn events_of_a_mooncake_pool_are_joined_with_the_blocks_of_engines() {
    let names = [
        "blocks of a Mooncake pool",
        "blocks of a Mooncake pool, without the fields of engine events",
        "blocks of a Mooncake pool, by the keys of objects",
        "blocks of a Mooncake pool with tokens",
    ];
    for name in names {
        let service = Service::start();
        let (attached, pool) = (engine(&service, "a", &["pool:p"]), cache(&service, "pool:p", "pool"));
        let other = engine(&service, "b", &[]);
        // The index has the blocks from another instance, which has evicted nothing of the chain.
        other.say(&service, 0, &[stored(None, &[1, 2, 3])]);
        attached.say(&service, 0, &[stored(None, &[1]), removed(&[1])]);
        let vector = vector(name);
        let expected = [[0, 2, 3, 3], [0, 1, 1, 1], [0, 1, 3, 3], [0, 0, 0, 0]];
        assert_eq!(vector.messages.len(), expected.len());
        // A master begins at 1, and also numbers dropped messages.
        for ((sequence, message), expected) in (1..).zip(&vector.messages).zip(expected) {
            pool.publisher
                .publish_frames(&[&b""[..], &u64::to_be_bytes(sequence), &message.payload])
                .expect("published");
            let listener = wait_for_message(&service, "pool:p", sequence);
            assert_eq!(listener["rejected"], json!({}), "{name}");
            assert_eq!(depths(&instance(&service, "a", &[1, 2, 3])), expected, "{name}, message {sequence}");
        }
        assert_eq!(depths(&instance(&service, "b", &[1, 2, 3])), [3, 3, 3, 3]);
    }
}

#[test]
fn a_mooncake_block_that_no_engine_has_stored_is_counted_and_degrades_the_pool() {
    let service = Service::start();
    let (attached, pool) = (engine(&service, "a", &["pool:p"]), cache(&service, "pool:p", "pool"));
    attached.say(&service, 0, &[stored(None, &[1]), removed(&[1]), stored(None, &[1])]);
    pool.say(&service, 0, &[EngineEvent::Cleared]);
    assert_eq!(service.listener(&json!("pool:p"), 0)["trust"], "exact");
    let message = &vector("a block of a Mooncake pool that no engine has stored").messages[0];
    pool.publisher.publish(1, &message.payload).expect("published");
    let listener = wait_for_message(&service, "pool:p", 1);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("degraded"), &json!({ "no_token_ids": 1 })));
    assert_eq!(listener["blocks"]["host_pinned"], 1, "the other block is stored");
    assert_eq!(instance(&service, "a", &[1])["trust"], "exact", "the pool adds nothing to it");
}

#[test]
fn one_publisher_may_have_several_caches_with_larger_blocks() {
    let service = Service::start();
    let attached = engine(&service, "a", &["node:h"]);
    attached.say(&service, 0, &[stored(None, &[1])]);
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let node = Engine { publisher, instance: json!("node:h"), rank: 0 };
    node.register(&service, &json!({ "kind": "node" }));
    let frames = |topic: &str, sequence: u64, events: &[EngineEvent<'_>]| {
        let payload = encode_batch(1.0, events, None, Encoding::Array);
        node.publisher.publish_frames(&[topic.as_bytes(), &sequence.to_be_bytes(), &payload]).expect("published");
    };
    // A chunk spans two blocks of the engines.
    let chunk = |parent: Option<u64>, hash: u64, blocks: [u64; 2]| {
        EngineEvent::Stored(BlockStored {
            token_ids: TokenIds::Plain(tokens(&blocks)),
            block_size: 2 * BLOCK_TOKENS,
            medium: Some("lmcache-l1"),
            ..store(parent, &[hash])
        })
    };
    frames("kv@node:h@m", 0, &[chunk(None, 51, [1, 2]), chunk(Some(51), 52, [3, 4])]);
    frames("kv@node:other@m", 1, &[chunk(Some(52), 53, [5, 6])]);
    frames("kv@pool:fs@m", 2, &[chunk(Some(52), 53, [5, 6])]);
    frames("kv@node:h@other", 3, &[chunk(Some(52), 53, [5, 6])]);
    let listener = wait_for_message(&service, "node:h", 3);
    assert_eq!(listener["trust"], json!("exact"));
    // The writer may apply the events of one message in two turns.
    node.wait(&service, "all chunks", |listener| listener["blocks"]["host_pinned"] == json!(4));
    let prompt = [1, 2, 3, 4, 5, 6];
    assert_eq!(depths(&instance(&service, "a", &prompt)), [1, 4, 4, 4]);
    assert_eq!(depths(&instance(&service, "a", &[1, 2, 3])), [1, 3, 3, 3]);
    let evicted = EngineEvent::Removed(BlockRemoved {
        block_hashes: vec![flash_indexer_core::SequenceHash(52)],
        medium: Some("lmcache-l1"),
        ..BlockRemoved::default()
    });
    frames("kv@node:h@m", 4, &[evicted]);
    wait_for_message(&service, "node:h", 4);
    assert_eq!(depths(&instance(&service, "a", &prompt)), [1, 2, 2, 2]);
    let odd = EngineEvent::Stored(BlockStored { block_size: 2 * BLOCK_TOKENS + 1, ..store(Some(51), &[54]) });
    frames("kv@node:h@m", 5, &[odd]);
    let listener = wait_for_message(&service, "node:h", 5);
    assert_eq!((&listener["trust"], &listener["rejected"]), (&json!("degraded"), &json!({ "block_size_mismatch": 1 })));
    assert_eq!(instance(&service, "a", &[1])["trust"], "exact");
}

#[test]
fn a_shared_cache_that_connects_before_any_engine_of_its_model_makes_no_model() {
    let service = listening();
    let node = connected(&service, "kv@node:h@m");
    publish(&node, 0, &[in_medium(None, &[1], None)]);
    let rejected =
        || service.metrics().value("flash_indexer_rejected_total", &[("reason", "shared_cache_without_model")]);
    wait_for("the refusal", PATIENCE, || (rejected() > 0.0).then_some(()));
    assert_eq!(service.get("/workers").1, json!([]));
}

#[test]
fn wrong_registrations_are_rejected() {
    let service = Service::start();
    let register = |more: &Value| {
        let mut body = json!({
            "instance_id": "a", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": BLOCK_TOKENS,
        });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, answer) = service.post("/register", &body);
        (status, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    let rejected = |more: &Value, status: u16, error: &str| {
        let (got, text) = register(more);
        assert!(got == status && text.contains(error), "{more}: {got} {text}");
    };
    rejected(&json!({ "instance_id": "node:h" }), 400, "add \"kind\": \"node\"");
    rejected(&json!({ "instance_id": "pool:p", "kind": "node" }), 400, "add \"kind\": \"pool\"");
    rejected(&json!({ "kind": "pool" }), 400, "name a shared cache node:NAME or pool:NAME");
    rejected(&json!({ "kind": "host" }), 422, "unknown variant `host`");
    rejected(&json!({ "shared_caches": ["b"] }), 400, "invalid id b in shared_caches");
    rejected(&json!({ "shared_caches": "node:h" }), 422, "shared_caches: expected a list, got the string \"node:h\"");
    let many: Vec<String> = (0..9).map(|number| format!("node:{number}")).collect();
    rejected(&json!({ "shared_caches": many }), 400, "shared_caches has 9 ids; at most 8 are allowed");
    assert_eq!(service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "shared_caches")]), 1.0);
    let node = json!({ "instance_id": "node:h", "kind": "node", "shared_caches": ["pool:p"] });
    rejected(&node, 400, "a shared cache is attached to no other one");
    let mut body =
        json!({ "instance_id": "node:h", "kind": "node", "model_name": "m", "block_size": 4, "events": "none" });
    assert_eq!(service.post("/register", &body).0, 400);
    body["endpoint"] = json!("tcp://127.0.0.1:9");
    assert_eq!(service.get("/workers").1, json!([]));

    let attached = engine(&service, "a", &["node:h"]);
    let node = cache(&service, "node:h", "node");
    attached.say(&service, 0, &[stored(None, &[1]), to_host(1)]);
    node.say(&service, 0, &[in_medium(None, &[1, 2], None)]);
    rejected(&json!({ "endpoint": attached.publisher.endpoint() }), 409, "shared_caches");
    // A shared cache is not picked, scored or predicted for.
    let prompt = json!({ "model_name": "m", "token_ids": tokens(&[1, 2]) });
    let mut predict = prompt.clone();
    predict["pod"] = json!("node:h");
    assert_eq!(service.post("/predict", &predict).0, 404);
    predict["request_id"] = json!("r");
    assert_eq!(service.post("/predict", &predict).0, 404);
    let mut pick = prompt.clone();
    pick["detail"] = json!(true);
    let (status, picked) = service.post("/pick", &pick);
    assert_eq!(status, 200, "{picked}");
    let candidates: Vec<_> = picked["candidates"].as_array().expect("a list").iter().map(|it| &it["pod"]).collect();
    assert_eq!(candidates, [&json!("a")]);
    let only = json!({ "model": "m", "token_ids": tokens(&[1, 2]), "pods": ["node:h"] });
    assert_eq!(service.post("/score_completions", &only), (200, json!({})));
}

#[test]
fn an_explanation_names_the_shared_cache_that_a_depth_comes_from() {
    let service = Service::start();
    let (attached, node) = (engine(&service, "a", &["node:h"]), cache(&service, "node:h", "node"));
    attached.say(&service, 0, &[stored(None, &[1])]);
    node.say(&service, 0, &[in_medium(None, &[1, 2, 3], None)]);
    let question = json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]), "instance_id": "a" });
    let (status, explained) = service.post("/explain", &question);
    assert_eq!(status, 200, "{explained}");
    let rank = &explained["ranks"][0];
    assert_eq!((&rank["gpu"], &rank["longest_matched"]), (&json!(4), &json!(4)), "the rank's own");
    assert_eq!(rank["shared_caches"], json!({ "node:h": 12 }));
    let (_, all) = service.post("/explain", &json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]) }));
    let node = all["ranks"].as_array().expect("a list").iter().find(|rank| rank["instance_id"] == "node:h");
    let node = node.unwrap_or_else(|| panic!("{all}"));
    assert_eq!((&node["gpu"], &node["cpu"], node.get("shared_caches")), (&json!(0), &json!(12), None));
}

#[test]
fn a_replica_recovers_shared_caches_and_their_attachments_from_a_peer() {
    let service = Service::start();
    let publisher = || Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let attached = Engine { publisher: publisher(), instance: json!("a"), rank: 0 };
    attached.register(&service, &json!({ "shared_caches": ["pool:p"] }));
    let pool = Engine { publisher: publisher(), instance: json!("pool:p"), rank: 0 };
    pool.register(&service, &json!({ "kind": "pool" }));
    attached.say(&service, 0, &[stored(None, &[1])]);
    pool.say(&service, 0, &[in_medium(None, &[1, 2], None), in_medium(Some(2), &[3], Some("cpu"))]);
    let replica = Service::from_peer(&service.server().url());
    let prompt = [1, 2, 3];
    let credited = instance(&service, "a", &prompt);
    assert_eq!(depths(&credited), [1, 1, 1, 3]);
    assert_eq!(credited["shared_caches"], json!({ "pool:p": 12 }));
    wait_for("the connections", PATIENCE, || (instance(&replica, "a", &prompt) == credited).then_some(()));
    let (_, workers) = replica.get("/workers");
    let pool = workers.as_array().expect("a list").iter().find(|worker| worker["instance_id"] == "pool:p");
    assert_eq!(pool.map(|pool| (&pool["kind"], &pool["attached"])), Some((&json!("pool"), &json!(["a"]))), "{workers}");
}
