//! State of the service, collected when metrics are scraped.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::{MemoryLimit, PerTier, RankSize, Tier};
use flash_indexer_types::{ConnectionStatus, ModelKey, Trust};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::LabelValues;
use super::histogram::Histogram;

/// Buckets of the hit ratio: the share of a query's blocks that were found.
const HIT_RATIOS: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99];

/// State of the whole service at one scrape.
#[derive(Debug)]
pub struct State {
    /// State by model.
    pub models: Vec<ModelState>,
    /// Number of registered ranks in each state.
    pub listeners: BTreeMap<ListenerState, usize>,
    /// Queue of each decoder.
    pub decoders: Vec<QueueState>,
    /// Byte budget of all queues from the sockets to the writers.
    pub ingest_queue: IngestQueueState,
    /// Number of batches in each writer's queue.
    pub writers: Vec<usize>,
    /// Predicted blocks that no event has stored yet.
    pub predicted_blocks: usize,
    /// State of optional parts of the service: the tokenization pool and the shared store.
    pub sections: Vec<Box<dyn StateSection>>,
    /// Threads that ended by a panic, or are stalled.
    pub stalled_threads: usize,
}

/// Part of the service that encodes its own metric families.
pub trait StateSection: fmt::Debug + Send + Sync {
    /// Encodes the metric families of this part.
    ///
    /// # Errors
    ///
    /// Returns the error of the text writer.
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result;
}

/// Labels under which a registered rank is counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ListenerState {
    /// State of the connection.
    pub status: &'static str,
    /// Trust state.
    pub trust: &'static str,
}

/// Queue of one decoder.
#[derive(Debug, Clone, Copy)]
pub struct QueueState {
    /// Messages in the queue.
    pub messages: usize,
    /// Bytes of these messages.
    pub bytes: usize,
}

/// Byte budget of received messages.
#[derive(Debug, Clone, Copy)]
pub struct IngestQueueState {
    /// Bytes of messages that are received and not applied yet.
    pub bytes: usize,
    /// Limit of these bytes.
    pub bytes_max: usize,
}

/// State of one model and tenant.
#[derive(Debug)]
pub struct ModelState {
    /// Model and tenant.
    pub key: ModelKey,
    /// Registered instances.
    pub instances: usize,
    /// Registered shared caches.
    pub shared_caches: usize,
    /// Ranks that hold at least one block.
    pub ranks: usize,
    /// Blocks that these ranks hold, summed.
    pub size: RankSize,
    /// Memory of the index in bytes, if the index reports it.
    pub bytes: Option<usize>,
    /// Memory limit of the index, if it has one.
    pub memory_limit: Option<MemoryLimit>,
    /// Sequence hashes of one prefix in one rank that queries did not follow.
    pub twins_skipped: u64,
    /// Query counters of the model.
    pub counts: ModelCounts,
}

/// Query counters of one model. They are dropped with the model.
#[derive(Debug, Clone)]
pub struct ModelCounts {
    queries: Counter,
    queried_blocks: Counter,
    found_blocks: Counter,
    reported_prompt_tokens: Counter,
    reported_cached_tokens: Counter,
    hit_ratio: Histogram,
}

impl Default for ModelCounts {
    fn default() -> Self {
        Self {
            queries: Counter::default(),
            queried_blocks: Counter::default(),
            found_blocks: Counter::default(),
            reported_prompt_tokens: Counter::default(),
            reported_cached_tokens: Counter::default(),
            hit_ratio: Histogram::new(&HIT_RATIOS),
        }
    }
}

impl ModelCounts {
    /// Adds the counters to `totals`.
    pub fn add_to(&self, totals: &mut QueryTotals) {
        totals.queries += self.queries.get();
        totals.queried_blocks += self.queried_blocks.get();
        totals.found_blocks += self.found_blocks.get();
        totals.reported_prompt_tokens += self.reported_prompt_tokens.get();
        totals.reported_cached_tokens += self.reported_cached_tokens.get();
    }

    /// Counts a request with `prompt_tokens` tokens. Its engine had `cached_tokens` of them cached.
    pub fn hits_reported(&self, prompt_tokens: u64, cached_tokens: u64) {
        self.reported_prompt_tokens.inc_by(prompt_tokens);
        self.reported_cached_tokens.inc_by(cached_tokens);
    }

    /// Counts a query of `queried` blocks. `found` is the prefix length of the rank with the deepest match in any tier.
    pub fn query(&self, queried: usize, found: usize) {
        self.queries.inc();
        self.queried_blocks.inc_by(queried as u64);
        self.found_blocks.inc_by(found as u64);
        if queried > 0 {
            self.hit_ratio.observe(found as f64 / queried as f64);
        }
    }
}

/// Query counters of several models, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueryTotals {
    /// Queries.
    pub queries: u64,
    /// Blocks of their prompts.
    pub queried_blocks: u64,
    /// Of these, leading blocks that the rank with the deepest match held.
    pub found_blocks: u64,
    /// Prompt tokens of requests whose cached tokens were reported.
    pub reported_prompt_tokens: u64,
    /// Of these, tokens that the engine had cached.
    pub reported_cached_tokens: u64,
}

impl State {
    pub(super) fn instances(&self) -> usize {
        self.models.iter().map(|model| model.instances).sum()
    }
}

impl ModelState {
    fn labels(&self) -> [(&str, &str); 2] {
        [("model_name", &self.key.model_name), ("tenant_id", &self.key.tenant_id)]
    }
}

impl Collector for State {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        let gauge = |value: usize| ConstGauge::new(value as i64);
        families.one("models", "Model and tenant pairs with an index", &gauge(self.models.len()))?;
        families.one("workers", "Registered instances", &gauge(self.instances()))?;
        let listeners = self.listeners.iter().map(|(state, &count)| (state.clone(), gauge(count)));
        let help = "Registered ranks by connection state and trust state";
        families.add("listeners", help, None, listeners)?;

        let queues = || self.decoders.iter().enumerate().map(|(decoder, queue)| ([("decoder", decoder)], queue));
        let messages = queues().map(|(decoder, queue)| (decoder, gauge(queue.messages)));
        families.add("queued_messages", "Messages that wait for a decoder; there are --decoders", None, messages)?;
        let bytes = queues().map(|(decoder, queue)| (decoder, gauge(queue.bytes)));
        families.add("queued", "Bytes of the messages that wait for a decoder", Some(Unit::Bytes), bytes)?;
        let help = "Bytes of messages that are received and not applied yet, in the queues of decoders and writers";
        families.one("ingest_queue_bytes", help, &gauge(self.ingest_queue.bytes))?;
        let help = "Limit of ingest_queue_bytes: --ingest-queue-bytes";
        families.one("ingest_queue_max_bytes", help, &gauge(self.ingest_queue.bytes_max))?;
        let batches = || self.writers.iter().enumerate().map(|(at, &batches)| ([("writer", at)], gauge(batches)));
        let help = "Batches of changes that wait for a writer, each of one message or of several small ones";
        families.add("queued_batches", help, None, batches())?;
        families.add("queued_lots", "Alias of queued_batches until 1.0", None, batches())?;

        let help = "Threads that ended by a panic, or made no progress for 5 s while work was queued";
        families.one("stalled_threads", help, &gauge(self.stalled_threads))?;
        families.one("threads_not_moving", "Alias of stalled_threads until 1.0", &gauge(self.stalled_threads))?;
        let help = "Blocks that count at present because of predictions";
        families.one("predicted_blocks", help, &gauge(self.predicted_blocks))?;
        self.sections.iter().try_for_each(|section| section.encode(&mut families))?;
        self.encode_sizes(&mut families)?;
        self.encode_queries(&mut families)
    }
}

impl State {
    fn encode_sizes(&self, families: &mut Families<'_>) -> fmt::Result {
        let gauge = |value: usize| ConstGauge::new(value as i64);
        let by_model = |of: fn(&ModelState) -> usize| {
            self.models.iter().map(move |model| (model.labels(), gauge(of(model)))).collect::<Vec<_>>()
        };
        families.add("instances", "Registered instances by model", None, by_model(|model| model.instances))?;
        let help = "Registered shared caches by model, not counted as instances";
        families.add("shared_caches", help, None, by_model(|model| model.shared_caches))?;
        families.add("ranks", "Ranks that hold at least one block", None, by_model(|model| model.ranks))?;
        let help = "Blocks held in any tier, summed over ranks";
        families.add("held_blocks", help, None, by_model(|model| model.size.blocks))?;
        let help =
            "Held blocks that count in no match because their parent has not been stored; their ranks are degraded";
        families.add("waiting_blocks", help, None, by_model(|model| model.size.waiting))?;
        let tiers = self.models.iter().flat_map(|model| {
            let ([name, tenant], PerTier(blocks)) = (model.labels(), model.size.by_tier);
            let tiers = Tier::ALL.into_iter().zip(blocks);
            tiers.map(move |(tier, blocks)| ([name, tenant, ("tier", tier.as_str())], gauge(blocks)))
        });
        let help = "Blocks held in each tier, summed over ranks; a block in two tiers counts in both";
        families.add("tier_blocks", help, None, tiers)?;
        let bytes = self.models.iter().filter_map(|model| Some((model.labels(), gauge(model.bytes?))));
        families.add("index", "Memory of an index", Some(Unit::Bytes), bytes)?;
        self.encode_memory_limits(families)
    }

    fn encode_memory_limits(&self, families: &mut Families<'_>) -> fmt::Result {
        let limited = || self.models.iter().filter_map(|model| Some((model.labels(), model.memory_limit.as_ref()?)));
        let gauges = |of: fn(&MemoryLimit) -> usize| {
            limited().map(move |(labels, limit)| (labels, ConstGauge::new(of(limit) as i64))).collect::<Vec<_>>()
        };
        let counters = |of: fn(&MemoryLimit) -> u64| {
            limited().map(move |(labels, limit)| (labels, ConstCounter::new(of(limit)))).collect::<Vec<_>>()
        };
        let help = "Memory limit of an index";
        families.add("index_max", help, Some(Unit::Bytes), gauges(|limit| limit.bytes_max))?;
        let help = "Highest memory of an index with a memory limit since it was created";
        families.add("index_highest", help, Some(Unit::Bytes), gauges(|limit| limit.bytes_highest))?;
        let help = "Ranks of which an index with a memory limit lacks blocks";
        families.add("partial_ranks", help, None, gauges(|limit| limit.partial_ranks.len()))?;
        let help = "Blocks that an index evicted to stay within its memory limit, counted once for each rank";
        families.add("evicted_blocks", help, None, counters(|limit| limit.evicted_blocks))?;
        let help = "Alias of evicted_blocks until 1.0";
        families.add("forgotten_blocks", help, None, counters(|limit| limit.evicted_blocks))?;
        let help = "Stored blocks that an index refused because of its memory limit";
        families.add("refused_blocks", help, None, counters(|limit| limit.refused_blocks))
    }

    fn encode_queries(&self, families: &mut Families<'_>) -> fmt::Result {
        let by_model = |of: fn(&ModelCounts) -> u64| {
            self.models
                .iter()
                .map(move |model| (model.labels(), ConstCounter::new(of(&model.counts))))
                .collect::<Vec<_>>()
        };
        families.add("queries", "Queries answered", None, by_model(|counts| counts.queries.get()))?;
        let twins = || self.models.iter().map(|model| (model.labels(), ConstCounter::new(model.twins_skipped)));
        let help = "Sequence hashes of a queried prefix that were not followed because one rank has too many";
        families.add("twins_skipped", help, None, twins())?;
        families.add("twins_passed_over", "Alias of twins_skipped until 1.0", None, twins())?;
        let help = "Blocks in queries";
        families.add("queried_blocks", help, None, by_model(|counts| counts.queried_blocks.get()))?;
        let help = "Queried blocks held in any tier by the rank with the deepest match";
        families.add("found_blocks", help, None, by_model(|counts| counts.found_blocks.get()))?;
        let help = "Prompt tokens of finished requests for which routers reported the cached tokens";
        families.add("reported_prompt_tokens", help, None, by_model(|counts| counts.reported_prompt_tokens.get()))?;
        let help = "Prompt tokens that engines had cached, as routers reported them";
        families.add("reported_cached_tokens", help, None, by_model(|counts| counts.reported_cached_tokens.get()))?;
        let ratios = self.models.iter().map(|model| (model.labels(), model.counts.hit_ratio.clone()));
        families.add("query_hit_ratio", "Share of a query's blocks that were found", None, ratios)
    }
}

/// Values of the labels of these metrics.
pub(super) fn label_values() -> Vec<LabelValues> {
    vec![
        LabelValues::of("listeners", "status", &ConnectionStatus::DESCRIPTIONS),
        LabelValues::of("listeners", "trust", &Trust::DESCRIPTIONS),
        LabelValues::of("tier_blocks", "tier", &Tier::DESCRIPTIONS),
    ]
}

/// Encoder of whole metric families.
pub struct Families<'a>(DescriptorEncoder<'a>);

/// A help text with a full stop. The library adds it to the help of registered metrics only.
pub(super) fn sentence(help: &str) -> String {
    format!("{help}.")
}

impl Families<'_> {
    /// Encodes a family of one metric without labels.
    ///
    /// # Errors
    ///
    /// Returns the error of the text writer.
    pub fn one(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, &sentence(help), None, metric.metric_type())?)
    }

    /// Encodes a family of metrics with labels. An empty family is left out.
    ///
    /// # Errors
    ///
    /// Returns the error of the text writer.
    pub fn add<L: EncodeLabelSet, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        metrics: impl IntoIterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut metrics = metrics.into_iter().peekable();
        let kind = match metrics.peek() {
            Some((_, metric)) => metric.metric_type(),
            // Without a metric there is no metric type to declare.
            None => return Ok(()),
        };
        let mut family = self.0.encode_descriptor(name, &sentence(help), unit.as_ref(), kind)?;
        for (labels, metric) in metrics {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
