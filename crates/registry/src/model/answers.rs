//! Answers of one model's index, with the names of instances.

use std::collections::BTreeMap;
use std::time::Instant;

use flash_indexer_core::{DpRank, LocalHash, MatchScores, PerTier, RankMatch, RankSize, SharedIndex, WorkerRank};
use flash_indexer_telemetry::metrics::Limit;

use super::Model;
use crate::answer::{Answer, RankAnswer};

impl Model {
    /// The match of every rank for a prompt of `tokens` tokens whose blocks have these local hashes.
    pub(crate) fn find_prompt(&self, locals: &[LocalHash], tokens: usize) -> MatchScores {
        if self.ends_with_block(locals, tokens) { self.index().find_prompt(locals) } else { self.index().find(locals) }
    }

    /// Whether a prompt of `tokens` tokens, whose blocks have these local hashes, ends at the end of a block.
    pub(crate) fn ends_with_block(&self, locals: &[LocalHash], tokens: usize) -> bool {
        locals.len() * self.block_size.token_count() == tokens
    }

    /// The answer for every rank, with the deepest match of any hash variant.
    pub(crate) fn answer(&self, found: &[(&[LocalHash], MatchScores)]) -> Answer {
        let mut ranks: BTreeMap<WorkerRank, (PerTier<u32>, RankSize)> = BTreeMap::new();
        for (rank, size) in self.index().sizes() {
            ranks.insert(rank, (PerTier::default(), size));
        }
        for &RankMatch { rank, blocks } in found.iter().flat_map(|(_, scores)| &scores.ranks) {
            let (deepest, _) = ranks.entry(rank).or_default();
            for (deepest, blocks) in deepest.0.iter_mut().zip(blocks.0) {
                *deepest = blocks.max(*deepest);
            }
        }
        Answer { ranks: self.name_ranks(&ranks), frequencies: self.record_query(found), ..Answer::default() }
    }

    /// Counts a query, given in its hash variants, and a use of each block that it matched. Returns the previous uses
    /// of each block.
    pub(crate) fn record_query(&self, found: &[(&[LocalHash], MatchScores)]) -> Vec<u32> {
        let deepest = deepest(found.iter().map(|(query, scores)| (*query, scores)));
        self.counts.query(deepest.queried, deepest.matched.len());
        self.count_uses(deepest.matched)
    }

    /// Counts a use of each block and returns the previous uses.
    fn count_uses(&self, prefix: &[LocalHash]) -> Vec<u32> {
        let Some(recent_uses) = &self.recent_uses else { return Vec::new() };
        let uses = recent_uses.count(self.id, prefix, Instant::now());
        self.metrics.limit_reached_by(Limit::RecentUses, uses.evicted);
        uses.before
    }

    /// Adds names to the matches of the index. Ranks without a registered instance are left out.
    fn name_ranks(&self, found: &BTreeMap<WorkerRank, (PerTier<u32>, RankSize)>) -> Vec<RankAnswer> {
        let block_tokens = u64::from(self.block_size.tokens());
        let partial = self.partial_ranks();
        let is_partial = |rank: &WorkerRank| partial.as_ref().is_some_and(|ranks| ranks.contains(rank));
        let mut answers = Vec::new();
        for (name, instance) in self.instances.read().iter() {
            let rank_of_worker = |dp_rank| WorkerRank { worker: instance.worker, dp_rank };
            let seen = found.range(rank_of_worker(DpRank(0))..=rank_of_worker(DpRank(u32::MAX)));
            let mut ranks: BTreeMap<DpRank, (PerTier<u32>, RankSize)> =
                instance.listeners.keys().map(|&dp_rank| (dp_rank, Default::default())).collect();
            ranks.extend(seen.map(|(rank, found)| (rank.dp_rank, *found)));
            for (dp_rank, (blocks, size)) in ranks {
                answers.push(RankAnswer {
                    instance: name.clone(),
                    dp_rank,
                    tokens: PerTier(blocks.0.map(|blocks| u64::from(blocks) * block_tokens)),
                    blocks_held: size.blocks,
                    trust: instance.trust(dp_rank),
                    partial: is_partial(&WorkerRank { worker: instance.worker, dp_rank }),
                });
            }
        }
        answers
    }
}

/// The longest match of a query in any rank.
#[derive(Default)]
struct QueryDepth<'q> {
    /// Blocks of the query.
    queried: usize,
    /// Leading blocks that some rank holds in any tier.
    matched: &'q [LocalHash],
}

/// The deepest of a query's hash variants.
fn deepest<'q, 's>(found: impl Iterator<Item = (&'q [LocalHash], &'s MatchScores)>) -> QueryDepth<'q> {
    let depths = found.map(|(query, scores)| {
        let longest = scores.ranks.iter().map(RankMatch::longest).max().unwrap_or(0) as usize;
        QueryDepth { queried: query.len(), matched: &query[..longest.min(query.len())] }
    });
    depths.max_by_key(|depth| (depth.matched.len(), depth.queried)).unwrap_or_default()
}
