//! The connections that are open, and which of them make room when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A connection that has sent no whole request for so long makes room before any other.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// One in this number of all connections is the most that makes room at a time because it is slow. The search walks over
/// all connections.
const SLOW_SHARE: usize = 64;

/// Open connections of one listener, by number.
#[derive(Debug)]
pub(super) struct OpenConnections {
    started: Instant,
    connections_max: usize,
    connections: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    by_number: BTreeMap<u64, Arc<ConnectionState>>,
}

/// What is known of a connection beside its bytes.
#[derive(Debug)]
pub(super) struct ConnectionState {
    number: u64,
    client: IpAddr,
    listener_started: Instant,
    /// Requests of which the head was read and that are not answered.
    requests: AtomicUsize,
    /// Of these, requests of which the body is being read.
    reading: AtomicUsize,
    /// Requests of which the head was read, ever.
    heads: AtomicU64,
    has_answered: AtomicBool,
    /// When it was accepted or last answered a request, in milliseconds since the listener started.
    since_ms: AtomicU64,
    is_evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl OpenConnections {
    pub(super) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), connections_max, connections: Mutex::default() })
    }

    pub(super) fn open(&self, client: IpAddr) -> Arc<ConnectionState> {
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
            is_evicted: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        connections.by_number.insert(number, Arc::clone(&state));
        state
    }

    pub(super) fn close(&self, state: &ConnectionState) {
        self.connections.lock().by_number.remove(&state.number);
    }

    /// Closes connections for one that waits; how many. None where each one is being answered.
    ///
    /// Connections that have sent no whole request for a second go first, the oldest ones before the others. Without
    /// them it is one connection of the client that has most, the one that was idle for longest.
    pub(super) fn make_room(&self) -> usize {
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

/// A client's address, or the network that one client has under IPv6.
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
        // A lock orders the flag before the next look of the connection's task, which stores its waker under it.
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it is to end; if not, the task is woken when it is.
    pub(super) fn is_evicted(&self, waker: &Waker) -> bool {
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

    /// Requests of which the head was read; none while one of them is not answered.
    pub(super) fn heads_if_between_requests(&self) -> Option<u64> {
        (self.requests.load(Relaxed) == 0).then(|| self.heads.load(Relaxed))
    }

    /// Something moved, on a connection whose requests are not seen one by one.
    pub(super) fn moved(&self) {
        self.has_answered.store(true, Relaxed);
        self.since_ms.store(elapsed_ms(self.listener_started), Relaxed);
    }

    fn begin(&self) {
        self.heads.fetch_add(1, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    fn end(&self) {
        self.moved();
        self.requests.fetch_sub(1, Relaxed);
    }
}

/// The connection of a request.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandle(pub(super) Arc<ConnectionState>);

impl ConnectionHandle {
    /// A request was received; it is answered when this is dropped.
    pub(crate) fn request(&self) -> RequestGuard {
        self.0.begin();
        RequestGuard(Arc::clone(&self.0))
    }

    /// The body of a request is being read until this is dropped.
    pub(crate) fn reading(&self) -> ReadingGuard {
        self.0.reading.fetch_add(1, Relaxed);
        ReadingGuard(Arc::clone(&self.0))
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<ConnectionState>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A body that is being read.
#[derive(Debug)]
pub(crate) struct ReadingGuard(Arc<ConnectionState>);

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        self.0.reading.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(open: &OpenConnections, client: &str) -> Arc<ConnectionState> {
        open.open(client.parse().expect("an address"))
    }

    fn evicted(states: &[&Arc<ConnectionState>]) -> Vec<bool> {
        states.iter().map(|state| state.is_evicted.load(Relaxed)).collect()
    }

    #[test]
    fn the_client_with_most_connections_makes_room_with_its_longest_idle_one() {
        let open = OpenConnections::new(4);
        let (a, b) = (of(&open, "10.0.0.1"), of(&open, "10.0.0.2"));
        let (c, d) = (of(&open, "10.0.0.2"), of(&open, "2001:db8::1"));
        a.since_ms.store(0, Relaxed);
        [&a, &b, &c, &d].iter().for_each(|state| state.has_answered.store(true, Relaxed));
        b.since_ms.store(20, Relaxed);
        c.since_ms.store(10, Relaxed);
        assert_eq!(open.make_room(), 1);
        assert_eq!(evicted(&[&a, &b, &c, &d]), [false, false, true, false]);
    }

    #[test]
    fn connections_that_are_being_answered_stay() {
        let open = OpenConnections::new(2);
        let (answering, reading) = (of(&open, "10.0.0.1"), of(&open, "10.0.0.1"));
        let _request = ConnectionHandle(Arc::clone(&answering)).request();
        let handle = ConnectionHandle(Arc::clone(&reading));
        let request = handle.request();
        let body = handle.reading();
        assert_eq!(open.make_room(), 1);
        assert_eq!(evicted(&[&answering, &reading]), [false, true]);
        drop((body, request));
        open.close(&reading);
        assert_eq!(open.make_room(), 0, "nothing can make room");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| network(text.parse().expect("an address")));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], network("2001:db8:0:1::1".parse().expect("an address")));
        assert_eq!(network("::ffff:10.0.0.1".parse().expect("an address")), IpAddr::from([10, 0, 0, 1]));
    }
}
