//! Settings of a registered engine.

use flash_indexer_core::RemovedCopies;
use flash_indexer_wire::{EngineAdapter, ReplaySupport};

/// Settings of an engine whose messages an index receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Message format.
    pub adapter: EngineAdapter,
    /// Number of copies that a removal without a count ends.
    pub removed_copies: RemovedCopies,
    /// Adapter of events that name no adapter.
    pub lora_name: Option<String>,
    /// Whether the caller can request missing messages from the engine.
    pub replay: ReplaySupport,
    /// Whether requests to the engine carry keys that its events lack, such as SGLang's `extra_key`. Its ranks are then never
    /// exact.
    pub extra_keys: bool,
}

impl Default for EngineOptions {
    /// A detected format, one copy for each removal, and no replay.
    fn default() -> Self {
        Self {
            adapter: EngineAdapter::Detect,
            removed_copies: RemovedCopies::One,
            lora_name: None,
            replay: ReplaySupport::Unavailable,
            extra_keys: false,
        }
    }
}

/// No engine has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to find engine {0:?}: no engine has this name; use auto, vllm, sglang or trtllm")]
pub struct UnknownEngine(pub String);

impl EngineOptions {
    /// The default settings of an engine: `auto`, `vllm`, `sglang` or `trtllm`.
    ///
    /// # Errors
    ///
    /// When no engine has the name.
    pub fn of_engine(name: &str) -> Result<Self, UnknownEngine> {
        let adapter = match name {
            "auto" => EngineAdapter::Detect,
            "vllm" => EngineAdapter::Vllm,
            "sglang" => EngineAdapter::Sglang,
            "trtllm" => EngineAdapter::TensorRtLlm,
            _ => return Err(UnknownEngine(name.to_owned())),
        };
        Ok(Self { adapter, ..Self::default() })
    }
}
