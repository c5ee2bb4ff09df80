//! Fair queues: pure state, without threads or clocks.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_telemetry::metrics::QueueState;
use rustc_hash::FxHashMap;

use crate::class::ClassedKey;
use crate::turns::Turns;

/// Limit of the bytes of one queue that are taken and not written. Beyond it the queue is parked: its messages wait undecoded.
pub(crate) const UNWRITTEN_BYTES_MAX: usize = 256 << 10;
/// The limit of the taken and unwritten bytes of all queues is the budget divided by this number. Beyond it a queue that
/// has any unwritten bytes is parked.
const UNWRITTEN_SHARE: usize = 2;
/// An eviction drops at least its queue's size divided by this number, so that few evictions search for the largest queue.
const EVICTED_SHARE: usize = 8;
/// Entries of all consumers that are a backlog.
const BACKLOG: usize = 8;

/// Messages of queued work, and bytes that they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuedSize {
    /// Messages of the work.
    pub messages: usize,
    /// Bytes of the budget that they take.
    pub bytes: usize,
}

/// Whether a notice is the last one of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticePosition {
    /// No later notice of dropped live messages is queued.
    Last,
    /// A later notice is queued, which completes the run of drops.
    BeforeAnother,
}

/// Work that waits in a queue. Work without messages is never dropped.
pub trait QueuedWork: Sized {
    /// Messages, and the bytes of the budget that they take.
    fn size(&self) -> QueuedSize {
        QueuedSize::default()
    }

    /// Whether it consists of live messages.
    fn is_live(&self) -> bool {
        false
    }

    /// Whether it waits for short work of other queues.
    fn is_long(&self) -> bool {
        false
    }

    /// Extends this notice, the last one before or the first one after `dropped`, to cover that drop. Returns false if it
    /// cannot: the drop then needs its own notice.
    fn cover(&mut self, _dropped: &Self) -> bool {
        false
    }

    /// The notice that replaces dropped messages.
    fn into_notice(self, _position: NoticePosition) -> Self {
        self
    }
}

/// Work of several consumers, in one queue for each engine, within one byte budget.
///
/// # Order
///
/// Each queue is first in, first out, and belongs to one consumer. The classes of a consumer take turns with one entry each, and so
/// do the queues of a class. Long work and rests of taken work get as much of the consumer as short work ([`Turns`]).
///
/// # Budget
///
/// Messages count from their arrival until their changes are written ([`FairQueues::release`]). When the budget is full,
/// the largest queue loses its newest messages, and a notice takes their place. Until the notice is taken, further live
/// messages of that queue are dropped as well: one replay then returns all of them, when the queue has drained. A queue
/// loses no message if it is smaller than the queue that needs the room.
#[derive(Debug)]
pub(crate) struct FairQueues<K, T> {
    bytes_max: usize,
    /// Bytes of queued and of unwritten messages.
    bytes: usize,
    unwritten: usize,
    queues: FxHashMap<K, Queue<T>>,
    consumers: Vec<Consumer<K>>,
}

#[derive(Debug)]
struct Consumer<K> {
    /// Queues with work that are not parked.
    turns: Turns<K>,
    queued: QueuedSize,
    /// Entries of its queues, parked ones included.
    entries: usize,
}

#[derive(Debug)]
struct Queue<T> {
    consumer: usize,
    entries: VecDeque<Entry<T>>,
    /// Bytes of its entries.
    bytes: usize,
    /// Bytes of messages that were taken and are not written.
    unwritten: usize,
    /// Entries that replace dropped live messages.
    notices: usize,
    turn: Turn,
}

#[derive(Debug)]
struct Entry<T> {
    work: T,
    size: QueuedSize,
    at: Instant,
    /// Whether it replaces live messages that were dropped.
    is_notice: bool,
    /// Whether it is the rest of taken work.
    is_rest: bool,
    /// Whether it waits for short work of other queues, or is the rest of taken work.
    is_long: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has no entry.
    Idle,
    /// It waits for its turn.
    Ready,
    /// It waits until some of its unwritten bytes are released.
    Parked,
}

impl<K: ClassedKey, T: QueuedWork> FairQueues<K, T> {
    pub(crate) fn new(consumers: usize, bytes_max: usize) -> Self {
        let consumer = || Consumer { turns: Turns::default(), queued: QueuedSize::default(), entries: 0 };
        Self {
            bytes_max,
            bytes: 0,
            unwritten: 0,
            queues: FxHashMap::default(),
            consumers: std::iter::repeat_with(consumer).take(consumers).collect(),
        }
    }

    /// Queues work for a consumer. Calls `on_drop` for all work whose messages are dropped, which may be this work. Returns
    /// whether the work is live messages and its queue was empty, beside a backlog of other queues.
    pub(crate) fn push(&mut self, key: &K, consumer: usize, work: T, at: Instant, mut on_drop: impl FnMut(&T)) -> bool {
        let is_empty = self.queues.get(key).map(|queue| queue.entries.is_empty());
        if is_empty.is_none() {
            self.queues.insert(key.clone(), Queue::new(consumer));
        }
        let is_beside_backlog = work.is_live() && is_empty.unwrap_or(true) && self.all_entries() >= BACKLOG;
        let size = work.size();
        if size.messages == 0 || self.make_room(key, &work, size.bytes, &mut on_drop) {
            let is_long = work.is_long();
            self.append(key, Entry { work, size, at, is_notice: false, is_rest: false, is_long });
            return is_beside_backlog;
        }
        on_drop(&work);
        let last = self.queues.get_mut(key).and_then(|queue| queue.entries.back_mut());
        if last.is_none_or(|last| !last.work.cover(&work)) {
            self.append(key, Entry::notice(work, NoticePosition::Last, at));
        }
        is_beside_backlog
    }

    /// Makes room for messages of a queue. Returns whether they are to be queued.
    fn make_room(&mut self, key: &K, work: &T, bytes: usize, on_drop: &mut impl FnMut(&T)) -> bool {
        let queue = &self.queues[key];
        if work.is_live() && queue.notices > 0 {
            return false;
        }
        let own = queue.bytes + bytes;
        loop {
            let missing = (self.bytes + bytes).saturating_sub(self.bytes_max);
            if missing == 0 {
                return true;
            }
            let others = self.queues.iter().filter(|(other, _)| *other != key);
            let largest = others.max_by_key(|(_, queue)| queue.bytes).filter(|(_, queue)| queue.bytes > own);
            let Some((largest, queue)) = largest.map(|(other, queue)| (other.clone(), queue)) else { return false };
            self.evict(&largest, missing.max(queue.bytes / EVICTED_SHARE), on_drop);
        }
    }

    /// Drops the newest messages of a queue, at least `wanted` bytes if it has as many.
    fn evict(&mut self, key: &K, wanted: usize, on_drop: &mut impl FnMut(&T)) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let consumer = &mut self.consumers[queue.consumer];
        let (mut freed, mut at) = (0, queue.entries.len());
        while freed < wanted && at > 0 {
            at -= 1;
            if queue.entries[at].size.messages == 0 {
                continue;
            }
            let Some(Entry { work, size, at: queued_at, .. }) = queue.entries.remove(at) else { return };
            on_drop(&work);
            freed += size.bytes;
            consumer.queued.messages -= size.messages;
            consumer.queued.bytes -= size.bytes;
            if queue.entries.get_mut(at).is_some_and(|next| next.work.cover(&work)) {
                // The notice after it is now in its place.
                consumer.entries -= 1;
                continue;
            }
            let position = if queue.notices > 0 { NoticePosition::BeforeAnother } else { NoticePosition::Last };
            let notice = Entry::notice(work, position, queued_at);
            queue.notices += usize::from(notice.is_notice);
            queue.entries.insert(at, notice);
        }
        queue.bytes -= freed;
        self.bytes -= freed;
    }

    /// Puts the rest of taken work, which has no messages, before all other work of its queue. The queue waits for its next
    /// turn.
    pub(crate) fn put_back(&mut self, key: &K, consumer: usize, rest: T, at: Instant) {
        let queue = self.queues.entry(key.clone()).or_insert_with(|| Queue::new(consumer));
        // It was queued before the remaining entries.
        let at = queue.entries.front().map_or(at, |next| next.at.min(at));
        queue.entries.push_front(Entry {
            work: rest,
            size: QueuedSize::default(),
            at,
            is_notice: false,
            is_rest: true,
            is_long: true,
        });
        self.consumers[queue.consumer].entries += 1;
        self.make_ready(key, Turn::Idle);
    }

    /// Gives a queue its place among the turns of its consumer, if its state is `from`. Returns the consumer if so.
    fn make_ready(&mut self, key: &K, from: Turn) -> Option<usize> {
        let queue = self.queues.get_mut(key).filter(|queue| queue.turn == from)?;
        queue.turn = Turn::Ready;
        let consumer = queue.consumer;
        self.consumers[consumer].turns.push(key.class(), key.clone());
        Some(consumer)
    }

    fn append(&mut self, key: &K, entry: Entry<T>) {
        let queue = self.queues.get_mut(key).expect("the caller has inserted it");
        let consumer = &mut self.consumers[queue.consumer];
        consumer.queued.messages += entry.size.messages;
        consumer.queued.bytes += entry.size.bytes;
        consumer.entries += 1;
        self.bytes += entry.size.bytes;
        queue.bytes += entry.size.bytes;
        queue.notices += usize::from(entry.is_notice);
        queue.entries.push_back(entry);
        self.make_ready(key, Turn::Idle);
    }

    /// Takes the next work of a consumer. Returns the key of its queue, the work, and the bytes to release once its changes are
    /// written. `last_work` is the work of the consumer's last turn, in any unit. Calls `on_park` for each queue that is parked
    /// instead.
    pub(crate) fn take(
        &mut self,
        consumer: usize,
        last_work: usize,
        mut on_park: impl FnMut(),
    ) -> Option<(K, T, usize)> {
        let consumer = &mut self.consumers[consumer];
        consumer.turns.record(last_work);
        while let Some(key) = consumer.turns.next(|key| self.queues.get(key).is_some_and(Queue::has_long)) {
            let queue = self.queues.get_mut(&key).expect("a queue with work is not removed");
            let is_total_reached = queue.unwritten > 0 && self.unwritten >= self.bytes_max / UNWRITTEN_SHARE;
            // The rest of taken work is never parked: its bytes are released after it.
            if !queue.has_rest() && (queue.unwritten >= UNWRITTEN_BYTES_MAX || is_total_reached) {
                queue.turn = Turn::Parked;
                on_park();
                continue;
            }
            let Entry { work, size, is_notice, .. } = queue.entries.pop_front().expect("a ready queue has work");
            consumer.queued.messages -= size.messages;
            consumer.queued.bytes -= size.bytes;
            consumer.entries -= 1;
            queue.bytes -= size.bytes;
            queue.unwritten += size.bytes;
            self.unwritten += size.bytes;
            queue.notices -= usize::from(is_notice);
            if queue.entries.is_empty() {
                queue.turn = Turn::Idle;
                self.remove_if_unused(&key);
            } else {
                consumer.turns.push(key.class(), key.clone());
            }
            return Some((key, work, size.bytes));
        }
        None
    }

    /// Releases bytes that were taken from a queue. Returns its consumer if the queue is no longer parked.
    pub(crate) fn release(&mut self, key: &K, bytes: usize) -> Option<usize> {
        let queue = self.queues.get_mut(key)?;
        queue.unwritten -= bytes;
        self.unwritten -= bytes;
        self.bytes -= bytes;
        if queue.turn == Turn::Parked && queue.unwritten <= UNWRITTEN_BYTES_MAX / 2 {
            return self.make_ready(key, Turn::Parked);
        }
        self.remove_if_unused(key);
        None
    }

    fn remove_if_unused(&mut self, key: &K) {
        if self.queues.get(key).is_some_and(|queue| queue.entries.is_empty() && queue.unwritten == 0) {
            self.queues.remove(key);
        }
    }

    /// Keys of the queues of a consumer that have work.
    pub(crate) fn keys_with_work(&self, consumer: usize) -> impl Iterator<Item = &K> {
        let queues = self.queues.iter().filter(move |(_, queue)| queue.consumer == consumer);
        queues.filter(|(_, queue)| !queue.entries.is_empty()).map(|(key, _)| key)
    }

    /// Time at which the first entry of a queue was queued; none if it is empty.
    pub(crate) fn queued_since(&self, key: &K) -> Option<Instant> {
        self.queues.get(key)?.entries.front().map(|entry| entry.at)
    }

    /// Entries of a consumer whose queues are not parked, at most one for each queue.
    pub(crate) fn ready(&self, consumer: usize) -> usize {
        self.consumers[consumer].turns.len()
    }

    /// Entries of a consumer.
    pub(crate) fn entries(&self, consumer: usize) -> usize {
        self.consumers[consumer].entries
    }

    /// Entries of all consumers. Costs a step for each consumer.
    fn all_entries(&self) -> usize {
        self.consumers.iter().map(|consumer| consumer.entries).sum()
    }

    /// Messages that wait for each consumer.
    pub(crate) fn states(&self) -> Vec<QueueState> {
        let state =
            |consumer: &Consumer<K>| QueueState { messages: consumer.queued.messages, bytes: consumer.queued.bytes };
        self.consumers.iter().map(state).collect()
    }

    /// Bytes of the budget in use, by queued and by unwritten messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten
    }

    #[cfg(test)]
    pub(crate) fn queue_bytes(&self, key: &K) -> usize {
        self.queues.get(key).map_or(0, |queue| queue.bytes)
    }

    #[cfg(test)]
    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len()
    }
}

impl<T: QueuedWork> Entry<T> {
    /// The notice that replaces dropped messages.
    fn notice(dropped: T, position: NoticePosition, at: Instant) -> Self {
        let is_notice = dropped.is_live();
        let (work, size) = (dropped.into_notice(position), QueuedSize::default());
        Self { work, size, at, is_notice, is_rest: false, is_long: false }
    }
}

impl<T> Queue<T> {
    /// Whether its next entry is long.
    fn has_long(&self) -> bool {
        self.entries.front().is_some_and(|next| next.is_long)
    }

    /// Whether its next entry is the rest of taken work.
    fn has_rest(&self) -> bool {
        self.entries.front().is_some_and(|next| next.is_rest)
    }

    fn new(consumer: usize) -> Self {
        Self { consumer, entries: VecDeque::new(), bytes: 0, unwritten: 0, notices: 0, turn: Turn::Idle }
    }
}
