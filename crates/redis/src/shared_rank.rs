//! What one rank holds, kept for the store beside the index.

use std::sync::Arc;

use flash_indexer_core::BlockEvent;
use flash_indexer_core::Tier;
use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::keyed::KeyedSet;
use flash_indexer_core::prefixes::{HeldPrefixes, Prefix};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Changed prefixes of one rank that may wait to be written; with more, all of the rank is written anew.
pub const WAITING_CHANGES_MAX: usize = 1 << 17;

/// Why a rank is not shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotShared {
    /// It has several cache groups: what is usable of a prefix is not told by what is held of it.
    CacheGroups,
}

/// One rank's prefixes and what of them is to be written. Fed by whoever feeds the index, and read by the publisher.
#[derive(Debug)]
pub struct SharedRank {
    inner: Mutex<Inner>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    prefixes: HeldPrefixes,
    withheld: Option<NotShared>,
    /// Rises when what was written is to be forgotten as a whole.
    life: u64,
    /// Changes since they were last taken, while somebody publishes the rank.
    waiting: Option<KeyedSet<Prefix>>,
    overflows: u64,
}

/// A prefix as it is to be written: with the slowest tier that it needs, or none if it is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) prefix: Prefix,
    pub(crate) tier: Option<Tier>,
}

impl SharedRank {
    pub(crate) fn new(changed: Arc<Notify>) -> Self {
        Self { inner: Mutex::default(), changed }
    }

    /// Applies an event that the index has applied.
    pub fn apply(&self, event: &RankEvent) {
        let mut inner = self.inner.lock();
        let has_news = match event {
            RankEvent::Secondary(_) => inner.withhold(NotShared::CacheGroups),
            RankEvent::Indexed(BlockEvent::Cleared) => {
                inner.prefixes = HeldPrefixes::default();
                inner.start_anew();
                true
            }
            RankEvent::Indexed(event) => inner.change(event),
        };
        drop(inner);
        if has_news {
            self.changed.notify_one();
        }
    }

    /// Forgets everything about the rank, as the index does.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.prefixes = HeldPrefixes::default();
        inner.withheld = None;
        inner.start_anew();
        drop(inner);
        self.changed.notify_one();
    }

    /// Why it is not shared, if it is not.
    #[must_use]
    pub fn withheld(&self) -> Option<NotShared> {
        self.inner.lock().withheld
    }

    /// Which life of what is written the rank is in.
    pub(crate) fn life(&self) -> u64 {
        self.inner.lock().life
    }

    /// Changes that wait, and how often there were too many.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let inner = self.inner.lock();
        (inner.waiting.as_ref().map_or(0, KeyedSet::len), inner.overflows)
    }

    /// Keeps changes from here on, for a publisher. Returns the life that they are of.
    pub(crate) fn publish(&self) -> u64 {
        let mut inner = self.inner.lock();
        if inner.withheld.is_none() {
            inner.waiting = Some(KeyedSet::default());
        }
        inner.life
    }

    /// Everything that is held now and may be shared. The rank's writer waits for that long.
    pub(crate) fn all(&self) -> Vec<Prefix> {
        let inner = self.inner.lock();
        if inner.withheld.is_some() { Vec::new() } else { inner.prefixes.iter().collect() }
    }

    /// Number of held prefixes.
    pub(crate) fn held(&self) -> usize {
        self.inner.lock().prefixes.blocks()
    }

    /// Nobody publishes the rank any more.
    pub(crate) fn retire(&self) {
        self.inner.lock().waiting = None;
    }

    /// Takes at most so many changes, as they are now, and tells whether there are more. None if the rank is in
    /// another life.
    pub(crate) fn take(&self, life: u64, max: usize) -> Option<(Vec<Written>, bool)> {
        let mut inner = self.inner.lock();
        if inner.life != life {
            return None;
        }
        let Inner { prefixes, waiting: Some(waiting), .. } = &mut *inner else { return Some((Vec::new(), false)) };
        let written = |prefix: Prefix| Written { prefix, tier: prefixes.slowest_tier(prefix.hash) };
        if waiting.len() <= max {
            return Some((std::mem::take(waiting).into_iter().map(written).collect(), false));
        }
        let taken: Vec<Prefix> = waiting.iter().copied().take(max).collect();
        taken.iter().for_each(|prefix| _ = waiting.remove(prefix));
        Some((taken.into_iter().map(written).collect(), true))
    }

    /// Those of some prefixes that are held, as they are now. None if the rank is in another life.
    pub(crate) fn read(&self, life: u64, prefixes: &[Prefix]) -> Option<Vec<Written>> {
        let inner = self.inner.lock();
        let written =
            |&prefix: &Prefix| Some(Written { prefix, tier: Some(inner.prefixes.slowest_tier(prefix.hash)?) });
        (inner.life == life).then(|| prefixes.iter().filter_map(written).collect())
    }

    /// Changes that were taken before, as they are now. None if the rank is in another life.
    pub(crate) fn reread(&self, life: u64, prefixes: &[Prefix]) -> Option<Vec<Written>> {
        let inner = self.inner.lock();
        let written = |&prefix: &Prefix| Written { prefix, tier: inner.prefixes.slowest_tier(prefix.hash) };
        (inner.life == life).then(|| prefixes.iter().map(written).collect())
    }
}

impl Inner {
    /// Whether it was not withheld before.
    fn withhold(&mut self, why: NotShared) -> bool {
        let is_news = self.withheld.replace(why).is_none();
        if is_news {
            self.start_anew();
        }
        is_news
    }

    /// Whether there is something to be written.
    fn change(&mut self, event: &BlockEvent) -> bool {
        let mut changed = Vec::new();
        self.prefixes.apply(event, &mut |prefix| changed.push(prefix));
        if self.waiting.is_none() || self.withheld.is_some() {
            return false;
        }
        let has_news = !changed.is_empty();
        changed.into_iter().for_each(|prefix| self.wait(prefix));
        has_news
    }

    fn wait(&mut self, prefix: Prefix) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.insert(prefix);
        if waiting.len() > WAITING_CHANGES_MAX {
            self.overflows += 1;
            self.start_anew();
        }
    }

    /// What was written is to be forgotten, and what is held written as a whole.
    fn start_anew(&mut self) {
        self.life += 1;
        self.waiting = None;
    }
}
