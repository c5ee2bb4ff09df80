//! Fastest tiers of the blocks of a match.

use crate::keyed::KeyedMap;

use crate::{HeldBlock, LocalHash, PerTier, RankMatch, SequenceHash, Tier};

/// For each match of a query, counts its blocks by the fastest tier that holds them, given the blocks of each rank.
/// Linear in the blocks of the ranks, except for matches that are completely in device memory.
pub(crate) fn fastest_tiers(
    query: &[LocalHash],
    found: &[RankMatch],
    held: impl Fn(&RankMatch) -> Vec<HeldBlock>,
) -> Vec<PerTier<u32>> {
    let tiers = |found: &RankMatch| in_device(found).unwrap_or_else(|| of_held(&held(found), matched(query, found)));
    found.iter().map(tiers).collect()
}

/// The blocks of a query that a match covers.
pub(crate) fn matched<'q>(query: &'q [LocalHash], found: &RankMatch) -> &'q [LocalHash] {
    &query[..query.len().min(found.longest() as usize)]
}

/// The counts of a match that is no longer in any tier than in device memory.
pub(crate) fn in_device(found: &RankMatch) -> Option<PerTier<u32>> {
    let device = found.blocks[Tier::Device];
    (device == found.longest()).then(|| {
        let mut tiers = PerTier::default();
        tiers[Tier::Device] = device;
        tiers
    })
}

/// The counts for a rank that holds these blocks. If it has several sequence hashes for one prefix, the fastest copy
/// counts.
pub(crate) fn of_held(held: &[HeldBlock], matched: &[LocalHash]) -> PerTier<u32> {
    let mut following: KeyedMap<(Option<SequenceHash>, LocalHash), Vec<&HeldBlock>> = KeyedMap::default();
    for block in held {
        following.entry((block.parent, block.local)).or_default().push(block);
    }
    let mut tiers = PerTier::default();
    let mut reached: Vec<Option<SequenceHash>> = vec![None];
    for &local in matched {
        let blocks: Vec<&HeldBlock> =
            reached.iter().filter_map(|&parent| following.get(&(parent, local))).flatten().copied().collect();
        let Some(tier) = blocks.iter().filter_map(|block| block.fastest_tier()).min() else { break };
        tiers[tier] += 1;
        reached = blocks.iter().map(|block| Some(block.sequence)).collect();
    }
    tiers
}
