//! An index in shards gives the same answers as an undivided one.

use flash_indexer_server::{IndexerOptions, PeerUrl, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::{RedisNode, redis_server, wait_for};
use flash_indexer_wire::EngineEvent;
use serde_json::{Value, json};

use crate::support::{Engine, PATIENCE, Service, removed, replica_with, stored, to_host, tokens};

const INSTANCES: u64 = 8;

fn sharded(shards: usize) -> IndexerOptions {
    IndexerOptions { shards: Some(shards), writer_threads: 4, ..IndexerOptions::default() }
}

fn service(shards: usize) -> Service {
    Service::start_with(ServerOptions { indexer: sharded(shards), ..ServerOptions::default() })
}

#[test]
fn a_service_with_four_shards_answers_as_one_with_a_whole_index() {
    let (whole, sharded) = (service(1), service(4));
    let both = (&whole, &sharded);
    let engines: Vec<Engine> = (1..=INSTANCES)
        .map(|instance| {
            let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
            let engine = Engine { publisher, instance: json!(instance), rank: (instance % 2) as u32 };
            engine.register(&whole, &json!({}));
            engine.register(&sharded, &json!({}));
            engine
        })
        .collect();
    let check = || {
        for prompt in [vec![1], vec![1, 2, 3, 4, 5, 6], vec![1, 2, 9], vec![7, 8], vec![50, 51]] {
            let body = |more: Value| {
                let mut body = json!({ "token_ids": tokens(&prompt), "model_name": "m" });
                body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
                body
            };
            for more in [json!({}), json!({ "top_k": 3 }), json!({ "min_score": 8 })] {
                let [expected, found] = [&whole, &sharded].map(|service| service.query(&body(more.clone())));
                assert_eq!(found, expected, "{prompt:?} {more}");
            }
            for path in ["/score_completions", "/explain"] {
                let post = |service: &Service| {
                    let (status, mut answer) = service.post(path, &body(json!({})));
                    assert_eq!(status, 200, "{answer}");
                    without_times(&mut answer);
                    answer
                };
                assert_eq!(post(&sharded), post(&whole), "{path} {prompt:?}");
            }
        }
        let lines = |service: &Service| service.get_lines("/dump").len();
        assert_eq!(lines(&sharded), lines(&whole));
        assert_eq!(sharded.indexer().held_blocks(), whole.indexer().held_blocks());
        let held = |service: &Service| service.metrics().value("flash_indexer_held_blocks", &[]);
        assert_eq!(held(&sharded).to_bits(), held(&whole).to_bits());
    };
    for (at, engine) in engines.iter().enumerate() {
        let chain: Vec<u64> = (1..=1 + at as u64).collect();
        engine.say_to_both(both, 0, &[stored(None, &chain), stored(None, &[7, 8])]);
    }
    check();
    for engine in &engines[2..5] {
        engine.say_to_both(both, 1, &[to_host(2), removed(&[2]), stored(Some(1), &[9])]);
    }
    engines[5].say_to_both(both, 1, &[EngineEvent::Cleared]);
    check();
    for service in [&whole, &sharded] {
        let request = json!({ "instance_id": engines[6].instance, "model_name": "m" });
        let (status, answer) = service.post("/unregister", &request);
        assert_eq!((status, &answer["forgetting"]), (200, &Value::Null), "{answer}");
    }
    check();
    let writers = |service: &Service| service.metrics().family("flash_indexer_queued_lots").map(|it| it.samples.len());
    assert_eq!((writers(&whole), writers(&sharded)), (Some(4), Some(4)));
}

#[test]
fn a_cursor_is_found_in_every_shard() {
    let service = service(4);
    let engines = (1..=INSTANCES).map(|instance| Engine::registered(&service, json!(instance), 0, &json!({})));
    let engines: Vec<Engine> = engines.collect();
    for (engine, first) in engines.iter().zip((1_000..).step_by(100)) {
        let chain: Vec<u64> = (first..first + 40).collect();
        engine.say(&service, 0, &[stored(None, &chain)]);
        let whole = service.query(&json!({ "token_ids": tokens(&chain), "model_name": "m" }));
        assert_eq!(whole["scores"][engine.instance.to_string()]["0"], 160, "{whole}");
        let rest = json!({ "token_ids": tokens(&chain[32..]), "model_name": "m", "after": whole["cursor"] });
        assert_eq!(service.query(&rest), whole);
    }
}

#[test]
fn digests_and_dumps_of_shards_are_those_of_a_whole_index() {
    let (whole, sharded_four) = (service(1), service(4));
    let both = (&whole, &sharded_four);
    let engines: Vec<Engine> = (1..=INSTANCES)
        .map(|instance| {
            let engine = Engine::registered(&whole, json!(instance), 0, &json!({}));
            engine.register(&sharded_four, &json!({}));
            let chain: Vec<u64> = (1..=instance + 3).collect();
            engine.say_to_both(both, 0, &[stored(None, &chain), stored(Some(77), &[78]), to_host(2), removed(&[3])]);
            engine
        })
        .collect();
    let peer = || -> PeerUrl { sharded_four.url("").parse().expect("a URL") };
    let options = |shards| ServerOptions { peers: vec![peer()], indexer: sharded(shards), ..ServerOptions::default() };
    let restored = [1, 3].map(|shards| Service::recovered(options(shards)));
    for engine in &engines {
        let path = format!("/digest?model_name=m&instance_id={}&at_sequence=0", engine.instance);
        let (status, expected) = whole.get(&path);
        assert_eq!(status, 200, "{expected}");
        for service in restored.iter().chain([&sharded_four]) {
            let (status, digest) = service.get(&path);
            assert_eq!((status, &digest["holds"]), (200, &expected["holds"]), "{digest}");
        }
    }
    for prompt in [vec![1], vec![1, 2], vec![1, 2, 3, 4], vec![7]] {
        let query = json!({ "token_ids": tokens(&prompt), "model_name": "m" });
        for service in restored.iter().chain([&sharded_four]) {
            assert_eq!(service.query(&query), whole.query(&query), "{prompt:?}");
        }
    }
}

#[test]
fn replicas_with_shards_share_their_ranks() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let url = format!("redis://127.0.0.1:{}", node.port());
    let [a, b, idle] = [4, 2, 1].map(|shards| replica_with(&url, sharded(shards)));
    let chain = |length: u64| (1..=length).collect::<Vec<_>>();
    let engines: Vec<Engine> = (1..=INSTANCES)
        .map(|instance| {
            let replica = if instance % 2 == 0 { &a } else { &b };
            let engine = Engine::registered(replica, json!(instance), 0, &json!({}));
            engine.say(replica, 0, &[stored(None, &chain(32 + instance))]);
            engine
        })
        .collect();
    let scores =
        engines.iter().zip(33..).map(|(engine, blocks)| (engine.instance.to_string(), json!({ "0": blocks * 4 })));
    let scores = Value::Object(scores.collect());
    let whole = json!({ "token_ids": tokens(&chain(40)), "model_name": "m" });
    let wait_for_answer = |service: &Service, body: &Value, wanted: &Value| {
        wait_for(&format!("scores {wanted}"), PATIENCE, || {
            let (_, answer) = service.post("/query", body);
            (answer["scores"] == *wanted && answer["store"] == "ok").then_some(answer)
        })
    };
    for service in [&a, &b, &idle] {
        let answer = wait_for_answer(service, &whole, &scores);
        let rest = json!({ "token_ids": tokens(&chain(40)[32..]), "model_name": "m", "after": answer["cursor"] });
        if std::ptr::eq(service, &idle) {
            assert!(answer.get("cursor").is_none(), "no engine of this replica has the prefix: {answer}");
        } else {
            wait_for_answer(service, &rest, &scores);
        }
        let best = json!({ "token_ids": tokens(&chain(40)), "model_name": "m", "top_k": 2 });
        wait_for_answer(service, &best, &json!({ "8": { "0": 160 }, "7": { "0": 156 } }));
    }
}

/// Removes the fields that depend on the time of the request.
fn without_times(answer: &mut Value) {
    match answer {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "why" && !name.ends_with("_ms_ago"));
            fields.values_mut().for_each(without_times);
        }
        Value::Array(values) => values.iter_mut().for_each(without_times),
        _ => {}
    }
}
