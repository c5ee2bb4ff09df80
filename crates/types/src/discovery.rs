//! States of discovery sources and of the ranks that they name.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Kind of a discovery source: the part of its name before the first colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A file.
    File,
    /// A DNS name.
    Dns,
    /// Pods of a Kubernetes cluster.
    Kubernetes,
    /// The gRPC server of an engine of vLLM.
    Vllm,
}

impl SourceKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::File, Self::Dns, Self::Kubernetes, Self::Vllm];

    /// First part of the names of its sources.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dns => "dns",
            Self::Kubernetes => "kubernetes",
            Self::Vllm => "vllm",
        }
    }

    /// Kind of the source with this name. None if a newer service named it.
    #[must_use]
    pub fn of_source(name: &str) -> Option<Self> {
        let kind = name.split(':').next();
        Self::ALL.into_iter().find(|known| kind == Some(known.as_str()))
    }
}

/// State of a discovery source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It has not responded yet.
    Waiting,
    /// Its last poll succeeded.
    Ok,
    /// Its last poll failed: its last report stays valid.
    Failing,
}

/// State of a rank that a discovery source names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// It is registered as named.
    Registered,
    /// It is registered when recovery has ended.
    Waiting,
    /// It is no longer named, and is unregistered after the grace period.
    Leaving,
    /// A source that takes precedence names it differently.
    Overruled,
    /// It was registered manually.
    ByHand,
    /// It was unregistered manually.
    Dismissed,
    /// It cannot be registered.
    Refused,
}

impl TargetState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Registered, Self::Waiting, Self::Leaving, Self::Overruled, Self::ByHand, Self::Dismissed, Self::Refused];

    /// Name in JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Waiting => "waiting",
            Self::Leaving => "leaving",
            Self::Overruled => "overruled",
            Self::ByHand => "by_hand",
            Self::Dismissed => "dismissed",
            Self::Refused => "refused",
        }
    }
}
