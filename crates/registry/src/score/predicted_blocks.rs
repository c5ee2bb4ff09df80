//! Predicted blocks: blocks that a pod will hold because a router sent a prompt to it, until its events confirm them.
//!
//! Between the moment at which a router has chosen a pod and the moment at which the pod's events arrive, equal prompts
//! would find no pod that holds them, and would be routed to different pods. So the router reports its choice, and the
//! prompt's blocks count for that pod until the index has them or their time to live has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{SequenceHash, WorkerId};

/// Limits of [`PredictedBlocks`].
#[derive(Debug, Clone, Copy)]
pub struct PredictionLimits {
    /// Maximum number of blocks. Beyond it, the blocks that expire first are evicted.
    pub blocks_max: usize,
}

impl Default for PredictionLimits {
    /// A million blocks, about 60 MB.
    fn default() -> Self {
        Self { blocks_max: 1 << 20 }
    }
}

/// The effect of recording a prediction, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Predicted {
    /// Blocks that count for the pod from now on.
    pub blocks: usize,
    /// Blocks that were evicted early, or not recorded because the prediction alone exceeds the limit.
    pub forgotten: u64,
}

/// Blocks that pods are predicted to hold. Blocks are named by our own sequence hashes, which stand for all that is before
/// them, adapter and salt included. Times are since any one moment.
///
/// A block costs a few tens of nanoseconds to predict and to look up, whatever else is remembered.
#[derive(Debug)]
pub struct PredictedBlocks {
    limits: PredictionLimits,
    /// Until when each block counts.
    blocks: KeyedMap<Entry, Duration>,
    /// Entries by the turn in which they expire. A block that was predicted again is in several turns, and counts as
    /// often for the limit.
    agenda: BTreeMap<Turn, Vec<Entry>>,
    listed: usize,
}

type Entry = (WorkerId, SequenceHash);

/// A stretch of time: entries that end within one are looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u64);

/// Length of a [`Turn`], in milliseconds.
const TURN_MS: u64 = 64;

/// Blocks that one call forgets because their time has passed: some 0.1 ms.
const EXPIRED_AT_A_TIME: usize = 1 << 12;

impl Turn {
    fn of(moment: Duration) -> Self {
        Self(u64::try_from(moment.as_millis()).unwrap_or(u64::MAX) / TURN_MS)
    }
}

impl PredictedBlocks {
    /// Nothing is predicted.
    #[must_use]
    pub fn new(limits: PredictionLimits) -> Self {
        Self { limits, blocks: KeyedMap::default(), agenda: BTreeMap::new(), listed: 0 }
    }

    /// The worker is going to hold these blocks, and they count until `now + ttl`; those that counted for longer still do.
    pub fn predict(&mut self, worker: WorkerId, blocks: &[SequenceHash], ttl: Duration, now: Duration) -> Predicted {
        self.expire(now);
        let taken = &blocks[..blocks.len().min(self.limits.blocks_max)];
        let mut forgotten = (blocks.len() - taken.len()) as u64;
        while self.listed + taken.len() > self.limits.blocks_max {
            let missing = self.listed + taken.len() - self.limits.blocks_max;
            let Some((turn, entries)) = self.take_first(missing.max(EXPIRED_AT_A_TIME)) else { break };
            forgotten += self.end_turn(turn, &entries, Turn::of(now));
        }
        let end = now.saturating_add(ttl);
        let turn = Turn::of(end);
        let entries = self.agenda.entry(turn).or_default();
        for &block in taken {
            let known = self.blocks.entry((worker, block)).or_default();
            // Listed in this turn or a later one already, unless it is new.
            let is_listed = *known > Duration::ZERO && Turn::of(*known) >= turn;
            *known = end.max(*known);
            if !is_listed {
                entries.push((worker, block));
                self.listed += 1;
            }
        }
        Predicted { blocks: taken.len(), forgotten }
    }

    /// How many of these blocks, one after the other, count for the worker.
    #[must_use]
    pub fn following(&self, worker: WorkerId, blocks: &[SequenceHash], now: Duration) -> usize {
        let counts = |block: &&SequenceHash| self.blocks.get(&(worker, **block)).is_some_and(|&end| now < end);
        blocks.iter().take_while(counts).count()
    }

    /// Drops the predictions of a prefix that the index has for the worker. Walks back from its last block to the first that
    /// is not predicted: the blocks before it were confirmed earlier.
    pub fn confirm(&mut self, worker: WorkerId, prefix: &[SequenceHash], now: Duration) {
        for &block in prefix.iter().rev() {
            if self.blocks.remove(&(worker, block)).is_none_or(|end| end <= now) {
                break;
            }
        }
    }

    /// Drops expired blocks, a few thousand per call, so that no call takes long. [`PredictedBlocks::predict`] does it as well.
    pub fn expire(&mut self, now: Duration) {
        let current = Turn::of(now);
        let mut room = EXPIRED_AT_A_TIME;
        while room > 0
            && self.agenda.first_key_value().is_some_and(|(turn, _)| *turn < current)
            && let Some((turn, entries)) = self.take_first(room)
        {
            room -= entries.len().min(room);
            self.end_turn(turn, &entries, current);
        }
    }

    /// Takes at most `entries_max` entries out of the first turn.
    fn take_first(&mut self, entries_max: usize) -> Option<(Turn, Vec<Entry>)> {
        let (turn, mut entries) = self.agenda.pop_first()?;
        let taken = entries.split_off(entries.len().saturating_sub(entries_max));
        if !entries.is_empty() {
            self.agenda.insert(turn, entries);
        }
        Some((turn, taken))
    }

    /// Blocks that are remembered, some of which may have ended a moment ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Forgets the entries of a turn that are not to end in a later one, and says how many of them still count in the turn
    /// `current`.
    fn end_turn(&mut self, turn: Turn, entries: &[Entry], current: Turn) -> u64 {
        self.listed -= entries.len();
        let before = self.blocks.len();
        for entry in entries {
            if self.blocks.get(entry).is_some_and(|&end| Turn::of(end) <= turn) {
                self.blocks.remove(entry);
            }
        }
        if turn < current { 0 } else { (before - self.blocks.len()) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_forgets_more_than_some_thousands_of_blocks() {
        let mut predicted = PredictedBlocks::new(PredictionLimits::default());
        let blocks: Vec<_> = (0..10 * EXPIRED_AT_A_TIME as u64).map(SequenceHash).collect();
        let (second, later) = (Duration::from_secs(1), Duration::from_secs(60));
        predicted.predict(WorkerId(1), &blocks, second, Duration::ZERO);
        for calls in 1..=10 {
            predicted.expire(later);
            assert_eq!(predicted.len(), blocks.len() - calls * EXPIRED_AT_A_TIME);
            assert_eq!(predicted.following(WorkerId(1), &blocks, later), 0, "none of them counts meanwhile");
        }
        assert!(predicted.is_empty());
    }
}
