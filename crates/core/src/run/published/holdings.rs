//! Holdings of a run: for each holder, the end of the interval that starts at the run's first block.
//!
//! They have three forms: a few entries in the header, a list, and an array of ends by holder once a good part of all
//! holders are in it. One store changes an end. The writer never takes an entry out: its end becomes zero, and the
//! next new holder reuses its slot. So a reader that iterates over the entries meets every holder that stays. A
//! change of form changes the run's version.

use std::ops::ControlFlow;

use super::arena::{Arena, RecordNumbers};
use super::atomics::{Acquire, AtomicU64, Relaxed, Release};
use super::layout::{CHECKPOINT, HOLDERS_MAX, HOLDINGS, INLINE, RunId};

/// Entries that fit into the header.
pub(crate) const INLINE_ENTRIES: usize = if cfg!(loom) { 2 } else { (CHECKPOINT - INLINE) * 2 };
/// A list with more than one in this many of all holders becomes an array.
const DENSE_SHARE: usize = if cfg!(loom) { 2 } else { 8 };
/// A longer list becomes an array in any case, because a list is searched linearly.
const LIST_ENTRIES_MAX: usize = 4_096;
/// Lists and arrays have sizes in powers of two, from a cache line on.
const SMALLEST_WORDS_LOG2: u32 = if cfg!(loom) { 0 } else { 3 };
const SIZES: usize = 18;

/// Number of a (rank, level of tiers) pair within the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holder(pub(crate) u32);

/// One holder and the end of its interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    pub(crate) fn new(holder: Holder, end: u16) -> Self {
        debug_assert!(holder.0 < HOLDERS_MAX);
        Self(holder.0 << 10 | u32::from(end))
    }

    pub(crate) fn holder(self) -> Holder {
        Holder(self.0 >> 10)
    }

    pub(crate) fn end(self) -> u16 {
        (self.0 & 1023) as u16
    }
}

/// The header word that locates a run's holdings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldingsWord(pub(crate) u64);

/// Bits of a count of entries.
const ENTRIES_BITS: u32 = 20;

impl HoldingsWord {
    /// Entries in the header, none so far.
    pub(crate) const EMPTY: Self = Self(0);

    /// One child run and the offset at which it is attached. The header has room for it as long as the holdings are
    /// in place.
    #[inline]
    pub(crate) fn child(self) -> Option<(u16, RunId)> {
        let child = (self.0 & 3 == 0 && self.0 >> 32 != 0).then_some(RunId((self.0 >> 32) as u32));
        child.map(|child| ((self.0 >> 22) as u16 & 1023, child))
    }

    /// The same with this child, if there is room.
    pub(crate) fn with_child(self, child: Option<(u16, RunId)>) -> Self {
        if self.0 & 3 != 0 {
            return self;
        }
        let (offset, run) = child.unwrap_or((0, RunId::NONE));
        Self(self.0 & ((1 << 22) - 1) | u64::from(offset) << 22 | u64::from(run.0) << 32)
    }

    fn list(extent: Extent, entries: usize) -> Self {
        Self(1 | (entries as u64) << 2 | u64::from(extent.0) << 32)
    }

    fn dense(extent: Extent) -> Self {
        Self(2 | u64::from(extent.0) << 32)
    }

    fn entries(self) -> usize {
        (self.0 >> 2) as usize & ((1 << ENTRIES_BITS) - 1)
    }

    fn with_entries(self, entries: usize) -> Self {
        Self(self.0 & !(((1 << ENTRIES_BITS) - 1) << 2) | (entries as u64) << 2)
    }

    /// Number of entries, including those of holders that have left; none for an array, which has an entry for every
    /// holder.
    pub(crate) fn holders_seen_max(self) -> Option<usize> {
        (self.0 & 3 < 2).then(|| self.entries())
    }

    pub(crate) fn extent(self) -> Option<Extent> {
        (self.0 & 3 != 0).then_some(Extent((self.0 >> 32) as u32))
    }
}

/// A piece of the list memory: size in the upper five bits, number in the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent(u32);

impl Extent {
    fn size(self) -> usize {
        (self.0 >> 27) as usize
    }

    fn number(self) -> u32 {
        self.0 & ((1 << 27) - 1)
    }
}

/// Memory for lists and dense arrays.
#[derive(Debug)]
pub(crate) struct ListArena {
    sizes: [Arena; SIZES],
}

impl ListArena {
    pub(crate) fn new() -> Self {
        Self { sizes: std::array::from_fn(|size| Arena::new(1 << (SMALLEST_WORDS_LOG2 as usize + size))) }
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.sizes.into_iter().flat_map(Arena::into_pieces)
    }

    #[inline]
    fn words(&self, extent: Extent) -> &[AtomicU64] {
        self.sizes[extent.size()].record(extent.number())
    }
}

/// Allocator of the pieces of a [`ListArena`]; owned by the writer.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    sizes: [RecordNumbers; SIZES],
}

impl Extents {
    fn take(&mut self, arena: &ListArena, words: usize) -> Extent {
        let size = size_for(words);
        let number = self.sizes[size].take(&arena.sizes[size]);
        assert!(number < 1 << 27, "fewer than 2^27 lists of one size");
        Extent((size as u32) << 27 | number)
    }

    pub(crate) fn free(&mut self, extent: Extent) {
        self.sizes[extent.size()].free(extent.number());
    }

    /// Bytes that are allocated and written, and those of the free lists.
    pub(crate) fn bytes_allocated(&self) -> usize {
        self.bytes().1 + self.sizes.iter().map(RecordNumbers::list_bytes).sum::<usize>()
    }

    /// Additional bytes that a piece of `words` words would take; zero when a free one exists.
    fn bytes_for(&self, words: usize) -> usize {
        let size = size_for(words);
        if self.sizes[size].free_count() > 0 {
            0
        } else {
            (1 << (SMALLEST_WORDS_LOG2 as usize + size)) * size_of::<u64>()
        }
    }

    /// Bytes in use, and bytes that were ever in use.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = |size: usize| (1 << (SMALLEST_WORDS_LOG2 as usize + size)) * size_of::<u64>();
        let sizes = self.sizes.iter().enumerate();
        sizes.fold((0, 0), |(used, touched), (size, numbers)| {
            (used + numbers.in_use() * bytes(size), touched + numbers.touched() * bytes(size))
        })
    }
}

/// The smallest size with at least `words` words.
fn size_for(words: usize) -> usize {
    words.next_power_of_two().ilog2().saturating_sub(SMALLEST_WORDS_LOG2) as usize
}

/// A run's holdings in their current form.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holdings<'a> {
    /// Two entries to a word, in the header or in a list.
    Entries { words: &'a [AtomicU64], count: usize },
    /// Four ends to a word, by holder.
    Dense { words: &'a [AtomicU64] },
}

impl<'a> Holdings<'a> {
    /// Reads the current form from the header.
    #[inline]
    pub(crate) fn of(record: &'a [AtomicU64], lists: &'a ListArena) -> Self {
        let form = HoldingsWord(record[HOLDINGS].load(Acquire));
        match form.0 & 3 {
            0 => Self::Entries {
                words: &record[INLINE..INLINE + INLINE_ENTRIES / 2],
                count: form.entries().min(INLINE_ENTRIES),
            },
            1 => {
                let words = lists.words(form.extent().expect("a list has an extent"));
                Self::Entries { words, count: form.entries().min(words.len() * 2) }
            }
            _ => Self::Dense { words: lists.words(form.extent().expect("an array has an extent")) },
        }
    }

    /// Calls `each` for every holder whose interval is not empty.
    #[inline]
    pub(crate) fn for_each(self, mut each: impl FnMut(Holder, u16)) {
        self.each_until(|holder, end| {
            each(holder, end);
            ControlFlow::Continue(())
        });
    }

    /// Calls `each` for holders whose interval is not empty, until it breaks.
    #[inline]
    pub(crate) fn each_until(self, mut each: impl FnMut(Holder, u16) -> ControlFlow<()>) {
        self.each_beyond(|holder, end| each(holder, end).map_continue(|()| 0));
    }

    /// Calls `each` for holders whose interval is longer than the last value that `each` returned, at first zero,
    /// until it breaks.
    #[inline]
    pub(crate) fn each_beyond(self, mut each: impl FnMut(Holder, u16) -> ControlFlow<(), u16>) {
        let mut beyond = 0;
        match self {
            Self::Entries { words, count } => {
                for at in 0..count {
                    let entry = entry_at(words, at);
                    if entry.end() > beyond {
                        match each(entry.holder(), entry.end()) {
                            ControlFlow::Continue(next) => beyond = next,
                            ControlFlow::Break(()) => return,
                        }
                    }
                }
            }
            Self::Dense { words } => {
                for (at, word) in words.iter().enumerate() {
                    let ends = word.load(Relaxed);
                    let mut longer = lanes_beyond(ends, beyond);
                    while longer != 0 {
                        let lane = longer.trailing_zeros() / 16;
                        let end = (ends >> (lane * 16)) as u16;
                        longer &= longer - 1;
                        if end > beyond {
                            match each(Holder(at as u32 * 4 + lane), end) {
                                ControlFlow::Continue(next) => beyond = next,
                                ControlFlow::Break(()) => return,
                            }
                        }
                    }
                }
            }
        }
    }

    /// End of the holder's interval; zero without an entry.
    #[inline]
    pub(crate) fn end(self, holder: Holder) -> u16 {
        match self {
            Self::Entries { .. } => self.find(holder).map_or(0, Entry::end),
            Self::Dense { words } => {
                words.get(holder.0 as usize / 4).map_or(0, |word| (word.load(Relaxed) >> (holder.0 % 4 * 16)) as u16)
            }
        }
    }

    fn find(self, holder: Holder) -> Option<Entry> {
        let Self::Entries { words, count } = self else { return None };
        (0..count).map(|at| entry_at(words, at)).find(|entry| entry.holder() == holder)
    }
}

/// Which of four packed ends are longer: the top bit of each lane. Ends have ten bits, so no carry crosses lanes.
#[inline]
fn lanes_beyond(ends: u64, beyond: u16) -> u64 {
    const ONES: u64 = 0x0001_0001_0001_0001;
    const TOPS: u64 = ONES << 15;
    ((ends | TOPS) - (u64::from(beyond) + 1) * ONES) & TOPS
}

#[inline]
fn entry_at(words: &[AtomicU64], at: usize) -> Entry {
    Entry((words[at / 2].load(Relaxed) >> (at % 2 * 32)) as u32)
}

/// Stores are releases: a reader that sees an end sees every version that the writer changed before it.
fn set_entry(words: &[AtomicU64], at: usize, entry: Entry) {
    let shift = at % 2 * 32;
    let word = words[at / 2].load(Relaxed) & !(u64::from(u32::MAX) << shift);
    words[at / 2].store(word | u64::from(entry.0) << shift, Release);
}

fn set_dense(words: &[AtomicU64], holder: Holder, end: u16) {
    let shift = holder.0 % 4 * 16;
    let word = &words[holder.0 as usize / 4];
    let others = word.load(Relaxed) & !(u64::from(u16::MAX) << shift);
    word.store(others | u64::from(end) << shift, Release);
}

/// Changes a holder's end, or prepares a form with room for it. Used by the writer only.
pub(crate) struct HoldingsWriter<'a> {
    pub(crate) record: &'a [AtomicU64],
    pub(crate) lists: &'a ListArena,
    pub(crate) extents: &'a mut Extents,
    /// One more than the largest holder in use.
    pub(crate) holders_end: u32,
}

impl HoldingsWriter<'_> {
    /// Changes an end with one store. If the holdings need another form for it, that is filled and returned: the caller
    /// publishes it and frees the old extent.
    pub(crate) fn set_end(&mut self, holder: Holder, end: u16) -> Option<HoldingsWord> {
        match Holdings::of(self.record, self.lists) {
            Holdings::Dense { words } if (holder.0 as usize) < words.len() * 4 => {
                set_dense(words, holder, end);
                return None;
            }
            Holdings::Entries { words, count } => {
                let known = (0..count).find(|&at| entry_at(words, at).holder() == holder);
                let unused = || (0..count).find(|&at| end > 0 && entry_at(words, at).end() == 0);
                if let Some(at) = known.or_else(unused) {
                    set_entry(words, at, Entry::new(holder, end));
                    return None;
                }
                if end > 0 && count < words.len() * 2 {
                    set_entry(words, count, Entry::new(holder, end));
                    let form = HoldingsWord(self.record[HOLDINGS].load(Relaxed)).with_entries(count + 1);
                    self.record[HOLDINGS].store(form.0, Release);
                    return None;
                }
            }
            Holdings::Dense { .. } => {}
        }
        (end > 0).then(|| self.new_form(holder, end))
    }

    /// Additional bytes that adding a holder would take.
    pub(crate) fn bytes_for(&self, holder: Holder) -> usize {
        let holders = (holder.0 + 1).max(self.holders_end) as usize;
        match Holdings::of(self.record, self.lists) {
            Holdings::Dense { words } if (holder.0 as usize) < words.len() * 4 => 0,
            Holdings::Dense { .. } => self.extents.bytes_for(holders.div_ceil(4)),
            holdings @ Holdings::Entries { words, count } => {
                let has_room = count < words.len() * 2 || (0..count).any(|at| entry_at(words, at).end() == 0);
                if has_room || holdings.find(holder).is_some() {
                    return 0;
                }
                // A list or an array.
                self.extents.bytes_for(count + 1).max(self.extents.bytes_for(holders.div_ceil(4)))
            }
        }
    }

    /// The holdings with one more holder, in the form that suits them; not published yet.
    fn new_form(&mut self, holder: Holder, end: u16) -> HoldingsWord {
        let mut entries = vec![Entry::new(holder, end)];
        Holdings::of(self.record, self.lists).for_each(|holder, end| entries.push(Entry::new(holder, end)));
        self.form_of(&entries)
    }

    /// A dense array above an eighth of all holders or above [`LIST_ENTRIES_MAX`], because a list is searched
    /// linearly.
    fn form_of(&mut self, entries: &[Entry]) -> HoldingsWord {
        let holders = entries.iter().map(|entry| entry.holder().0 + 1).max().unwrap_or(0).max(self.holders_end);
        let is_long = entries.len() * DENSE_SHARE > holders as usize || entries.len() > LIST_ENTRIES_MAX;
        if entries.len() > INLINE_ENTRIES && is_long {
            let extent = self.extents.take(self.lists, (holders as usize).div_ceil(4));
            let words = self.lists.words(extent);
            words.iter().for_each(|word| word.store(0, Relaxed));
            for entry in entries {
                set_dense(words, entry.holder(), entry.end());
            }
            return HoldingsWord::dense(extent);
        }
        let extent = self.extents.take(self.lists, entries.len());
        let words = self.lists.words(extent);
        for (at, &entry) in entries.iter().enumerate() {
            set_entry(words, at, entry);
        }
        HoldingsWord::list(extent, entries.len())
    }
}
