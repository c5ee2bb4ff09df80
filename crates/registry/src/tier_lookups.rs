//! In which tier the blocks of matches lie, where only an index's writer side knows.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::{LocalHash, PerTier, RankMatch, SharedIndex, Tier};
use tokio::sync::Semaphore;

use crate::model::Model;
use crate::score::slowest_tiers;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_telemetry::supervision::{ThreadKind, guarded};

/// Lookups that may wait for writers at a time.
const TIER_LOOKUPS_MAX: usize = 16;
/// Longest wait of a score for a writer. Writers are free between two events.
const TIER_LOOKUP_WAIT: Duration = Duration::from_millis(500);

/// Lookups that take an index's lock, off the threads that serve requests.
#[derive(Debug)]
pub(crate) struct TierLookups {
    room: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl TierLookups {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { room: Arc::new(Semaphore::new(TIER_LOOKUPS_MAX)), metrics: Arc::clone(metrics) }
    }

    /// [`SharedIndex::fastest_tiers`]. Where a writer is too busy to be asked, or too many scores ask already, a block counts
    /// in the slowest tier that is needed for what is before it: a score is then too low, and never too high.
    pub(crate) async fn fastest_tiers(
        &self,
        model: &Arc<Model>,
        query: &[LocalHash],
        found: &[RankMatch],
    ) -> Vec<PerTier<u32>> {
        let is_in_device = |found: &RankMatch| found.blocks[Tier::Device] == found.longest();
        if found.iter().all(is_in_device) {
            // No lock is taken.
            return model.index().fastest_tiers(query, found);
        }
        let lower_bounds = || {
            self.metrics.limit_reached(Limit::TierLookups);
            found.iter().map(|found| slowest_tiers(&found.blocks)).collect()
        };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else { return lower_bounds() };
        let (model, metrics) = (Arc::clone(model), Arc::clone(&self.metrics));
        let (query, matches) = (query.to_vec(), found.to_vec());
        let lookup = tokio::task::spawn_blocking(move || {
            let look_up = || {
                #[cfg(any(test, feature = "fault-injection"))]
                crate::faults::look_up_tiers();
                model.index().fastest_tiers(&query, &matches)
            };
            let tiers = guarded(&metrics, ThreadKind::Request, "tier-lookup", look_up);
            // Its place is taken for as long as it waits, also after the score has gone on.
            drop(permit);
            tiers
        });
        match tokio::time::timeout(TIER_LOOKUP_WAIT, lookup).await {
            Ok(Ok(Some(tiers))) => tiers,
            Ok(_) | Err(_) => lower_bounds(),
        }
    }
}
