//! Options of an indexer.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_access::LimitsFile;
use flash_indexer_curve::Curve;
use flash_indexer_redis::StoreOptions;
use flash_indexer_routing::TierWeights;
use flash_indexer_telemetry::metrics::MetricNames;
use flash_indexer_types::networks::EngineNetworks;

use crate::tokenization::TokenizationOptions;

/// Options of an [`Indexer`](super::Indexer).
#[derive(Debug, Clone)]
pub struct IndexerOptions {
    /// Threads that write to indexes; each shard of an index belongs to one of them.
    pub writer_threads: usize,
    /// Shards of each index, at most one for each writer thread. None is half of the processors: queries ask every shard, and need the
    /// other processors. An index with a memory limit has one shard.
    pub shards: Option<usize>,
    /// Threads that decode messages, each with its own queue. None is the number of processors, up to 8.
    pub decoder_threads: Option<usize>,
    /// Limit of the messages that are received and not applied yet, in bytes. None is
    /// [`default_queue_bytes`](flash_indexer_ingest::default_queue_bytes).
    pub ingest_queue_bytes_max: Option<usize>,
    /// Maximum number of registered pairs of model and tenant.
    pub models_max: usize,
    /// Maximum number of registered ranks.
    pub listeners_max: usize,
    /// Whether requests, discovery sources and peers may name `ipc://` endpoints, which are paths of this machine.
    pub allow_ipc: bool,
    /// Networks of engines and peers; an address outside them is not dialled.
    pub engine_networks: EngineNetworks,
    /// CURVE keys for ZeroMQ; none disables CURVE.
    pub curve: Option<Arc<Curve>>,
    /// Limits of tenants; none means no limits.
    pub tenant_limits: Option<Arc<LimitsFile>>,
    /// Stored, copied and removed blocks kept for explanations, of each kind for each model.
    pub history_blocks_max: usize,
    /// Memory limit of all indexes together, in bytes; none is unlimited.
    pub memory_max: Option<usize>,
    /// Names of the metrics.
    pub metric_names: MetricNames,
    /// The shared store, if one is used.
    pub store: Option<StoreOptions>,
    /// Time for which a query counts as a recent use of the blocks that it matched; none disables the counting.
    pub use_window: Option<Duration>,
    /// Weights of blocks in scores, by tier.
    pub tier_weights: TierWeights,
    /// Default time to live of a prediction.
    pub prediction_ttl: Duration,
    /// Default time to live of a prompt that is recorded for an instance without events.
    pub routed_ttl: Duration,
    /// Limit of the blocks of all instances without events together.
    pub routed_blocks_max: usize,
    /// Limit of the bytes of the last prompts, which are kept for the text of prefixes; zero keeps none.
    pub prompt_text_bytes: usize,
    /// Sources of tokenizers.
    pub tokenization: TokenizationOptions,
}

impl Default for IndexerOptions {
    fn default() -> Self {
        Self {
            writer_threads: 4,
            shards: None,
            decoder_threads: None,
            ingest_queue_bytes_max: None,
            models_max: 1_024,
            listeners_max: 16_384,
            allow_ipc: false,
            engine_networks: EngineNetworks::default(),
            curve: None,
            tenant_limits: None,
            metric_names: MetricNames::Own,
            store: None,
            use_window: None,
            history_blocks_max: 16_384,
            memory_max: None,
            tier_weights: TierWeights::default(),
            prediction_ttl: Duration::from_secs(2),
            routed_ttl: Duration::from_secs(120),
            routed_blocks_max: 1 << 22,
            prompt_text_bytes: 0,
            tokenization: TokenizationOptions::default(),
        }
    }
}

impl IndexerOptions {
    /// Shards of each index without a memory limit.
    pub(super) fn shards(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.shards.unwrap_or_else(|| processors() / 2).clamp(1, self.writer_threads.max(1))
    }
}
