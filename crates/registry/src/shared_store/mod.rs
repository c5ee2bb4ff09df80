//! The index that replicas share through Redis or Valkey: this replica publishes its ranks and finds those of other
//! replicas.

mod fleet;
mod local_ranks;

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use flash_indexer_core::{LocalHash, PerTier};
use flash_indexer_redis::{HolderId, PublisherWaker, Store, StoreError, StoreOptions};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

pub(crate) use self::fleet::{Fleet, FleetModel, RemoteListedRank};
use flash_indexer_snapshot::TokenWindowRecord;
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_types::{Trust, UncheckedInstanceId};

use self::local_ranks::LocalRanks;
use crate::model::Models;

/// Leading blocks of a prompt that each holder has, when a tier and the faster ones are used together.
pub(crate) type Depths = FxHashMap<HolderId, PerTier<u32>>;

/// Matches of a prompt in the shared store.
#[derive(Debug, Default)]
pub(crate) struct StoreMatches {
    /// Depths in each hash variant of the prompt.
    pub(crate) variants: Vec<Depths>,
    /// Ranks that the store has only in part.
    pub(crate) incomplete: FxHashSet<HolderId>,
}

/// Description of a rank in the shared store, written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) model_name: String,
    pub(super) tenant_id: String,
    pub(super) block_size: u32,
    pub(super) instance_id: UncheckedInstanceId,
    pub(super) dp_rank: u32,
    /// Adapter of queries that name none.
    pub(super) lora_name: Option<String>,
    /// Token windows that the model's engines use.
    pub(super) windows: Vec<TokenWindowRecord>,
}

/// Status of a rank in the shared store, written periodically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankStatus {
    pub(super) trust: Trust,
    pub(super) blocks: usize,
}

/// This replica's connection to the shared store.
pub(crate) struct SharedStore {
    pub(crate) store: Arc<Store>,
    fleet: Arc<ArcSwap<Fleet>>,
    /// Refreshes `fleet` from the list in the store.
    refresh_task: JoinHandle<()>,
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.refresh_task.abort();
    }
}

impl SharedStore {
    /// Connects in the background. Requires a Tokio runtime.
    pub(crate) fn start(
        options: StoreOptions,
        maker: &PublisherWaker,
        models: &Arc<Models>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
        let local_ranks = Arc::new(LocalRanks { models: Arc::clone(models) });
        let store = Store::start(options, maker, local_ranks, &runtime).map_err(std::io::Error::other)?;
        let (store, fleet) = (Arc::new(store), Arc::<ArcSwap<Fleet>>::default());
        let refresh_task = runtime.spawn(refresh_fleet(Arc::clone(&store), Arc::clone(&fleet), Arc::clone(metrics)));
        Ok(Self { store, fleet, refresh_task })
    }

    /// All listed ranks, including this replica's.
    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    /// Matches of each hash variant of a prompt.
    pub(crate) async fn find(
        &self,
        model: &FleetModel,
        variants: &[Cow<'_, [LocalHash]>],
    ) -> Result<StoreMatches, StoreError> {
        let mut matches = StoreMatches::default();
        for variant in variants {
            let found = self.store.find(model.scope, variant).await?;
            matches.variants.push(found.depths.into_iter().map(|found| (found.holder, found.blocks)).collect());
            matches.incomplete.extend(found.incomplete);
        }
        Ok(matches)
    }
}

/// Parses the list of holders after each response with one. Thousands of descriptions are parsed on a thread that may
/// block, not in a query.
async fn refresh_fleet(store: Arc<Store>, fleet: Arc<ArcSwap<Fleet>>, metrics: Arc<Metrics>) {
    loop {
        store.listed().await;
        let (directory, publisher) = (store.directory(), store.publisher());
        if let Some(parsed) = store.run_blocking(move || Fleet::parse(directory.iter(), publisher)).await {
            parsed.record_rejected(&fleet.load(), &metrics);
            fleet.store(Arc::new(parsed));
        }
    }
}
