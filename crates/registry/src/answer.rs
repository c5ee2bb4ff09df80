//! Answers to queries, in tokens and with the names of instances.

mod named;

use std::num::NonZeroUsize;
use std::sync::Arc;

use flash_indexer_core::{DpRank, PerTier, Tier};
use flash_indexer_types::{InstanceId, Trust};

pub use self::named::NamedRank;
pub(crate) use self::named::NamedRanks;

/// Options of a query: the prefix that it continues, and the ranks that are answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueryOptions {
    /// Maximum number of ranks, those with the deepest matches. Ranks without a match are left out.
    pub top_k: Option<NonZeroUsize>,
    /// Minimum match in device memory, in tokens.
    pub min_score: Option<u64>,
    /// Cursor of the prefix that the prompt continues. The query has only what follows it.
    pub after: Option<u64>,
}

impl QueryOptions {
    /// Whether a rank with this match is deep enough.
    pub(crate) fn admits(&self, tokens: &PerTier<u64>) -> bool {
        self.min_score.is_none_or(|min_score| tokens[Tier::Device] >= min_score)
    }
}

/// The matches of a prompt in the fleet.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub(crate) names: Arc<[InstanceName]>,
    /// A part for each rank, ordered by instance and rank.
    pub ranks: Vec<RankAnswer>,
    /// Blocks that shared caches add to the matches of these ranks, in the order of instances; empty without shared caches.
    pub(crate) shared: Vec<SharedMatch>,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Recent queries that matched each leading block, without this query. For the blocks that any rank holds in any
    /// tier; empty if uses are not counted.
    pub frequencies: Vec<u32>,
    /// Whether the answer includes other replicas.
    pub store: StoreAnswer,
    /// Where a later query can continue the prompt; none if the prompt is short, or has several token windows.
    pub cursor: Option<AnswerCursor>,
}

/// A prefix of a query's prompt that a later query can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerCursor {
    /// The cursor for [`QueryOptions::after`].
    pub cursor: u64,
    /// Tokens of the prefix: the later query starts with the token after them.
    pub tokens: u64,
}

impl Answer {
    /// The answer of the ranks that the options select.
    #[must_use]
    pub fn of(ranks: Vec<NamedRank>, options: QueryOptions) -> Self {
        NamedRanks(ranks).select(options)
    }

    /// The name of a rank's instance.
    #[must_use]
    pub fn name(&self, rank: &RankAnswer) -> &InstanceName {
        &self.names[rank.instance as usize]
    }

    /// Blocks of a number of matched tokens.
    #[must_use]
    pub fn blocks(&self, tokens: u64) -> u32 {
        let blocks = tokens / u64::from(self.block_tokens.max(1));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// The shared caches that hold more of the prompt than at least one of these ranks itself. The ranks are those of one instance. Each
    /// cache is listed once, with the leading tokens that it holds in any tier.
    #[must_use]
    pub fn shared_matches(&self, ranks: &[RankAnswer]) -> Vec<(&InstanceName, u64)> {
        let Some(instance) = ranks.first().map(|rank| rank.instance).filter(|_| !self.shared.is_empty()) else {
            return Vec::new();
        };
        let start = self.shared.partition_point(|shared| shared.instance < instance);
        let mut matches: Vec<(&InstanceName, u64)> = Vec::new();
        for shared in self.shared[start..].iter().take_while(|shared| shared.instance == instance) {
            match matches.iter_mut().find(|(cache, _)| cache.id() == shared.cache.id()) {
                Some((_, tokens)) => *tokens = shared.tokens.max(*tokens),
                None => matches.push((&shared.cache, shared.tokens)),
            }
        }
        matches
    }

    /// Whether no shared cache adds to the match of any rank.
    #[must_use]
    pub fn has_no_shared_matches(&self) -> bool {
        self.shared.is_empty()
    }

    /// The ranks of each instance.
    pub fn instances(&self) -> impl Iterator<Item = (&InstanceName, &[RankAnswer])> {
        self.ranks.chunk_by(|a, b| a.instance == b.instance).map(|ranks| (self.name(&ranks[0]), ranks))
    }
}

/// One rank's part of an answer.
#[derive(Debug, Clone, Copy)]
pub struct RankAnswer {
    /// Index of the instance's name.
    pub(crate) instance: u32,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Leading tokens held, when a tier and the faster ones are used together. Those of shared caches count in slower tiers.
    pub tokens: PerTier<u64>,
    /// Blocks that the rank holds, of any prompt.
    pub blocks_held: usize,
    /// Trust in the rank, or the worse one in a shared cache that adds to its match.
    pub trust: Trust,
    /// Whether the bounded index evicted blocks that the rank holds. `tokens` is then a lower bound.
    pub partial: bool,
}

/// Blocks of a prompt that a shared cache holds, and a rank of an instance that is attached to it does not.
#[derive(Debug, Clone)]
pub(crate) struct SharedMatch {
    /// Index of the instance's name.
    pub instance: u32,
    /// The shared cache.
    pub cache: Arc<InstanceName>,
    /// Leading tokens that it holds in any tier.
    pub tokens: u64,
}

/// The name of an instance, prepared for answers.
#[derive(Debug, Clone)]
pub struct InstanceName {
    id: InstanceId,
    json_key: Box<str>,
}

impl InstanceName {
    pub(crate) fn new(id: &InstanceId) -> Self {
        let json_key = serde_json::to_string(id.as_key()).expect("a text is valid JSON").into_boxed_str();
        Self { id: id.clone(), json_key }
    }

    /// The instance's id.
    #[must_use]
    pub fn id(&self) -> &InstanceId {
        &self.id
    }

    /// The id as the key of a JSON object, quoted and escaped.
    #[must_use]
    pub fn json_key(&self) -> &str {
        &self.json_key
    }
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
