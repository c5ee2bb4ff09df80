//! Work for a decoder thread: deliveries of listeners, messages of bound pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use flash_indexer_core::DpRank;
use flash_indexer_types::pods::PodName;
use flash_indexer_wire::{LiveMessage, ReplaySupport, StreamPosition};

use crate::bound_pods::{ConnectionId, LossNotice, Pod, PodMessage, Refusal};
use crate::listener::{Listener, NoticeKind};
use crate::message::Frames;
use crate::resume_point::{DecoderState, DecoderStateDetail, RankReader, ReadAt};
use crate::writer::Reservation;
use flash_indexer_queues::{ClassedKey, NoticePosition, QueueClass, QueuedSize, QueuedWork};

/// Bytes of events that a decoder decodes before other queues take their turns, and the rest of one event.
pub(super) const TURN_BYTES_MAX: usize = 16 << 10;

/// A delivery of more bytes is long: it waits for shorter deliveries of other queues. A message of one block, as engines
/// publish while they decode, is shorter.
const SHORT_BYTES_MAX: usize = 2 << 10;

/// Bytes that a queued message takes besides its frames: their allocations and its slot in the queue.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

/// Callback of a retired listener: the writer calls it with the stream's last position once the blocks are removed.
pub type OnRetired = Box<dyn FnOnce(StreamPosition) + Send>;

/// An input of a listener's decoder. A decoder handles the deliveries of a listener in the order in which they are sent.
pub enum Delivery {
    /// Live messages.
    Live(Vec<Frames>),
    /// Live messages after the last delivered one were dropped.
    Dropped {
        /// Number of the run of drops.
        run: u64,
        /// The highest sequence number that was seen on one of them, if any.
        last: Option<u64>,
    },
    /// This process was paused: the engine may have dropped messages after the messages that wait in queues.
    Paused {
        /// Number of the run of drops.
        run: u64,
        /// Live messages received before this time waited in queues, and do not show which messages were dropped.
        shown_from: Instant,
    },
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
    /// The connection is lost: the next message may belong to another epoch. The number is that of the notice.
    Disconnected(u64),
    /// Starts to apply a paused stream.
    Release(Sender<()>),
    /// Ignores a rank of the stream and removes its blocks. The function runs on the writer thread after the removal.
    IgnoreRank(DpRank, Box<dyn FnOnce() + Send>),
    /// Applies the events of an ignored rank again.
    ResumeRank(DpRank),
    /// Reads a rank of the index at a known position of the stream.
    Read {
        /// The rank.
        dp_rank: DpRank,
        /// Position at which the index is read.
        at: ReadAt,
        /// Parts of the decoder state that are copied.
        detail: DecoderStateDetail,
        /// Run by the writer at that position.
        reader: Box<dyn RankReader>,
    },
    /// Restores the decoder state of a rank before its stream is resumed.
    RestoreDecoderState(DpRank, DecoderState),
    /// Restarts a stream whose state is lost, with or without a replay.
    Restart(ReplaySupport),
    /// Runs the function on the writer thread once all earlier deliveries are applied. It is dropped if that never happens.
    Written(Box<dyn FnOnce() + Send>),
    /// Removes all blocks of the listener, whose sockets are closed.
    Retire(OnRetired),
}

impl Delivery {
    pub(super) fn messages(&self) -> &[Frames] {
        match self {
            Self::Live(messages) | Self::Replayed { messages, .. } => messages,
            _ => &[],
        }
    }

    /// Panics on the topic by which a test injects a fault.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(super) fn inject_fault(&self) {
        let is_fault = |frames: &Frames| frames[0] == b"decoder fault";
        assert!(!self.messages().iter().any(is_fault), "a test asked for a failure");
    }
}

/// Size of messages in a queue.
fn size_of<'a>(messages: impl ExactSizeIterator<Item = &'a Frames>) -> QueuedSize {
    QueuedSize { messages: messages.len(), bytes: messages.map(queued_bytes).sum() }
}

/// Bytes that a message takes in a queue.
pub(super) fn queued_bytes(frames: &Frames) -> usize {
    MESSAGE_OVERHEAD_BYTES + frames.iter().map(Vec::len).sum::<usize>()
}

/// A queue of a decoder. The entries of one queue are handled in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum QueueKey {
    /// Deliveries of a listener that dials its engine, given by its id.
    Listener { id: u64, class: QueueClass },
    /// Messages of a pod, and deliveries of its listeners.
    Pod { name: Arc<PodName>, class: QueueClass },
    /// Lost connections of the bound socket, for pods without an entry in their queues.
    Connections(usize),
}

impl QueueKey {
    /// Queue of a listener's deliveries.
    pub(super) fn of(listener: &Listener) -> Self {
        match listener.options.is_bound() {
            true => Self::of_pod(Arc::new(listener.pod_name())),
            false => Self::Listener { id: listener.id, class: listener.queue_class() },
        }
    }

    /// Queue of a pod.
    pub(super) fn of_pod(name: Arc<PodName>) -> Self {
        let class = QueueClass::of_pod(&name);
        Self::Pod { name, class }
    }
}

impl ClassedKey for QueueKey {
    fn class(&self) -> QueueClass {
        match self {
            Self::Listener { class, .. } | Self::Pod { class, .. } => *class,
            Self::Connections(_) => QueueClass::NO_MODEL,
        }
    }
}

/// An entry of a decoder's queue.
pub(super) enum Work {
    Delivery {
        listener: Arc<Listener>,
        delivery: Delivery,
    },
    /// The rest of a listener's message, which the end of a turn interrupted.
    Rest {
        listener: Arc<Listener>,
        reservation: Option<Reservation>,
    },
    /// Messages of a pod, from the bound socket.
    Pod {
        pod: Arc<Pod>,
        messages: Vec<PodMessage>,
    },
    /// Messages of a pod were dropped after the last ones. `runs` holds the run of drops of each of its listeners.
    PodDropped {
        pod: Arc<Pod>,
        runs: Vec<(Arc<Listener>, u64)>,
        last: LastNumbers,
    },
    /// A connection to the bound socket is lost. The notices are those of listeners of these pods.
    ConnectionLost(ConnectionId, PodScope, Vec<LossNotice>),
    /// The registration of a pod's rank is refused.
    Refused(PodName, DpRank, Refusal),
}

/// Pods for which a lost connection is handled.
pub(super) enum PodScope {
    One(Arc<PodName>),
    /// All pods except these, whose queues have their own entry.
    AllBut(Vec<Arc<PodName>>),
}

impl PodScope {
    pub(super) fn contains(&self, pod: &PodName) -> bool {
        match self {
            Self::One(only) => **only == *pod,
            Self::AllBut(others) => others.iter().all(|other| **other != *pod),
        }
    }
}

/// The highest sequence number of live messages, if any has one.
pub(crate) fn last_number<'f>(messages: impl IntoIterator<Item = &'f Frames>) -> Option<u64> {
    messages.into_iter().filter_map(|frames| LiveMessage::from_frames(frames).ok()?.sequence).max()
}

/// Connections whose sequence numbers one notice of dropped messages keeps. Numbers of further connections count as unknown.
const NOTICED_CONNECTIONS_MAX: usize = 64;

/// The highest sequence number of dropped messages of each connection of a pod.
#[derive(Default)]
pub(super) struct LastNumbers(BTreeMap<ConnectionId, u64>);

impl LastNumbers {
    fn extend(&mut self, messages: &[PodMessage]) {
        for PodMessage { connection, frames } in messages {
            let Some(number) = last_number([frames]) else { continue };
            if self.0.len() < NOTICED_CONNECTIONS_MAX || self.0.contains_key(connection) {
                let last = self.0.entry(*connection).or_insert(number);
                *last = number.max(*last);
            }
        }
    }

    pub(super) fn of(&self, connection: ConnectionId) -> Option<u64> {
        self.0.get(&connection).copied()
    }
}

/// Run of drops of a notice that a later notice of the same queue completes: acknowledging it has no effect.
const RUN_CONTINUES: u64 = 0;

impl QueuedWork for Work {
    fn size(&self) -> QueuedSize {
        match self {
            Self::Delivery { delivery, .. } => size_of(delivery.messages().iter()),
            Self::Pod { messages, .. } => size_of(messages.iter().map(|message| &message.frames)),
            _ => QueuedSize::default(),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self, Self::Delivery { delivery: Delivery::Live(_), .. } | Self::Pod { .. })
    }

    fn is_long(&self) -> bool {
        self.size().bytes > SHORT_BYTES_MAX
    }

    fn cover(&mut self, dropped: &Self) -> bool {
        match (self, dropped) {
            (Self::Delivery { delivery, .. }, Self::Delivery { delivery: dropped, .. }) => match (delivery, dropped) {
                (Delivery::Dropped { last, .. }, Delivery::Live(messages)) => {
                    *last = (*last).max(last_number(messages));
                    true
                }
                (Delivery::ReplayFailed { attempt, .. }, Delivery::Replayed { attempt: dropped, .. }) => {
                    attempt == dropped
                }
                _ => false,
            },
            (Self::PodDropped { last, .. }, Self::Pod { messages, .. }) => {
                last.extend(messages);
                true
            }
            _ => false,
        }
    }

    /// Degrades the ranks at once if it begins a run of drops.
    fn into_notice(self, position: NoticePosition) -> Self {
        let run = |listener: &Listener| match position {
            NoticePosition::Last => listener.send_notice(NoticeKind::Dropped),
            NoticePosition::BeforeAnother => RUN_CONTINUES,
        };
        match self {
            Self::Delivery { listener, delivery: Delivery::Live(messages) } => {
                let (run, last) = (run(&listener), last_number(&messages));
                Self::Delivery { listener, delivery: Delivery::Dropped { run, last } }
            }
            // The replay is incomplete: the stream has to request it again.
            Self::Delivery { listener, delivery: Delivery::Replayed { attempt, .. } } => {
                let why = "replayed messages were dropped: the queue is full".to_owned();
                Self::Delivery { listener, delivery: Delivery::ReplayFailed { attempt, why } }
            }
            Self::Pod { pod, messages } => {
                let runs =
                    pod.listeners().into_iter().map(|listener| (Arc::clone(&listener), run(&listener))).collect();
                let mut last = LastNumbers::default();
                last.extend(&messages);
                Self::PodDropped { pod, runs, last }
            }
            other => other,
        }
    }
}
