//! Failures of calls to the store.

use std::time::Duration;

/// Failure of a call to the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no connection.
    #[error("shared store unreachable: {0}; check that it runs and that its address is right")]
    Unreachable(String),
    /// The store did not respond within the deadline.
    #[error("no response from the shared store within {0:?}; check its load and the network")]
    TimedOut(Duration),
    /// Another node of the cluster serves the keys: its host and port.
    #[error("the keys have moved to node {0}")]
    Moved(String),
    /// The node temporarily does not serve the keys: the cluster is down, the slot is migrating, the node is loading
    /// its data, or the node is no longer a master.
    #[error("shared store temporarily does not serve the keys: {0}; the service tries again")]
    Busy(String),
    /// The store responded with an error.
    #[error("shared store rejected the command: {0}; check its permissions and memory")]
    Refused(String),
    /// The response has an unexpected type or length.
    #[error(
        "invalid response from the shared store: {0}; check that it is Redis or Valkey, and that no other program writes its keys"
    )]
    Protocol(&'static str),
    /// The registry failed to list the local ranks.
    #[error("failed to list the local ranks")]
    LocalRanks,
}
