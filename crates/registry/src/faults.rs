//! Faults injected by tests of this crate and of the server.

use flash_indexer_core::BlockEvent;
use flash_indexer_core::groups::RankEvent;
use parking_lot::Mutex;

/// An event that stores this block panics in the index.
pub const PANICKING_BLOCK: u64 = 0xDEAD_0001;
/// An event that stores this block blocks its writer while [`WRITERS`] is locked.
pub const BLOCKING_BLOCK: u64 = 0xDEAD_0002;

/// Locked by a test that blocks writers at [`BLOCKING_BLOCK`].
pub static WRITERS: Mutex<()> = Mutex::new(());
/// Locked by a test that blocks tier lookups, like a writer that holds the lock of its index.
pub static TIER_LOOKUPS: Mutex<()> = Mutex::new(());
/// Locked by a test that blocks the waits of registrations for decoders and writers, as if these never finished.
pub static CLEANUP_WAITS: Mutex<()> = Mutex::new(());

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
