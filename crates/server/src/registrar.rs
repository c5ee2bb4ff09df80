//! Registry of one replica as the registrar of discovery.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_discovery::Registrar;
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{EmptyModelPolicy, OwnedRank, Owner, RankId, Registration, RegistrationOutcome};

use flash_indexer_peers::RecoveryStatus;

/// Registrar over the indexer's registry and the state of recovery.
pub(crate) struct DiscoveryRegistrar {
    pub(crate) indexer: Arc<Indexer>,
    pub(crate) recovery: Arc<RecoveryStatus>,
}

impl Registrar for DiscoveryRegistrar {
    fn is_stopping(&self) -> bool {
        self.indexer.is_stopping()
    }

    fn is_recovering(&self) -> bool {
        self.recovery.is_running()
    }

    fn registrations(&self) -> BTreeMap<RankId, OwnedRank> {
        self.indexer.owned_ranks()
    }

    fn registrations_version(&self) -> u64 {
        self.indexer.registrations_changed()
    }

    fn register(&self, owner: Owner, registration: Registration) -> Result<RegistrationOutcome, String> {
        self.indexer.register_for(owner, registration).map_err(|error| error.to_string())
    }

    fn unregister(&self, rank: &RankId, policy: EmptyModelPolicy) {
        self.indexer.unregister_owned(rank, policy);
    }

    fn engine_networks(&self) -> &EngineNetworks {
        self.indexer.engine_networks()
    }

    fn supervisor(&self) -> &Arc<Supervisor> {
        self.indexer.supervisor()
    }
}
