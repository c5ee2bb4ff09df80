//! Table of open connections and the choice of connections to evict at the limit.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::task::Waker;
use std::time::{Duration, Instant};

use flash_indexer_telemetry::metrics::{Limit, Metrics};
use parking_lot::Mutex;
use tracing::debug;

use super::polled_again::RequestCounts;

/// Time without a complete request after which a connection is slow, and evicted before any other.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Longest time for which a client may leave its pending answers unread.
pub(crate) const UNREAD_DEADLINE: Duration = Duration::from_secs(60);
/// At most one in this number of all connections is evicted at a time because it is slow. The search is linear in all
/// connections, so it should free more than one.
const SLOW_SHARE: usize = 64;

/// Open connections of one listener, by number in the order of acceptance.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    started: Instant,
    connections_max: usize,
    connections: Mutex<ConnectionTable>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    by_number: BTreeMap<u64, Arc<ConnectionState>>,
}

/// Activity of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    number: u64,
    client: IpAddr,
    listener_started: Instant,
    /// Requests in flight: their head was read, and their response is not finished.
    requests: AtomicUsize,
    /// Requests in flight whose body is being read.
    reading: AtomicUsize,
    /// Heads of requests read since the connection was accepted.
    heads: AtomicU64,
    has_answered: AtomicBool,
    /// Time of acceptance or of the last response, in milliseconds since the listener started.
    since_ms: AtomicU64,
    /// Answers, or parts of them, that wait for the client to read.
    unread: AtomicUsize,
    /// Time at which one began to wait while no other waited, or at which the client last read, in milliseconds since the
    /// listener started.
    read_ms: AtomicU64,
    is_evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl OpenConnections {
    pub(crate) fn new(connections_max: usize, metrics: &Arc<Metrics>) -> Arc<Self> {
        Self::started_at(Instant::now(), connections_max, metrics)
    }

    fn started_at(started: Instant, connections_max: usize, metrics: &Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { started, connections_max, connections: Mutex::default(), metrics: Arc::clone(metrics) })
    }

    pub(crate) fn open(&self, client: IpAddr) -> Arc<ConnectionState> {
        let mut connections = self.connections.lock();
        let number = connections.next;
        connections.next += 1;
        let state = Arc::new(ConnectionState {
            number,
            client: network(client),
            listener_started: self.started,
            requests: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
            heads: AtomicU64::new(0),
            has_answered: AtomicBool::new(false),
            since_ms: AtomicU64::new(elapsed_ms(self.started)),
            unread: AtomicUsize::new(0),
            read_ms: AtomicU64::new(0),
            is_evicted: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        connections.by_number.insert(number, Arc::clone(&state));
        state
    }

    pub(crate) fn close(&self, state: &ConnectionState) {
        self.connections.lock().by_number.remove(&state.number);
    }

    /// Evicts a connection whose client has not read its answers for too long, and counts it. Returns whether it did.
    pub(crate) fn evict_unread(&self, state: &ConnectionState) -> bool {
        let is_overdue = state.is_unread_for(UNREAD_DEADLINE);
        if is_overdue {
            state.is_evicted.store(true, Relaxed);
            self.metrics.limit_reached(Limit::UnreadAnswers);
            debug!(client = %state.client, "connection closed: the client does not read its responses");
        }
        is_overdue
    }

    /// Evicts connections for a waiting one. Returns their number, 0 if a request is in flight on each connection.
    ///
    /// Slow connections are evicted first, in the order of acceptance. If none is slow, the client with the most
    /// connections loses the one that has been idle for longest.
    pub(crate) fn evict(&self) -> usize {
        let connections = self.connections.lock();
        let idle = || connections.by_number.values().filter(|state| state.is_idle());
        let now = elapsed_ms(self.started);
        let is_slow = |state: &&Arc<ConnectionState>| {
            !state.has_answered.load(Relaxed)
                && now.saturating_sub(state.since_ms.load(Relaxed)) >= SLOW_AFTER.as_millis() as u64
        };
        // Numbers are in the order in which connections were accepted.
        let slow: Vec<_> = idle().filter(is_slow).take((self.connections_max / SLOW_SHARE).max(1)).cloned().collect();
        let evicted = if slow.is_empty() { longest_idle(idle()).into_iter().collect() } else { slow };
        drop(connections);
        evicted.iter().for_each(|state| state.evict());
        evicted.len()
    }
}

fn longest_idle<'s>(idle: impl Iterator<Item = &'s Arc<ConnectionState>>) -> Option<Arc<ConnectionState>> {
    let mut clients: HashMap<IpAddr, (usize, &Arc<ConnectionState>)> = HashMap::new();
    for state in idle {
        let (count, oldest) = clients.entry(state.client).or_insert((0, state));
        *count += 1;
        if state.since_ms.load(Relaxed) < oldest.since_ms.load(Relaxed) {
            *oldest = state;
        }
    }
    clients.into_values().max_by_key(|(count, _)| *count).map(|(_, oldest)| Arc::clone(oldest))
}

/// Key of a client: its IPv4 address, or the /64 network of its IPv6 address.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl ConnectionState {
    fn is_idle(&self) -> bool {
        let is_answering = self.requests.load(Relaxed) > self.reading.load(Relaxed);
        !is_answering && !self.is_evicted.load(Relaxed)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Relaxed);
        // The lock orders the flag before the task's next check, which stores its waker under the same lock.
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the connection is evicted. If not, the waker is notified when it is.
    pub(crate) fn is_evicted(&self, waker: &Waker) -> bool {
        let mut stored = self.waker.lock();
        if self.is_evicted.load(Relaxed) {
            return true;
        }
        match stored.as_mut() {
            Some(known) => known.clone_from(waker),
            None => *stored = Some(waker.clone()),
        }
        false
    }

    /// Number of heads read; none while a request is in flight.
    pub(crate) fn heads_if_between_requests(&self) -> Option<u64> {
        (self.requests.load(Relaxed) == 0).then(|| self.heads.load(Relaxed))
    }

    /// Records a response, or a byte on a connection whose requests are not reported.
    pub(crate) fn record_activity(&self) {
        self.has_answered.store(true, Relaxed);
        self.since_ms.store(elapsed_ms(self.listener_started), Relaxed);
    }

    /// Records that the client has read a part of an answer.
    pub(crate) fn record_read(&self) {
        self.read_ms.store(elapsed_ms(self.listener_started), Relaxed);
    }

    fn is_unread_for(&self, time: Duration) -> bool {
        self.unread.load(Relaxed) > 0
            && elapsed_ms(self.listener_started).saturating_sub(self.read_ms.load(Relaxed)) >= time.as_millis() as u64
    }
}

/// Handle of the connection that carries a request.
#[derive(Debug, Clone)]
pub struct ConnectionHandle(pub(crate) Arc<ConnectionState>);

impl ConnectionHandle {
    /// Address of the client, or its IPv6 network.
    #[must_use]
    pub fn client(&self) -> IpAddr {
        self.0.client
    }

    /// Marks a request as in flight until the guard is dropped.
    #[must_use]
    pub fn request(&self) -> RequestGuard {
        self.0.heads.fetch_add(1, Relaxed);
        self.0.requests.fetch_add(1, Relaxed);
        RequestGuard(Arc::clone(&self.0))
    }

    /// Requests of the connection. One that begins or ends on another thread meanwhile may be counted either way.
    pub(crate) fn request_counts(&self) -> RequestCounts {
        let in_flight = self.0.requests.load(Relaxed) as u64;
        let begun = self.0.heads.load(Relaxed);
        RequestCounts { begun, finished: begun.saturating_sub(in_flight) }
    }

    /// Marks a request's body as being read until the guard is dropped.
    #[must_use]
    pub fn reading(&self) -> ReadingGuard {
        self.0.reading.fetch_add(1, Relaxed);
        ReadingGuard(Arc::clone(&self.0))
    }

    /// Marks an answer, or a part of one, as waiting for the client to read until the guard is dropped. If the client reads
    /// none of its answers for [`UNREAD_DEADLINE`], the connection is closed.
    #[must_use]
    pub fn unread(&self) -> UnreadGuard {
        if self.0.unread.fetch_add(1, Relaxed) == 0 {
            self.0.record_read();
        }
        UnreadGuard(Arc::clone(&self.0))
    }

    /// Answers, or parts of them, that wait for the client to read.
    #[must_use]
    pub fn unread_count(&self) -> usize {
        self.0.unread.load(Relaxed)
    }
}

#[cfg(test)]
impl ConnectionState {
    /// A connection of a listener that started this time ago, with an answer that has waited for its client since then.
    pub(crate) fn with_unread_answer(
        waited: Duration,
        client: IpAddr,
    ) -> (Arc<OpenConnections>, Arc<Self>, UnreadGuard) {
        let metrics = Arc::new(Metrics::new(flash_indexer_telemetry::metrics::MetricNames::Own));
        let started = Instant::now().checked_sub(waited).expect("the machine runs for longer");
        let open = OpenConnections::started_at(started, 1, &metrics);
        let state = open.open(client);
        let unread = ConnectionHandle(Arc::clone(&state)).unread();
        state.read_ms.store(0, Relaxed);
        (open, state, unread)
    }

    /// Whether the client has read since the listener started.
    pub(crate) fn has_read(&self) -> bool {
        self.read_ms.load(Relaxed) > 0
    }
}

/// Guard of an answer, or a part of one, that waits for the client to read.
#[derive(Debug)]
pub struct UnreadGuard(Arc<ConnectionState>);

impl Drop for UnreadGuard {
    fn drop(&mut self) {
        self.0.record_read();
        self.0.unread.fetch_sub(1, Relaxed);
    }
}

/// Guard of a request in flight.
#[derive(Debug)]
pub struct RequestGuard(Arc<ConnectionState>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.record_activity();
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

/// Guard of a body that is being read.
#[derive(Debug)]
pub struct ReadingGuard(Arc<ConnectionState>);

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        self.0.reading.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_telemetry::metrics::MetricNames;

    use super::*;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(MetricNames::Own))
    }

    fn connect(open: &OpenConnections, client: &str) -> Arc<ConnectionState> {
        open.open(client.parse().expect("an address"))
    }

    fn evicted(states: &[&Arc<ConnectionState>]) -> Vec<bool> {
        states.iter().map(|state| state.is_evicted.load(Relaxed)).collect()
    }

    #[test]
    fn the_client_with_most_connections_loses_its_longest_idle_one() {
        let open = OpenConnections::new(4, &metrics());
        let (a, b) = (connect(&open, "10.0.0.1"), connect(&open, "10.0.0.2"));
        let (c, d) = (connect(&open, "10.0.0.2"), connect(&open, "2001:db8::1"));
        a.since_ms.store(0, Relaxed);
        [&a, &b, &c, &d].iter().for_each(|state| state.has_answered.store(true, Relaxed));
        b.since_ms.store(20, Relaxed);
        c.since_ms.store(10, Relaxed);
        assert_eq!(open.evict(), 1);
        assert_eq!(evicted(&[&a, &b, &c, &d]), [false, false, true, false]);
    }

    #[test]
    fn a_connection_with_a_request_in_flight_is_not_evicted() {
        let open = OpenConnections::new(2, &metrics());
        let (in_flight, reading) = (connect(&open, "10.0.0.1"), connect(&open, "10.0.0.1"));
        let _request = ConnectionHandle(Arc::clone(&in_flight)).request();
        let handle = ConnectionHandle(Arc::clone(&reading));
        let request = handle.request();
        let body = handle.reading();
        assert_eq!(open.evict(), 1);
        assert_eq!(evicted(&[&in_flight, &reading]), [false, true]);
        drop((body, request));
        open.close(&reading);
        assert_eq!(open.evict(), 0, "no connection can be evicted");
    }

    #[test]
    fn a_connection_is_closed_when_its_client_reads_no_answer_for_too_long() {
        let metrics = metrics();
        let started = Instant::now().checked_sub(2 * UNREAD_DEADLINE).expect("the machine runs for longer");
        let open = OpenConnections::started_at(started, 4, &metrics);
        let (unread, read, answered) =
            (connect(&open, "10.0.0.1"), connect(&open, "10.0.0.1"), connect(&open, "10.0.0.1"));
        let handles = [&unread, &read, &answered].map(|state| ConnectionHandle(Arc::clone(state)));
        let [first, parts, last] = handles.map(|handle| [handle.unread(), handle.unread()]);
        for state in [&unread, &read, &answered] {
            assert!(!open.evict_unread(state), "its answers begin to wait");
            state.read_ms.store(0, Relaxed);
        }
        let [part, _rest] = parts;
        drop((part, last));
        for state in [&read, &answered] {
            assert!(!open.evict_unread(state), "its client has read");
        }
        answered.read_ms.store(0, Relaxed);
        assert!(!open.evict_unread(&answered), "no answer waits");
        assert!(open.evict_unread(&unread));
        assert_eq!(evicted(&[&unread, &read, &answered]), [true, false, false]);
        assert_eq!(metrics.limit_reached_count(Limit::UnreadAnswers), 1);
        drop(first);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| network(text.parse().expect("an address")));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], network("2001:db8:0:1::1".parse().expect("an address")));
        assert_eq!(network("::ffff:10.0.0.1".parse().expect("an address")), IpAddr::from([10, 0, 0, 1]));
    }
}
