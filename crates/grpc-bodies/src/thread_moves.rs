//! Moves of work from the thread that serves all requests to a thread for large requests.

use std::cell::Cell;
use std::task::Poll;

thread_local! {
    /// Whether a request body keeps the end of a large message back since this thread began the current poll.
    static MOVES_TO_LARGE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Polls work. `None` if it has received a large message, and has to continue on a thread for large requests.
pub fn poll_here<T>(poll: impl FnOnce() -> Poll<T>) -> Option<Poll<T>> {
    MOVES_TO_LARGE_THREAD.set(false);
    let polled = poll();
    (polled.is_ready() || !MOVES_TO_LARGE_THREAD.take()).then_some(polled)
}

/// Moves the work that the current thread polls to a thread for large requests.
pub(crate) fn move_to_large_thread() {
    MOVES_TO_LARGE_THREAD.set(true);
}
