//! Held prefixes of one local rank, and its changes for the publisher.

use std::sync::Arc;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::keyed::KeyedSet;
use flash_indexer_core::prefixes::{HeldPrefixes, Prefix};
use flash_indexer_core::{BlockEvent, Tier};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Limit of the changed prefixes of one rank that wait for the store; beyond it, the whole rank is written again.
pub const WAITING_CHANGES_MAX: usize = 1 << 17;

/// Held prefixes of one rank, and the changes that wait to be written to the store. Fed by the index's writer and
/// read by the publisher.
#[derive(Debug)]
pub struct RankPrefixes {
    inner: Mutex<Inner>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    prefixes: HeldPrefixes,
    /// Whether the rank is not published because it has several cache groups: its held prefixes do not determine the
    /// usable ones.
    is_withheld: bool,
    /// Whether the rank was removed from its index. The store then has no empty rank in its place.
    is_removed: bool,
    /// Incremented when everything written so far becomes invalid.
    epoch: u64,
    /// Changes since they were last taken; none while the rank is not published.
    waiting: Option<KeyedSet<Prefix>>,
    overflows: u64,
}

/// State of a prefix to be written: the slowest tier that it needs, or none if it is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefixState {
    pub(crate) prefix: Prefix,
    pub(crate) tier: Option<Tier>,
}

impl RankPrefixes {
    pub(crate) fn new(changed: Arc<Notify>) -> Self {
        Self { inner: Mutex::default(), changed }
    }

    /// Applies an event that the index has applied.
    pub fn apply(&self, event: &RankEvent) {
        let mut inner = self.inner.lock();
        let has_changes = match event {
            RankEvent::Secondary(_) => inner.withhold(),
            RankEvent::Primary(BlockEvent::Cleared) => {
                inner.prefixes = HeldPrefixes::default();
                inner.restart_epoch();
                true
            }
            RankEvent::Primary(event) => inner.apply(event),
            RankEvent::ClearedScope(_) => unreachable!("a writer replaces a scoped clear by removals"),
        };
        drop(inner);
        if has_changes {
            self.changed.notify_one();
        }
    }

    /// Removes the rank, as the index does. It is not published any more: its publisher may list it until its next
    /// heartbeat, and the store reports it as incomplete.
    pub fn remove(&self) {
        let mut inner = self.inner.lock();
        inner.prefixes = HeldPrefixes::default();
        (inner.is_withheld, inner.is_removed) = (false, true);
        inner.restart_epoch();
        drop(inner);
        self.changed.notify_one();
    }

    /// Whether the rank is not published.
    pub(crate) fn is_withheld(&self) -> bool {
        self.inner.lock().is_withheld
    }

    /// Current epoch of the written state.
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.lock().epoch
    }

    /// Number of waiting changes, and the number of times that they exceeded the limit.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let inner = self.inner.lock();
        (inner.waiting.as_ref().map_or(0, KeyedSet::len), inner.overflows)
    }

    /// Starts recording changes for a publisher. Returns the epoch that they belong to, and whether it has no changes
    /// because the rank is not published.
    pub(crate) fn publish(&self) -> (u64, bool) {
        let mut inner = self.inner.lock();
        let is_withheld = inner.is_withheld || inner.is_removed;
        if !is_withheld {
            inner.waiting = Some(KeyedSet::default());
        }
        (inner.epoch, is_withheld)
    }

    /// All held prefixes that may be published. Blocks the rank's writer while it copies them.
    pub(crate) fn all(&self) -> Vec<Prefix> {
        let inner = self.inner.lock();
        if inner.is_withheld { Vec::new() } else { inner.prefixes.iter().collect() }
    }

    /// Number of held prefixes.
    pub(crate) fn held(&self) -> usize {
        self.inner.lock().prefixes.blocks()
    }

    /// Stops recording changes: the rank is no longer published.
    pub(crate) fn retire(&self) {
        self.inner.lock().waiting = None;
    }

    /// Takes at most `max` changes in their current state, and whether there are more. None if the rank is in another
    /// epoch.
    pub(crate) fn take(&self, epoch: u64, max: usize) -> Option<(Vec<PrefixState>, bool)> {
        let mut inner = self.inner.lock();
        if inner.epoch != epoch {
            return None;
        }
        let Inner { prefixes, waiting: Some(waiting), .. } = &mut *inner else { return Some((Vec::new(), false)) };
        let state = |prefix: Prefix| PrefixState { prefix, tier: prefixes.slowest_tier(prefix.hash) };
        if waiting.len() <= max {
            return Some((std::mem::take(waiting).into_iter().map(state).collect(), false));
        }
        let taken: Vec<Prefix> = waiting.iter().copied().take(max).collect();
        taken.iter().for_each(|prefix| _ = waiting.remove(prefix));
        Some((taken.into_iter().map(state).collect(), true))
    }

    /// The prefixes of a list, in their current state. None if the rank is in another epoch.
    pub(crate) fn read(&self, epoch: u64, prefixes: &[Prefix]) -> Option<Vec<PrefixState>> {
        let inner = self.inner.lock();
        let state = |&prefix: &Prefix| PrefixState { prefix, tier: inner.prefixes.slowest_tier(prefix.hash) };
        (inner.epoch == epoch).then(|| prefixes.iter().map(state).collect())
    }
}

impl Inner {
    /// Withholds the rank; returns whether it was not withheld before.
    fn withhold(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.is_withheld, true);
        if is_first {
            self.restart_epoch();
        }
        is_first
    }

    /// Applies an event; returns whether a change waits to be written.
    fn apply(&mut self, event: &BlockEvent) -> bool {
        let mut changed = Vec::new();
        self.prefixes.apply(event, &mut |prefix| changed.push(prefix));
        if self.waiting.is_none() || self.is_withheld {
            return false;
        }
        let has_changes = !changed.is_empty();
        changed.into_iter().for_each(|prefix| self.record(prefix));
        has_changes
    }

    fn record(&mut self, prefix: Prefix) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.insert(prefix);
        if waiting.len() > WAITING_CHANGES_MAX {
            self.overflows += 1;
            self.restart_epoch();
        }
    }

    /// Invalidates everything written so far; the rank is then rewritten entirely.
    fn restart_epoch(&mut self) {
        self.epoch += 1;
        self.waiting = None;
    }
}
