//! How often the blocks of prompts were asked for lately.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::{LocalHash, SequenceHash};
use parking_lot::Mutex;

/// Blocks whose uses are counted at a time; 48 bytes each. Where there are more, those that were not
/// used for the longest time are forgotten.
const COUNTED_BLOCKS_MAX: usize = 1 << 20;
/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 256;
/// Places of which a block can take one.
const WAYS: usize = 8;
const SETS: usize = COUNTED_BLOCKS_MAX / SHARDS / WAYS;
/// Parts of the window: uses are forgotten part by part.
const SLICES: usize = 8;

/// Counts uses of blocks within a window of time.
///
/// A block stands for the whole prefix that ends with it, by our own rolling hash, so that prompts
/// count together wherever they are held. A use is remembered for the length of the window, less up to
/// an eighth of it. Counting a block takes one lock, which it shares with few others.
#[derive(Debug)]
pub(crate) struct RecentUses {
    started: Instant,
    slice: Duration,
    shards: Box<[Mutex<Shard>]>,
}

/// Uses of a query's blocks before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Recent uses of each block before this one.
    pub before: Vec<u32>,
    /// Blocks with recent uses that were forgotten to make room.
    pub forgotten: u64,
}

impl RecentUses {
    /// Counts uses of the last `window`, from now on. Takes memory as blocks are used.
    pub(crate) fn new(window: Duration, now: Instant) -> Self {
        let slice = (window / SLICES as u32).max(Duration::from_nanos(1));
        Self { started: now, slice, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Counts a use of every block of `prefix` in the model with this number, and says how many there
    /// were before.
    pub(crate) fn count(&self, model: u64, prefix: &[LocalHash], now: Instant) -> Uses {
        let slice = now.saturating_duration_since(self.started).as_nanos() / self.slice.as_nanos();
        // From one on, so that an unused place is older than every slice.
        let slice = NonZeroU64::MIN.saturating_add(u64::try_from(slice).unwrap_or(u64::MAX - 1));
        let mut uses = Uses::default();
        let mut block = SequenceHash(model);
        for &local in prefix {
            block = next_sequence_hash(Some(block), local);
            let (shard, within) = (block.0 as usize % SHARDS, block.0 as usize / SHARDS);
            let before = self.shards[shard].lock().count(block.0, within % SETS, slice.get());
            uses.before.push(before.uses);
            uses.forgotten += u64::from(before.forgot_another);
        }
        uses
    }
}

/// One part of the table. Nothing is allocated before the first use.
#[derive(Debug, Default)]
struct Shard {
    places: Vec<UseEntry>,
}

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
    forgot_another: bool,
}

impl Shard {
    fn count(&mut self, block: u64, set: usize, slice: u64) -> PreviousUses {
        if self.places.is_empty() {
            self.places = vec![UseEntry::default(); SETS * WAYS];
        }
        let places = &mut self.places[set * WAYS..][..WAYS];
        let known = places.iter().position(|place| place.last > 0 && place.block == block);
        let at = known.unwrap_or_else(|| (0..WAYS).min_by_key(|&at| places[at].last).unwrap_or(0));
        let place = &mut places[at];
        let forgot_another = known.is_none() && place.is_recent(slice);
        if known.is_none() {
            *place = UseEntry { block, last: slice, uses: [0; SLICES] };
        }
        PreviousUses { uses: place.use_in(slice), forgot_another }
    }
}

impl UseEntry {
    fn is_recent(&self, slice: u64) -> bool {
        self.last > 0 && slice.saturating_sub(self.last) < SLICES as u64
    }

    /// Notes a use and returns how many are remembered from before.
    fn use_in(&mut self, slice: u64) -> u32 {
        // Two queries may come in another order than their times.
        let slice = slice.max(self.last);
        if self.is_recent(slice) {
            (self.last + 1..=slice).for_each(|over| self.uses[over as usize % SLICES] = 0);
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
        // Each case fills a table of its own.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a list of all uses: those of this slice and of the seven before it count.
        #[test]
        fn uses_are_counted_as_a_plain_list_counts_them(
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
                prop_assert_eq!(uses, Uses { before: expected, forgotten: 0 });
            }
        }
    }

    #[test]
    fn the_longest_unused_blocks_make_room() {
        let start = Instant::now();
        let mut shard = Shard::default();
        for block in 0..WAYS as u64 {
            assert!(!shard.count(block, 5, 1 + block).forgot_another, "there is room");
        }
        let newcomer = shard.count(100, 5, 8);
        assert!(newcomer.forgot_another && newcomer.uses == 0, "the first one was used seven slices ago");
        assert_eq!(shard.count(1, 5, 8).uses, 1, "the second one is still there");
        assert!(!shard.count(101, 5, 30).forgot_another, "what is not recent is no loss");
        let uses = RecentUses::new(Duration::ZERO, start).count(1, &[LocalHash(1)], start);
        assert_eq!(uses.before, [0], "no window is too short to divide");
    }
}
