//! Who is registered no more.

use std::collections::VecDeque;
use std::time::Instant;

use flash_indexer_core::DpRank;
use parking_lot::Mutex;

use crate::instance::{InstanceId, ModelKey};

/// Ranks remembered after they were unregistered: the last ones.
const DEPARTURES_MAX: usize = 1_024;

/// A rank that was unregistered.
#[derive(Debug, Clone)]
pub(crate) struct Departure {
    pub(crate) at: Instant,
    pub(crate) instance: InstanceId,
    pub(crate) dp_rank: DpRank,
    pub(crate) model: ModelKey,
}

/// The ranks that were unregistered last.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    list: Mutex<VecDeque<Departure>>,
}

impl Departures {
    pub(crate) fn note(&self, departure: Departure) {
        let mut list = self.list.lock();
        let is_same = |other: &Departure| {
            (&other.model, &other.instance, other.dp_rank) == (&departure.model, &departure.instance, departure.dp_rank)
        };
        list.retain(|other| !is_same(other));
        if list.len() >= DEPARTURES_MAX {
            list.pop_front();
        }
        list.push_back(departure);
    }

    /// Those of one model, each rank once, the latest last.
    pub(crate) fn of(&self, model: &ModelKey) -> Vec<Departure> {
        self.list.lock().iter().filter(|departure| departure.model == *model).cloned().collect()
    }
}
