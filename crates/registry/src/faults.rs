//! Faults that tests of this crate and of the server ask for: no event is known to cause them.

use flash_indexer_core::BlockEvent;
use flash_indexer_core::groups::RankEvent;
use parking_lot::{Mutex, MutexGuard};

/// An event that stores this block panics in the index.
pub const PANICS: u64 = 0xDEAD_0001;
/// An event that stores this block stops its writer while [`block_writers`] is held.
pub const BLOCKS: u64 = 0xDEAD_0002;

static WRITERS: Mutex<()> = Mutex::new(());
static TIER_LOOKUPS: Mutex<()> = Mutex::new(());

/// Panics or blocks for an event that asks for it.
pub(crate) fn apply(event: &RankEvent) {
    let RankEvent::Indexed(BlockEvent::Stored { blocks, .. }) = event else { return };
    for block in blocks {
        assert!(block.sequence.0 != PANICS, "a test asked for a failure");
        if block.sequence.0 == BLOCKS {
            drop(WRITERS.lock());
        }
    }
}

/// Writers that come to [`BLOCKS`] wait while this is held.
#[must_use]
pub fn block_writers() -> MutexGuard<'static, ()> {
    WRITERS.lock()
}

/// Lookups of tiers wait while this is held, as they wait for a writer that holds its index's lock.
#[must_use]
pub fn block_tier_lookups() -> MutexGuard<'static, ()> {
    TIER_LOOKUPS.lock()
}

/// Waits while [`block_tier_lookups`] is held.
pub(crate) fn look_up_tiers() {
    drop(TIER_LOOKUPS.lock());
}
