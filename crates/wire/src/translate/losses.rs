//! Application of an event's changes to an index, and losses that events show only together with the index.

use flash_indexer_core::RemovedCopies;

use super::Translator;
use crate::event::{EngineEvent, StoreOrigin};

/// How the changes of an event are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// As they are published.
    AsPublished,
    /// No block that is held in the event's tier gains a copy.
    Refresh,
    /// A removal of blocks with several copies leaves an unknown number.
    MoveLastCopy,
}

impl Application {
    /// Application of an event of an engine whose removals have this meaning.
    #[must_use]
    pub fn of(event: &EngineEvent<'_>, removed: RemovedCopies) -> Self {
        match event {
            EngineEvent::Stored(stored) if stored.effective_origin() == Some(StoreOrigin::Reused) => Self::Refresh,
            EngineEvent::Removed(removed) if removed.remaining_copy_counts.is_some() => Self::Refresh,
            EngineEvent::Transferred(_) if removed == RemovedCopies::All => Self::MoveLastCopy,
            _ => Self::AsPublished,
        }
    }
}

/// A loss that an event, the translator and the index show together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShownLoss {
    /// Blocks with a salt were stored while the index had blocks that wait for a parent.
    #[error("salted blocks were stored while others waited for a parent: their salt may be the parent's")]
    SaltedStore,
    /// Blocks were stored again that the index does not hold, and their salts may be forgotten.
    #[error("blocks were stored again by sequence hash alone, and their salts are forgotten")]
    CopySalt,
    /// Blocks follow a parent that the index does not hold, and its salt may be forgotten.
    #[error("blocks follow a parent that is not held and whose salt is forgotten")]
    ParentSalt,
    /// Blocks with several copies were moved.
    #[error(
        "the engine has moved blocks of which it had stored several copies, and publishes the removal of the last one only"
    )]
    MovedCopies,
    /// No primary group is known at the end of a batch.
    #[error("no cache group with full attention has published its blocks: prefixes cannot be matched")]
    PrimaryGroup,
    /// The window of a cache group is not known at the end of a batch.
    #[error("the engine does not publish the size of its sliding window: matches can be too long")]
    Window,
}

impl ShownLoss {
    /// Reason label of [`ShownLoss::MovedCopies`].
    pub const MOVED_COPIES_UNKNOWN: &'static str = "moved_copies_unknown";
}

impl Translator {
    /// Content that the rank's events cannot show, at the end of a batch: within it, secondary groups may come first.
    #[must_use]
    pub fn content_loss(&self) -> Option<ShownLoss> {
        let group = self.lacks_primary_group().then_some(ShownLoss::PrimaryGroup);
        group.or_else(|| self.has_unknown_window().then_some(ShownLoss::Window))
    }

    /// Whether a clear of the whole cache makes the rank exact.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.has_unsupported_groups() && self.content_loss().is_none()
    }
}
