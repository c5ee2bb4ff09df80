//! State of the tokenization pool as metrics.

use std::fmt;

use flash_indexer_prompt::tokenize::{Cutting, PieceStatistics, PoolStatistics};
use flash_indexer_telemetry::metrics::{Families, LabelValue, LabelValues, StateSection};
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

/// Results of the cache of tokenizers.
const CACHE_RESULTS: [LabelValue; 7] = [
    ("hit", "The prompt's tokenizer was loaded."),
    ("miss", "The prompt's tokenizer was not loaded."),
    ("missing_model", "The model is remembered as missing."),
    ("evicted", "A tokenizer was evicted for another."),
    ("outdated", "The files of a loaded tokenizer changed."),
    ("loaded", "A tokenizer was loaded."),
    ("load_failed", "A tokenizer was not loaded."),
];
/// Results of the cache of pieces.
const PIECE_RESULTS: [LabelValue; 3] = [
    ("hit", "The piece was in the cache."),
    ("miss", "The piece was tokenized."),
    ("evicted", "A piece was evicted for others."),
];

/// The values of the labels of the metrics of the optional parts of a service, for the documentation.
#[must_use]
pub fn described_labels() -> Vec<LabelValues> {
    let cuttings = Cutting::ALL.map(|cutting| (cutting.as_str(), description(cutting)));
    vec![
        LabelValues::of("tokenizer_cache_total", "result", &CACHE_RESULTS),
        LabelValues::of("tokenizer_loads_total", "cuts", &cuttings),
        LabelValues::of("tokenized_pieces_cache_total", "result", &PIECE_RESULTS),
        LabelValues::of("tokenized_pieces_text_bytes_total", "result", &PIECE_RESULTS[..2]),
    ]
}

const fn description(cutting: Cutting) -> &'static str {
    match cutting {
        Cutting::Nowhere => "Nowhere: a component of the tokenizer may look across any cut.",
        Cutting::AddedTokens => "Around added tokens.",
        Cutting::Words => "Around added tokens, and between words.",
    }
}

/// State of the tokenization pool.
#[derive(Debug)]
pub(crate) struct TokenizationState(pub PoolStatistics);

impl StateSection for TokenizationState {
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result {
        let pool = &self.0;
        let gauge = |value: usize| ConstGauge::new(value as i64);
        families.one("tokenization_queued_prompts", "Prompts that wait to be tokenized", &gauge(pool.queued))?;
        let help = "Bytes of the prompts that wait to be tokenized, at most --tokenizer-queue-bytes-max and one prompt";
        families.one("tokenization_queued_bytes", help, &gauge(pool.queued_bytes))?;
        families.one("loaded_tokenizers", "Tokenizers in memory", &gauge(pool.loaded))?;
        let counts = [
            pool.cache_hits,
            pool.cache_misses,
            pool.cache_negative_hits,
            pool.cache_evictions,
            pool.cache_outdated,
            pool.loads,
            pool.loads_failed,
        ];
        let results = by_result(&CACHE_RESULTS, counts);
        let help = "Cache of loaded tokenizers: hits and misses of prompts, loads and evictions";
        families.add("tokenizer_cache", help, None, results)?;
        let cuttings = Cutting::ALL
            .map(|cuts| (CutLabel { cuts: cuts.as_str() }, ConstCounter::new(pool.cuttings[cuts as usize])));
        let help = "Tokenizers that were loaded, by where their texts are cut into pieces";
        families.add("tokenizer_loads", help, None, cuttings)?;
        encode_pieces(families, &pool.pieces)?;
        let searches = ConstCounter::new(pool.limits_reached);
        let help = "Searches of --tokenizer-dir that ended at a limit on its size";
        families.one("tokenizer_searches_cut", help, &searches)
    }
}

/// Counters of the first results of a table, in its order.
fn by_result<const N: usize>(
    results: &[LabelValue],
    counts: [u64; N],
) -> impl Iterator<Item = (CacheResult, ConstCounter)> {
    results.iter().zip(counts).map(|(&(result, _), count)| (CacheResult { result }, ConstCounter::new(count)))
}

fn encode_pieces(families: &mut Families<'_>, pieces: &PieceStatistics) -> fmt::Result {
    let gauge = |value: u64| ConstGauge::new(value as i64);
    families.one("tokenized_pieces", "Tokenized pieces of prompts in the cache", &gauge(pieces.entries as u64))?;
    families.one("tokenized_pieces_bytes", "Bytes of the cache of tokenized pieces", &gauge(pieces.bytes))?;
    families.one(
        "tokenized_pieces_max_bytes",
        "Limit of tokenized_pieces_bytes: --tokenizer-cache-bytes",
        &gauge(pieces.bytes_max),
    )?;
    let results = by_result(&PIECE_RESULTS, [pieces.hits, pieces.misses, pieces.evictions]);
    let help = "Pieces of prompts that were found in the cache, tokenized, or evicted";
    families.add("tokenized_pieces_cache", help, None, results)?;
    let results = by_result(&PIECE_RESULTS, [pieces.found_bytes, pieces.tokenized_bytes]);
    let help = "Bytes of text whose ids were found in the cache, or tokenized";
    families.add("tokenized_pieces_text_bytes", help, None, results)
}
