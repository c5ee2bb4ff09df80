//! Answers of the run index: depths by holder, the table that assigns holders to ranks, and matches by rank.

use rustc_hash::FxHashMap;

use super::matches::Scratch;
use super::published::Published;
use super::published::rank_table::RankSlot;
use crate::{MatchScores, PerTier, RankMatch, Tier, WorkerRank};

/// An answer of [`RunIndex`] in its own form: depths by holder, in memory that is used again.
///
/// A holder is a small number for a rank and, where the rank uses several tiers, one of its levels;
/// [`RunIndex::holders`] says which. The list of a large fleet's matches costs more than finding them:
/// this form leaves it out.
#[derive(Debug, Default)]
pub struct RunMatches {
    pub(super) scratch: Scratch,
    version: u64,
}

impl RunMatches {
    /// Leading blocks of the query by holder; zero for those without a match. A holder that is in use no
    /// more ([`RunHolders::holders`] has none there) may still have a depth: it counts for nobody.
    #[must_use]
    pub fn depths(&self) -> &[u32] {
        self.scratch.depths.as_slice()
    }

    /// Calls `each` with every holder that has a match, and its depth in blocks.
    pub fn for_each(&self, mut each: impl FnMut(usize, u32)) {
        self.scratch.depths.for_each(|holder, depth| each(holder.0 as usize, depth));
    }

    /// Holders with the deepest matches and their depths, after [`RunIndex::find_top`].
    pub fn top(&self) -> impl ExactSizeIterator<Item = (usize, u32)> {
        self.scratch.top.iter().map(|&(holder, depth)| (holder.0 as usize, depth))
    }

    /// Takes in how a query ended: one of an abandoned index has found nothing.
    pub(super) fn record_result(&mut self, found: Option<((), u64)>) {
        match found {
            Some(((), version)) => self.version = version,
            None => *self = Self::default(),
        }
    }

    /// The [`RunHolders::version`] that the holders are of.
    #[must_use]
    pub fn holders_version(&self) -> u64 {
        self.version
    }
}

/// What the holders of a [`RunIndex`] stand for, at one moment.
#[derive(Debug, Clone, Default)]
pub struct RunHolders {
    /// Changes whenever ranks come or go; then another table is needed.
    pub version: u64,
    /// By holder; none where it is not in use.
    pub holders: Vec<Option<RunHolder>>,
}

/// What one holder of a [`RunIndex`] stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunHolder {
    /// Whose depth it is.
    pub rank: WorkerRank,
    /// Its depth is the rank's when a tier from `fastest` to `slowest` is used with all faster ones.
    pub fastest: Tier,
    /// The last tier of those.
    pub slowest: Tier,
}

/// Depths by holder as matches by rank.
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
