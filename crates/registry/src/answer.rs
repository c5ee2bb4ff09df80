//! Answers to queries, in tokens and in the users' names.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::{DpRank, PerTier, Tier};

use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

/// Which ranks an answer has.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueryOptions {
    /// Only so many ranks with the deepest matches, none without a match.
    pub top_k: Option<NonZeroUsize>,
    /// Only ranks that match at least so many tokens in device memory.
    pub min_score: Option<u64>,
}

/// One rank's part of an answer.
#[derive(Debug, Clone)]
pub struct RankAnswer {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Leading tokens held when a tier and the faster ones are used together.
    pub tokens: PerTier<u64>,
    /// Blocks that the rank holds of anything.
    pub blocks_held: usize,
    /// How far the index can be believed about this rank.
    pub trust: Trust,
    /// Whether the index has had to forget some of what the rank holds: then `tokens` may be too few.
    pub partial: bool,
}

impl RankAnswer {
    /// Deeper in device memory first; then deeper in any tier.
    fn depth(&self) -> (u64, u64) {
        (self.tokens[Tier::Device], self.tokens[Tier::External])
    }
}

/// What the fleet holds of a prompt, ordered by instance and rank.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// A part for each rank.
    pub ranks: Vec<RankAnswer>,
    /// For each leading block that any rank holds in any tier, how many queries have reached it lately,
    /// without this one; empty where that is not counted.
    pub frequencies: Vec<u32>,
    /// What the shared index had to say.
    pub store: StoreAnswer,
}

/// Whether the ranks of other replicas are in an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreAnswer {
    /// There is no shared index.
    #[default]
    None,
    /// They are.
    Asked,
    /// They are not: the store did not answer in time.
    Unavailable,
}

impl StoreAnswer {
    /// What it is called; none where no index is shared.
    #[must_use]
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Asked => Some("ok"),
            Self::Unavailable => Some("unavailable"),
        }
    }
}

impl Answer {
    /// Takes in ranks that count as others have published them, in place of what it says of the same ranks.
    pub fn merge(&mut self, others: impl IntoIterator<Item = RankAnswer>) {
        let mut others = others.into_iter().peekable();
        if others.peek().is_none() {
            return;
        }
        let mut own: BTreeMap<(InstanceId, DpRank), usize> = BTreeMap::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            own.insert((rank.instance.clone(), rank.dp_rank), at);
        }
        for other in others {
            match own.get(&(other.instance.clone(), other.dp_rank)) {
                None => self.ranks.push(other),
                Some(&at) => self.ranks[at] = other,
            }
        }
    }

    /// What these options leave of it, in order.
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
