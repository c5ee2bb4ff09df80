//! States of discovery sources and of the ranks that they name.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

flash_indexer_core::named_enum! {
    /// Kind of a discovery source: the part of its name before the first colon.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SourceKind {
        /// A file.
        File = "file",
        /// A DNS name.
        Dns = "dns",
        /// Pods of a Kubernetes cluster.
        Kubernetes = "kubernetes",
        /// The gRPC server of an engine of vLLM.
        Vllm = "vllm",
    }
}

impl SourceKind {
    /// Kind of the source with this name. None if a newer service named it.
    #[must_use]
    pub fn of_source(name: &str) -> Option<Self> {
        Self::named(name.split(':').next()?)
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

flash_indexer_core::named_enum! {
    /// State of a rank that a discovery source names.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum TargetState {
        /// It is registered as named.
        Registered = "registered",
        /// It is registered when recovery has ended.
        Waiting = "waiting",
        /// It is no longer named, and is unregistered after the grace period.
        Leaving = "leaving",
        /// A source that takes precedence names it differently.
        Overruled = "overruled",
        /// It was registered manually.
        #[serde(rename = "by_hand")]
        Manual = "by_hand",
        /// It was unregistered manually.
        Dismissed = "dismissed",
        /// It cannot be registered.
        Refused = "refused",
    }
}
