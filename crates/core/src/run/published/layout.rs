//! Memory layout of a run.
//!
//! ```text
//!  word 0   version: even while stable, odd while the writer changes words that a reader could
//!           otherwise combine wrongly
//!  word 1   info:     parent run (32) | parent offset (10) | length (10) | flags (4) | phase (5)
//!  word 2   holdings: form (2) | entries (20) | – (10) | location of a list or a dense array (32);
//!           in place:  form (2) | entries (20) | offset (10) and id (32) of one child run
//!  word 3…6 up to eight holdings in place: holder (22) | end (10), two to a word
//!  word 7   the last checkpoint before the run
//!  word 8…  local hashes, as many as the run's size class has room for
//!  then     in the larger classes, fingerprints of sections of local hashes, from their own line on
//! ```
//!
//! Header and column are one allocation: a query goes from an edge to the comparison of blocks in one
//! step, and the processor prefetches the next lines.

use bytemuck::Zeroable;

use super::arena::{Arena, LINE_WORDS};
use super::atomics::AtomicU64;
use crate::cursor::CHECKPOINT_BLOCKS;

pub(crate) const VERSION: usize = 0;
pub(crate) const INFO: usize = 1;
pub(crate) const HOLDINGS: usize = 2;
pub(crate) const INLINE: usize = 3;
pub(crate) const CHECKPOINT: usize = 7;
pub(crate) const HEADER_WORDS: usize = 8;

/// Capacity of a run of each size class, in blocks.
pub(crate) const CAPACITIES: [u16; 12] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Blocks of the longest run. Ends of holdings have ten bits.
pub(crate) const RUN_BLOCKS_MAX: usize = 512;
/// Blocks that one fingerprint covers.
pub(crate) const SECTION_BLOCKS: usize = if cfg!(loom) { 2 } else { 64 };
/// Runs with room for fewer sections have no fingerprints: comparing those would take as long as comparing the
/// blocks.
const SECTIONS_MIN: usize = 3;
/// Holders have 22 bits.
pub(crate) const HOLDERS_MAX: u32 = 1 << 22;

const CLASS_SHIFT: u32 = 28;
/// Position of the phase in a run's info, after the flags.
const PHASE_SHIFT: u32 = 56;
const _: () = assert!(CHECKPOINT_BLOCKS <= 1 << (u64::BITS - PHASE_SHIFT) && CHECKPOINT_BLOCKS.is_power_of_two());

/// Identifies a run while it exists; reused afterwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Zeroable)]
pub(crate) struct RunId(pub(crate) u32);

impl RunId {
    /// No run, the default; as a parent, the start of every sequence.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn new(class: usize, number: u32) -> Self {
        assert!(number < 1 << CLASS_SHIFT, "fewer than 2^28 runs of one size");
        Self((class as u32) << CLASS_SHIFT | number)
    }

    pub(crate) fn class(self) -> usize {
        (self.0 >> CLASS_SHIFT) as usize
    }

    pub(crate) fn number(self) -> u32 {
        self.0 & ((1 << CLASS_SHIFT) - 1)
    }

    pub(crate) fn capacity(self) -> usize {
        CAPACITIES[self.class()].into()
    }
}

/// Sections of a run of this class that have fingerprints: as many as fit, or none.
pub(crate) fn sections(class: usize) -> usize {
    let sections = usize::from(CAPACITIES[class]) / SECTION_BLOCKS;
    if sections < SECTIONS_MIN { 0 } else { sections }
}

/// Words of a run of this class: whole cache lines.
pub(crate) fn record_words(class: usize) -> usize {
    HEADER_WORDS + usize::from(CAPACITIES[class]) + sections(class).next_multiple_of(LINE_WORDS)
}

/// The smallest class with room for `blocks` blocks, or the largest class.
pub(crate) fn class_for(blocks: usize) -> usize {
    CAPACITIES.partition_point(|&capacity| usize::from(capacity) < blocks).min(CAPACITIES.len() - 1)
}

/// Position of a block: an offset in a run. A block keeps it as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Zeroable)]
pub(crate) struct RunPosition {
    pub(crate) run: RunId,
    pub(crate) offset: u16,
}

impl RunPosition {
    /// The start of every sequence.
    pub(crate) const ROOT: Self = Self { run: RunId::NONE, offset: 0 };
}

/// Parent, length and flags of a run, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info(pub(crate) u64);

impl Info {
    /// The same block follows the same position elsewhere too: as another run's first block, or inside the parent
    /// run.
    pub(crate) const TWIN: u64 = 1 << 52;
    /// Runs are attached inside this run that start with the block that follows there in this run.
    pub(crate) const TWIN_INSIDE: u64 = 1 << 53;
    /// A holder may end in this run although it holds blocks further down.
    pub(crate) const RAGGED: u64 = 1 << 54;
    /// Flag of every twin but the first of its group: runs that start with one block at one position. Readers prefer the first.
    pub(crate) const LATER_TWIN: u64 = 1 << 55;

    pub(crate) fn new(parent: RunPosition) -> Self {
        Self(u64::from(parent.run.0) | u64::from(parent.offset) << 32)
    }

    pub(crate) fn parent(self) -> RunPosition {
        RunPosition { run: RunId(self.0 as u32), offset: (self.0 >> 32) as u16 & 1023 }
    }

    pub(crate) fn len(self) -> usize {
        (self.0 >> 42) as usize & 1023
    }

    pub(crate) fn with_len(self, len: usize) -> Self {
        Self(self.0 & !(1023 << 42) | (len as u64) << 42)
    }

    /// Blocks between the last checkpoint before the run and the run.
    pub(crate) fn phase(self) -> usize {
        (self.0 >> PHASE_SHIFT) as usize % CHECKPOINT_BLOCKS
    }

    pub(crate) fn with_phase(self, phase: usize) -> Self {
        debug_assert!(self.phase() == 0 && phase < CHECKPOINT_BLOCKS);
        Self(self.0 | (phase as u64) << PHASE_SHIFT)
    }

    pub(crate) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

/// Runs by size class, each class an arena.
#[derive(Debug)]
pub(crate) struct RunArena {
    classes: [Arena; CAPACITIES.len()],
}

impl RunArena {
    pub(crate) fn new() -> Self {
        Self { classes: std::array::from_fn(|class| Arena::new(record_words(class))) }
    }

    /// Header, column and fingerprints of a run.
    #[inline]
    pub(crate) fn record(&self, run: RunId) -> &[AtomicU64] {
        self.classes[run.class()].record(run.number())
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.classes.into_iter().flat_map(Arena::into_pieces)
    }

    pub(crate) fn class(&self, class: usize) -> &Arena {
        &self.classes[class]
    }
}
