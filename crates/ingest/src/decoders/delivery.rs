//! Work for a decoder thread: deliveries of listeners, messages of bound pods.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use flash_indexer_core::DpRank;
use flash_indexer_wire::{Replay, StreamPosition};

use crate::bound_pods::{ConnectionId, Pod, PodMessage, PodName, Refusal};
use crate::listener::Listener;
use crate::message::Frames;
use crate::resume_point::{DecoderState, DecoderStateDetail, Read, ReadAt};

/// Bytes that a queued message takes besides its frames: their allocations and its slot in the queue.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

/// Callback of a retired listener: the writer calls it with the stream's last position once the blocks are removed.
pub(crate) type Retired = Box<dyn FnOnce(StreamPosition) + Send>;

/// An input of a listener's decoder. A decoder handles the deliveries of a listener in the order in which they are sent.
pub enum Delivery {
    /// Live messages.
    Live(Vec<Frames>),
    /// Live messages after the last delivered one were dropped, in this run of drops.
    Dropped(u64),
    /// Messages of a replay.
    Replayed {
        /// Number of the replay request.
        attempt: u32,
        /// The messages, in order.
        messages: Vec<Frames>,
    },
    /// A replay request failed.
    ReplayFailed {
        /// Number of the replay request.
        attempt: u32,
        /// Cause of the failure.
        why: String,
    },
    /// Routes the messages of the listener's pod, which arrive over the bound socket, to the listener.
    AttachToPod,
    /// Routes copies of those messages to a shadow, which is about to replace the attached listener.
    AttachShadow,
    /// Replaces the attached listener by its shadow.
    PromoteShadow,
    /// The engine is connected.
    Connected,
    /// The connection is lost: the next message may belong to another epoch.
    Disconnected,
    /// Starts to apply a held stream.
    Release(Sender<()>),
    /// Ignores a rank of the stream and removes its blocks.
    IgnoreRank(DpRank, Sender<()>),
    /// Applies the events of an ignored rank again.
    ResumeRank(DpRank),
    /// Reads what the index holds of a rank at a known position of the stream.
    Read {
        /// The rank.
        dp_rank: DpRank,
        /// Position at which the index is read.
        at: ReadAt,
        /// Parts of the decoder state that are copied.
        detail: DecoderStateDetail,
        /// Called by the writer at that position.
        read: Read,
    },
    /// Restores the decoder state of a rank before its stream is resumed.
    RestoreDecoderState(DpRank, DecoderState),
    /// Restarts a stream whose state is lost, with or without a replay.
    Restart(Replay),
    /// Removes all blocks of the listener, whose sockets are closed.
    Retire(Retired),
}

impl Delivery {
    pub(super) fn messages(&self) -> &[Frames] {
        match self {
            Self::Live(messages) | Self::Replayed { messages, .. } => messages,
            _ => &[],
        }
    }

    /// Number of messages, and bytes that they take in a queue.
    pub(super) fn size(&self) -> (usize, usize) {
        let messages = self.messages();
        (messages.len(), messages.iter().map(queued_bytes).sum())
    }
}

/// Bytes that a message takes in a queue.
pub(super) fn queued_bytes(frames: &Frames) -> usize {
    MESSAGE_OVERHEAD_BYTES + frames.iter().map(Vec::len).sum::<usize>()
}

/// An entry of a decoder's queue.
pub(super) enum Work {
    Delivery {
        listener: Arc<Listener>,
        delivery: Delivery,
        at: Instant,
    },
    /// Messages of a pod, from the bound socket.
    Pod {
        pod: Arc<Pod>,
        messages: Vec<PodMessage>,
        at: Instant,
    },
    /// Messages of a pod were dropped after the last ones. `runs` holds the run of drops of each of its listeners.
    PodDropped {
        pod: Arc<Pod>,
        runs: Vec<(Arc<Listener>, u64)>,
    },
    /// A connection to the bound socket is lost.
    ConnectionLost(ConnectionId),
    /// The registration of a pod's rank is refused.
    Refused(PodName, DpRank, Refusal),
    Stop,
}
