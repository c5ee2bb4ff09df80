//! Answers of the run index: depths by holder, the table that assigns holders to ranks, and matches by rank.

use rustc_hash::FxHashMap;

use super::matches::Scratch;
use super::published::Published;
use super::published::rank_table::RankSlot;
use crate::{MatchScores, PerTier, RankMatch, Tier, WorkerRank};

/// Reusable answer of [`RunIndex`](super::RunIndex): depths by holder.
///
/// A holder is a small number for a rank and, where the rank uses several tiers, one of its levels;
/// [`RunIndex::holders`](super::RunIndex::holders) maps holders to ranks. Listing the matches of a large fleet costs more than finding them, so
/// this form omits the list.
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

/// Converts depths by holder to matches by rank.
pub(super) fn scores(published: &Published, found: &Scratch) -> MatchScores {
    let mut ranks: Vec<RankMatch> = Vec::new();
    // Ranks with several levels have several holders.
    let mut levelled: FxHashMap<RankSlot, usize> = FxHashMap::default();
    found.depths.for_each(|holder, depth| {
        let assignment = published.ranks.assignment(holder);
        if !assignment.is_in_use() {
            return;
        }
        if assignment.covers_all_levels() {
            ranks.push(RankMatch { rank: published.ranks.rank(assignment.rank), blocks: PerTier([depth; 4]) });
            return;
        }
        let at = *levelled.entry(assignment.rank).or_insert(ranks.len());
        if at == ranks.len() {
            ranks.push(RankMatch { rank: published.ranks.rank(assignment.rank), blocks: PerTier::default() });
        }
        for level in Tier::ALL.into_iter().filter(|&level| assignment.covers_level(level)) {
            ranks[at].blocks[level] = depth;
        }
    });
    MatchScores { ranks }
}
