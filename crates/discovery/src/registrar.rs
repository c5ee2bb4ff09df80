//! Where discovered engines are registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::{EmptyModelPolicy, OwnedRank, Owner, RankId, Registered, Registration};

/// The registry of a replica, as discovery sees it.
pub trait Registrar: Send + Sync {
    /// Whether the service is stopping: nothing is registered any more.
    fn is_stopping(&self) -> bool;

    /// Whether the service recovers from a peer: registrations wait, because they must not meet streams that the
    /// recovery has not begun itself.
    fn is_recovering(&self) -> bool;

    /// Every registration with its owner. Linear in the registered ranks.
    fn registrations(&self) -> BTreeMap<RankId, OwnedRank>;

    /// Changes whenever [`Registrar::registrations`] may have changed.
    fn registrations_changed(&self) -> u64;

    /// Registers a rank for `owner`. A manual registration keeps its owner.
    ///
    /// # Errors
    ///
    /// The cause and what to do, when the rank cannot be registered.
    fn register(&self, owner: Owner, registration: Registration) -> Result<Registered, String>;

    /// Unregisters a rank unless its registration is manual.
    fn unregister(&self, rank: &RankId, policy: EmptyModelPolicy);

    /// Metrics of the service.
    fn metrics(&self) -> &Arc<Metrics>;

    /// Supervisor of the service's threads.
    fn supervisor(&self) -> &Arc<Supervisor>;
}
