//! A service with a memory limit for its indexes.

use flash_indexer_server::{IndexerOptions, ServerOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::EngineEvent;
use serde_json::{Value, json};

use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

const MIB: usize = 1 << 20;
/// Blocks of a message.
const BLOCKS: u64 = 512;

fn service(memory_max: usize) -> Service {
    let indexer = IndexerOptions { memory_max: Some(memory_max), ..IndexerOptions::default() };
    Service::start_with(ServerOptions { indexer, ..ServerOptions::default() })
}

/// Publishes sequences of blocks that no other sequence has, each in one message.
fn fill(service: &Service, engine: &Engine, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        engine.say(service, sequence, &[sequence_stored(sequence)]);
    }
}

fn names(sequence: u64) -> Vec<u64> {
    (0..BLOCKS).map(|at| 1_000 * (sequence + 1) + at).collect()
}

fn sequence_stored(sequence: u64) -> EngineEvent<'static> {
    stored(None, &names(sequence))
}

fn query(service: &Service, model: &str, sequence: u64) -> Value {
    service.query(&json!({ "token_ids": tokens(&names(sequence)), "model_name": model }))
}

#[test]
fn it_forgets_within_its_bound_and_says_so() {
    let service = service(2 * MIB);
    let engine = Engine::registered(&service, json!("a"), 0, &json!({}));
    fill(&service, &engine, 0..1);
    let answer = query(&service, "m", 0);
    assert_eq!((&answer["instances"]["a"]["gpu"], &answer["instances"]["a"]["partial"]), (&json!(2_048), &Value::Null));
    fill(&service, &engine, 1..300);

    let answer = query(&service, "m", 299);
    let instance = &answer["instances"]["a"];
    assert_eq!(
        (&instance["gpu"], &instance["partial"], &instance["trust"]),
        (&json!(2_048), &json!(true), &json!("exact"))
    );
    let asked = json!({ "token_ids": tokens(&names(299)), "model_name": "m", "detail": true });
    let (_, scores) = service.post("/score_completions", &asked);
    assert_eq!(scores["pods"]["a"]["partial"], json!(true), "{scores}");
    // Ends of chains are evicted, so all remaining blocks are the beginning of some sequence.
    let left = answer["tree_sizes"]["a"]["0"].as_u64().expect("blocks");
    let matched = |at| query(&service, "m", at)["scores"]["a"]["0"].as_u64().expect("tokens") / u64::from(BLOCK_TOKENS);
    assert_eq!((0..300).map(matched).sum::<u64>(), left);
    assert!(left > 10_000 && left < 100_000, "{left} of {} blocks are left", 300 * BLOCKS);
    assert_eq!(service.listener(&json!("a"), 0)["partial"], json!(true));

    let metrics = service.metrics();
    let figure =
        |name: &str| metrics.value(&format!("flash_indexer_{name}"), &[("model_name", "m"), ("tenant_id", "default")]);
    assert!(figure("index_highest_bytes") <= figure("index_max_bytes"));
    assert!(figure("evicted_blocks_total") > 50_000.0);
    assert_eq!(figure("partial_ranks"), 1.0);

    let (status, digest) = service.get("/digest?model_name=m&instance_id=a");
    assert_eq!(status, 409, "{digest}");
    assert!(digest["error"].as_str().is_some_and(|error| error.contains("--memory-max")), "{digest}");
    let (_, dump) = service.get("/dump");
    let rank = &dump["m:default"]["ranks"][0];
    assert_eq!(rank["stream"]["trust"], json!("degraded"), "a dump lacks something: {rank}");

    // The engine clears its cache, and the index is complete again.
    engine.say(&service, 300, &[EngineEvent::Cleared]);
    engine.say(&service, 301, &[sequence_stored(301)]);
    let answer = query(&service, "m", 301);
    assert_eq!((&answer["instances"]["a"]["gpu"], &answer["instances"]["a"]["partial"]), (&json!(2_048), &Value::Null));
    let asked = json!({ "token_ids": tokens(&names(301)), "model_name": "m", "detail": true });
    let (_, scores) = service.post("/score_completions", &asked);
    let whole = json!({ "score": 512.0, "held_blocks": 512, "predicted_blocks": 0, "trust": "exact" });
    assert_eq!(scores, json!({ "pods": { "a": whole } }));
}

#[test]
fn a_digest_that_waits_for_a_message_is_refused_where_that_is_too_much() {
    let service = service(2 * MIB);
    let last = 300;
    // Limit of digests that wait at a time. If another one is refused, all of them wait.
    const DIGESTS_MAX: usize = 64;
    let engines: Vec<Engine> =
        (0..DIGESTS_MAX).map(|at| Engine::registered(&service, json!(at), 0, &json!({}))).collect();
    engines.iter().for_each(|engine| fill(&service, engine, 0..1));
    let digest =
        |instance: usize, more: &str| service.get(&format!("/digest?model_name=m&instance_id={instance}{more}"));
    let (status, answer) = std::thread::scope(|scope| {
        let wait_for_message = |instance: usize, sequence: u64| {
            // The digest that checks whether they all wait may have been first.
            let ask = move || digest(instance, &format!("&at_sequence={sequence}&wait_ms=10000"));
            scope.spawn(move || wait_for("its turn", PATIENCE, || Some(ask()).filter(|(status, _)| *status != 503)))
        };
        let waiting: Vec<_> =
            (0..DIGESTS_MAX).map(|instance| wait_for_message(instance, if instance == 0 { last } else { 1 })).collect();
        wait_for("all to wait", PATIENCE, || (digest(DIGESTS_MAX - 1, "").0 == 503).then_some(()));
        fill(&service, &engines[0], 1..last + 1);
        engines[1..].iter().for_each(|engine| fill(&service, engine, 1..2));
        let mut answers: Vec<_> = waiting.into_iter().map(|it| it.join().expect("it answers")).collect();
        answers.swap_remove(0)
    });
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("--memory-max")), "{answer}");
}

#[test]
fn models_share_one_bound() {
    let service = service(5 * MIB);
    let bound = |model: &str| {
        let metrics = service.metrics();
        let labels = [("model_name", model), ("tenant_id", "default")];
        let figure = |name: &str| metrics.value(&format!("flash_indexer_{name}"), &labels) as usize;
        (figure("index_max_bytes"), figure("index_bytes"))
    };
    let first = Engine::registered(&service, json!("a"), 0, &json!({}));
    fill(&service, &first, 0..300);
    let (alone, _) = bound("m");
    assert!(alone > 4 * MIB && alone < 5 * MIB, "{alone}");

    let second = Engine::registered(&service, json!("b"), 0, &json!({ "model_name": "n" }));
    fill(&service, &second, 0..300);
    let ((first_max, first_bytes), (second_max, second_bytes)) = (bound("m"), bound("n"));
    assert_eq!((first_max, second_max), (alone / 2, alone / 2));
    assert!(first_bytes <= first_max && second_bytes <= second_max, "{first_bytes} and {second_bytes} of {first_max}");
    fill(&service, &first, 300..320);
    assert_eq!(query(&service, "m", 319)["scores"]["a"]["0"], json!(2_048));
    assert_eq!(query(&service, "n", 299)["scores"]["b"]["0"], json!(2_048));

    let registration = |model: &str| {
        let endpoint = "tcp://127.0.0.1:9";
        json!({ "instance_id": "c", "endpoint": endpoint, "model_name": model, "block_size": 4 })
    };
    let statuses: Vec<u16> = ["o", "p", "q"].map(|model| service.post("/register", &registration(model)).0).to_vec();
    assert_eq!(statuses, [201, 201, 503], "less than 1 MiB for each is refused");
    for model in ["n", "o", "p"] {
        let instance = if model == "n" { "b" } else { "c" };
        assert_eq!(service.post("/unregister", &json!({ "instance_id": instance, "model_name": model })).0, 200);
    }
    // Unregistering does not wait for it.
    wait_for("the share of the other models", PATIENCE, || (bound("m").0 == alone).then_some(()));
}
