//! Queries that meet twins. A rank that has two sequence hashes for one prefix holds two chains with the same local
//! hashes.
//!
//! The walk follows one chain, which nearly all holders share, and merges their depths as usual. The other chains
//! leave it, or each other, at twins: they are **branches**. The query follows them after the walk, run by run, and
//! visits only holders of their runs. So a query costs as much as without twins, plus the runs and holders of
//! the branches.

use super::comparison::{Conflict, as_child, match_length};
use super::effort::{self, Effort};
use super::matches::{Depths, Step};
use super::published::Published;
use super::published::atomics::{Acquire, fence};
use super::published::holdings::Holder;
use super::published::layout::{Info, RunId, RunPosition};
use crate::LocalHash;

/// Twins that one query follows. Beyond this limit the depths of holders on the skipped twins may be too low.
pub(super) const TWINS_FOLLOWED_MAX: usize = 256;

/// A run of a branch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Branch {
    pub(super) step: Step,
    /// The number of the run above it, among all runs of branches; none if that run is on the walk's path.
    pub(super) above: Option<u32>,
}

/// A run of a branch that has been found but not compared yet.
#[derive(Debug, Clone, Copy)]
struct PendingRun {
    run: RunId,
    version: u64,
    info: Info,
    base: usize,
    above: Option<u32>,
}

/// Where a holder was last seen on the way down a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastSeen {
    /// The run's number among all runs of branches, plus one; zero is none.
    branch: u32,
    depth: u32,
}

impl LastSeen {
    const NEVER: Self = Self { branch: 0, depth: 0 };
}

/// The branches of a query, and the buffers for following them.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// Runs in depth-first order: each after the run above it and after all descendants of its earlier siblings.
    runs: Vec<Branch>,
    pending: Vec<PendingRun>,
    /// Twins followed so far.
    twins: usize,
    /// Twins beyond the limit.
    twins_skipped: usize,
    /// Indexed by holder.
    last_seen: Vec<LastSeen>,
    /// Previous values of `last_seen`, restored on the way up.
    undo: Vec<(Holder, LastSeen)>,
    /// By run: the length of `undo` after its holders were visited.
    marks: Vec<usize>,
    found: Vec<(Holder, u32)>,
}

impl Branches {
    /// Runs of all branches, each after the run above it.
    pub(super) fn runs(&self) -> &[Branch] {
        &self.runs
    }

    /// Twins that the query did not follow; their descendants are skipped as well.
    pub(super) fn twins_skipped(&self) -> usize {
        self.twins_skipped
    }

    /// Removes all branches.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.pending.clear();
        (self.twins, self.twins_skipped) = (0, 0);
    }

    /// Finds the branches of a query whose walk took this path.
    pub(super) fn follow(
        &mut self,
        published: &Published,
        generation: u32,
        query: &[LocalHash],
        path: &[Step],
    ) -> Result<(), Conflict> {
        self.clear();
        for step in path {
            let base = step.base as usize;
            if step.info.has(Info::TWIN) {
                let others = |run| run != step.run;
                self.find_at(published, generation, (step.info.parent(), query), (base, None), others)?;
            }
            self.find_inside(published, generation, query, step, None)?;
        }
        while let Some(PendingRun { run, version, info, base, above }) = self.pending.pop() {
            effort::spend(Effort::BranchRun, 1);
            let matched = match_length(published.run(run), info, &query[base..]);
            let step = Step { run, version, base: base as u32, matched: matched as u32, info };
            self.runs.push(Branch { step, above });
            if matched == 0 {
                // The writer is changing the run: a run is found by its first block, so an unchanged run matches at
                // least that.
                return Err(Conflict);
            }
            let number = Some(self.runs.len() as u32 - 1);
            self.find_inside(published, generation, query, &step, number)?;
            let end = RunPosition { run, offset: (matched - 1) as u16 };
            self.find_at(published, generation, (end, query), (base + matched, number), |_| true)?;
        }
        Ok(())
    }

    /// Finds the runs that follow a position with the query's block at `base`.
    fn find_at(
        &mut self,
        published: &Published,
        generation: u32,
        (parent, query): (RunPosition, &[LocalHash]),
        (base, above): (usize, Option<u32>),
        is_wanted: impl Fn(RunId) -> bool,
    ) -> Result<(), Conflict> {
        let Some(&local) = query.get(base) else { return Ok(()) };
        let mut result = Ok(());
        published.edges.search(generation, published.edges.hash(parent, local), |run| {
            if is_wanted(run) {
                result = as_child(published.run(run), parent, local).map(|child| {
                    if let Some((version, info)) = child {
                        self.add(PendingRun { run, version, info, base, above });
                    }
                });
            }
            result.is_err()
        });
        result
    }

    /// Finds the runs that are attached inside the matched part of a run although the run itself continues with the
    /// same block.
    fn find_inside(
        &mut self,
        published: &Published,
        generation: u32,
        query: &[LocalHash],
        step: &Step,
        above: Option<u32>,
    ) -> Result<(), Conflict> {
        if !step.info.has(Info::TWIN_INSIDE) {
            return Ok(());
        }
        let mut result = Ok(());
        published.edges.search(generation, published.edges.hash_of_twins_inside(step.run), |run| {
            let parent = published.run(run).info().parent();
            let offset = u32::from(parent.offset) + 1;
            if parent.run == step.run && offset < step.matched {
                let base = (step.base + offset) as usize;
                result = as_child(published.run(run), parent, query[base]).map(|child| {
                    if let Some((version, info)) = child {
                        self.add(PendingRun { run, version, info, base, above });
                    }
                });
            }
            result.is_err()
        });
        result
    }

    /// Adds a run, unless it exceeds the limit of twins.
    fn add(&mut self, pending: PendingRun) {
        if pending.info.has(Info::TWIN) {
            if self.twins == TWINS_FOLLOWED_MAX {
                self.twins_skipped += 1;
                return;
            }
            self.twins += 1;
        }
        self.pending.push(pending);
    }

    /// Raises the depths of holders that match more blocks on a branch than on the walk's path. `depths` are those of
    /// the path.
    pub(super) fn merge(&mut self, published: &Published, depths: &mut Depths) {
        let holders = depths.as_slice().len();
        self.last_seen.resize(holders, LastSeen::NEVER);
        self.marks.clear();
        self.found.clear();
        for (number, &Branch { step, above }) in self.runs.iter().enumerate() {
            // Restores the state at the position where this run leaves.
            let mark = above.map_or(0, |above| self.marks[above as usize]);
            undo_to(&mut self.last_seen, &mut self.undo, mark);
            published.run(step.run).holdings().for_each(|holder, end| {
                effort::spend(Effort::BranchHolder, 1);
                let Some(last_seen) = self.last_seen.get_mut(holder.0 as usize) else { return };
                // Whether the holder has every block before this run.
                let is_complete = match above {
                    None => depths.as_slice()[holder.0 as usize] >= step.base,
                    Some(above) => last_seen.branch == above + 1 && last_seen.depth >= step.base,
                };
                if is_complete {
                    let depth = step.base + step.matched.min(end.into());
                    self.undo.push((holder, *last_seen));
                    *last_seen = LastSeen { branch: number as u32 + 1, depth };
                    self.found.push((holder, depth));
                }
            });
            self.marks.push(self.undo.len());
        }
        undo_to(&mut self.last_seen, &mut self.undo, 0);
        for &(holder, depth) in &self.found {
            depths.raise(holder, depth);
        }
    }

    /// Checks that no run of a branch has changed since it was read.
    pub(super) fn check(&self, published: &Published) -> Result<(), Conflict> {
        fence(Acquire);
        let mut steps = self.runs.iter().map(|branch| branch.step);
        if steps.all(|step| published.run(step.run).is_unchanged(step.version)) { Ok(()) } else { Err(Conflict) }
    }
}

/// Restores the values recorded since `undo` had `mark` entries.
fn undo_to(last_seen: &mut [LastSeen], undo: &mut Vec<(Holder, LastSeen)>, mark: usize) {
    for (holder, before) in undo.drain(mark..).rev() {
        last_seen[holder.0 as usize] = before;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::run::{RunIndex, RunMatches};
    use crate::{Block, BlockEvent, DpRank, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank};

    const PROMPT_BLOCKS: u64 = 128;
    const RANKS: u64 = 1_000;

    fn rank(number: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(number), dp_rank: DpRank(0) }
    }

    fn prompt() -> Vec<LocalHash> {
        (0..PROMPT_BLOCKS).map(LocalHash).collect()
    }

    /// The sequence hashes of the prompt's blocks, with an alias from the block `alias_from` on.
    fn sequences(alias: u64, alias_from: u64) -> Vec<SequenceHash> {
        (0..PROMPT_BLOCKS).map(|at| SequenceHash(at + if at >= alias_from { alias * 1_000 } else { 0 } + 7)).collect()
    }

    fn stored(alias: u64, alias_from: u64) -> BlockEvent {
        let blocks = sequences(alias, alias_from).into_iter().zip(prompt());
        let blocks = blocks.map(|(sequence, local)| Block { sequence, local }).collect();
        BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 }
    }

    fn removed(alias: u64, alias_from: u64) -> BlockEvent {
        let blocks = sequences(alias, alias_from).into_iter().skip(alias_from as usize).rev().collect();
        BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All }
    }

    /// Many ranks that share a prompt.
    fn fleet() -> RunIndex {
        let index = RunIndex::default();
        for number in 0..RANKS {
            index.apply(rank(number), &stored(0, 0));
        }
        index
    }

    /// Edge-table lines, branch runs and branch holders that a query visits.
    fn steps(index: &RunIndex, query: &[LocalHash]) -> [usize; 3] {
        [Effort::EdgeLine, Effort::BranchRun, Effort::BranchHolder].map(|effort| {
            let mut matches = RunMatches::default();
            effort::of(effort, || index.find_depths(query, &mut matches))
        })
    }

    /// The twin flags of the runs along the prompt.
    fn flags(index: &RunIndex) -> u64 {
        let mut matches = RunMatches::default();
        index.find_depths(&prompt(), &mut matches);
        let twin_flags = Info::TWIN | Info::TWIN_INSIDE | Info::LATER_TWIN;
        matches.scratch.path.iter().fold(0, |flags, step| flags | step.info.0 & twin_flags)
    }

    /// One rank stores the shared prompt under other sequence hashes from these blocks on, and removes them again.
    fn check_twins(aliases_from: &[u64]) {
        let (index, query) = (fleet(), prompt());
        let before = steps(&index, &query);
        assert_eq!(before[1..], [0, 0], "without twins there are no branches");
        for (alias, &from) in (1..).zip(aliases_from) {
            assert_eq!(index.apply(rank(3), &stored(alias, from)).stored, PROMPT_BLOCKS - from, "twins");
        }
        let with_twins = steps(&index, &query);
        let twins = aliases_from.len();
        // The first alias makes the rank leave its domain and store its chain block by block, in a few runs.
        let runs = twins..=twins + 8;
        assert!(runs.contains(&with_twins[1]), "each twin's run is compared once: {with_twins:?}");
        assert!(with_twins[2] <= *runs.end(), "a query visits only the holders of the branch: {with_twins:?}");
        assert!(with_twins[0] <= before[0] + 4 * runs.end(), "{with_twins:?} after {before:?}");
        assert_eq!(index.find(&query).ranks.len() as u64, RANKS);
        assert_eq!(index.twins_skipped(), 0);
        for (alias, &from) in (1..).zip(aliases_from) {
            assert_eq!(index.apply(rank(3), &removed(alias, from)).removed, PROMPT_BLOCKS - from);
        }
        assert_eq!(steps(&index, &query), before, "a query costs what it cost before");
        assert_eq!(flags(&index), 0);
    }

    #[test]
    fn only_queries_that_meet_twins_pay_for_them_and_only_while_twins_exist() {
        check_twins(&[0; 8]);
        check_twins(&[64; 8]);
        check_twins(&[1, 2, 3, 40, 40, 100, 126, 127]);
    }

    #[test]
    fn queries_pay_nothing_for_twins_of_a_cleared_rank_after_maintenance() {
        let (index, query) = (fleet(), prompt());
        let before = steps(&index, &query);
        for alias in 1..9 {
            index.apply(rank(3), &stored(alias, 64 * (alias % 2)));
        }
        index.apply(rank(3), &BlockEvent::Cleared);
        for _ in 0..4 {
            // Each event carries a part of the maintenance for the memory that the rank left.
            index.apply(rank(4), &stored(0, 0));
        }
        assert_eq!(steps(&index, &query), before);
    }

    /// After the removal of the first twin, queries find the others; the last remaining one is no twin.
    #[test]
    fn the_last_of_several_twins_loses_the_twin_flag() {
        let index = RunIndex::default();
        for alias in 0..3 {
            index.apply(rank(1), &stored(alias, 0));
        }
        let [_, branch_runs, _] = steps(&index, &prompt());
        assert_eq!(branch_runs, 2);
        for (gone, left) in [(0, 1), (2, 0)] {
            index.apply(rank(1), &removed(gone, 0));
            let [_, branch_runs, _] = steps(&index, &prompt());
            assert_eq!(branch_runs, left);
            assert_eq!(index.find(&prompt()).ranks[0].longest(), PROMPT_BLOCKS as u32);
        }
        assert_eq!(flags(&index), 0, "its run has no flag left");
    }

    /// A run is truncated at blocks that are twins of another run's blocks; the other run's blocks are then the only ones.
    #[test]
    fn truncating_a_run_clears_the_flags_of_the_remaining_twin() {
        let index = RunIndex::default();
        index.apply(rank(1), &stored(0, 0));
        index.apply(rank(1), &stored(1, 64));
        assert_ne!(flags(&index), 0);
        index.apply(rank(1), &removed(0, 64));
        assert_eq!(flags(&index), 0);
        assert_eq!(index.find(&prompt()).ranks[0].longest(), PROMPT_BLOCKS as u32);
        index.apply(rank(1), &stored(2, 64));
        assert_eq!(steps(&index, &prompt())[1], 1);
        for (alias, from) in [(1, 64), (2, 64), (0, 0)] {
            index.apply(rank(1), &removed(alias, from));
        }
        assert_eq!(index.memory().runs, 0);
    }

    /// Twins of twins: a query follows at most the limit.
    #[test]
    fn a_query_follows_at_most_the_twin_limit() {
        let index = RunIndex::default();
        index.apply(rank(1), &stored(0, 0));
        // Each of the first blocks has three additional sequence hashes, below each sequence hash of the block
        // before.
        let mut parents = vec![(None, 0_u64)];
        let mut next_sequence = 1_000_000;
        for _ in 0..5 {
            let mut column_len = Vec::new();
            for (parent, at) in parents {
                for _ in 0..4 {
                    next_sequence += 1;
                    let blocks = vec![Block { sequence: SequenceHash(next_sequence), local: LocalHash(at) }];
                    let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 };
                    assert_eq!(index.apply(rank(1), &event).stored, 1);
                    column_len.push((Some(SequenceHash(next_sequence)), at + 1));
                }
            }
            parents = column_len;
        }
        let [lines, branch_runs, holders] = steps(&index, &prompt());
        assert!(branch_runs > TWINS_FOLLOWED_MAX / 2, "{branch_runs}");
        assert!(branch_runs <= 2 * TWINS_FOLLOWED_MAX, "{branch_runs}");
        assert!(holders <= 4 * TWINS_FOLLOWED_MAX && lines <= 8 * TWINS_FOLLOWED_MAX, "{holders} {lines}");
        assert!(index.twins_skipped() > 0, "it is counted");
        // The query follows the walk's own path to its end.
        assert_eq!(index.find(&prompt()).ranks[0].longest(), PROMPT_BLOCKS as u32);
    }
}
