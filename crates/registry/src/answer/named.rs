//! Ranks that carry their names: answers with ranks of other replicas, or of instances known from a dump only.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_core::{DpRank, PerTier, Tier};
use flash_indexer_types::{InstanceId, Trust};

use super::{Answer, InstanceName, QueryOptions, RankAnswer, SharedMatch};

/// One rank's part of an answer, with the id of its instance. The other fields are those of [`RankAnswer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRank {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Leading tokens held.
    pub tokens: PerTier<u64>,
    /// Blocks that the rank holds.
    pub blocks_held: usize,
    /// Trust in the rank.
    pub trust: Trust,
    /// Whether `tokens` is a lower bound.
    pub partial: bool,
    /// Shared caches that hold more than the rank does itself, with their leading tokens.
    pub shared: Vec<(InstanceId, u64)>,
}

impl NamedRank {
    /// Sort key: depth in device memory, then depth in any tier.
    fn depth(&self) -> (u64, u64) {
        (self.tokens[Tier::Device], self.tokens[Tier::External])
    }
}

/// Ranks of an answer, in any order.
#[derive(Debug, Default)]
pub(crate) struct NamedRanks(pub Vec<NamedRank>);

impl NamedRanks {
    /// Adds the matches of remote ranks. They replace the local matches of the same ranks.
    pub(crate) fn merge(&mut self, remote: impl IntoIterator<Item = NamedRank>) {
        let mut remote = remote.into_iter().peekable();
        if remote.peek().is_none() {
            return;
        }
        let local = self.0.iter().enumerate().map(|(at, rank)| ((rank.instance.clone(), rank.dp_rank), at));
        let local: BTreeMap<(InstanceId, DpRank), usize> = local.collect();
        for rank in remote {
            match local.get(&(rank.instance.clone(), rank.dp_rank)) {
                None => self.0.push(rank),
                Some(&at) => self.0[at] = rank,
            }
        }
    }

    /// Applies the options, and sorts by instance and rank.
    pub(crate) fn select(self, options: QueryOptions) -> Answer {
        let Self(mut ranks) = self;
        ranks.retain(|rank| options.admits(&rank.tokens));
        let by_name = |a: &NamedRank, b: &NamedRank| (&a.instance, a.dp_rank).cmp(&(&b.instance, b.dp_rank));
        if let Some(top_k) = options.top_k {
            ranks.retain(|rank| rank.depth() > (0, 0));
            ranks.sort_by(|a, b| b.depth().cmp(&a.depth()).then_with(|| by_name(a, b)));
            ranks.truncate(top_k.get());
        }
        ranks.sort_by(by_name);
        let mut names: Vec<InstanceName> = Vec::new();
        let (mut answers, mut all_shared) = (Vec::with_capacity(ranks.len()), Vec::new());
        for NamedRank { instance, dp_rank, tokens, blocks_held, trust, partial, shared } in ranks {
            if names.last().is_none_or(|name| *name.id() != instance) {
                names.push(InstanceName::new(&instance));
            }
            let instance = names.len() as u32 - 1;
            all_shared.extend(shared.iter().map(|(cache, tokens)| SharedMatch {
                instance,
                cache: Arc::new(InstanceName::new(cache)),
                tokens: *tokens,
            }));
            answers.push(RankAnswer { instance, dp_rank, tokens, blocks_held, trust, partial });
        }
        Answer { names: names.into(), ranks: answers, shared: all_shared, ..Answer::default() }
    }
}
