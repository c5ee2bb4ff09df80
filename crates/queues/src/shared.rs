//! Fair queues that threads share.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::QueueState;
use parking_lot::{Condvar, Mutex};

use crate::class::ClassedKey;
use crate::fair::{FairQueues, QueuedWork};

/// [`FairQueues`] behind one lock, which is held for one entry at a time.
pub struct Queues<K, T> {
    state: Mutex<State<K, T>>,
    /// Wakes each consumer.
    wakers: Vec<Condvar>,
    bytes_max: usize,
    clock: Clock,
}

struct State<K, T> {
    queues: FairQueues<K, T>,
    is_stopped: bool,
}

/// Result of one take.
pub enum TakenEntry<K, T> {
    /// The entry that had the next turn.
    Work {
        /// Its queue.
        key: K,
        /// The work.
        work: T,
        /// Releases the bytes of the work when it is dropped.
        reservation: Arc<dyn Send + Sync>,
    },
    /// The deadline has passed without work.
    Timeout,
    /// The queues are stopped, and no work is left.
    Stopped,
}

/// Bytes of taken messages, released when it is dropped.
struct Reservation<K: ClassedKey, T: QueuedWork> {
    queues: Arc<Queues<K, T>>,
    key: K,
    bytes: usize,
}

impl<K: ClassedKey, T: QueuedWork> Drop for Reservation<K, T> {
    fn drop(&mut self) {
        let unparked = self.queues.state.lock().queues.release(&self.key, self.bytes);
        if let Some(consumer) = unparked {
            self.queues.wakers[consumer].notify_one();
        }
    }
}

impl<K, T> Queues<K, T>
where
    K: ClassedKey + Send + Sync + 'static,
    T: QueuedWork + Send + 'static,
{
    /// Queues for this many consumers, within a budget of `bytes_max` bytes.
    pub fn new(consumers: usize, bytes_max: usize, clock: Clock) -> Self {
        let state = State { queues: FairQueues::new(consumers, bytes_max), is_stopped: false };
        let wakers = std::iter::repeat_with(Condvar::new).take(consumers).collect();
        Self { state: Mutex::new(state), wakers, bytes_max, clock }
    }

    /// Number of consumers.
    pub fn count(&self) -> usize {
        self.wakers.len()
    }

    /// Queues work for a consumer. Never waits for a consumer. Calls `on_drop`, under the lock, for all work whose messages
    /// are dropped. Returns whether the work is live messages and its queue was empty, beside a backlog of other queues.
    pub fn push(&self, key: &K, consumer: usize, work: T, on_drop: impl FnMut(&T)) -> bool {
        let is_beside_backlog = self.state.lock().queues.push(key, consumer, work, self.clock.now(), on_drop);
        self.wakers[consumer].notify_one();
        is_beside_backlog
    }

    /// Puts the rest of taken work before all other work of its queue. The caller is the consumer, and takes it again in its
    /// turn.
    pub fn put_back(&self, key: &K, consumer: usize, rest: T) {
        self.state.lock().queues.put_back(key, consumer, rest, self.clock.now());
    }

    /// Queues work after all queued work of a consumer. `entries` receives the queues that have work, and returns the
    /// entries with their queues.
    pub fn push_behind_all(&self, consumer: usize, entries: impl FnOnce(Vec<K>) -> Vec<(K, T)>) {
        let mut state = self.state.lock();
        let with_work = state.queues.keys_with_work(consumer).cloned().collect();
        for (key, work) in entries(with_work) {
            state.queues.push(&key, consumer, work, self.clock.now(), |_| {});
        }
        drop(state);
        self.wakers[consumer].notify_one();
    }

    /// Waits for work until `deadline`. `last_work` is the work of the consumer's last turn, in any unit. Calls `on_park`,
    /// under the lock, for each queue that is parked meanwhile.
    pub fn take(
        self: &Arc<Self>,
        consumer: usize,
        mut last_work: usize,
        deadline: Option<Instant>,
        mut on_park: impl FnMut(),
    ) -> TakenEntry<K, T> {
        let mut state = self.state.lock();
        loop {
            let taken = state.queues.take(consumer, std::mem::take(&mut last_work), &mut on_park);
            if let Some((key, work, bytes)) = taken {
                let reservation: Arc<dyn Send + Sync> = match bytes {
                    0 => Arc::new(()),
                    _ => Arc::new(Reservation { queues: Arc::clone(self), key: key.clone(), bytes }),
                };
                return TakenEntry::Work { key, work, reservation };
            }
            if state.is_stopped {
                return TakenEntry::Stopped;
            }
            if self.clock.wait(&self.wakers[consumer], &mut state, deadline) {
                return TakenEntry::Timeout;
            }
        }
    }

    /// Time at which the first entry of a queue was queued; none if it is empty.
    pub fn queued_since(&self, key: &K) -> Option<Instant> {
        self.state.lock().queues.queued_since(key)
    }

    /// Queues of a consumer that have work and are not parked.
    pub fn ready(&self, consumer: usize) -> usize {
        self.state.lock().queues.ready(consumer)
    }

    /// Entries that wait for a consumer.
    pub fn entries(&self, consumer: usize) -> usize {
        self.state.lock().queues.entries(consumer)
    }

    /// Messages that wait for each consumer.
    pub fn states(&self) -> Vec<QueueState> {
        self.state.lock().queues.states()
    }

    /// Bytes of the budget in use.
    pub fn bytes(&self) -> usize {
        self.state.lock().queues.bytes()
    }

    /// Bytes of the budget.
    pub const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Stops each consumer once it has taken the work of its queues that are not parked.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        for waker in &self.wakers {
            waker.notify_all();
        }
    }
}
