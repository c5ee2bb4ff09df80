//! State of the tokenization pool as metrics.

use std::fmt;

use flash_indexer_prompt::tokenize::{Cutting, PieceStatistics, PoolStatistics};
use flash_indexer_telemetry::metrics::{Families, StateSection};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheResult {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CutLabel {
    cuts: &'static str,
}

/// State of the tokenization pool.
#[derive(Debug)]
pub(crate) struct TokenizationState(pub PoolStatistics);

impl StateSection for TokenizationState {
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result {
        let pool = &self.0;
        let gauge = |value: usize| ConstGauge::new(value as i64);
        families.one("tokenization_queued_prompts", "Prompts pending to be tokenized", &gauge(pool.queued))?;
        let help = "Bytes of the prompts pending to be tokenized";
        families.one("tokenization_queued_bytes", help, &gauge(pool.queued_bytes))?;
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
        let cuttings = Cutting::ALL
            .map(|cuts| (CutLabel { cuts: cuts.as_str() }, ConstCounter::new(pool.cuttings[cuts as usize])));
        let help = "Tokenizers that were loaded, by where their texts are cut into pieces";
        families.add("tokenizer_loads", help, None, cuttings)?;
        encode_pieces(families, &pool.pieces)?;
        let searches = ConstCounter::new(pool.limits_reached);
        let help = "Searches of a tokenizer directory that ended at a limit on its size";
        families.one("tokenizer_searches_cut", help, &searches)
    }
}

fn encode_pieces(families: &mut Families<'_>, pieces: &PieceStatistics) -> fmt::Result {
    let gauge = |value: u64| ConstGauge::new(value as i64);
    families.one("tokenized_pieces", "Tokenized pieces of prompts in the cache", &gauge(pieces.entries as u64))?;
    families.one("tokenized_pieces_bytes", "Bytes of the cache of tokenized pieces", &gauge(pieces.bytes))?;
    families.one("tokenized_pieces_max_bytes", "Limit of tokenized_pieces_bytes", &gauge(pieces.bytes_max))?;
    let results = [("hit", pieces.hits), ("miss", pieces.misses), ("evicted", pieces.evictions)];
    let results = results.map(|(result, count)| (CacheResult { result }, ConstCounter::new(count)));
    let help = "Pieces of prompts that were found in the cache, tokenized, or evicted";
    families.add("tokenized_pieces_cache", help, None, results)?;
    let results = [("hit", pieces.found_bytes), ("miss", pieces.tokenized_bytes)];
    let results = results.map(|(result, count)| (CacheResult { result }, ConstCounter::new(count)));
    let help = "Bytes of text whose ids were found in the cache, or tokenized";
    families.add("tokenized_pieces_text_bytes", help, None, results)
}
