//! Threads write different workers while others read. Readers see a worker that does not change exactly, and the final
//! state is that of the same steps applied one after the other.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Step, check_equal, path, stream};
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::{ConcurrentRadixTree, Positional, PositionalOptions};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

const WRITERS: u64 = 4;
const STEPS_MAX: usize = 1_500;

/// A worker that does not change while others do.
const QUIET: WorkerRank = WorkerRank { worker: WorkerId(1_000), dp_rank: DpRank(0) };

/// The blocks of the quiet worker, a prefix that the other workers share.
fn quiet_chain() -> Vec<LocalHash> {
    [0, 1, 2, 0, 1, 2, 0, 1].map(LocalHash).to_vec()
}

fn load_quiet(index: &dyn SharedIndex) {
    let chain = quiet_chain().into_iter().zip(1..);
    let blocks = chain.map(|(local, name)| Block { sequence: SequenceHash(name), local }).collect();
    index.apply(QUIET, &BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 });
}

/// The stream of one writer: changes of two workers that no other writer changes.
fn steps_of(writer: u64, runner: &mut TestRunner) -> Vec<Step> {
    let own = |worker: WorkerId| WorkerId(worker.0 + writer * 2);
    let own_rank = |rank: WorkerRank| WorkerRank { worker: own(rank.worker), ..rank };
    let steps = stream(STEPS_MAX).new_tree(runner).expect("streams are not filtered").current();
    let steps = steps.into_iter().map(|step| match step {
        Step::Event(rank, event) => Step::Event(own_rank(rank), event),
        Step::ClearRank(rank) => Step::ClearRank(own_rank(rank)),
        Step::RemoveWorker(worker) => Step::RemoveWorker(own(worker)),
    });
    steps.collect()
}

/// Reads until the writers are done, and checks that every answer for the quiet worker is exact.
fn read(index: &dyn SharedIndex, queries: &[Vec<LocalHash>], done: &AtomicBool) {
    let quiet = quiet_chain();
    while !done.load(Ordering::Relaxed) {
        for query in queries {
            let depth = query.iter().zip(&quiet).take_while(|(asked, held)| asked == held).count();
            let found = index.find(query).get(QUIET).map_or(0, |found| found.longest());
            assert_eq!(found as usize, depth, "{query:?}");
        }
        let size = index.size(QUIET);
        assert_eq!(size.blocks, quiet.len());
        for rank in index.ranks() {
            index.held(rank);
        }
    }
}

/// Applies the streams of several writers on a thread each while other threads read. Compares the state with the oracle.
fn check_threads(index: &dyn SharedIndex) {
    let mut runner = TestRunner::new(Config::default());
    let streams: Vec<Vec<Step>> = (0..WRITERS).map(|writer| steps_of(writer, &mut runner)).collect();
    let queries = vec(path(), 30).new_tree(&mut runner).expect("paths are not filtered").current();
    let oracle = LockedIndex::<Oracle>::default();
    load_quiet(index);
    load_quiet(&oracle);

    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| read(index, &queries, &done));
        }
        let _stops_readers = SetOnDrop(&done);
        let writers: Vec<_> = streams.iter().map(|steps| scope.spawn(|| apply_all(index, steps))).collect();
        for writer in writers {
            writer.join().expect("writers do not fail");
        }
    });

    apply_all(&oracle, &streams.concat());
    check_equal(index, &oracle, &queries).expect("the final state is that of the oracle");
}

/// Stops the readers, even if another thread panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn apply_all(index: &dyn SharedIndex, steps: &[Step]) {
    for step in steps {
        step.apply(index);
    }
}

fn positional() -> Positional {
    let jump_size = NonZeroUsize::new(3).expect("not zero");
    Positional::new(PositionalOptions { jump_size, ..PositionalOptions::default() })
}

#[test]
fn concurrent_writers_leave_the_concurrent_radix_tree_equal_to_the_oracle() {
    let tree = ConcurrentRadixTree::default();
    check_threads(&tree);
    for rank in tree.ranks() {
        tree.clear_rank(rank);
    }
    assert_eq!(tree.node_count(), 0);
}

#[test]
fn concurrent_writers_leave_the_positional_index_equal_to_the_oracle() {
    let index = positional();
    check_threads(&index);
    for rank in index.ranks() {
        index.clear_rank(rank);
    }
    assert_eq!(index.entry_count(), 0);
}

/// Several workers store and clear the same chain repeatedly. Each finds its blocks while it holds them.
fn check_joining_and_leaving(index: &dyn SharedIndex) {
    let chain = [1, 2, 3];
    let query = chain.map(LocalHash);
    let blocks = chain.map(|n| Block { sequence: SequenceHash(n), local: LocalHash(n) }).to_vec();
    let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 };
    thread::scope(|scope| {
        for worker in 0..3 {
            let (stored, rank) = (&stored, WorkerRank { worker: WorkerId(worker), dp_rank: DpRank(0) });
            scope.spawn(move || {
                for _ in 0..10_000 {
                    index.apply(rank, stored);
                    assert_eq!(index.find(&query).get(rank).map(|found| found.longest()), Some(3));
                    index.clear_rank(rank);
                    assert_eq!(index.find(&query).get(rank), None);
                }
            });
        }
    });
}

#[test]
fn no_rank_joins_a_node_during_its_unlinking() {
    let tree = ConcurrentRadixTree::default();
    check_joining_and_leaving(&tree);
    assert_eq!(tree.node_count(), 0);
}

#[test]
fn no_rank_joins_an_entry_during_its_removal() {
    let index = positional();
    check_joining_and_leaving(&index);
    assert_eq!(index.entry_count(), 0);
}
