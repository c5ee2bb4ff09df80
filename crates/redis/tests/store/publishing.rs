//! Visibility of one replica's ranks at the other replicas.

use std::time::{Duration, Instant};

use flash_indexer_core::groups::{
    AttentionWindow, GroupBlockSize, GroupChange, GroupEvent, GroupId, RankEvent, SecondaryGroup,
};
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, Tier, WorkerId, WorkerRank,
};
use flash_indexer_redis::{Directory, HolderDepth, StoreOptions, WAITING_CHANGES_MAX};
use flash_indexer_test_support::{RedisNode, redis_server, wait_for, watch_until};

use crate::support::{PATIENCE, Replica, device_depth, holder, options, single_url};

pub(crate) fn rank(worker: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) }
}

pub(crate) fn path(start: u64, blocks: u64) -> Vec<LocalHash> {
    (0..blocks).map(|at| LocalHash(start * 1_000 + at)).collect()
}

pub(crate) fn stored(path: &[LocalHash], tier: Tier) -> BlockEvent {
    let blocks = sequence_hashes(path).zip(path).map(|(sequence, &local)| Block { sequence, local });
    BlockEvent::Stored { tier, parent: None, blocks: blocks.collect(), copies: 1 }
}

pub(crate) fn removed(path: &[LocalHash], from: usize) -> BlockEvent {
    let blocks: Vec<SequenceHash> = sequence_hashes(path).skip(from).collect();
    BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All }
}

#[test]
fn every_replica_finds_the_ranks_of_all_replicas() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let (long, other) = (path(1, 40), path(2, 3));
    a.apply(rank(1), &stored(&long, Tier::Device));
    a.apply(rank(1), &removed(&long, 30));
    b.apply(rank(2), &stored(&long[..10], Tier::Device));
    b.apply(rank(2), &stored(&long[..20], Tier::Host));
    for replica in [&a, &b] {
        let depths = replica.wait_until("both ranks", &long, |depths| depths.len() == 2);
        assert_eq!(depths[&holder(rank(1))].0, [30; 4]);
        assert_eq!(depths[&holder(rank(2))].0, [10, 20, 20, 20]);
        assert_eq!(replica.find(&other), Some(Default::default()), "no rank holds it");
        let directory = wait_for("a directory of both", PATIENCE, || {
            let is_whole = |directory: &Directory| directory.iter().all(|(_, listed)| listed.state == b"fine");
            Some(replica.store.directory()).filter(|known| known.iter().count() == 2 && is_whole(known))
        });
        let listed = directory.get(holder(rank(1))).expect("it is listed");
        assert_eq!(listed.publisher, a.store.publisher());
    }
    // A block in the middle is removed and stored again.
    let middle: Vec<SequenceHash> = sequence_hashes(&long).skip(5).take(1).collect();
    a.apply(rank(1), &BlockEvent::Removed { tier: Tier::Device, blocks: middle, copies: RemovedCopies::All });
    b.wait_for_depth(&long, rank(1), 5);
    a.apply(rank(1), &stored(&long[..6], Tier::Device));
    b.wait_for_depth(&long, rank(1), 30);
    a.apply(rank(1), &BlockEvent::Cleared);
    b.wait_for_depth(&long, rank(1), 0);
    a.apply(rank(1), &stored(&long[..2], Tier::Device));
    b.wait_for_depth(&long, rank(1), 2);
}

#[test]
fn the_status_of_a_rank_is_listed_once_the_store_has_all_of_it() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    // More than one flush writes.
    let long: Vec<LocalHash> = (0..200_000).map(LocalHash).collect();
    a.apply(rank(1), &stored(&long, Tier::Device));
    watch_until("the status", PATIENCE, || {
        let directory = b.store.directory();
        let depth = device_depth(&b.find(&long[..10])?, rank(1));
        // A status is invalid after the end of its lease, which a suspended machine may have missed.
        let listed = directory.get(holder(rank(1))).filter(|listed| Instant::now() < listed.valid_until);
        let state = listed.map(|listed| listed.state.clone());
        assert!(state.as_deref() != Some(b"fine") || depth == 10, "{state:?} with {depth} blocks");
        (state? == b"fine").then_some(())
    });
    b.wait_for_depth(&long, rank(1), 200_000);
}

#[test]
fn an_unregistered_rank_leaves_no_entries() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    // Entries are written again every second, which removes dead ones.
    let options = || StoreOptions { retention: Duration::from_secs(3), ..options(&single_url(&node)) };
    let [a, b] = [Replica::start(options()), Replica::start(options())];
    let (long, short) = (path(1, 3_000), path(1, 5));
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.apply(rank(2), &stored(&short, Tier::Device));
    a.wait_for_depth(&long, rank(1), 3_000);
    a.wait_for_depth(&long, rank(2), 5);
    a.unregister(rank(1));
    b.wait_until("the rank is removed", &long, |depths| !depths.contains_key(&holder(rank(1))));
    wait_for("the directory without the rank", PATIENCE, || {
        b.store.directory().get(holder(rank(1))).is_none().then_some(())
    });
    wait_for("only the other rank's blocks", PATIENCE, || {
        (node.command(&["KEYS", "{fi:0}:*"]).lines().count() == 5).then_some(())
    });
    wait_for("one entry in each", PATIENCE, || {
        let sizes = node.command(&["EVAL", "local n = 0 for _, k in ipairs(redis.call('KEYS', '{fi:0}:*')) do n = n + redis.call('STRLEN', k) end return n", "0"]);
        (sizes == "45").then_some(())
    });
    assert_eq!(device_depth(&b.find(&short).expect("an answer"), rank(2)), 5, "the blocks in use are kept");
}

#[test]
fn one_of_several_replicas_publishes_a_rank_and_another_takes_over() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let (long, longer) = (path(1, 10), path(1, 12));
    let store = |replica: &Replica, path| replica.apply(rank(1), &stored(path, Tier::Device));
    let first = Replica::start(options(&single_url(&node)));
    store(&first, &long);
    first.wait_for_depth(&longer, rank(1), 10);
    let others = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    others.iter().for_each(|other| store(other, &long));
    let publisher = |replica: &Replica| replica.store.directory().get(holder(rank(1))).map(|listed| listed.publisher);
    for other in &others {
        wait_for("the directory", PATIENCE, || {
            publisher(other).filter(|&publisher| publisher == first.store.publisher())
        });
        assert_eq!(other.store.report().published.published_ranks, 0, "another replica has the lease");
    }
    let gone = first.store.publisher();
    first.stop();
    let next = wait_for("another publisher", PATIENCE, || publisher(&others[0]).filter(|&publisher| publisher != gone));
    others.iter().for_each(|other| store(other, &longer));
    others.iter().for_each(|other| other.wait_for_depth(&longer, rank(1), 12));
    // After a kill the lease expires before the next replica acquires it.
    let (dying, last): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| other.store.publisher() == next);
    dying.into_iter().for_each(Replica::die);
    let [last] = <[Replica; 1]>::try_from(last).unwrap_or_else(|_| panic!("one is left"));
    wait_for("the last replica publishes", PATIENCE, || publisher(&last).filter(|&of| of == last.store.publisher()));
    last.apply(rank(1), &removed(&longer, 7));
    last.wait_for_depth(&longer, rank(1), 7);
}

#[test]
fn a_rank_with_several_cache_groups_is_not_shared() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let long = path(1, 10);
    let shared = a.register(rank(1));
    shared.apply(&RankEvent::Primary(stored(&long, Tier::Device)));
    b.wait_for_depth(&long, rank(1), 10);
    let group =
        SecondaryGroup { id: GroupId(1), window: AttentionWindow::LastBlocks(2), size: GroupBlockSize::REGISTERED };
    let event = GroupEvent::Stored { tier: Tier::Device, blocks: Vec::new(), copies: 1 };
    shared.apply(&RankEvent::Secondary(GroupChange { group, event }));
    a.set_state(rank(1), b"later");
    b.wait_until("the rank is withheld", &long, |depths| depths.is_empty());
    // The directory does not list a rank without entries as if it held nothing.
    watch_until("a status that is not exact", PATIENCE, || {
        let state = a.store.directory().get(holder(rank(1)))?.state.clone();
        assert_ne!(state, b"later");
        (state == b"unfinished").then_some(())
    });
    shared.remove();
    let shared = a.register(rank(1));
    shared.apply(&RankEvent::Primary(stored(&long[..3], Tier::Device)));
    b.wait_for_depth(&long, rank(1), 3);
}

/// Checks one query of a rank that holds all of `held`: while the directory lists the rank as completely written, the
/// answer has all these blocks, or reports the rank as incomplete.
fn check_answer(replica: &Replica, rank: WorkerRank, held: &[LocalHash]) {
    let directory = replica.store.directory();
    let Some(listed) = directory.get(holder(rank)).filter(|listed| listed.state == b"fine") else { return };
    let Some(found) = replica.find_all(held) else { return };
    let of_rank = |found: &&HolderDepth| found.holder == holder(rank);
    let depth = found.depths.iter().find(of_rank).map_or(0, |found| found.blocks[Tier::Device] as usize);
    // A status is invalid after the end of its lease, which a suspended machine may have missed.
    let is_leased = Instant::now() < listed.valid_until;
    assert!(depth == held.len() || found.incomplete.contains(&holder(rank)) || !is_leased, "{found:?}");
}

#[test]
fn a_rank_that_the_store_has_no_more_is_incomplete_from_the_first_answer_without_it() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let (long, later) = (path(1, 10), path(2, 10));
    let shared = a.register(rank(1));
    shared.apply(&RankEvent::Primary(stored(&long, Tier::Device)));
    wait_for_status(&b, rank(1), b"fine");
    b.wait_for_depth(&long, rank(1), 10);
    let group =
        SecondaryGroup { id: GroupId(1), window: AttentionWindow::LastBlocks(2), size: GroupBlockSize::REGISTERED };
    let event = GroupEvent::Stored { tier: Tier::Device, blocks: Vec::new(), copies: 1 };
    shared.apply(&RankEvent::Secondary(GroupChange { group, event }));
    b.wait_until("the rank is withheld", &long, |depths| depths.is_empty());
    shared.apply(&RankEvent::Primary(stored(&later, Tier::Device)));
    watch_until("another status", PATIENCE, || {
        check_answer(&b, rank(1), &long);
        check_answer(&b, rank(1), &later);
        (b.store.directory().get(holder(rank(1)))?.state == b"unfinished").then_some(())
    });
    // Other ranks are complete.
    a.apply(rank(2), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(2), 10);
    assert!(!b.find_all(&long).expect("an answer").incomplete.contains(&holder(rank(2))));
    // An unregistered rank is listed until the directory is read again.
    wait_for_status(&b, rank(2), b"fine");
    a.unregister(rank(2));
    watch_until("the directory without the rank", PATIENCE, || {
        check_answer(&b, rank(2), &long);
        b.store.directory().get(holder(rank(2))).is_none().then_some(())
    });
}

#[test]
fn a_rank_that_is_written_again_is_incomplete_until_the_store_has_all_of_it() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Replica::start(options(&single_url(&node))));
    let short = path(1, 10);
    let longer: Vec<LocalHash> = (0..WAITING_CHANGES_MAX as u64 + 10).map(LocalHash).collect();
    a.apply(rank(1), &stored(&short, Tier::Device));
    wait_for_status(&b, rank(1), b"fine");
    // More changes than the limit: the rank is rewritten entirely, in several batches.
    let suspended = a.suspend();
    a.apply(rank(1), &stored(&longer, Tier::Device));
    drop(suspended);
    watch_until("all blocks", PATIENCE, || {
        check_answer(&b, rank(1), &short);
        let is_written = device_depth(&b.find(&longer)?, rank(1)) as usize == longer.len();
        is_written.then_some(())
    });
    assert!(a.store.report().published.overflows() > 0);
    check_answer(&b, rank(1), &longer);
    assert_eq!(b.find_all(&longer).expect("an answer").incomplete, [], "the store has all of it");
}

/// Waits until a replica's directory has this status of a rank.
fn wait_for_status(replica: &Replica, rank: WorkerRank, status: &[u8]) {
    wait_for("the status", PATIENCE, || {
        replica.store.directory().get(holder(rank)).filter(|listed| listed.state == status).map(|_| ())
    });
}

#[test]
fn fleets_with_different_namespaces_are_separate() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let first = Replica::start(options(&single_url(&node)));
    let second =
        Replica::start(StoreOptions { namespace: "other".parse().expect("a name"), ..options(&single_url(&node)) });
    let long = path(1, 10);
    first.apply(rank(1), &stored(&long, Tier::Device));
    second.apply(rank(2), &stored(&long, Tier::Device));
    let only = |of| move |depths: &crate::support::Depths| depths.keys().eq([&holder(of)]);
    first.wait_until("its own rank alone", &long, only(rank(1)));
    second.wait_until("its own rank alone", &long, only(rank(2)));
}
