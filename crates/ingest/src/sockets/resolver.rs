//! Resolver of host names. ZeroMQ's own resolver would block every socket of a context during a lookup.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crossbeam_channel::{Sender, unbounded};
use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind, Watch};
use flash_indexer_types::endpoints::{HostName, RefusedAddress};
use flash_indexer_types::networks::EngineNetworks;

/// Concurrent lookups. A name server that does not respond blocks one of them for seconds.
const THREADS: usize = 4;

/// Result of a lookup: addresses as endpoints.
pub(super) type Addresses = Result<Vec<String>, LookupError>;

/// A host name without an address that can be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookupError {
    #[error("failed to resolve the host name {host}: {why}; check the name and the name server")]
    Unresolved { host: String, why: String },
    #[error("failed to resolve the host name {host}: it has no address; check the name")]
    NoAddress { host: String },
    #[error("the host name {host} is refused: {refused}")]
    Refused { host: String, refused: RefusedAddress },
    #[error(
        "failed to resolve the host name {host}: the lookup panicked, a bug in Flash Indexer; report it with the log"
    )]
    Panicked { host: String },
}

impl LookupError {
    /// Log message of a failed lookup.
    pub(super) const fn event(&self) -> &'static str {
        match self {
            Self::Unresolved { .. } | Self::NoAddress { .. } | Self::Panicked { .. } => {
                "failed to resolve the engine's host"
            }
            Self::Refused { .. } => "refused the address of the engine's host",
        }
    }

    /// The metric's reason label.
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

/// Handle of the resolver threads, which end when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Resolver {
    lookups: Sender<Lookup>,
}

impl Resolver {
    pub(super) fn start(networks: &EngineNetworks, supervisor: &Supervisor) -> std::io::Result<Self> {
        let (lookups, requests) = unbounded::<Lookup>();
        for number in 0..THREADS {
            let (requests, networks) = (requests.clone(), networks.clone());
            let work = move |watch: &Arc<Watch>| {
                for Lookup { name, callback } in requests.iter() {
                    let panicked = || Err(LookupError::Panicked { host: name.host.clone() });
                    let addresses = watch.guarded(|| look_up(&name, &networks)).unwrap_or_else(panicked);
                    watch.guarded(|| callback(addresses));
                }
            };
            // The thread is not joined at the end: it may be in a lookup.
            supervisor.spawn(ThreadKind::Resolver, Some(number), work)?;
        }
        Ok(Self { lookups })
    }

    /// Resolves a name on another thread, which calls `callback`. The queue is bounded by the callers: each has one lookup at
    /// a time.
    pub(super) fn look_up(&self, name: HostName, callback: impl FnOnce(Addresses) + Send + 'static) {
        // The threads live as long as this handle.
        let _ = self.lookups.send(Lookup { name, callback: Box::new(callback) });
    }
}

/// Addresses of a name in the networks.
pub(super) fn look_up(name: &HostName, networks: &EngineNetworks) -> Addresses {
    let HostName { host, port } = name;
    // A test injects a panic by this name.
    #[cfg(any(test, feature = "fault-injection"))]
    assert!(host != "resolver-fault", "a test asked for a failure");
    let found = (host.as_str(), *port).to_socket_addrs();
    let found = found.map_err(|error| LookupError::Unresolved { host: host.clone(), why: error.to_string() })?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        return Err(LookupError::NoAddress { host: host.clone() });
    }
    let permitted = networks.permitted(&found);
    permitted.map(endpoints).map_err(|refused| LookupError::Refused { host: host.clone(), refused })
}

/// Addresses as endpoints, IPv4 first, because engines bind IPv4 by default.
fn endpoints(found: Vec<SocketAddr>) -> Vec<String> {
    let (mut endpoints, others): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv4);
    endpoints.extend(others);
    endpoints.dedup();
    endpoints.into_iter().map(|address| format!("tcp://{address}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_resolves_to_a_refused_address_is_not_dialled() {
        // Older notations of addresses, which the system resolves.
        for host in ["2852039166", "0xa9fea9fe", "169.254.43518", "0"] {
            let looked_up = look_up(&HostName { host: host.to_owned(), port: 80 }, &EngineNetworks::default());
            let refused = looked_up.expect_err(host);
            assert_eq!(refused.reason(), "refused_address", "{host}");
            assert!(refused.event().starts_with("refused the address"), "{host}: it was resolved");
            assert!(refused.to_string().contains("give an address"), "{refused}");
        }
        let localhost = HostName { host: "localhost".to_owned(), port: 80 };
        assert!(!look_up(&localhost, &EngineNetworks::default()).expect("every system resolves it").is_empty());
        let networks = EngineNetworks::new(["10.0.0.0/8".parse().expect("a network")]);
        let refused = look_up(&localhost, &networks).expect_err("it is outside");
        assert_eq!(refused.reason(), "refused_address");
        assert!(refused.to_string().contains("--engine-networks"), "{refused}");
    }

    #[test]
    fn addresses_of_both_kinds_can_be_connected_to() {
        let found = ["[::1]:7", "127.0.0.1:7", "[::1]:7", "[::2]:7"].map(|text| text.parse().expect("an address"));
        assert_eq!(endpoints(found.to_vec()), ["tcp://127.0.0.1:7", "tcp://[::1]:7", "tcp://[::2]:7"]);
    }
}
