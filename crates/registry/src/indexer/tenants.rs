//! Limits of tenants: their ranks and the blocks of those ranks.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use flash_indexer_access::LimitExceeded;
use flash_indexer_core::SharedIndex;
use flash_indexer_telemetry::metrics::Limit;
use tracing::warn;

use super::Indexer;
use crate::model::Model;

impl Indexer {
    /// Refuses another rank for a tenant that has reached its limit.
    pub(super) fn check_tenant_ranks(&self, tenant: &str) -> Result<(), LimitExceeded> {
        let limit = self.options.tenant_limits.as_ref().and_then(|limits| limits.of(tenant).ranks);
        let Some(max) = limit else { return Ok(()) };
        let ranks: u64 = self.models_of(None, Some(tenant)).iter().map(|model| model.rank_count() as u64).sum();
        if ranks < max.get() {
            return Ok(());
        }
        self.metrics.limit_reached(Limit::TenantRanks);
        Err(LimitExceeded::ranks(tenant, max.get()))
    }

    /// Compares the ranks of a tenant with its limit. Batches that name further ranks may add as many as remain.
    pub(super) fn share_tenant_ranks(&self, tenant: &str) {
        if let Some(limits) = &self.options.tenant_limits {
            share_ranks(limits.of(tenant).ranks, &self.models_of(None, Some(tenant)));
        }
    }

    /// Compares the ranks, the blocks and the bytes of each tenant with its limits. If a tenant has reached a limit, writers refuse its
    /// further blocks until the next call. Its cost is linear in the ranks.
    pub fn check_tenants(&self) {
        let Some(limits) = &self.options.tenant_limits else { return };
        let models: Vec<Arc<Model>> = self.models.read().values().cloned().collect();
        let mut tenants: BTreeMap<&str, Vec<Arc<Model>>> = BTreeMap::new();
        for model in &models {
            tenants.entry(&model.key.tenant_id).or_default().push(Arc::clone(model));
        }
        for (tenant, models) in tenants {
            let of_tenant = limits.of(tenant);
            share_ranks(of_tenant.ranks, &models);
            let is_reached = |max: Option<NonZeroU64>, of: fn(&Model) -> usize| {
                max.is_some_and(|max| models.iter().map(|model| of(model) as u64).sum::<u64>() >= max.get())
            };
            let is_full = is_reached(of_tenant.held_blocks, |model| model.size().blocks)
                || is_reached(of_tenant.index_bytes, |model| model.index().memory_bytes().unwrap_or(0));
            // The models of a tenant share its state.
            let was_full = models.first().is_some_and(|model| model.tenant.set_full(is_full));
            if is_full && !was_full {
                let (held_blocks, index_bytes) = (of_tenant.held_blocks, of_tenant.index_bytes);
                warn!(
                    tenant,
                    ?held_blocks,
                    ?index_bytes,
                    "tenant has reached its limit of blocks or bytes; raise it in the limits file"
                );
            }
        }
    }
}

/// Permits batches to add the remaining ranks of a tenant with these models.
fn share_ranks(max: Option<NonZeroU64>, models: &[Arc<Model>]) {
    let ranks: u64 = models.iter().map(|model| model.rank_count() as u64).sum();
    let spare = max.map_or(u64::MAX, |max| max.get().saturating_sub(ranks));
    if let Some(model) = models.first() {
        model.tenant.set_spare_ranks(spare);
    }
}
