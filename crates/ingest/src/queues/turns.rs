//! Order in which the queues of one consumer have their turns.

use std::collections::VecDeque;

/// Turns of one consumer's queues, in rounds.
///
/// In a round each queue with work has at most one turn. Queues whose next entry is new have theirs in the order in which they
/// became ready. Those whose next entry is the rest of taken work have theirs as long as the work of such turns is less than that
/// of the others in the round; one of them always has its turn. So new work waits for the new work before it, for as much work
/// of rests, and for one rest, however many queues have one.
#[derive(Debug)]
pub(super) struct Turns<K> {
    /// Queues that wait for their turn, and whose next entry was new when they became ready or may be a rest since.
    ready: VecDeque<K>,
    /// Queues whose next entry is a rest and that were passed over.
    rests: VecDeque<K>,
    /// Queues of `ready` whose turn the round has not reached.
    ready_left: usize,
    /// Queues of `rests` that may have a turn at the end of the round.
    rests_left: usize,
    /// Work by which the others of the round are ahead of its rests; positive at first.
    credit: isize,
    /// Whether the last turn was one of a rest.
    is_rest: bool,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        let (ready, rests) = (VecDeque::new(), VecDeque::new());
        Self { ready, rests, ready_left: 0, rests_left: 0, credit: 0, is_rest: false }
    }
}

impl<K> Turns<K> {
    /// Adds a queue that has work and no turn.
    pub(super) fn push(&mut self, key: K) {
        self.ready.push_back(key);
    }

    /// Queues that wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.rests.len()
    }

    /// Records the work of the last turn, in any unit.
    pub(super) fn record(&mut self, work: usize) {
        self.credit = match self.is_rest {
            true => self.credit.saturating_sub_unsigned(work),
            false => self.credit.saturating_add_unsigned(work),
        };
    }

    /// The queue that has the next turn. `has_rest` says whether the next entry of a queue is a rest.
    pub(super) fn next(&mut self, has_rest: impl Fn(&K) -> bool) -> Option<K> {
        loop {
            if self.ready_left > 0 {
                let key = self.ready.pop_front()?;
                self.ready_left -= 1;
                let is_rest = has_rest(&key);
                let is_passed_over = is_rest && (self.credit <= 0 || !self.rests.is_empty());
                let next = match is_passed_over {
                    true => {
                        self.rests.push_back(key);
                        None
                    }
                    false => Some(key),
                };
                if self.ready_left == 0 {
                    self.rests_left = self.rests.len();
                }
                if next.is_some() {
                    self.is_rest = is_rest;
                    return next;
                }
            } else if self.rests_left > 0 && (self.credit > 0 || self.ready.is_empty()) {
                self.rests_left -= 1;
                self.is_rest = true;
                return self.rests.pop_front();
            } else if self.len() == 0 {
                return None;
            } else {
                (self.ready_left, self.rests_left) = (self.ready.len(), self.rests.len());
                self.credit = 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of queues from zero on, of which those below `rests` have rests without end. Each turn of a rest has this much work,
    /// each other turn one. Returns the queues of the turns after all were passed over once.
    fn turns(rests: u32, others: u32, work: usize, count: usize) -> Vec<u32> {
        let mut turns = Turns::default();
        (0..rests + others).for_each(|key| turns.push(key));
        let mut taken = Vec::new();
        for _ in 0..count {
            let key = turns.next(|&key| key < rests).expect("all have work");
            turns.record(if key < rests { work } else { 1 });
            turns.push(key);
            taken.push(key);
        }
        taken
    }

    #[test]
    fn a_round_has_one_turn_of_a_rest_however_many_queues_have_one() {
        assert_eq!(turns(1, 2, 100, 6), [0, 1, 2, 0, 1, 2]);
        for rests in [2, 3, 1_000] {
            let other = |key: u32| key - rests;
            let taken = turns(rests, 3, 100, 4_000);
            for round in taken.chunks(4).skip(1) {
                let others: Vec<u32> = round.iter().filter(|&&key| key >= rests).map(|&key| other(key)).collect();
                assert_eq!(others.len(), 3, "{rests} rests: {round:?}");
            }
            let turns_of = |key: u32| taken.iter().filter(|&&taken| taken == key).count() as u32;
            let (least, most) = ((0..rests).map(turns_of).min(), (0..rests).map(turns_of).max());
            assert!(most <= least.map(|least| least + 1), "each rest has as many turns: {least:?} to {most:?}");
        }
    }

    #[test]
    fn rests_do_as_much_work_as_the_others_of_a_round() {
        // A hundred others of one unit each, and rests of ten units each.
        let taken = turns(50, 100, 10, 11_000);
        let of_rests = taken.iter().filter(|&&key| key < 50).count();
        assert!((950..=1_150).contains(&of_rests), "{of_rests} turns of rests in 100 rounds");
        // Each has one turn in a round at most, so that one queue with a rest does not hold the others up.
        let taken = turns(1, 100, 10, 1_010);
        assert_eq!(taken.iter().filter(|&&key| key == 0).count(), 10);
    }

    #[test]
    fn rests_alone_have_turns_one_after_the_other() {
        assert_eq!(turns(3, 0, 7, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(Turns::<u32>::default().next(|_| true), None);
    }
}
