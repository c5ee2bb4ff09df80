//! The registry of a replica, without HTTP.

mod cleanup;
mod explanations;
mod handover;
mod memory_shares;
mod model_registry;
mod owners;
mod pod_options;
mod pod_registration;
mod queries;
mod rank_records;
mod register;
mod registration_error;
mod restore;
mod scoring;
mod shadow;
mod unregister;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use flash_indexer_core::designs::Design;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_prompt::tokenize::{Prompt as TextPrompt, PromptOptions};
use flash_indexer_redis::{RankMaker, StoreOptions};
use parking_lot::Mutex;

use self::cleanup::Cleanup;
pub use self::explanations::{ExplainQuestion, Explanation, Prompt};
use self::owners::Owners;
pub use self::pod_options::PodOptions;
use self::pod_registration::PodSocket;
pub use self::pod_registration::{ListenError, PodsGuard};
pub use self::queries::QueryError;
pub use self::rank_records::DigestError;
pub use self::registration_error::RegistrationError;
pub use self::restore::{Restore, RestoredRank};
pub use self::scoring::PredictError;
pub use self::shadow::{Shadow, ShadowError};
pub use self::unregister::Unregistered;
use crate::model::{Model, Models};
use crate::predictions::{PredictionLimits, Predictions};
use crate::recent_uses::RecentUses;
use crate::score::TierWeights;
use crate::shared_store::SharedStore;
use crate::state_metrics::{StoreState, TokenizationState};
use crate::stream_positions::StreamPositions;
use crate::tier_lookups::TierLookups;
use crate::tokenization::{Tokenization, TokenizationError, TokenizationOptions};
use flash_indexer_explain::Tombstones;
use flash_indexer_ingest::{Connection, Decoders, Listener, ListenerReport, ReplayProgress, Sockets, Writers};
use flash_indexer_telemetry::metrics::{ListenerState, MetricNames, Metrics, State, StateSection, TextFormat};
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::{InstanceId, ModelKey, RankId};

/// Options of an [`Indexer`].
#[derive(Debug, Clone)]
pub struct IndexerOptions {
    /// The design of every index.
    pub design: Design,
    /// Threads that write to indexes; each model belongs to one of them.
    pub writer_threads: usize,
    /// Threads that decode messages, each with its own queue. None is the number of processors, up to 8.
    pub decoder_threads: Option<usize>,
    /// Maximum number of registered pairs of model and tenant.
    pub models_max: usize,
    /// Maximum number of registered ranks.
    pub listeners_max: usize,
    /// Whether requests, discovery sources and peers may name `ipc://` endpoints, which are paths of this machine.
    pub allow_ipc: bool,
    /// Stored, copied and removed blocks kept for explanations, of each kind for each model.
    pub history_blocks_max: usize,
    /// Memory limit of all indexes together, in bytes; none is unlimited.
    pub memory_max: Option<usize>,
    /// Names of the metrics.
    pub metric_names: MetricNames,
    /// The shared store, if one is used.
    pub store: Option<StoreOptions>,
    /// Time for which a query counts as a recent use of the blocks that it matched; none counts no uses.
    pub use_window: Option<Duration>,
    /// Weights of blocks in scores, by tier.
    pub tier_weights: TierWeights,
    /// Default time to live of a prediction.
    pub prediction_ttl: Duration,
    /// Limits of predictions.
    pub prediction_limits: PredictionLimits,
    /// Sources of tokenizers.
    pub tokenization: TokenizationOptions,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        Self {
            design: Design::DEFAULT,
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
/// A query sees each event of a rank entirely or not at all, and the events of a model in the order in which its writer
/// applied them. Registering and unregistering are complete when the call returns, unless decoders, writers or sockets
/// take longer than two seconds. An unregistered rank is then in no answer, and its blocks are removed after the call.
pub struct Indexer {
    options: IndexerOptions,
    models: Arc<Models>,
    /// Held while registrations change, so that checks and changes are one step.
    registering: Mutex<()>,
    /// Positions of unregistered streams.
    stream_positions: Arc<Mutex<StreamPositions>>,
    sockets: Sockets,
    cleanup: Cleanup,
    /// The socket that pods connect to, if it is bound.
    pods: OnceLock<PodSocket>,
    supervisor: Arc<Supervisor>,
    decoders: Arc<Decoders>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
    recent_uses: Option<Arc<RecentUses>>,
    predictions: Predictions,
    tier_lookups: TierLookups,
    tokenization: Tokenization,
    tombstones: Tombstones,
    owners: Owners,
    /// Creates published ranks; none without a shared store.
    rank_maker: Option<RankMaker>,
    shared_store: Option<SharedStore>,
    next_id: AtomicU64,
    next_writer: AtomicUsize,
}

/// Longest wait for threads to stop. Threads that have not stopped by then are abandoned.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

impl std::fmt::Debug for Indexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Indexer {
    /// Starts an indexer without registrations. With a shared store, it must be called in a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started, or the address of the shared store is invalid.
    pub fn start(options: IndexerOptions) -> std::io::Result<Self> {
        flash_indexer_types::use_random_hash_key();
        let models: Arc<Models> = Arc::default();
        let metrics = Arc::new(Metrics::new(options.metric_names));
        let rank_maker = options.store.as_ref().map(|_| RankMaker::default());
        let shared_store = options.store.clone().zip(rank_maker.as_ref());
        let shared_store =
            shared_store.map(|(store, maker)| SharedStore::start(store, maker, &models, &metrics)).transpose()?;
        let recent_uses = options.use_window.map(|window| Arc::new(RecentUses::new(window, Instant::now())));
        let supervisor = Supervisor::start(&metrics)?;
        let writers = Arc::new(Writers::start(options.writer_threads.max(1), &supervisor)?);
        let decoders = Arc::new(Decoders::start(options.decoder_threads, &writers, &supervisor)?);
        Ok(Self {
            predictions: Predictions::new(options.prediction_limits),
            tier_lookups: TierLookups::new(&metrics),
            tokenization: Tokenization::start(&options.tokenization, &metrics)?,
            options,
            models,
            registering: Mutex::default(),
            stream_positions: Arc::default(),
            sockets: Sockets::start(Arc::clone(&decoders), &supervisor)?,
            cleanup: Cleanup::start(&supervisor)?,
            pods: OnceLock::new(),
            supervisor,
            decoders,
            writers,
            metrics,
            recent_uses,
            tombstones: Tombstones::default(),
            owners: Owners::default(),
            rank_maker,
            shared_store,
            next_id: AtomicU64::new(1),
            next_writer: AtomicUsize::new(0),
        })
    }

    /// Closes every socket and stops all threads. Messages that are not applied yet are dropped. Queries still work.
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
    /// If the service has no tokenizers, if the queue is full, if there is no tokenizer for the model, or if the prompt
    /// cannot be rendered or tokenized.
    pub async fn tokens(
        &self,
        model_name: &str,
        prompt: TextPrompt,
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

    /// The ranks that are registered and not connected.
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

    /// The ranks that are connected and whose initial replay is not applied yet, with its progress.
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

    /// The supervisor of all threads.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    /// Problems that make the service not ready: threads that panicked or do not make progress, and streams that
    /// restart. Does not block.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.supervisor.problems(Instant::now());
        for model in self.models_of(None, None) {
            let streams = model.awaited_restarts();
            if streams > 0 {
                problems.push(format!("{} lost its index in a panic; {streams} streams are restarting", model.key));
            }
        }
        problems
    }

    /// Makes the thread of some engine's sockets panic.
    #[cfg(feature = "fault-injection")]
    pub fn fail_sockets(&self) {
        let models = self.models_of(None, None);
        let instances = models[0].instances.read();
        let listener = instances.values().find_map(|it| it.listeners.values().next()).expect("one is registered");
        listener.fail_sockets();
    }

    /// Runs a job of a test on the writer of every model.
    #[cfg(feature = "fault-injection")]
    pub fn run_on_writers(&self, job: Arc<dyn Fn() + Send + Sync>) {
        for model in self.models_of(None, None) {
            if let Some(listener) = model.instances.read().values().find_map(|it| it.listeners.values().next()) {
                let job = Arc::clone(&job);
                self.writers.run(listener, Box::new(move || job()));
            }
        }
    }

    /// Whether the indexer is stopping.
    pub fn is_stopping(&self) -> bool {
        self.writers.are_stopping()
    }

    /// Encodes all metrics. Linear in the ranks. Waits for a writer if the index design reads its size under the
    /// writer's lock.
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
