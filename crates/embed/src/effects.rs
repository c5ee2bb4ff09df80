//! Losses that an applied change shows.

use std::borrow::Cow;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{AppliedChanges, BlockEvent};

/// A lost change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Label of the blocks that were not applied, if there are any.
    pub(crate) reason: Option<&'static str>,
    pub(crate) why: Cow<'static, str>,
}

/// The losses that the result of an applied change shows.
pub(crate) fn losses(change: &RankEvent, applied: &AppliedChanges) -> impl Iterator<Item = Loss> {
    let refused = (applied.refused > 0).then(|| {
        let (reason, why) = match change {
            RankEvent::Primary(_) if applied.moves_refused > 0 => {
                ("moved_blocks", "the engine gave a sequence hash with many descendants other content")
            }
            RankEvent::Primary(_) if applied.twins_refused > 0 => {
                ("twins", "the engine has too many sequence hashes for one prefix")
            }
            RankEvent::Primary(_) => ("waiting_blocks", "too many blocks wait for a parent that was never stored"),
            RankEvent::Secondary(_) | RankEvent::ClearedScope(_) => {
                ("cache_groups", "a hybrid model has more cache groups, or blocks in one, than are kept")
            }
        };
        Loss { reason: Some(reason), why: why.into() }
    });
    let is_copy = matches!(change, RankEvent::Primary(BlockEvent::Copied { .. }));
    let unknown = (is_copy && applied.unknown > 0).then(|| {
        let why = format!("{} blocks were stored without token_ids, and their content is not known", applied.unknown);
        Loss { reason: Some("no_token_ids"), why: why.into() }
    });
    let orphaned = (matches!(change, RankEvent::Primary(_)) && applied.waiting_removed > 0).then(|| {
        let why = "a block was removed whose parent was never stored: the engine may hold the parent";
        Loss { reason: None, why: why.into() }
    });
    refused.into_iter().chain(unknown).chain(orphaned)
}
