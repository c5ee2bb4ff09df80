//! Gaps in the event stream of a rank, with their positions.

/// Number of an event in the history of a model, in order of application.
pub type Ordinal = u64;

/// Unrepaired gap in the event stream of a rank, which is not exact because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnrepairedGap {
    /// Description of the gap.
    pub why: String,
    /// Sequence number of the last message applied before the gap; none if there was none in this epoch.
    pub after: Option<u64>,
    /// Last event of the model's history before the gap.
    pub since: Ordinal,
}

impl UnrepairedGap {
    /// Gap after the last applied message, `after`, and so after every recorded event.
    #[must_use]
    pub fn after(why: String, after: Option<u64>) -> Self {
        Self { why, after, since: Ordinal::MAX }
    }

    /// Whether the gap follows an event.
    #[must_use]
    pub const fn follows(&self, event: Ordinal) -> bool {
        event <= self.since
    }
}
