//! Limits of tenants: their ranks and the blocks that these hold.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flash_indexer_access::LimitExceeded;
use flash_indexer_telemetry::metrics::Limit;
use tracing::warn;

use super::Indexer;
use crate::model::Model;

impl Indexer {
    /// Refuses a further rank of a tenant that has as many as its limit.
    pub(super) fn check_tenant_ranks(&self, tenant: &str) -> Result<(), LimitExceeded> {
        let limit = self.options.tenant_limits.as_ref().and_then(|limits| limits.of(tenant).ranks);
        let Some(max) = limit else { return Ok(()) };
        let models = self.models.read();
        let ranks: usize =
            models.values().filter(|model| model.key.tenant_id == tenant).map(|model| model.rank_count()).sum();
        if (ranks as u64) < max.get() {
            return Ok(());
        }
        self.metrics.limit_reached(Limit::TenantRanks);
        Err(LimitExceeded::ranks(tenant, max.get()))
    }

    /// Compares the blocks that each tenant holds with its limit. Writers refuse further blocks of a tenant that has reached it
    /// until the next call. Its cost is linear in the ranks.
    pub fn check_held_blocks(&self) {
        let Some(limits) = &self.options.tenant_limits else { return };
        let models: Vec<Arc<Model>> = self.models.read().values().cloned().collect();
        let mut tenants: BTreeMap<&str, Vec<&Arc<Model>>> = BTreeMap::new();
        for model in &models {
            tenants.entry(&model.key.tenant_id).or_default().push(model);
        }
        for (tenant, models) in tenants {
            let max = limits.of(tenant).held_blocks;
            let is_full =
                max.is_some_and(|max| models.iter().map(|model| model.size().blocks as u64).sum::<u64>() >= max.get());
            let were_full = models.iter().filter(|model| model.is_tenant_full.swap(is_full, Ordering::Relaxed));
            if were_full.count() == 0 && is_full {
                let max = max.map(NonZeroU64::get);
                warn!(tenant, max, "tenant holds as many blocks as its limit; raise held_blocks in the limits file");
            }
        }
    }
}
