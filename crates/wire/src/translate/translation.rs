//! The result of a translation.

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{BlockEvent, Tier};

use super::error::TranslateError;

/// Changes that one engine event causes, in order. Nearly always a single change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    /// The first change.
    pub first: RankEvent,
    /// The other changes.
    pub rest: Vec<RankEvent>,
    /// Why the event may have caused other changes as well, which it does not show.
    pub doubt: Option<TranslateError>,
}

impl Translation {
    pub(super) fn one(change: RankEvent) -> Self {
        Self { first: change, rest: Vec::new(), doubt: None }
    }
}

impl Default for Translation {
    /// No change.
    fn default() -> Self {
        BlockEvent::Copied { tier: Tier::Device, blocks: Vec::new() }.into()
    }
}

impl FromIterator<RankEvent> for Translation {
    fn from_iter<T: IntoIterator<Item = RankEvent>>(changes: T) -> Self {
        let mut changes = changes.into_iter();
        match changes.next() {
            Some(first) => Self { first, rest: changes.collect(), doubt: None },
            None => Self::default(),
        }
    }
}

impl From<BlockEvent> for Translation {
    fn from(event: BlockEvent) -> Self {
        Self::one(RankEvent::Primary(event))
    }
}

impl IntoIterator for Translation {
    type Item = RankEvent;
    type IntoIter = std::iter::Chain<std::iter::Once<RankEvent>, std::vec::IntoIter<RankEvent>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.first).chain(self.rest)
    }
}
