//! The wrappers that start threads: their end, and their back-pressure.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{
    Applied, Block, BlockEvent, DpRank, HeldBlock, LocalHash, Locked, MatchScores, PrefixIndex, RankSize, SequenceHash,
    SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::{Actor, ThreadPool, ThreadPoolOptions};

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

/// An index that runs a closure before it applies an event.
struct Instrumented<F> {
    index: Oracle,
    before_apply: F,
}

impl<F: FnMut() + Send + Sync> PrefixIndex for Instrumented<F> {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        (self.before_apply)();
        self.index.apply(rank, event)
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        self.index.find(query)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.index.ranks()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.index.held(rank)
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.index.clear_rank(rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.index.size(rank)
    }
}

/// An index that counts applied events. The index owns a reference to the counter until it is dropped.
fn counting(applied: &Arc<AtomicUsize>) -> Instrumented<impl FnMut() + Send + Sync + 'static> {
    let applied = Arc::clone(applied);
    let before_apply = move || {
        applied.fetch_add(1, Ordering::Relaxed);
    };
    Instrumented { index: Oracle::default(), before_apply }
}

fn stored(n: u64) -> BlockEvent {
    let blocks = vec![Block { sequence: SequenceHash(n), local: LocalHash(n) }];
    BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 }
}

fn pool_options(threads: usize, queued: usize) -> ThreadPoolOptions {
    let not_zero = |n| NonZeroUsize::new(n).expect("not zero");
    ThreadPoolOptions { threads: not_zero(threads), queued_changes_max: not_zero(queued) }
}

#[test]
fn a_dropped_actor_ends_its_thread_and_drops_its_index() {
    let applied = Arc::new(AtomicUsize::new(0));
    let actor = Actor::new(counting(&applied));
    assert_eq!(actor.apply(RANK, &stored(1)).stored, 1);
    assert_eq!(actor.find(&[LocalHash(1)]).ranks.len(), 1);
    drop(actor);
    assert_eq!(Arc::strong_count(&applied), 1);
}

#[test]
fn a_dropped_pool_applies_submitted_events_before_its_threads_end() {
    let applied = Arc::new(AtomicUsize::new(0));
    let pool = ThreadPool::new(Locked::new(counting(&applied)), pool_options(3, 1_000));
    for n in 0..1_000 {
        pool.submit(WorkerRank { worker: WorkerId(n % 7), ..RANK }, stored(n));
    }
    drop(pool);
    assert_eq!(applied.load(Ordering::Relaxed), 1_000);
    assert_eq!(Arc::strong_count(&applied), 1);
}

#[test]
fn a_pool_reports_the_memory_of_its_index() {
    let pool = ThreadPool::new(RunIndex::default(), pool_options(1, 1));
    let empty = pool.memory_bytes();
    assert_eq!(empty, RunIndex::default().memory_bytes());
    (0..100_000).for_each(|n| pool.submit(RANK, stored(n)));
    pool.flush();
    assert!(pool.memory_bytes() > empty && empty.is_some(), "{empty:?}");
    assert_eq!(Locked::<Oracle>::default().memory_bytes(), None);
}

#[test]
fn a_thread_that_submits_to_a_full_queue_blocks() {
    const QUEUED_MAX: usize = 5;
    const EVENTS: usize = 100;
    let submitted = Arc::new(AtomicUsize::new(0));
    let mut taken = 0;
    let before_apply = {
        let submitted = Arc::clone(&submitted);
        move || {
            taken += 1;
            // Waits until the queue is full. Further events are not submitted until this one is applied.
            while submitted.load(Ordering::SeqCst) < (taken + QUEUED_MAX).min(EVENTS) {
                thread::yield_now();
            }
            assert!(submitted.load(Ordering::SeqCst) <= taken + QUEUED_MAX);
        }
    };
    let pool = ThreadPool::new(
        Locked::new(Instrumented { index: Oracle::default(), before_apply }),
        pool_options(1, QUEUED_MAX),
    );
    for n in 0..EVENTS {
        pool.submit(RANK, stored(n as u64));
        submitted.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(pool.flush().stored, EVENTS as u64);
    assert_eq!(pool.size(RANK).blocks, EVENTS);
}
