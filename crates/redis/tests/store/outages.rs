//! Answers during an outage of a replica or a server, and after its recovery.

use std::time::{Duration, Instant};

use flash_indexer_core::{BlockEvent, Tier};
use flash_indexer_redis::StoreOptions;
use flash_indexer_test_support::{RedisNode, RedisWithSentinels, redis_cluster, redis_server, wait_for, watch_until};

use crate::publishing::{path, rank, removed, stored};
use crate::support::{PATIENCE, Replica, cluster_url, device_depth, holder, options, single_url};

#[test]
fn ranks_of_a_killed_replica_expire_after_their_time_to_live_and_their_status_before_them() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 10);
    wait_for("the status", PATIENCE, || {
        b.store.directory().get(holder(rank(1))).is_some_and(|listed| listed.state == b"fine").then_some(())
    });
    a.die();
    watch_until("the directory without the rank", PATIENCE, || {
        let depth = device_depth(&b.find(&long)?, rank(1));
        let valid_until = b.store.directory().get(holder(rank(1))).map(|listed| listed.valid_until);
        let is_valid = valid_until.is_some_and(|until| Instant::now() < until);
        assert!(!is_valid || depth == 10, "{depth} blocks of a rank whose status is valid");
        valid_until.is_none().then_some(())
    });
    b.wait_until("the rank has expired", &long, |depths| depths.is_empty());
}

#[test]
fn a_store_that_restarts_empty_is_rewritten() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 5_000);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 5_000);
    node.kill();
    wait_for("the outage is detected", PATIENCE, || b.find(&long).is_none().then_some(()));
    a.apply(rank(1), &removed(&long, 4_000));
    node.restart();
    b.wait_for_depth(&long, rank(1), 4_000);
    assert!(a.store.report().published.rewrites > 0);
}

#[test]
fn epochs_that_are_evicted_alone_are_rewritten() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 10);
    assert_eq!(node.command(&["DEL", "{fi:0}.lives"]), "1");
    b.wait_for_depth(&long, rank(1), 10);
    assert!(a.store.report().published.rewrites > 0);
}

#[test]
fn a_directory_whose_version_was_evicted_alone_is_read_by_a_replica_that_starts_later() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let a = Replica::start(options(&single_url(&node)));
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    wait_for("the rank is written", PATIENCE, || {
        a.store.directory().get(holder(rank(1))).is_some_and(|listed| listed.state == b"fine").then_some(())
    });
    assert_eq!(node.command(&["DEL", "{fi:list}.version"]), "1");
    let b = Replica::start(options(&single_url(&node)));
    wait_for("the rank is listed", PATIENCE, || b.store.directory().get(holder(rank(1))).map(|_| ()));
}

#[test]
fn a_store_restored_from_a_snapshot_returns_no_outdated_answers() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 100);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 100);
    let written = || a.store.report().published.written;
    wait_for("the replica's writes", PATIENCE, || (written() >= 100).then_some(()));
    assert_eq!(node.command(&["SAVE"]), "OK");
    let before = written();
    a.apply(rank(1), &removed(&long, 10));
    b.wait_for_depth(&long, rank(1), 10);
    // A replica without a reply sends the removal again, and the store then lacks nothing.
    wait_for("the reply to the replica", PATIENCE, || (written() >= before + 90).then_some(()));
    node.kill();
    node.restart();
    // The snapshot has the state of its confirmation; the replica detects at once that later writes are missing.
    b.wait_for_depth(&long, rank(1), 10);
    assert!(a.store.report().published.rewrites > 0, "the replica rewrote the bucket");
    for _ in 0..100 {
        assert_eq!(device_depth(&b.find(&long).expect("an answer"), rank(1)), 10);
    }
}

#[test]
fn a_restored_store_without_its_publisher_returns_empty_answers() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 100);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 100);
    assert_eq!(node.command(&["SAVE"]), "OK");
    a.die();
    b.wait_until("the rank has expired", &long, |depths| depths.is_empty());
    node.kill();
    node.restart();
    for _ in 0..100 {
        let found = wait_for("an answer", PATIENCE, || b.find(&long));
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn changes_during_an_outage_are_written_after_it() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let (long, more) = (path(1, 100), path(2, 50));
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 100);
    node.signal("STOP");
    a.apply(rank(1), &removed(&long, 20));
    a.apply(rank(1), &stored(&more, Tier::Device));
    wait_for("the outage is detected", PATIENCE, || (!a.store.report().is_connected).then_some(()));
    a.apply(rank(1), &removed(&more, 10));
    node.signal("CONT");
    b.wait_for_depth(&long, rank(1), 20);
    b.wait_for_depth(&more, rank(1), 10);
}

#[test]
fn changes_beyond_the_limit_cause_a_rewrite_of_the_rank() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let (long, many) = (path(1, 10), path(2, flash_indexer_redis::WAITING_CHANGES_MAX as u64 + 10));
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 10);
    node.kill();
    wait_for("the outage is detected", PATIENCE, || (!a.store.report().is_connected).then_some(()));
    a.apply(rank(1), &stored(&many, Tier::Device));
    a.apply(rank(1), &removed(&many, 1_000));
    a.apply(rank(1), &removed(&long, 4));
    wait_for("the overflow is counted", PATIENCE, || (a.store.report().published.overflows() > 0).then_some(()));
    assert_eq!(a.store.report().published.waiting_changes, 0, "no change waits");
    node.restart();
    b.wait_for_depth(&long, rank(1), 4);
    b.wait_for_depth(&many, rank(1), 1_000);
}

#[test]
fn a_suspended_replica_does_not_write_into_the_epoch_of_another() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 100);
    a.apply(rank(1), &stored(&long, Tier::Device));
    a.wait_for_depth(&long, rank(1), 100);
    b.apply(rank(1), &stored(&long, Tier::Device));
    let publisher = |replica: &Replica| replica.store.directory().get(holder(rank(1))).map(|listed| listed.publisher);
    wait_for("the directory", PATIENCE, || (publisher(&b) == Some(a.store.publisher())).then_some(()));

    let suspended = a.suspend();
    // The replica has many changes to write when it resumes.
    a.apply(rank(1), &removed(&long, 90));
    wait_for("the other replica publishes", PATIENCE, || (publisher(&b) == Some(b.store.publisher())).then_some(()));
    b.apply(rank(1), &BlockEvent::Cleared);
    b.apply(rank(1), &stored(&long[..3], Tier::Device));
    b.wait_for_depth(&long, rank(1), 3);
    drop(suspended);
    watch_until("the resumed replica loses its lease", PATIENCE, || {
        assert_eq!(device_depth(&b.find(&long).expect("an answer"), rank(1)), 3);
        (a.store.report().published.published_ranks == 0).then_some(())
    });
    a.wait_for_depth(&long, rank(1), 3);
}

#[test]
fn a_dead_node_of_a_cluster_affects_only_its_own_keys() {
    let Some(redis) = redis_server() else { return };
    let mut nodes = redis_cluster(&redis, 3);
    // Prefixes are on different nodes: those on the dead node cannot be queried.
    let options = StoreOptions { deadline: Duration::from_millis(1_000), ..options(&cluster_url(&nodes)) };
    let [a, b] = [Replica::start(options.clone()), Replica::start(options)];
    let paths: Vec<_> = (0..30).map(|start| path(start * 7_919, 8)).collect();
    for path in &paths {
        a.apply(rank(1), &stored(path, Tier::Device));
    }
    for path in &paths {
        b.wait_for_depth(path, rank(1), 8);
    }
    nodes[2].kill();
    // A query that times out on a busy processor has no answer either.
    watch_until("answers of the other nodes only", PATIENCE, || {
        let found: Vec<_> = paths.iter().map(|path| b.find(path)).collect();
        assert!(found.iter().flatten().all(|depths| device_depth(depths, rank(1)) <= 8));
        (found.iter().any(Option::is_some) && found.iter().any(Option::is_none)).then_some(())
    });
    for path in &paths {
        a.apply(rank(1), &removed(path, 5));
    }
    nodes[2].restart();
    for path in &paths {
        b.wait_for_depth(path, rank(1), 5);
    }
}

#[test]
fn a_failover_that_loses_writes_is_repaired() {
    let Some(redis) = redis_server() else { return };
    let mut nodes = RedisWithSentinels::start(&redis, 1);
    let url = sentinel_url(&nodes);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&url)));
    let long = path(1, 100);
    let written = |count| {
        wait_for("the response to the writes", PATIENCE, || {
            (a.store.report().published.written >= count).then_some(())
        });
        a.store.report().published.written
    };
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 100);
    let stored_changes = written(100);
    wait_for("the replica has the data", PATIENCE, || {
        let info = nodes.replica.command(&["INFO", "keyspace"]);
        info.contains("keys=1").then_some(())
    });
    // The replica stops replicating, and the master accepts further writes.
    nodes.replica.signal("STOP");
    assert_eq!(nodes.master.command(&["CLIENT", "KILL", "TYPE", "replica"]), "1");
    a.apply(rank(1), &removed(&long, 10));
    b.wait_for_depth(&long, rank(1), 10);
    // A publisher without the response would write the changes again, and lose none.
    written(stored_changes + 90);
    nodes.master.kill();
    nodes.replica.signal("CONT");
    wait_for("a new master", PATIENCE, || nodes.replica.has_role("master").then_some(()));
    b.wait_for_depth(&long, rank(1), 10);
    assert!(a.store.report().published.rewrites > 0, "the new master lacked writes of the old one");
}

#[test]
fn a_failover_without_the_first_of_three_sentinels_is_followed() {
    let Some(redis) = redis_server() else { return };
    let mut nodes = RedisWithSentinels::start(&redis, 3);
    let url = sentinel_url(&nodes);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&url)));
    let long = path(1, 100);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 100);
    nodes.sentinels[0].kill();
    nodes.master.kill();
    wait_for("a new master", PATIENCE, || nodes.replica.has_role("master").then_some(()));
    a.apply(rank(1), &removed(&long, 10));
    b.wait_for_depth(&long, rank(1), 10);
    // The first address of its URL does not respond.
    let late = Replica::start(options(&url));
    late.wait_for_depth(&long, rank(1), 10);
}

fn sentinel_url(nodes: &RedisWithSentinels) -> String {
    let sentinels: Vec<_> = nodes.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
    format!("redis+sentinel://{}/fleet", sentinels.join(","))
}
