//! The writer's state of runs: position in the tree, sequence-hash columns and exceptions.

use bytemuck::Zeroable;
use rustc_hash::FxHashMap;

use super::chunked::{CHUNK, Chunked};
use super::coverage::Coverage;
use super::exceptions::Exceptions;
use super::sequence_columns::Column;
use crate::run::published::arena::RecordNumbers;
use crate::run::published::layout::{CAPACITIES, RunArena, RunId, RunPosition, record_words};
use crate::run::published::rank_table::RankSlot;

/// Number of a hash domain: ranks whose engines give the same prefix the same sequence hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Zeroable)]
pub(super) struct DomainId(pub(super) u32);

/// Number of a run's [`Retention`](super::retention::Retention); zero is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Zeroable)]
pub(super) struct RetentionId(pub(super) u32);

/// The writer's state of one run.
#[derive(Debug, Default, Zeroable)]
pub(super) struct RunState {
    parent_run: RunId,
    parent_offset: u16,
    pub(super) len: u16,
    /// No child is attached at a later offset; only lowered by a walk over the children.
    pub(super) deepest_child: u16,
    /// Runs attached inside this run that start with the block that follows there in this run.
    pub(super) twins_inside: u16,
    pub(super) children: u32,
    first_child: RunId,
    next_sibling: RunId,
    previous_sibling: RunId,
    /// Retention of a run with many ranks or children.
    pub(super) retention: RetentionId,
    pub(super) columns: Columns,
    /// Ranks that hold more than one interval from the start in one tier.
    pub(super) exceptions: Option<Box<Exceptions>>,
}

const _: () = assert!(cfg!(loom) || size_of::<RunState>() == 64, "one cache line");

impl RunState {
    /// The position that its first block follows.
    pub(super) fn parent(&self) -> RunPosition {
        RunPosition { run: self.parent_run, offset: self.parent_offset }
    }

    fn set_parent(&mut self, parent: RunPosition) {
        (self.parent_run, self.parent_offset) = (parent.run, parent.offset);
    }
}

/// A run's columns of sequence hashes by domain: nearly always one.
#[derive(Debug, Default, Zeroable)]
pub(super) struct Columns {
    /// Empty exactly when there is no column.
    first: (DomainId, Column),
    more: Option<Box<FxHashMap<DomainId, Column>>>,
}

impl Columns {
    /// The domain's column; empty if the domain has none.
    #[inline]
    pub(super) fn get(&self, domain: DomainId) -> Column {
        if self.first.0 == domain {
            return self.first.1;
        }
        self.more.as_ref().and_then(|more| more.get(&domain).copied()).unwrap_or_default()
    }

    /// [`Columns::set`] that also counts the bytes of tables for additional domains.
    #[inline]
    pub(super) fn set_counted(&mut self, domain: DomainId, column: Column, bytes: &mut usize) {
        let before = self.more_bytes();
        self.set(domain, column);
        *bytes = *bytes + self.more_bytes() - before;
    }

    fn set(&mut self, domain: DomainId, column: Column) {
        if self.first.0 == domain || self.first.1.len == 0 {
            debug_assert!(self.more.as_ref().is_none_or(|more| !more.contains_key(&domain)));
            self.first = (domain, column);
            if column.len == 0 {
                self.promote();
            }
            return;
        }
        let more = self.more.get_or_insert_default();
        if column.len > 0 {
            more.insert(domain, column);
        } else {
            more.remove(&domain);
            if more.is_empty() {
                self.more = None;
            }
        }
    }

    fn promote(&mut self) {
        let Some(more) = &mut self.more else { return };
        if let Some(&domain) = more.keys().next()
            && let Some(column) = more.remove(&domain)
        {
            self.first = (domain, column);
        }
        if more.is_empty() {
            self.more = None;
        }
    }

    /// Domains with a column.
    pub(super) fn domains(&self) -> impl Iterator<Item = DomainId> {
        let first = (self.first.1.len > 0).then_some(self.first.0);
        first.into_iter().chain(self.more.iter().flat_map(|more| more.keys().copied()))
    }

    /// Length of the only column; none if there are several.
    pub(super) fn only_column_len(&self) -> Option<u16> {
        self.is_single().then_some(self.first.1.len)
    }

    /// Number of domains with a column.
    pub(super) fn domain_count(&self) -> usize {
        usize::from(self.first.1.len > 0) + self.more.as_ref().map_or(0, |more| more.len())
    }

    /// Bytes of the table for additional domains.
    pub(super) fn more_bytes(&self) -> usize {
        self.more.as_ref().map_or(0, |more| table_bytes(more))
    }

    /// Whether at most one domain has a column.
    pub(super) fn is_single(&self) -> bool {
        self.more.is_none()
    }
}

impl RunState {
    /// The child run that was attached last.
    pub(super) fn latest_child(&self) -> Option<RunId> {
        (self.first_child != RunId::NONE).then_some(self.first_child)
    }

    /// Exceptional ranks, with their coverage.
    pub(super) fn exceptions(&self) -> impl Iterator<Item = (RankSlot, Coverage<'_>)> {
        self.exceptions.iter().flat_map(|exceptions| exceptions.iter())
    }
}

/// Approximate bytes of a boxed table.
fn table_bytes<K, V>(table: &FxHashMap<K, V>) -> usize {
    size_of::<FxHashMap<K, V>>() + map_bytes(table)
}

/// Heap bytes of a table: slots with a load of at most seven eighths, plus one byte for each.
pub(super) fn map_bytes<K, V>(table: &FxHashMap<K, V>) -> usize {
    match table.capacity() {
        0 => 0,
        room => (room * 8).div_ceil(7).next_power_of_two() * (size_of::<(K, V)>() + 1) + 16,
    }
}

/// All runs.
#[derive(Debug)]
pub(super) struct Runs {
    states: [Chunked<RunState>; CAPACITIES.len()],
    numbers: [RecordNumbers; CAPACITIES.len()],
}

impl Runs {
    /// Reserves the number of [`RunId::NONE`].
    pub(super) fn new(arena: &RunArena) -> Self {
        let mut runs = Self { states: Default::default(), numbers: Default::default() };
        let none = runs.numbers[0].take(arena.class(0));
        runs.states[0].ensure(none);
        runs
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.states.into_iter().flat_map(Chunked::into_pieces)
    }

    #[inline]
    pub(super) fn get(&self, run: RunId) -> &RunState {
        &self.states[run.class()][run.number()]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, run: RunId) -> &mut RunState {
        &mut self.states[run.class()][run.number()]
    }

    pub(super) fn take(&mut self, arena: &RunArena, class: usize) -> RunId {
        let number = self.numbers[class].take(arena.class(class));
        self.states[class].ensure(number);
        RunId::new(class, number)
    }

    pub(super) fn free(&mut self, run: RunId) {
        debug_assert!(self.get(run).children == 0 && self.get(run).columns.domains().next().is_none());
        *self.get_mut(run) = RunState::default();
        self.numbers[run.class()].free(run.number());
    }

    /// Attaches a run to its parent. Children of the root are not listed, because no operation needs them.
    pub(super) fn link(&mut self, run: RunId, parent: RunPosition) {
        self.get_mut(run).set_parent(parent);
        if parent.run == RunId::NONE {
            return;
        }
        let state = self.get_mut(parent.run);
        state.deepest_child = if state.children == 0 { parent.offset } else { state.deepest_child.max(parent.offset) };
        state.children += 1;
        let next = std::mem::replace(&mut state.first_child, run);
        self.get_mut(run).next_sibling = next;
        if next != RunId::NONE {
            self.get_mut(next).previous_sibling = run;
        }
    }

    pub(super) fn unlink(&mut self, run: RunId) {
        let state = self.get(run);
        let (parent, next_sibling, previous_sibling) = (state.parent(), state.next_sibling, state.previous_sibling);
        if parent.run == RunId::NONE {
            return;
        }
        if next_sibling != RunId::NONE {
            self.get_mut(next_sibling).previous_sibling = previous_sibling;
        }
        match previous_sibling {
            RunId::NONE => self.get_mut(parent.run).first_child = next_sibling,
            previous => self.get_mut(previous).next_sibling = next_sibling,
        }
        self.get_mut(parent.run).children -= 1;
    }

    /// The child run that was attached last, with its offset.
    pub(super) fn latest_child(&self, run: RunId) -> Option<(u16, RunId)> {
        self.get(run).latest_child().map(|child| (self.get(child).parent().offset, child))
    }

    /// The child runs of a run, with the offsets at which they are attached.
    pub(super) fn children(&self, run: RunId) -> impl Iterator<Item = (RunId, u16)> {
        let first = self.get(run).first_child;
        let siblings = std::iter::successors(Some(first), |&child| Some(self.get(child).next_sibling));
        siblings.take_while(|&child| child != RunId::NONE).map(|child| (child, self.get(child).parent().offset))
    }

    /// Whether a run of this class can be allocated without more memory.
    pub(super) fn has_free(&self, class: usize) -> bool {
        self.numbers[class].free_count() > 0
    }

    /// Runs of any class that can be allocated without more memory.
    pub(super) fn free_count(&self) -> usize {
        self.numbers.iter().map(RecordNumbers::free_count).sum()
    }

    /// Reserves the state for one more run of the smallest class, so that it takes only its record.
    pub(super) fn reserve_smallest(&mut self) {
        let next = self.numbers[0].touched() as u32;
        self.states[0].ensure(next + CHUNK as u32 / 2);
    }

    /// Additional bytes that [`Runs::reserve_smallest`] takes.
    pub(super) fn bytes_for_smallest(&self) -> usize {
        let wanted = self.numbers[0].touched() + CHUNK / 2;
        if wanted < self.states[0].room() { 0 } else { CHUNK * size_of::<RunState>() }
    }

    /// Additional bytes of one more run of a class when none is free.
    pub(super) fn bytes_for(&self, class: usize) -> usize {
        let has_state = self.numbers[class].touched() < self.states[class].room();
        record_bytes(class) + if has_state { 0 } else { CHUNK * size_of::<RunState>() }
    }

    /// Runs of a class that ever existed.
    pub(super) fn touched(&self, class: usize) -> usize {
        self.numbers[class].touched()
    }

    /// Bytes of records ever written, of states and of free lists.
    pub(super) fn bytes_allocated(&self) -> usize {
        let classes = self.numbers.iter().zip(&self.states).enumerate();
        let bytes = classes.map(|(class, (numbers, states))| {
            numbers.touched() * record_bytes(class) + numbers.list_bytes() + states.bytes()
        });
        bytes.sum()
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.iter().map(RecordNumbers::in_use).sum::<usize>() - 1
    }

    /// Bytes of records and states in use, and bytes that were ever in use.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let bytes = |class: usize| record_bytes(class) + size_of::<RunState>();
        self.numbers.iter().enumerate().fold((0, 0), |(used, touched), (class, numbers)| {
            (used + numbers.in_use() * bytes(class), touched + numbers.touched() * bytes(class))
        })
    }
}

/// Bytes of one run's header, column and fingerprints.
fn record_bytes(class: usize) -> usize {
    record_words(class) * size_of::<u64>()
}
