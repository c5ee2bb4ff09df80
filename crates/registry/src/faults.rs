//! Faults injected by tests of this crate and of the server.

use flash_indexer_core::BlockEvent;
use flash_indexer_core::groups::RankEvent;
use parking_lot::{Mutex, MutexGuard};

/// An event that stores this block panics in the index.
pub const PANICKING_BLOCK: u64 = 0xDEAD_0001;
/// An event that stores this block blocks its writer while the guard of [`block_writers`] is held.
pub const BLOCKING_BLOCK: u64 = 0xDEAD_0002;

static WRITERS: Mutex<()> = Mutex::new(());
static TIER_LOOKUPS: Mutex<()> = Mutex::new(());
static CLEANUP_WAITS: Mutex<()> = Mutex::new(());

/// Panics or blocks if the event stores one of the blocks above.
pub(crate) fn apply(event: &RankEvent) {
    let RankEvent::Primary(BlockEvent::Stored { blocks, .. }) = event else { return };
    for block in blocks {
        assert!(block.sequence.0 != PANICKING_BLOCK, "fault injected by a test");
        if block.sequence.0 == BLOCKING_BLOCK {
            drop(WRITERS.lock());
        }
    }
}

/// Blocks writers at [`BLOCKING_BLOCK`] while the guard is held.
pub fn block_writers() -> MutexGuard<'static, ()> {
    WRITERS.lock()
}

/// Blocks tier lookups while the guard is held, like a writer that holds the lock of its index.
pub fn block_tier_lookups() -> MutexGuard<'static, ()> {
    TIER_LOOKUPS.lock()
}

/// Blocks while the guard of [`block_tier_lookups`] is held.
pub(crate) fn wait_for_tier_lookups() {
    drop(TIER_LOOKUPS.lock());
}

/// Blocks the waits of registrations for decoders and writers while the guard is held, as if these never finished.
pub fn block_cleanup_waits() -> MutexGuard<'static, ()> {
    CLEANUP_WAITS.lock()
}

/// Blocks while the guard of [`block_cleanup_waits`] is held.
pub(crate) fn wait_for_cleanup_waits() {
    drop(CLEANUP_WAITS.lock());
}
