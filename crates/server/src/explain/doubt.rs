//! A position of a rank's stream after which changes are missing.

use super::history::Ordinal;

/// What is missing of a rank that is not exact, and from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) why: String,
    /// Number of the last message that was applied before the loss; none if there was none in this epoch.
    pub(crate) after: Option<u64>,
    /// The last event of the model's history before the loss.
    pub(crate) since: Ordinal,
}

impl Doubt {
    /// What is missing behind the last applied message, `after`: it follows every recorded event.
    pub(crate) fn behind(why: String, after: Option<u64>) -> Self {
        Self { why, after, since: Ordinal::MAX }
    }

    /// Whether changes after an event are missing.
    pub(super) fn follows(&self, event: Ordinal) -> bool {
        event <= self.since
    }
}
