//! The deepest few ranks of an answer.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{MatchScores, RankMatch, Tier, WorkerId, WorkerRank};

/// The ranks that an answer may have, and their order among equal matches.
#[derive(Debug, Default)]
pub struct RankOrder {
    positions: FxHashMap<WorkerRank, u32>,
    workers: FxHashSet<WorkerId>,
}

impl RankOrder {
    /// An order of `ranks`, and of further ranks of `workers`. A rank of none of them is in no answer.
    #[must_use]
    pub fn new(ranks: impl IntoIterator<Item = WorkerRank>, workers: impl IntoIterator<Item = WorkerId>) -> Self {
        Self { positions: ranks.into_iter().zip(0..).collect(), workers: workers.into_iter().collect() }
    }

    /// Position of a rank in the list that the order was created from.
    #[must_use]
    pub fn position(&self, rank: WorkerRank) -> Option<usize> {
        self.positions.get(&rank).map(|&position| position as usize)
    }

    /// Whether the rank is not in the list, but belongs to one of the workers.
    #[must_use]
    pub fn is_unlisted(&self, rank: WorkerRank) -> bool {
        !self.positions.contains_key(&rank) && self.workers.contains(&rank.worker)
    }

    /// Precedence among equal matches, lowest first. Unlisted ranks of the workers come first: an answer without one of
    /// them is right at every position among equals.
    pub(crate) fn precedence(&self, rank: WorkerRank) -> Option<u32> {
        let listed = self.positions.get(&rank).map(|position| position + 1);
        listed.or_else(|| self.workers.contains(&rank.worker).then_some(0))
    }
}

/// The deepest ranks of a query, in no particular order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeepestMatches {
    /// Ranks with the longest match in device memory, then in any tier, then the first ones of the [`RankOrder`].
    pub ranks: Vec<RankMatch>,
    /// Leading blocks that any rank holds in any tier, including a rank that is in no answer.
    pub longest: u32,
}

impl DeepestMatches {
    /// The deepest `count` of a complete answer.
    #[must_use]
    pub fn of(scores: MatchScores, count: usize, order: &RankOrder) -> Self {
        let mut deepest = DeepestRanks::new(count);
        let mut longest = 0;
        for found in scores.ranks {
            longest = found.longest().max(longest);
            if let Some(precedence) = order.precedence(found.rank) {
                deepest.offer(found, precedence);
            }
        }
        Self { ranks: deepest.into_ranks(), longest }
    }
}

/// Selection of the deepest ranks.
#[derive(Debug)]
pub(crate) struct DeepestRanks {
    count: usize,
    /// The rank that the next deeper one replaces is at the top.
    ranks: BinaryHeap<Candidate>,
}

impl DeepestRanks {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, ranks: BinaryHeap::new() }
    }

    /// Adds a rank if fewer than the wanted number precede it.
    pub(crate) fn offer(&mut self, found: RankMatch, precedence: u32) {
        let candidate = Candidate { found, precedence };
        if self.ranks.len() < self.count {
            self.ranks.push(candidate);
        } else if let Some(mut last) = self.ranks.peek_mut()
            && candidate < *last
        {
            *last = candidate;
        }
    }

    /// Lowest depth in device memory with which a rank may still be added.
    pub(crate) fn least_depth(&self) -> u32 {
        let last = self.ranks.peek().filter(|_| self.ranks.len() == self.count);
        last.map_or(0, |last| last.found.blocks[Tier::Device])
    }

    pub(crate) fn into_ranks(self) -> Vec<RankMatch> {
        self.ranks.into_iter().map(|candidate| candidate.found).collect()
    }
}

/// A rank and its place: the deepest one is the least.
#[derive(Debug)]
struct Candidate {
    found: RankMatch,
    precedence: u32,
}

impl Candidate {
    fn place(&self) -> (u32, u32, u32) {
        let RankMatch { blocks, .. } = self.found;
        (u32::MAX - blocks[Tier::Device], u32::MAX - blocks[Tier::External], self.precedence)
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}
