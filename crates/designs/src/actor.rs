//! A design for one thread owned by a thread of its own.

use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded};

use flash_indexer_core::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PrefixIndex, RankSize, SharedIndex, WorkerId, WorkerRank,
};

/// Requests that may wait for an actor; further callers wait until there is room.
pub const ACTOR_REQUESTS_MAX: usize = 1_024;

/// Shares a [`PrefixIndex`] by giving it to a thread that serves one request after the other.
///
/// # Consistency
///
/// Reads and writes are serialised in the order in which they were asked: a query sees exactly the
/// events before it. Every method waits for all requests before its own, and callers wait as well
/// when [`ACTOR_REQUESTS_MAX`] of them do. A request costs two passages between threads and a copy
/// of what it asks.
///
/// The thread starts with the actor and ends when the actor is dropped, after the requests that wait.
#[derive(Debug)]
pub struct Actor<I> {
    /// None only while the actor is dropped.
    requests: Option<Sender<Request<I>>>,
    thread: Option<JoinHandle<()>>,
}

type Request<I> = Box<dyn FnOnce(&mut I) + Send>;

impl<I: PrefixIndex + 'static> Actor<I> {
    /// Gives `index` to a new thread.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    #[must_use]
    pub fn new(mut index: I) -> Self {
        let (requests, waiting) = bounded::<Request<I>>(ACTOR_REQUESTS_MAX);
        let serve = move || waiting.into_iter().for_each(|request| request(&mut index));
        Self { requests: Some(requests), thread: Some(thread::spawn(serve)) }
    }

    fn ask<R: Send + 'static>(&self, request: impl FnOnce(&mut I) -> R + Send + 'static) -> R {
        let (reply, answer) = bounded(1);
        // Nobody can be gone who waits for the answer, so the reply cannot fail.
        let request: Request<I> = Box::new(move |index| drop(reply.send(request(index))));
        let requests = self.requests.as_ref().expect("it is not being dropped");
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
            // A panic of the thread has reached whoever asked for what caused it.
            drop(thread.join());
        }
    }
}

impl<I: PrefixIndex + 'static> SharedIndex for Actor<I> {
    fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let event = event.clone();
        self.ask(move |index| index.apply(rank, &event))
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let query = query.to_vec();
        self.ask(move |index| index.find(&query))
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ask(|index| index.ranks())
    }

    fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
        self.ask(|index| index.ranks().into_iter().map(|rank| (rank, index.size(rank))).collect())
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ask(move |index| index.held(rank))
    }

    fn clear_rank(&self, rank: WorkerRank) {
        self.ask(move |index| index.clear_rank(rank));
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        self.ask(move |index| index.size(rank))
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.ask(move |index| index.remove_worker(worker));
    }
}
