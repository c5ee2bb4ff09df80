//! How far a rank's blocks follow a prompt, and what it holds beyond.

use flash_indexer_core::keyed::{KeyedMap, KeyedSet};
use flash_indexer_core::{BlockEvent, LocalHash, PerTier, SequenceHash, Tier};

/// Names of one block that are followed; more come only from engines that name one prefix in many ways.
const NAMES_MAX: usize = 8;
/// Pieces of the prompt that are held without what comes before them.
const PIECES_MAX: usize = 64;

/// A rank's part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Walk {
    /// Leading blocks held when a tier and the faster ones are used together.
    pub(super) blocks: PerTier<usize>,
    /// The first block behind those in device memory, if it is held in a slower tier.
    pub(super) slower: Option<SlowerTierBlock>,
    /// Blocks of the prompt that are held behind something missing, the one furthest to the front first.
    pub(super) pieces: Vec<Piece>,
    /// Distinct blocks that the rank holds of anything.
    pub(super) blocks_held: usize,
    /// One of its own names of each leading block.
    pub(super) path: Vec<SequenceHash>,
}

/// A block that is held, but not in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlowerTierBlock {
    pub(super) tier: Tier,
    pub(super) sequence: SequenceHash,
}

/// Names of a prompt's leading blocks, by position.
pub(super) type Names = Vec<Vec<SequenceHash>>;

/// Consecutive blocks of a prompt whose parent is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Position of the first one.
    pub(super) position: usize,
    /// Name of the block before it.
    pub(super) parent: SequenceHash,
    /// How many there are.
    pub(super) blocks: usize,
}

impl Walk {
    /// Leading blocks held in any tier.
    pub(super) fn longest(&self) -> usize {
        self.blocks[Tier::External]
    }

    /// Follows `query` through a rank's dump, and adds the names of what it finds to `names`. Linear in
    /// the dump; keeps only blocks that the query has.
    pub(super) fn new(query: &[LocalHash], dump: &[BlockEvent], names: &mut Names) -> Self {
        let held = QueryHoldings::new(query, dump);
        let found = held.follow(query, None, Tier::External);
        let blocks = PerTier(Tier::ALL.map(|tier| held.follow(query, None, tier).len()));
        let behind = found.get(blocks[Tier::Device]).into_iter().flatten();
        let slower = behind.map(|&sequence| SlowerTierBlock { tier: held.tiers[&sequence], sequence });
        let slower = slower.min_by_key(|slower| slower.tier);
        found.iter().enumerate().for_each(|(position, found)| add_names_at(names, position, found));
        let path = found.iter().filter_map(|names| names.first().copied()).collect();
        Self { blocks, slower, pieces: held.pieces(query, found.len()), blocks_held: held.blocks_held, path }
    }
}

/// Adds names of one block to those known already.
pub(super) fn add_names_at(names: &mut Names, position: usize, found: &[SequenceHash]) {
    if names.len() <= position {
        names.resize_with(position + 1, Vec::new);
    }
    let known = &mut names[position];
    for name in found {
        if known.len() < NAMES_MAX && !known.contains(name) {
            known.push(*name);
        }
    }
}

/// What a rank holds of content that a query has, wherever it lies in a sequence.
struct QueryHoldings {
    followers: KeyedMap<Option<SequenceHash>, Vec<(SequenceHash, LocalHash)>>,
    tiers: KeyedMap<SequenceHash, Tier>,
    /// By content, the parents of blocks of the query whose parents are not held.
    unheld_parents: KeyedMap<LocalHash, Vec<SequenceHash>>,
    blocks_held: usize,
}

impl QueryHoldings {
    fn new(query: &[LocalHash], dump: &[BlockEvent]) -> Self {
        let wanted: KeyedSet<LocalHash> = query.iter().copied().collect();
        let mut followers: KeyedMap<_, Vec<_>> = KeyedMap::default();
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
                        followers.entry(parent).or_default().push((block.sequence, block.local));
                    }
                }
                parent = Some(block.sequence);
            }
        }
        let mut unheld_parents: KeyedMap<_, Vec<_>> = KeyedMap::default();
        for (&parent, blocks) in &followers {
            if let Some(parent) = parent.filter(|parent| !all.contains(parent)) {
                blocks.iter().for_each(|&(_, local)| unheld_parents.entry(local).or_default().push(parent));
            }
        }
        Self { followers, tiers, unheld_parents, blocks_held: all.len() }
    }

    /// Names of the blocks of `query` that follow `start`, as long as they lie in `slowest` or a faster tier.
    fn follow(&self, query: &[LocalHash], start: Option<SequenceHash>, slowest: Tier) -> Vec<Vec<SequenceHash>> {
        let mut names: Vec<Vec<SequenceHash>> = Vec::new();
        let mut reached = vec![start];
        for &wanted in query {
            let followers = reached.iter().filter_map(|name| self.followers.get(name)).flatten();
            let fits = followers.filter(|&&(name, local)| local == wanted && self.tiers[&name] <= slowest);
            let next: Vec<SequenceHash> = fits.map(|&(name, _)| name).take(NAMES_MAX).collect();
            if next.is_empty() {
                break;
            }
            reached = next.iter().copied().map(Some).collect();
            names.push(next);
        }
        names
    }

    /// Where blocks of `query` behind position `end` are held whose parents are not.
    fn pieces(&self, query: &[LocalHash], end: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (position, wanted) in query.iter().enumerate().skip(end + 1) {
            for &parent in self.unheld_parents.get(wanted).into_iter().flatten() {
                if pieces.len() == PIECES_MAX {
                    return pieces;
                }
                let blocks = self.follow(&query[position..], Some(parent), Tier::External).len();
                pieces.push(Piece { position, parent, blocks });
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::Block;

    use super::*;

    /// Blocks whose content is ten times their name.
    fn stored(tier: Tier, parent: Option<u64>, names: &[u64]) -> BlockEvent {
        let blocks = names.iter().map(|&name| Block { sequence: SequenceHash(name), local: LocalHash(10 * name) });
        BlockEvent::Stored { tier, parent: parent.map(SequenceHash), blocks: blocks.collect(), copies: 1 }
    }

    fn walk(query: &[u64], dump: &[BlockEvent]) -> (Walk, Names) {
        let query: Vec<LocalHash> = query.iter().map(|&name| LocalHash(10 * name)).collect();
        let mut names = Names::new();
        (Walk::new(&query, dump, &mut names), names)
    }

    #[test]
    fn tiers_go_together_and_are_told_block_by_block() {
        let dump = [
            stored(Tier::Device, None, &[1, 2]),
            stored(Tier::Disk, None, &[1]),
            stored(Tier::Host, Some(2), &[3]),
            stored(Tier::Device, Some(3), &[4, 50]),
        ];
        let (found, names) = walk(&[1, 2, 3, 4, 5], &dump);
        assert_eq!(found.blocks, PerTier([2, 4, 4, 4]));
        assert_eq!(found.slower, Some(SlowerTierBlock { tier: Tier::Host, sequence: SequenceHash(3) }));
        assert_eq!(names.concat(), [1, 2, 3, 4].map(SequenceHash));
        assert_eq!((found.longest(), found.blocks_held, found.pieces.len()), (4, 5, 0));
        assert_eq!(walk(&[2], &dump).0, Walk { blocks_held: 5, ..Walk::default() }, "it does not start there");
    }

    #[test]
    fn what_lies_behind_a_hole_is_found_with_the_name_of_the_missing_block() {
        let dump = [
            stored(Tier::Device, None, &[1]),
            stored(Tier::Device, Some(3), &[4, 5]),
            stored(Tier::Device, Some(7), &[8]),
        ];
        let (found, _) = walk(&[1, 2, 3, 4, 5, 6], &dump);
        assert_eq!(found.longest(), 1);
        assert_eq!(found.pieces, [Piece { position: 3, parent: SequenceHash(3), blocks: 2 }]);
    }

    #[test]
    fn two_names_for_one_prefix_are_both_followed() {
        let twin = |name: u64, parent: Option<u64>, local: u64| BlockEvent::Stored {
            tier: Tier::Device,
            parent: parent.map(SequenceHash),
            blocks: vec![Block { sequence: SequenceHash(name), local: LocalHash(local) }],
            copies: 1,
        };
        let (found, names) = walk(&[1, 2], &[twin(1, None, 10), twin(101, None, 10), twin(102, Some(101), 20)]);
        assert_eq!(found.longest(), 2);
        assert_eq!(names[0].len(), 2);
    }
}
