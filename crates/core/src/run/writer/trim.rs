//! Trimming: frees blocks at the end of a run that no rank holds and to which no run is attached, and sequence hashes
//! of a domain in which no rank holds the block or one that follows it.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use super::Writer;
use super::runs::DomainId;
use super::sequence_columns::LINE_SEQUENCES;
use crate::run::published::atomics::Relaxed;
use crate::run::published::holdings::HoldingsWord;
use crate::run::published::layout::{HOLDINGS, INFO, RunId, RunPosition};

/// Runs of one chain that are trimmed at once; trimming of their ancestors is deferred.
const TRIMMED_AT_ONCE: usize = if cfg!(debug_assertions) { 2 } else { 8 };

/// Deferred trims, in order: runs with the domain on whose behalf they are trimmed.
#[derive(Debug, Default)]
pub(super) struct TrimQueue {
    queue: VecDeque<QueuedTrim>,
    by_run: FxHashMap<RunId, QueuedCount>,
    /// Number of runs ever enqueued.
    count: u64,
}

#[derive(Debug, Clone, Copy)]
struct QueuedTrim {
    run: RunId,
    domain: DomainId,
    number: u64,
}

/// How often a run is in the queue, and the number of its first entry. A freed run has no entry, because its id may
/// have been reused when its turn comes.
#[derive(Debug, Clone, Copy)]
struct QueuedCount {
    times: u32,
    first: u64,
}

impl TrimQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a column of the run may be longer than necessary.
    pub(super) fn contains(&self, run: RunId) -> bool {
        !self.queue.is_empty() && self.by_run.contains_key(&run)
    }

    fn push(&mut self, run: RunId, domain: DomainId) {
        let number = self.count;
        self.count += 1;
        self.queue.push_back(QueuedTrim { run, domain, number });
        self.by_run.entry(run).or_insert(QueuedCount { times: 0, first: number }).times += 1;
    }

    /// The domain of the next entry, and its run unless that was freed meanwhile.
    fn pop(&mut self) -> Option<(Option<RunId>, DomainId)> {
        let QueuedTrim { run, domain, number } = self.queue.pop_front()?;
        let times = self.by_run.get_mut(&run).filter(|times| times.first <= number);
        let is_there = times.is_some();
        if let Some(times) = times {
            times.times -= 1;
            if times.times == 0 {
                self.by_run.remove(&run);
            }
        }
        Some((is_there.then_some(run), domain))
    }

    fn remove(&mut self, run: RunId) {
        if !self.queue.is_empty() {
            self.by_run.remove(&run);
        }
    }
}

impl Writer {
    /// Trims a run after a rank of this domain has released blocks of it, and then those of its ancestors that lose
    /// their last child. Other domains are not affected. Defers the rest of a long chain. Returns the number of runs
    /// visited.
    pub(super) fn trim(&mut self, run: RunId, domain: DomainId) -> usize {
        let mut run = run;
        for visited in 0..TRIMMED_AT_ONCE {
            if run == RunId::NONE {
                return visited;
            }
            self.steps.take(1);
            let state = self.runs.get(run);
            let (parent, column_len) = (state.parent().run, state.columns.get(domain).len);
            let is_single = state.columns.is_single();
            let needed = self.needed(run);
            let needed_sequences = if is_single { needed } else { self.sequences_needed(run, domain) };
            let vanished = needed_sequences == 0 && column_len > 0;
            self.drop_sequences(run, domain, needed_sequences);
            let is_freed = needed == 0 && self.runs.get(run).columns.domain_count() == 0;
            if is_freed {
                self.free(run);
            } else if !self.trim_queue.contains(run) {
                debug_assert_ne!(needed, 0, "a domain drops its sequence hashes before their blocks go");
                self.truncate(run, needed);
            } else if let Some(column_len) = self.runs.get(run).columns.only_column_len() {
                self.truncate(run, needed.max(column_len));
            }
            if !is_freed && !vanished {
                return visited + 1;
            }
            run = parent;
        }
        if run != RunId::NONE {
            self.domains.get_mut(domain).queued_trims += 1;
            self.trim_queue.push(run, domain);
        }
        TRIMMED_AT_ONCE
    }

    /// Does the next deferred trim. Returns the number of runs visited; zero when the queue is empty.
    pub(super) fn trim_next_queued(&mut self) -> usize {
        let Some((run, domain)) = self.trim_queue.pop() else { return 0 };
        let visited = run.map_or(0, |run| self.trim(run, domain)).max(1);
        self.domains.get_mut(domain).queued_trims -= 1;
        self.end_domain_if_empty(domain);
        visited
    }

    /// Number of blocks of a run that its holders and child runs need.
    fn needed(&mut self, run: RunId) -> u16 {
        match self.retention(run) {
            Some(retention) => {
                let needed = retention.blocks();
                debug_assert!(!self.is_short(run) || needed == self.walk_needed(run));
                needed
            }
            None => self.walk_needed(run),
        }
    }

    fn walk_needed(&mut self, run: RunId) -> u16 {
        let mut needed = 0;
        let len = self.runs.get(run).len;
        let mut holders = 0;
        self.published.run(run).holdings().each_until(|_, end| {
            holders += 1;
            needed = end.max(needed);
            if needed == len { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.steps.take_holders(holders);
        let state = self.runs.get(run);
        needed = needed.max(state.exceptions.as_ref().map_or(0, |exceptions| exceptions.end()));
        if state.children == 0 || state.deepest_child < needed {
            return needed;
        }
        self.steps.take(state.children as usize);
        let deepest = self.runs.children(run).map(|(_, offset)| offset).max().unwrap_or(0);
        self.runs.get_mut(run).deepest_child = deepest;
        needed.max(deepest + 1)
    }

    /// Number of the domain's sequence hashes of a run that its ranks need, and child runs in which it has a column.
    fn sequences_needed(&self, run: RunId, domain: DomainId) -> u16 {
        let column_len = self.runs.get(run).columns.get(domain).len;
        match self.retention(run) {
            Some(retention) => {
                let needed = retention.sequences(domain);
                debug_assert!(!self.is_short(run) || needed == self.walk_sequences_needed(run, domain));
                needed.min(column_len)
            }
            None => self.walk_sequences_needed(run, domain).min(column_len),
        }
    }

    fn walk_sequences_needed(&self, run: RunId, domain: DomainId) -> u16 {
        let column_len = self.runs.get(run).columns.get(domain).len;
        let needed = match self.domains.get(domain).only_member() {
            Some(rank) => self.coverage_end(run, rank),
            None => self.coverage_end_in(run, domain),
        };
        let state = self.runs.get(run);
        if needed >= column_len || state.children == 0 {
            return needed;
        }
        self.steps.take(state.children as usize);
        let children = self.runs.children(run);
        let with_column = children.filter(|&(child, _)| self.runs.get(child).columns.get(domain).len > 0);
        with_column.fold(needed, |needed, (_, offset)| needed.max(offset + 1))
    }

    /// One more than the last offset that any rank of the domain holds.
    fn coverage_end_in(&self, run: RunId, domain: DomainId) -> u16 {
        let lengths = self.rank_lengths(run).into_iter();
        let in_domain = lengths.filter(|&(rank, _)| self.ranks.get(rank).domain == domain);
        in_domain.map(|(_, length)| length).max().unwrap_or(0)
    }

    /// Whether debug builds may compare the counts of a run with a walk.
    fn is_short(&self, run: RunId) -> bool {
        cfg!(all(debug_assertions, not(test))) && self.runs.get(run).children < 64 && self.holders.end() < 64
    }

    /// Drops the domain's sequence hashes from an offset on.
    pub(super) fn drop_sequences(&mut self, run: RunId, domain: DomainId, keep: u16) {
        let Self { runs, sequences, directory_batches, domains, rare_bytes, steps, .. } = self;
        let columns = &mut runs.get_mut(run).columns;
        let mut column = columns.get(domain);
        if column.len <= keep {
            return;
        }
        steps.take(usize::from(column.len - keep).div_ceil(LINE_SEQUENCES));
        let directory = &mut domains.get_mut(domain).directory;
        directory.remove_lines(directory_batches, sequences.last_lines(&column, keep));
        let first = sequences.at(&column, 0);
        sequences.truncate(&mut column, keep);
        columns.set_counted(domain, column, rare_bytes);
        if keep == 0 {
            self.column_ended(run, domain, first);
        }
    }

    fn truncate(&mut self, run: RunId, len: u16) {
        if self.runs.get(run).len == len {
            return;
        }
        self.before_truncating(run, len);
        self.remove_checkpoints(run, len.into());
        self.runs.get_mut(run).len = len;
        self.change_info(run, |info| info.with_len(len.into()));
    }

    fn free(&mut self, run: RunId) {
        let parent = self.runs.get(run).parent();
        let local = self.local_of(RunPosition { run, offset: 0 });
        self.remove_checkpoints(run, 0);
        let info = self.info(run);
        let hash = self.published.edges.hash(parent, local);
        self.edges.remove(&self.published.edges, hash, run);
        let extent = HoldingsWord(self.published.run(run).record[HOLDINGS].load(Relaxed)).extent();
        self.change_run(run, |run| {
            run.record[INFO].store(0, Relaxed);
            run.record[HOLDINGS].store(HoldingsWord::EMPTY.0, Relaxed);
        });
        if let Some(extent) = extent {
            self.extents.free(extent);
        }
        self.runs.unlink(run);
        self.drop_retention(run);
        self.trim_queue.remove(run);
        self.child_detached(parent);
        self.publish_child(parent.run);
        self.runs.free(run);
        self.after_freeing_twin((run, info), local);
    }
}
