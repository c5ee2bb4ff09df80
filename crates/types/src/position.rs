//! Positions in the event streams of ranks.

use flash_indexer_wire::Cursor;

use crate::Trust;

/// Position in the event stream of a rank up to which an index has applied it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankPosition {
    /// Last applied message; none before the first message.
    pub cursor: Option<Cursor>,
    /// Epoch of the engine, counted from 1.
    pub epoch: u64,
    /// Trust state of the rank.
    pub trust: Trust,
    /// Whether messages up to the cursor may have changed ranks of the stream that are not listed with this one.
    pub unlisted_degraded: bool,
}

impl RankPosition {
    /// Position of state that was imported without a stream position.
    pub const UNKNOWN: Self = Self { cursor: None, epoch: 1, trust: Trust::Degraded, unlisted_degraded: true };

    /// The same position with a degraded trust state.
    pub fn degraded(self) -> Self {
        Self { trust: Trust::Degraded, ..self }
    }
}
