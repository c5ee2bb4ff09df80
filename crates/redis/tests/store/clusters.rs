//! Clusters that lose a master, with and without replicas, with and without required full coverage.

use std::time::Duration;

use flash_indexer_core::{LocalHash, Tier};
use flash_indexer_redis::{StoreOptions, WAITING_CHANGES_MAX};
use flash_indexer_test_support::{ClusterSetup, RedisNode, redis_cluster_with, redis_server, wait_for, watch_until};

use crate::publishing::{path, rank, removed, stored};
use crate::support::{PATIENCE, Replica, cluster_url, device_depth, holder, options};

/// Prompts that are spread over all nodes of a cluster.
fn paths() -> Vec<Vec<LocalHash>> {
    (0..30).map(|start| path(start * 7_919, 8)).collect()
}

/// Two replicas on a cluster: the first publishes a rank that holds all of these prompts, the second finds it.
fn published(nodes: &[RedisNode], paths: &[Vec<LocalHash>]) -> [Replica; 2] {
    let options = StoreOptions { deadline: Duration::from_millis(1_000), ..options(&cluster_url(nodes)) };
    let replicas = [Replica::start(options.clone()), Replica::start(options)];
    for path in paths {
        replicas[0].apply(rank(1), &stored(path, Tier::Device));
    }
    for path in paths {
        replicas[1].wait_for_depth(path, rank(1), 8);
    }
    replicas
}

fn wait_for_state(node: &RedisNode, state: &str) {
    wait_for(state, PATIENCE, || {
        node.command(&["CLUSTER", "INFO"]).contains(&format!("cluster_state:{state}")).then_some(())
    });
}

#[test]
fn a_cluster_without_a_master_is_unavailable_and_is_written_after_its_recovery() {
    let Some(redis) = redis_server() else { return };
    let mut nodes =
        redis_cluster_with(&redis, ClusterSetup { masters: 3, replicas: 0, is_full_coverage_required: true });
    let paths = paths();
    let [a, b] = published(&nodes, &paths);
    nodes[2].kill();
    wait_for_state(&nodes[0], "fail");
    wait_for_state(&nodes[1], "fail");
    for path in &paths {
        assert_eq!(b.find(path), None, "no key is served");
    }
    for replica in [&a, &b] {
        wait_for("the reason", PATIENCE, || {
            let report = replica.store.report();
            (!report.is_connected && report.last_error.contains("CLUSTERDOWN")).then_some(())
        });
    }
    for path in &paths {
        a.apply(rank(1), &removed(path, 5));
    }
    nodes[2].restart();
    for path in &paths {
        b.wait_for_depth(path, rank(1), 5);
    }
    wait_for("both replicas connected", PATIENCE, || {
        let is_connected = |replica: &Replica| replica.store.report().is_connected;
        (is_connected(&a) && is_connected(&b)).then_some(())
    });
}

#[test]
fn a_cluster_failover_is_followed() {
    let Some(redis) = redis_server() else { return };
    let mut nodes =
        redis_cluster_with(&redis, ClusterSetup { masters: 3, replicas: 1, is_full_coverage_required: true });
    let paths = paths();
    let [a, b] = published(&nodes, &paths);
    nodes[2].kill();
    wait_for("a new master", PATIENCE, || nodes[5].has_role("master").then_some(()));
    for path in &paths {
        a.apply(rank(1), &removed(path, 5));
    }
    for path in &paths {
        b.wait_for_depth(path, rank(1), 5);
    }
    for replica in [&a, &b] {
        wait_for("all masters connected", PATIENCE, || replica.store.report().is_connected.then_some(()));
    }
    // The old master returns as a replica with less data.
    nodes[2].restart();
    wait_for("a replica", PATIENCE, || nodes[2].has_role("slave").then_some(()));
    for path in &paths {
        a.apply(rank(1), &removed(path, 3));
        b.wait_for_depth(path, rank(1), 3);
    }
}

#[test]
fn changes_beyond_the_limit_of_a_dead_master_do_not_affect_the_other_masters() {
    let Some(redis) = redis_server() else { return };
    let mut nodes =
        redis_cluster_with(&redis, ClusterSetup { masters: 3, replicas: 0, is_full_coverage_required: false });
    let paths = paths();
    let [a, b] = published(&nodes, &paths);
    nodes[2].kill();
    let (mut live, mut dead) = (Vec::new(), Vec::new());
    for path in &paths {
        match b.find(path) {
            Some(depths) => {
                assert_eq!(device_depth(&depths, rank(1)), 8);
                live.push(path);
            }
            None => dead.push(path),
        }
    }
    assert!(!live.is_empty() && !dead.is_empty());
    // All changes belong to one bucket of the dead master.
    let more = [&dead[0][..1], &path(900_000_000, WAITING_CHANGES_MAX as u64 + 1_000)].concat();
    let before = a.store.report().published;
    a.apply(rank(1), &stored(&more, Tier::Device));
    for &path in &live {
        a.apply(rank(1), &removed(path, 5));
    }
    for &path in &live {
        b.wait_for_depth(path, rank(1), 5);
    }
    // During further confirmations of the live masters the rank keeps its epochs there.
    for round in 0..20 {
        let path = live[round % live.len()];
        let depth = 5 - u32::try_from(round / live.len().min(20)).expect("a small number");
        a.apply(rank(1), &removed(path, depth as usize));
        watch_until("the rank is found at any time", PATIENCE, || {
            let found = device_depth(&b.find(path)?, rank(1));
            assert!(found > 0, "round {round}: a live master restarted the rank");
            (found == depth).then_some(())
        });
    }
    let after = a.store.report().published;
    assert!(after.overflows() <= before.overflows() + 1, "the bucket was rewritten repeatedly: {after:?}");
    nodes[2].restart();
    b.wait_for_depth(&more, rank(1), u32::try_from(more.len()).expect("a length"));
    for &path in &dead[1..] {
        b.wait_for_depth(path, rank(1), 8);
    }
}

#[test]
fn a_rank_is_unfinished_while_a_bucket_is_unavailable() {
    let Some(redis) = redis_server() else { return };
    let mut nodes =
        redis_cluster_with(&redis, ClusterSetup { masters: 3, replicas: 0, is_full_coverage_required: false });
    let paths = paths();
    let [a, b] = published(&nodes, &paths);
    let wait_for_state = |state: &[u8]| {
        wait_for("the status of the rank", PATIENCE, || {
            b.store.directory().get(holder(rank(1))).is_some_and(|listed| listed.state == state).then_some(())
        });
    };
    wait_for_state(b"fine");
    let slot: usize = nodes[0].command(&["CLUSTER", "KEYSLOT", "{fi:list}.version"]).parse().expect("a slot");
    let without_list = (slot * 3 / 16_384 + 1) % 3;
    nodes[without_list].kill();
    // The changes of its buckets wait at the publisher, which records that the store lacks them.
    for path in &paths {
        a.apply(rank(1), &stored(&[&path[..], &[LocalHash(1)]].concat(), Tier::Device));
    }
    wait_for_state(b"unfinished");
    nodes[without_list].restart();
    wait_for_state(b"fine");
    for path in &paths {
        b.wait_for_depth(&[&path[..], &[LocalHash(1)]].concat(), rank(1), 9);
    }
}

/// Slots of the buckets on the first of three masters.
fn slots_of_first(nodes: &[RedisNode]) -> Vec<String> {
    let slots = (0..64).map(|bucket| nodes[0].command(&["CLUSTER", "KEYSLOT", &format!("{{fi:{bucket}}}.lives")]));
    slots.filter(|slot| slot.parse::<usize>().expect("a slot") < 16_384 / 3).collect()
}

/// Moves at most this many keys of a slot from one node to another.
fn move_keys(slot: &str, from: &RedisNode, to: &RedisNode, max: &str) {
    let get = ["CLUSTER", "GETKEYSINSLOT", slot, max].map(str::as_bytes);
    for key in from.try_command_bytes(&get).expect("keys") {
        let port = to.port().to_string();
        let migrate = [&b"MIGRATE"[..], b"127.0.0.1", port.as_bytes(), &key, b"0", b"5000"];
        assert_eq!(from.try_command_bytes(&migrate).expect("an answer"), [b"OK"]);
    }
}

#[test]
fn migrating_slots_are_followed() {
    let Some(redis) = redis_server() else { return };
    let nodes = redis_cluster_with(&redis, ClusterSetup { masters: 3, replicas: 0, is_full_coverage_required: true });
    let paths = paths();
    let [a, b] = published(&nodes, &paths);
    let slots = slots_of_first(&nodes);
    assert!(!slots.is_empty());
    let [from, to] = [&nodes[0], &nodes[1]];
    let [from_id, to_id] = [from, to].map(|node| node.command(&["CLUSTER", "MYID"]));
    for slot in &slots {
        assert_eq!(to.command(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]), "OK");
        assert_eq!(from.command(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]), "OK");
        move_keys(slot, from, to, "5");
    }
    // The keys are divided between the nodes: queries find too few blocks, or none.
    for path in &paths {
        a.apply(rank(1), &removed(path, 5));
    }
    for path in &paths {
        if let Some(depths) = b.find(path) {
            assert!(device_depth(&depths, rank(1)) <= 8);
        }
    }
    for slot in &slots {
        move_keys(slot, from, to, "1000");
        for node in [to, from, &nodes[2]] {
            assert_eq!(node.command(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]), "OK");
        }
    }
    for path in &paths {
        b.wait_for_depth(path, rank(1), 5);
    }
    // The migration has not restored entries that were removed meanwhile.
    for path in &paths {
        assert_eq!(device_depth(&b.find(path).expect("an answer"), rank(1)), 5);
    }
    assert!(from.command(&["KEYS", "*"]).lines().all(|key| key.starts_with("{fi:list}")), "all keys have moved");
}
