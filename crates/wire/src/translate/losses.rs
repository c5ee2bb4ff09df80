//! Application of an event's changes to an index, and losses that events show only together with the index.

use std::fmt;

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

flash_indexer_core::named_enum! {
    /// A loss that an event, the translator and the index show together. Its name is the text in `last_error`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum InferredLoss {
        /// A salt belongs to a whole prefix: these blocks may be children of the blocks that wait.
        SaltedStore = "salted blocks were stored while others waited for a parent: their salt may be the parent's",
        /// The limit `salted_blocks` was reached before.
        CopySalt = "blocks were stored again by sequence hash alone, and their salts are forgotten",
        /// The limit `salted_blocks` was reached before.
        ParentSalt = "blocks follow a parent that is not held and whose salt is forgotten",
        /// The engine is registered with `removal: last_copy`.
        MovedCopies = "the engine has moved blocks of which it had stored several copies, and publishes the removal of the last one only",
        /// All groups of a hybrid model that were published are secondary ones. Ends when the primary group publishes.
        PrimaryGroup = "no cache group with full attention has published its blocks: prefixes cannot be matched",
        /// The window of a cache group is not known at the end of a batch.
        Window = "the engine does not publish the size of its sliding window: matches can be too long",
    }
}

impl fmt::Display for InferredLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl InferredLoss {
    /// Reason label of [`InferredLoss::MovedCopies`].
    pub const MOVED_COPIES_UNKNOWN: &'static str = "moved_copies_unknown";
}

impl Translator {
    /// Content that the rank's events cannot show, at the end of a batch: within it, secondary groups may come first.
    #[must_use]
    pub fn content_loss(&self) -> Option<InferredLoss> {
        let group = self.lacks_primary_group().then_some(InferredLoss::PrimaryGroup);
        group.or_else(|| self.has_unknown_window().then_some(InferredLoss::Window))
    }

    /// Whether a clear of the whole cache makes the rank exact.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.has_unsupported_groups() && self.content_loss().is_none()
    }
}
