//! A single-threaded index that a dedicated thread owns.

use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankSize, SharedIndex, WorkerId,
    WorkerRank,
};

/// Limit of requests in the queue of an [`Actor`]. When it is reached, a caller blocks until the thread takes a request.
pub const ACTOR_REQUESTS_MAX: usize = 1_024;

/// A [`PrefixIndex`] owned by a thread that serves one request after the other.
///
/// The thread starts with the actor. It ends when the actor is dropped, after it has served the queued requests.
///
/// # Consistency
///
/// Reads and writes are serialised in the order of the queue: a query sees exactly the events before it. Every method blocks
/// until all earlier requests and its own are served. When [`ACTOR_REQUESTS_MAX`] requests are queued, a caller also blocks
/// until the queue has room.
///
/// # Cost
///
/// A request costs two thread switches and a copy of its arguments.
#[derive(Debug)]
pub struct Actor<I> {
    /// None only during the drop of the actor.
    requests: Option<Sender<Request<I>>>,
    thread: Option<JoinHandle<()>>,
}

type Request<I> = Box<dyn FnOnce(&mut I) + Send>;

impl<I: PrefixIndex + 'static> Actor<I> {
    /// Moves `index` to a new thread.
    ///
    /// # Panics
    ///
    /// If the operating system refuses to start a thread.
    #[must_use]
    pub fn new(mut index: I) -> Self {
        let (requests, queue) = bounded::<Request<I>>(ACTOR_REQUESTS_MAX);
        let serve = move || queue.into_iter().for_each(|request| request(&mut index));
        Self { requests: Some(requests), thread: Some(thread::spawn(serve)) }
    }

    /// Runs `request` on the thread and blocks until it returns.
    fn call<R: Send + 'static>(&self, request: impl FnOnce(&mut I) -> R + Send + 'static) -> R {
        let (reply, answer) = bounded(1);
        // The caller blocks on `answer`, so its receiver exists when the thread sends the reply.
        let request: Request<I> = Box::new(move |index| drop(reply.send(request(index))));
        let requests = self.requests.as_ref().expect("the sender exists until the drop");
        requests.send(request).expect("the thread serves until the actor is dropped");
        answer.recv().expect("the thread answers every request")
    }
}

impl<I: PrefixIndex + Default + 'static> Default for Actor<I> {
    fn default() -> Self {
        Self::new(I::default())
    }
}

impl<I> Drop for Actor<I> {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already panicked the caller of the request that caused it.
            drop(thread.join());
        }
    }
}

impl<I: PrefixIndex + 'static> SharedIndex for Actor<I> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let event = event.clone();
        self.call(move |index| index.apply(rank, &event))
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let query = query.to_vec();
        self.call(move |index| index.find(&query))
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.call(|index| index.ranks())
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.call(|index| index.ranks().into_iter().map(|rank| (rank, index.size(rank))).collect())
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.call(move |index| index.held(rank))
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.call(move |index| index.clear_rank(rank));
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.call(move |index| index.size(rank))
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.call(move |index| index.remove_worker(worker));
    }
}
