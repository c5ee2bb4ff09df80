//! Order in which the queues of one consumer have their turns.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::class::QueueClass;

/// Turns of one consumer's queues.
///
/// * A queue whose next entry is short takes short turns, and one whose next entry is long takes long turns.
/// * In both kinds the classes take turns, and so do the queues of a class.
/// * A round has as many short turns as queues were ready at its start.
/// * A long turn follows as soon as the short turns of the round have done more work than the long ones, and once in each round.
///
/// So a short entry waits for the short entries before it in its class, for as many of each other class, for an equal
/// amount of long work, and for one long turn, regardless of the number of queues with long entries. Long entries get at
/// least half of the consumer's work, but a queue of long entries has at most one turn in a round.
#[derive(Debug)]
pub(crate) struct Turns<K> {
    /// Queues that wait for their turn, and whose next entry may be short.
    ready: ByClass<K>,
    /// Queues whose next entry is long.
    long: ByClass<K>,
    /// Turns of `ready` that are left of the round.
    round_left: usize,
    /// Work by which the short entries of the round are ahead of its long ones.
    credit: isize,
    /// Whether the last turn was one of a long entry.
    is_long: bool,
}

/// Queues whose classes take turns.
#[derive(Debug)]
struct ByClass<K> {
    /// Queues of the classes that have any.
    queues: FxHashMap<QueueClass, VecDeque<K>>,
    /// Those classes, each once.
    classes: VecDeque<QueueClass>,
    len: usize,
}

impl<K> Default for ByClass<K> {
    fn default() -> Self {
        Self { queues: FxHashMap::default(), classes: VecDeque::new(), len: 0 }
    }
}

impl<K> ByClass<K> {
    fn push(&mut self, class: QueueClass, key: K) {
        let queues = self.queues.entry(class).or_default();
        if queues.is_empty() {
            self.classes.push_back(class);
        }
        queues.push_back(key);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<(QueueClass, K)> {
        let class = self.classes.pop_front()?;
        let queues = self.queues.get_mut(&class)?;
        let key = queues.pop_front()?;
        self.len -= 1;
        if queues.is_empty() {
            self.queues.remove(&class);
        } else {
            self.classes.push_back(class);
        }
        Some((class, key))
    }
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        let (ready, long) = (ByClass::default(), ByClass::default());
        Self { ready, long, round_left: 0, credit: 0, is_long: false }
    }
}

impl<K> Turns<K> {
    /// Adds a queue that has work and no turn.
    pub(crate) fn push(&mut self, class: QueueClass, key: K) {
        self.ready.push(class, key);
    }

    /// Queues that wait for their turn.
    pub(crate) fn len(&self) -> usize {
        self.ready.len + self.long.len
    }

    /// Records the work of the last turn, in any unit.
    pub(crate) fn record(&mut self, work: usize) {
        self.credit = match self.is_long {
            true => self.credit.saturating_sub_unsigned(work),
            false => self.credit.saturating_add_unsigned(work),
        };
    }

    /// The queue that has the next turn. `has_long` says whether the next entry of a queue is long. Costs a constant time for each
    /// queue that was added.
    pub(crate) fn next(&mut self, has_long: impl Fn(&K) -> bool) -> Option<K> {
        loop {
            if self.round_left == 0 {
                self.round_left = self.ready.len;
                self.credit = if self.is_long { self.credit.clamp(0, 1) } else { 1 };
            }
            if self.long.len > 0 && (self.credit > 0 || self.ready.len == 0) {
                self.is_long = true;
                return self.long.pop().map(|(_, key)| key);
            }
            let (class, key) = self.ready.pop()?;
            self.round_left -= 1;
            if !has_long(&key) {
                self.is_long = false;
                return Some(key);
            }
            self.long.push(class, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes turns of queues with endless entries, each with its class. Queues below `long` have long entries. A turn of
    /// those is `work` units of work, each other turn is one unit. Returns the queues of the turns.
    fn turns(queues: &[(u64, u32)], long: u32, work: usize, count: usize) -> Vec<u32> {
        let mut turns = Turns::default();
        queues.iter().for_each(|&(class, key)| turns.push(QueueClass(class), key));
        let mut taken = Vec::new();
        for _ in 0..count {
            assert_eq!(turns.len(), queues.len());
            let key = turns.next(|&key| key < long).expect("all have work");
            turns.record(if key < long { work } else { 1 });
            let class = queues.iter().find(|&&(_, of)| of == key).expect("one of them").0;
            turns.push(QueueClass(class), key);
            taken.push(key);
        }
        taken
    }

    /// Queues of one class.
    fn one_class(count: u32) -> Vec<(u64, u32)> {
        (0..count).map(|key| (1, key)).collect()
    }

    fn times(taken: &[u32], key: u32) -> usize {
        taken.iter().filter(|&&taken| taken == key).count()
    }

    #[test]
    fn a_short_entry_waits_for_one_turn_of_a_long_one_however_many_queues_have_one() {
        for long in [1, 2, 3, 1_000] {
            let taken = turns(&one_class(long + 3), long, 100, 40_000);
            let is_long = |key: &&u32| **key < long;
            // After the first round, which finds the queues with long entries.
            assert!(
                taken.windows(2).skip(4).all(|pair| pair.iter().filter(is_long).count() < 2),
                "{long} long entries"
            );
            let of_long: Vec<_> = (0..long).map(|key| times(&taken, key)).collect();
            assert!(of_long.iter().max() <= of_long.iter().min().map(|least| least + 1).as_ref(), "{of_long:?}");
        }
    }

    #[test]
    fn long_entries_do_as_much_work_as_the_others_of_a_round() {
        // A hundred others of one unit each, and long entries of ten units each.
        let taken = turns(&one_class(150), 50, 10, 11_000);
        let of_long = taken.iter().filter(|&&key| key < 50).count();
        assert!((950..=1_150).contains(&of_long), "{of_long} turns of long entries in 100 rounds");
        // Each has at most one turn in a round: one queue with long entries does not delay the others.
        let taken = turns(&one_class(101), 1, 10, 1_010);
        assert_eq!(times(&taken, 0), 10);
        // Large ones have a turn in each round, however small the others are.
        for long in [1, 10] {
            let taken = turns(&one_class(long + 2), long, 100, 3_000);
            let of_long = taken.iter().filter(|&&key| key < long).count();
            assert!((990..=1_010).contains(&of_long), "{of_long} turns of long entries in 1,000 rounds");
        }
    }

    #[test]
    fn entries_of_one_kind_have_turns_one_after_the_other() {
        assert_eq!(turns(&one_class(3), 3, 7, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns(&one_class(3), 0, 7, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(Turns::<u32>::default().next(|_| true), None);
    }

    #[test]
    fn long_entries_alone_leave_no_debt_to_those_that_come_later() {
        let mut turns = Turns::default();
        turns.push(QueueClass(1), 0);
        for _ in 0..1_000 {
            assert_eq!(turns.next(|&key| key == 0), Some(0));
            turns.record(100);
            turns.push(QueueClass(1), 0);
        }
        turns.push(QueueClass(1), 1);
        let mut of_short = 0;
        while turns.next(|&key| key == 0) == Some(1) {
            of_short += 1;
            turns.record(1);
            turns.push(QueueClass(1), 1);
        }
        assert!(of_short <= 100, "{of_short} turns for the work of one");
    }

    #[test]
    fn a_queue_waits_for_one_turn_of_each_other_class_however_many_queues_that_has() {
        for long in [0, 8_000] {
            let busy = (0..7_000).map(|key| (1, key));
            let queues: Vec<_> = busy.chain([(2, 7_000), (3, 7_001)]).collect();
            let taken = turns(&queues, long, 5, 30_000);
            // Once the long entries are found.
            let taken = &taken[10..];
            for other in [7_000, 7_001] {
                let turns: Vec<_> = (0..taken.len()).filter(|&at| taken[at] == other).collect();
                assert!(turns.len() > 9_980 && turns.windows(2).all(|pair| pair[1] - pair[0] <= 3), "every third turn");
            }
            let of_busy: Vec<_> = (0..7_000).map(|key| times(taken, key)).collect();
            assert!(of_busy.iter().all(|&count| (1..=2).contains(&count)), "its queues take turns");
        }
    }

    #[test]
    fn a_short_entry_passes_the_long_ones_of_all_classes() {
        // A thousand classes with a long entry; one of them, and another one, have a short one.
        let long = (0..1_000).map(|key| (u64::from(key), key));
        let taken = turns(&long.chain([(5, 1_000), (2_000, 1_001)]).collect::<Vec<_>>(), 1_000, 100, 30_000);
        for short in [1_000, 1_001] {
            let turns: Vec<_> = (0..taken.len()).filter(|&at| taken[at] == short).collect();
            let waits: Vec<_> = turns.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(
                turns[0] <= 4 && waits.iter().all(|&wait| wait <= 5),
                "{short}: {} {:?}",
                turns[0],
                waits.iter().max()
            );
        }
    }

    #[test]
    fn a_class_without_queues_takes_no_room() {
        let mut turns = Turns::default();
        for key in 0..1_000 {
            turns.push(QueueClass(key), key);
            assert_eq!(turns.next(|_| key % 2 == 0), Some(key));
        }
        assert_eq!((turns.ready.queues.len(), turns.long.queues.len(), turns.len()), (0, 0, 0));
    }
}
