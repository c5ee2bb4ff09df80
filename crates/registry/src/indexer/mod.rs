//! The whole service without HTTP: who is registered, and what the fleet holds.

mod bound_pods;
mod cleanup;
mod explain;
mod handover;
mod memory;
mod models;
mod owners;
mod query;
mod register;
mod registration;
mod restore;
mod score;
mod shadow;
mod snapshot;
mod unregister;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_prompt::tokenize::{Prompt as Prompted, PromptOptions};
use flash_indexer_redis::{PublisherWaker, StoreOptions};
use parking_lot::Mutex;

use self::bound_pods::Pods;
pub use self::bound_pods::PodsGuard;
pub use self::bound_pods::{ListenError, PodOptions};
use self::cleanup::Cleanup;
pub use self::explain::{ExplainQuestion, Explanation, Prompt};
use self::owners::Owners;
pub use self::query::QueryError;
pub use self::registration::RegistrationError;
pub use self::restore::{Restore, RestoredRank};
pub use self::score::PredictError;
pub use self::shadow::{Shadow, ShadowError};
pub use self::snapshot::DigestError;
pub use self::unregister::Unregistered;
use crate::model::Model;
use crate::predictions::Predictions;
use crate::recent_uses::RecentUses;
use crate::score::{PredictionLimits, TierWeights};
use crate::shared_store::{Models, SharedStore};
use crate::stream_positions::StreamPositions;
use crate::telemetry::{StoreState, TokenizationState};
use crate::tier_lookups::TierLookups;
use crate::tokenization::{Tokenization, TokenizationError, TokenizationOptions};
use flash_indexer_explain::Tombstones;
use flash_indexer_ingest::{Connection, Decoders, Listener, ListenerReport, ReplayProgress, Sockets, Writers};
use flash_indexer_telemetry::metrics::{ListenerState, MetricNames, Metrics, State, StateSection, TextFormat};
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::{InstanceId, ModelKey, RankId};

/// What an indexer is made with.
#[derive(Debug, Clone)]
pub struct IndexerOptions {
    /// Threads that write to indexes; each model belongs to one of them.
    pub writer_threads: usize,
    /// Threads that decode messages, each with a queue of its own; none stands for as many as there are processors,
    /// up to 8.
    pub decoder_threads: Option<usize>,
    /// Pairs of model and tenant that may be registered.
    pub models_max: usize,
    /// Ranks that may be registered.
    pub listeners_max: usize,
    /// Whether requests, discovery sources and peers may name `ipc://` endpoints, which are paths of this machine.
    pub allow_ipc: bool,
    /// Stored and removed blocks of each model that are remembered to explain answers with, each.
    pub history_blocks_max: usize,
    /// Bytes that all indexes together may take; none lets them take what they need.
    pub memory_max: Option<usize>,
    /// What the metrics are called.
    pub metric_names: MetricNames,
    /// The index that is shared with other replicas, if there is one.
    pub store: Option<StoreOptions>,
    /// For how long a query counts as a recent use of the blocks that it reached; none counts nothing.
    pub use_window: Option<Duration>,
    /// What a block is worth in scores, by tier.
    pub tier_weights: TierWeights,
    /// How long a prediction counts that names no time.
    pub prediction_ttl: Duration,
    /// Bounds of predictions.
    pub prediction_limits: PredictionLimits,
    /// Where tokenizers come from.
    pub tokenization: TokenizationOptions,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        Self {
            writer_threads: 4,
            decoder_threads: None,
            models_max: 1_024,
            listeners_max: 16_384,
            allow_ipc: false,
            metric_names: MetricNames::Own,
            store: None,
            use_window: None,
            history_blocks_max: 16_384,
            memory_max: None,
            tier_weights: TierWeights::default(),
            prediction_ttl: Duration::from_secs(2),
            prediction_limits: PredictionLimits::default(),
            tokenization: TokenizationOptions::default(),
        }
    }
}

/// An instance and its listeners.
#[derive(Debug, Clone)]
pub struct InstanceReport {
    /// The instance.
    pub instance: InstanceId,
    /// Model and tenant.
    pub model: ModelKey,
    /// Tokens in its blocks.
    pub block_size: BlockSize,
    /// Reports of its listeners, by rank.
    pub listeners: BTreeMap<DpRank, ListenerReport>,
}

/// Registered engines, their indexes and the threads that feed them. Shared by every request.
///
/// # Consistency
///
/// A query sees each event of a rank entirely or not at all, and each model's events in the order in
/// which its writer applied them. Registering and unregistering are complete when the call returns, unless a thread that has
/// a part in them is slow: then a rank that is unregistered is in no answer, and forgotten behind the call.
pub struct Indexer {
    options: IndexerOptions,
    models: Arc<Models>,
    /// Held while registrations change, so that checks and changes are one step.
    registering: Mutex<()>,
    /// Where streams stood that are listened to no more.
    remembered: Arc<Mutex<StreamPositions>>,
    sockets: Sockets,
    cleanup: Cleanup,
    /// Engines that connect to this service, if it waits for any.
    pods: OnceLock<Pods>,
    supervisor: Arc<Supervisor>,
    decoders: Arc<Decoders>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
    uses: Option<Arc<RecentUses>>,
    predictions: Predictions,
    lookups: TierLookups,
    tokenization: Tokenization,
    tombstones: Tombstones,
    owners: Owners,
    /// Makes what is shared of ranks; none if nothing is.
    rank_maker: Option<PublisherWaker>,
    shared_store: Option<SharedStore>,
    next_id: AtomicU64,
    next_writer: AtomicUsize,
}

/// Longest wait for threads that are to end; those that have not ended by then are abandoned.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

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
    /// When its threads cannot be started, or the address of the store cannot be used. With a store it must be called
    /// in a runtime.
    pub fn start(options: IndexerOptions) -> std::io::Result<Self> {
        flash_indexer_types::use_random_hash_key();
        let models: Arc<Models> = Arc::default();
        let metrics = Arc::new(Metrics::new(options.metric_names));
        let rank_maker = options.store.as_ref().map(|_| PublisherWaker::default());
        let shared_store = options.store.clone().zip(rank_maker.as_ref());
        let shared_store =
            shared_store.map(|(store, maker)| SharedStore::start(store, maker, &models, &metrics)).transpose()?;
        let uses = options.use_window.map(|window| Arc::new(RecentUses::new(window, Instant::now())));
        let supervisor = Supervisor::start(&metrics)?;
        let writers = Arc::new(Writers::start(options.writer_threads.max(1), &supervisor)?);
        let decoders = Arc::new(Decoders::start(options.decoder_threads, &writers, &supervisor)?);
        Ok(Self {
            predictions: Predictions::new(options.prediction_limits),
            lookups: TierLookups::new(&metrics),
            tokenization: Tokenization::start(&options.tokenization, &metrics)?,
            options,
            models,
            registering: Mutex::default(),
            remembered: Arc::default(),
            sockets: Sockets::start(Arc::clone(&decoders), &supervisor)?,
            cleanup: Cleanup::start(&supervisor)?,
            pods: OnceLock::new(),
            supervisor,
            decoders,
            writers,
            metrics,
            uses,
            tombstones: Tombstones::default(),
            owners: Owners::default(),
            rank_maker,
            shared_store,
            next_id: AtomicU64::new(1),
            next_writer: AtomicUsize::new(0),
        })
    }

    /// Closes every socket and ends all threads; what was not applied yet is dropped. Queries still work.
    pub fn stop(&self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        self.writers.stop_applying();
        self.tokenization.stop();
        self.sockets.stop(deadline);
        self.decoders.stop(deadline);
        self.writers.stop(deadline);
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

    /// The tokens of a text or a chat, by the model's tokenizer and chat template.
    ///
    /// # Errors
    ///
    /// When the service has no tokenizers, and when the pool fails: too much waits, there is none for the model, or the prompt
    /// cannot be rendered or tokenized.
    pub async fn tokens(
        &self,
        model_name: &str,
        prompt: Prompted,
        options: PromptOptions,
    ) -> Result<Vec<u32>, TokenizationError> {
        self.tokenization.tokens(model_name, prompt, options).await
    }

    /// Every registered instance, by model and then by instance.
    pub fn instances(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<InstanceReport> {
        let mut reports = Vec::new();
        for model in self.models_of(model_name, tenant_id) {
            for (instance, found) in model.instances.read().iter() {
                let report = |(&dp_rank, listener): (&DpRank, &Arc<Listener>)| {
                    let rank = RankId { model: model.key.clone(), instance: instance.clone(), dp_rank };
                    (dp_rank, ListenerReport { source: self.owners.source(&rank), ..listener.report(dp_rank) })
                };
                reports.push(InstanceReport {
                    instance: instance.clone(),
                    model: model.key.clone(),
                    block_size: model.block_size,
                    listeners: found.listeners.iter().map(report).collect(),
                });
            }
        }
        reports
    }

    /// Those of `ranks` that are registered and not connected.
    pub fn unconnected(&self, ranks: &BTreeSet<RankId>) -> Vec<RankId> {
        let models = self.models.read();
        let missing = ranks.iter().filter(|rank| {
            let Some(model) = models.get(&rank.model) else { return false };
            let instances = model.instances.read();
            let listener = instances.get(&rank.instance).and_then(|instance| instance.listeners.get(&rank.dp_rank));
            listener.is_some_and(|listener| listener.connection() != Connection::Connected)
        });
        missing.cloned().collect()
    }

    /// Those of `ranks` that are connected and whose engine's history is not applied yet, with how far its replay is.
    pub fn catching_up(&self, ranks: &BTreeSet<RankId>) -> Vec<(RankId, Option<ReplayProgress>)> {
        let models = self.models.read();
        let progress = |rank: &RankId| {
            let instances = models.get(&rank.model)?.instances.read();
            let listener = instances.get(&rank.instance)?.listeners.get(&rank.dp_rank)?;
            let is_connected = listener.connection() == Connection::Connected;
            let catching_up = listener.catching_up().filter(|_| is_connected)?;
            Some((rank.clone(), catching_up.replay))
        };
        ranks.iter().filter_map(progress).collect()
    }

    /// Starts a thread of the service.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    /// What keeps the service from its work although it has started: threads that panicked or stand still, and streams that
    /// start over. Waits for no thread.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.supervisor.problems(Instant::now());
        for model in self.models_of(None, None) {
            let streams = model.awaited_restarts();
            if streams > 0 {
                problems.push(format!("{} lost its state by a panic: {streams} streams start over", model.key));
            }
        }
        problems
    }

    /// Has the thread of some engine's sockets panic.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn fail_sockets(&self) {
        let models = self.models_of(None, None);
        let instances = models[0].instances.read();
        let listener = instances.values().find_map(|it| it.listeners.values().next()).expect("one is registered");
        listener.fail_sockets();
    }

    /// Has the writer of every model do something a test asks for.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn run_on_writers(&self, job: Arc<dyn Fn() + Send + Sync>) {
        for model in self.models_of(None, None) {
            if let Some(listener) = model.instances.read().values().find_map(|it| it.listeners.values().next()) {
                let job = Arc::clone(&job);
                self.writers.run(listener, Box::new(move || job()));
            }
        }
    }

    /// Whether the indexer is told to end.
    pub fn is_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    /// All metrics. Waits for the writers of designs that tell their size so; linear in the ranks.
    pub fn metrics_text(&self, format: TextFormat) -> String {
        let models = self.models_of(None, None);
        let mut listeners: BTreeMap<ListenerState, usize> = BTreeMap::new();
        for model in &models {
            for (&rank, listener) in model.instances.read().values().flat_map(|instance| &instance.listeners) {
                let state =
                    ListenerState { status: listener.connection().as_str(), trust: listener.trust(rank).as_str() };
                *listeners.entry(state).or_default() += 1;
            }
        }
        let models = models.iter().map(|model| model.state()).collect();
        let mut sections: Vec<Box<dyn StateSection>> = Vec::new();
        sections.extend(self.tokenization.statistics().map(|pool| Box::new(TokenizationState(pool)) as Box<_>));
        sections.extend(self.store_report().map(|report| Box::new(StoreState(report)) as Box<_>));
        self.metrics.encode(
            State {
                models,
                listeners,
                decoders: self.decoders.queues(),
                writers: self.writers.queues(),
                predicted_blocks: self.predictions.count(),
                sections,
                threads_not_moving: self.supervisor.problems(Instant::now()).len(),
            },
            format,
        )
    }

    /// Blocks held by all ranks of all models.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.models_of(None, None).iter().map(|model| model.size().blocks).sum()
    }

    /// Events applied since the start.
    #[must_use]
    pub fn events_applied(&self) -> u64 {
        self.metrics.events_applied()
    }

    /// Metrics of the service.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop();
    }
}
