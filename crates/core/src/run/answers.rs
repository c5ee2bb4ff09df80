//! Answers of the run index: depths by holder, the table that assigns holders to ranks, and matches by rank.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::published::Published;
use super::published::holdings::Holder;
use super::published::rank_table::{HolderAssignment, RankSlot};
use super::scratch::Scratch;
use crate::deepest::DeepestRanks;
use crate::{DeepestMatches, DpRank, MatchScores, PerTier, RankMatch, RankOrder, Tier, WorkerId, WorkerRank};

/// Reusable answer of [`RunIndex`](super::RunIndex): depths by holder.
///
/// A holder is a small number for a rank and, where the rank uses several tiers, one of its levels;
/// [`RunIndex::holders`](super::RunIndex::holders) maps holders to ranks. Listing the matches of a large fleet costs more
/// than finding them, so this form omits the list.
#[derive(Debug, Default)]
pub struct RunMatches {
    pub(super) scratch: Scratch,
    version: u64,
}

impl RunMatches {
    /// Leading blocks of the query by holder; zero for holders without a match. A holder that is no longer in use
    /// ([`RunHolders::holders`] has none there) may still have a depth, which is to be ignored.
    #[must_use]
    pub fn depths(&self) -> &[u32] {
        self.scratch.depths.as_slice()
    }

    /// Calls `each` with every holder that has a match, and its depth in blocks.
    pub fn for_each(&self, mut each: impl FnMut(usize, u32)) {
        self.scratch.depths.for_each(|holder, depth| each(holder.0 as usize, depth));
    }

    /// Holders with the deepest matches and their depths, after [`RunIndex::find_top`](super::RunIndex::find_top).
    pub fn top(&self) -> impl ExactSizeIterator<Item = (usize, u32)> {
        self.scratch.top.iter().map(|&(holder, depth)| (holder.0 as usize, depth))
    }

    /// Records the result of a query. An abandoned index yields none, which clears the answer.
    pub(super) fn record_result(&mut self, found: Option<((), u64)>) {
        match found {
            Some(((), version)) => self.version = version,
            None => *self = Self::default(),
        }
    }

    /// The [`RunHolders::version`] to which the holders belong.
    #[must_use]
    pub fn holders_version(&self) -> u64 {
        self.version
    }
}

/// The assignment of all holders of a [`RunIndex`](super::RunIndex) at one moment.
#[derive(Debug, Clone, Default)]
pub struct RunHolders {
    /// Changes whenever ranks join or leave; a table with another version no longer applies.
    pub version: u64,
    /// Indexed by holder; none for a holder that is not in use.
    pub holders: Vec<Option<RunHolder>>,
}

/// The rank and tiers that one holder of a [`RunIndex`](super::RunIndex) represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunHolder {
    /// The rank to which the depth belongs.
    pub rank: WorkerRank,
    /// Fastest tier of the levels that the holder covers. For each tier from `fastest` to `slowest`, the depth is the
    /// rank's depth in that tier and all faster ones.
    pub fastest: Tier,
    /// Slowest tier of those levels.
    pub slowest: Tier,
}

/// Ranks and holders of an index as of one version of its rank table, resolved so that a query looks up each match with
/// one load.
#[derive(Debug, Default)]
pub(super) struct ResolvedRanks {
    pub(super) version: u64,
    /// Indexed by holder.
    holders: Vec<ResolvedHolder>,
    slots: FxHashMap<WorkerRank, RankSlot>,
}

/// Holders that are added to an answer with one check of its room, if all of them match.
const TOGETHER: usize = 16;

#[derive(Debug, Clone, Copy)]
struct ResolvedHolder {
    rank: WorkerRank,
    assignment: HolderAssignment,
}

impl ResolvedRanks {
    /// Reads the rank table. Costs the number of ranks and holders. The caller validates the read.
    pub(super) fn read(published: &Published) -> Self {
        let unused = WorkerRank { worker: WorkerId(0), dp_rank: DpRank(0) };
        let holders = (0..published.ranks.holder_count()).map(|holder| {
            let assignment = published.ranks.assignment(Holder(holder as u32));
            let rank = if assignment.is_in_use() { published.ranks.rank(assignment.rank) } else { unused };
            ResolvedHolder { rank, assignment }
        });
        Self { version: 0, holders: holders.collect(), slots: published.ranks.in_use().collect() }
    }

    pub(super) fn slot(&self, rank: WorkerRank) -> Option<RankSlot> {
        self.slots.get(&rank).copied()
    }

    /// Converts depths by holder to matches by rank.
    pub(super) fn scores(&self, found: &mut Scratch) -> MatchScores {
        let Scratch { depths, levelled, .. } = found;
        let mut ranks: Vec<RankMatch> = Vec::with_capacity(depths.matches_max());
        let mut add = |ranks: &mut Vec<RankMatch>, &ResolvedHolder { rank, assignment }: &ResolvedHolder, depth| {
            if assignment.covers_all_levels() {
                ranks.push(RankMatch { rank, blocks: PerTier([depth; 4]) });
            } else if assignment.is_in_use() {
                // A rank with several levels has several holders.
                let at = levelled.index_of(assignment.rank, ranks.len());
                if at == ranks.len() {
                    ranks.push(RankMatch { rank, blocks: PerTier::default() });
                }
                for level in Tier::ALL.into_iter().filter(|&level| assignment.covers_level(level)) {
                    ranks[at].blocks[level] = depth;
                }
            }
        };
        match depths.listed() {
            Some(listed) => {
                for (holder, depth) in listed {
                    if let Some(resolved) = self.holders.get(holder.0 as usize) {
                        add(&mut ranks, resolved, depth);
                    }
                }
            }
            None => {
                for (holders, depths) in self.holders.chunks(TOGETHER).zip(depths.as_slice().chunks(TOGETHER)) {
                    let pairs = holders.iter().zip(depths);
                    if pairs.clone().all(|(resolved, &depth)| depth > 0 && resolved.assignment.covers_all_levels()) {
                        let matches = pairs.map(|(resolved, &depth)| (resolved.rank, PerTier([depth; 4])));
                        ranks.extend(matches.map(|(rank, blocks)| RankMatch { rank, blocks }));
                    } else {
                        pairs
                            .filter(|(_, depth)| **depth > 0)
                            .for_each(|(resolved, &depth)| add(&mut ranks, resolved, depth));
                    }
                }
            }
        }
        levelled.clear();
        MatchScores { ranks }
    }

    /// Selects the deepest ranks from depths by holder.
    pub(super) fn deepest(&self, found: &mut Scratch, count: usize, ordered: &ResolvedOrder) -> DeepestMatches {
        let Scratch { depths, levelled, .. } = found;
        let mut deepest = DeepestRanks::new(count);
        let mut longest = 0;
        // The matches of ranks with several holders, which are complete after all holders were visited.
        let mut of_levels: Vec<(RankMatch, Option<u32>)> = Vec::new();
        depths.for_each(|holder, depth| {
            // No level of a rank is deeper in device memory than this one.
            if depth < deepest.least_depth() && depth <= longest {
                return;
            }
            let Some(&ResolvedHolder { rank, assignment }) = self.holders.get(holder.0 as usize) else { return };
            let precedence = ordered.by_holder[holder.0 as usize];
            if assignment.covers_all_levels() {
                longest = depth.max(longest);
                if let Some(precedence) = precedence {
                    deepest.offer(RankMatch { rank, blocks: PerTier([depth; 4]) }, precedence);
                }
            } else if assignment.is_in_use() {
                let at = levelled.index_of(assignment.rank, of_levels.len());
                if at == of_levels.len() {
                    of_levels.push((RankMatch { rank, blocks: PerTier::default() }, precedence));
                }
                for level in Tier::ALL.into_iter().filter(|&level| assignment.covers_level(level)) {
                    of_levels[at].0.blocks[level] = depth;
                }
            }
        });
        levelled.clear();
        for (found, precedence) in of_levels {
            longest = found.longest().max(longest);
            if let Some(precedence) = precedence {
                deepest.offer(found, precedence);
            }
        }
        DeepestMatches { ranks: deepest.into_ranks(), longest }
    }
}

/// The precedence of each holder's rank in an order, as of one version of the rank table.
#[derive(Debug, Default)]
pub(super) struct ResolvedOrder {
    version: u64,
    order: Arc<RankOrder>,
    /// Indexed by holder; none for a rank that is in no answer.
    by_holder: Vec<Option<u32>>,
}

impl ResolvedOrder {
    pub(super) fn new(resolved: &ResolvedRanks, order: &Arc<RankOrder>) -> Self {
        let by_holder = resolved.holders.iter().map(|holder| order.precedence(holder.rank)).collect();
        Self { version: resolved.version, order: Arc::clone(order), by_holder }
    }

    pub(super) fn is_of(&self, resolved: &ResolvedRanks, order: &Arc<RankOrder>) -> bool {
        self.version == resolved.version && Arc::ptr_eq(&self.order, order)
    }
}
