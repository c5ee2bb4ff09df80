//! Blocks of a query that a rank holds after blocks that it does not hold. Only the writer has this state.

use super::Writer;
use crate::run::find::walk;
use crate::run::matches::Step;
use crate::run::published::layout::RunPosition;
use crate::{Follower, LocalHash, SequenceHash, Tier, WorkerRank};

impl Writer {
    /// The fastest tier of each block of a query that the rank holds, as far as the index has the query. Of several sequence
    /// hashes of one prefix, the first one counts. Costs one walk.
    pub(in crate::run) fn held_along(&self, rank: WorkerRank, query: &[LocalHash]) -> Vec<Option<Tier>> {
        let Some(slot) = self.ranks.slot(rank) else { return Vec::new() };
        let path = self.path_of(query);
        let known = path.last().map_or(0, |step| step.base + step.matched);
        let mut tiers = vec![None; known as usize];
        for step in &path {
            // Fastest first.
            for (tier, blocks) in self.coverage(step.run, slot).by_tier() {
                let blocks = u32::from(blocks.start)..u32::from(blocks.end).min(step.matched);
                for block in blocks {
                    tiers[(step.base + block) as usize].get_or_insert(tier);
                }
            }
        }
        tiers
    }

    /// The sequence hash under which the rank's domain has the last block of a prefix that the rank holds at its end.
    pub(in crate::run) fn sequence_along(&self, rank: WorkerRank, prefix: &[LocalHash]) -> Option<SequenceHash> {
        let slot = self.ranks.slot(rank)?;
        let path = self.path_of(prefix);
        let last = path.last().filter(|step| (step.base + step.matched) as usize == prefix.len())?;
        let position = RunPosition { run: last.run, offset: (last.matched - 1) as u16 };
        let domain = self.ranks.get(slot).domain;
        self.holds(slot, position).then(|| self.sequence_of(domain, position))
    }

    /// The rank's waiting blocks that follow a block one after another with the query's local hashes. Costs the blocks that wait for
    /// the same parents.
    pub(in crate::run) fn waiting_after(
        &self,
        rank: WorkerRank,
        parent: SequenceHash,
        query: &[LocalHash],
    ) -> Vec<Follower> {
        let Some(slot) = self.ranks.slot(rank) else { return Vec::new() };
        let waiting = &self.ranks.get(slot).waiting;
        let mut parent = parent;
        let next = |&local: &LocalHash| {
            let block = waiting.followers(parent).find(|block| block.local == local)?;
            parent = block.sequence;
            Some(Follower { sequence: block.sequence, fastest: block.fastest_tier()? })
        };
        query.iter().map_while(next).collect()
    }

    /// The runs of a query. Nothing changes meanwhile, because only the writer changes anything.
    fn path_of(&self, query: &[LocalHash]) -> Vec<Step> {
        let mut path = Vec::new();
        let walked = walk(&self.published, self.published.edges.generation(), query, &mut path, |_, _| {});
        debug_assert!(walked.is_ok(), "only the writer changes anything");
        path
    }
}
