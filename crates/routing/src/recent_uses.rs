//! Recent uses of blocks by queries.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{LocalHash, SequenceHash};
use parking_lot::Mutex;

/// Blocks whose uses are counted, 48 bytes each. Above the limit, the least recently used blocks are evicted.
const COUNTED_BLOCKS_MAX: usize = 1 << 20;
/// Shards of the table, each with its own lock.
const SHARDS: usize = 256;
/// Entries of a set. A block can occupy any entry of its set.
const WAYS: usize = 8;
const SETS: usize = COUNTED_BLOCKS_MAX / SHARDS / WAYS;
/// Slices of the window. Uses expire slice by slice.
const SLICES: usize = 8;

/// Counts uses of blocks within a window of time.
///
/// A block is identified by its prefix hash, so equal prefixes are counted together, regardless of the ranks that hold them.
/// A use is counted for the length of the window, less up to an eighth of it. Counting a block takes the lock of one shard.
#[derive(Debug)]
pub struct RecentUses {
    started: Instant,
    slice: Duration,
    shards: Box<[Mutex<Shard>]>,
}

/// Previous uses of a query's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Recent uses of each block, without this one.
    pub before: Vec<u32>,
    /// Blocks with recent uses that were evicted.
    pub evicted: u64,
}

impl RecentUses {
    /// Creates a counter of uses within `window`. Memory is allocated as blocks are used.
    pub fn new(window: Duration, now: Instant) -> Self {
        let slice = (window / SLICES as u32).max(Duration::from_nanos(1));
        Self { started: now, slice, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Counts a use of every block of `prefix` in the model with this number, and returns the previous uses.
    pub fn count(&self, model: u64, prefix: &[LocalHash], now: Instant) -> Uses {
        let slice = now.saturating_duration_since(self.started).as_nanos() / self.slice.as_nanos();
        // Slices start at one, so an unused entry is older than every slice.
        let slice = NonZeroU64::MIN.saturating_add(u64::try_from(slice).unwrap_or(u64::MAX - 1));
        let mut uses = Uses::default();
        let mut block = SequenceHash(model);
        for &local in prefix {
            block = next_sequence_hash(Some(block), local);
            let (shard, within) = (block.0 as usize % SHARDS, block.0 as usize / SHARDS);
            let before = self.shards[shard].lock().count(block.0, within % SETS, slice.get());
            uses.before.push(before.uses);
            uses.evicted += u64::from(before.evicted_another);
        }
        uses
    }
}

/// One shard of the table. It allocates at its first use.
#[derive(Debug, Default)]
struct Shard {
    entries: Vec<UseEntry>,
}

/// Uses of one block.
#[derive(Debug, Clone, Copy, Default)]
struct UseEntry {
    block: u64,
    /// The slice of the last use; zero if there was none.
    last: u64,
    /// Uses in the slices up to the last one, by slice number modulo their count.
    uses: [u32; SLICES],
}

struct PreviousUses {
    uses: u32,
    evicted_another: bool,
}

impl Shard {
    fn count(&mut self, block: u64, set: usize, slice: u64) -> PreviousUses {
        if self.entries.is_empty() {
            self.entries = vec![UseEntry::default(); SETS * WAYS];
        }
        let entries = &mut self.entries[set * WAYS..][..WAYS];
        let known = entries.iter().position(|entry| entry.last > 0 && entry.block == block);
        let at = known.unwrap_or_else(|| (0..WAYS).min_by_key(|&at| entries[at].last).unwrap_or(0));
        let entry = &mut entries[at];
        let evicted_another = known.is_none() && entry.is_recent(slice);
        if known.is_none() {
            *entry = UseEntry { block, last: slice, uses: [0; SLICES] };
        }
        PreviousUses { uses: entry.record_use(slice), evicted_another }
    }
}

impl UseEntry {
    fn is_recent(&self, slice: u64) -> bool {
        self.last > 0 && slice.saturating_sub(self.last) < SLICES as u64
    }

    /// Records a use and returns the previous uses.
    fn record_use(&mut self, slice: u64) -> u32 {
        // Concurrent queries may arrive out of the order of their times.
        let slice = slice.max(self.last);
        if self.is_recent(slice) {
            (self.last + 1..=slice).for_each(|expired| self.uses[expired as usize % SLICES] = 0);
        } else {
            self.uses = [0; SLICES];
        }
        self.last = slice;
        let before = self.uses.iter().fold(0u32, |sum, &uses| sum.saturating_add(uses));
        let uses = &mut self.uses[slice as usize % SLICES];
        *uses = uses.saturating_add(1);
        before
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(80);

    proptest! {
        // Each case fills its own table.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The oracle is a list of all uses. Uses of this slice and of the seven slices before it are counted.
        #[test]
        fn the_table_counts_uses_as_a_list_does(
            steps in prop::collection::vec((0u64..30, 0u64..3, prop::collection::vec(0u64..3, 0..4)), 1..200),
        ) {
            let start = Instant::now();
            let counted = RecentUses::new(WINDOW, start);
            let mut listed: HashMap<(u64, Vec<u64>), Vec<u64>> = HashMap::new();
            let mut seconds = 0;
            for (pause, model, prompt) in steps {
                seconds += pause;
                let slice = seconds / 10;
                let expected: Vec<u32> = (1..=prompt.len()).map(|length| {
                    let uses = listed.entry((model, prompt[..length].to_vec())).or_default();
                    let before = uses.iter().filter(|&&used| used + 7 >= slice).count();
                    uses.push(slice);
                    before as u32
                }).collect();
                let prefix: Vec<LocalHash> = prompt.iter().copied().map(LocalHash).collect();
                let uses = counted.count(model, &prefix, start + Duration::from_secs(seconds));
                prop_assert_eq!(uses, Uses { before: expected, evicted: 0 });
            }
        }
    }

    #[test]
    fn the_least_recently_used_blocks_are_evicted() {
        let start = Instant::now();
        let mut shard = Shard::default();
        for block in 0..WAYS as u64 {
            assert!(!shard.count(block, 5, 1 + block).evicted_another, "there is room");
        }
        let newcomer = shard.count(100, 5, 8);
        assert!(newcomer.evicted_another && newcomer.uses == 0, "the first one was used seven slices ago");
        assert_eq!(shard.count(1, 5, 8).uses, 1, "the second one is not evicted");
        assert!(!shard.count(101, 5, 30).evicted_another, "a block without recent uses does not count as evicted");
        let uses = RecentUses::new(Duration::ZERO, start).count(1, &[LocalHash(1)], start);
        assert_eq!(uses.before, [0], "a window of zero length is valid");
    }
}
