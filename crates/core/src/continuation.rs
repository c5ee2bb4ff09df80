//! Matches of a rank that other ranks continue: an engine that loads further blocks from a shared cache.

use crate::{LocalHash, PerTier, SequenceHash, SharedIndex, Tier, WorkerRank};

/// The blocks of a query that other ranks hold, to continue the matches of ranks.
///
/// A match of *d* blocks is continued by each next block of the query that one of the others holds, regardless of the
/// earlier blocks that this other rank holds. Blocks belong to the query if they are linked to its start: by the parents
/// that their rank has stored, or by the sequence hash of the previous block, which another rank holds. If a rank has several
/// sequence hashes for one prefix, one of them counts, so a continuation may be too short.
///
/// [`Oracle::continued`](crate::oracle::Oracle::continued) defines this.
pub struct Continuations<'i> {
    index: &'i dyn SharedIndex,
    query: &'i [LocalHash],
    others: Vec<OtherRank>,
}

/// One of the ranks that continue matches.
struct OtherRank {
    rank: WorkerRank,
    /// The fastest tier of each block of the query that it holds and whose parents are known.
    tiers: Vec<Option<Tier>>,
    /// Whether it holds blocks whose parents it has not stored.
    has_waiting: bool,
}

/// The holder of the last block of a match.
enum LastHolder {
    /// The match is empty.
    Start,
    /// A rank that has stored the block's parents.
    Of(WorkerRank),
    /// A block with this sequence hash.
    Named(SequenceHash),
}

impl std::fmt::Debug for Continuations<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let others: Vec<_> = self.others.iter().map(|other| other.rank).collect();
        f.debug_struct("Continuations").field("others", &others).finish_non_exhaustive()
    }
}

impl<'i> Continuations<'i> {
    /// Looks up the blocks of a query that `others` hold. Costs [`SharedIndex::held_along`] for each of them.
    #[must_use]
    pub fn of(
        index: &'i dyn SharedIndex,
        query: &'i [LocalHash],
        others: impl IntoIterator<Item = WorkerRank>,
    ) -> Self {
        let other =
            |rank| OtherRank { rank, tiers: index.held_along(rank, query), has_waiting: index.size(rank).waiting > 0 };
        Self { index, query, others: others.into_iter().map(other).collect() }
    }

    /// Continues the match of a rank, `own`, by the others with these indexes. Returns for each of them that continues it
    /// the depth of the continued match, zero in tiers in which it adds nothing.
    ///
    /// Costs the continued blocks. The index is searched at the end of the match only if one of the others holds blocks
    /// whose parents it has not stored.
    #[must_use]
    pub fn reaches(&self, rank: WorkerRank, own: PerTier<u32>, others: &[usize]) -> Vec<(usize, PerTier<u32>)> {
        let mut reaches: Vec<(usize, PerTier<u32>)> = Vec::new();
        for slowest in Tier::ALL {
            let mut end = own[slowest] as usize;
            let mut last = if end == 0 { LastHolder::Start } else { LastHolder::Of(rank) };
            loop {
                let continued = others.iter().find_map(|&other| {
                    let (to, last) = self.continued_by(other, (end, &last), slowest)?;
                    Some((other, to, last))
                });
                let Some((other, to, new_last)) = continued else { break };
                (end, last) = (to, new_last);
                match reaches.iter_mut().find(|(known, _)| *known == other) {
                    Some((_, reach)) => reach[slowest] = end as u32,
                    None => {
                        let mut reach = PerTier::default();
                        reach[slowest] = end as u32;
                        reaches.push((other, reach));
                    }
                }
            }
        }
        for (_, reach) in &mut reaches {
            for tier in 1..reach.0.len() {
                // A match in faster tiers is one in this tier as well.
                reach.0[tier] = reach.0[tier].max(reach.0[tier - 1]);
            }
        }
        reaches
    }

    /// The end to which one of the others continues a match, if it does.
    fn continued_by(
        &self,
        other: usize,
        (end, last): (usize, &LastHolder),
        slowest: Tier,
    ) -> Option<(usize, LastHolder)> {
        let OtherRank { rank, tiers, has_waiting } = &self.others[other];
        let is_usable = |tier: &Option<Tier>| tier.is_some_and(|tier| tier <= slowest);
        let count = tiers.get(end..).unwrap_or_default().iter().take_while(|tier| is_usable(tier)).count();
        if count > 0 {
            return Some((end + count, LastHolder::Of(*rank)));
        }
        if !has_waiting || end == self.query.len() {
            return None;
        }
        let parent = match last {
            LastHolder::Start => return None,
            LastHolder::Of(holder) => self.index.sequence_along(*holder, &self.query[..end])?,
            LastHolder::Named(sequence) => *sequence,
        };
        let followers = self.index.waiting_after(*rank, parent, &self.query[end..]);
        let usable = followers.iter().take_while(|follower| follower.fastest <= slowest);
        let (count, last) = usable.fold((0, None), |(count, _), follower| (count + 1, Some(follower.sequence)));
        last.map(|last| (end + count, LastHolder::Named(last)))
    }
}
