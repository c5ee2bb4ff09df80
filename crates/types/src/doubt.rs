//! Losses in the event stream of a rank, with their positions.

/// Number of an event in the history of a model, in order of application.
pub type Ordinal = u64;

/// What is missing of a rank that is not exact, and the position after which it is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The loss.
    pub why: String,
    /// Sequence number of the last message applied before the loss; none if there was none in this epoch.
    pub after: Option<u64>,
    /// The last event of the model's history before the loss.
    pub since: Ordinal,
}

impl Doubt {
    /// A loss behind the last applied message, `after`: it follows every recorded event.
    #[must_use]
    pub fn behind(why: String, after: Option<u64>) -> Self {
        Self { why, after, since: Ordinal::MAX }
    }

    /// Whether changes after an event are missing.
    #[must_use]
    pub const fn follows(&self, event: Ordinal) -> bool {
        event <= self.since
    }
}
