//! The whole service without HTTP: who is registered, and what the fleet holds.

mod handover;
mod registration;
mod restore;
mod shadow;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use flash_indexer_core::designs::Design;
use flash_indexer_core::hashing::{BlockSize, HashSpace, local_hashes};
use flash_indexer_core::{DpRank, LocalHash};
use parking_lot::{Mutex, RwLock};

pub use self::handover::RankDump;
pub use self::registration::{Registered, Registration, RegistrationError, Unregistered};
pub(crate) use self::restore::{RankId, Restore, Taken};
pub(crate) use self::shadow::{Shadow, ShadowError};
pub(crate) use self::snapshot::DigestError;
use crate::answer::{Answer, QueryOptions};
use crate::ingest::{Connection, Decoders, ListenerReport, Sockets, Writers};
use crate::instance::{InstanceId, ModelKey};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::remembered::Remembered;

/// What an indexer is made with.
#[derive(Debug, Clone)]
pub struct IndexerOptions {
    /// The design of every index.
    pub design: Design,
    /// Threads that write to indexes; each model belongs to one of them.
    pub writer_threads: usize,
    /// Pairs of model and tenant that may be registered.
    pub models_max: usize,
    /// Ranks that may be registered.
    pub listeners_max: usize,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        Self { design: Design::DEFAULT, writer_threads: 4, models_max: 1_024, listeners_max: 16_384 }
    }
}

/// A query cannot be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// Nobody has registered for this model and tenant.
    #[error("no instance is registered for model {:?} and tenant {:?}: register one with POST /register, or see GET /workers", .0.model_name, .0.tenant_id)]
    UnknownModel(ModelKey),
}

/// An instance and its listeners.
#[derive(Debug, Clone)]
pub(crate) struct InstanceReport {
    pub(crate) instance: InstanceId,
    pub(crate) model: ModelKey,
    pub(crate) block_size: BlockSize,
    pub(crate) listeners: BTreeMap<DpRank, ListenerReport>,
}

/// Sizes of the whole service.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) models: usize,
    pub(crate) instances: usize,
    pub(crate) held_blocks: usize,
}

/// Registered engines, their indexes and the threads that feed them. Shared by every request.
///
/// # Consistency
///
/// A query sees each event of a rank entirely or not at all, and each model's events in the order in
/// which its writer applied them. Registering and unregistering are complete when the call returns.
pub struct Indexer {
    options: IndexerOptions,
    models: RwLock<BTreeMap<ModelKey, Arc<Model>>>,
    /// Held while registrations change, so that checks and changes are one step.
    registering: Mutex<()>,
    /// Where streams stood that are listened to no more.
    remembered: Mutex<Remembered>,
    sockets: Sockets,
    decoders: Arc<Decoders>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
    next_id: AtomicU64,
    next_writer: AtomicUsize,
}

impl std::fmt::Debug for Indexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Indexer {
    /// An indexer that nobody is registered with.
    ///
    /// # Errors
    ///
    /// When its threads cannot be started.
    pub fn start(options: IndexerOptions) -> std::io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let writers = Arc::new(Writers::start(options.writer_threads.max(1), &metrics)?);
        let decoders = Arc::new(Decoders::start(&writers, &metrics)?);
        Ok(Self {
            options,
            models: RwLock::default(),
            registering: Mutex::default(),
            remembered: Mutex::default(),
            sockets: Sockets::start(Arc::clone(&decoders))?,
            decoders,
            writers,
            metrics,
            next_id: AtomicU64::new(1),
            next_writer: AtomicUsize::new(0),
        })
    }

    /// Closes every socket and ends all threads; what was not applied yet is dropped. Queries still work.
    pub fn stop(&self) {
        self.writers.stop_applying();
        self.sockets.stop();
        self.decoders.stop();
        self.writers.stop();
    }

    fn models_of(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<Arc<Model>> {
        let models = self.models.read();
        let wanted = models.values().filter(|model| {
            model_name.is_none_or(|name| name == model.key.model_name)
                && tenant_id.is_none_or(|tenant| tenant == model.key.tenant_id)
        });
        wanted.cloned().collect()
    }

    fn model(&self, key: &ModelKey) -> Result<Arc<Model>, QueryError> {
        self.models.read().get(key).cloned().ok_or_else(|| QueryError::UnknownModel(key.clone()))
    }

    /// What the fleet holds of a prompt.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn query_tokens(
        &self,
        key: &ModelKey,
        tokens: &[u32],
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        let model = self.model(key)?;
        let space = match lora_name {
            Some(name) => HashSpace::new(Some(name), cache_salt),
            None => HashSpace::new(model.lora_name.read().as_deref(), cache_salt),
        };
        let windows = model.windows.in_use();
        let queries: Vec<_> = windows.map(|window| local_hashes(space, tokens, model.block_size, window)).collect();
        Ok(model.answer(queries.iter().map(Vec::as_slice), options))
    }

    /// What the fleet holds of a prompt given as local hashes of its blocks.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant.
    pub fn query_hashes(
        &self,
        key: &ModelKey,
        locals: &[LocalHash],
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        Ok(self.model(key)?.answer([locals], options))
    }

    /// Every registered instance, by model and then by instance.
    pub(crate) fn instances(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<InstanceReport> {
        let mut reports = Vec::new();
        for model in self.models_of(model_name, tenant_id) {
            for (instance, found) in model.instances.read().iter() {
                reports.push(InstanceReport {
                    instance: instance.clone(),
                    model: model.key.clone(),
                    block_size: model.block_size,
                    listeners: found.listeners.iter().map(|(&rank, listener)| (rank, listener.report(rank))).collect(),
                });
            }
        }
        reports
    }

    /// Those of `ranks` that are registered and not connected.
    pub(crate) fn unconnected(&self, ranks: &BTreeSet<RankId>) -> Vec<RankId> {
        let models = self.models.read();
        let missing = ranks.iter().filter(|rank| {
            let Some(model) = models.get(&rank.model) else { return false };
            let instances = model.instances.read();
            let listener = instances.get(&rank.instance).and_then(|instance| instance.listeners.get(&rank.dp_rank));
            listener.is_some_and(|listener| listener.connection() != Connection::Connected)
        });
        missing.cloned().collect()
    }

    /// Whether the indexer is told to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for model in self.models_of(None, None) {
            totals.models += 1;
            totals.instances += model.instances.read().len();
            totals.held_blocks += model.held_blocks();
        }
        totals
    }

    /// Blocks held by all ranks of all models.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.totals().held_blocks
    }

    /// Events applied since the start.
    #[must_use]
    pub fn events_applied(&self) -> u64 {
        self.metrics.events_applied()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop();
    }
}
