//! Lookups of the tiers that hold the blocks of matches.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::{LocalHash, PerTier, RankMatch, SharedIndex, Tier};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_telemetry::supervision::{ThreadKind, guarded};
use tokio::sync::Semaphore;

use crate::model::Model;

/// Lookups that wait for writers at a time.
const TIER_LOOKUPS_MAX: usize = 16;
/// Longest wait of a score for a writer. A writer releases its lock between two events.
const TIER_LOOKUP_WAIT_MAX: Duration = Duration::from_millis(500);

/// Runs lookups that take the lock of an index on threads that may block.
#[derive(Debug)]
pub(crate) struct TierLookups {
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl TierLookups {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { permits: Arc::new(Semaphore::new(TIER_LOOKUPS_MAX)), metrics: Arc::clone(metrics) }
    }

    /// [`SharedIndex::fastest_tiers`], or lower bounds if a writer is too busy or the limit of concurrent lookups is
    /// reached.
    ///
    /// For a lower bound, a block counts in the slowest tier that its prefix needs. The score is then too low, never
    /// too high.
    pub(crate) async fn fastest_tiers(
        &self,
        model: &Arc<Model>,
        query: &[LocalHash],
        found: &[RankMatch],
    ) -> Vec<PerTier<u32>> {
        let is_in_device = |found: &RankMatch| found.blocks[Tier::Device] == found.longest();
        if found.iter().all(is_in_device) {
            // This lookup takes no lock.
            return model.index().fastest_tiers(query, found);
        }
        let lower_bounds = || {
            self.metrics.limit_reached(Limit::TierLookups);
            found.iter().map(|found| slowest_tiers(&found.blocks)).collect()
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return lower_bounds() };
        let (model, metrics) = (Arc::clone(model), Arc::clone(&self.metrics));
        let (query, matches) = (query.to_vec(), found.to_vec());
        let lookup = tokio::task::spawn_blocking(move || {
            let look_up = || {
                #[cfg(any(test, feature = "fault-injection"))]
                drop(crate::faults::TIER_LOOKUPS.lock());
                model.index().fastest_tiers(&query, &matches)
            };
            let tiers = guarded(&metrics, ThreadKind::Request, "tier-lookup", look_up);
            // The permit is held until the lookup ends, even if the score stopped waiting for it.
            drop(permit);
            tiers
        });
        match tokio::time::timeout(TIER_LOOKUP_WAIT_MAX, lookup).await {
            Ok(Ok(Some(tiers))) => tiers,
            Ok(_) | Err(_) => lower_bounds(),
        }
    }
}

/// Blocks that count in each tier, given only the depth of a match when a tier and the faster ones are used together.
///
/// A block counts in the slowest tier that its prefix needs, if that tier is slower than its own. A score is therefore
/// never too high. It is exact if no block is in a faster tier than a block before it.
pub(crate) fn slowest_tiers(depths: &PerTier<u32>) -> PerTier<u32> {
    let mut tiers = *depths;
    for tier in (1..tiers.0.len()).rev() {
        tiers.0[tier] -= tiers.0[tier - 1];
    }
    tiers
}
