//! Owners of registrations.

use std::sync::Arc;

use crate::Registration;

/// Who registered a rank. A manual registration takes precedence over the others and is never ended by them.
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

/// Source in answers of a rank that a discovery source of a peer registered.
const PEER: &str = "peer";
/// Source in answers of a rank that its pod registered.
const POD: &str = "pod";

impl Owner {
    /// Name of the owner in logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.source().unwrap_or("manual")
    }

    /// Source of the registration, as answers name it; none of a manual one.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        match self {
            Self::Manual => None,
            Self::Source(name) => Some(name),
            Self::Peer => Some(PEER),
            Self::Pod => Some(POD),
        }
    }

    /// Owner here of a rank that has this source in the replica that it is recovered from.
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
    /// Who registered it.
    pub owner: Owner,
    /// The registration.
    pub registration: Registration,
}
