//! An index whose changes are made by a pool of threads.

mod routes;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use flash_indexer_core::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, RankSize, SharedIndex, WorkerId, WorkerRank,
};
use parking_lot::RwLock;

use self::routes::Routes;

/// Size of a [`ThreadPool`].
#[derive(Debug, Clone, Copy)]
pub struct ThreadPoolOptions {
    /// Threads that make changes.
    pub threads: NonZeroUsize,
    /// Changes that may wait for each thread; whoever brings more waits until there is room.
    pub queued_changes_max: NonZeroUsize,
}

impl Default for ThreadPoolOptions {
    fn default() -> Self {
        let (threads, queued) = (NonZeroUsize::new(4), NonZeroUsize::new(1_024));
        Self { threads: threads.expect("not zero"), queued_changes_max: queued.expect("not zero") }
    }
}

/// Makes the changes of a [`SharedIndex`] on threads of its own; reads run on the caller's thread.
///
/// The first change of a worker assigns it to the thread with the fewest workers, and all its
/// changes go there until [`SharedIndex::remove_worker`] ends the assignment. So changes of one
/// worker are made in order, by one thread, from wherever they are brought, as long as they are
/// brought one after the other.
///
/// # Consistency
///
/// [`ThreadPool::submit`] returns before its event is applied; reads see it once it is. `apply`,
/// `clear_rank` and `remove_worker` wait until theirs is, and so for everything submitted before for
/// that thread. [`ThreadPool::flush`] waits for everything submitted before. Otherwise the
/// consistency is that of the index.
///
/// # Back-pressure
///
/// Nothing is dropped: when a thread has [`ThreadPoolOptions::queued_changes_max`] changes waiting,
/// whoever brings one more waits.
///
/// The threads start with the pool and end when it is dropped, after what is waiting for them.
#[derive(Debug)]
pub struct ThreadPool<S> {
    index: Arc<S>,
    routes: RwLock<Routes>,
    queues: Vec<Sender<Job<S>>>,
    threads: Vec<JoinHandle<()>>,
}

/// What a thread is given to do.
enum Job<S> {
    Apply(WorkerRank, BlockEvent),
    Run(Task<S>),
}

/// Something whose outcome somebody waits for; it is given what submitted events have changed since
/// the last flush.
type Task<S> = Box<dyn FnOnce(&S, &mut Applied) + Send>;

impl<S: SharedIndex + 'static> ThreadPool<S> {
    /// Starts threads for `index`.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    #[must_use]
    pub fn new(index: S, options: ThreadPoolOptions) -> Self {
        let index = Arc::new(index);
        let start = |_| {
            let (queue, jobs) = bounded(options.queued_changes_max.get());
            let index = Arc::clone(&index);
            (queue, thread::spawn(move || work(&*index, &jobs)))
        };
        let (queues, threads) = (0..options.threads.get()).map(start).unzip();
        Self { index, routes: RwLock::new(Routes::new(options.threads)), queues, threads }
    }

    /// Queues one event of `rank`. What it changes is told by [`ThreadPool::flush`].
    pub fn submit(&self, rank: WorkerRank, event: BlockEvent) {
        self.send(self.thread_of(rank.worker), Job::Apply(rank, event));
    }

    /// Waits until all events submitted before are applied, and returns what they have changed since
    /// the last flush, all together.
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
        if let Some(thread) = self.routes.read().get(worker) {
            return thread;
        }
        self.routes.write().get_or_assign(worker)
    }

    /// Runs something on a worker's thread, after what is queued there, and waits for it.
    fn run<R: Send + 'static>(&self, worker: WorkerId, run: impl FnOnce(&S) -> R + Send + 'static) -> R {
        receive(&self.start(self.thread_of(worker), |index, _| run(index)))
    }

    fn start<R: Send + 'static>(
        &self,
        thread: usize,
        run: impl FnOnce(&S, &mut Applied) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (reply, answer) = bounded(1);
        // If whoever asked has gone, nobody misses the answer.
        self.send(thread, Job::Run(Box::new(move |index, submitted| drop(reply.send(run(index, submitted))))));
        answer
    }

    fn send(&self, thread: usize, job: Job<S>) {
        self.queues[thread].send(job).expect("the threads work until the pool is dropped");
    }
}

fn receive<R>(answer: &Receiver<R>) -> R {
    answer.recv().expect("the threads do every job")
}

fn work<S: SharedIndex>(index: &S, jobs: &Receiver<Job<S>>) {
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
            // A panic of the thread has reached whoever waited for what caused it.
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
        self.routes.write().forget(worker);
    }
}
