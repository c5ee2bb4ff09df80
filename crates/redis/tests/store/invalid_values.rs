//! Keys with values that no replica writes: they count as missing, are removed, and their bucket is rewritten.

use std::time::Duration;

use flash_indexer_core::Tier;
use flash_indexer_redis::StoreOptions;
use flash_indexer_test_support::{RedisNode, redis_server, wait_for, watch_until};

use crate::publishing::{path, rank, removed, stored};
use crate::support::{PATIENCE, Replica, device_depth, holder, options, single_url};

/// Corruptions of the store, as by another program that uses the same keys.
const SPOILED: [(&str, &str); 9] = [
    ("blocks of another type", "for _, k in ipairs(blocks) do redis.call('DEL', k) redis.call('RPUSH', k, 'x') end"),
    ("blocks with torn entries", "for _, k in ipairs(blocks) do redis.call('APPEND', k, 'torn') end"),
    ("foreign text in blocks", "for _, k in ipairs(blocks) do redis.call('SET', k, 'another program') end"),
    ("epochs of another type", "redis.call('DEL', epochs) redis.call('SET', epochs, 'x')"),
    ("torn epochs", "for _, k in ipairs(redis.call('HKEYS', epochs)) do redis.call('HSET', epochs, k, 'x') end"),
    ("sessions of another type", "redis.call('DEL', sessions) redis.call('RPUSH', sessions, 'x')"),
    ("torn sessions", "for _, k in ipairs(redis.call('HKEYS', sessions)) do redis.call('HSET', sessions, k, 'x') end"),
    ("incomplete ranks of another type", "redis.call('DEL', incomplete) redis.call('SET', incomplete, 'x')"),
    ("torn incomplete ranks", "redis.call('HSET', incomplete, 'torn', 'x')"),
];

fn spoil(node: &RedisNode, how: &str) {
    let script = format!(
        "local blocks = redis.call('KEYS', '{{fi:0}}:*') \
         local epochs, sessions, incomplete = '{{fi:0}}.lives', '{{fi:0}}.sessions', '{{fi:0}}.incomplete' \
         {how} return #blocks"
    );
    assert_eq!(node.command(&["EVAL", &script, "0"]), "20");
}

/// Whether the invalid values are still there. Publishers replace some of them without reading them, possibly before a query.
fn is_spoiled(node: &RedisNode, what: &str) -> bool {
    match what {
        "torn epochs" => node.command(&["HVALS", "{fi:0}.lives"]).lines().any(|value| value == "x"),
        "torn incomplete ranks" => node.command(&["HEXISTS", "{fi:0}.incomplete", "torn"]) == "1",
        _ => true,
    }
}

fn invalid_values_removed(replicas: &[&Replica]) -> u64 {
    replicas.iter().map(|replica| replica.store.report().published.invalid_values_removed).sum()
}

#[test]
fn invalid_values_found_by_a_query_are_removed_and_rewritten() {
    let Some(redis) = redis_server() else { return };
    for (what, how) in SPOILED {
        let node = RedisNode::start(&redis, &[]);
        let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
        let long = path(1, 20);
        // Two publishers have entries in the same blocks: both rewrite them.
        a.apply(rank(1), &stored(&long, Tier::Device));
        b.apply(rank(2), &stored(&long, Tier::Device));
        b.wait_for_depth(&long, rank(1), 20);
        b.wait_for_depth(&long, rank(2), 20);
        spoil(&node, how);
        watch_until(&format!("{what}: both ranks again"), PATIENCE, || {
            let found = b.find(&long)?;
            let depths = [1, 2].map(|worker| device_depth(&found, rank(worker)));
            assert!(depths.iter().all(|&depth| depth <= 20), "{what}: {depths:?}");
            if invalid_values_removed(&[&a, &b]) == 0 && !is_spoiled(&node, what) {
                spoil(&node, how);
            }
            (depths == [20, 20] && invalid_values_removed(&[&a, &b]) > 0).then_some(())
        });
        a.apply(rank(1), &removed(&long, 7));
        b.wait_for_depth(&long, rank(1), 7);
        let before = invalid_values_removed(&[&a, &b]);
        b.wait_for_depth(&long, rank(2), 20);
        assert_eq!(invalid_values_removed(&[&a, &b]), before, "{what}: no invalid value is left");
    }
}

#[test]
fn a_publisher_removes_invalid_values_and_rewrites_its_bucket() {
    let Some(redis) = redis_server() else { return };
    // A publisher replaces epochs and incomplete ranks without reading them: only queries find torn ones.
    let is_read = |what| !["torn epochs", "torn incomplete ranks"].contains(&what);
    for (what, how) in SPOILED.into_iter().filter(|&(what, _)| is_read(what)) {
        let node = RedisNode::start(&redis, &[]);
        let a = Replica::start(options(&single_url(&node)));
        let long = path(1, 20);
        a.apply(rank(1), &stored(&long, Tier::Device));
        a.wait_for_depth(&long, rank(1), 20);
        spoil(&node, how);
        a.apply(rank(1), &removed(&long, 7));
        wait_for(what, PATIENCE, || (invalid_values_removed(&[&a]) > 0).then_some(()));
        assert_eq!(a.store.report().published.invalid_values_read, 0, "{what}: no query has found it");
        assert!(a.store.report().published.rewrites > 0, "{what}");
        a.wait_for_depth(&long, rank(1), 7);
    }
}

#[test]
fn invalid_values_in_the_directory_are_removed_and_rewritten() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    // Long enough that no confirmation expires meanwhile.
    let options = || StoreOptions { time_to_live: Duration::from_secs(3), ..options(&single_url(&node)) };
    let [a, b] = [Replica::start(options()), Replica::start(options())];
    let long = path(1, 20);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 20);
    let tables =
        ["alive", "publishers", "descriptions", "states", "version"].map(|table| format!("{{fi:list}}.{table}"));
    let mut spoiled: Vec<Vec<&str>> = Vec::new();
    for table in &tables {
        let of_another_type = "redis.call('DEL', KEYS[1]) return redis.call('SADD', KEYS[1], 'x')";
        spoiled.push(vec!["EVAL", of_another_type, "1", table]);
    }
    spoiled.push(vec!["HSET", &tables[3], "a name of another length", "x"]);
    for (round, command) in spoiled.iter().enumerate() {
        let before = invalid_values_removed(&[&a, &b]);
        assert_eq!(node.command(command), "1", "{command:?}");
        wait_for("the value is removed", PATIENCE, || (invalid_values_removed(&[&a, &b]) > before).then_some(()));
        // A new rank is listed, and both replicas continue.
        let new = rank(10 + round as u64);
        a.apply(new, &stored(&long[..5], Tier::Device));
        b.wait_for_depth(&long, new, 5);
        wait_for("the directory", PATIENCE, || {
            let directory = b.store.directory();
            (directory.get(holder(new)).is_some() && directory.get(holder(rank(1))).is_some()).then_some(())
        });
    }
}
