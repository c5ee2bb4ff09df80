//! How much of a run is needed, counted: for runs with many ranks or children.
//!
//! A run must keep its blocks up to the last one that a rank holds or that a child run is attached to; a domain keeps its
//! names up to the last one that one of its ranks or one of the children that it has named needs. A run with few ranks and
//! children is looked through for that. A run with many of either, which a prefix of a whole fleet has, counts the lengths
//! that they need, so that no change of it costs more than finding one length among those of the run.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Writer;
use super::runs::{DomainId, map_bytes};
use crate::SequenceHash;
use crate::run::published::atomics::Relaxed;
use crate::run::published::holdings::Form;
use crate::run::published::layout::{HOLDINGS, Place, RunId};
use crate::run::published::ranks::RankSlot;

/// Most children, holders or intervals of exceptions of a run that are looked through. With debug assertions it is small, so
/// that tests meet counted runs everywhere.
pub(super) const WALKED_MAX: usize = if cfg!(debug_assertions) { 5 } else { 64 };

const LINE_BYTES: usize = 64;

/// Lengths and how often each is needed, shortest first. A run has at most 512 different ones.
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

/// What the ranks and children of one run need.
#[derive(Debug, Default)]
pub(super) struct Needs {
    children: Lengths,
    ranks: Lengths,
    /// The same by domain; empty while at most one domain has named anything in the run.
    by_domain: FxHashMap<DomainId, Lengths>,
    /// Bytes behind the values of `by_domain`.
    by_domain_bytes: usize,
    /// Of a run that starts sequences and that several domains have named, who calls its first block what.
    first_names: FxHashMap<SequenceHash, DomainId>,
}

impl Needs {
    /// Blocks that must stay.
    pub(super) fn blocks(&self) -> u16 {
        self.children.longest().max(self.ranks.longest())
    }

    /// Blocks whose names a domain must keep.
    pub(super) fn names(&self, domain: DomainId) -> u16 {
        match self.by_domain.is_empty() {
            true => self.blocks(),
            false => self.by_domain.get(&domain).map_or(0, Lengths::longest),
        }
    }

    /// Whether domains are told apart.
    pub(super) fn has_domains(&self) -> bool {
        !self.by_domain.is_empty()
    }

    /// A domain that calls the run's first block so, where the run starts sequences.
    pub(super) fn first_namer(&self, name: SequenceHash) -> Option<DomainId> {
        self.first_names.get(&name).copied()
    }

    fn of_domain(&mut self, domain: DomainId, change: impl FnOnce(&mut Lengths)) {
        let lengths = self.by_domain.entry(domain).or_default();
        let before = lengths.heap_bytes();
        change(lengths);
        self.by_domain_bytes = self.by_domain_bytes + lengths.heap_bytes() - before;
    }

    /// All of it was of one domain until now.
    fn start_domains(&mut self, domain: DomainId) {
        let mut all = self.children.clone();
        self.ranks.0.iter().for_each(|&(length, times)| all.add(length, times));
        self.of_domain(domain, |lengths| *lengths = all);
    }

    fn end_domain(&mut self, domain: DomainId) {
        if let Some(lengths) = self.by_domain.remove(&domain) {
            debug_assert_eq!(lengths.longest(), 0, "names go when nothing needs them");
            self.by_domain_bytes -= lengths.heap_bytes();
        }
    }

    fn end_domains(&mut self) {
        self.by_domain = FxHashMap::default();
        self.first_names = FxHashMap::default();
        self.by_domain_bytes = 0;
    }

    fn bytes(&self) -> usize {
        let lengths = self.children.heap_bytes() + self.ranks.heap_bytes();
        let tables = map_bytes(&self.by_domain) + self.by_domain_bytes + map_bytes(&self.first_names);
        size_of::<Self>() + lengths + tables
    }
}

/// The number of a run's [`Needs`]; zero is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Zeroable)]
pub(super) struct NeedsId(u32);

/// The needs of all counted runs.
#[derive(Debug, Default)]
pub(super) struct AllNeeds {
    needs: Vec<Option<Box<Needs>>>,
    free: Vec<NeedsId>,
    bytes: usize,
}

impl AllNeeds {
    /// Gives the memory back piece by piece, each with the steps that it takes.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.needs.into_iter().flatten().map(|needs| 1 + needs.bytes() / LINE_BYTES)
    }

    #[inline]
    pub(super) fn get(&self, id: NeedsId) -> Option<&Needs> {
        self.needs.get((id.0 as usize).checked_sub(1)?)?.as_deref()
    }

    fn insert(&mut self, needs: Needs) -> NeedsId {
        self.bytes += needs.bytes();
        let id = self.free.pop().unwrap_or_else(|| {
            self.needs.push(None);
            NeedsId(u32::try_from(self.needs.len()).expect("fewer than 2^32 runs"))
        });
        self.needs[id.0 as usize - 1] = Some(Box::new(needs));
        id
    }

    fn change(&mut self, id: NeedsId, change: impl FnOnce(&mut Needs)) {
        let needs = self.needs[id.0 as usize - 1].as_deref_mut().expect("a counted run has needs");
        let before = needs.bytes();
        change(needs);
        self.bytes = self.bytes + needs.bytes() - before;
    }

    fn remove(&mut self, id: NeedsId) {
        let needs = self.needs[id.0 as usize - 1].take().expect("a counted run has needs");
        self.bytes -= needs.bytes();
        self.free.push(id);
    }

    /// Bytes of all of them, with their table.
    pub(super) fn bytes(&self) -> usize {
        let table = self.needs.capacity() * size_of::<Option<Box<Needs>>>();
        self.bytes + table + self.free.capacity() * size_of::<NeedsId>()
    }
}

impl Writer {
    #[inline]
    fn is_counted(&self, run: RunId) -> bool {
        self.runs.get(run).needs != NeedsId::default()
    }

    /// The needs of a run that has too many ranks or children to look through.
    #[inline]
    pub(super) fn needs(&self, run: RunId) -> Option<&Needs> {
        self.all_needs.get(self.runs.get(run).needs)
    }

    fn change_needs(&mut self, run: RunId, change: impl FnOnce(&mut Needs)) {
        self.steps.take(1);
        let id = self.runs.get(run).needs;
        self.all_needs.change(id, change);
    }

    /// A rank holds another number of first blocks of a run up to the last that it holds. To be called once the change is
    /// made, and with the rank in its domain.
    #[inline]
    pub(super) fn rank_needs(&mut self, slot: RankSlot, run: RunId, (old, new): (u16, u16)) {
        if !self.is_counted(run) {
            if self.has_many_ranks(run) {
                self.count_needs(run);
            }
            return;
        }
        if old != new {
            let domain = (!self.runs.get(run).columns.is_single()).then(|| self.ranks.get(slot).domain);
            self.change_needs(run, |needs| {
                let change = |lengths: &mut Lengths| {
                    if old > 0 {
                        lengths.remove(old);
                    }
                    if new > 0 {
                        lengths.add(new, 1);
                    }
                };
                change(&mut needs.ranks);
                if let Some(domain) = domain {
                    needs.of_domain(domain, change);
                }
            });
        }
    }

    /// A rank goes from one domain to another, both of which have named what it holds of the run.
    pub(super) fn rank_changes_domain(&mut self, run: RunId, length: u16, (old, new): (DomainId, DomainId)) {
        if self.is_counted(run) && length > 0 {
            self.change_needs(run, |needs| {
                needs.of_domain(old, |lengths| lengths.remove(length));
                needs.of_domain(new, |lengths| lengths.add(length, 1));
            });
        }
    }

    /// A run was attached to its parent.
    pub(super) fn child_attached(&mut self, child: RunId) {
        let parent = self.runs.get(child).parent();
        if parent.run == RunId::NONE {
            return;
        }
        if !self.is_counted(parent.run) {
            if self.runs.get(parent.run).children as usize > WALKED_MAX {
                self.count_needs(parent.run);
            }
            return;
        }
        let is_single = self.runs.get(parent.run).columns.is_single();
        let domains: SmallVec<[DomainId; 1]> = self.runs.get(child).columns.domains().collect();
        let length = parent.offset + 1;
        self.change_needs(parent.run, |needs| {
            needs.children.add(length, 1);
            if !is_single {
                domains.iter().for_each(|&domain| needs.of_domain(domain, |lengths| lengths.add(length, 1)));
            }
        });
    }

    /// A run without names was detached from its parent.
    pub(super) fn child_detached(&mut self, parent: Place) {
        if parent.run == RunId::NONE || !self.is_counted(parent.run) {
            return;
        }
        let mut longest = 0;
        self.change_needs(parent.run, |needs| {
            needs.children.remove(parent.offset + 1);
            longest = needs.children.longest();
        });
        self.runs.get_mut(parent.run).deepest_child = longest.saturating_sub(1);
    }

    /// A domain has named its first block of a run.
    pub(super) fn naming_started(&mut self, run: RunId, domain: DomainId) {
        let state = self.runs.get(run);
        let parent = state.parent();
        if !self.is_counted(run) {
            if state.columns.domain_count() > WALKED_MAX {
                self.count_needs(run);
            }
        } else if !state.columns.is_single() {
            let other = state.columns.domains().find(|&other| other != domain);
            let (own_name, other_name) = (self.first_name(run, domain), other.and_then(|at| self.first_name(run, at)));
            self.change_needs(run, |needs| {
                if let Some(other) = other.filter(|_| needs.by_domain.is_empty()) {
                    needs.start_domains(other);
                    needs.first_names.extend(other_name.map(|name| (name, other)));
                }
                needs.first_names.extend(own_name.map(|name| (name, domain)));
            });
        }
        self.change_naming(parent, domain, |lengths, length| lengths.add(length, 1));
    }

    /// A domain has no names in a run any more, of which this was the first.
    pub(super) fn naming_ended(&mut self, run: RunId, domain: DomainId, first: SequenceHash) {
        let state = self.runs.get(run);
        let (parent, is_single) = (state.parent(), state.columns.is_single());
        if self.is_counted(run) {
            self.change_needs(run, |needs| {
                needs.end_domain(domain);
                if needs.first_names.get(&first) == Some(&domain) {
                    needs.first_names.remove(&first);
                }
                if is_single {
                    needs.end_domains();
                }
            });
        }
        self.change_naming(parent, domain, Lengths::remove);
    }

    /// What a domain needs of the run that another one, which it starts or ends to name, is attached to.
    fn change_naming(&mut self, parent: Place, domain: DomainId, change: impl FnOnce(&mut Lengths, u16)) {
        if parent.run == RunId::NONE || !self.is_counted(parent.run) || self.runs.get(parent.run).columns.is_single() {
            return;
        }
        self.change_needs(parent.run, |needs| {
            needs.of_domain(domain, |lengths| change(lengths, parent.offset + 1));
        });
    }

    /// The run is gone.
    pub(super) fn forget_needs(&mut self, run: RunId) {
        let id = std::mem::take(&mut self.runs.get_mut(run).needs);
        if id != NeedsId::default() {
            self.all_needs.remove(id);
        }
    }

    #[inline]
    fn has_many_ranks(&self, run: RunId) -> bool {
        let form = Form(self.published.run(run).record[HOLDINGS].load(Relaxed));
        let exceptions = self.runs.get(run).exceptions.as_ref();
        form.holders_seen_max().is_none_or(|holders| holders > WALKED_MAX)
            || exceptions.is_some_and(|exceptions| exceptions.len() > WALKED_MAX)
    }

    /// Starts to count what a run's ranks and children need. It has just got one too many to be looked through.
    #[cold]
    fn count_needs(&mut self, run: RunId) {
        let mut needs = Needs::default();
        let is_single = self.runs.get(run).columns.is_single();
        for (slot, length) in self.rank_lengths(run) {
            needs.ranks.add(length, 1);
            if !is_single {
                needs.of_domain(self.ranks.get(slot).domain, |lengths| lengths.add(length, 1));
            }
        }
        for (child, offset) in self.runs.children(run) {
            self.steps.take(1);
            needs.children.add(offset + 1, 1);
            if !is_single {
                let domains = self.runs.get(child).columns.domains().inspect(|_| self.steps.take(1));
                domains.for_each(|domain| needs.of_domain(domain, |lengths| lengths.add(offset + 1, 1)));
            }
        }
        if !is_single {
            let domains = self.runs.get(run).columns.domains();
            needs.first_names.extend(domains.filter_map(|domain| Some((self.first_name(run, domain)?, domain))));
        }
        self.runs.get_mut(run).needs = self.all_needs.insert(needs);
    }

    /// What a domain calls the first block of a run that starts sequences.
    fn first_name(&self, run: RunId, domain: DomainId) -> Option<SequenceHash> {
        let state = self.runs.get(run);
        (state.parent().run == RunId::NONE).then(|| self.names.at(&state.columns.get(domain), 0))
    }

    /// Every rank that holds something of a run, with its length up to the last block that it holds.
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
