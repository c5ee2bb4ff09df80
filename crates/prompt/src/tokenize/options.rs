//! Options of a pool.

use std::time::Duration;

/// Sizes and intervals of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Worker threads, at least one.
    pub workers: usize,
    /// Maximum number of queued prompts, at least one.
    pub queued_prompts_max: usize,
    /// Maximum bytes of queued prompts. An empty queue accepts one larger prompt.
    pub queued_bytes_max: usize,
    /// Maximum bytes of the cache of tokenized pieces of prompts. Zero turns it off.
    pub cached_bytes_max: usize,
    /// Maximum number of loaded tokenizers, at least one.
    pub loaded_models_max: usize,
    /// Time after which a model that no source has is searched for again.
    pub missing_for: Duration,
    /// Minimum time between two checks of a loaded tokenizer's files for changes.
    pub checked_every: Duration,
}

impl Default for PoolOptions {
    /// One worker per processor, 1,024 queued prompts of 64 MiB, a cache of 128 MiB, 16 tokenizers; missing models are searched for after 5 s,
    /// files are checked every second.
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            queued_prompts_max: 1024,
            queued_bytes_max: 64 << 20,
            cached_bytes_max: 128 << 20,
            loaded_models_max: 16,
            missing_for: Duration::from_secs(5),
            checked_every: Duration::from_secs(1),
        }
    }
}
