//! One index shared by many replicas: what this one publishes of its ranks, and what it finds of others'.

mod local;
mod ranks;
mod remote;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use flash_indexer_core::{LocalHash, PerTier};
use flash_indexer_redis::{FindError, HolderId, PublisherWaker, Store, StoreOptions, StoreReport};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use self::local::LocalRanks;
pub(crate) use self::ranks::PublishedRanks;
pub(crate) use self::remote::{Fleet, FleetModel, RemoteListedRank};
use crate::model::Model;
use flash_indexer_snapshot::TokenWindowRecord;
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_types::Trust;
use flash_indexer_types::{GivenInstanceId, ModelKey};

/// Models with their indexes, by name.
pub(crate) type Models = RwLock<BTreeMap<ModelKey, Arc<Model>>>;

/// Leading blocks of a prompt that holders have, when a tier and the faster ones are used together.
pub(crate) type Depths = FxHashMap<HolderId, PerTier<u32>>;

/// What replicas tell each other about a rank once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) model_name: String,
    pub(super) tenant_id: String,
    pub(super) block_size: u32,
    pub(super) instance_id: GivenInstanceId,
    pub(super) dp_rank: u32,
    /// Adapter of queries that name none.
    pub(super) lora_name: Option<String>,
    /// Token windows that the model's engines use.
    pub(super) windows: Vec<TokenWindowRecord>,
}

/// What they tell about it again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankStatus {
    pub(super) trust: Trust,
    pub(super) blocks: usize,
}

/// A replica's part in the shared index.
pub(crate) struct SharedStore {
    store: Arc<Store>,
    fleet: Arc<ArcSwap<Fleet>>,
    /// Keeps `fleet` as the store lists it.
    listing: JoinHandle<()>,
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.listing.abort();
    }
}

impl SharedStore {
    /// Connects in the background. Needs a runtime.
    pub(crate) fn start(
        options: StoreOptions,
        maker: &PublisherWaker,
        models: &Arc<Models>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
        let own = Arc::new(LocalRanks { models: Arc::clone(models) });
        let store = Store::start(options, maker, own, &runtime).map_err(std::io::Error::other)?;
        let (store, fleet) = (Arc::new(store), Arc::<ArcSwap<Fleet>>::default());
        let listing = runtime.spawn(keep_listed(Arc::clone(&store), Arc::clone(&fleet), Arc::clone(metrics)));
        Ok(Self { store, fleet, listing })
    }

    /// Everybody who is listed, also those of this replica.
    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    /// Whether trust states in the list are recent.
    pub(crate) fn is_list_current(&self) -> bool {
        self.store.is_directory_current()
    }

    /// What holders have of each form of a prompt.
    pub(crate) async fn find(
        &self,
        model: &FleetModel,
        forms: &[Cow<'_, [LocalHash]>],
    ) -> Result<Vec<Depths>, FindError> {
        let mut depths = Vec::with_capacity(forms.len());
        for form in forms {
            let found = self.store.find(model.scope, form).await?;
            depths.push(found.into_iter().map(|found| (found.holder, found.blocks)).collect());
        }
        Ok(depths)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.store.is_connected()
    }

    pub(crate) fn report(&self) -> StoreReport {
        self.store.report()
    }

    /// Lets others publish this replica's ranks at once.
    pub(crate) async fn stop(&self) {
        self.store.stop().await;
    }
}

/// Reads the list of holders whenever the store has answered with it. Its thousands of descriptions are read on a thread
/// that may block, and not in a query.
async fn keep_listed(store: Arc<Store>, fleet: Arc<ArcSwap<Fleet>>, metrics: Arc<Metrics>) {
    loop {
        store.listed().await;
        let (directory, own) = (store.directory(), store.publisher());
        if let Ok(read) = tokio::task::spawn_blocking(move || Fleet::of(directory.iter(), own)).await {
            read.note_refused(&fleet.load(), &metrics);
            fleet.store(Arc::new(read));
        }
    }
}
