//! Answers to queries.

use crate::{PerTier, Tier, WorkerRank};

/// Prefix length of one rank for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMatch {
    /// The rank.
    pub rank: WorkerRank,
    /// Leading **blocks** of the query that the rank holds in a tier and all faster ones together. Never decreases
    /// from a tier to a slower one.
    pub blocks: PerTier<u32>,
}

impl RankMatch {
    /// Leading blocks held in any tier.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.blocks[Tier::External]
    }
}

/// Matches of one query, one entry for each rank that holds at least the first block in some tier. The order of the
/// entries depends on the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchScores {
    /// The matches.
    pub ranks: Vec<RankMatch>,
}

impl MatchScores {
    /// The match of one rank, if it holds any block of the prefix. Linear in the number of matches.
    #[must_use]
    pub fn get(&self, rank: WorkerRank) -> Option<&RankMatch> {
        self.ranks.iter().find(|entry| entry.rank == rank)
    }

    /// The same matches in order of rank, for comparing designs.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.ranks.sort_unstable_by_key(|entry| entry.rank);
        self
    }
}
