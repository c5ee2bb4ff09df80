//! Trust states of ranks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

flash_indexer_core::named_enum! {
    /// Reliability of the index about a rank. A less reliable state is greater.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, PartialOrd, Ord)]
    #[serde(rename_all = "lowercase")]
    pub enum Trust {
        /// The answer equals the engine's cache as of the last applied message, or, while a message is being applied, between the one before
        /// and this one. No loss is known.
        Exact = "exact",
        /// The answer is empty. No message was received since the registration.
        Cold = "cold",
        /// The answer is as of an earlier message. The messages after it are being replayed.
        Recovering = "recovering",
        /// The answer may be too long or too short. Changes were lost, or the cache was not empty when the first one was received.
        Degraded = "degraded",
        /// The answer is what routers have reported. The engine publishes no events.
        Approximate = "approximate",
    }
}
