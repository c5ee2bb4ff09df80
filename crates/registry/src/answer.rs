//! Answers to queries, in tokens and with the names of instances.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::{DpRank, PerTier, Tier};

use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

/// Selects the ranks of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueryOptions {
    /// Maximum number of ranks, those with the deepest matches. Ranks without a match are left out.
    pub top_k: Option<NonZeroUsize>,
    /// Minimum match in device memory, in tokens.
    pub min_score: Option<u64>,
}

/// One rank's part of an answer.
#[derive(Debug, Clone)]
pub struct RankAnswer {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Leading tokens held, when a tier and the faster ones are used together.
    pub tokens: PerTier<u64>,
    /// Blocks that the rank holds, of any prompt.
    pub blocks_held: usize,
    /// Trust in the rank.
    pub trust: Trust,
    /// Whether the bounded index evicted blocks that the rank holds. `tokens` is then a lower bound.
    pub partial: bool,
}

impl RankAnswer {
    /// Sort key: depth in device memory, then depth in any tier.
    fn depth(&self) -> (u64, u64) {
        (self.tokens[Tier::Device], self.tokens[Tier::External])
    }
}

/// The matches of a prompt in the fleet, ordered by instance and rank.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// A part for each rank.
    pub ranks: Vec<RankAnswer>,
    /// Recent queries that matched each leading block, without this query. For the blocks that any rank holds in any
    /// tier; empty if uses are not counted.
    pub frequencies: Vec<u32>,
    /// Whether the answer includes other replicas.
    pub store: StoreAnswer,
}

/// Whether an answer includes the ranks of other replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreAnswer {
    /// No shared store is configured.
    #[default]
    None,
    /// It includes them.
    Included,
    /// It does not: the store did not respond in time.
    Unavailable,
}

impl StoreAnswer {
    /// Name in answers; none if no shared store is configured.
    #[must_use]
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Included => Some("ok"),
            Self::Unavailable => Some("unavailable"),
        }
    }
}

impl Answer {
    /// Adds the matches of remote ranks. They replace the local matches of the same ranks.
    pub fn merge(&mut self, remote: impl IntoIterator<Item = RankAnswer>) {
        let mut remote = remote.into_iter().peekable();
        if remote.peek().is_none() {
            return;
        }
        let mut local: BTreeMap<(InstanceId, DpRank), usize> = BTreeMap::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            local.insert((rank.instance.clone(), rank.dp_rank), at);
        }
        for rank in remote {
            match local.get(&(rank.instance.clone(), rank.dp_rank)) {
                None => self.ranks.push(rank),
                Some(&at) => self.ranks[at] = rank,
            }
        }
    }

    /// Applies the options, and sorts by instance and rank.
    pub fn select(mut self, options: QueryOptions) -> Self {
        let ranks = &mut self.ranks;
        if let Some(min_score) = options.min_score {
            ranks.retain(|rank| rank.tokens[Tier::Device] >= min_score);
        }
        let by_name = |a: &RankAnswer, b: &RankAnswer| (&a.instance, a.dp_rank).cmp(&(&b.instance, b.dp_rank));
        if let Some(top_k) = options.top_k {
            ranks.retain(|rank| rank.depth() > (0, 0));
            ranks.sort_by(|a, b| b.depth().cmp(&a.depth()).then_with(|| by_name(a, b)));
            ranks.truncate(top_k.get());
        }
        ranks.sort_by(by_name);
        self
    }
}
