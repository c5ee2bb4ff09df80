//! The event that took a block from a rank, found by replaying the block's history.

use std::time::Instant;

use flash_indexer_core::{LocalHash, PerTier, RemovedCopies, Tier};
use flash_indexer_types::{ClearCause, Ordinal};
use flash_indexer_wire::RemovalReason;

/// A removal of a block by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// Time of the removal.
    pub at: Instant,
    /// Tier of the last copy.
    pub tier: Tier,
    /// Why the engine removed it, if its event gives the reason.
    pub reason: Option<RemovalReason>,
}

/// A removal of every block of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clear {
    /// Time of the clear.
    pub at: Instant,
    /// Cause of the clear.
    pub cause: ClearCause,
}

/// The loss of the last copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The engine removed it.
    Removed(Removal),
    /// Every block of the rank was removed.
    Cleared(Clear),
    /// The block was removed, and later the rank was cleared. The history no longer has the stores of the block, so the
    /// clear may have taken another copy.
    RemovedThenCleared(Removal, Clear),
    /// The engine reused the block's sequence hash for other content while the rank held the block.
    HashReused,
    /// The rank held the block, and the history no longer has the event that took it.
    NotInHistory,
}

/// A change of one block of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) enum BlockChange {
    Stored { tier: Tier, local: LocalHash, copies: u32 },
    Copied { tier: Tier, is_known: bool },
    Removed { removal: Removal, copies: RemovedCopies },
}

/// Ordinals from which on the history is complete, by kind of event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HistoryStart {
    /// Events that add copies.
    pub(super) added: Ordinal,
    pub(super) removed: Ordinal,
    pub(super) cleared: Ordinal,
}

/// The loss of a block that a rank does not hold now, and the ordinal of the event that caused it. None if no recorded
/// event shows that the rank held `wanted` under this sequence hash. `changes` and `clears` are in order.
pub(super) fn loss(
    changes: &[(Ordinal, BlockChange)],
    clears: &[(Ordinal, Clear)],
    complete_from: HistoryStart,
    wanted: LocalHash,
) -> Option<(Ordinal, Loss)> {
    let mut replay = BlockReplay::new(complete_from, wanted);
    let mut clears = clears.iter().peekable();
    for &(ordinal, change) in changes {
        while let Some((ordinal, clear)) = clears.next_if(|(cleared, _)| *cleared < ordinal) {
            replay.clear(*ordinal, *clear);
        }
        replay.change(ordinal, change);
    }
    clears.for_each(|&(ordinal, clear)| replay.clear(ordinal, clear));
    replay.end()
}

/// State of one block while its history is replayed.
struct BlockReplay {
    complete_from: HistoryStart,
    wanted: LocalHash,
    /// Copies that recorded events account for.
    copies: PerTier<u32>,
    /// Whether evicted events may have added more copies.
    may_hold_more: bool,
    /// Content of the block in this rank, if a store of it is recorded.
    local: Option<LocalHash>,
    /// The event that added the first of `copies`.
    held_since: Ordinal,
    /// The last event that added a copy.
    added: Ordinal,
    /// The last removal after `added`.
    removal: Option<(Ordinal, Removal)>,
    loss: Option<(Ordinal, Loss)>,
}

impl BlockReplay {
    fn new(complete_from: HistoryStart, wanted: LocalHash) -> Self {
        Self {
            complete_from,
            wanted,
            copies: PerTier::default(),
            may_hold_more: complete_from.added > 0,
            local: None,
            held_since: 0,
            added: 0,
            removal: None,
            loss: None,
        }
    }

    fn change(&mut self, ordinal: Ordinal, change: BlockChange) {
        match change {
            BlockChange::Stored { copies: 0, .. } => {}
            BlockChange::Stored { tier, local, copies } => {
                if self.local.is_some_and(|known| known != local) {
                    self.reuse_hash(ordinal);
                }
                self.local = Some(local);
                self.add(ordinal, tier, copies);
            }
            BlockChange::Copied { tier, is_known } => {
                let may_be_held = self.may_hold_more || !self.copies.is_zero();
                if may_be_held && (is_known || (!self.copies.is_zero() && self.is_certain())) {
                    self.add(ordinal, tier, 1);
                } else {
                    self.may_hold_more = may_be_held;
                }
            }
            BlockChange::Removed { removal, copies } => {
                let held = &mut self.copies[removal.tier];
                *held = if *held == 0 { 0 } else { copies.left(*held) };
                self.removal = Some((ordinal, removal));
                // An evicted removal may have set a larger number of copies than the stores.
                self.may_hold_more |= self.complete_from.removed > self.added;
                if self.copies.is_zero() && self.is_wanted() {
                    self.loss = Some((ordinal, Loss::Removed(removal)));
                }
            }
        }
    }

    /// Moves the sequence hash, and every copy, to other content. If no copy of the previous content is left, its loss
    /// is known already.
    fn reuse_hash(&mut self, ordinal: Ordinal) {
        if self.is_wanted() && (!self.copies.is_zero() || self.may_hold_more) {
            let is_known = !self.copies.is_zero() && self.is_certain();
            self.loss = Some((ordinal, if is_known { Loss::HashReused } else { Loss::NotInHistory }));
        }
        self.copies = PerTier::default();
        self.may_hold_more = false;
    }

    fn add(&mut self, ordinal: Ordinal, tier: Tier, copies: u32) {
        if self.copies.is_zero() {
            self.held_since = ordinal;
        }
        self.copies[tier] = self.copies[tier].saturating_add(copies);
        if self.is_wanted() {
            (self.added, self.removal, self.loss) = (ordinal, None, None);
        }
    }

    fn clear(&mut self, ordinal: Ordinal, clear: Clear) {
        if !self.is_wanted() {
            // The clear took a block with other content.
        } else if !self.copies.is_zero() {
            let cleared = if self.is_certain() { Loss::Cleared(clear) } else { Loss::NotInHistory };
            self.loss = Some((ordinal, cleared));
        } else if self.may_hold_more {
            self.loss = self.loss.map(|(_, loss)| match loss {
                Loss::Removed(removal) => (ordinal, Loss::RemovedThenCleared(removal, clear)),
                Loss::Cleared(_) | Loss::RemovedThenCleared(..) | Loss::HashReused | Loss::NotInHistory => {
                    (ordinal, Loss::NotInHistory)
                }
            });
        }
        self.copies = PerTier::default();
        self.may_hold_more = self.complete_from.added > ordinal;
        self.local = None;
    }

    /// Whether the recorded copies are certainly held: no event that may have taken them was evicted.
    fn is_certain(&self) -> bool {
        // After a removal, copies added before it count as well.
        let since = if self.removal.is_none() { self.added } else { self.held_since };
        since >= self.complete_from.removed && since >= self.complete_from.cleared
    }

    /// Whether the sequence hash has the wanted content, as far as the history shows.
    fn is_wanted(&self) -> bool {
        self.local.is_none_or(|local| local == self.wanted)
    }

    fn end(self) -> Option<(Ordinal, Loss)> {
        if self.loss.is_some() || self.copies.is_zero() || !self.is_wanted() {
            return self.loss;
        }
        // The replay ends with copies and the index holds none: the event that took them was evicted.
        let last = self.removal.filter(|_| self.complete_from.removed > self.added);
        Some(last.map_or((self.added, Loss::NotInHistory), |(ordinal, removal)| (ordinal, Loss::Removed(removal))))
    }
}
