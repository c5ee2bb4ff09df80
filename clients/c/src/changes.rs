//! Stores, copies, removals and clears.

use flash_indexer_core::{AppliedChanges, Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash};

use crate::arguments;
use crate::index::FlashIndex;
use crate::status::{Failure, FlashIndexStatus, guarded};

/// The memory that holds a block, from fastest to slowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum FlashIndexTier {
    /// Device memory of the accelerator.
    Device = 0,
    /// Host memory.
    Host = 1,
    /// A local disk or file system.
    Disk = 2,
    /// A store outside the instance.
    External = 3,
}

/// What a change did, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlashIndexApplied {
    /// Blocks that the tier did not hold before.
    pub stored: u64,
    /// Blocks that the tier held already and that have more copies now.
    pub duplicate: u64,
    /// Of stored, blocks whose parent is unknown: they count in no match until it is stored.
    pub waiting: u64,
    /// Of stored, blocks whose sequence hash the rank used for another block before.
    pub moved: u64,
    /// Stored blocks that a limit refused; their rank is degraded.
    pub refused: u64,
    /// Removed blocks that the tier held; for a clear, all blocks.
    pub removed: u64,
    /// Blocks to be removed or copied that the rank does not hold.
    pub unknown: u64,
}

impl From<AppliedChanges> for FlashIndexApplied {
    fn from(applied: AppliedChanges) -> Self {
        let AppliedChanges { stored, duplicate, waiting, moved, refused, removed, unknown, .. } = applied;
        Self { stored, duplicate, waiting, moved, refused, removed, unknown }
    }
}

/// Applies a change.
///
/// # Safety
///
/// index is a valid index; applied is NULL or points to a FlashIndexApplied.
unsafe fn apply(
    index: *const FlashIndex,
    (instance, dp_rank): (u64, u32),
    applied: *mut FlashIndexApplied,
    event: impl FnOnce() -> Result<BlockEvent, Failure>,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        arguments::check_result("applied", applied)?;
        let result = index.embedded.apply(arguments::rank(instance, dp_rank), &event()?)?;
        // SAFETY: by this function's contract.
        unsafe { arguments::write("applied", applied, result.into()) }
    })
}

/// Stores one copy of each of count blocks in a tier of a rank. The blocks follow each other: the first one follows *parent,
/// and starts a sequence if parent is NULL. sequence_hashes are the engine's own ids, each of a block with its whole prefix;
/// local_hashes are hashes of the blocks' tokens alone (flash_index_hash_tokens). Writes what it changed to *applied, unless
/// NULL. Linear in count.
///
/// # Safety
///
/// index is a valid index; parent and applied are NULL or valid; the arrays have count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_store(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    tier: u32,
    parent: *const u64,
    sequence_hashes: *const u64,
    local_hashes: *const u64,
    count: usize,
    applied: *mut FlashIndexApplied,
) -> FlashIndexStatus {
    let event = || {
        let tier = arguments::tier(tier)?;
        // SAFETY: by this function's contract.
        let parent = unsafe { arguments::array("parent", parent, usize::from(!parent.is_null())) }?.first();
        // SAFETY: by this function's contract.
        let sequences = unsafe { arguments::array("sequence_hashes", sequence_hashes, count) }?;
        // SAFETY: by this function's contract.
        let locals = unsafe { arguments::array("local_hashes", local_hashes, count) }?;
        let blocks = sequences.iter().zip(locals);
        let block = |(&sequence, &local)| Block { sequence: SequenceHash(sequence), local: LocalHash(local) };
        let parent = parent.copied().map(SequenceHash);
        Ok(BlockEvent::Stored { tier, parent, blocks: blocks.map(block).collect(), copies: 1 })
    };
    // SAFETY: by this function's contract.
    unsafe { apply(index, (instance, dp_rank), applied, event) }
}

/// Stores one copy of each of count blocks in another tier of a rank that holds them. Linear in count.
///
/// # Safety
///
/// index is a valid index; applied is NULL or valid; sequence_hashes has count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_copy(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    tier: u32,
    sequence_hashes: *const u64,
    count: usize,
    applied: *mut FlashIndexApplied,
) -> FlashIndexStatus {
    let event = || {
        let tier = arguments::tier(tier)?;
        // SAFETY: by this function's contract.
        let sequences = unsafe { arguments::array("sequence_hashes", sequence_hashes, count) }?;
        Ok(BlockEvent::Copied { tier, blocks: sequences.iter().copied().map(SequenceHash).collect() })
    };
    // SAFETY: by this function's contract.
    unsafe { apply(index, (instance, dp_rank), applied, event) }
}

/// Removes copies of count blocks from a tier of a rank: all of them if all_copies, else one of each. Linear in count.
///
/// # Safety
///
/// index is a valid index; applied is NULL or valid; sequence_hashes has count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_remove(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    tier: u32,
    sequence_hashes: *const u64,
    count: usize,
    all_copies: bool,
    applied: *mut FlashIndexApplied,
) -> FlashIndexStatus {
    let event = || {
        let tier = arguments::tier(tier)?;
        // SAFETY: by this function's contract.
        let sequences = unsafe { arguments::array("sequence_hashes", sequence_hashes, count) }?;
        let blocks = sequences.iter().copied().map(SequenceHash).collect();
        let copies = if all_copies { RemovedCopies::All } else { RemovedCopies::One };
        Ok(BlockEvent::Removed { tier, blocks, copies })
    };
    // SAFETY: by this function's contract.
    unsafe { apply(index, (instance, dp_rank), applied, event) }
}

/// Drops all blocks of a rank, in every tier. Its earlier losses no longer count.
///
/// # Safety
///
/// index is a valid index; applied is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_clear(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    applied: *mut FlashIndexApplied,
) -> FlashIndexStatus {
    // SAFETY: by this function's contract.
    unsafe { apply(index, (instance, dp_rank), applied, || Ok(BlockEvent::Cleared)) }
}
