//! The registry, as a trait.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{EmptyModelPolicy, OwnedRank, Owner, RankId, Registration, RegistrationOutcome};

/// Interface of discovery to the registry of a replica.
pub trait Registrar: Send + Sync {
    /// Whether the service is stopping: engines are no longer registered.
    fn is_stopping(&self) -> bool;

    /// Whether the service recovers from a peer. Discovery waits meanwhile, because the recovery has to start the streams
    /// itself.
    fn is_recovering(&self) -> bool;

    /// Every registration with its owner. Linear in the registered ranks.
    fn registrations(&self) -> BTreeMap<RankId, OwnedRank>;

    /// Version of [`Registrar::registrations`]: it differs after each change.
    fn registrations_version(&self) -> u64;

    /// Registers a rank for `owner`. A manual registration keeps its owner.
    ///
    /// # Errors
    ///
    /// Cause and what to do, when the rank cannot be registered.
    fn register(&self, owner: Owner, registration: Registration) -> Result<RegistrationOutcome, String>;

    /// Unregisters a rank unless its registration is manual.
    fn unregister(&self, rank: &RankId, policy: EmptyModelPolicy);

    /// Networks to which the service connects.
    fn engine_networks(&self) -> &EngineNetworks;

    /// Metrics of the service.
    fn metrics(&self) -> &Arc<Metrics> {
        self.supervisor().metrics()
    }

    /// Supervisor of the service's threads.
    fn supervisor(&self) -> &Arc<Supervisor>;
}
