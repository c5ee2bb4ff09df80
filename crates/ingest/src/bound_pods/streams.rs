//! A decoder's side: which listener follows a pod's rank, and what waits until one does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use flash_indexer_core::keyed::KeyedMap;

use super::{ConnectionId, PendingRegistration, PodName, Refusal};
use crate::listener::{Connection, Listener};
use crate::message::Live;

/// Ranks of pods that are resume_from by one decoder without being followed.
const UNREGISTERED_RANKS_MAX: usize = 1 << 14;
/// Messages of one rank that wait for its registration.
const PENDING_MESSAGES_MAX: usize = 1 << 12;
/// Bytes of messages that wait for registrations in one decoder.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// A pod that was refused is looked at again after so long.
const REFUSED_FOR: Duration = Duration::from_secs(2);

/// The pods of one decoder.
#[derive(Default)]
pub(crate) struct PodStreams {
    streams: KeyedMap<PodName, BTreeMap<DpRank, Stream>>,
    /// How many of them are not followed.
    unregistered_ranks: usize,
    swept: Option<Instant>,
    pending_bytes: usize,
}

/// One rank of a pod.
struct Stream {
    state: State,
    /// Whoever follows it beside that, to take its place.
    shadow: Option<Arc<Listener>>,
    /// Where it was seen last.
    connection: Option<ConnectionId>,
}

enum State {
    Registered(Arc<Listener>),
    /// Its registration is is_requested for, or wants to know how large its blocks are.
    Pending {
        is_requested: bool,
        waiting: VecDeque<(ConnectionId, Live)>,
        /// Whether messages after the waiting ones were dropped.
        is_tail_lost: bool,
    },
    Refused {
        until: Instant,
        reason: &'static str,
    },
    /// It was unregistered: it stays away as long as its connection lasts.
    Unregistered,
}

/// What a message finds out about the connection that it came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// As the last one.
    Same,
    /// Over another connection than the last one, or the first one.
    Reconnected,
    /// Over an older connection than the last one, which lasts: two engines go by one name.
    Duplicate,
}

/// A message that is somebody's.
pub(crate) struct RoutedMessage {
    pub listener: Arc<Listener>,
    /// Whose it is as well.
    pub shadow: Option<Arc<Listener>>,
    pub seen: Seen,
    pub live: Live,
}

/// What becomes of a message.
pub(crate) enum MessageOutcome {
    Routed(RoutedMessage),
    /// It waits; if this is there, the registration is to be is_requested for.
    Pending(Option<PendingRegistration>),
    /// It is dropped, for this reason.
    Dropped(&'static str),
    /// It is dropped, because there are too many pods or messages that wait for a registration.
    LimitReached,
}

/// What follows from a refusal.
pub(crate) enum Refused {
    /// What has come meanwhile says more: the registration is to be is_requested for again.
    Retry(PendingRegistration),
    /// So many messages are dropped.
    Dropped(usize),
}

impl PodStreams {
    /// Takes a message in.
    pub(crate) fn take(
        &mut self,
        name: &PodName,
        dp_rank: DpRank,
        connection: ConnectionId,
        live: Live,
        now: Instant,
    ) -> MessageOutcome {
        let known = self.streams.get_mut(name).and_then(|ranks| ranks.get_mut(&dp_rank));
        let Some(stream) = known else { return self.admit(name, dp_rank, connection, live, now) };
        match &mut stream.state {
            State::Registered(listener) => {
                let seen = match stream.connection {
                    Some(last) if last == connection => Seen::Same,
                    Some(last) if connection < last && listener.connection() == Connection::Connected => {
                        Seen::Duplicate
                    }
                    _ => Seen::Reconnected,
                };
                if seen != Seen::Duplicate {
                    stream.connection = Some(connection);
                }
                let (listener, shadow) = (Arc::clone(listener), stream.shadow.clone());
                MessageOutcome::Routed(RoutedMessage { listener, shadow, seen, live })
            }
            State::Pending { is_requested, waiting, is_tail_lost } => {
                let bytes = live.message.payload.len();
                if waiting.len() >= PENDING_MESSAGES_MAX || self.pending_bytes + bytes > PENDING_BYTES_MAX {
                    *is_tail_lost = true;
                    return MessageOutcome::LimitReached;
                }
                let block_size = live.block_size();
                self.pending_bytes += bytes;
                waiting.push_back((connection, live));
                let requests = !*is_requested && block_size.is_some();
                *is_requested |= requests;
                let pending = || PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before: None };
                MessageOutcome::Pending(requests.then(pending))
            }
            State::Refused { until, reason } if now < *until => MessageOutcome::Dropped(reason),
            State::Unregistered if stream.connection.is_some_and(|last| connection <= last) => {
                MessageOutcome::Dropped("unregistered")
            }
            State::Refused { .. } | State::Unregistered => self.admit(name, dp_rank, connection, live, now),
        }
    }

    /// A message of a rank that nobody knows, or that may be looked at again.
    fn admit(
        &mut self,
        name: &PodName,
        dp_rank: DpRank,
        connection: ConnectionId,
        live: Live,
        now: Instant,
    ) -> MessageOutcome {
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
        let state =
            State::Pending { is_requested: true, waiting: VecDeque::from([(connection, live)]), is_tail_lost: false };
        let ranks = self.streams.entry(name.clone()).or_default();
        ranks.insert(dp_rank, Stream { state, shadow: None, connection: None });
        MessageOutcome::Pending(Some(PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before }))
    }

    /// Forgets those that were refused or unregistered, at most once in a while.
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

    /// A listener follows a rank from now on; the messages that have waited for it, with what each finds out, and
    /// whether messages after them were dropped.
    pub(crate) fn attach(&mut self, listener: &Arc<Listener>) -> (Vec<(Seen, Live)>, bool) {
        let stream = Stream { state: State::Registered(Arc::clone(listener)), shadow: None, connection: None };
        let ranks = self.streams.entry(listener.pod_name()).or_default();
        let before = ranks.insert(listener.dp_rank, stream).map(|stream| stream.state);
        if before.as_ref().is_some_and(|state| !matches!(state, State::Registered(_))) {
            self.unregistered_ranks -= 1;
        }
        let Some(State::Pending { waiting, is_tail_lost, .. }) = before else { return (Vec::new(), false) };
        self.pending_bytes -= waiting.iter().map(|(_, live)| live.message.payload.len()).sum::<usize>();
        let mut last = None;
        let seen = waiting.into_iter().map(|(connection, live)| {
            let seen = if last.replace(connection) == Some(connection) { Seen::Same } else { Seen::Reconnected };
            (seen, live)
        });
        let seen = seen.collect();
        if let Some(stream) = self.stream_of(listener) {
            stream.connection = last;
        }
        (seen, is_tail_lost)
    }

    /// Messages of some rank of a pod were lost after the last ones: the listeners that follow its ranks.
    pub(crate) fn mark_tail_lost(&mut self, name: &PodName) -> Vec<Arc<Listener>> {
        let mut listeners = Vec::new();
        for stream in self.streams.get_mut(name).into_iter().flat_map(BTreeMap::values_mut) {
            match &mut stream.state {
                State::Registered(listener) => {
                    listeners.extend([&*listener].into_iter().chain(&stream.shadow).map(Arc::clone));
                }
                State::Pending { is_tail_lost, .. } => *is_tail_lost = true,
                State::Refused { .. } | State::Unregistered => {}
            }
        }
        listeners
    }

    /// Another listener follows a rank as well from now on. Whether the connection stands over which it comes; nothing
    /// if nobody follows the rank.
    pub(crate) fn attach_shadow(&mut self, shadow: &Arc<Listener>) -> Option<Connection> {
        let stream = self.stream_of(shadow)?;
        let State::Registered(listener) = &stream.state else { return None };
        let connection = listener.connection();
        stream.shadow = Some(Arc::clone(shadow));
        Some(connection)
    }

    /// The listener that followed a rank beside another one follows it alone.
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

    /// A rank is not followed, for a time. What is to be is_requested again, or else how many of its messages are dropped.
    pub(crate) fn refuse(&mut self, name: &PodName, dp_rank: DpRank, refusal: &Refusal, now: Instant) -> Refused {
        let stream = self.streams.get_mut(name).and_then(|ranks| ranks.get_mut(&dp_rank));
        let Some(state) = stream.map(|stream| &mut stream.state) else { return Refused::Dropped(0) };
        match (state, refusal) {
            // It was registered meanwhile.
            (State::Registered(_), _) => Refused::Dropped(0),
            (State::Pending { is_requested, waiting, .. }, Refusal::BlockSizeUnknown) => {
                let block_size = waiting.iter().find_map(|(_, live)| live.block_size());
                *is_requested = block_size.is_some();
                let pending = || PendingRegistration { name: name.clone(), dp_rank, block_size, refused_before: None };
                is_requested.then(pending).map_or(Refused::Dropped(0), Refused::Retry)
            }
            (State::Refused { .. } | State::Unregistered, Refusal::BlockSizeUnknown) => Refused::Dropped(0),
            (state, Refusal::Refused { reason, .. }) => {
                let refused = State::Refused { until: now + REFUSED_FOR, reason };
                let State::Pending { waiting, .. } = std::mem::replace(state, refused) else {
                    return Refused::Dropped(0);
                };
                self.pending_bytes -= waiting.iter().map(|(_, live)| live.message.payload.len()).sum::<usize>();
                Refused::Dropped(waiting.len())
            }
        }
    }

    /// A listener is no more: its rank is ignored as long as its connection lasts.
    pub(crate) fn detach(&mut self, listener: &Arc<Listener>) {
        let Some(stream) = self.stream_of(listener) else { return };
        // One that was to take another's place only leaves it alone.
        stream.shadow.take_if(|shadow| Arc::ptr_eq(shadow, listener));
        if matches!(&stream.state, State::Registered(followed) if Arc::ptr_eq(followed, listener)) {
            stream.state = State::Unregistered;
            self.unregistered_ranks += 1;
        }
    }

    /// A connection is lost: who was seen over it.
    pub(crate) fn listeners_on(&self, connection: ConnectionId) -> Vec<Arc<Listener>> {
        let streams = self.streams.values().flat_map(BTreeMap::values);
        let seen = streams.filter_map(|stream| match &stream.state {
            State::Registered(listener) if stream.connection == Some(connection) => Some((listener, &stream.shadow)),
            _ => None,
        });
        seen.flat_map(|(listener, shadow)| [listener].into_iter().chain(shadow)).map(Arc::clone).collect()
    }
}
