//! What remains of a tenant's limits, shared by its models.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// What remains of a tenant's limits, as of the last comparison with them. A new model of the tenant begins with it.
///
/// # Consistency
///
/// Writers and decoders read it without a lock. Ranks are counted down one by one, so two models never use the same rank of the limit.
#[derive(Debug)]
pub struct TenantState {
    /// Whether the tenant holds as many blocks or bytes as its limit. Further blocks are refused.
    is_full: AtomicBool,
    /// Ranks that batches may add before the next comparison.
    spare_ranks: AtomicU64,
}

impl TenantState {
    /// The state of a tenant whose batches may name this number of ranks.
    #[must_use]
    pub fn with_spare_ranks(spare: u64) -> Self {
        Self { is_full: AtomicBool::new(false), spare_ranks: AtomicU64::new(spare) }
    }

    /// Whether further blocks are refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Sets whether further blocks are refused. Returns the previous value.
    pub fn set_full(&self, is_full: bool) -> bool {
        self.is_full.swap(is_full, Ordering::Relaxed)
    }

    /// Sets the number of ranks that batches may add.
    pub fn set_spare_ranks(&self, spare: u64) {
        self.spare_ranks.store(spare, Ordering::Relaxed);
    }

    /// Counts a rank that a batch adds. Returns false if none is left.
    pub fn take_rank(&self) -> bool {
        let left = |left: u64| left.checked_sub(1);
        self.spare_ranks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}

/// The states of the tenants that have models, by name.
#[derive(Debug, Default)]
pub struct TenantStates(Mutex<HashMap<String, Weak<TenantState>>>);

impl TenantStates {
    /// The state of a tenant, or a new one if it has no model. Linear in the tenants if it is new.
    pub fn of(&self, tenant: &str, new: impl FnOnce() -> TenantState) -> Arc<TenantState> {
        let mut states = self.0.lock();
        if let Some(known) = states.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        states.retain(|_, state| state.strong_count() > 0);
        let state = Arc::new(new());
        states.insert(tenant.to_owned(), Arc::downgrade(&state));
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_of_a_tenant_share_what_is_left() {
        let states = TenantStates::default();
        let of = |tenant| states.of(tenant, || TenantState::with_spare_ranks(0));
        let (first, other) = (of("a"), of("b"));
        first.set_spare_ranks(2);
        first.set_full(true);
        let second = of("a");
        assert!(second.is_full() && !other.is_full());
        assert_eq!(
            [second.take_rank(), first.take_rank(), second.take_rank(), other.take_rank()],
            [true, true, false, false]
        );
        drop((first, second));
        assert!(!of("a").is_full(), "nothing is kept of a tenant without models");
        assert_eq!(states.0.lock().len(), 2);
    }
}
