//! How far answers about a rank can be relied on.

use serde::{Deserialize, Serialize};

/// How far the index can be relied on about a rank. What is less reliable is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Every change since a known empty cache was applied, and nothing is known to be missing.
    Exact,
    /// Registered, and nothing received yet.
    Cold,
    /// Everything up to an earlier message was applied, and the messages after it are being replayed.
    Recovering,
    /// Changes were lost, or the cache was not empty when the first one was received.
    Degraded,
}

impl Trust {
    /// The name used in answers and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Cold => "cold",
            Self::Recovering => "recovering",
            Self::Degraded => "degraded",
        }
    }
}
