//! Subscriptions to engines' live messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_curve::Curve;
use flash_indexer_telemetry::metrics::{CurveSocket, Limit};
use flash_indexer_types::ConnectionStatus;
use flash_indexer_types::endpoints::HostName;
use flash_indexer_types::logs::Repeats;
use tracing::warn;

use super::resolver::{Addresses, LookupError};
use super::{BYTES_PER_DELIVERY, CONNECT_TIMEOUT_MS, open_live_socket};
use crate::decoders::Decoders;
use crate::engine_socket::{ConnectionEvent, EngineSocket, MESSAGES_PER_TURN_MAX, receive_from};
use crate::listener::Listener;
use crate::log_listener;
use crate::message::Frames;

const RECONNECT_MS_MIN: i32 = 100;
const RECONNECT_MS_MAX: i32 = 5_000;
const NO_EVENTS: i32 = 0;
/// Reason label of a handshake that failed for a key.
const CURVE_HANDSHAKE: &str = "curve_handshake";
/// Value of the event of a handshake between a side with CURVE and one without it (`ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH`).
const MECHANISM_MISMATCH: u32 = 0x1100_0001;

/// Interval of lookups of a host name while its engine is not connected: the address may have changed.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// ZeroMQ abandons a connection after a message that is too large or malformed. A subscription that does not reconnect
/// for this long after its connection was closed is reopened.
const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// A subscription, owned by its socket thread.
pub(super) struct Subscription {
    pub(super) listener: Arc<Listener>,
    /// Number of its monitor.
    number: u64,
    socket: zmq::Socket,
    monitor: zmq::Socket,
    /// When the connection was closed; none once ZeroMQ reconnects.
    closed_at: Option<Instant>,
    /// Failed attempts to connect.
    failed_connects: Repeats,
    /// Retries of the connection that are not logged yet.
    unlogged_retries: u32,
    lookup: Option<Lookup>,
    /// Whether the engine has a key, so that the connection uses CURVE.
    is_secure: bool,
    /// When the first handshake failed for a key; none after a successful one.
    refused_at: Option<Instant>,
}

/// Lookups of an endpoint's host name.
struct Lookup {
    name: HostName,
    /// Endpoint, by address, that the socket connects to.
    address: Option<String>,
    /// When the last lookup was started.
    started_at: Option<Instant>,
    /// Failed lookups.
    failures: Repeats,
}

impl Subscription {
    pub(super) fn open(
        context: &zmq::Context,
        number: u64,
        listener: Arc<Listener>,
        curve: Option<&Curve>,
    ) -> zmq::Result<Self> {
        let (socket, monitor) = open_live_socket(context, b"", &format!("inproc://monitor-{number}"))?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        socket.set_reconnect_ivl(RECONNECT_MS_MIN)?;
        socket.set_reconnect_ivl_max(RECONNECT_MS_MAX)?;
        let endpoint = &listener.options.endpoint;
        let is_secure = curve.map_or(Ok(false), |curve| curve.secure_client(&socket, endpoint))?;
        let lookup_of = |name| Lookup { name, address: None, started_at: None, failures: Repeats::default() };
        let lookup = HostName::from_endpoint(endpoint).map(lookup_of);
        if lookup.is_none() {
            connect(&socket, endpoint)?;
        }
        Ok(Self {
            listener,
            number,
            socket,
            monitor,
            closed_at: None,
            failed_connects: Repeats::default(),
            unlogged_retries: 0,
            lookup,
            is_secure,
            refused_at: None,
        })
    }

    /// The host name, if a lookup is due. The caller starts the lookup.
    pub(super) fn name_to_look_up(&mut self) -> Option<HostName> {
        let is_connected = self.listener.connection() == ConnectionStatus::Connected;
        let lookup = self.lookup.as_mut().filter(|_| !is_connected)?;
        if lookup.started_at.is_some_and(|started| started.elapsed() < LOOKUP_INTERVAL) {
            return None;
        }
        lookup.started_at = Some(Instant::now());
        Some(lookup.name.clone())
    }

    /// Connects to an address of the host: to the next one if the last one did not respond.
    pub(super) fn connect_to_resolved(&mut self, addresses: Addresses) {
        let Some(lookup) = &mut self.lookup else { return };
        if self.listener.connection() == ConnectionStatus::Connected {
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
                self.listener.reject("unknown_host", format!("failed to connect to {address}: {error}; retrying"));
            }
            self.closed_at = None;
        }
        lookup.address = Some(address);
    }

    /// The socket and its monitor.
    pub(super) fn poll_items(&self) -> [zmq::PollItem<'_>; 2] {
        [self.socket.as_poll_item(zmq::POLLIN), self.monitor.as_poll_item(zmq::POLLIN)]
    }

    /// Whether ZeroMQ no longer reconnects.
    pub(super) fn is_abandoned(&self) -> bool {
        self.closed_at.is_some_and(|ended| ended.elapsed() >= ABANDONED_AFTER)
    }

    /// Whether handshakes fail for a key, which may have been replaced since the socket was opened.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_at.is_some_and(|refused| refused.elapsed() >= ABANDONED_AFTER)
    }

    /// Counts a handshake that failed, if its cause can be a key.
    fn handshake_failed(&mut self, event: zmq::SocketEvent, value: u32) {
        let why = match (self.is_secure, event, value) {
            (false, zmq::SocketEvent::HANDSHAKE_FAILED_PROTOCOL, MECHANISM_MISMATCH) => {
                "the engine requires CURVE; give its public key with --curve-server-keys"
            }
            (false, ..) => return log_listener!(debug, self.listener, "the ZeroMQ handshake with the engine failed"),
            (true, zmq::SocketEvent::HANDSHAKE_FAILED_PROTOCOL, MECHANISM_MISMATCH) => {
                "the engine does not use CURVE; remove its key from --curve-server-keys, or configure the engine"
            }
            (true, zmq::SocketEvent::HANDSHAKE_FAILED_AUTH, _) => {
                "the engine does not admit the public key of --curve-key; add it to the engine's list"
            }
            (true, ..) => {
                "the CURVE handshake failed: the engine has another key than --curve-server-keys says, or does not use CURVE"
            }
        };
        self.refused_at.get_or_insert_with(Instant::now);
        self.listener.model.metrics().curve_handshake_failed(CurveSocket::Dialled);
        let times = self.listener.times_rejected(CURVE_HANDSHAKE) + 1;
        if times.is_power_of_two() {
            log_listener!(warn, self.listener, times, error = why, "failed to connect to the engine");
        }
        self.listener.reject(CURVE_HANDSHAKE, format!("failed to connect to the engine: {why}"));
    }

    /// Delivers some of the received messages and the connection's events to the listener's decoder.
    pub(super) fn receive(&mut self, decoders: &Decoders) {
        let listener = Arc::clone(&self.listener);
        receive_from(self, &listener, decoders);
        // The retries follow the loss of the connection, which is delivered by now.
        let retries = std::mem::take(&mut self.unlogged_retries);
        // A refused handshake has a more precise cause.
        if retries > 0 && self.refused_at.is_none() {
            let endpoint = &listener.options.endpoint;
            listener.connect_failed(format!(
                "failed to connect to {endpoint}; retrying: start the engine, or register the address of its events"
            ));
        }
        for _ in 0..retries {
            match self.failed_connects.count(Instant::now()) {
                Some(times) => log_listener!(warn, self.listener, times, "failed to connect to the engine; retrying"),
                None => log_listener!(debug, self.listener, "failed to connect to the engine; retrying"),
            }
        }
    }
}

impl EngineSocket for Subscription {
    fn read_messages(&mut self, messages_max: usize, deliver: &mut dyn FnMut(Vec<Frames>)) -> Result<(), String> {
        receive_messages(&self.socket, messages_max, deliver).map_err(|error| error.to_string())
    }

    fn connection_events(&mut self) -> Vec<ConnectionEvent> {
        use zmq::SocketEvent as Event;
        let mut events = Vec::new();
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some((code, value)) = frames.first().and_then(|frame| frame.split_first_chunk::<2>()) else { continue };
            let value = value.first_chunk::<4>().map_or(0, |value| u32::from_ne_bytes(*value));
            match Event::from_raw(u16::from_ne_bytes(*code)) {
                Event::CONNECT_RETRIED => {
                    self.closed_at = None;
                    self.unlogged_retries += 1;
                }
                Event::CONNECT_DELAYED | Event::CONNECTED => self.closed_at = None,
                Event::HANDSHAKE_SUCCEEDED => {
                    (self.closed_at, self.refused_at) = (None, None);
                    events.push(ConnectionEvent::Connected);
                }
                Event::DISCONNECTED => {
                    self.closed_at = Some(Instant::now());
                    events.push(ConnectionEvent::Lost);
                }
                event @ (Event::HANDSHAKE_FAILED_PROTOCOL
                | Event::HANDSHAKE_FAILED_NO_DETAIL
                | Event::HANDSHAKE_FAILED_AUTH) => {
                    self.handshake_failed(event, value);
                    self.closed_at = Some(Instant::now());
                }
                _ => {}
            }
        }
        events
    }
}

impl Drop for Subscription {
    /// Stops the monitor before it is closed. ZeroMQ's own threads block until the events of a monitored socket are read:
    /// if the monitor closed first, the event of the closed connection would block every socket of the context for ever.
    fn drop(&mut self) {
        if let Err(error) = self.socket.monitor(&format!("inproc://unmonitored-{}", self.number), NO_EVENTS) {
            warn!(%error, "failed to stop the monitor of a socket");
        }
    }
}

/// Connects to an endpoint with an address or a path.
pub(super) fn connect(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    // With IPv6 on, ZeroMQ would not try the IPv4 addresses of a name that has both.
    socket.set_ipv6(endpoint.contains('['))?;
    socket.connect(endpoint)
}

/// Receives at most `messages_max` queued messages, and delivers them in batches.
pub(super) fn receive_messages(
    socket: &zmq::Socket,
    messages_max: usize,
    mut deliver: impl FnMut(Vec<Frames>),
) -> zmq::Result<()> {
    let (mut batch, mut bytes, mut taken) = (Vec::new(), 0, 0);
    let mut result = Ok(());
    while taken < messages_max {
        match socket.recv_multipart(zmq::DONTWAIT) {
            Ok(frames) => {
                taken += 1;
                bytes += frames.iter().map(Vec::len).sum::<usize>();
                batch.push(frames);
                if bytes >= BYTES_PER_DELIVERY || batch.len() >= MESSAGES_PER_TURN_MAX {
                    deliver(std::mem::take(&mut batch));
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
    if !batch.is_empty() {
        deliver(batch);
    }
    result
}

#[cfg(test)]
mod tests {
    use flash_indexer_sim::{Publisher, PublisherOptions};
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::networks::EngineNetworks;

    use super::super::resolver;
    use super::*;
    use crate::tests::fixture::{Fixture, PATIENCE, RANK, listener_of_first_decoder, payload};

    #[test]
    fn a_host_that_resolves_to_a_refused_address_is_counted_and_reported_as_refused() {
        let fixture = Fixture::start(1, false);
        let listener = fixture.unconnected("tcp://localhost:9", None);
        let metrics = Arc::clone(listener.model.metrics());
        let mut subscription =
            Subscription::open(&zmq::Context::new(), 1, Arc::clone(&listener), None).expect("a socket");
        // An old notation of an address, which the system resolves like a name.
        let name = HostName::from_endpoint("tcp://2852039166:80").expect("a name");
        subscription.connect_to_resolved(resolver::look_up(&name, &EngineNetworks::default()));
        assert_eq!(metrics.limit_reached_count(Limit::Addresses), 1);
        let report = listener.report(RANK);
        assert_eq!(report.rejected.get("refused_address"), Some(&1), "{report:?}");
        let why = report.last_error.as_deref().expect("an error");
        assert!(why.contains("is refused: 169.254.169.254 is a link-local address"), "{why}");
    }

    #[test]
    fn an_engine_that_is_not_there_is_reported_until_it_is_connected() {
        let fixture = Fixture::start(1, false);
        let decoders = Decoders::detached(usize::MAX);
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let endpoint = format!("tcp://{free}");
        let listener = fixture.unconnected(&endpoint, None);
        let context = zmq::Context::new();
        let mut subscription = Subscription::open(&context, 1, Arc::clone(&listener), None).expect("a socket");
        wait_for("the error", PATIENCE, || {
            subscription.receive(&decoders);
            let why = listener.report(RANK).last_error.unwrap_or_default();
            let is_named = why.contains("failed to connect to tcp://127.0.0.1:") && why.contains("start the engine");
            is_named.then_some(())
        });
        let engine = context.socket(zmq::PUB).expect("a socket");
        engine.bind(&endpoint).expect("the port is free");
        wait_for("the connection", PATIENCE, || {
            subscription.receive(&decoders);
            listener.report(RANK).last_error.is_none().then_some(())
        });
    }

    #[test]
    fn messages_of_two_connections_that_are_read_together_are_dropped() {
        let mut fixture = Fixture::start(1, false);
        let decoders = Decoders::detached(usize::MAX);
        let listener = listener_of_first_decoder(&fixture.listener(0));
        let context = zmq::Context::new();
        let mut subscription = Subscription::open(&context, 1, listener, None).expect("a socket");
        let mut kinds = Vec::new();
        wait_for("the connection", PATIENCE, || {
            subscription.receive(&decoders);
            kinds.extend(decoders.take_kinds());
            kinds.contains(&"connected").then_some(())
        });
        assert!(fixture.engines[0].wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
        fixture.engines[0].publish(1, &payload(2)).expect("published");
        wait_for("a message", PATIENCE, || {
            subscription.receive(&decoders);
            kinds.extend(decoders.take_kinds());
            kinds.contains(&"live").then_some(())
        });
        // Nothing is read from here on until the engine has restarted and published the next sequence number.
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
        kinds.clear();
        wait_for("the end of the old connection", PATIENCE, || {
            subscription.receive(&decoders);
            kinds.extend(decoders.take_kinds());
            kinds.contains(&"connected").then_some(())
        });
        assert_eq!(kinds, ["dropped", "disconnected", "connected"], "no message is attributed to either epoch");
    }
}
