//! Fair queues compared with a plain model.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::class::{ClassedKey, QueueClass};
use crate::fair::{FairQueues, NoticePosition, QueuedSize, QueuedWork, UNWRITTEN_BYTES_MAX};

impl ClassedKey for u8 {
    /// Three queues in turn are of one class.
    fn class(&self) -> QueueClass {
        QueueClass(u64::from(self / 3))
    }
}

/// Work of a queue, numbered in the order in which it was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Live {
        number: u64,
        bytes: usize,
    },
    Replayed {
        number: u64,
        bytes: usize,
    },
    Control(u64),
    /// Live messages from this number on were dropped.
    Dropped(u64),
    ReplayFailed(u64),
}

impl Work {
    fn number(&self) -> u64 {
        match *self {
            Self::Live { number, .. } | Self::Replayed { number, .. } => number,
            Self::Control(number) | Self::Dropped(number) | Self::ReplayFailed(number) => number,
        }
    }
}

impl QueuedWork for Work {
    fn size(&self) -> QueuedSize {
        match *self {
            Self::Live { bytes, .. } | Self::Replayed { bytes, .. } => QueuedSize { messages: 1, bytes },
            _ => QueuedSize::default(),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self, Self::Live { .. })
    }

    fn cover(&mut self, dropped: &Self) -> bool {
        matches!(
            (self, dropped),
            (Self::Dropped(_), Self::Live { .. }) | (Self::ReplayFailed(_), Self::Replayed { .. })
        )
    }

    fn into_notice(self, _position: NoticePosition) -> Self {
        match self {
            Self::Live { number, .. } => Self::Dropped(number),
            Self::Replayed { number, .. } => Self::ReplayFailed(number),
            other => other,
        }
    }
}

const QUEUES: u8 = 6;
const CONSUMERS: usize = 2;
const BYTES_MAX: usize = 4 * UNWRITTEN_BYTES_MAX;

#[derive(Debug, Clone)]
enum Step {
    Push {
        queue: u8,
        kind: u8,
        bytes: usize,
    },
    Take {
        consumer: usize,
    },
    /// Releases the oldest bytes that were taken from a queue.
    Release {
        queue: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..QUEUES, 0_u8..8, 1..UNWRITTEN_BYTES_MAX / 2)
            .prop_map(|(queue, kind, bytes)| Step::Push { queue, kind, bytes }),
        2 => (0..CONSUMERS).prop_map(|consumer| Step::Take { consumer }),
        1 => (0..QUEUES).prop_map(|queue| Step::Release { queue }),
    ]
}

/// The queues under test, with their expected state.
struct World {
    queues: FairQueues<u8, Work>,
    /// Work that was pushed to each queue and neither taken nor dropped.
    pending: BTreeMap<u8, VecDeque<Work>>,
    /// Bytes that were taken and not released.
    taken: BTreeMap<u8, VecDeque<usize>>,
    last_taken: BTreeMap<u8, u64>,
    pushed: u64,
}

impl World {
    fn new() -> Self {
        Self {
            queues: FairQueues::new(CONSUMERS, BYTES_MAX),
            pending: BTreeMap::new(),
            taken: BTreeMap::new(),
            last_taken: BTreeMap::new(),
            pushed: 0,
        }
    }

    fn push(&mut self, queue: u8, kind: u8, bytes: usize) {
        self.pushed += 1;
        let number = self.pushed;
        let work = match kind {
            0 => Work::Control(number),
            1 | 2 => Work::Replayed { number, bytes },
            _ => Work::Live { number, bytes },
        };
        let before: BTreeMap<u8, usize> = (0..QUEUES).map(|key| (key, self.queues.queue_bytes(&key))).collect();
        let own = before[&queue] + work.size().bytes;
        let mut dropped = Vec::new();
        self.pending.entry(queue).or_default().push_back(work.clone());
        self.queues
            .push(&queue, usize::from(queue) % CONSUMERS, work, Instant::now(), |work| dropped.push(work.number()));
        for number in dropped {
            let of = self.pending.iter_mut().find(|(_, works)| works.iter().any(|work| work.number() == number));
            let (&key, works) = of.expect("only pending work is dropped, and once");
            works.retain(|work| work.number() != number);
            assert!(key == queue || before[&key] > own, "a queue of {} bytes made room for one of {own}", before[&key]);
        }
    }

    fn take(&mut self, consumer: usize) {
        let Some((key, work, bytes)) = self.queues.take(consumer, 0, || {}) else { return };
        assert_eq!(usize::from(key) % CONSUMERS, consumer);
        let number = work.number();
        let last = self.last_taken.insert(key, number);
        assert!(last < Some(number), "out of order: {number} after {last:?}");
        match work {
            Work::Dropped(_) | Work::ReplayFailed(_) => {}
            work => assert_eq!(self.pending.get_mut(&key).and_then(VecDeque::pop_front), Some(work)),
        }
        if bytes > 0 {
            self.taken.entry(key).or_default().push_back(bytes);
        }
    }

    fn release(&mut self, queue: u8) {
        if let Some(bytes) = self.taken.get_mut(&queue).and_then(VecDeque::pop_front) {
            self.queues.release(&queue, bytes);
        }
    }

    fn check(&self) {
        let queued: usize = self.pending.values().flatten().map(|work| work.size().bytes).sum();
        let unwritten: usize = self.taken.values().flatten().sum();
        assert_eq!(self.queues.bytes(), queued + unwritten);
        assert_eq!(self.queues.unwritten(), unwritten);
        assert!(self.queues.bytes() <= BYTES_MAX, "above the budget");
        let states = self.queues.states();
        assert_eq!(states.iter().map(|state| state.bytes).sum::<usize>(), queued);
        let messages: usize = self.pending.values().flatten().map(|work| work.size().messages).sum();
        assert_eq!(states.iter().map(|state| state.messages).sum::<usize>(), messages);
        for taken in self.taken.values() {
            assert!(taken.iter().sum::<usize>() <= 2 * UNWRITTEN_BYTES_MAX, "one entry beyond the limit at most");
        }
    }
}

proptest! {
    #[test]
    fn queues_stay_within_the_budget_and_only_larger_queues_lose_messages(steps in vec(step(), 1..300)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Push { queue, kind, bytes } => world.push(queue, kind, bytes),
                Step::Take { consumer } => world.take(consumer),
                Step::Release { queue } => world.release(queue),
            }
            world.check();
        }
        // Everything that was not dropped is taken once the taken bytes are released.
        while world.pending.values().any(|works| !works.is_empty()) {
            let before = world.queues.bytes();
            (0..QUEUES).for_each(|queue| while world.taken.get(&queue).is_some_and(|it| !it.is_empty()) { world.release(queue) });
            (0..CONSUMERS).for_each(|consumer| world.take(consumer));
            let entries: usize = (0..CONSUMERS).map(|consumer| world.queues.entries(consumer)).sum();
            prop_assert!(entries > 0 || world.queues.bytes() <= before);
            world.check();
        }
        for _ in 0..300 {
            (0..CONSUMERS).for_each(|consumer| world.take(consumer));
        }
        (0..QUEUES).for_each(|queue| while world.taken.get(&queue).is_some_and(|it| !it.is_empty()) { world.release(queue) });
        prop_assert_eq!(world.queues.bytes(), 0);
        prop_assert_eq!(world.queues.queue_count(), 0);
    }
}

/// Takes everything that a consumer can take, and returns the queues in order.
fn take_all(queues: &mut FairQueues<u8, Work>, consumer: usize) -> Vec<u8> {
    std::iter::from_fn(|| queues.take(consumer, 0, || {})).map(|(key, ..)| key).collect()
}

fn live(bytes: usize) -> Work {
    Work::Live { number: 0, bytes }
}

#[test]
fn queues_are_taken_in_turn() {
    let mut queues = FairQueues::new(1, usize::MAX);
    for queue in [0, 0, 0, 1, 2, 2] {
        queues.push(&queue, 0, live(1), Instant::now(), |_| {});
    }
    assert_eq!(take_all(&mut queues, 0), [0, 1, 2, 0, 2, 0]);
    for queue in [0, 0, 1, 1, 2, 2, 3, 3] {
        queues.push(&queue, 0, live(1), Instant::now(), |_| {});
    }
    assert_eq!(take_all(&mut queues, 0), [0, 3, 1, 3, 2, 0, 1, 2], "classes take turns");
}

#[test]
fn a_queue_whose_changes_are_not_written_is_passed_over() {
    let mut queues = FairQueues::new(1, usize::MAX);
    let bytes = UNWRITTEN_BYTES_MAX / 2;
    for queue in [0, 0, 0, 0, 0, 1] {
        queues.push(&queue, 0, live(bytes), Instant::now(), |_| {});
    }
    assert_eq!(take_all(&mut queues, 0), [0, 1, 0], "two entries of the stalled queue");
    queues.push(&1, 0, live(1), Instant::now(), |_| {});
    assert_eq!(take_all(&mut queues, 0), [1], "the other queue goes on");
    assert_eq!(queues.ready(0), 0);
    assert_eq!(queues.release(&0, bytes), Some(0));
    assert_eq!(take_all(&mut queues, 0), [0]);
}

#[test]
fn unwritten_bytes_of_many_queues_leave_room_for_messages() {
    let mut queues = FairQueues::new(1, BYTES_MAX);
    let bytes = UNWRITTEN_BYTES_MAX / 2;
    for queue in [0, 0, 1, 1, 2, 2, 3, 3] {
        queues.push(&queue, 0, live(bytes), Instant::now(), |_| {});
    }
    assert_eq!(take_all(&mut queues, 0), [0, 3, 1, 3, 2], "half of the budget is unwritten");
    let mut dropped = Vec::new();
    queues.push(&4, 0, live(bytes), Instant::now(), |work| dropped.push(work.number()));
    assert_eq!(queues.queue_bytes(&4), 0, "the other queues are as large as this one");
    queues.push(&4, 0, live(bytes / 2), Instant::now(), |work| dropped.push(work.number()));
    assert_eq!(queues.queue_bytes(&4), 0, "until the notice is taken");
    assert_eq!(take_all(&mut queues, 0), [4]);
    queues.push(&4, 0, live(bytes / 2), Instant::now(), |_| {});
    assert_eq!(take_all(&mut queues, 0), [4], "a queue without unwritten bytes is never passed over");
}

#[test]
fn the_rest_of_work_is_taken_before_all_else_of_its_queue_and_after_the_other_queues() {
    let mut queues = FairQueues::new(1, usize::MAX);
    let now = Instant::now();
    for (key, number) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
        queues.push(&key, 0, Work::Control(number), now, |_| {});
    }
    let mut taken = Vec::new();
    while let Some((key, work, _)) = queues.take(0, 0, || {}) {
        taken.push(work.number());
        // Each has a rest of one more turn.
        if work.number() < 10 {
            queues.put_back(&key, 0, Work::Control(10 + work.number()), now);
        }
    }
    assert_eq!(taken, [1, 3, 11, 13, 2, 4, 12, 14]);
    assert_eq!((queues.entries(0), queues.queue_count()), (0, 0));
}
