//! Streams of bound pods in one decoder: the listener of each rank, and messages that wait for a registration.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_types::ConnectionStatus;
use flash_indexer_types::pods::PodName;

use super::{ConnectionId, OpenConnections, PendingRegistration, Pod, Refusal};
use crate::listener::Listener;
use crate::message::Live;

/// Limit of the unregistered ranks of one decoder.
const UNREGISTERED_RANKS_MAX: usize = 1 << 14;
/// Limit of the messages of one rank that wait for its registration.
const PENDING_MESSAGES_MAX: usize = 1 << 12;
/// Limit of the messages that wait for registrations in one decoder, in bytes.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Time after which a refused registration may be requested again.
const REFUSED_FOR: Duration = Duration::from_secs(2);

/// Streams of the pods of one decoder.
#[derive(Default)]
pub(crate) struct PodStreams {
    connections: Arc<OpenConnections>,
    streams: KeyedMap<PodName, BTreeMap<DpRank, Stream>>,
    /// Streams without a listener.
    unregistered_ranks: usize,
    swept: Option<Instant>,
    pending_bytes: usize,
}

/// Stream of one rank of a pod.
struct Stream {
    state: State,
    /// Shadow of the listener, which is about to replace it.
    shadow: Option<Arc<Listener>>,
    /// Connection of its last message.
    connection: Option<ConnectionId>,
}

/// Registration of a rank.
enum State {
    Registered(Arc<Listener>),
    /// Its registration is requested, or will be once a message contains the block size.
    Pending {
        pod: Arc<Pod>,
        is_requested: bool,
        waiting: VecDeque<(ConnectionId, Live)>,
        /// Whether messages after the waiting ones were dropped.
        is_tail_lost: bool,
    },
    Refused {
        until: Instant,
        reason: &'static str,
    },
    /// It was unregistered: its messages are dropped as long as its connection lasts.
    Unregistered,
}

/// Connection of a message, compared with the rank's last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The same connection.
    Same,
    /// Another connection, or the first one.
    Reconnected,
    /// An older connection than the last one, which is still open: two engines have the same name.
    Duplicate,
}

/// A message with its listener.
pub(crate) struct RoutedMessage {
    pub listener: Arc<Listener>,
    /// Shadow that receives a copy.
    pub shadow: Option<Arc<Listener>>,
    pub seen: Seen,
    pub live: Live,
}

/// Outcome of routing a message.
pub(crate) enum MessageOutcome {
    Routed(RoutedMessage),
    /// The message waits for a registration, which is to be requested if it is given here.
    Pending(Option<PendingRegistration>),
    /// The message is dropped, with this reason label.
    Dropped(&'static str),
    /// The message is dropped: a limit of pending registrations or their messages is reached.
    LimitReached,
}

/// Outcome of a refusal.
pub(crate) enum RefusalOutcome {
    /// A waiting message contains the block size: request the registration again.
    Retry(PendingRegistration),
    /// This number of messages is dropped.
    Dropped(usize),
}

/// Outcome of attaching a listener: the messages that waited for the registration of its rank.
#[derive(Default)]
pub(crate) struct Attachment {
    pub messages: Vec<(Seen, Live)>,
    /// Their pod; none without messages.
    pub pod: Option<Arc<Pod>>,
    /// Whether messages after them were dropped.
    pub is_tail_lost: bool,
    /// Whether the connection of the last one is lost.
    pub is_lost: bool,
}

impl PodStreams {
    pub(crate) fn new(connections: Arc<OpenConnections>) -> Self {
        Self { connections, ..Self::default() }
    }

    /// Routes a message to the listener of its rank, or keeps it for the rank's registration.
    pub(crate) fn route(
        &mut self,
        pod: &Arc<Pod>,
        connection: ConnectionId,
        live: Live,
        now: Instant,
    ) -> MessageOutcome {
        let (name, dp_rank) = (&*pod.name, live.dp_rank());
        let known = self.streams.get_mut(name).and_then(|ranks| ranks.get_mut(&dp_rank));
        let Some(stream) = known else { return self.admit(pod, connection, live, now) };
        match &mut stream.state {
            State::Registered(listener) => {
                let seen = match stream.connection {
                    Some(last) if last == connection => Seen::Same,
                    Some(last) if connection < last && listener.connection() == ConnectionStatus::Connected => {
                        Seen::Duplicate
                    }
                    _ => Seen::Reconnected,
                };
                if seen == Seen::Reconnected {
                    let former = stream.connection.replace(connection);
                    for listener in [&*listener].into_iter().chain(&stream.shadow) {
                        self.connections.attach(listener, former, connection);
                    }
                }
                let (listener, shadow) = (Arc::clone(listener), stream.shadow.clone());
                MessageOutcome::Routed(RoutedMessage { listener, shadow, seen, live })
            }
            State::Pending { is_requested, waiting, is_tail_lost, .. } => {
                let bytes = live.message.payload.len();
                if waiting.len() >= PENDING_MESSAGES_MAX || self.pending_bytes + bytes > PENDING_BYTES_MAX {
                    *is_tail_lost = true;
                    return MessageOutcome::LimitReached;
                }
                let block_size = live.block_size();
                self.pending_bytes += bytes;
                waiting.push_back((connection, live));
                let request_now = !*is_requested && block_size.is_some();
                *is_requested |= request_now;
                let pending = || PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before: None };
                MessageOutcome::Pending(request_now.then(pending))
            }
            State::Refused { until, reason } if now < *until => MessageOutcome::Dropped(reason),
            State::Unregistered if stream.connection.is_some_and(|last| connection <= last) => {
                MessageOutcome::Dropped("unregistered")
            }
            State::Refused { .. } | State::Unregistered => self.admit(pod, connection, live, now),
        }
    }

    /// Keeps the first message of a rank that is unknown, or whose registration may be requested again.
    fn admit(&mut self, pod: &Arc<Pod>, connection: ConnectionId, live: Live, now: Instant) -> MessageOutcome {
        let (name, dp_rank) = (&*pod.name, live.dp_rank());
        let known = self.streams.get(name).and_then(|ranks| ranks.get(&dp_rank));
        let refused_before = match known.map(|stream| &stream.state) {
            Some(State::Refused { reason, .. }) => Some(*reason),
            _ => None,
        };
        let is_new = known.is_none();
        if is_new && self.unregistered_ranks >= UNREGISTERED_RANKS_MAX {
            self.sweep(now);
        }
        let bytes = live.message.payload.len();
        if (is_new && self.unregistered_ranks >= UNREGISTERED_RANKS_MAX)
            || self.pending_bytes + bytes > PENDING_BYTES_MAX
        {
            return MessageOutcome::LimitReached;
        }
        let block_size = live.block_size();
        self.pending_bytes += bytes;
        self.unregistered_ranks += usize::from(is_new);
        let (pod, waiting) = (Arc::clone(pod), VecDeque::from([(connection, live)]));
        let state = State::Pending { pod, is_requested: true, waiting, is_tail_lost: false };
        let ranks = self.streams.entry(name.clone()).or_default();
        ranks.insert(dp_rank, Stream { state, shadow: None, connection: None });
        MessageOutcome::Pending(Some(PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before }))
    }

    /// Removes refused and unregistered ranks, at most once in [`REFUSED_FOR`].
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now < swept + REFUSED_FOR) {
            return;
        }
        self.swept = Some(now);
        for ranks in self.streams.values_mut() {
            ranks.retain(|_, stream| match stream.state {
                State::Refused { until, .. } => now < until,
                State::Unregistered => false,
                State::Registered(_) | State::Pending { .. } => true,
            });
        }
        self.streams.retain(|_, ranks| !ranks.is_empty());
        let states = self.streams.values().flat_map(BTreeMap::values);
        self.unregistered_ranks = states.filter(|stream| !matches!(stream.state, State::Registered(_))).count();
    }

    /// Attaches a listener to its rank. Returns the messages that waited for it.
    pub(crate) fn attach(&mut self, listener: &Arc<Listener>) -> Attachment {
        let stream = Stream { state: State::Registered(Arc::clone(listener)), shadow: None, connection: None };
        let ranks = self.streams.entry(listener.pod_name()).or_default();
        let before = ranks.insert(listener.dp_rank, stream).map(|stream| stream.state);
        if before.as_ref().is_some_and(|state| !matches!(state, State::Registered(_))) {
            self.unregistered_ranks -= 1;
        }
        let Some(State::Pending { pod, waiting, is_tail_lost, .. }) = before else { return Attachment::default() };
        self.pending_bytes -= waiting.iter().map(|(_, live)| live.message.payload.len()).sum::<usize>();
        let mut last = None;
        let messages = waiting.into_iter().map(|(connection, live)| {
            let seen = if last.replace(connection) == Some(connection) { Seen::Same } else { Seen::Reconnected };
            (seen, live)
        });
        let messages = messages.collect();
        // The decoder may have handled the loss of the connection before, when the rank had no listener.
        let is_lost = last.is_some_and(|last| !self.connections.attach(listener, None, last));
        if let Some(stream) = self.stream_of(listener) {
            stream.connection = last.filter(|_| !is_lost);
        }
        Attachment { messages, pod: Some(pod), is_tail_lost, is_lost }
    }

    /// Records that every rank of a pod may have lost messages. Returns the listeners of its ranks, each with the connection of
    /// its last message.
    pub(crate) fn mark_tail_lost(&mut self, name: &PodName) -> Vec<(Arc<Listener>, Option<ConnectionId>)> {
        let mut listeners = Vec::new();
        for stream in self.streams.get_mut(name).into_iter().flat_map(BTreeMap::values_mut) {
            match &mut stream.state {
                State::Registered(listener) => {
                    let of_rank = [&*listener].into_iter().chain(&stream.shadow);
                    listeners.extend(of_rank.map(|listener| (Arc::clone(listener), stream.connection)));
                }
                State::Pending { is_tail_lost, .. } => *is_tail_lost = true,
                State::Refused { .. } | State::Unregistered => {}
            }
        }
        listeners
    }

    /// Attaches a shadow to a rank. Returns the state of the rank's connection; none if the rank has no listener.
    pub(crate) fn attach_shadow(&mut self, shadow: &Arc<Listener>) -> Option<ConnectionStatus> {
        let stream = self.stream_of(shadow)?;
        let State::Registered(listener) = &stream.state else { return None };
        let (status, connection) = (listener.connection(), stream.connection);
        stream.shadow = Some(Arc::clone(shadow));
        if let Some(connection) = connection {
            self.connections.attach(shadow, None, connection);
        }
        Some(status)
    }

    /// Replaces the listener of a rank by its shadow.
    pub(crate) fn promote_shadow(&mut self, shadow: &Arc<Listener>) {
        let Some(stream) = self.stream_of(shadow) else { return };
        if stream.shadow.take_if(|it| Arc::ptr_eq(it, shadow)).is_some()
            && let State::Registered(listener) = &mut stream.state
        {
            *listener = Arc::clone(shadow);
        }
    }

    fn stream_of(&mut self, listener: &Listener) -> Option<&mut Stream> {
        self.streams.get_mut(&listener.pod_name())?.get_mut(&listener.dp_rank)
    }

    /// Refuses the registration of a rank for [`REFUSED_FOR`].
    pub(crate) fn refuse(
        &mut self,
        name: &PodName,
        dp_rank: DpRank,
        refusal: &Refusal,
        now: Instant,
    ) -> RefusalOutcome {
        let stream = self.streams.get_mut(name).and_then(|ranks| ranks.get_mut(&dp_rank));
        let Some(state) = stream.map(|stream| &mut stream.state) else { return RefusalOutcome::Dropped(0) };
        match (state, refusal) {
            // It was registered meanwhile.
            (State::Registered(_), _) => RefusalOutcome::Dropped(0),
            (State::Pending { is_requested, waiting, .. }, Refusal::BlockSizeUnknown) => {
                let block_size = waiting.iter().find_map(|(_, live)| live.block_size());
                *is_requested = block_size.is_some();
                let pending = || PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before: None };
                is_requested.then(pending).map_or(RefusalOutcome::Dropped(0), RefusalOutcome::Retry)
            }
            (State::Refused { .. } | State::Unregistered, Refusal::BlockSizeUnknown) => RefusalOutcome::Dropped(0),
            (state, Refusal::Refused { reason, .. }) => {
                let refused = State::Refused { until: now + REFUSED_FOR, reason };
                let State::Pending { waiting, .. } = std::mem::replace(state, refused) else {
                    return RefusalOutcome::Dropped(0);
                };
                self.pending_bytes -= waiting.iter().map(|(_, live)| live.message.payload.len()).sum::<usize>();
                RefusalOutcome::Dropped(waiting.len())
            }
        }
    }

    /// Detaches a listener: messages of its rank are dropped as long as the connection lasts.
    pub(crate) fn detach(&mut self, listener: &Arc<Listener>) {
        let Some(stream) = self.stream_of(listener) else { return };
        // Detaching a shadow leaves the listener of the rank attached.
        stream.shadow.take_if(|shadow| Arc::ptr_eq(shadow, listener));
        if matches!(&stream.state, State::Registered(followed) if Arc::ptr_eq(followed, listener)) {
            stream.state = State::Unregistered;
            self.unregistered_ranks += 1;
        }
    }

    /// Listeners of the ranks that publish over a connection.
    pub(crate) fn listeners_on(&self, connection: ConnectionId) -> Vec<Arc<Listener>> {
        let streams = self.streams.values().flat_map(BTreeMap::values);
        let on_connection = streams.filter_map(|stream| match &stream.state {
            State::Registered(listener) if stream.connection == Some(connection) => Some((listener, &stream.shadow)),
            _ => None,
        });
        on_connection.flat_map(|(listener, shadow)| [listener].into_iter().chain(shadow)).map(Arc::clone).collect()
    }
}
