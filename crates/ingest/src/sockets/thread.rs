//! Socket threads: each owns the sockets of many listeners.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use flash_indexer_curve::Curve;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};
use flash_indexer_types::ConnectionStatus;
use flash_indexer_types::endpoints::HostName;
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::MESSAGE_BYTES_MAX;
use super::pauses::PauseDetector;
use super::replay::{ReplayRequest, ReplaySocket};
use super::resolver::{Addresses, LookupError, Resolver};
use super::subscription::Subscription;
use crate::decoders::{Decoders, Delivery, OnRetired};
use crate::event_source::ConnectError;
use crate::listener::{Listener, ReplayClient};
use crate::log_listener;

/// Interval at which host names are resolved again and abandoned subscriptions are reopened.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A command to a socket thread.
pub(super) enum Command {
    Open(Arc<Listener>, Sender<Result<(), ConnectError>>),
    Close(Arc<Listener>, OnRetired),
    RequestReplay(ReplayRequest),
    CancelReplay(u64),
    /// Addresses of the host of a listener's endpoint.
    HostResolved(u64, Addresses),
    /// Addresses of the host of a listener's replay endpoint, for this request.
    ReplayHostResolved {
        id: u64,
        attempt: u32,
        addresses: Addresses,
    },
    #[cfg(any(test, feature = "fault-injection"))]
    Fail,
    Stop,
}

/// Handle of a socket thread, with the ids of its listeners.
pub(super) struct SocketThread {
    pub(super) mailbox: Mailbox,
    pub(super) listeners: Vec<u64>,
    pub(super) thread: SupervisedThread,
}

/// Sends commands to a socket thread. The queue is bounded by the listeners: a stream has one request at a time.
#[derive(Clone)]
pub(super) struct Mailbox {
    commands: Sender<Command>,
    /// Wakes the thread from its wait for messages.
    waker: Arc<Mutex<zmq::Socket>>,
}

impl Mailbox {
    pub(super) fn send(&self, command: Command) -> Result<(), ConnectError> {
        self.commands.send(command).map_err(|_| ConnectError::Stopping)?;
        // It fails only if a wake-up is queued already.
        let _ = self.waker.lock().send(&b""[..], zmq::DONTWAIT);
        Ok(())
    }
}

impl ReplayClient for Mailbox {
    fn request_replay(&self, listener: Arc<Listener>, attempt: u32, from: u64) {
        // It fails only when the service stops.
        let _ = self.send(Command::RequestReplay(ReplayRequest { listener, attempt, from }));
    }

    fn cancel_replay(&self, listener: u64) {
        // It fails only when the service stops.
        let _ = self.send(Command::CancelReplay(listener));
    }

    #[cfg(any(test, feature = "fault-injection"))]
    fn fail(&self) {
        self.send(Command::Fail).expect("the thread runs");
    }
}

impl SocketThread {
    pub(super) fn start(
        number: usize,
        decoders: Arc<Decoders>,
        resolver: Resolver,
        curve: Option<Arc<Curve>>,
        supervisor: &Supervisor,
    ) -> Result<Self, ConnectError> {
        let context = zmq::Context::new();
        let pair = || -> zmq::Result<(zmq::Socket, zmq::Socket)> {
            let (wake_receiver, waker) = (context.socket(zmq::PAIR)?, context.socket(zmq::PAIR)?);
            wake_receiver.bind("inproc://waker")?;
            waker.connect("inproc://waker")?;
            waker.set_linger(0)?;
            Ok((wake_receiver, waker))
        };
        let (wake_receiver, waker) = pair().map_err(|error| ConnectError::Thread(error.to_string()))?;
        let (sender, commands) = unbounded();
        let mailbox = Mailbox { commands: sender, waker: Arc::new(Mutex::new(waker)) };
        let sockets = SocketLoop {
            context,
            replay_context: zmq::Context::new(),
            waker: wake_receiver,
            commands,
            mailbox: mailbox.clone(),
            resolver,
            curve,
            decoders,
            open: BTreeMap::new(),
            replays: BTreeMap::new(),
            unresolved_replays: BTreeMap::new(),
            reopen_queue: Vec::new(),
            opened: 0,
            last_check: Instant::now(),
            pauses: PauseDetector::new(Instant::now()),
        };
        let run = move |watch: &Arc<Watch>| sockets.run(watch);
        let thread = supervisor.spawn(ThreadKind::EngineSockets, Some(number), run);
        let thread = thread.map_err(|error| ConnectError::Thread(error.to_string()))?;
        Ok(Self { mailbox, listeners: Vec::new(), thread })
    }
}

/// State of a socket thread.
struct SocketLoop {
    context: zmq::Context,
    /// Replay sockets have their own context, because a context has a limit of sockets.
    replay_context: zmq::Context,
    waker: zmq::Socket,
    commands: Receiver<Command>,
    /// Mailbox of this thread, for the resolver's answers.
    mailbox: Mailbox,
    resolver: Resolver,
    curve: Option<Arc<Curve>>,
    decoders: Arc<Decoders>,
    open: BTreeMap<u64, Subscription>,
    /// The running replay of each listener.
    replays: BTreeMap<u64, ReplaySocket>,
    /// Replay requests whose host is being resolved.
    unresolved_replays: BTreeMap<u64, ReplayRequest>,
    /// Listeners whose subscription is to be reopened.
    reopen_queue: Vec<Arc<Listener>>,
    /// Subscriptions opened so far: numbers their monitors.
    opened: u64,
    /// Time of the last check.
    last_check: Instant,
    pauses: PauseDetector,
}

impl SocketLoop {
    fn run(mut self, watch: &Watch) {
        let mut turn = self.decoders.processor_turn();
        while !self.decoders.are_stopping() {
            let ready = watch.guarded(|| self.wait()).unwrap_or_default();
            watch.begin(None);
            match watch.guarded(|| self.serve(ready)) {
                Some(ControlFlow::Continue(())) => {}
                Some(ControlFlow::Break(())) => return,
                None => self.close_all(),
            }
            watch.guarded(|| self.mark_tails_unverified(Instant::now()));
            watch.end();
            turn.yield_if_over();
        }
    }

    /// Receives from the readable sockets, then executes commands.
    fn serve(&mut self, ready: Ready) -> ControlFlow<()> {
        if ready.waker {
            while self.waker.recv_bytes(zmq::DONTWAIT).is_ok() {}
        }
        if self.last_check.elapsed() >= CHECK_INTERVAL {
            self.last_check = Instant::now();
            self.reopen_abandoned();
            self.look_up_hosts();
        }
        for id in ready.sockets {
            if let Some(subscription) = self.open.get_mut(&id) {
                subscription.receive(&self.decoders);
            }
        }
        for id in ready.replays {
            if let Some(replay) = self.replays.get(&id) {
                replay.receive(&self.decoders);
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command)?;
        }
        ControlFlow::Continue(())
    }

    /// If the thread was paused, records that the last messages of each connected engine may be missing. Its stream requests them.
    fn mark_tails_unverified(&mut self, now: Instant) {
        if let Some(shown_from) = self.pauses.turn(now) {
            let listeners = self.open.values().map(|subscription| &subscription.listener);
            let connected = listeners.filter(|listener| listener.connection() == ConnectionStatus::Connected);
            connected.for_each(|listener| self.decoders.mark_tail_unverified(listener, shown_from));
        }
    }

    /// Closes every socket after a panic; the next check reopens the subscriptions. Messages that were received and not
    /// delivered are lost: each stream repairs the gap as after a lost connection.
    fn close_all(&mut self) {
        warn!(listeners = self.open.len(), "reopening sockets to engines: their thread panicked");
        let sent = std::mem::take(&mut self.replays).into_values().map(|replay| replay.request);
        for request in sent.chain(std::mem::take(&mut self.unresolved_replays).into_values()) {
            request.fail(&self.decoders, "the socket thread panicked".to_owned());
        }
        for subscription in std::mem::take(&mut self.open).into_values() {
            let listener = Arc::clone(&subscription.listener);
            if listener.connection() == ConnectionStatus::Connected {
                self.decoders.disconnect(&listener);
            }
            self.reopen_queue.push(listener);
        }
    }

    /// Executes a command. Breaks if the thread has to end.
    fn execute(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Open(listener, reply) => {
                let opened = self.subscribe(listener);
                // It fails if the registration has timed out.
                let _ = reply.send(opened);
                self.look_up_hosts();
            }
            Command::Close(listener, done) => {
                self.open.remove(&listener.id);
                self.cancel_replay(listener.id);
                self.reopen_queue.retain(|queued| queued.id != listener.id);
                self.decoders.deliver(&listener, Delivery::Retire(done));
            }
            Command::RequestReplay(request) => self.start_replay(request),
            Command::CancelReplay(id) => self.cancel_replay(id),
            Command::HostResolved(id, addresses) => {
                if let Some(subscription) = self.open.get_mut(&id) {
                    subscription.connect_to_resolved(addresses);
                }
            }
            Command::ReplayHostResolved { id, attempt, addresses } => {
                if self.unresolved_replays.get(&id).is_some_and(|request| request.attempt == attempt)
                    && let Some(request) = self.unresolved_replays.remove(&id)
                {
                    if let Err(LookupError::Refused { .. }) = addresses {
                        request.listener.model.metrics().limit_reached(Limit::Addresses);
                    }
                    let first = addresses.map(|addresses| addresses[0].clone());
                    self.connect_replay(request, first.map_err(|error| error.to_string()));
                }
            }
            #[cfg(any(test, feature = "fault-injection"))]
            Command::Fail => panic!("a test asked for a failure"),
            Command::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Waits until a socket is readable or a command wakes the thread.
    fn wait(&self) -> Ready {
        let mut items = vec![self.waker.as_poll_item(zmq::POLLIN)];
        items.extend(self.open.values().flat_map(Subscription::poll_items));
        items.extend(self.replays.values().map(ReplaySocket::poll_item));
        if let Err(error) = zmq::poll(&mut items, CHECK_INTERVAL.as_millis() as i64) {
            // Interrupted by a signal: poll again.
            debug!(%error, "failed to poll sockets; retrying");
            return Ready::default();
        }
        let mut ready = Ready { waker: items[0].is_readable(), ..Ready::default() };
        let (subscriptions, replays) = items[1..].split_at(2 * self.open.len());
        for (&id, pair) in self.open.keys().zip(subscriptions.chunks_exact(2)) {
            if pair.iter().any(zmq::PollItem::is_readable) {
                ready.sockets.push(id);
            }
        }
        let readable = self.replays.keys().zip(replays).filter(|(_, item)| item.is_readable());
        ready.replays.extend(readable.map(|(&id, _)| id));
        ready
    }

    fn subscribe(&mut self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        if listener.options.is_bound() {
            return Ok(());
        }
        let endpoint = listener.options.endpoint.clone();
        self.opened += 1;
        let opened = Subscription::open(&self.context, self.opened, listener, self.curve.as_deref());
        let subscription = opened.map_err(|error| match error {
            zmq::Error::EMFILE | zmq::Error::ENOMEM => ConnectError::Exhausted(error.to_string()),
            _ => ConnectError::Endpoint { endpoint, why: error.to_string() },
        })?;
        self.open.insert(subscription.listener.id, subscription);
        Ok(())
    }

    fn cancel_replay(&mut self, id: u64) {
        self.replays.remove(&id);
        self.unresolved_replays.remove(&id);
    }

    fn start_replay(&mut self, request: ReplayRequest) {
        let id = request.listener.id;
        // The socket of an earlier request may still receive its reply.
        self.cancel_replay(id);
        let Some(endpoint) = request.listener.options.replay_endpoint.clone() else { return };
        let Some(name) = HostName::from_endpoint(&endpoint) else { return self.connect_replay(request, Ok(endpoint)) };
        let (mailbox, attempt) = (self.mailbox.clone(), request.attempt);
        self.unresolved_replays.insert(id, request);
        self.resolver.look_up(name, move |addresses| {
            // It fails only when the service stops.
            let _ = mailbox.send(Command::ReplayHostResolved { id, attempt, addresses });
        });
    }

    fn connect_replay(&mut self, request: ReplayRequest, endpoint: Result<String, String>) {
        let sent = endpoint.and_then(|endpoint| {
            let sent = request.send(&self.replay_context, self.curve.as_deref(), &endpoint);
            sent.map_err(|error| format!("failed to request a replay from {endpoint}: {error}"))
        });
        match sent {
            Ok(socket) => drop(self.replays.insert(request.listener.id, ReplaySocket { request, socket })),
            Err(why) => request.fail(&self.decoders, why),
        }
    }

    /// Resolves the host names that are due.
    fn look_up_hosts(&mut self) {
        for (&id, subscription) in &mut self.open {
            if let Some(name) = subscription.name_to_look_up() {
                let mailbox = self.mailbox.clone();
                self.resolver.look_up(name, move |addresses| {
                    // It fails only when the service stops.
                    let _ = mailbox.send(Command::HostResolved(id, addresses));
                });
            }
        }
    }

    /// Reopens subscriptions that ZeroMQ has abandoned.
    fn reopen_abandoned(&mut self) {
        let abandoned = self.open.values().filter(|open| open.is_abandoned() || open.is_refused());
        let abandoned: Vec<_> = abandoned.map(|open| (Arc::clone(&open.listener), open.is_refused())).collect();
        for (listener, is_refused) in abandoned {
            self.open.remove(&listener.id);
            // A refused handshake is counted and logged already. A new socket reads the keys again.
            if !is_refused {
                let why = format!(
                    "ZeroMQ abandoned the connection to {}: a message above {MESSAGE_BYTES_MAX} bytes, or a peer that is not an \
                     engine; reconnecting",
                    listener.options.endpoint
                );
                // A peer that is not an engine fails each time: log with exponential back-off.
                let times = listener.times_rejected(GIVEN_UP) + 1;
                if times.is_power_of_two() {
                    log_listener!(warn, listener, times, error = why.as_str(), "connection abandoned; reconnecting");
                }
                listener.reject(GIVEN_UP, why);
            }
            self.reopen_queue.push(listener);
        }
        for _ in 0..self.reopen_queue.len() {
            // The listeners after it stay queued if this panics.
            let listener = self.reopen_queue.remove(0);
            if let Err(error) = self.subscribe(Arc::clone(&listener)) {
                log_listener!(debug, listener, %error, "failed to open the subscription; retrying");
                listener.reject(GIVEN_UP, error.to_string());
                self.reopen_queue.push(listener);
            }
        }
    }
}

/// Reason label of an abandoned connection.
const GIVEN_UP: &str = "connection_given_up";

/// Sockets that can be read.
#[derive(Default)]
struct Ready {
    waker: bool,
    /// Subscriptions with messages or monitor events.
    sockets: Vec<u64>,
    replays: Vec<u64>,
}
