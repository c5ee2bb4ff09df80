//! Ranks that move to another endpoint of their instance.

use flash_indexer_core::DpRank;

use super::*;

const MOVED: DpRank = DpRank(3);

/// A message of a rank that stores a block; block *h* has the token *h*.
fn stored_of(dp_rank: DpRank, hash: u64) -> Vec<u8> {
    encode_batch(1.0, &[EngineEvent::Stored(stored(None, hash))], Some(dp_rank), Encoding::Map)
}

impl Service {
    /// The listener of the moved rank, once it meets a condition.
    fn wait_moved(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, PATIENCE, || {
            let workers: Value = serde_json::from_str(&self.get("/workers").1).expect("JSON");
            Some(workers[0]["listeners"][MOVED.to_string()].clone()).filter(&condition)
        })
    }
}

#[test]
fn a_rank_whose_former_endpoint_still_has_blocks_of_it_is_not_exact_before_a_later_clear() {
    let service = Service::start(IndexerOptions { writer_threads: 1, shards: Some(1), ..IndexerOptions::default() });
    let (former, next) = (engine(), engine());
    service.register(1, "m", &former, false);
    let second = json!({
        "instance_id": 1, "dp_rank": 1, "endpoint": next.endpoint(), "model_name": "m", "block_size": 1,
    });
    assert_eq!(service.post("/register", &second).0, 201);
    assert!(next.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    former.publish(0, &stored_of(MOVED, 7)).expect("published");
    next.publish(0, &stored_of(DpRank(1), 8)).expect("published");
    service.wait_moved("the rank at its first endpoint", |it| it["trust"] == "exact" && it["last_seq"] == 0);

    // The removal of the rank's blocks waits for the writer.
    let blocked = faults::WRITERS.lock();
    former.publish(1, &payload(None, faults::BLOCKING_BLOCK)).expect("published");
    wait_for("a stalled writer", PATIENCE, || (service.get("/ready").0 == 503).then_some(()));
    let unregistration = json!({ "instance_id": 1, "dp_rank": MOVED.0, "model_name": "m" });
    let (status, answer) = service.post("/unregister", &unregistration);
    assert_eq!((status, &answer["forgetting"]), (200, &json!(true)), "{answer}");
    next.publish(1, &stored_of(MOVED, 9)).expect("published");
    let listener = service.wait_moved("the rank at its next endpoint", |it| !it.is_null());
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");

    drop(blocked);
    let applied = |it: &Value| it["last_seq"] == 1 && !it["last_error"].to_string().contains("not removed yet");
    let listener = service.wait_moved("the removal", applied);
    assert_eq!(listener["trust"], json!("degraded"), "{listener}");
    let cleared = encode_batch(1.0, &[EngineEvent::Cleared], Some(MOVED), Encoding::Map);
    next.publish(2, &cleared).expect("published");
    service.wait_moved("a clear", |it| it["trust"] == "exact" && it["last_seq"] == 2);
}
