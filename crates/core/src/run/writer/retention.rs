//! Retention of runs with many ranks or children: how many of their blocks and sequence hashes are still needed.
//!
//! A run keeps its blocks up to the last one that a rank holds or to which a child run is attached. A domain keeps
//! its sequence hashes up to the last one that one of its ranks, or one of the child runs with a column of the
//! domain, needs. The writer determines this by a walk for a run with few ranks and children. A run with many, such
//! as a prefix of a whole fleet, counts the lengths that its ranks and children need. A change of it then costs only
//! a search among its distinct lengths.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Writer;
use super::runs::{DomainId, RetentionId, map_bytes};
use crate::SequenceHash;
use crate::run::published::atomics::Relaxed;
use crate::run::published::holdings::HoldingsWord;
use crate::run::published::layout::{HOLDINGS, RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;

/// Most children, holders or exception intervals of a run that a walk visits. The value is small with debug
/// assertions, so that tests meet counted runs everywhere.
pub(super) const WALKED_MAX: usize = if cfg!(debug_assertions) { 5 } else { 64 };

const LINE_BYTES: usize = 64;

/// Lengths with the number of times each is needed, shortest first. A run has at most 512 distinct ones.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Lengths(SmallVec<[(u16, u32); 2]>);

impl Lengths {
    fn add(&mut self, length: u16, times: u32) {
        match self.0.binary_search_by_key(&length, |&(length, _)| length) {
            Ok(at) => self.0[at].1 += times,
            Err(at) => self.0.insert(at, (length, times)),
        }
    }

    fn remove(&mut self, length: u16) {
        let at = self.0.binary_search_by_key(&length, |&(length, _)| length).expect("the length was counted");
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }

    /// The longest length; zero when nothing is needed.
    pub(super) fn longest(&self) -> u16 {
        self.0.last().map_or(0, |&(length, _)| length)
    }

    fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * size_of::<(u16, u32)>() } else { 0 }
    }
}

/// The lengths that the ranks and children of one run need.
#[derive(Debug, Default)]
pub(super) struct Retention {
    children: Lengths,
    ranks: Lengths,
    /// The same by domain; empty while at most one domain has a column in the run.
    by_domain: FxHashMap<DomainId, Lengths>,
    /// Heap bytes of the values of `by_domain`.
    by_domain_bytes: usize,
    /// Domains by the sequence hash of the run's first block, for a run that starts sequences and has columns of
    /// several domains.
    first_sequences: FxHashMap<SequenceHash, DomainId>,
}

impl Retention {
    /// Number of blocks that must stay.
    pub(super) fn blocks(&self) -> u16 {
        self.children.longest().max(self.ranks.longest())
    }

    /// Number of sequence hashes that a domain must keep.
    pub(super) fn sequences(&self, domain: DomainId) -> u16 {
        match self.by_domain.is_empty() {
            true => self.blocks(),
            false => self.by_domain.get(&domain).map_or(0, Lengths::longest),
        }
    }

    /// Whether lengths are counted by domain.
    pub(super) fn has_domains(&self) -> bool {
        !self.by_domain.is_empty()
    }

    /// A domain in which the run's first block has this sequence hash, for a run that starts sequences.
    pub(super) fn domain_of_first(&self, sequence: SequenceHash) -> Option<DomainId> {
        self.first_sequences.get(&sequence).copied()
    }

    fn of_domain(&mut self, domain: DomainId, change: impl FnOnce(&mut Lengths)) {
        let lengths = self.by_domain.entry(domain).or_default();
        let before = lengths.heap_bytes();
        change(lengths);
        self.by_domain_bytes = self.by_domain_bytes + lengths.heap_bytes() - before;
    }

    /// Starts to count by domain; all lengths so far belong to one domain.
    fn start_domains(&mut self, domain: DomainId) {
        let mut all = self.children.clone();
        self.ranks.0.iter().for_each(|&(length, times)| all.add(length, times));
        self.of_domain(domain, |lengths| *lengths = all);
    }

    fn end_domain(&mut self, domain: DomainId) {
        if let Some(lengths) = self.by_domain.remove(&domain) {
            debug_assert_eq!(lengths.longest(), 0, "sequence hashes go when nothing needs them");
            self.by_domain_bytes -= lengths.heap_bytes();
        }
    }

    fn end_domains(&mut self) {
        self.by_domain = FxHashMap::default();
        self.first_sequences = FxHashMap::default();
        self.by_domain_bytes = 0;
    }

    fn bytes(&self) -> usize {
        let lengths = self.children.heap_bytes() + self.ranks.heap_bytes();
        let tables = map_bytes(&self.by_domain) + self.by_domain_bytes + map_bytes(&self.first_sequences);
        size_of::<Self>() + lengths + tables
    }
}

/// Retention of all counted runs.
#[derive(Debug, Default)]
pub(super) struct RetentionTable {
    retention: Vec<Option<Box<Retention>>>,
    free: Vec<RetentionId>,
    bytes: usize,
}

impl RetentionTable {
    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.retention.into_iter().flatten().map(|retention| 1 + retention.bytes() / LINE_BYTES)
    }

    #[inline]
    pub(super) fn get(&self, id: RetentionId) -> Option<&Retention> {
        self.retention.get((id.0 as usize).checked_sub(1)?)?.as_deref()
    }

    fn insert(&mut self, retention: Retention) -> RetentionId {
        self.bytes += retention.bytes();
        let id = self.free.pop().unwrap_or_else(|| {
            self.retention.push(None);
            RetentionId(u32::try_from(self.retention.len()).expect("fewer than 2^32 runs"))
        });
        self.retention[id.0 as usize - 1] = Some(Box::new(retention));
        id
    }

    fn change(&mut self, id: RetentionId, change: impl FnOnce(&mut Retention)) {
        let retention = self.retention[id.0 as usize - 1].as_deref_mut().expect("a counted run has a retention");
        let before = retention.bytes();
        change(retention);
        self.bytes = self.bytes + retention.bytes() - before;
    }

    fn remove(&mut self, id: RetentionId) {
        let retention = self.retention[id.0 as usize - 1].take().expect("a counted run has a retention");
        self.bytes -= retention.bytes();
        self.free.push(id);
    }

    /// Bytes of all entries and of their table.
    pub(super) fn bytes(&self) -> usize {
        let table = self.retention.capacity() * size_of::<Option<Box<Retention>>>();
        self.bytes + table + self.free.capacity() * size_of::<RetentionId>()
    }
}

impl Writer {
    #[inline]
    pub(super) fn is_counted(&self, run: RunId) -> bool {
        self.runs.get(run).retention != RetentionId::default()
    }

    /// The retention of a run that has too many ranks or children for a walk.
    #[inline]
    pub(super) fn retention(&self, run: RunId) -> Option<&Retention> {
        self.retention_table.get(self.runs.get(run).retention)
    }

    fn change_retention(&mut self, run: RunId, change: impl FnOnce(&mut Retention)) {
        self.steps.take(1);
        let id = self.runs.get(run).retention;
        self.retention_table.change(id, change);
    }

    /// Records that a rank's coverage of a run has another end. Called after the change, with the rank in its domain.
    #[inline]
    pub(super) fn rank_retains(&mut self, slot: RankSlot, run: RunId, (old, new): (u16, u16)) {
        if !self.is_counted(run) {
            if self.has_many_ranks(run) {
                self.count_retention(run);
            }
            return;
        }
        if old != new {
            let domain = (!self.runs.get(run).columns.is_single()).then(|| self.ranks.get(slot).domain);
            self.change_retention(run, |retention| {
                let change = |lengths: &mut Lengths| {
                    if old > 0 {
                        lengths.remove(old);
                    }
                    if new > 0 {
                        lengths.add(new, 1);
                    }
                };
                change(&mut retention.ranks);
                if let Some(domain) = domain {
                    retention.of_domain(domain, change);
                }
            });
        }
    }

    /// Records that a rank moved from one domain to another; both have columns for its blocks of the run.
    pub(super) fn rank_changes_domain(&mut self, run: RunId, length: u16, (old, new): (DomainId, DomainId)) {
        if self.is_counted(run) && length > 0 {
            self.change_retention(run, |retention| {
                retention.of_domain(old, |lengths| lengths.remove(length));
                retention.of_domain(new, |lengths| lengths.add(length, 1));
            });
        }
    }

    /// Records that a run was attached to its parent.
    pub(super) fn child_attached(&mut self, child: RunId) {
        let parent = self.runs.get(child).parent();
        if parent.run == RunId::NONE {
            return;
        }
        if !self.is_counted(parent.run) {
            if self.runs.get(parent.run).children as usize > WALKED_MAX {
                self.count_retention(parent.run);
            }
            return;
        }
        let is_single = self.runs.get(parent.run).columns.is_single();
        let domains: SmallVec<[DomainId; 1]> = self.runs.get(child).columns.domains().collect();
        let length = parent.offset + 1;
        self.change_retention(parent.run, |retention| {
            retention.children.add(length, 1);
            if !is_single {
                domains.iter().for_each(|&domain| retention.of_domain(domain, |lengths| lengths.add(length, 1)));
            }
        });
    }

    /// Records that a run without columns was detached from its parent.
    pub(super) fn child_detached(&mut self, parent: RunPosition) {
        if parent.run == RunId::NONE || !self.is_counted(parent.run) {
            return;
        }
        let mut longest = 0;
        self.change_retention(parent.run, |retention| {
            retention.children.remove(parent.offset + 1);
            longest = retention.children.longest();
        });
        self.runs.get_mut(parent.run).deepest_child = longest.saturating_sub(1);
    }

    /// Records that a domain has started a column in a run.
    pub(super) fn column_started(&mut self, run: RunId, domain: DomainId) {
        let state = self.runs.get(run);
        let parent = state.parent();
        if !self.is_counted(run) {
            if state.columns.domain_count() > WALKED_MAX {
                self.count_retention(run);
            }
        } else if !state.columns.is_single() {
            let other = state.columns.domains().find(|&other| other != domain);
            let (own_sequence, other_sequence) =
                (self.first_sequence(run, domain), other.and_then(|at| self.first_sequence(run, at)));
            self.change_retention(run, |retention| {
                if let Some(other) = other.filter(|_| retention.by_domain.is_empty()) {
                    retention.start_domains(other);
                    retention.first_sequences.extend(other_sequence.map(|sequence| (sequence, other)));
                }
                retention.first_sequences.extend(own_sequence.map(|sequence| (sequence, domain)));
            });
        }
        self.change_column_need(parent, domain, |lengths, length| lengths.add(length, 1));
    }

    /// Records that a domain has dropped its column in a run; `first` was its first sequence hash.
    pub(super) fn column_ended(&mut self, run: RunId, domain: DomainId, first: SequenceHash) {
        let state = self.runs.get(run);
        let (parent, is_single) = (state.parent(), state.columns.is_single());
        if self.is_counted(run) {
            self.change_retention(run, |retention| {
                retention.end_domain(domain);
                if retention.first_sequences.get(&first) == Some(&domain) {
                    retention.first_sequences.remove(&first);
                }
                if is_single {
                    retention.end_domains();
                }
            });
        }
        self.change_column_need(parent, domain, Lengths::remove);
    }

    /// Changes a domain's need in the parent run of a run in which it starts or drops a column.
    fn change_column_need(&mut self, parent: RunPosition, domain: DomainId, change: impl FnOnce(&mut Lengths, u16)) {
        if parent.run == RunId::NONE || !self.is_counted(parent.run) || self.runs.get(parent.run).columns.is_single() {
            return;
        }
        self.change_retention(parent.run, |retention| {
            retention.of_domain(domain, |lengths| change(lengths, parent.offset + 1));
        });
    }

    /// Removes the retention of a freed run.
    pub(super) fn drop_retention(&mut self, run: RunId) {
        let id = std::mem::take(&mut self.runs.get_mut(run).retention);
        if id != RetentionId::default() {
            self.retention_table.remove(id);
        }
    }

    #[inline]
    fn has_many_ranks(&self, run: RunId) -> bool {
        let form = HoldingsWord(self.published.run(run).record[HOLDINGS].load(Relaxed));
        let exceptions = self.runs.get(run).exceptions.as_ref();
        form.holders_seen_max().is_none_or(|holders| holders > WALKED_MAX)
            || exceptions.is_some_and(|exceptions| exceptions.len() > WALKED_MAX)
    }

    /// Starts to count the lengths of a run that has just exceeded the limit for walks.
    #[cold]
    fn count_retention(&mut self, run: RunId) {
        let mut retention = Retention::default();
        let is_single = self.runs.get(run).columns.is_single();
        for (slot, length) in self.rank_lengths(run) {
            retention.ranks.add(length, 1);
            if !is_single {
                retention.of_domain(self.ranks.get(slot).domain, |lengths| lengths.add(length, 1));
            }
        }
        for (child, offset) in self.runs.children(run) {
            self.steps.take(1);
            retention.children.add(offset + 1, 1);
            if !is_single {
                let domains = self.runs.get(child).columns.domains().inspect(|_| self.steps.take(1));
                domains.for_each(|domain| retention.of_domain(domain, |lengths| lengths.add(offset + 1, 1)));
            }
        }
        if !is_single {
            let domains = self.runs.get(run).columns.domains();
            retention
                .first_sequences
                .extend(domains.filter_map(|domain| Some((self.first_sequence(run, domain)?, domain))));
        }
        self.runs.get_mut(run).retention = self.retention_table.insert(retention);
    }

    /// A domain's sequence hash of the first block of a run that starts sequences.
    fn first_sequence(&self, run: RunId, domain: DomainId) -> Option<SequenceHash> {
        let state = self.runs.get(run);
        (state.parent().run == RunId::NONE).then(|| self.sequences.at(&state.columns.get(domain), 0))
    }

    /// Every rank that holds blocks of a run, with the end of its coverage.
    pub(super) fn rank_lengths(&self, run: RunId) -> Vec<(RankSlot, u16)> {
        let mut lengths = Vec::new();
        self.published.run(run).holdings().for_each(|holder, end| {
            self.steps.take(1);
            let slot = self.holders.owner(holder);
            if self.ranks.get(slot).home_holder() == holder && self.exception(run, slot).is_none() {
                lengths.push((slot, end));
            }
        });
        lengths.extend(self.runs.get(run).exceptions().map(|(slot, coverage)| (slot, coverage.end())));
        lengths
    }
}
