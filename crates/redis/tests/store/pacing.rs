//! Fairness of the publisher to other tasks of its runtime.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use flash_indexer_core::Tier;
use flash_indexer_redis::{LocalRank, PublisherWaker, RankRegistry, STEP_PREFIXES_MAX, Store};
use flash_indexer_test_support::{RedisNode, redis_server, wait_for};
use parking_lot::Mutex;

use crate::publishing::{path, rank, stored};
use crate::support::{PATIENCE, Replica, options, single_url};

#[test]
fn many_ranks_are_published_in_steps_of_bounded_work() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let a = Replica::start(options(&single_url(&node)));
    let paths: Vec<_> = (0..200).map(|at| path(at, 500)).collect();
    for (path, worker) in paths.iter().zip(0..) {
        a.apply(rank(worker), &stored(path, Tier::Device));
    }
    // One rank that takes many steps.
    let long = path(1_000, 5 * STEP_PREFIXES_MAX as u64);
    a.apply(rank(500), &stored(&long, Tier::Device));
    a.wait_for_depth(&long, rank(500), u32::try_from(long.len()).expect("a length"));
    for (path, worker) in paths.iter().zip(0..) {
        a.wait_for_depth(path, rank(worker), 500);
    }
    let largest = a.store.report().published.largest_step;
    assert!((500..=2 * STEP_PREFIXES_MAX).contains(&largest), "{largest} prefixes without a yield");
}

/// Registry that lists its ranks only after another task of the runtime has run.
struct BlockingRegistry {
    turn: Mutex<Receiver<()>>,
    listed: Mutex<Option<bool>>,
}

impl RankRegistry for BlockingRegistry {
    fn ranks(&self) -> Vec<LocalRank> {
        let had_turn = self.turn.lock().recv_timeout(PATIENCE).is_ok();
        self.listed.lock().get_or_insert(had_turn);
        Vec::new()
    }
}

#[test]
fn listing_ranks_does_not_block_other_tasks() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (take_turn, turn) = channel();
    let ranks = Arc::new(BlockingRegistry { turn: Mutex::new(turn), listed: Mutex::default() });
    let options = options(&single_url(&node));
    let source = Arc::clone(&ranks) as Arc<dyn RankRegistry>;
    let store = Store::start(options, &PublisherWaker::default(), source, runtime.handle()).expect("a store");
    // The listing has begun once it holds the lock of its receiver.
    wait_for("a listing that waits", PATIENCE, || ranks.turn.is_locked().then_some(()));
    // Once the sender is dropped, further listings return at once.
    runtime.spawn(async move { take_turn.send(()) });
    wait_for("a listing", PATIENCE * 2, || ranks.listed.lock().is_some().then_some(()));
    assert_eq!(*ranks.listed.lock(), Some(true), "the only worker thread was free for the other task");
    drop(store);
    drop(ranks);
    runtime.shutdown_background();
}
