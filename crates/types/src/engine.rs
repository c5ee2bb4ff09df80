//! Words by which users say what an engine is.

use flash_indexer_core::RemovedCopies;
use flash_indexer_wire::EngineAdapter;
use serde::{Deserialize, Serialize};

/// An engine's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl EngineKind {
    const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::Trtllm];

    /// The name in requests and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }

    /// How messages of this kind of engine are read; those of an engine of unknown kind show it themselves.
    pub fn adapter(kind: Option<Self>) -> EngineAdapter {
        match kind {
            None => EngineAdapter::Detect,
            Some(Self::Vllm) => EngineAdapter::Vllm,
            Some(Self::Sglang) => EngineAdapter::Sglang,
            Some(Self::Trtllm) => EngineAdapter::TensorRtLlm,
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What an engine means by removing a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// One of its copies is gone.
    #[default]
    EachCopy,
    /// The last of its copies is gone.
    LastCopy,
}

impl Removal {
    /// The name in requests and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EachCopy => "each_copy",
            Self::LastCopy => "last_copy",
        }
    }
}

impl From<Removal> for RemovedCopies {
    fn from(removal: Removal) -> Self {
        match removal {
            Removal::EachCopy => Self::One,
            Removal::LastCopy => Self::All,
        }
    }
}

impl From<RemovedCopies> for Removal {
    fn from(copies: RemovedCopies) -> Self {
        match copies {
            RemovedCopies::One => Self::EachCopy,
            RemovedCopies::All => Self::LastCopy,
        }
    }
}
