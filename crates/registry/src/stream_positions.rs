//! Where streams stood when they were last listened to.

use std::collections::VecDeque;

use flash_indexer_core::DpRank;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_wire::StreamPosition;

use flash_indexer_ingest::ListenerOptions;
use flash_indexer_types::{InstanceId, ModelKey};

/// Streams that are remembered after they are listened to no more.
const STREAMS_MAX: usize = 1 << 16;

/// A publisher, as far as registrations can tell.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StreamName {
    pub model: ModelKey,
    pub instance: InstanceId,
    pub endpoint: String,
    /// Its rank, where all ranks of a pod have one endpoint and each a stream of its own.
    pub dp_rank: Option<DpRank>,
}

impl StreamName {
    pub(crate) fn new(model: ModelKey, instance: InstanceId, dp_rank: DpRank, options: &ListenerOptions) -> Self {
        let dp_rank = options.is_bound().then_some(dp_rank);
        Self { model, instance, endpoint: options.endpoint.clone(), dp_rank }
    }
}

/// Positions by stream; the longest remembered ones are forgotten when there are too many.
#[derive(Debug, Default)]
pub(crate) struct StreamPositions {
    positions: KeyedMap<StreamName, StreamPosition>,
    in_order: VecDeque<StreamName>,
}

impl StreamPositions {
    pub(crate) fn keep(&mut self, name: StreamName, position: StreamPosition) {
        if self.positions.insert(name.clone(), position).is_some() {
            return;
        }
        self.in_order.push_back(name);
        if self.in_order.len() > STREAMS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.positions.remove(&oldest);
        }
    }

    pub(crate) fn recall(&self, name: &StreamName) -> Option<StreamPosition> {
        self.positions.get(name).copied()
    }
}
