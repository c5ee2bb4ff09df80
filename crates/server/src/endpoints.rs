//! Which endpoints engines may have, and which addresses engines and peers may have.
//!
//! Requests, discovery sources, pods and peers choose where this service connects to. An address that only this machine's
//! network segment or its cloud's metadata service has is refused, before and after a name is resolved.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that no engine and no peer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {kind}, which no engine or peer may have: give an address that other machines reach it by")]
pub(crate) struct RefusedAddress {
    address: IpAddr,
    kind: &'static str,
}

/// Where AWS offers the metadata of a machine over IPv6.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
/// Prefix of addresses in which a translator to IPv4 embeds the address that it connects to.
const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Refuses link-local, unspecified, multicast and broadcast addresses, in any notation.
pub(crate) fn check_address(address: IpAddr) -> Result<(), RefusedAddress> {
    match kind(address) {
        None => Ok(()),
        Some(kind) => Err(RefusedAddress { address, kind }),
    }
}

fn kind(address: IpAddr) -> Option<&'static str> {
    let of_v4 = |address: Ipv4Addr| match address {
        _ if address.is_link_local() => Some("a link-local address"),
        _ if address.octets()[0] == 0 => Some("an unspecified address"),
        _ if address.is_multicast() => Some("a multicast address"),
        _ if address.is_broadcast() => Some("the broadcast address"),
        _ => None,
    };
    match address.to_canonical() {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => match address.segments() {
            _ if address.is_unicast_link_local() => Some("a link-local address"),
            _ if address.is_unspecified() => Some("an unspecified address"),
            _ if address.is_multicast() => Some("a multicast address"),
            _ if address == METADATA_V6 => Some("the address of a metadata service"),
            [head @ .., high, low] if head == TRANSLATED => {
                of_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            _ => None,
        },
    }
}

/// The address of a host as URLs and endpoints write it; none of a name.
pub(crate) fn host_address(host: &str) -> Option<IpAddr> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // A zone says which network interface a link-local address is of.
    host.split_once('%').map_or(host, |(address, _)| address).parse().ok()
}

/// An endpoint that is not dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("bad endpoint {endpoint:?}: {why}; give an address such as tcp://host:5557")]
    Malformed { endpoint: String, why: &'static str },
    #[error("bad endpoint {endpoint:?}: {refused}")]
    Address { endpoint: String, refused: RefusedAddress },
    #[error(
        "bad endpoint {endpoint:?}: ipc:// is a path of this machine; give an address such as tcp://host:5557, name the \
         engine with --workers, or start the service with --allow-ipc"
    )]
    Ipc { endpoint: String },
}

/// Whether an endpoint is a path of this machine.
pub(crate) fn is_ipc(endpoint: &str) -> bool {
    endpoint.starts_with("ipc://")
}

/// Refuses an endpoint that ZeroMQ would accept without complaint and never connect, and one with an address that no
/// engine may have.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<(), EndpointError> {
    let bad = |why| Err(EndpointError::Malformed { endpoint: endpoint.to_owned(), why });
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.is_empty() { bad("the path is empty") } else { Ok(()) };
    }
    let Some(address) = endpoint.strip_prefix("tcp://") else {
        return bad("it starts with neither tcp:// nor ipc://");
    };
    let Some((host, port)) = address.rsplit_once(':') else { return bad("there is no port") };
    if host.is_empty() || host.contains('*') || port.contains('*') {
        return bad("the host or port of the engine is missing, * is only for the engine itself");
    }
    if !matches!(port.parse::<u16>(), Ok(1..)) {
        return bad("the port is not a number from 1 to 65535");
    }
    match host_address(host) {
        Some(address) => {
            check_address(address).map_err(|refused| EndpointError::Address { endpoint: endpoint.to_owned(), refused })
        }
        None if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) => Ok(()),
        None => bad("the host is neither a name nor an address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_segment_are_refused_in_any_notation() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "fd00:ec2::254",
        ] {
            assert!(check_address(address.parse().expect("an address")).is_err(), "{address}");
        }
        for address in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "::1", "fd00::1", "2001:db8::1"] {
            assert_eq!(check_address(address.parse().expect("an address")), Ok(()), "{address}");
        }
    }

    #[test]
    fn endpoints_are_a_host_and_a_port() {
        for endpoint in
            ["tcp://gpu-1.fleet:5557", "tcp://gpu_1:1", "tcp://10.0.0.1:5557", "tcp://[::1]:5557", "ipc:///tmp/e"]
        {
            assert_eq!(check_endpoint(endpoint), Ok(()), "{endpoint}");
        }
        for endpoint in [
            "tcp://10.0.0.1:0",
            "tcp://[fe80::1%eth0]:5557",
            "tcp://[::ffff:169.254.169.254]:80",
            "tcp://10.0.0.1:1;169.254.169.254:80",
            "tcp://a;b:1",
            "tcp://0.0.0.0:5557",
            "inproc://bell",
            "pgm://a:1",
            "ipc://",
        ] {
            assert!(check_endpoint(endpoint).is_err(), "{endpoint}");
        }
    }
}
