//! Trust states of ranks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

flash_indexer_core::named_enum! {
    /// Reliability of the index about a rank. A less reliable state is greater.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, PartialOrd, Ord)]
    #[serde(rename_all = "lowercase")]
    pub enum Trust {
        /// Every change since a known empty cache was applied, and nothing is known to be missing.
        Exact = "exact",
        /// Registered, and no message received yet.
        Cold = "cold",
        /// All messages up to an earlier one were applied, and the messages after it are being replayed.
        Recovering = "recovering",
        /// Changes were lost, or the cache was not empty when the first one was received.
        Degraded = "degraded",
        /// The engine publishes no events: the index knows it from routing decisions alone.
        Approximate = "approximate",
    }
}
