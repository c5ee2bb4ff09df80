//! State of the tokenization pool as metrics.

use std::fmt;

use flash_indexer_prompt::tokenize::PoolStatistics;
use flash_indexer_telemetry::metrics::{Families, StateSection};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheResult {
    result: &'static str,
}

/// State of the tokenization pool.
#[derive(Debug)]
pub(crate) struct TokenizationState(pub PoolStatistics);

impl StateSection for TokenizationState {
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result {
        let pool = &self.0;
        let gauge = |value: usize| ConstGauge::new(value as i64);
        families.one("tokenization_queued_prompts", "Prompts pending to be tokenized", &gauge(pool.queued))?;
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
        let help = "Cache of loaded tokenizers: hits and misses of prompts, loads and evictions";
        families.add("tokenizer_cache", help, None, results)?;
        let searches = ConstCounter::new(pool.limits_reached);
        let help = "Searches of a tokenizer directory that ended at a limit on its size";
        families.one("tokenizer_searches_cut", help, &searches)
    }
}
