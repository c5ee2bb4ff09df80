//! Queries.

use std::cmp::Reverse;

use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::hashing::{HashVariant, local_hashes};
use flash_indexer_core::{DeepestMatches, LocalHash, MatchScores, PerTier, RankMatch, SharedIndex, Tier, WorkerRank};
use rustc_hash::FxHashMap;

use crate::error::EmbedError;
use crate::index::EmbeddedIndex;
use crate::listed::RankSnapshot;
use crate::trust::TrustState;

/// A rank that holds the first block of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRank {
    /// The rank.
    pub rank: WorkerRank,
    /// Leading **blocks** of the query that the rank holds in a tier and all faster ones together.
    pub blocks: PerTier<u32>,
    /// Trust in the rank.
    pub trust: TrustState,
}

impl EmbeddedIndex {
    /// Finds the ranks that hold the first block of a prompt, given by local hashes. With `top_k`, the deepest ones in device
    /// memory, deepest first; equal ranks are ordered by depth in any tier, then by instance and rank. Without it, all in no
    /// particular order.
    ///
    /// Costs the blocks and the holders on the query's path, regardless of the size of the index.
    ///
    /// # Errors
    ///
    /// When a change has panicked.
    pub fn find_hashes(&self, query: &[LocalHash], top_k: Option<usize>) -> Result<Vec<FoundRank>, EmbedError> {
        self.check()?;
        let ranks = self.shared.listed.snapshot();
        Ok(self.answer(&ranks, self.find(&ranks, query, End::Block, top_k), top_k))
    }

    /// The same for a prompt given by tokens, hashed as the engines hash their prompts. A partial last block is ignored.
    ///
    /// # Errors
    ///
    /// When a change has panicked.
    pub fn find_tokens(
        &self,
        variant: HashVariant,
        tokens: &[u32],
        top_k: Option<usize>,
    ) -> Result<Vec<FoundRank>, EmbedError> {
        self.check()?;
        let ranks = self.shared.listed.snapshot();
        let block_size = self.shared.block_size;
        let mut windows = self.shared.windows.in_use();
        let find = |window, top_k| {
            let query = local_hashes(variant, tokens, block_size, window);
            let end = match query.len() * block_size.token_count() == tokens.len() {
                true => End::Prompt,
                false => End::Block,
            };
            self.find(&ranks, &query, end, top_k)
        };
        let first = windows.next().unwrap_or_default();
        let found = match windows.next() {
            None => find(first, top_k),
            Some(second) => {
                // A rank may be among the deepest by one window and not by the other.
                let merged = merge(find(first, None), find(second, None));
                match top_k {
                    Some(count) => DeepestMatches::of(MatchScores { ranks: merged }, count, &ranks.order).ranks,
                    None => merged,
                }
            }
        };
        Ok(self.answer(&ranks, found, top_k))
    }

    fn find(&self, ranks: &RankSnapshot, query: &[LocalHash], end: End, top_k: Option<usize>) -> Vec<RankMatch> {
        let index: &GroupedIndex = &self.shared.index;
        match (end, top_k) {
            (End::Prompt, Some(count)) => index.find_prompt_deepest(query, count, &ranks.order).ranks,
            (End::Prompt, None) => index.find_prompt(query).ranks,
            (End::Block, Some(count)) => index.find_deepest(query, count, &ranks.order).ranks,
            (End::Block, None) => index.find(query).ranks,
        }
    }

    /// Adds trust to matches, and leaves out ranks that are not registered any more.
    fn answer(&self, ranks: &RankSnapshot, found: Vec<RankMatch>, top_k: Option<usize>) -> Vec<FoundRank> {
        let with_trust = |RankMatch { rank, blocks }| {
            let published = ranks.trust(rank)?;
            let may_wait = published.has_waiting();
            let trust = match published.state() {
                TrustState::Exact if may_wait && self.shared.index.size(rank).waiting > 0 => TrustState::Degraded,
                state => state,
            };
            Some(FoundRank { rank, blocks, trust })
        };
        let mut found: Vec<FoundRank> = found.into_iter().filter_map(with_trust).collect();
        if top_k.is_some() {
            let depth = |FoundRank { rank, blocks, .. }: &FoundRank| {
                (Reverse(blocks[Tier::Device]), Reverse(blocks[Tier::External]), *rank)
            };
            found.sort_unstable_by_key(depth);
        }
        found
    }
}

/// Role of a query's last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// A block of a longer prompt.
    Block,
    /// The end of the prompt. A hybrid model's rank has to compute its last token, and may need earlier blocks for that.
    Prompt,
}

/// The deepest match of each rank by either of two token windows.
fn merge(first: Vec<RankMatch>, second: Vec<RankMatch>) -> Vec<RankMatch> {
    let mut deepest: FxHashMap<WorkerRank, PerTier<u32>> = FxHashMap::default();
    for RankMatch { rank, blocks } in first.into_iter().chain(second) {
        let known = deepest.entry(rank).or_default();
        known.0.iter_mut().zip(blocks.0).for_each(|(known, blocks)| *known = (*known).max(blocks));
    }
    deepest.into_iter().map(|(rank, blocks)| RankMatch { rank, blocks }).collect()
}
