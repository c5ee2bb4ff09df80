//! The leading blocks of a prompt that a rank holds, and blocks it holds after a gap.

use flash_indexer_core::keyed::{KeyedMap, KeyedSet};
use flash_indexer_core::{BlockEvent, LocalHash, PerTier, SequenceHash, Tier};

/// Sequence hashes followed for one block. More occur only if engines hash one prefix in many ways.
const HASHES_PER_BLOCK_MAX: usize = 8;
/// Detached runs listed for one rank.
const DETACHED_RUNS_MAX: usize = 64;

/// The blocks of a prompt that one rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Walk {
    /// Leading blocks held when a tier and the faster ones are used together.
    pub(super) blocks: PerTier<usize>,
    /// The first block after the match in device memory, if a slower tier holds it.
    pub(super) slower: Option<SlowerTierBlock>,
    /// Blocks of the prompt held after a gap, by position.
    pub(super) detached_runs: Vec<DetachedRun>,
    /// Distinct blocks that the rank holds, of any prompt.
    pub(super) blocks_held: usize,
    /// One sequence hash of the rank for each leading block.
    pub(super) path: Vec<SequenceHash>,
}

/// A block held outside device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlowerTierBlock {
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
}

/// Sequence hashes of a prompt's leading blocks, by position.
pub(super) type KnownHashes = Vec<Vec<SequenceHash>>;

/// A run of consecutive blocks of a prompt whose parent the rank does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DetachedRun {
    /// Position of the first block.
    pub(super) position: usize,
    /// Sequence hash of the block before it.
    pub(super) parent: SequenceHash,
    /// Length of the run.
    pub(super) blocks: usize,
}

impl Walk {
    /// Leading blocks held in any tier.
    pub(super) fn longest(&self) -> usize {
        self.blocks[Tier::External]
    }

    /// Follows `query` through a rank's dump and adds the sequence hashes found to `known`. Linear in the dump; keeps
    /// only blocks whose content the query has.
    pub(super) fn new(query: &[LocalHash], dump: &[BlockEvent], known: &mut KnownHashes) -> Self {
        let held = QueryHoldings::new(query, dump);
        let found = held.follow(query, None, Tier::External);
        let blocks = PerTier(Tier::ALL.map(|tier| held.follow(query, None, tier).len()));
        let after_match = found.get(blocks[Tier::Device]).into_iter().flatten();
        let slower = after_match.map(|&sequence| SlowerTierBlock { tier: held.tiers[&sequence], sequence });
        let slower = slower.min_by_key(|slower| slower.tier);
        found.iter().enumerate().for_each(|(position, found)| add_known_hashes(known, position, found));
        let path = found.iter().filter_map(|hashes| hashes.first().copied()).collect();
        let detached_runs = held.detached_runs(query, found.len());
        Self { blocks, slower, detached_runs, blocks_held: held.blocks_held, path }
    }
}

/// Adds sequence hashes of the block at `position`, up to the limit for one block.
pub(super) fn add_known_hashes(known: &mut KnownHashes, position: usize, found: &[SequenceHash]) {
    if known.len() <= position {
        known.resize_with(position + 1, Vec::new);
    }
    let known = &mut known[position];
    for hash in found {
        if known.len() < HASHES_PER_BLOCK_MAX && !known.contains(hash) {
            known.push(*hash);
        }
    }
}

/// Blocks of a rank whose content a query has, at any position.
struct QueryHoldings {
    /// Held blocks by their parent.
    children: KeyedMap<Option<SequenceHash>, Vec<(SequenceHash, LocalHash)>>,
    tiers: KeyedMap<SequenceHash, Tier>,
    /// Parents that the rank does not hold, by the content of their children.
    missing_parents: KeyedMap<LocalHash, Vec<SequenceHash>>,
    blocks_held: usize,
}

impl QueryHoldings {
    fn new(query: &[LocalHash], dump: &[BlockEvent]) -> Self {
        let wanted: KeyedSet<LocalHash> = query.iter().copied().collect();
        let mut children: KeyedMap<_, Vec<_>> = KeyedMap::default();
        let mut tiers: KeyedMap<SequenceHash, Tier> = KeyedMap::default();
        let mut all = KeyedSet::default();
        for event in dump {
            let BlockEvent::Stored { tier, parent, blocks, .. } = event else { continue };
            let mut parent = *parent;
            for block in blocks {
                all.insert(block.sequence);
                if wanted.contains(&block.local) {
                    let known = tiers.entry(block.sequence);
                    let is_new = matches!(known, std::collections::hash_map::Entry::Vacant(_));
                    let fastest = known.or_insert(*tier);
                    *fastest = (*fastest).min(*tier);
                    if is_new {
                        children.entry(parent).or_default().push((block.sequence, block.local));
                    }
                }
                parent = Some(block.sequence);
            }
        }
        let mut missing_parents: KeyedMap<_, Vec<_>> = KeyedMap::default();
        for (&parent, blocks) in &children {
            if let Some(parent) = parent.filter(|parent| !all.contains(parent)) {
                blocks.iter().for_each(|&(_, local)| missing_parents.entry(local).or_default().push(parent));
            }
        }
        Self { children, tiers, missing_parents, blocks_held: all.len() }
    }

    /// Sequence hashes of the blocks of `query` that follow `start`, as long as `slowest` or a faster tier holds them.
    fn follow(&self, query: &[LocalHash], start: Option<SequenceHash>, slowest: Tier) -> Vec<Vec<SequenceHash>> {
        let mut path: Vec<Vec<SequenceHash>> = Vec::new();
        let mut reached = vec![start];
        for &wanted in query {
            let children = reached.iter().filter_map(|parent| self.children.get(parent)).flatten();
            let matching = children.filter(|&&(child, local)| local == wanted && self.tiers[&child] <= slowest);
            let next: Vec<SequenceHash> = matching.map(|&(child, _)| child).take(HASHES_PER_BLOCK_MAX).collect();
            if next.is_empty() {
                break;
            }
            reached = next.iter().copied().map(Some).collect();
            path.push(next);
        }
        path
    }

    /// Runs of `query` after position `end` whose parents are not held.
    fn detached_runs(&self, query: &[LocalHash], end: usize) -> Vec<DetachedRun> {
        let mut runs = Vec::new();
        for (position, wanted) in query.iter().enumerate().skip(end + 1) {
            for &parent in self.missing_parents.get(wanted).into_iter().flatten() {
                if runs.len() == DETACHED_RUNS_MAX {
                    return runs;
                }
                let blocks = self.follow(&query[position..], Some(parent), Tier::External).len();
                runs.push(DetachedRun { position, parent, blocks });
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::Block;

    use super::*;

    /// Blocks whose local hash is ten times their sequence hash.
    fn stored(tier: Tier, parent: Option<u64>, hashes: &[u64]) -> BlockEvent {
        let blocks = hashes.iter().map(|&hash| Block { sequence: SequenceHash(hash), local: LocalHash(10 * hash) });
        BlockEvent::Stored { tier, parent: parent.map(SequenceHash), blocks: blocks.collect(), copies: 1 }
    }

    fn walk(query: &[u64], dump: &[BlockEvent]) -> (Walk, KnownHashes) {
        let query: Vec<LocalHash> = query.iter().map(|&hash| LocalHash(10 * hash)).collect();
        let mut known = KnownHashes::new();
        (Walk::new(&query, dump, &mut known), known)
    }

    #[test]
    fn a_walk_counts_each_tier_together_with_the_faster_ones() {
        let dump = [
            stored(Tier::Device, None, &[1, 2]),
            stored(Tier::Disk, None, &[1]),
            stored(Tier::Host, Some(2), &[3]),
            stored(Tier::Device, Some(3), &[4, 50]),
        ];
        let (found, known) = walk(&[1, 2, 3, 4, 5], &dump);
        assert_eq!(found.blocks, PerTier([2, 4, 4, 4]));
        assert_eq!(found.slower, Some(SlowerTierBlock { tier: Tier::Host, sequence: SequenceHash(3) }));
        assert_eq!(known.concat(), [1, 2, 3, 4].map(SequenceHash));
        assert_eq!((found.longest(), found.blocks_held, found.detached_runs.len()), (4, 5, 0));
        assert_eq!(
            walk(&[2], &dump).0,
            Walk { blocks_held: 5, ..Walk::default() },
            "a match starts at the first block of a sequence"
        );
    }

    #[test]
    fn a_walk_finds_blocks_behind_a_gap_and_the_sequence_hash_of_the_missing_block() {
        let dump = [
            stored(Tier::Device, None, &[1]),
            stored(Tier::Device, Some(3), &[4, 5]),
            stored(Tier::Device, Some(7), &[8]),
        ];
        let (found, _) = walk(&[1, 2, 3, 4, 5, 6], &dump);
        assert_eq!(found.longest(), 1);
        assert_eq!(found.detached_runs, [DetachedRun { position: 3, parent: SequenceHash(3), blocks: 2 }]);
    }

    #[test]
    fn a_walk_follows_both_sequence_hashes_of_one_prefix() {
        let twin = |hash: u64, parent: Option<u64>, local: u64| BlockEvent::Stored {
            tier: Tier::Device,
            parent: parent.map(SequenceHash),
            blocks: vec![Block { sequence: SequenceHash(hash), local: LocalHash(local) }],
            copies: 1,
        };
        let (found, known) = walk(&[1, 2], &[twin(1, None, 10), twin(101, None, 10), twin(102, Some(101), 20)]);
        assert_eq!(found.longest(), 2);
        assert_eq!(known[0].len(), 2);
    }
}
