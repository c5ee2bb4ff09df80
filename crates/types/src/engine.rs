//! Kinds of engines, and the meaning of their removals, as users configure them.

use flash_indexer_core::RemovedCopies;
use flash_indexer_wire::EngineAdapter;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

flash_indexer_core::named_enum! {
    /// Kind of an engine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum EngineKind {
        /// vLLM.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// TensorRT-LLM.
        Trtllm = "trtllm",
    }
}

impl EngineKind {
    /// Adapter that decodes messages of this kind of engine. Without a kind, it is detected from the messages.
    pub fn adapter(kind: Option<Self>) -> EngineAdapter {
        match kind {
            None => EngineAdapter::Detect,
            Some(Self::Vllm) => EngineAdapter::Vllm,
            Some(Self::Sglang) => EngineAdapter::Sglang,
            Some(Self::Trtllm) => EngineAdapter::TensorRtLlm,
        }
    }

    /// The most frequent of several kinds; of equally frequent ones, the first in the order of their definition.
    pub fn most_frequent(kinds: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut counts = [0; Self::ALL.len()];
        for kind in kinds {
            counts[kind as usize] += 1;
        }
        let most = counts.into_iter().max().filter(|count| *count > 0)?;
        Self::ALL.into_iter().zip(counts).find(|(_, count)| *count == most).map(|(kind, _)| kind)
    }
}

flash_indexer_core::named_enum! {
    /// Meaning of a removal that an engine publishes.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum RemovalMeaning {
        /// One copy of the block was removed.
        #[default]
        EachCopy = "each_copy",
        /// The last copy of the block was removed.
        LastCopy = "last_copy",
    }
}

impl From<RemovalMeaning> for RemovedCopies {
    fn from(removal: RemovalMeaning) -> Self {
        match removal {
            RemovalMeaning::EachCopy => Self::One,
            RemovalMeaning::LastCopy => Self::All,
        }
    }
}

impl From<RemovedCopies> for RemovalMeaning {
    fn from(copies: RemovedCopies) -> Self {
        match copies {
            // A count in an event is independent of the registration.
            RemovedCopies::One | RemovedCopies::AllBut(_) => Self::EachCopy,
            RemovedCopies::All => Self::LastCopy,
        }
    }
}
