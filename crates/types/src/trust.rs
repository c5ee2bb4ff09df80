//! Trust states of ranks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reliability of the index about a rank. A less reliable state is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Every change since a known empty cache was applied, and nothing is known to be missing.
    Exact,
    /// Registered, and no message received yet.
    Cold,
    /// All messages up to an earlier one were applied, and the messages after it are being replayed.
    Recovering,
    /// Changes were lost, or the cache was not empty when the first one was received.
    Degraded,
    /// The engine publishes no events: the index knows it from routing decisions alone.
    Approximate,
}

impl Trust {
    /// Name in responses and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Cold => "cold",
            Self::Recovering => "recovering",
            Self::Degraded => "degraded",
            Self::Approximate => "approximate",
        }
    }
}
