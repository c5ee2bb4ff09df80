//! Counters of the changes by a stream, by rank.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use flash_indexer_core::groups::{GroupEvent, RankEvent};
use flash_indexer_core::{AppliedChanges, BlockEvent, DpRank};
use parking_lot::Mutex;

/// Applied events of a rank since its registration, and the blocks that they changed in any tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankActivity {
    /// Events.
    pub events: u64,
    /// Blocks that became held in a tier.
    pub stored_blocks: u64,
    /// Blocks that left a tier, by removals and clears.
    pub removed_blocks: u64,
}

impl RankActivity {
    fn of(event: &RankEvent, applied: &AppliedChanges) -> Self {
        // A clear of the whole rank reports the blocks that it removed, as a removal does.
        let is_removal = match event {
            RankEvent::Primary(event) => matches!(event, BlockEvent::Removed { .. } | BlockEvent::Cleared),
            RankEvent::ClearedScope(_) => true,
            RankEvent::Secondary(change) => matches!(change.event, GroupEvent::Removed { .. }),
        };
        let removed_blocks = if is_removal { applied.removed } else { 0 };
        // Links belong to the store that shows them.
        let is_event = !matches!(event, RankEvent::Secondary(change) if matches!(change.event, GroupEvent::Linked(_)));
        Self { events: u64::from(is_event), stored_blocks: applied.stored, removed_blocks }
    }
}

/// Activity of the ranks of a stream.
///
/// # Consistency
///
/// Only the stream's writer adds, so an addition is a load and a store. A reader may see the events of an addition before
/// its blocks.
#[derive(Debug, Default)]
pub(super) struct StreamActivity {
    /// Counters of the registered rank, which is the only rank of most streams.
    events: AtomicU64,
    stored_blocks: AtomicU64,
    removed_blocks: AtomicU64,
    /// Activity of the other ranks that batches name.
    others: Mutex<BTreeMap<DpRank, RankActivity>>,
    /// Sequence number of the last live message that was received, plus 1; 0 before the first one.
    received: AtomicU64,
}

impl StreamActivity {
    /// Adds an applied event. `registered` is the registered rank of the stream.
    pub(super) fn add(&self, registered: DpRank, dp_rank: DpRank, event: &RankEvent, applied: &AppliedChanges) {
        let added = RankActivity::of(event, applied);
        if dp_rank != registered {
            let mut others = self.others.lock();
            let activity = others.entry(dp_rank).or_default();
            activity.events += added.events;
            activity.stored_blocks += added.stored_blocks;
            activity.removed_blocks += added.removed_blocks;
            return;
        }
        let add = |counter: &AtomicU64, by: u64| counter.store(counter.load(Relaxed) + by, Relaxed);
        add(&self.events, added.events);
        add(&self.stored_blocks, added.stored_blocks);
        add(&self.removed_blocks, added.removed_blocks);
    }

    pub(super) fn of(&self, registered: DpRank, dp_rank: DpRank) -> RankActivity {
        if dp_rank != registered {
            return self.others.lock().get(&dp_rank).copied().unwrap_or_default();
        }
        RankActivity {
            events: self.events.load(Relaxed),
            stored_blocks: self.stored_blocks.load(Relaxed),
            removed_blocks: self.removed_blocks.load(Relaxed),
        }
    }

    /// Records a live message that was received. Only the decoder calls it.
    pub(super) fn received(&self, sequence: u64) {
        self.received.store(sequence.saturating_add(1), Relaxed);
    }

    /// Sequence number of the last live message that was received.
    pub(super) fn last_received(&self) -> Option<u64> {
        self.received.load(Relaxed).checked_sub(1)
    }
}
