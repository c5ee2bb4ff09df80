//! Order in which the queues of one consumer have their turns.

use std::collections::VecDeque;

/// Turns of one consumer's queues, in rounds.
///
/// In a round each queue with work has at most one turn. Queues whose next entry is short have theirs in the order in which they
/// became ready. Those whose next entry is long have theirs as long as the work of such turns is less than that of the others in
/// the round; one of them always has its turn. So a short entry waits for the short entries before it, for as much long work, and
/// for one turn of it, however many queues have long entries. Long entries have half of the consumer's time at least.
#[derive(Debug)]
pub(super) struct Turns<K> {
    /// Queues that wait for their turn, and whose next entry may be short.
    ready: VecDeque<K>,
    /// Queues whose next entry is long and that were passed over.
    long: VecDeque<K>,
    /// Queues of `ready` whose turn the round has not reached.
    ready_left: usize,
    /// Queues of `long` that may have a turn at the end of the round.
    long_left: usize,
    /// Work by which the short entries of the round are ahead of its long ones; positive at first.
    credit: isize,
    /// Whether the last turn was one of a long entry.
    is_long: bool,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        let (ready, long) = (VecDeque::new(), VecDeque::new());
        Self { ready, long, ready_left: 0, long_left: 0, credit: 0, is_long: false }
    }
}

impl<K> Turns<K> {
    /// Adds a queue that has work and no turn.
    pub(super) fn push(&mut self, key: K) {
        self.ready.push_back(key);
    }

    /// Queues that wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.long.len()
    }

    /// Records the work of the last turn, in any unit.
    pub(super) fn record(&mut self, work: usize) {
        self.credit = match self.is_long {
            true => self.credit.saturating_sub_unsigned(work),
            false => self.credit.saturating_add_unsigned(work),
        };
    }

    /// The queue that has the next turn. `has_long` says whether the next entry of a queue is long.
    pub(super) fn next(&mut self, has_long: impl Fn(&K) -> bool) -> Option<K> {
        loop {
            if self.ready_left > 0 {
                let key = self.ready.pop_front()?;
                self.ready_left -= 1;
                let is_long = has_long(&key);
                let is_passed_over = is_long && (self.credit <= 0 || !self.long.is_empty());
                let next = match is_passed_over {
                    true => {
                        self.long.push_back(key);
                        None
                    }
                    false => Some(key),
                };
                if self.ready_left == 0 {
                    self.long_left = self.long.len();
                }
                if next.is_some() {
                    self.is_long = is_long;
                    return next;
                }
            } else if self.long_left > 0 && (self.credit > 0 || self.ready.is_empty()) {
                self.long_left -= 1;
                self.is_long = true;
                return self.long.pop_front();
            } else if self.len() == 0 {
                return None;
            } else {
                (self.ready_left, self.long_left) = (self.ready.len(), self.long.len());
                self.credit = 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of queues from zero on, of which those below `long` have long entries without end. Each turn of those has this much
    /// work, each other turn one. Returns the queues of the turns after all were passed over once.
    fn turns(long: u32, others: u32, work: usize, count: usize) -> Vec<u32> {
        let mut turns = Turns::default();
        (0..long + others).for_each(|key| turns.push(key));
        let mut taken = Vec::new();
        for _ in 0..count {
            let key = turns.next(|&key| key < long).expect("all have work");
            turns.record(if key < long { work } else { 1 });
            turns.push(key);
            taken.push(key);
        }
        taken
    }

    #[test]
    fn a_round_has_one_turn_of_a_long_entry_however_many_queues_have_one() {
        assert_eq!(turns(1, 2, 100, 6), [0, 1, 2, 0, 1, 2]);
        for long in [2, 3, 1_000] {
            let other = |key: u32| key - long;
            let taken = turns(long, 3, 100, 4_000);
            for round in taken.chunks(4).skip(1) {
                let others: Vec<u32> = round.iter().filter(|&&key| key >= long).map(|&key| other(key)).collect();
                assert_eq!(others.len(), 3, "{long} long entries: {round:?}");
            }
            let turns_of = |key: u32| taken.iter().filter(|&&taken| taken == key).count() as u32;
            let (least, most) = ((0..long).map(turns_of).min(), (0..long).map(turns_of).max());
            assert!(most <= least.map(|least| least + 1), "each long entry has as many turns: {least:?} to {most:?}");
        }
    }

    #[test]
    fn long_entries_do_as_much_work_as_the_others_of_a_round() {
        // A hundred others of one unit each, and long entries of ten units each.
        let taken = turns(50, 100, 10, 11_000);
        let of_long = taken.iter().filter(|&&key| key < 50).count();
        assert!((950..=1_150).contains(&of_long), "{of_long} turns of long entries in 100 rounds");
        // Each has one turn in a round at most, so that one queue with long entries does not hold the others up.
        let taken = turns(1, 100, 10, 1_010);
        assert_eq!(taken.iter().filter(|&&key| key == 0).count(), 10);
    }

    #[test]
    fn long_entries_alone_have_turns_one_after_the_other() {
        assert_eq!(turns(3, 0, 7, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(Turns::<u32>::default().next(|_| true), None);
    }
}
