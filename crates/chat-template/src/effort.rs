//! Limits of the work of one rendering.

/// Maximum number of instructions of one rendering, at 20 to 100 ns each.
const INSTRUCTIONS_MAX: u64 = 10_000_000;
/// The same for [`Effort::Brief`]: a few milliseconds. A chat of some hundred messages needs a tenth of it.
const BRIEF_INSTRUCTIONS_MAX: u64 = 100_000;

/// Work that one rendering may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Effort {
    /// About a hundredth of the limits: a few milliseconds. A rendering beyond it fails with
    /// [`ChatError::TooExpensive`](crate::ChatError::TooExpensive), and may succeed with [`Self::Full`].
    Brief,
    /// The [limits of the crate](crate#limits).
    #[default]
    Full,
}

impl Effort {
    pub(crate) const fn instructions_max(self) -> u64 {
        match self {
            Self::Brief => BRIEF_INSTRUCTIONS_MAX,
            Self::Full => INSTRUCTIONS_MAX,
        }
    }
}
