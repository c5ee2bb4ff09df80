//! Prompts that become tokens.

use std::fmt;

use flash_indexer_prompt::tokenize::{PoolStatistics, TokenizeError, Tokenized};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::histogram::Histogram;
use super::state::Families;
use super::{Metrics, registered};

/// From a short text to a long chat whose tokenizer is loaded first, in seconds.
const DURATIONS: [f64; 14] =
    [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug)]
pub(super) struct TokenizationMetrics {
    prompts: Family<Outcome, Counter>,
    tokens: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl TokenizationMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Texts and chats to be tokenized, by kind and by what became of them; chats are rendered first";
        let prompts = registered(registry, "tokenizations", help, Family::default());
        let tokens = registered(registry, "tokenized_tokens", "Tokens that texts and chats became", Counter::default());
        let mut duration = |name: &str, help: &str| {
            let histogram = Histogram::new(&DURATIONS);
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let waited = duration("tokenization_wait", "Time of a prompt in the tokenization queue");
        let help = "Time of rendering and tokenizing a prompt, and of loading its tokenizer if it was not loaded";
        let worked = duration("tokenization_work", help);
        Self { prompts, tokens, waited, worked }
    }
}

impl Metrics {
    /// A text or a chat was tokenized, or was not.
    pub(crate) fn tokenized(&self, kind: &'static str, result: Result<&Tokenized, &TokenizeError>) {
        let metrics = &self.tokenization;
        let outcome = match result {
            Ok(tokenized) => {
                metrics.tokens.inc_by(tokenized.ids.len() as u64);
                metrics.waited.observe(tokenized.waited.as_secs_f64());
                metrics.worked.observe(tokenized.worked.as_secs_f64());
                "done"
            }
            Err(error) => error.reason().as_str(),
        };
        metrics.prompts.get_or_create(&Outcome { kind, outcome }).inc();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheResult {
    result: &'static str,
}

/// What the pool counts itself.
pub(super) fn encode(pool: &PoolStatistics, families: &mut Families<'_>) -> fmt::Result {
    let gauge = |value: usize| ConstGauge::new(value as i64);
    families.one("tokenization_queued_prompts", "Prompts that wait to be tokenized", &gauge(pool.queued))?;
    families.one("loaded_tokenizers", "Tokenizers in memory", &gauge(pool.loaded))?;
    let results = [
        ("hit", pool.cache_hits),
        ("miss", pool.cache_misses),
        ("missing_model", pool.cache_negative_hits),
        ("evicted", pool.cache_evictions),
        ("outdated", pool.cache_outdated),
        ("loaded", pool.loads),
        ("load_failed", pool.loads_failed),
    ];
    let results = results.map(|(result, count)| (CacheResult { result }, ConstCounter::new(count)));
    let help =
        "What happened to loaded tokenizers: prompts that found theirs loaded or not, tokenizers that came and went";
    families.add("tokenizer_cache", help, None, results)?;
    let searches = ConstCounter::new(pool.limits_reached);
    let help = "Searches of a tokenizer directory that ended at a bound on its size";
    families.one("tokenizer_searches_cut", help, &searches)
}
