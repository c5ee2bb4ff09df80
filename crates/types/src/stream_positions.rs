//! Positions of unregistered streams, from which a new registration continues.

use std::collections::VecDeque;

use flash_indexer_core::DpRank;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_wire::StreamPosition;

use crate::{InstanceId, ListenerOptions, ModelKey};

/// Positions kept after their streams were unregistered. The oldest ones are dropped.
const STREAMS_MAX: usize = 1 << 16;

/// Identity of a stream across registrations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamName {
    model: ModelKey,
    instance: InstanceId,
    endpoint: String,
    /// The rank, if all ranks of the instance share one endpoint and each has its own stream.
    dp_rank: Option<DpRank>,
}

impl StreamName {
    /// The name of the stream that a rank is registered with.
    #[must_use]
    pub fn new(model: ModelKey, instance: InstanceId, dp_rank: DpRank, options: &ListenerOptions) -> Self {
        let dp_rank = options.is_bound().then_some(dp_rank);
        Self { model, instance, endpoint: options.endpoint.clone(), dp_rank }
    }
}

/// Positions of unregistered streams: of at most 65,536, with constant cost.
#[derive(Debug, Default)]
pub struct StreamPositions {
    positions: KeyedMap<StreamName, StreamPosition>,
    /// Streams in the order of their first insertion.
    by_age: VecDeque<StreamName>,
}

impl StreamPositions {
    /// Stores the position of a stream, and drops the oldest one above the limit.
    pub fn insert(&mut self, name: StreamName, position: StreamPosition) {
        if self.positions.insert(name.clone(), position).is_some() {
            return;
        }
        self.by_age.push_back(name);
        if self.by_age.len() > STREAMS_MAX
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.positions.remove(&oldest);
        }
    }

    /// The position of a stream, if it is kept.
    #[must_use]
    pub fn get(&self, name: &StreamName) -> Option<StreamPosition> {
        self.positions.get(name).copied()
    }
}
