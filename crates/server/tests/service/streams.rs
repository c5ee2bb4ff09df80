//! From the events of engines, through real sockets, to the answers of clients.

use std::time::Duration;

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, PrefixIndex, SequenceHash, Tier, WorkerId, WorkerRank};
use flash_indexer_designs::RadixTree;
use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, ExtraKey, TokenIds, encode_batch};
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, removed, store, stored, tokens};

#[test]
fn an_answer_names_every_registered_rank_and_what_it_holds() {
    let service = Service::start();
    let first = Engine::registered(&service, json!(1), 0, &json!({}));
    let second = Engine::registered(&service, json!("pod-b"), 3, &json!({ "engine": "vllm" }));
    first.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    second.say(&service, 0, &[stored(None, &[1])]);

    let mut prompt = tokens(&[1, 2, 9]);
    prompt.extend([7, 7]);
    let answer = service.query(&json!({ "token_ids": prompt, "model_name": "m" }));
    let expected = json!({
        "scores": { "1": { "0": 8 }, "pod-b": { "3": 4 } },
        "frequencies": [],
        "tree_sizes": { "1": { "0": 3 }, "pod-b": { "3": 1 } },
        "instances": {
            "1": { "longest_matched": 8, "gpu": 8, "dp": { "0": 8 }, "cpu": 8, "disk": 8, "trust": "exact" },
            "pod-b": { "longest_matched": 4, "gpu": 4, "dp": { "3": 4 }, "cpu": 4, "disk": 4, "trust": "exact" },
        },
    });
    assert_eq!(answer, expected);

    // The same query by hashes, in every form of a hash.
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    let locals = local_hashes(HashVariant::default(), &prompt, block_size, TokenWindow::Block);
    let forms = [json!(locals[0].0), json!(locals[1].0.cast_signed()), json!(format!("{:#x}", locals[2].0))];
    let (_, by_hash) = service.post("/query_by_hash", &json!({ "block_hashes": forms, "model": "m" }));
    assert_eq!(by_hash, expected);

    let empty = service.query(&json!({ "token_ids": [], "model_name": "m" }));
    assert_eq!(empty["scores"], json!({ "1": { "0": 0 }, "pod-b": { "3": 0 } }));
    let only = |field: &str, value: u32| {
        service.query(&json!({ "token_ids": prompt, "model_name": "m", field: value }))["scores"].clone()
    };
    assert_eq!(only("top_k", 1), json!({ "1": { "0": 8 } }));
    assert_eq!(only("min_score", 4), expected["scores"]);
    assert_eq!(only("min_score", 5), json!({ "1": { "0": 8 } }));
    let none = service.query(&json!({ "token_ids": [5, 5, 5, 5], "model_name": "m", "top_k": 5 }));
    assert_eq!(none["scores"], json!({}), "no match, no place among the best");

    let (_, workers) = service.get("/workers?model_name=m");
    assert_eq!(workers[0]["instance_id"], json!(1));
    assert_eq!(workers[1]["instance_id"], json!("pod-b"));
    assert_eq!(workers[1]["endpoints"], json!({ "3": second.publisher.endpoint() }));
    assert_eq!(workers[1]["status"], json!("connected"));
    assert_eq!(workers[1]["listeners"]["3"]["engine"], json!("vllm"));
    assert_eq!(service.get("/workers?model_name=other").1, json!([]));
}

#[test]
fn an_answer_tells_how_often_its_blocks_were_reached_lately() {
    let indexer = IndexerOptions { use_window: Some(Duration::from_secs(3_600)), ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let other = Engine::registered(&service, json!(1), 0, &json!({ "model_name": "other" }));
    engine.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(1), &[3])]);
    other.publisher.publish(0, &encode_batch(1.0, &[stored(None, &[1])], None, Encoding::Map)).expect("published");
    wait_for("the other model's block", PATIENCE, || {
        let (_, workers) = service.get("/workers?model_name=other");
        (workers[0]["listeners"]["0"]["last_seq"] == json!(0)).then_some(())
    });
    let frequencies = |hashes: &[u64], model: &str| {
        service.query(&json!({ "token_ids": tokens(hashes), "model_name": model, "min_score": 8 }))["frequencies"]
            .clone()
    };
    assert_eq!(frequencies(&[1, 2, 9], "m"), json!([0, 0]), "a query does not count itself");
    assert_eq!(frequencies(&[1, 3], "m"), json!([1, 0]));
    assert_eq!(frequencies(&[1, 2], "m"), json!([2, 1]));
    assert_eq!(frequencies(&[2], "m"), json!([]), "no rank of that model holds it");
    assert_eq!(frequencies(&[1], "other"), json!([0]), "models count apart");
}

#[test]
fn copies_are_counted_and_offloaded_blocks_stay_within_reach() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(1), &[2]), removed(&[2])]);
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8, "one of two copies is left");
    let last_copy = Engine::registered(&service, json!(2), 0, &json!({ "removal": "last_copy" }));
    last_copy.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(1), &[2]), removed(&[2])]);
    assert_eq!(
        service.score(&tokens(&[1, 2]), "2", 0),
        4,
        "an engine that publishes only the removal of the last copy"
    );
    let to_host = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(None, &[2]) };
    engine.say(&service, 1, &[EngineEvent::Stored(to_host), removed(&[2])]);
    let answer = service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }));
    let instance = &answer["instances"]["1"];
    assert_eq!((&instance["gpu"], &instance["cpu"], &instance["longest_matched"]), (&json!(4), &json!(8), &json!(8)));
}

#[test]
fn adapters_salts_tenants_and_models_are_kept_apart() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let other_tenant = Engine::registered(&service, json!(1), 0, &json!({ "tenant_id": "t2" }));
    let adapter = BlockStored { lora_name: Some("a"), ..store(None, &[1, 2]) };
    let keys = vec![Some(vec![ExtraKey::Text("s")]), None, None];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[11, 12, 13]) };
    engine.say(&service, 0, &[EngineEvent::Stored(adapter), EngineEvent::Stored(salted), stored(Some(13), &[14])]);
    // The same instance in the other tenant is a different engine: its own list shows it.
    other_tenant
        .publisher
        .publish(0, &encode_batch(1.0, &[stored(None, &[5])], None, Encoding::Map))
        .expect("published");
    wait_for("the other tenant's message", PATIENCE, || {
        let (_, workers) = service.get("/workers?tenant_id=t2");
        (workers[0]["listeners"]["0"]["last_seq"] == json!(0)).then_some(())
    });

    let score = |hashes: &[u64], more: Value| {
        let mut query = json!({ "token_ids": tokens(hashes), "model_name": "m" });
        for (key, value) in more.as_object().expect("fields") {
            query[key] = value.clone();
        }
        service.query(&query)["scores"]["1"]["0"].as_u64().expect("a score")
    };
    assert_eq!(score(&[1, 2], json!({})), 0);
    assert_eq!(score(&[1, 2], json!({ "lora_name": "a" })), 8);
    assert_eq!(score(&[1, 2], json!({ "lora_name": "a", "cache_salt": "s" })), 0);
    assert_eq!(score(&[11, 12, 13, 14], json!({})), 0);
    assert_eq!(score(&[11, 12, 13, 14], json!({ "cache_salt": "s" })), 16);
    assert_eq!(score(&[5], json!({})), 0);
    assert_eq!(score(&[5], json!({ "tenant_id": "t2" })), 4);
    assert_eq!(score(&[5], json!({ "routing_group": "t2" })), 4);
}

#[test]
fn pages_of_token_pairs_are_found_by_plain_tokens() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let pairs = (0..8).map(|at| [at, at + 1]).collect();
    let event = BlockStored { token_ids: TokenIds::Bigrams(pairs), ..store(None, &[1, 2]) };
    engine.say(&service, 0, &[EngineEvent::Stored(event)]);
    assert_eq!(service.score(&(0..9).collect::<Vec<_>>(), "1", 0), 8);
    assert_eq!(service.score(&(0..8).collect::<Vec<_>>(), "1", 0), 4, "the last page needs one token more");
}

#[test]
fn trust_follows_gaps_restarts_and_clears() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let trust = || service.listener(&json!(1), 0)["trust"].clone();
    assert_eq!(trust(), json!("cold"));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    assert_eq!(trust(), json!("exact"));
    engine.say(&service, 5, &[stored(Some(2), &[3])]);
    let listener = service.listener(&json!(1), 0);
    assert_eq!((&listener["trust"], &listener["gaps"]), (&json!("degraded"), &json!(1)));
    assert!(listener["last_error"].as_str().expect("a reason").contains("4 messages were lost"), "{listener}");
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12);
    engine.say(&service, 6, &[EngineEvent::Cleared]);
    assert_eq!(trust(), json!("exact"), "a cache that was cleared is known again");
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 0);
    engine.say(&service, 7, &[stored(None, &[1, 2])]);
    engine.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 4, "the engine started again with an empty cache");
    assert_eq!(trust(), json!("degraded"), "a late message of the connection would look the same");
    engine.say(&service, 1, &[]);
    assert_eq!(trust(), json!("exact"), "the engine did start again");
    engine.say(&service, 2, &[]);
    // Batches of two epochs differ, because they carry their time.
    engine.say(&service, 1, &[stored(None, &[9])]);
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 0);
    assert_eq!(trust(), json!("degraded"), "the first message of its new life was never seen");

    let late = Engine::registered(&service, json!(2), 0, &json!({}));
    late.say(&service, 9, &[stored(Some(1), &[2]), stored(None, &[1])]);
    let answer = service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }));
    assert_eq!(answer["instances"]["2"]["trust"], json!("degraded"));
    assert_eq!(answer["scores"]["2"]["0"], json!(8), "a block found its parent when it came");
}

#[test]
fn garbage_is_counted_by_reason_and_costs_nothing_else() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let beside = Engine::registered(&service, json!(2), 0, &json!({}));
    beside.say(&service, 0, &[stored(None, &[1, 2])]);
    engine.say(&service, 0, &[stored(None, &[1])]);
    let number = |value: u64| value.to_be_bytes().to_vec();
    let garbage: [Vec<Vec<u8>>; 5] = [
        vec![b"only one frame".to_vec()],
        vec![b"t".to_vec(), b"short".to_vec(), b"x".to_vec()],
        vec![b"t".to_vec(), number(77), b"\xc1\xc1".to_vec()],
        vec![b"t".to_vec(), number(3), b"\x01".to_vec()],
        vec![vec![0xff; 100_000], number(u64::MAX), vec![0xdd; 100_000]],
    ];
    for frames in &garbage {
        engine.publisher.publish_frames(frames).expect("published");
    }
    let wide = EngineEvent::Stored(BlockStored { block_size: 16, ..store(Some(1), &[2]) });
    let short = EngineEvent::Stored(BlockStored { token_ids: TokenIds::Plain(vec![1]), ..store(Some(1), &[2]) });
    let tape = EngineEvent::Stored(BlockStored { medium: Some("TAPE"), ..store(Some(1), &[2]) });
    engine.say(&service, 1, &[wide, short, tape, stored(Some(1), &[2])]);

    let listener = service.listener(&json!(1), 0);
    let expected = json!({
        "bad_frames": 1, "malformed_batch": 1, "not_a_batch": 3,
        "block_size_mismatch": 1, "token_count_mismatch": 1, "unknown_medium": 1,
    });
    assert_eq!(listener["rejected"], expected);
    assert_eq!(listener["gaps"], json!(0), "the engine's own numbers went on");
    assert_eq!(service.score(&tokens(&[1, 2]), "1", 0), 8);
    assert_eq!(service.score(&tokens(&[1, 2]), "2", 0), 8);
    assert_eq!(service.listener(&json!(2), 0)["rejected"], json!({}));
    let metrics = service.get_text("/metrics");
    for (reason, count) in expected.as_object().expect("reasons") {
        let line = format!("flash_indexer_rejected_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[test]
fn unregistering_forgets_a_rank_an_instance_or_all_tenants() {
    let service = Service::start();
    let ranks: Vec<Engine> = (0..2).map(|rank| Engine::registered(&service, json!(1), rank, &json!({}))).collect();
    let other = Engine::registered(&service, json!(2), 0, &json!({}));
    for engine in ranks.iter().chain([&other]) {
        engine.say(&service, 0, &[stored(None, &[1])]);
    }
    let scores = || service.query(&json!({ "token_ids": tokens(&[1]), "model_name": "m" }))["scores"].clone();
    let unregister = |fields: Value| service.post("/unregister", &fields).0;
    assert_eq!(scores(), json!({ "1": { "0": 4, "1": 4 }, "2": { "0": 4 } }));
    assert_eq!(unregister(json!({ "instance_id": 1, "model_name": "m", "dp_rank": 7 })), 404);
    assert_eq!(unregister(json!({ "instance_id": 1, "model_name": "m", "tenant_id": "other" })), 404);
    assert_eq!(unregister(json!({ "instance_id": 1, "model_name": "m", "dp_rank": 1 })), 200);
    assert_eq!(scores(), json!({ "1": { "0": 4 }, "2": { "0": 4 } }));
    assert_eq!(unregister(json!({ "instance_id": "1", "model_name": "m" })), 200, "1 and \"1\" are one instance");
    assert_eq!(scores(), json!({ "2": { "0": 4 } }));
    assert_eq!(unregister(json!({ "instance_id": 1, "model_name": "m" })), 404);
    assert_eq!(unregister(json!({ "instance_id": 2, "model_name": "m" })), 200);
    let (status, _) = service.post("/query", &json!({ "token_ids": [1], "model_name": "m" }));
    assert_eq!(status, 404, "a model goes with its last instance");
    // Registered again, even with another block size, it starts empty.
    let again = Engine::registered(&service, json!(2), 0, &json!({ "block_size": 8 }));
    assert_eq!(scores(), json!({ "2": { "0": 0 } }));
    drop(again);
}

#[test]
fn a_dump_makes_another_index_answer_the_same() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let other = Engine::registered(&service, json!("b"), 2, &json!({}));
    let host = EngineEvent::Stored(BlockStored { medium: Some("CPU"), ..store(Some(2), &[3]) });
    engine.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(1), &[2]), host, stored(Some(1), &[4, 5])]);
    other.say(&service, 0, &[stored(None, &[1, 2, 3]), removed(&[2]), stored(Some(77), &[78])]);

    let (_, dump) = service.get("/dump");
    assert_eq!(dump["m:default"]["block_size"], json!(BLOCK_TOKENS));
    let events = dump["m:default"]["events"].as_array().expect("events");
    let lines = service.get_lines("/dump?model_name=m&tenant_id=default");
    let lines: Vec<&Value> = lines.iter().filter(|line| line.get("event").is_some()).collect();
    assert_eq!(events.len(), lines.len());
    for (line, event) in lines.iter().zip(events) {
        assert_eq!((&line["event"], &line["worker_id"]), (&event["event"], &event["worker_id"]));
        assert_eq!((&line["model_name"], &line["block_size"]), (&json!("m"), &json!(BLOCK_TOKENS)));
    }
    let as_text = service.get("/dump?hashes=string").1;
    let hash = &as_text["m:default"]["events"][0]["event"]["data"]["stored"]["blocks"][0]["tokens_hash"];
    assert!(hash.as_str().is_some_and(|text| text.parse::<u64>().is_ok()), "{hash}");
    assert_eq!(service.get("/dump?model_name=none").1, json!({}));
    let twice = events.iter().filter(|event| event["event"]["data"]["stored"]["copies"] == json!(2)).count();
    assert_eq!(twice, 1, "a block that is held twice says so: {events:?}");

    let restored = restore(events);
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    for hashes in [&[1, 2, 3][..], &[1, 4, 5], &[1, 2], &[2], &[78], &[1, 2, 3, 4]] {
        let prompt = tokens(hashes);
        let answer = service.query(&json!({ "token_ids": prompt, "model_name": "m" }));
        let found = restored.find(&local_hashes(HashVariant::default(), &prompt, block_size, TokenWindow::Block));
        for (instance, worker, dp_rank) in [("1", 1, 0), ("b", 2, 2)] {
            let rank = WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(dp_rank) };
            let blocks = found.get(rank).map(|found| found.blocks).unwrap_or_default();
            let expected = u64::from(blocks[Tier::Device] * BLOCK_TOKENS);
            assert_eq!(answer["scores"][instance][dp_rank.to_string()], json!(expected), "{hashes:?}");
            let longest = u64::from(blocks[Tier::External] * BLOCK_TOKENS);
            assert_eq!(answer["instances"][instance]["longest_matched"], json!(longest), "{hashes:?}");
        }
    }
}

/// An index fed with a dump as any reader would.
fn restore(events: &[Value]) -> RadixTree {
    let mut index = RadixTree::default();
    for event in events {
        let number = |value: &Value| value.as_u64().expect("a number");
        let worker = if event["worker_id"] == json!("b") { 2 } else { number(&event["worker_id"]) };
        let rank = WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(number(&event["event"]["dp_rank"]) as u32) };
        let tier = Tier::ALL.into_iter().find(|tier| event["storage_tier"] == json!(tier.as_str()));
        let stored = &event["event"]["data"]["stored"];
        let blocks = stored["blocks"].as_array().expect("blocks").iter().map(|block| Block {
            sequence: SequenceHash(number(&block["block_hash"])),
            local: LocalHash(number(&block["tokens_hash"])),
        });
        index.apply(
            rank,
            &BlockEvent::Stored {
                tier: tier.expect("a tier"),
                parent: stored["parent_hash"].as_u64().map(SequenceHash),
                blocks: blocks.collect(),
                copies: stored["copies"].as_u64().map_or(1, |copies| copies as u32),
            },
        );
    }
    index
}

#[test]
fn an_engine_that_comes_back_is_listened_to_again_and_starts_from_nothing() {
    let service = Service::start();
    let mut engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    engine.say(&service, 1, &[stored(Some(2), &[3])]);
    let endpoint = engine.publisher.endpoint().to_owned();
    let elsewhere = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    drop(std::mem::replace(&mut engine.publisher, elsewhere));
    engine.wait(&service, "the loss of the connection", |listener| listener["status"] == json!("disconnected"));
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12, "no event removed the blocks");

    let options = PublisherOptions { endpoint, ..PublisherOptions::on_loopback() };
    engine.publisher = Publisher::bind(options).expect("the port is free again");
    assert!(engine.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the listener does not reconnect");
    engine.wait(&service, "the connection", |listener| listener["status"] == json!("connected"));
    engine.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 4);
    assert_eq!(service.listener(&json!(1), 0)["trust"], json!("exact"));

    // A new epoch whose first message is missed may continue at the number where the old one ended.
    let endpoint = engine.publisher.endpoint().to_owned();
    drop(std::mem::replace(
        &mut engine.publisher,
        Publisher::bind(PublisherOptions::on_loopback()).expect("free ports"),
    ));
    engine.wait(&service, "the loss of the connection", |listener| listener["status"] == json!("disconnected"));
    engine.publisher = Publisher::bind(PublisherOptions { endpoint, ..PublisherOptions::on_loopback() }).expect("free");
    assert!(engine.publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the listener does not reconnect");
    engine.say(&service, 1, &[stored(None, &[5])]);
    assert_eq!(service.listener(&json!(1), 0)["trust"], json!("degraded"));
}

#[test]
fn a_message_that_is_too_large_is_named_and_the_stream_goes_on() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    engine.publisher.publish(1, &vec![0; 17 << 20]).expect("published");
    // The disconnection and its effect are reported on different paths, and the effect can arrive later.
    engine.wait(&service, "a new connection", |listener| {
        let is_connected =
            listener["rejected"]["connection_given_up"] == json!(1) && listener["status"] == json!("connected");
        is_connected && listener["trust"] == json!("degraded")
    });
    // The subscription follows the connection, so the first messages can still be missed.
    let sequence = std::cell::Cell::new(2);
    engine.wait(&service, "a message on the new connection", |listener| {
        let payload = encode_batch(1.0, &[stored(None, &[2])], None, Encoding::Map);
        engine.publisher.publish(sequence.get(), &payload).expect("published");
        sequence.set(sequence.get() + 1);
        listener["last_seq"].as_u64() >= Some(2)
    });
    assert_eq!(service.score(&tokens(&[2]), "1", 0), 4);
}

#[test]
fn ranks_that_share_an_endpoint_share_its_stream_and_are_trusted_each_for_itself() {
    let service = Service::start();
    let first = Engine::registered(&service, json!(1), 0, &json!({}));
    let again = json!({
        "instance_id": 1, "dp_rank": 1, "endpoint": first.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(service.post("/register", &again).0, 201);
    let say = |sequence: u64, rank: u32, events: &[EngineEvent<'_>]| {
        let payload = encode_batch(1.0, events, Some(DpRank(rank)), Encoding::Map);
        first.publisher.publish(sequence, &payload).expect("published");
        first.wait(&service, "a message", |listener| listener["last_seq"] == json!(sequence));
    };
    say(0, 0, &[stored(None, &[1, 2])]);
    say(1, 1, &[stored(None, &[1, 2])]);
    say(2, 1, &[removed(&[2])]);
    let scores = || service.query(&json!({ "token_ids": tokens(&[1, 2]), "model_name": "m" }))["scores"]["1"].clone();
    assert_eq!(scores(), json!({ "0": 8, "1": 4 }), "one stream counts once");
    say(5, 0, &[]);
    say(6, 1, &[EngineEvent::Cleared]);
    let trust = |rank| service.listener(&json!(1), rank)["trust"].clone();
    assert_eq!((trust(0), trust(1)), (json!("degraded"), json!("exact")), "a clear repairs only its own rank");
    let unregister = json!({ "instance_id": 1, "model_name": "m", "dp_rank": 1 });
    assert_eq!(service.post("/unregister", &unregister).0, 200);
    assert_eq!(scores(), json!({ "0": 8 }), "the other rank is still there");
    say(7, 0, &[stored(Some(2), &[3])]);
    assert_eq!(service.score(&tokens(&[1, 2, 3]), "1", 0), 12);
}

#[test]
fn a_default_adapter_counts_while_all_registrations_agree() {
    let service = Service::start();
    let adapted = Engine::registered(&service, json!(1), 0, &json!({ "lora_name": "a" }));
    adapted.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 4);
    let plain = Engine::registered(&service, json!(2), 0, &json!({}));
    plain.say(&service, 0, &[stored(None, &[1])]);
    assert_eq!(service.score(&tokens(&[1]), "2", 0), 4, "no adapter is named by all");
    assert_eq!(service.post("/unregister", &json!({ "instance_id": 2, "model_name": "m" })).0, 200);
    assert_eq!(service.score(&tokens(&[1]), "1", 0), 4);
}
