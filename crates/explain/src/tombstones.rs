//! Who is registered no more.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::DpRank;
use parking_lot::Mutex;

use flash_indexer_types::{InstanceId, ModelKey};

/// Ranks remembered after they were unregistered: the last ones.
const TOMBSTONES_MAX: usize = 1_024;

/// A rank that was unregistered.
#[derive(Debug, Clone)]
pub struct Tombstone {
    /// Time of the unregistration.
    pub at: Instant,
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Model and tenant.
    pub model: ModelKey,
}

/// The ranks that were unregistered last.
#[derive(Debug, Default)]
pub struct Tombstones {
    list: Mutex<VecDeque<Tombstone>>,
}

impl Tombstones {
    /// Adds a tombstone; the oldest one is dropped when there are too many.
    pub fn note(&self, tombstone: Tombstone) {
        let mut list = self.list.lock();
        let is_same = |other: &Tombstone| {
            (&other.model, &other.instance, other.dp_rank) == (&tombstone.model, &tombstone.instance, tombstone.dp_rank)
        };
        list.retain(|other| !is_same(other));
        if list.len() >= TOMBSTONES_MAX {
            list.pop_front();
        }
        list.push_back(tombstone);
    }

    /// Those of one model, each rank once, the latest last.
    pub fn of(&self, model: &ModelKey) -> Vec<Tombstone> {
        self.list.lock().iter().filter(|tombstone| tombstone.model == *model).cloned().collect()
    }
}
