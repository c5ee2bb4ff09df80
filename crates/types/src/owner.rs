//! Owners of registrations.

use std::sync::Arc;

use crate::Registration;

/// Owner of a registration. A manual registration takes precedence over the others, which never end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An operator, by a request or on the command line, of this replica or of the peer that it recovered from.
    Manual,
    /// The discovery source of this name.
    Source(Arc<str>),
    /// A discovery source of the peer that this replica recovered from.
    Peer,
    /// The pod itself, by connecting to this replica or to the peer that it recovered from.
    Pod,
}

/// Source, in responses, of a rank that a discovery source of a peer registered.
const PEER: &str = "peer";
/// Source, in responses, of a rank that its pod registered.
const POD: &str = "pod";

impl Owner {
    /// Name of the owner in logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.source().unwrap_or("manual")
    }

    /// Source of the registration in responses; none for a manual registration.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        match self {
            Self::Manual => None,
            Self::Source(name) => Some(name),
            Self::Peer => Some(PEER),
            Self::Pod => Some(POD),
        }
    }

    /// Owner of a rank recovered from a peer, by the source that the peer reports.
    #[must_use]
    pub fn recovered(source: Option<&str>) -> Self {
        match source {
            None => Self::Manual,
            Some(POD) => Self::Pod,
            Some(_) => Self::Peer,
        }
    }
}

/// A registration and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRank {
    /// Owner of the registration.
    pub owner: Owner,
    /// The registration.
    pub registration: Registration,
}
