//! What the service is and holds at the moment when somebody asks.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::{MemoryLimit, PerTier, RankSize, Tier};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::histogram::Histogram;
use flash_indexer_types::ModelKey;

/// Shares of a prompt's blocks.
const HIT_RATIOS: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99];

/// The state of the whole service.
#[derive(Debug)]
pub struct State {
    /// By model.
    pub models: Vec<ModelState>,
    /// How many registered ranks are in each state.
    pub listeners: BTreeMap<ListenerState, usize>,
    /// By decoder.
    pub decoders: Vec<QueueState>,
    /// By writer, how many lots of changes wait for it.
    pub writers: Vec<usize>,
    /// Blocks that routers predicted and that no event has shown yet.
    pub predicted_blocks: usize,
    /// State of further parts of the service: the tokenization pool and the shared store.
    pub sections: Vec<Box<dyn StateSection>>,
    /// Threads that panicked for good, or stand still.
    pub threads_not_moving: usize,
}

/// State of one part of the service that encodes itself.
pub trait StateSection: fmt::Debug + Send + Sync {
    /// Writes the metric families of the part.
    ///
    /// # Errors
    ///
    /// When the writer fails.
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result;
}

/// What a registered rank is counted under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct ListenerState {
    /// State of the connection.
    pub status: &'static str,
    /// Trust state.
    pub trust: &'static str,
}

/// What waits for one decoder.
#[derive(Debug, Clone, Copy)]
pub struct QueueState {
    /// Messages in the queue.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The state of one model.
#[derive(Debug)]
pub struct ModelState {
    /// Model and tenant.
    pub key: ModelKey,
    /// Registered instances.
    pub instances: usize,
    /// Ranks that hold something.
    pub ranks: usize,
    /// What they hold together.
    pub size: RankSize,
    /// What the index takes, if it can tell.
    pub bytes: Option<usize>,
    /// What bounds that, if anything does.
    pub bound: Option<MemoryLimit>,
    /// Names of one prompt in one rank that queries did not follow.
    pub twins_skipped: u64,
    /// Counters that end with the model.
    pub counts: ModelCounts,
}

/// What is counted for one model, and goes with it.
#[derive(Debug, Clone)]
pub struct ModelCounts {
    queries: Counter,
    asked_blocks: Counter,
    found_blocks: Counter,
    hit_ratio: Histogram,
}

impl Default for ModelCounts {
    fn default() -> Self {
        Self {
            queries: Counter::default(),
            asked_blocks: Counter::default(),
            found_blocks: Counter::default(),
            hit_ratio: Histogram::new(&HIT_RATIOS),
        }
    }
}

impl ModelCounts {
    /// A query of `asked` blocks, of which the rank that has most, in whatever tier, has `found`.
    pub fn query(&self, asked: usize, found: usize) {
        self.queries.inc();
        self.asked_blocks.inc_by(asked as u64);
        self.found_blocks.inc_by(found as u64);
        if asked > 0 {
            self.hit_ratio.observe(found as f64 / asked as f64);
        }
    }
}

impl State {
    pub(super) fn instances(&self) -> usize {
        self.models.iter().map(|model| model.instances).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decoder {
    decoder: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Writer {
    writer: usize,
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
        families.one("models", "Pairs of model and tenant with an index", &gauge(self.models.len()))?;
        families.one("workers", "Registered instances", &gauge(self.instances()))?;
        let listeners = self.listeners.iter().map(|(state, &count)| (state.clone(), gauge(count)));
        let help = "Registered ranks by the state of their connection and by trust";
        families.add("listeners", help, None, listeners)?;

        let queues = || self.decoders.iter().enumerate().map(|(decoder, queue)| (Decoder { decoder }, queue));
        let messages = queues().map(|(decoder, queue)| (decoder, gauge(queue.messages)));
        families.add("queued_messages", "Messages that wait to be decoded", None, messages)?;
        let bytes = queues().map(|(decoder, queue)| (decoder, gauge(queue.bytes)));
        families.add("queued", "Messages that wait to be decoded", Some(Unit::Bytes), bytes)?;
        let lots = self.writers.iter().enumerate().map(|(writer, &lots)| (Writer { writer }, gauge(lots)));
        families.add("queued_lots", "Lots of changes, of a message or several, that wait for a writer", None, lots)?;

        let help = "Threads that ended by a panic, or have not moved for 5 s while work is queued";
        families.one("threads_not_moving", help, &gauge(self.threads_not_moving))?;
        let help = "Blocks that pods are predicted to hold and that the index does not have yet";
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
        families.add("ranks", "Ranks that hold something", None, by_model(|model| model.ranks))?;
        let help = "Blocks held in any tier, summed over ranks";
        families.add("held_blocks", help, None, by_model(|model| model.size.blocks))?;
        let help = "Of the held blocks, those that wait for a parent";
        families.add("waiting_blocks", help, None, by_model(|model| model.size.waiting))?;
        let tiers = self.models.iter().flat_map(|model| {
            let ([name, tenant], PerTier(blocks)) = (model.labels(), model.size.by_tier);
            let tiers = Tier::ALL.into_iter().zip(blocks);
            tiers.map(move |(tier, blocks)| ([name, tenant, ("tier", tier.as_str())], gauge(blocks)))
        });
        families.add("tier_blocks", "Blocks held in each tier, summed over ranks", None, tiers)?;
        let bytes = self.models.iter().filter_map(|model| Some((model.labels(), gauge(model.bytes?))));
        families.add("index", "What an index takes, of a design that can tell", Some(Unit::Bytes), bytes)?;
        self.encode_bounds(families)
    }

    fn encode_bounds(&self, families: &mut Families<'_>) -> fmt::Result {
        let bounded = || self.models.iter().filter_map(|model| Some((model.labels(), model.bound.as_ref()?)));
        let gauges = |of: fn(&MemoryLimit) -> usize| {
            bounded().map(move |(labels, bound)| (labels, ConstGauge::new(of(bound) as i64))).collect::<Vec<_>>()
        };
        let counters = |of: fn(&MemoryLimit) -> u64| {
            bounded().map(move |(labels, bound)| (labels, ConstCounter::new(of(bound)))).collect::<Vec<_>>()
        };
        let help = "What a bounded index may take";
        families.add("index_max", help, Some(Unit::Bytes), gauges(|bound| bound.bytes_max))?;
        let help = "The most that a bounded index ever took";
        families.add("index_highest", help, Some(Unit::Bytes), gauges(|bound| bound.bytes_highest))?;
        let help = "Ranks that hold more than their bounded index knows";
        families.add("partial_ranks", help, None, gauges(|bound| bound.partial_ranks.len()))?;
        let help = "Blocks that a bounded index forgot to keep within its bound, once for each rank";
        families.add("forgotten_blocks", help, None, counters(|bound| bound.evicted_blocks))?;
        let help = "Stored blocks that a bounded index did not take in";
        families.add("refused_blocks", help, None, counters(|bound| bound.refused_blocks))
    }

    fn encode_queries(&self, families: &mut Families<'_>) -> fmt::Result {
        let by_model = |of: fn(&ModelCounts) -> u64| {
            self.models
                .iter()
                .map(move |model| (model.labels(), ConstCounter::new(of(&model.counts))))
                .collect::<Vec<_>>()
        };
        families.add("queries", "Queries answered", None, by_model(|counts| counts.queries.get()))?;
        let twins = self.models.iter().map(|model| (model.labels(), ConstCounter::new(model.twins_skipped)));
        let help = "Names of a prompt that queries passed over because one rank has too many";
        families.add("twins_passed_over", help, None, twins)?;
        let help = "Blocks that queries asked for";
        families.add("queried_blocks", help, None, by_model(|counts| counts.asked_blocks.get()))?;
        let help = "Of the blocks asked for, those that the rank with the deepest match holds in any tier";
        families.add("found_blocks", help, None, by_model(|counts| counts.found_blocks.get()))?;
        let ratios = self.models.iter().map(|model| (model.labels(), model.counts.hit_ratio.clone()));
        families.add("query_hit_ratio", "Share of a query's blocks that were found", None, ratios)
    }
}

/// Writes metric families, each as a whole.
pub struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    /// Writes a family of one metric without labels.
    ///
    /// # Errors
    ///
    /// When the writer fails.
    pub fn one(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, None, metric.metric_type())?)
    }

    /// Writes a family of metrics with labels; nothing if there are none.
    ///
    /// # Errors
    ///
    /// When the writer fails.
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
            // Nothing to tell, and no type to tell it with.
            None => return Ok(()),
        };
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, metric) in metrics {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
