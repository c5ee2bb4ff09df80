//! A shared index whose changes run on a pool of threads.

mod assignments;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use flash_indexer_core::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, RankSize, SharedIndex, WorkerId, WorkerRank,
};
use parking_lot::RwLock;

use self::assignments::ThreadAssignments;

/// Threads and queue length of a [`ThreadPool`].
#[derive(Debug, Clone, Copy)]
pub struct ThreadPoolOptions {
    /// Threads that apply changes.
    pub threads: NonZeroUsize,
    /// Limit of changes in the queue of each thread. When it is reached, the submitting thread blocks until the queue has
    /// room.
    pub queued_changes_max: NonZeroUsize,
}

impl Default for ThreadPoolOptions {
    fn default() -> Self {
        let (threads, queued) = (NonZeroUsize::new(4), NonZeroUsize::new(1_024));
        Self { threads: threads.expect("not zero"), queued_changes_max: queued.expect("not zero") }
    }
}

/// A [`SharedIndex`] whose changes run on dedicated threads; reads run on the caller's thread.
///
/// The first change of a worker assigns the worker to the thread with the fewest workers. All changes of the worker run on
/// that thread until [`SharedIndex::remove_worker`] ends the assignment. So the changes of one worker are applied in the
/// order of their submission, whichever threads submit them, if two of them are never submitted at the same time.
///
/// # Consistency
///
/// [`ThreadPool::submit`] returns before its event is applied. `apply`, `clear_rank` and `remove_worker` block until their
/// change and every earlier change in the queue of that thread is applied. [`ThreadPool::flush`] blocks until every change
/// that was submitted before it is applied. Otherwise the consistency is that of the index.
///
/// # Back-pressure
///
/// The pool drops no change. When a thread has [`ThreadPoolOptions::queued_changes_max`] changes in its queue, a thread that
/// submits one more blocks.
///
/// The threads start with the pool. They end when the pool is dropped, after they have applied the queued changes.
#[derive(Debug)]
pub struct ThreadPool<S> {
    index: Arc<S>,
    assignments: RwLock<ThreadAssignments>,
    queues: Vec<Sender<Job<S>>>,
    threads: Vec<JoinHandle<()>>,
}

/// An entry of a thread's queue.
enum Job<S> {
    Apply(WorkerRank, BlockEvent),
    Run(Task<S>),
}

/// A closure whose caller waits for the result. Its second argument is the sum of what submitted events have changed since
/// the last flush.
type Task<S> = Box<dyn FnOnce(&S, &mut Applied) + Send>;

impl<S: SharedIndex + 'static> ThreadPool<S> {
    /// Starts the threads of a pool for `index`.
    ///
    /// # Panics
    ///
    /// If the operating system refuses to start a thread.
    #[must_use]
    pub fn new(index: S, options: ThreadPoolOptions) -> Self {
        let index = Arc::new(index);
        let start = |_| {
            let (queue, jobs) = bounded(options.queued_changes_max.get());
            let index = Arc::clone(&index);
            (queue, thread::spawn(move || run_jobs(&*index, &jobs)))
        };
        let (queues, threads) = (0..options.threads.get()).map(start).unzip();
        Self { index, assignments: RwLock::new(ThreadAssignments::new(options.threads)), queues, threads }
    }

    /// Queues one event of `rank`. [`ThreadPool::flush`] returns what it changed.
    pub fn submit(&self, rank: WorkerRank, event: BlockEvent) {
        self.send(self.thread_of(rank.worker), Job::Apply(rank, event));
    }

    /// Waits until every event submitted before is applied. Returns the sum of what the events submitted since the last flush
    /// have changed.
    pub fn flush(&self) -> Applied {
        let take = |thread| self.start(thread, |_, submitted| std::mem::take(submitted));
        let answers: Vec<Receiver<Applied>> = (0..self.queues.len()).map(take).collect();
        let mut total = Applied::default();
        for answer in answers {
            total += receive(&answer);
        }
        total
    }

    fn thread_of(&self, worker: WorkerId) -> usize {
        if let Some(thread) = self.assignments.read().get(worker) {
            return thread;
        }
        self.assignments.write().get_or_assign(worker)
    }

    /// Runs `run` on the worker's thread after the changes queued there, and waits for the result.
    fn run<R: Send + 'static>(&self, worker: WorkerId, run: impl FnOnce(&S) -> R + Send + 'static) -> R {
        receive(&self.start(self.thread_of(worker), |index, _| run(index)))
    }

    fn start<R: Send + 'static>(
        &self,
        thread: usize,
        run: impl FnOnce(&S, &mut Applied) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = bounded(1);
        // A reply fails only if the caller has dropped the receiver, and then the result is not needed.
        self.send(thread, Job::Run(Box::new(move |index, submitted| drop(reply.send(run(index, submitted))))));
        answer
    }

    fn send(&self, thread: usize, job: Job<S>) {
        self.queues[thread].send(job).expect("the threads run until the pool is dropped");
    }
}

fn receive<R>(answer: &Receiver<R>) -> R {
    answer.recv().expect("the threads serve every job")
}

fn run_jobs<S: SharedIndex>(index: &S, jobs: &Receiver<Job<S>>) {
    let mut submitted = Applied::default();
    for job in jobs {
        match job {
            Job::Apply(rank, event) => submitted += index.apply(rank, &event),
            Job::Run(run) => run(index, &mut submitted),
        }
    }
}

impl<S> Drop for ThreadPool<S> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic of the thread has already panicked the caller of the change that caused it.
            drop(thread.join());
        }
    }
}

impl<S: SharedIndex + 'static> SharedIndex for ThreadPool<S> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let event = event.clone();
        self.run(rank.worker, move |index| index.apply(rank, &event))
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        self.index.find(query)
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.index.ranks()
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.index.sizes()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.index.held(rank)
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.run(rank.worker, move |index| index.clear_rank(rank));
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.index.size(rank)
    }

    fn dump(&self, rank: WorkerRank) -> Vec<BlockEvent> {
        self.index.dump(rank)
    }

    fn maintain(&self) -> bool {
        self.index.maintain()
    }

    fn memory_bytes(&self) -> Option<usize> {
        self.index.memory_bytes()
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.run(worker, move |index| index.remove_worker(worker));
        self.assignments.write().unassign(worker);
    }
}
