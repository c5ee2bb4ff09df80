//! Predicted blocks: blocks that a pod will hold because a router sent a prompt to it, until its events confirm them.
//!
//! Between the moment at which a router has chosen a pod and the moment at which the pod's events arrive, equal prompts
//! would find no pod that holds them, and would be routed to different pods. So the router reports its choice, and the
//! prompt's blocks are counted for that pod until the index has them or their time to live has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{SequenceHash, WorkerId};

/// The effect of recording a prediction, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordedPrediction {
    /// Blocks that are counted for the pod from now on.
    pub blocks: usize,
    /// Blocks that were evicted early, or not recorded because the prediction alone exceeds the limit.
    pub evicted: u64,
}

/// Blocks that pods are predicted to hold.
///
/// Blocks are identified by prefix hash, which covers all blocks before them, the adapter and the salt. Times are
/// measured from one moment that the caller chooses. A block costs a few tens of nanoseconds to predict and to look up,
/// at any table size.
#[derive(Debug)]
pub struct PredictedBlocks {
    blocks_max: usize,
    /// Expiry of each block.
    blocks: KeyedMap<Entry, Duration>,
    /// Entries by the slot in which they expire. A block that was predicted again is in several slots, and is
    /// counted towards the limit once for each.
    expirations: BTreeMap<Slot, Vec<Entry>>,
    /// Entries in `expirations`.
    listed: usize,
}

type Entry = (WorkerId, SequenceHash);

/// A slot of time. Entries that expire within one slot are removed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot(u64);

/// Length of a [`Slot`], in milliseconds.
const SLOT_MS: u64 = 64;

/// Expired blocks removed by one call, which takes about 0.1 ms.
const EXPIRED_PER_CALL_MAX: usize = 1 << 12;

impl Slot {
    fn of(moment: Duration) -> Self {
        Self(u64::try_from(moment.as_millis()).unwrap_or(u64::MAX) / SLOT_MS)
    }
}

impl PredictedBlocks {
    /// Creates an empty table. Beyond `blocks_max` blocks, the blocks that expire first are evicted.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self { blocks_max, blocks: KeyedMap::default(), expirations: BTreeMap::new(), listed: 0 }
    }

    /// Records that a worker is going to hold these blocks. They are counted until `now + ttl`, or longer if an
    /// earlier prediction lasts longer.
    pub fn predict(
        &mut self,
        worker: WorkerId,
        blocks: &[SequenceHash],
        ttl: Duration,
        now: Duration,
    ) -> RecordedPrediction {
        self.expire(now);
        let recorded = &blocks[..blocks.len().min(self.blocks_max)];
        let mut evicted = (blocks.len() - recorded.len()) as u64;
        while self.listed + recorded.len() > self.blocks_max {
            let excess = self.listed + recorded.len() - self.blocks_max;
            let Some((slot, entries)) = self.pop_first(excess.max(EXPIRED_PER_CALL_MAX)) else { break };
            evicted += self.expire_slot(slot, &entries, Slot::of(now));
        }
        let end = now.saturating_add(ttl);
        let slot = Slot::of(end);
        let entries = self.expirations.entry(slot).or_default();
        for &block in recorded {
            let known = self.blocks.entry((worker, block)).or_default();
            // A block that was predicted before is listed in the slot of its expiry.
            let is_listed = *known > Duration::ZERO && Slot::of(*known) >= slot;
            *known = end.max(*known);
            if !is_listed {
                entries.push((worker, block));
                self.listed += 1;
            }
        }
        RecordedPrediction { blocks: recorded.len(), evicted }
    }

    /// Number of leading blocks that are predicted for the worker.
    #[must_use]
    pub fn predicted_depth(&self, worker: WorkerId, blocks: &[SequenceHash], now: Duration) -> usize {
        let counts = |block: &&SequenceHash| self.blocks.get(&(worker, **block)).is_some_and(|&end| now < end);
        blocks.iter().take_while(counts).count()
    }

    /// Drops the predictions of a prefix that the worker holds. Walks from its last block back to the first block that
    /// is not predicted, because the blocks before that one were confirmed earlier.
    pub fn confirm(&mut self, worker: WorkerId, prefix: &[SequenceHash], now: Duration) {
        for &block in prefix.iter().rev() {
            if self.blocks.remove(&(worker, block)).is_none_or(|end| end <= now) {
                break;
            }
        }
    }

    /// Drops expired blocks, a few thousand per call, which bounds the time of a call. [`PredictedBlocks::predict`]
    /// calls it.
    pub fn expire(&mut self, now: Duration) {
        let current = Slot::of(now);
        let mut room = EXPIRED_PER_CALL_MAX;
        while room > 0
            && self.expirations.first_key_value().is_some_and(|(slot, _)| *slot < current)
            && let Some((slot, entries)) = self.pop_first(room)
        {
            room -= entries.len().min(room);
            self.expire_slot(slot, &entries, current);
        }
    }

    /// Removes up to `entries_max` entries of the first slot.
    fn pop_first(&mut self, entries_max: usize) -> Option<(Slot, Vec<Entry>)> {
        let (slot, mut entries) = self.expirations.pop_first()?;
        let removed = entries.split_off(entries.len().saturating_sub(entries_max));
        if !entries.is_empty() {
            self.expirations.insert(slot, entries);
        }
        Some((slot, removed))
    }

    /// Number of blocks, including some that expired a moment ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Drops the entries of a slot, except entries that expire in a later slot. Returns the number of blocks
    /// dropped before their expiry.
    fn expire_slot(&mut self, slot: Slot, entries: &[Entry], current: Slot) -> u64 {
        self.listed -= entries.len();
        let before = self.blocks.len();
        for entry in entries {
            if self.blocks.get(entry).is_some_and(|&end| Slot::of(end) <= slot) {
                self.blocks.remove(entry);
            }
        }
        if slot < current { 0 } else { (before - self.blocks.len()) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_drops_a_bounded_number_of_expired_blocks() {
        let mut predicted = PredictedBlocks::new(1 << 20);
        let blocks: Vec<_> = (0..10 * EXPIRED_PER_CALL_MAX as u64).map(SequenceHash).collect();
        let (second, later) = (Duration::from_secs(1), Duration::from_secs(60));
        predicted.predict(WorkerId(1), &blocks, second, Duration::ZERO);
        for calls in 1..=10 {
            predicted.expire(later);
            assert_eq!(predicted.len(), blocks.len() - calls * EXPIRED_PER_CALL_MAX);
            assert_eq!(predicted.predicted_depth(WorkerId(1), &blocks, later), 0, "expired blocks do not count");
        }
        assert!(predicted.is_empty());
    }
}
