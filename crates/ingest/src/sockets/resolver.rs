//! Names of hosts to addresses, off ZeroMQ's own threads: it would hold up every socket of a context while
//! one name is looked up.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use flash_indexer_types::endpoints::{RefusedAddress, check_address};

use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind, Watch};

/// Names that are looked up at a time; a name server that does not answer holds one of them up for seconds.
const THREADS: usize = 4;

/// A host that must be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostName {
    host: String,
    port: u16,
}

impl HostName {
    /// The name in a TCP endpoint; none in one that has an address or is of another kind.
    pub(super) fn from_endpoint(endpoint: &str) -> Option<Self> {
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        let is_name = host.parse::<std::net::IpAddr>().is_err()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        Some(Self { host: host.to_owned(), port: port.parse().ok()? }).filter(|_| is_name)
    }
}

/// What a lookup brought: addresses as endpoints, or why there are none.
pub(super) type Addresses = Result<Vec<String>, LookupError>;

/// A host name has no address that can be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookupError {
    #[error("the host name {host} cannot be resolved: {why}")]
    Unresolved { host: String, why: String },
    #[error("the host name {host} has no address")]
    NoAddress { host: String },
    #[error("the host name {host} is refused: {refused}")]
    Refused { host: String, refused: RefusedAddress },
    #[error("failed to resolve the host name {host}: the lookup panicked, a fault of this program; report it")]
    Panicked { host: String },
}

impl LookupError {
    /// What is logged of a failed lookup.
    pub(super) const fn event(&self) -> &'static str {
        match self {
            Self::Unresolved { .. } | Self::NoAddress { .. } | Self::Panicked { .. } => {
                "failed to resolve the engine's host"
            }
            Self::Refused { .. } => "refused the address of the engine's host",
        }
    }

    /// A short name for counting.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Unresolved { .. } | Self::NoAddress { .. } => "unknown_host",
            Self::Refused { .. } => "refused_address",
            Self::Panicked { .. } => "lookup_panicked",
        }
    }
}

struct Lookup {
    name: HostName,
    callback: Box<dyn FnOnce(Addresses) + Send>,
}

/// Threads that look names up. They end when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Resolver {
    lookups: Sender<Lookup>,
}

impl Resolver {
    pub(super) fn start(supervisor: &Supervisor) -> std::io::Result<Self> {
        let (lookups, requests) = unbounded::<Lookup>();
        let requests: Arc<Receiver<Lookup>> = Arc::new(requests);
        for number in 0..THREADS {
            let requests = Arc::clone(&requests);
            let work = move |watch: &Arc<Watch>| {
                for Lookup { name, callback } in requests.iter() {
                    let panicked = || Err(LookupError::Panicked { host: name.host.clone() });
                    let addresses = watch.guarded(|| look_up(&name)).unwrap_or_else(panicked);
                    watch.guarded(|| callback(addresses));
                }
            };
            // Not waited for at the end: it may be in the middle of a lookup.
            supervisor.spawn(ThreadKind::Resolver, Some(number), work)?;
        }
        Ok(Self { lookups })
    }

    /// Looks a name up and does something with what came of it, on another thread. What waits is bounded
    /// by those who ask: each does so once at a time.
    pub(super) fn look_up(&self, name: HostName, callback: impl FnOnce(Addresses) + Send + 'static) {
        // The threads live as long as this handle.
        let _ = self.lookups.send(Lookup { name, callback: Box::new(callback) });
    }
}

pub(super) fn look_up(name: &HostName) -> Addresses {
    let HostName { host, port } = name;
    // No name is known to make a lookup fail so, so one does.
    #[cfg(any(test, feature = "fault-injection"))]
    assert!(host != "resolver-fault", "a test requests for a failure");
    let found = (host.as_str(), *port).to_socket_addrs();
    let found = found.map_err(|error| LookupError::Unresolved { host: host.clone(), why: error.to_string() })?;
    let found: Vec<SocketAddr> = found.collect();
    let allowed = endpoints(found.iter().copied().filter(|address| check_address(address.ip()).is_ok()));
    match (allowed.is_empty(), found.first()) {
        (false, _) => Ok(allowed),
        (true, None) => Err(LookupError::NoAddress { host: host.clone() }),
        (true, Some(first)) => {
            check_address(first.ip()).map_err(|refused| LookupError::Refused { host: host.clone(), refused })?;
            Ok(allowed)
        }
    }
}

/// Addresses as endpoints, those of IPv4 first: that is what engines listen on by default.
fn endpoints(found: impl Iterator<Item = SocketAddr>) -> Vec<String> {
    let (mut endpoints, others): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv4);
    endpoints.extend(others);
    endpoints.dedup();
    endpoints.into_iter().map(|address| format!("tcp://{address}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_addresses() {
        let name = |host: &str, port| Some(HostName { host: host.to_owned(), port });
        assert_eq!(HostName::from_endpoint("tcp://gpu-1.fleet:5557"), name("gpu-1.fleet", 5557));
        for other in ["tcp://10.0.0.1:5557", "tcp://[::1]:5557", "tcp://::1:5557", "ipc:///tmp/a:1", "tcp://a;b:1"] {
            assert_eq!(HostName::from_endpoint(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_that_stands_for_a_refused_address_is_not_dialled() {
        // Older notations of addresses, which the system resolves.
        for host in ["2852039166", "0xa9fea9fe", "169.254.43518", "0"] {
            let looked_up = look_up(&HostName { host: host.to_owned(), port: 80 });
            let refused = looked_up.expect_err(host);
            assert_eq!(refused.reason(), "refused_address", "{host}");
            assert!(refused.event().starts_with("refused the address"), "{host}: it was resolved");
            assert!(refused.to_string().contains("give an address"), "{refused}");
        }
        let localhost = look_up(&HostName { host: "localhost".to_owned(), port: 80 }).expect("every system has it");
        assert!(!localhost.is_empty());
    }

    #[test]
    fn addresses_of_both_kinds_can_be_connected_to() {
        let found = ["[::1]:7", "127.0.0.1:7", "[::1]:7", "[::2]:7"].map(|text| text.parse().expect("an address"));
        assert_eq!(endpoints(found.into_iter()), ["tcp://127.0.0.1:7", "tcp://[::1]:7", "tcp://[::2]:7"]);
    }
}
