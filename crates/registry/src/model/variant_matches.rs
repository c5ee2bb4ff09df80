//! Matches of a prompt in each of its hash variants.

use flash_indexer_core::{LocalHash, MatchScores, PerTier, RankMatch};

/// Matches of a prompt, for each of its hash variants.
pub(crate) type VariantMatches<'q> = [(&'q [LocalHash], MatchScores)];

/// The matches of all hash variants.
pub(super) fn rank_matches<'f>(found: &'f VariantMatches<'_>) -> impl Iterator<Item = RankMatch> + 'f {
    found.iter().flat_map(|(_, scores)| scores.ranks.iter().copied())
}

/// Raises the depths of a rank to those of another match.
pub(super) fn deepen(depths: &mut PerTier<u32>, blocks: PerTier<u32>) {
    for (deepest, blocks) in depths.0.iter_mut().zip(blocks.0) {
        *deepest = blocks.max(*deepest);
    }
}
