//! An index in shards gives the answers of a whole one.

use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_wire::EngineEvent;
use serde_json::{Value, json};

use crate::support::{Engine, Service, removed, stored, to_host, tokens};

const INSTANCES: u64 = 8;

fn service(shards: usize) -> Service {
    let indexer = IndexerOptions { shards: Some(shards), writer_threads: 4, ..IndexerOptions::default() };
    Service::start_with(ServerOptions { indexer, ..ServerOptions::default() })
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

/// Removes what depends on the moment of the request.
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
