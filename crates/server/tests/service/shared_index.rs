//! Replicas that share an index through Redis: each answers for the engines of all, and reports when it cannot.

use flash_indexer_test_support::{ClusterSetup, RedisNode, redis_cluster_with, redis_server, wait_for};
use serde_json::{Value, json};

use crate::support::{Engine, PATIENCE, Service, removed, replica, replica_at, stored, tokens};

fn query(prompt: &[u64]) -> Value {
    json!({ "model_name": "m", "token_ids": tokens(prompt) })
}

/// Waits until the answer has these scores and this state of the store.
fn wait_for_scores(service: &Service, prompt: &[u64], scores: &Value, store: &str) -> Value {
    wait_for(&format!("scores {scores}"), PATIENCE, || {
        let (_, answer) = service.post("/query", &query(prompt));
        (answer["scores"] == *scores && answer["store"] == store).then_some(answer)
    })
}

#[test]
fn each_replica_answers_for_the_engines_of_all() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [replica(&node), replica(&node)];
    let one = Engine::registered(&a, json!("one"), 0, &json!({}));
    let two = Engine::registered(&b, json!(2), 1, &json!({}));
    one.say(&a, 0, &[stored(None, &[1, 2, 3])]);
    two.say(&b, 0, &[stored(None, &[1, 2])]);
    // A third replica has no listener.
    let c = replica(&node);
    let scores = json!({ "one": { "0": 12 }, "2": { "1": 8 } });
    let answers = [&a, &b, &c].map(|service| wait_for_scores(service, &[1, 2, 3, 4], &scores, "ok"));
    for (service, answer) in [&a, &b, &c].into_iter().zip(&answers) {
        assert_eq!(answer["frequencies"], json!([]));
        wait_for("the status of a whole rank", PATIENCE, || {
            let (_, answer) = service.post("/query", &query(&[1, 2, 3, 4]));
            (answer["instances"]["one"]["trust"] == "exact").then_some(())
        });
    }
    wait_for("sizes of ranks elsewhere, a moment later", PATIENCE, || {
        let (_, answer) = c.post("/query", &query(&[1, 2, 3, 4]));
        (answer["tree_sizes"] == json!({ "one": { "0": 3 }, "2": { "1": 2 } })).then_some(())
    });
    one.say(&a, 1, &[removed(&[3])]);
    wait_for_scores(&c, &[1, 2, 3], &json!({ "one": { "0": 8 }, "2": { "1": 8 } }), "ok");
    let best = json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]), "top_k": 1 });
    assert_eq!(c.query(&best)["scores"], json!({ "2": { "1": 8 } }), "of two that have as much, the first by name");
    let hashes = json!({ "model_name": "m", "block_hashes": [1, 2] });
    assert_eq!(c.post("/query_by_hash", &hashes).1["scores"], json!({ "one": { "0": 0 }, "2": { "1": 0 } }));
    assert_eq!(c.post("/query", &json!({ "model_name": "other", "token_ids": [] })).0, 404);

    let (_, state) = c.get("/store");
    assert_eq!((&state["status"], &state["published_ranks"]), (&json!("ok"), &json!(0)), "{state}");
    let listed: Vec<_> = state["ranks"].as_array().expect("a list").iter().map(|rank| &rank["instance_id"]).collect();
    assert_eq!(listed, [&json!(2), &json!("one")]);
    assert_eq!(Service::start().get("/store").0, 404);

    // The ranks of a stopped replica are removed. An unregistered rank is removed on every replica.
    drop(b);
    wait_for_scores(&c, &[1, 2, 3], &json!({ "one": { "0": 8 } }), "ok");
    assert_eq!(a.post("/unregister", &json!({ "instance_id": "one", "model_name": "m" })).0, 200);
    wait_for("the model is unregistered", PATIENCE, || (c.post("/query", &query(&[1])).0 == 404).then_some(()));
}

#[test]
fn without_its_store_a_replica_answers_what_it_knows_and_says_so() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [replica(&node), replica(&node)];
    let one = Engine::registered(&a, json!("one"), 0, &json!({}));
    let two = Engine::registered(&b, json!("two"), 0, &json!({}));
    one.say(&a, 0, &[stored(None, &[1, 2, 3])]);
    two.say(&b, 0, &[stored(None, &[1, 2])]);
    let both = json!({ "one": { "0": 12 }, "two": { "0": 8 } });
    wait_for_scores(&a, &[1, 2, 3], &both, "ok");
    let without_engines = replica(&node);
    wait_for_scores(&without_engines, &[1, 2, 3], &both, "ok");
    let ready = |store: &str| (200, json!({ "status": "ready", "recovered_from": "engines", "store": store }));
    assert_eq!(a.get("/ready"), ready("ok"));
    assert_eq!(a.metrics().value("flash_indexer_store_connected", &[]), 1.0);
    node.kill();
    wait_for_scores(&a, &[1, 2, 3], &json!({ "one": { "0": 12 } }), "unavailable");
    wait_for_scores(&b, &[1, 2, 3], &json!({ "two": { "0": 8 } }), "unavailable");
    wait_for_scores(&without_engines, &[1, 2, 3], &json!({}), "unavailable");
    // A replica that starts now cannot determine whether others have the model.
    let (status, answer) = replica(&node).post("/query", &query(&[1, 2, 3]));
    assert_eq!(status, 503, "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("GET /store")), "{answer}");
    wait_for("it is shown", PATIENCE, || (a.get("/ready") == ready("unavailable")).then_some(()));
    assert_eq!(a.metrics().value("flash_indexer_store_connected", &[]), 0.0);
    // Changes made during the outage are published after it.
    two.say(&b, 1, &[stored(Some(2), &[3])]);
    node.restart();
    wait_for_scores(&a, &[1, 2, 3], &json!({ "one": { "0": 12 }, "two": { "0": 12 } }), "ok");
}

/// A cluster of three masters with two replicas of ours on it. The first one listens to an engine that holds a prompt for each of these
/// numbers. The second one finds the prompts.
fn on_a_cluster(is_full_coverage_required: bool, firsts: &[u64]) -> Option<(Vec<RedisNode>, [Service; 2], Engine)> {
    let setup = ClusterSetup { masters: 3, replicas: 0, is_full_coverage_required };
    let nodes = redis_cluster_with(&redis_server()?, setup);
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let [a, b] = [replica_at(&url), replica_at(&url)];
    let one = Engine::registered(&a, json!("one"), 0, &json!({}));
    let prompts: Vec<_> = firsts.iter().map(|&first| stored(None, &[first])).collect();
    one.say(&a, 0, &prompts);
    for &first in firsts {
        wait_for_scores(&b, &[first], &json!({ "one": { "0": 4 } }), "ok");
    }
    Some((nodes, [a, b], one))
}

#[test]
fn a_cluster_that_is_down_leaves_each_replica_what_it_listens_to() {
    let firsts = [1, 2, 3];
    let Some((mut nodes, [a, b], _engine)) = on_a_cluster(true, &firsts) else { return };
    nodes[2].kill();
    for first in firsts {
        // Redis refuses every key once it has detected the failure of a master.
        let answer = wait_for_scores(&a, &[first], &json!({ "one": { "0": 4 } }), "unavailable");
        assert_eq!(answer["instances"]["one"]["trust"], "exact", "{answer}");
        wait_for_scores(&b, &[first], &json!({}), "unavailable");
    }
    wait_for("the reason", PATIENCE, || {
        let error = b.get("/store").1["last_error"].clone();
        error.as_str().is_some_and(|error| error.contains("CLUSTERDOWN")).then_some(())
    });
    assert_eq!(b.metrics().value("flash_indexer_store_connected", &[]), 0.0);
    nodes[2].restart();
    for first in firsts {
        wait_for_scores(&b, &[first], &json!({ "one": { "0": 4 } }), "ok");
    }
}

/// Marks every rank in the store as incomplete, like the batch that ends its epoch, or removes the marks.
fn mark_incomplete(node: &RedisNode, is_incomplete: bool) {
    let change = match is_incomplete {
        true => "redis.call('HSET', marks, string.sub(epoch, 1, 8), '9999999999999')",
        false => "redis.call('DEL', marks)",
    };
    let script = format!(
        "local marked = 0 \
         for _, key in ipairs(redis.call('KEYS', '{{fi:*}}.lives')) do \
           local marks = string.gsub(key, 'lives$', 'incomplete') \
           for _, epoch in ipairs(redis.call('HVALS', key)) do {change} marked = marked + 1 end \
         end \
         return marked"
    );
    assert_ne!(node.command(&["EVAL", &script, "0"]), "0", "the store has a rank");
}

#[test]
fn a_remote_rank_whose_epoch_has_ended_is_not_exact_although_the_directory_lists_it_so() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [replica(&node), replica(&node)];
    let engine = Engine::registered(&a, json!("one"), 0, &json!({}));
    engine.say(&a, 0, &[stored(None, &[1, 2, 3])]);
    let trust_of = |service: &Service, prompt: &[u64]| {
        let (_, answer) = service.post("/query", &query(prompt));
        (answer["store"] == "ok").then(|| answer["instances"]["one"]["trust"].clone())
    };
    let wait_for_trust = |trust: &str| {
        wait_for("the trust of the remote rank", PATIENCE, || {
            [&[1, 2, 3][..], &[7]].iter().all(|prompt| trust_of(&b, prompt) == Some(json!(trust))).then_some(())
        });
    };
    let scores = json!({ "one": { "0": 12 } });
    wait_for_scores(&b, &[1, 2, 3], &scores, "ok");
    wait_for_trust("exact");
    mark_incomplete(&node, true);
    // From the first answer on: its query reads the marks.
    assert_eq!(trust_of(&b, &[1, 2, 3]), Some(json!("degraded")));
    assert_eq!(b.get("/store").1["ranks"][0]["trust"], "exact", "the directory");
    assert_eq!(b.query(&query(&[1, 2, 3]))["scores"], scores);
    assert_eq!(trust_of(&a, &[1, 2, 3]), Some(json!("exact")), "the replica that listens");
    mark_incomplete(&node, false);
    wait_for_trust("exact");
}

#[test]
fn trust_that_cannot_be_learned_any_more_is_degraded() {
    let firsts: Vec<u64> = (1..=30).collect();
    let Some((mut nodes, [a, b], _engine)) = on_a_cluster(false, &firsts) else { return };
    let slot: usize = nodes[0].command(&["CLUSTER", "KEYSLOT", "{fi:list}.version"]).parse().expect("a slot");
    let with_list = slot * 3 / 16_384;
    nodes[with_list].kill();
    // Blocks on the other masters are confirmed as before. The trust in the rank is in the list.
    let found = wait_for("an answer of another master", PATIENCE, || {
        let answers = firsts.iter().map(|&first| b.post("/query", &query(&[first])).1);
        let mut found = answers.filter(|answer| answer["scores"] == json!({ "one": { "0": 4 } }));
        found.find(|answer| answer["instances"]["one"]["trust"] == "degraded")
    });
    assert_eq!(found["store"], "ok", "{found}");
    let listed = || b.get("/store").1["ranks"][0]["trust"].clone();
    assert_eq!(listed(), "degraded");
    let answer = a.query(&query(&[firsts[0]]));
    assert_eq!(answer["scores"], json!({ "one": { "0": 4 } }), "{answer}");
    assert_eq!(answer["instances"]["one"]["trust"], "exact", "the replica that listens: {answer}");
    nodes[with_list].restart();
    wait_for("the list again", PATIENCE, || (listed() == "exact").then_some(()));
    for &first in &firsts {
        wait_for("an exact answer", PATIENCE, || {
            let answer = b.post("/query", &query(&[first])).1;
            (answer["instances"]["one"]["trust"] == "exact" && answer["store"] == "ok").then_some(())
        });
    }
}
