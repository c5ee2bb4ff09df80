//! Ranks that were unregistered recently.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_types::{InstanceId, ModelKey};
use parking_lot::Mutex;

/// Tombstones kept. The oldest ones are dropped.
const TOMBSTONES_MAX: usize = 1_024;

/// What remains of an unregistered rank, for explanations.
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

/// The latest tombstones, each rank at most once.
#[derive(Debug, Default)]
pub struct Tombstones {
    list: Mutex<VecDeque<Tombstone>>,
}

impl Tombstones {
    /// Adds a tombstone and drops the oldest one above the limit. An older tombstone of the same rank is replaced.
    pub fn record(&self, tombstone: Tombstone) {
        let mut list = self.list.lock();
        list.retain(|other| {
            (&other.model, &other.instance, other.dp_rank) != (&tombstone.model, &tombstone.instance, tombstone.dp_rank)
        });
        if list.len() >= TOMBSTONES_MAX {
            list.pop_front();
        }
        list.push_back(tombstone);
    }

    /// Tombstones of one model, the latest last.
    pub fn of_model(&self, model: &ModelKey) -> Vec<Tombstone> {
        self.list.lock().iter().filter(|tombstone| tombstone.model == *model).cloned().collect()
    }
}
