//! One subscription to an engine's live messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::resolver::{Addresses, HostName, LookupError};
use super::{
    BYTES_PER_DELIVERY, CONNECT_TIMEOUT_MS, MESSAGE_BYTES_MAX, MESSAGES_PER_TURN_MAX, RECEIVE_QUEUE_UNBOUNDED,
};
use crate::decoders::{Decoders, Delivery, Frames};
use crate::listener::{Connection, Listener};
use crate::log_listener;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::logs::Repeats;

const HEARTBEAT_INTERVAL_MS: i32 = 5_000;
const HEARTBEAT_TIMEOUT_MS: i32 = 15_000;
/// How long an engine keeps a connection over which no heartbeat is received. Longer than the timeout: a service that
/// stood still goes on with the messages that waited, where an engine that had closed the connection drops them.
const HEARTBEAT_TTL_MS: i32 = 120_000;
const RECONNECT_MS_MIN: i32 = 100;
const RECONNECT_MS_MAX: i32 = 5_000;
const NO_EVENTS: i32 = 0;

/// How often a host name is looked up while its engine is not connected: it may have moved.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// ZeroMQ gives a connection up for good after a message that is too large or is no message. One that
/// has ended and shows no attempt to connect again for so long is opened anew.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);

/// A subscription inside its thread.
pub(super) struct Subscription {
    pub(super) listener: Arc<Listener>,
    /// Names its monitor.
    number: u64,
    socket: zmq::Socket,
    monitor: zmq::Socket,
    /// When the connection ended, while nothing shows that it is tried again.
    ended_at: Option<Instant>,
    /// Attempts to connect that failed.
    failed_connects: Repeats,
    lookup: Option<Lookup>,
}

/// The endpoint's host where it is a name, and what is known of it.
struct Lookup {
    name: HostName,
    /// The endpoint by address that the socket connects to.
    address: Option<String>,
    /// When it was last looked up.
    asked_at: Option<Instant>,
    /// Lookups that failed.
    failures: Repeats,
}

impl Subscription {
    pub(super) fn open(context: &zmq::Context, number: u64, listener: Arc<Listener>) -> zmq::Result<Self> {
        let socket = context.socket(zmq::SUB)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
        socket.set_heartbeat_ivl(HEARTBEAT_INTERVAL_MS)?;
        socket.set_heartbeat_timeout(HEARTBEAT_TIMEOUT_MS)?;
        socket.set_heartbeat_ttl(HEARTBEAT_TTL_MS)?;
        socket.set_reconnect_ivl(RECONNECT_MS_MIN)?;
        socket.set_reconnect_ivl_max(RECONNECT_MS_MAX)?;
        socket.set_tcp_keepalive(1)?;
        socket.set_subscribe(b"")?;

        let address = format!("inproc://monitor-{number}");
        socket.monitor(&address, i32::from(zmq::SocketEvent::ALL.to_raw()))?;
        let monitor = context.socket(zmq::PAIR)?;
        monitor.set_linger(0)?;
        monitor.connect(&address)?;
        let endpoint = &listener.options.endpoint;
        let lookup = HostName::of(endpoint).map(|name| Lookup {
            name,
            address: None,
            asked_at: None,
            failures: Repeats::default(),
        });
        if lookup.is_none() {
            connect(&socket, endpoint)?;
        }
        let failed_connects = Repeats::default();
        Ok(Self { listener, number, socket, monitor, ended_at: None, failed_connects, lookup })
    }

    /// The host name, if it is time to look it up; whoever asks does so.
    pub(super) fn name_to_look_up(&mut self) -> Option<HostName> {
        let is_connected = self.listener.connection() == Connection::Connected;
        let lookup = self.lookup.as_mut().filter(|_| !is_connected)?;
        if lookup.asked_at.is_some_and(|asked| asked.elapsed() < LOOKUP_INTERVAL) {
            return None;
        }
        lookup.asked_at = Some(Instant::now());
        Some(lookup.name.clone())
    }

    /// Connects to an address that the host has; to another one than before if that did not answer.
    pub(super) fn looked_up(&mut self, addresses: Addresses) {
        let Some(lookup) = &mut self.lookup else { return };
        if self.listener.connection() == Connection::Connected {
            return;
        }
        let addresses = match addresses {
            Ok(addresses) => addresses,
            Err(error) => {
                let why = error.to_string();
                if let Some(times) = lookup.failures.count(Instant::now()) {
                    log_listener!(warn, self.listener, error = why.as_str(), times, "{}", error.event());
                }
                if let LookupError::Refused { .. } = error {
                    self.listener.model.metrics().limit_reached(Limit::Addresses);
                }
                return self.listener.reject(error.reason(), why);
            }
        };
        let tried = lookup.address.take();
        let at = tried.as_ref().and_then(|tried| addresses.iter().position(|address| address == tried));
        let next = at.map_or(0, |at| (at + 1) % addresses.len());
        let address = addresses[next].clone();
        if tried.as_ref() != Some(&address) {
            let result = tried.map_or(Ok(()), |tried| self.socket.disconnect(&tried));
            log_listener!(debug, self.listener, address = address.as_str(), "connecting to the engine's host");
            if let Err(error) = result.and_then(|()| connect(&self.socket, &address)) {
                log_listener!(warn, self.listener, address = address.as_str(), %error, "failed to connect to the engine's host");
                self.listener.reject("unknown_host", format!("cannot connect to {address}: {error}"));
            }
            self.ended_at = None;
        }
        lookup.address = Some(address);
    }

    /// The socket and its monitor.
    pub(super) fn poll_items(&self) -> [zmq::PollItem<'_>; 2] {
        [self.socket.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)]
    }

    /// Whether ZeroMQ does not try to connect any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.ended_at.is_some_and(|ended| ended.elapsed() >= GIVEN_UP_AFTER)
    }

    /// Hands some of the messages that have arrived, and what the monitor says of the connection, to the listener's
    /// decoder, in the order in which they happened.
    ///
    /// Messages are read before the monitor: those that were read before a loss of the connection shows are of that
    /// connection. If a further connection shows at the same time, this thread was late, and which connection a
    /// message is of cannot be known: these messages are dropped, as messages of two epochs must not be merged.
    pub(super) fn receive(&mut self, decoders: &Decoders) {
        let mut read = Vec::new();
        let mut result = take_messages(&self.socket, MESSAGES_PER_TURN_MAX, |messages| read.push(messages));
        let mut changes = self.connection_changes();
        if changes.contains(&LinkChange::Lost) {
            result = result.and(take_messages(&self.socket, usize::MAX, |messages| read.push(messages)));
            changes.extend(self.connection_changes());
        }
        if let Err(error) = result {
            self.listener.reject("receive_failed", format!("failed to receive: {error}"));
        }
        let lost = changes.iter().position(|&change| change == LinkChange::Lost).unwrap_or(changes.len());
        let (before, after) = changes.split_at(lost);
        before.iter().for_each(|&change| self.take_change(change, decoders));
        let is_clear = !after.contains(&LinkChange::Connected);
        if is_clear && !decoders.are_stopping() {
            for messages in std::mem::take(&mut read) {
                decoders.deliver(&self.listener, Delivery::Live(messages));
            }
        }
        after.iter().for_each(|&change| self.take_change(change, decoders));
        let dropped: usize = read.iter().map(Vec::len).sum();
        if dropped > 0 {
            decoders.drop_live(
                &self.listener,
                dropped,
                "connection_unclear",
                "messages were received around a reconnect",
            );
        }
    }

    /// What the monitor says about the connection since it was last asked.
    fn connection_changes(&mut self) -> Vec<LinkChange> {
        use zmq::SocketEvent as Event;
        let mut changes = Vec::new();
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some(event) = frames.first().and_then(|frame| frame.first_chunk::<2>()) else { continue };
            match Event::from_raw(u16::from_ne_bytes(*event)) {
                Event::CONNECT_RETRIED => {
                    self.ended_at = None;
                    changes.push(LinkChange::Failed);
                }
                Event::CONNECT_DELAYED | Event::CONNECTED => self.ended_at = None,
                Event::HANDSHAKE_SUCCEEDED => {
                    self.ended_at = None;
                    changes.push(LinkChange::Connected);
                }
                Event::DISCONNECTED => {
                    self.ended_at = Some(Instant::now());
                    changes.push(LinkChange::Lost);
                }
                Event::HANDSHAKE_FAILED_PROTOCOL | Event::HANDSHAKE_FAILED_NO_DETAIL => {
                    log_listener!(debug, self.listener, "the ZeroMQ handshake with the engine failed");
                    self.ended_at = Some(Instant::now());
                }
                _ => {}
            }
        }
        changes
    }

    fn take_change(&mut self, change: LinkChange, decoders: &Decoders) {
        match change {
            LinkChange::Failed => match self.failed_connects.count(Instant::now()) {
                Some(times) => log_listener!(warn, self.listener, times, "failed to connect to the engine; retrying"),
                None => log_listener!(debug, self.listener, "failed to connect to the engine; retrying"),
            },
            LinkChange::Connected => {
                self.listener.set_connection(Connection::Connected);
                decoders.deliver(&self.listener, Delivery::Connected);
            }
            LinkChange::Lost if self.listener.connection() == Connection::Connected => {
                self.listener.set_connection(Connection::Disconnected);
                decoders.deliver(&self.listener, Delivery::Disconnected);
            }
            LinkChange::Lost => {}
        }
    }
}

/// What a monitor says about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkChange {
    Connected,
    Lost,
    /// An attempt to connect failed.
    Failed,
}

impl Drop for Subscription {
    /// ZeroMQ's own threads wait until somebody takes what they say of a monitored socket. If a monitor that is
    /// still told of the end of a connection closed first, they would wait for ever, and with them every socket of
    /// the context. So from here on nothing is said.
    fn drop(&mut self) {
        if let Err(error) = self.socket.monitor(&format!("inproc://unmonitored-{}", self.number), NO_EVENTS) {
            warn!("a socket's monitor cannot be silenced: {error}");
        }
    }
}

/// Connects to an endpoint that names an address or a path.
pub(super) fn connect(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    // With IPv6 on, a name that has addresses of both kinds would no longer be tried by IPv4.
    socket.set_ipv6(endpoint.contains('['))?;
    socket.connect(endpoint)
}

/// Takes at most `messages_max` messages that have arrived, and hands them on in lots.
pub(super) fn take_messages(
    socket: &zmq::Socket,
    messages_max: usize,
    mut hand_on: impl FnMut(Vec<Frames>),
) -> zmq::Result<()> {
    let (mut lot, mut bytes, mut taken) = (Vec::new(), 0, 0);
    let mut result = Ok(());
    while taken < messages_max {
        match socket.recv_multipart(zmq::DONTWAIT) {
            Ok(frames) => {
                taken += 1;
                bytes += frames.iter().map(Vec::len).sum::<usize>();
                lot.push(frames);
                if bytes >= BYTES_PER_DELIVERY || lot.len() >= MESSAGES_PER_TURN_MAX {
                    hand_on(std::mem::take(&mut lot));
                    bytes = 0;
                }
            }
            Err(zmq::Error::EAGAIN) => break,
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    if !lot.is_empty() {
        hand_on(lot);
    }
    result
}

#[cfg(test)]
mod tests {
    use flash_indexer_sim::{Publisher, PublisherOptions};
    use flash_indexer_test_support::wait_for;

    use super::super::resolver;
    use super::*;
    use crate::fixture::{Fixture, PATIENCE, RANK, listener_of_first_decoder, payload};

    #[test]
    fn a_host_that_stands_for_a_refused_address_is_counted_and_shown_as_refused() {
        let fixture = Fixture::start(1, false);
        let listener = fixture.listen("tcp://localhost:9", None);
        let metrics = Arc::clone(listener.model.metrics());
        let mut subscription = Subscription::open(&zmq::Context::new(), 1, Arc::clone(&listener)).expect("a socket");
        // An older notation of an address, which the system resolves as any name.
        let name = HostName::of("tcp://2852039166:80").expect("a name");
        subscription.looked_up(resolver::look_up(&name));
        assert_eq!(metrics.limit_reached_count(Limit::Addresses), 1);
        let report = listener.report(RANK);
        assert_eq!(report.rejected.get("refused_address"), Some(&1), "{report:?}");
        let why = report.last_error.as_deref().expect("an error");
        assert!(why.contains("is refused: 169.254.169.254 is a link-local address"), "{why}");
    }

    #[test]
    fn messages_of_two_connections_that_are_read_together_are_dropped() {
        let mut fixture = Fixture::start(1, false);
        let (decoders, delivered) = Decoders::detached();
        let listener = listener_of_first_decoder(&fixture.listener(0));
        let context = zmq::Context::new();
        let mut subscription = Subscription::open(&context, 1, listener).expect("a socket");
        let mut words = Vec::new();
        wait_for("the connection", PATIENCE, || {
            subscription.receive(&decoders);
            words.extend(delivered());
            words.contains(&"connected").then_some(())
        });
        assert!(fixture.engines[0].wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
        fixture.engines[0].publish(1, &payload(2)).expect("published");
        wait_for("a message", PATIENCE, || {
            subscription.receive(&decoders);
            words.extend(delivered());
            words.contains(&"live").then_some(())
        });
        // From here on nothing is read until the engine has started again and published the next number.
        fixture.engines[0].publish(2, &payload(3)).expect("published");
        let options = PublisherOptions {
            endpoint: fixture.engines[0].endpoint().to_owned(),
            replay_endpoint: "tcp://127.0.0.1:*".to_owned(),
            ..PublisherOptions::on_loopback()
        };
        drop(fixture.engines.remove(0));
        let restarted = wait_for("the port", PATIENCE, || Publisher::bind(options.clone()).ok());
        // ZeroMQ subscribes on a new connection when the socket is used next: without reading, as in the middle of a turn.
        let mut subscribers = 0;
        wait_for("both subscriptions", PATIENCE, || {
            subscription.socket.get_events().expect("a socket");
            let has_subscribed = restarted.wait_for_subscriber(Duration::from_millis(10)).expect("a socket");
            subscribers += usize::from(has_subscribed);
            (subscribers == 2).then_some(())
        });
        restarted.publish(3, &payload(9)).expect("published");
        words.clear();
        wait_for("the end of the old connection", PATIENCE, || {
            subscription.receive(&decoders);
            words.extend(delivered());
            words.contains(&"dropped").then_some(())
        });
        let before: Vec<_> = words.iter().take_while(|&&word| word != "dropped").collect();
        assert_eq!(before, [&"disconnected", &"connected"], "no message counts as one of either epoch: {words:?}");
    }
}
