//! Routed blocks: blocks that an engine without events is assumed to hold, because routers have sent it their prompts.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_core::keyed::KeyedMap;

/// Blocks that one instance without events is assumed to hold.
///
/// Blocks are identified by prefix hash. A prompt refreshes all of its blocks, so the blocks before a block never expire
/// earlier than the block itself: with each block, the table has the whole prefix. Times are measured from one moment that the
/// caller chooses. A block costs O(log n) to record and to remove, and about 100 bytes.
#[derive(Debug, Default)]
pub struct RoutedBlocks {
    /// Expiry of each block.
    blocks: KeyedMap<SequenceHash, Duration>,
    /// Blocks in the order in which they are removed: by expiry, and of one prompt the last block first.
    order: BTreeSet<(Duration, Reverse<u32>, SequenceHash)>,
}

/// The effect of recording a prompt.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordedPrompt {
    /// Leading blocks of the prompt that the table had before.
    pub known: usize,
    /// Leading blocks of the prompt that the table has now.
    pub kept: usize,
}

impl RoutedBlocks {
    /// Records a prompt's blocks until `expires`, or longer if an earlier prompt lasts longer. Of a prompt with more than
    /// `blocks_max` blocks, the first ones are recorded. The caller then removes the blocks above the limit.
    pub fn record(&mut self, prefixes: &[SequenceHash], expires: Duration, blocks_max: usize) -> RecordedPrompt {
        let kept = prefixes.len().min(blocks_max);
        let mut known = 0;
        for (position, &prefix) in (0_u32..).zip(&prefixes[..kept]) {
            if let Some(known_until) = self.blocks.get(&prefix).copied() {
                known += 1;
                if known_until >= expires {
                    continue;
                }
                self.order.remove(&(known_until, Reverse(position), prefix));
            }
            self.blocks.insert(prefix, expires);
            self.order.insert((expires, Reverse(position), prefix));
        }
        RecordedPrompt { known, kept }
    }

    /// Removes expired blocks, and the blocks that would expire first while there are more than `blocks_max`. Removes at most
    /// `count_max`.
    pub fn remove(&mut self, now: Duration, blocks_max: usize, count_max: usize) -> Vec<SequenceHash> {
        let mut removed = Vec::new();
        while removed.len() < count_max
            && let Some(&first @ (expires, _, prefix)) = self.order.first()
            && (expires <= now || self.blocks.len() > blocks_max)
        {
            self.order.remove(&first);
            self.blocks.remove(&prefix);
            removed.push(prefix);
        }
        removed
    }

    /// Number of blocks, including expired blocks that are not removed yet.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Removes every block.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const ALL: usize = usize::MAX;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn hashes(numbers: &[u64]) -> Vec<SequenceHash> {
        numbers.iter().copied().map(SequenceHash).collect()
    }

    #[test]
    fn the_prompt_that_was_sent_longest_ago_is_removed_first_from_its_end() {
        let mut routed = RoutedBlocks::default();
        assert_eq!(routed.record(&hashes(&[1, 2, 3]), second(10), ALL), RecordedPrompt { known: 0, kept: 3 });
        assert_eq!(routed.record(&hashes(&[1, 4]), second(11), ALL), RecordedPrompt { known: 1, kept: 2 });
        assert_eq!(routed.remove(second(1), 2, ALL), hashes(&[3, 2]));
        assert_eq!(routed.remove(second(10), ALL, ALL), [], "the shared block lasts as long as the later prompt");
        assert_eq!(routed.remove(second(11), ALL, ALL), hashes(&[4, 1]));
    }

    #[test]
    fn of_a_prompt_beyond_the_limit_the_first_blocks_count() {
        let mut routed = RoutedBlocks::default();
        assert_eq!(routed.record(&hashes(&[1, 2, 3]), second(1), 2), RecordedPrompt { known: 0, kept: 2 });
        assert_eq!(routed.block_count(), 2);
        assert_eq!(routed.remove(second(9), ALL, 1).len(), 1, "one of two expired blocks");
    }

    proptest! {
        /// Compared with a table that scans all blocks: prompts are paths of a small tree.
        #[test]
        fn it_equals_a_scan(steps in prop::collection::vec((prop::collection::vec(0_u64..3, 1..6), 1_u64..9, 1_usize..12), 1..60)) {
            let mut routed = RoutedBlocks::default();
            let mut scanned: HashMap<SequenceHash, (Duration, u32)> = HashMap::new();
            for (now, (path, ttl, max)) in (0_u64..).zip(steps) {
                let mut prefix = 1;
                let prompt: Vec<_> = path.iter().map(|step| { prefix = prefix * 4 + step; SequenceHash(prefix) }).collect();
                let (now, expires) = (second(now), second(now + ttl));
                scanned.retain(|_, (end, _)| *end > now);
                routed.remove(now, ALL, ALL);
                let known = prompt.iter().take(max).take_while(|block| scanned.contains_key(block)).count();
                let recorded = routed.record(&prompt, expires, max);
                prop_assert_eq!(recorded, RecordedPrompt { known, kept: prompt.len().min(max) });
                for (position, block) in (0..).zip(prompt.iter().take(max)) {
                    let end = scanned.get(block).map_or(expires, |(end, _)| expires.max(*end));
                    scanned.insert(*block, (end, position));
                }
                let mut removed = routed.remove(now, max, ALL);
                let mut by_scan = Vec::new();
                while scanned.len() > max {
                    let (&first, _) = scanned.iter().min_by_key(|(block, (end, at))| (*end, Reverse(*at), **block)).expect("blocks");
                    scanned.remove(&first);
                    by_scan.push(first);
                }
                removed.sort_unstable();
                by_scan.sort_unstable();
                prop_assert_eq!(removed, by_scan);
                prop_assert_eq!(routed.block_count(), scanned.len());
                // With each block, its whole prefix: the parent of a number is a quarter of it.
                prop_assert!(scanned.keys().all(|block| block.0 < 16 || scanned.contains_key(&SequenceHash(block.0 / 4))));
            }
        }
    }
}
