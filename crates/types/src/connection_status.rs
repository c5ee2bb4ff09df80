//! State of the connection to an engine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

flash_indexer_core::named_enum! {
    /// State of a connection to an engine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum ConnectionStatus {
        /// Not connected yet.
        Connecting = "connecting",
        /// Connected to the engine.
        Connected = "connected",
        /// Reconnecting after a lost connection.
        Disconnected = "disconnected",
    }
}
