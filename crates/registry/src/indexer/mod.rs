//! The registry of a replica, without HTTP.

mod addresses;
mod cleanup;
mod explanations;
mod handover;
mod memory_shares;
mod model_registry;
mod options;
mod owners;
mod picking;
mod pod_options;
mod pod_registration;
mod prefix_text;
mod queries;
mod rank_records;
mod readings;
mod register;
mod registration_check;
mod registration_error;
mod reports;
mod restore;
mod restored_state;
mod routing;
mod scoring;
mod shadow;
mod tenants;
mod unregister;

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flash_indexer_access::TenantStates;
use flash_indexer_prompt::tokenize::{Prompt as TextPrompt, PromptOptions, Tokenized};
use flash_indexer_redis::PublisherWaker;
use flash_indexer_routing::{InFlight, Predictions, RecentPrompts, RecentUses};
use flash_indexer_sources::Sources;
use parking_lot::Mutex;

use self::cleanup::Cleanup;
pub use self::explanations::{ExplainQuestion, Explanation, Prompt};
pub use self::options::IndexerOptions;
use self::owners::Owners;
pub use self::picking::{PickResult, ReportedHits, ReportedHitsError, RequestPhase};
pub use self::pod_options::PodOptions;
use self::pod_registration::PodSocket;
pub use self::pod_registration::{ListenError, PodsGuard};
pub use self::prefix_text::{PrefixText, PrefixTextError};
pub use self::queries::QueryError;
pub use self::rank_records::DigestError;
pub use self::registration_error::RegistrationError;
pub use self::reports::InstanceReport;
pub use self::restore::{Restore, RestoredRank};
use self::routing::RoutedInstances;
pub use self::scoring::PredictError;
pub use self::shadow::{Shadow, ShadowError};
pub use self::unregister::UnregisterOutcome;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_explain::Tombstones;
use flash_indexer_ingest::{Decoders, Transport, Writers, default_queue_bytes};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{EngineKind, ModelKey, StreamPositions};

use crate::model::{Model, Models};
use crate::prediction_waits::PredictionWaits;
use crate::shared_store::SharedStore;
use crate::tier_lookups::TierLookups;
use crate::tokenization::{Tokenization, TokenizationError};

/// Registered engines, their indexes and the threads that feed them. Shared by every request.
///
/// # Consistency
///
/// A query sees each event of a rank entirely or not at all, and the events of a rank in the order in which its engine
/// published them. Registering and unregistering are complete when the call returns, unless decoders, writers or sockets
/// take longer than two seconds. An unregistered rank is then in no answer, and its blocks are removed after the call.
pub struct Indexer {
    options: IndexerOptions,
    models: Arc<Models>,
    /// Held while registrations change: checks and changes are one step.
    registering: Mutex<()>,
    /// Positions of unregistered streams.
    stream_positions: Arc<Mutex<StreamPositions>>,
    sockets: Box<dyn Transport>,
    cleanup: Cleanup,
    /// The socket that pods connect to, if it is bound.
    pods: OnceLock<PodSocket>,
    supervisor: Arc<Supervisor>,
    decoders: Arc<Decoders>,
    writers: Arc<Writers>,
    metrics: Arc<Metrics>,
    recent_uses: Option<Arc<RecentUses>>,
    /// The last prompts, if operators may see the text of prefixes.
    recent_prompts: Option<RecentPrompts>,
    predictions: Predictions,
    routed: Arc<RoutedInstances>,
    /// Requests in flight, as routers report them. Locked for a pass over the instances of one model at most.
    in_flight: Mutex<InFlight>,
    started: Instant,
    tier_lookups: TierLookups,
    prediction_waits: PredictionWaits,
    tokenization: Tokenization,
    tombstones: Tombstones,
    owners: Owners,
    /// Creates published ranks; none without a shared store.
    rank_maker: Option<PublisherWaker>,
    shared_store: Option<SharedStore>,
    next_id: AtomicU64,
    tenants: TenantStates,
    next_writer: AtomicUsize,
    /// Whether models may still be restored.
    is_recovering: AtomicBool,
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
        let supervisor = Supervisor::start(&Arc::new(Metrics::new(options.metric_names)))?;
        let networks = options.engine_networks.clone();
        let curve = options.curve.clone();
        let connect =
            |decoders| Ok(Box::new(Sources::start(decoders, &networks, curve, &supervisor)?) as Box<dyn Transport>);
        Self::start_with(options, &supervisor, connect)
    }

    /// [`Indexer::start`] with the threads of a supervisor, and with these connections to engines.
    ///
    /// # Errors
    ///
    /// As [`Indexer::start`], and if `connect` fails.
    pub fn start_with(
        options: IndexerOptions,
        supervisor: &Arc<Supervisor>,
        connect: impl FnOnce(Arc<Decoders>) -> std::io::Result<Box<dyn Transport>>,
    ) -> std::io::Result<Self> {
        let models: Arc<Models> = Arc::default();
        let metrics = Arc::clone(supervisor.metrics());
        let rank_maker = options.store.as_ref().map(|_| PublisherWaker::default());
        let shared_store = options.store.clone().zip(rank_maker.as_ref());
        let shared_store =
            shared_store.map(|(store, maker)| SharedStore::start(store, maker, &models, &metrics)).transpose()?;
        let recent_uses = options.use_window.map(|window| Arc::new(RecentUses::new(window, Instant::now())));
        let recent_prompts = (options.prompt_text_bytes > 0).then(|| RecentPrompts::new(options.prompt_text_bytes));
        let writers = Arc::new(Writers::start(options.writer_threads.max(1), supervisor)?);
        let queue_bytes_max = options.ingest_queue_bytes_max.unwrap_or_else(default_queue_bytes);
        let decoders = Decoders::start(options.decoder_threads, queue_bytes_max, &writers, supervisor)?;
        let decoders = Arc::new(decoders);
        let started = supervisor.clock().now();
        let in_flight = Mutex::new(InFlight::new(picking::REQUESTS_IN_FLIGHT_MAX));
        let routed = Arc::new(RoutedInstances::new(started, options.routed_blocks_max));
        Ok(Self {
            predictions: Predictions::default(),
            tier_lookups: TierLookups::new(&metrics),
            prediction_waits: PredictionWaits::new(&metrics),
            tokenization: Tokenization::start(&options.tokenization, &metrics)?,
            options,
            models,
            registering: Mutex::default(),
            stream_positions: Arc::default(),
            sockets: connect(Arc::clone(&decoders))?,
            cleanup: Cleanup::start(supervisor, Arc::clone(&routed), Arc::clone(&decoders))?,
            routed,
            in_flight,
            started,
            pods: OnceLock::new(),
            supervisor: Arc::clone(supervisor),
            decoders,
            writers,
            metrics,
            recent_uses,
            recent_prompts,
            tombstones: Tombstones::default(),
            owners: Owners::default(),
            rank_maker,
            shared_store,
            next_id: AtomicU64::new(1),
            tenants: TenantStates::default(),
            next_writer: AtomicUsize::new(0),
            is_recovering: AtomicBool::new(false),
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

    /// Whether recovery may still restore models. Queries of an unknown model answer [`QueryError::Recovering`] meanwhile.
    pub fn set_recovering(&self, is_recovering: bool) {
        self.is_recovering.store(is_recovering, Release);
    }

    /// Whether recovery may still restore models and ranks.
    pub fn is_recovering(&self) -> bool {
        self.is_recovering.load(Acquire)
    }

    fn models_of(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<Arc<Model>> {
        let models = self.models.read();
        let wanted = models.values().filter(|model| {
            model_name.is_none_or(|name| name == model.key.model_name)
                && tenant_id.is_none_or(|tenant| tenant == model.key.tenant_id)
        });
        wanted.cloned().collect()
    }

    pub(crate) fn find_model(&self, key: &ModelKey) -> Option<Arc<Model>> {
        self.models.read().get(key).cloned()
    }

    pub(crate) fn model(&self, key: &ModelKey) -> Result<Arc<Model>, QueryError> {
        // Read first: a model is registered before recovery ends.
        let is_recovering = self.is_recovering();
        self.find_model(key).ok_or_else(|| match is_recovering {
            true => QueryError::Recovering(key.clone()),
            false => QueryError::UnknownModel(key.clone()),
        })
    }

    /// The kind of engine that a model's registrations name. Of several kinds, the most frequent one. `None` if none
    /// is named, and for an unknown model.
    pub fn engine_of(&self, key: &ModelKey) -> Option<EngineKind> {
        let model = self.find_model(key)?;
        let instances = model.instances.read();
        let targets = instances.iter().filter(|(name, _)| name.shared_cache().is_none());
        let named = targets.flat_map(|(_, instance)| instance.listeners.values());
        let kinds = named.filter_map(|listener| listener.options.engine);
        EngineKind::most_frequent(kinds)
    }

    /// The block size of a model that is registered with this replica.
    pub fn block_size_of(&self, key: &ModelKey) -> Option<BlockSize> {
        Some(self.find_model(key)?.block_size)
    }

    /// The tokens of a text or a chat, by the model's tokenizer and chat template. For a chat with media, the tokens before the media.
    /// `held` is dropped when the tokenizers have finished with the prompt, possibly after the future is dropped.
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
        held: impl Send + 'static,
    ) -> Result<Tokenized, TokenizationError> {
        self.tokenization.tokens(model_name, prompt, options, held).await
    }

    /// The supervisor of all threads.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    /// Makes the thread of some engine's sockets panic.
    #[cfg(feature = "fault-injection")]
    pub fn fail_sockets(&self) {
        let models = self.models_of(None, None);
        let instances = models[0].instances.read();
        let listener = instances.values().find_map(|it| it.listeners.values().next()).expect("one is registered");
        listener.fail_sockets();
    }

    /// The number in the index of a registered instance of some model.
    #[cfg(feature = "fault-injection")]
    pub fn worker(&self, instance: &flash_indexer_types::InstanceId) -> Option<flash_indexer_core::WorkerId> {
        self.models_of(None, None).iter().find_map(|model| model.worker(instance))
    }

    /// Runs a job of a test on a writer of every model.
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

    /// Metrics of the service.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Networks to which this replica connects.
    pub fn engine_networks(&self) -> &EngineNetworks {
        &self.options.engine_networks
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop();
    }
}
