//! The network between engines and one service: live messages, replay requests and connections.
//!
//! A message leaves the engine, travels, waits in a socket of the service, and is read by its socket thread. Each of
//! these moves is a separate step. Messages of one connection keep their order, as ZeroMQ does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use flash_indexer_ingest::{
    BindError, BoundOptions, ConnectError, ConnectionEvent, Decoders, Delivery, EngineSocket, Listener, OnRetired,
    ReplayClient, Transport, receive_from,
};
use flash_indexer_telemetry::supervision::{Step, Steps, Watch};
use parking_lot::Mutex;

/// Number of messages in one delivery.
const MESSAGES_PER_DELIVERY: usize = 4;

/// How the network changes a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transit {
    Intact,
    /// Its payload is cut off.
    Corrupt,
    /// It makes the listener's decoder panic.
    PanicListener,
    /// It makes the decoder's thread panic.
    PanicDecoder,
}

/// A message of an engine on its way.
#[derive(Debug, Clone)]
pub(crate) struct SentMessage {
    pub(crate) epoch: usize,
    pub(crate) sequence: u64,
    pub(crate) payload: Arc<[u8]>,
    pub(crate) transit: Transit,
}

impl SentMessage {
    fn frames(&self) -> Vec<Vec<u8>> {
        let topic: &[u8] = match self.transit {
            Transit::PanicListener => b"fault",
            Transit::PanicDecoder => b"decoder fault",
            Transit::Intact | Transit::Corrupt => b"kv-events",
        };
        let length = if self.transit == Transit::Corrupt { self.payload.len() / 2 } else { self.payload.len() };
        vec![topic.to_vec(), self.sequence.to_be_bytes().to_vec(), self.payload[..length].to_vec()]
    }
}

/// A part of a reply to a replay request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Message(SentMessage),
    /// Frames that are not a message.
    Garbage,
    /// The end.
    End,
}

impl Reply {
    fn frames(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Message(sent) => [vec![Vec::new()], sent.frames()].concat(),
            Self::Garbage => vec![b"?".to_vec()],
            Self::End => vec![Vec::new(), vec![0xff; 8], Vec::new()],
        }
    }
}

/// An open replay request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    attempt: u32,
    pub(crate) from: u64,
}

/// Messages of an engine that a service has read since its listener was opened. They are all the service's information about the engine.
#[derive(Debug, Default)]
pub(crate) struct ReceivedMessages {
    /// Newest epoch with a message that the service has read.
    pub(crate) epoch: Option<usize>,
    /// One more than the highest live sequence number read, by epoch.
    pub(crate) live_end: BTreeMap<usize, u64>,
    /// The same for messages that are certainly of the current connection.
    connection_end: BTreeMap<usize, u64>,
    /// Whether messages that are read now may be of a lost connection.
    is_connection_unclear: bool,
    /// Whether the last event of the connection was that it was lost, or none.
    pub(crate) is_lost: bool,
    /// Whether a message made a decoder panic.
    pub(crate) has_panicked: bool,
    /// Whether a message could not be decoded.
    pub(crate) has_corrupt: bool,
    /// Whether parts of replies may be queued.
    pub(crate) has_queued_replies: bool,
    /// Newest epoch with a reply that began above the requested number: the service treats the messages before it as lost.
    pub(crate) truncated_epoch: Option<usize>,
}

impl ReceivedMessages {
    fn read(&mut self, sent: &SentMessage) {
        self.epoch = self.epoch.max(Some(sent.epoch));
        raise(&mut self.live_end, sent.epoch, sent.sequence + 1);
        if !self.is_connection_unclear {
            raise(&mut self.connection_end, sent.epoch, sent.sequence + 1);
        }
        self.has_panicked |= matches!(sent.transit, Transit::PanicListener | Transit::PanicDecoder);
        self.has_corrupt |= sent.transit == Transit::Corrupt;
    }

    /// Inherits the messages that the service has read through the subscription that this one replaces.
    fn inherit(&mut self, former: Self) {
        self.epoch = self.epoch.max(former.epoch);
        former.live_end.into_iter().for_each(|(epoch, end)| raise(&mut self.live_end, epoch, end));
    }

    /// Handles a request of messages from the start. Without a delivered message the service cannot compare the epoch of
    /// messages that it has read on earlier connections: the end of the reply shows which messages there are.
    fn start_over(&mut self) {
        self.live_end = self.connection_end.clone();
    }
}

/// Raises the number of an epoch or an engine to at least this one.
pub(crate) fn raise(all: &mut BTreeMap<usize, u64>, key: usize, number: u64) {
    let known = all.entry(key).or_default();
    *known = number.max(*known);
}

/// The connections of one listener to its engine.
#[derive(Default)]
pub(crate) struct Link {
    /// The service's listener, once its socket is open.
    pub(crate) listener: Option<Arc<Listener>>,
    /// Whether the network permits connections.
    pub(crate) is_reachable: bool,
    /// Present address of the engine: a listener of another one does not connect.
    pub(crate) host: usize,
    is_connected: bool,
    /// Live messages on their way.
    pub(crate) in_flight: VecDeque<SentMessage>,
    /// Live messages that the service can read.
    socket: VecDeque<SentMessage>,
    events: Vec<ConnectionEvent>,
    pub(crate) request: Option<Request>,
    /// The last request, until a message of its reply is read.
    unanswered: Option<Request>,
    /// Parts of the reply on their way, with the number of their request.
    reply: VecDeque<(u32, Reply)>,
    /// Parts of the reply that the service can read.
    replayed: VecDeque<(u32, Reply)>,
    pub(crate) known: ReceivedMessages,
    /// A second subscription, while the instance is rebuilt.
    shadow: Option<Box<Link>>,
}

impl Link {
    /// The link of a service that has not opened its socket.
    pub(crate) fn new(is_reachable: bool, host: usize) -> Self {
        Self { is_reachable, host, ..Self::default() }
    }

    /// Whether its listener has the engine's present address, and the network permits the connection.
    pub(crate) fn is_open(&self) -> bool {
        self.is_reachable && self.listener.as_ref().is_some_and(|open| host_of(open) == self.host)
    }

    /// An engine publishes a message to the subscription.
    pub(crate) fn publish(&mut self, sent: SentMessage) {
        if let Some(shadow) = &mut self.shadow {
            shadow.publish(sent.clone());
        }
        if self.is_connected {
            self.in_flight.push_back(sent);
        }
    }

    /// Moves live messages into the socket of the service.
    pub(crate) fn deliver(&mut self, count: usize) {
        self.shadow.iter_mut().for_each(|shadow| shadow.deliver(count));
        let count = count.min(self.in_flight.len());
        self.socket.extend(self.in_flight.drain(..count));
    }

    /// Loses live messages on their way: the oldest ones, or the newest ones as a publisher whose queue is full.
    pub(crate) fn lose(&mut self, count: usize, is_newest: bool) {
        let count = count.min(self.in_flight.len());
        let first = if is_newest { self.in_flight.len() - count } else { 0 };
        self.in_flight.drain(first..first + count);
    }

    /// Repeats the next live message directly after itself.
    pub(crate) fn duplicate(&mut self) {
        if let Some(next) = self.in_flight.front().cloned() {
            self.in_flight.insert(1, next);
        }
    }

    /// Changes the next live message.
    pub(crate) fn damage(&mut self, transit: Transit) {
        if let Some(next) = self.in_flight.front_mut() {
            next.transit = transit;
        }
    }

    pub(crate) fn connect(&mut self) {
        self.is_reachable = true;
        self.shadow.iter_mut().for_each(|shadow| shadow.connect());
        if self.is_open() && !self.is_connected {
            self.is_connected = true;
            self.events.push(ConnectionEvent::Connected);
        }
    }

    /// Ends the connection after `kept` more of the live messages on their way.
    pub(crate) fn disconnect(&mut self, kept: usize) {
        self.shadow.iter_mut().for_each(|shadow| shadow.disconnect(kept));
        self.is_reachable = false;
        self.request = None;
        self.reply.clear();
        if self.is_connected {
            self.deliver(kept);
            self.in_flight.clear();
            self.is_connected = false;
            self.events.push(ConnectionEvent::Lost);
        }
    }

    /// Moves the engine to another address. Messages on their way are lost.
    pub(crate) fn move_to(&mut self, host: usize) {
        self.shadow.iter_mut().for_each(|shadow| shadow.move_to(host));
        let is_reachable = self.is_reachable;
        self.disconnect(0);
        (self.is_reachable, self.host) = (is_reachable, host);
    }

    /// Answers the open requests with the parts that follow from their first message.
    pub(crate) fn answer(&mut self, reply: impl Fn(u64) -> Vec<Reply>) {
        if let Some(shadow) = &mut self.shadow {
            shadow.answer(&reply as &dyn Fn(u64) -> Vec<Reply>);
        }
        let is_open = self.is_open();
        if let Some(request) = self.request.take_if(|_| is_open) {
            self.reply.extend(reply(request.from).into_iter().map(|part| (request.attempt, part)));
        }
    }

    /// Moves parts of the reply into the replay socket of the service.
    pub(crate) fn deliver_reply(&mut self, count: usize) {
        self.shadow.iter_mut().for_each(|shadow| shadow.deliver_reply(count));
        let count = count.min(self.reply.len());
        self.replayed.extend(self.reply.drain(..count));
    }

    /// Whether a request is not answered completely yet.
    pub(crate) fn is_awaiting_reply(&self) -> bool {
        self.request.is_some() || !self.reply.is_empty()
    }

    /// Whether anything is on its way, and can arrive.
    pub(crate) fn is_busy(&self) -> bool {
        let is_busy = self.is_awaiting_reply() || !self.in_flight.is_empty();
        (self.is_open() && is_busy) || self.shadow.as_ref().is_some_and(|shadow| shadow.is_busy())
    }

    fn open(&mut self, listener: Arc<Listener>) {
        let (is_reachable, host) = (self.is_reachable, self.host);
        let shadow = self.shadow.take();
        *self = Self { listener: Some(listener), shadow, ..Self::new(is_reachable, host) };
        self.known.is_lost = true;
        if is_reachable {
            self.connect();
        }
    }

    fn open_shadow(&mut self, listener: Arc<Listener>) {
        let shadow = self.shadow.insert(Box::new(Self::new(self.is_reachable, self.host)));
        shadow.open(listener);
    }

    /// Closes a listener. If there was a second one, it remains as the only one.
    fn close(&mut self, listener: u64) {
        if self.is_of(listener) {
            let former = std::mem::replace(self, Self::new(self.is_reachable, self.host));
            if let Some(shadow) = former.shadow {
                *self = *shadow;
                self.known.inherit(former.known);
            }
        } else {
            self.shadow.take_if(|shadow| shadow.is_of(listener));
        }
    }

    /// The subscription of a listener.
    fn of_listener(&mut self, listener: u64) -> Option<&mut Self> {
        if self.is_of(listener) {
            return Some(self);
        }
        self.shadow.as_deref_mut().filter(|shadow| shadow.is_of(listener))
    }

    fn cancel(&mut self) {
        self.request = None;
        self.reply.clear();
        self.replayed.clear();
    }
}

impl EngineSocket for Link {
    fn read_messages(&mut self, messages_max: usize, deliver: &mut dyn FnMut(Vec<Vec<Vec<u8>>>)) -> Result<(), String> {
        let count = messages_max.min(self.socket.len());
        let read: Vec<SentMessage> = self.socket.drain(..count).collect();
        read.iter().for_each(|sent| self.known.read(sent));
        read.chunks(MESSAGES_PER_DELIVERY).for_each(|batch| deliver(batch.iter().map(SentMessage::frames).collect()));
        Ok(())
    }

    fn connection_events(&mut self) -> Vec<ConnectionEvent> {
        let events = std::mem::take(&mut self.events);
        if let Some(last) = events.last() {
            self.known.is_lost = *last == ConnectionEvent::Lost;
        }
        // Messages that the service reads before its next request may be of the lost connection.
        self.known.is_connection_unclear = events.contains(&ConnectionEvent::Lost);
        if self.known.is_connection_unclear {
            self.known.connection_end.clear();
        }
        events
    }
}

/// The links of one service, by the number of the engine.
pub(crate) type Links = Arc<Mutex<Vec<Link>>>;

/// A command to the socket thread.
enum Command {
    Open { listener: Arc<Listener>, is_shadow: bool },
    Close(Arc<Listener>, OnRetired),
    Request { listener: u64, attempt: u32, from: u64 },
    Cancel(u64),
}

/// The connections of one service, as its registry uses them.
#[derive(Clone)]
pub(crate) struct SimulatedTransport {
    commands: Sender<Command>,
    opens_shadows: Arc<AtomicBool>,
}

/// Creates the transport of a service, and the thread that owns its sockets. `opens_shadows` is whether newly opened
/// listeners are of an instance that is rebuilt.
pub(crate) fn transport(
    links: &Links,
    decoders: Arc<Decoders>,
    opens_shadows: &Arc<AtomicBool>,
) -> (SimulatedTransport, SocketSteps) {
    let (sender, commands) = unbounded();
    let transport = SimulatedTransport { commands: sender, opens_shadows: Arc::clone(opens_shadows) };
    (transport, SocketSteps { commands, links: Arc::clone(links), decoders })
}

impl Transport for SimulatedTransport {
    fn bind(&self, _options: &BoundOptions) -> Result<Vec<String>, BindError> {
        Err(std::io::Error::other("the simulation has no bound socket").into())
    }

    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        listener.set_replay_client(Box::new(self.clone()));
        let is_shadow = self.opens_shadows.load(Relaxed);
        self.commands.send(Command::Open { listener, is_shadow }).map_err(|_| ConnectError::Stopping)
    }

    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool {
        self.commands.send(Command::Close(Arc::clone(listener), retired)).is_ok()
    }

    fn stop(&self, _deadline: Instant) {}
}

impl ReplayClient for SimulatedTransport {
    fn request_replay(&self, listener: Arc<Listener>, attempt: u32, from: u64) {
        // It fails only when the service stops.
        let _ = self.commands.send(Command::Request { listener: listener.id, attempt, from });
    }

    fn cancel_replay(&self, listener: u64) {
        // It fails only when the service stops.
        let _ = self.commands.send(Command::Cancel(listener));
    }

    fn fail(&self) {
        // The thread of simulated sockets does not panic.
    }
}

/// The thread that owns the sockets of a service.
pub(crate) struct SocketSteps {
    commands: Receiver<Command>,
    links: Links,
    decoders: Arc<Decoders>,
}

/// Port of the first engine. The number of an engine's port is the engine's number.
pub(crate) const FIRST_PORT: usize = 5_000;

/// Last part of the address of a listener's endpoint.
fn host_of(listener: &Listener) -> usize {
    let address = listener.options.endpoint.rsplit(':').nth(1).and_then(|address| address.rsplit('.').next());
    address.and_then(|host| host.parse().ok()).expect("an endpoint of the simulation has an address")
}

/// Number of the engine at an endpoint.
pub(crate) fn engine_at(endpoint: &str) -> usize {
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse::<usize>().ok());
    port.expect("an endpoint of the simulation has a port") - FIRST_PORT
}

impl SocketSteps {
    fn execute(&self, links: &mut [Link], command: Command) {
        match command {
            Command::Open { listener, is_shadow } => {
                let link = &mut links[engine_at(&listener.options.endpoint)];
                if is_shadow { link.open_shadow(listener) } else { link.open(listener) }
            }
            Command::Close(listener, retired) => {
                links[engine_at(&listener.options.endpoint)].close(listener.id);
                self.decoders.deliver(&listener, Delivery::Retire(retired));
            }
            Command::Request { listener, attempt, from } => {
                if let Some(link) = links.iter_mut().find_map(|link| link.of_listener(listener)) {
                    link.cancel();
                    link.request = Some(Request { attempt, from });
                    link.unanswered = link.request;
                    if from == 0 {
                        link.known.start_over();
                    }
                }
            }
            Command::Cancel(listener) => {
                links.iter_mut().filter_map(|link| link.of_listener(listener)).for_each(Link::cancel);
            }
        }
    }
}

impl Link {
    fn is_of(&self, listener: u64) -> bool {
        self.listener.as_ref().is_some_and(|open| open.id == listener)
    }

    /// Reads what can be read. Returns whether there was anything.
    fn read(&mut self, decoders: &Decoders) -> bool {
        let has_read = self.shadow.as_mut().is_some_and(|shadow| shadow.read(decoders));
        let Some(listener) = self.listener.clone() else { return has_read };
        let is_ready = !self.socket.is_empty() || !self.events.is_empty();
        if is_ready {
            receive_from(self, &listener, decoders);
        }
        let count = self.replayed.len().min(MESSAGES_PER_DELIVERY);
        let parts: Vec<_> = self.replayed.drain(..count).collect();
        let Some(&(attempt, _)) = parts.first() else { return is_ready || has_read };
        self.known.has_queued_replies = true;
        for (_, part) in &parts {
            if let Reply::Message(sent) = part {
                self.known.epoch = self.known.epoch.max(Some(sent.epoch));
                let answered = self.unanswered.take_if(|request| request.attempt == attempt);
                if answered.is_some_and(|request| request.from < sent.sequence) {
                    self.known.truncated_epoch = self.known.truncated_epoch.max(Some(sent.epoch));
                }
            }
        }
        let messages = parts.iter().map(|(_, part)| part.frames()).collect();
        decoders.deliver(&listener, Delivery::Replayed { attempt, messages });
        true
    }
}

impl Steps for SocketSteps {
    /// Reads from each socket, then executes the commands.
    fn step(&mut self, _watch: &Arc<Watch>) -> Step {
        let mut links = self.links.lock();
        let mut step = Step::Idle;
        for link in links.iter_mut() {
            if link.read(&self.decoders) {
                step = Step::Worked;
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            step = Step::Worked;
            self.execute(&mut links, command);
        }
        step
    }
}
