//! A connection's future, which is polled again at once when it wakes itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Polls of the future within one poll of its task. A request whose body arrives with one read does not need more. Further ones are left to
/// the runtime, so that other tasks have their turn.
const POLLS_MAX: usize = 4;

/// Requests of a connection since it was accepted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCounts {
    pub begun: u64,
    pub finished: u64,
}

/// A connection's future, which is polled again at once when it wakes itself for its only request.
///
/// The task of an HTTP/1.1 connection has both ends of the channel of a request's body: the handler that asks for bytes wakes the reader of
/// the socket, which wakes the handler. The runtime passes a task that was woken during its own poll to another of its threads, which has to
/// be woken first. That costs more than many requests do.
///
/// A connection that sends requests without waiting for their answers wakes itself too, to give way. So a poll that worked on a second
/// request is the last one of its turn.
///
/// # Consistency
///
/// A wake is never lost: one that arrives during a poll causes another poll, and the first one after it wakes the task.
pub(crate) struct PolledAgain<F, R> {
    future: Pin<Box<F>>,
    requests: R,
    wakes: Arc<Wakes>,
    /// The future's waker, which records in `wakes`.
    waker: Waker,
}

#[derive(Default)]
struct Wakes(Mutex<State>);

#[derive(Default)]
struct State {
    is_in_poll: bool,
    is_woken: bool,
    /// The task, while it waits to be woken.
    task: Option<Waker>,
}

impl<F: Future, R: Fn() -> RequestCounts> PolledAgain<F, R> {
    /// A connection's future, and a function that counts the connection's requests.
    pub(crate) fn new(future: F, requests: R) -> Self {
        let wakes = Arc::<Wakes>::default();
        Self { future: Box::pin(future), requests, waker: Waker::from(Arc::clone(&wakes)), wakes }
    }
}

impl<F: Future, R: Fn() -> RequestCounts + Unpin> Future for PolledAgain<F, R> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, requests, wakes, waker } = &mut *self;
        let finished = requests().finished;
        for _ in 0..POLLS_MAX {
            *wakes.0.lock() = State { is_in_poll: true, is_woken: false, task: None };
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(output);
            }
            let mut state = wakes.0.lock();
            if !state.is_woken {
                *state = State { is_in_poll: false, is_woken: false, task: Some(cx.waker().clone()) };
                return Poll::Pending;
            }
            drop(state);
            if requests().begun > finished + 1 {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = {
            let mut state = self.0.lock();
            state.is_woken |= state.is_in_poll;
            state.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Polls once a future that wakes itself in each of its first polls, and begins this number of requests in each poll.
    /// Returns the polls of the future, and the wakes of its task.
    fn polled(self_wakes: usize, requests: u64) -> (usize, usize) {
        let (mut polls, task) = (0, Arc::<CountedWakes>::default());
        let begun = Cell::new(7);
        let connection = poll_fn(|cx| {
            polls += 1;
            begun.set(begun.get() + requests);
            if polls <= self_wakes {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        let mut future = PolledAgain::new(connection, || RequestCounts { begun: begun.get(), finished: 7 });
        let polled = Pin::new(&mut future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))));
        assert!(polled.is_pending());
        drop(future);
        (polls, task.0.load(Relaxed))
    }

    #[test]
    fn a_connection_that_wakes_itself_is_polled_again_without_waking_its_task() {
        assert_eq!(polled(0, 0), (1, 0));
        assert_eq!(polled(3, 0), (4, 0));
        assert_eq!(polled(1, 1), (2, 0), "the second request began in the last poll");
    }

    #[test]
    fn a_connection_that_always_wakes_itself_gives_way() {
        assert_eq!(polled(usize::MAX, 0), (POLLS_MAX, 1));
    }

    #[test]
    fn a_connection_gives_way_after_a_second_request() {
        assert_eq!(polled(usize::MAX, 1), (2, 1));
        assert_eq!(polled(usize::MAX, 16), (1, 1));
    }

    #[test]
    fn wakes_from_other_threads_are_not_lost() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let runtime = runtime.expect("a runtime");
        const SENT: u32 = 20_000;
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let (back, mut returned) = tokio::sync::mpsc::channel(1);
        let echo = async move {
            while let Some(number) = receiver.recv().await {
                back.send(number).await.expect("the test receives");
            }
        };
        let echo = PolledAgain::new(echo, RequestCounts::default);
        let echoed = runtime.block_on(async {
            tokio::spawn(echo);
            let sending = tokio::spawn(async move {
                for number in 0..SENT {
                    sender.send(number).await.expect("the echo receives");
                }
            });
            let receiving = async {
                let mut count = 0;
                while let Some(number) = returned.recv().await {
                    assert_eq!(number, count);
                    count += 1;
                }
                count
            };
            let echoed = tokio::time::timeout(Duration::from_secs(60), receiving).await;
            sending.await.expect("it sends all");
            echoed
        });
        assert_eq!(echoed, Ok(SENT));
    }
}
