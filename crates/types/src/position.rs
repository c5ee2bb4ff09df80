//! Positions in the event streams of ranks.

use flash_indexer_wire::Cursor;

use crate::Trust;

/// Position in the event stream of a rank: what an index holds of the rank is as of this position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The last message that is in the index; none if there was none.
    pub cursor: Option<Cursor>,
    /// Lives of the engine that were seen, this one included; 1 for the first.
    pub epoch: u64,
    /// How far what the index holds can be believed.
    pub trust: Trust,
}

impl Position {
    /// Of a state that says neither how old it is nor how it came about.
    pub const UNKNOWN: Self = Self { cursor: None, epoch: 1, trust: Trust::Degraded };

    /// The same place, of a state that lacks something.
    pub fn degraded(self) -> Self {
        Self { trust: Trust::Degraded, ..self }
    }
}
