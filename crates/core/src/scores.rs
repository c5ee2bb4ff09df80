//! The answer to a query.

use crate::{PerTier, Tier, WorkerRank};

/// How much of a query's prefix one rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMatch {
    /// The rank.
    pub rank: WorkerRank,
    /// Leading **blocks** of the query that the rank holds when a tier and the faster ones are
    /// used together. Never decreases from tier to slower tier.
    pub blocks: PerTier<u32>,
}

impl RankMatch {
    /// Leading blocks held in any tier.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.blocks[Tier::External]
    }
}

/// Matches of one query, one entry for each rank that holds at least its first block in some tier.
/// The order of entries is the index's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchScores {
    /// The matches.
    pub ranks: Vec<RankMatch>,
}

impl MatchScores {
    /// The match of one rank, if it holds anything of the prefix. Linear in the number of matches.
    #[must_use]
    pub fn get(&self, rank: WorkerRank) -> Option<&RankMatch> {
        self.ranks.iter().find(|entry| entry.rank == rank)
    }

    /// The same matches ordered by rank, so that answers of different designs can be compared.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.ranks.sort_unstable_by_key(|entry| entry.rank);
        self
    }
}
