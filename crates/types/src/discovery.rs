//! States of discovery sources and of the ranks that they name.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
