//! Checks of endpoints and addresses of engines and peers.
//!
//! Requests, discovery sources, pods and peers choose where this service connects to. Link-local addresses and addresses of
//! a cloud's metadata service are refused, before and after a name is resolved.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::masked_url::masked_url;

/// Endpoint of an engine that publishes no events. The index has its blocks from routing decisions alone.
pub const NO_EVENTS: &str = "none";

/// Address that engines and peers must not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {cause}")]
pub struct RefusedAddress {
    pub(crate) address: IpAddr,
    pub(crate) cause: RefusalCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusalCause {
    #[error("{0}, which engines and peers must not use: give an address that other machines can reach")]
    Kind(&'static str),
    #[error("outside the networks of engines: give another address, or add its network to --engine-networks")]
    OutsideNetworks,
}

/// Addresses of metadata services that are not link-local: of Alibaba Cloud, Azure and Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// Addresses of metadata services that are not link-local: of AWS, Google Cloud, Oracle Cloud and Scaleway.
const METADATA_V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Rejects link-local, unspecified, multicast and broadcast addresses, and those of metadata services, in any notation.
pub fn check_address(address: IpAddr) -> Result<(), RefusedAddress> {
    kind(address).map_or(Ok(()), |kind| Err(RefusedAddress { address, cause: RefusalCause::Kind(kind) }))
}

fn kind(address: IpAddr) -> Option<&'static str> {
    let of_v4 = |address: Ipv4Addr| match address {
        _ if METADATA_V4.contains(&address) => Some(METADATA_SERVICE),
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
            _ if METADATA_V6.contains(&address) => Some(METADATA_SERVICE),
            _ => embedded(address).into_iter().find_map(of_v4),
        },
    }
}

const METADATA_SERVICE: &str = "the address of a metadata service";

/// IPv4 addresses that are reached through an IPv6 address: by 6to4, Teredo, NAT64 and stateless translation. An operator
/// chooses the length of NAT64's local prefix, so an address with that prefix stands for several. Some of them may be
/// meaningless: only those that are link-local or of a metadata service are returned.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bits = u128::from(address);
    // The IPv4 address whose last bit is this number of bits from the end.
    let at = |shift: u32| Ipv4Addr::from((bits >> shift) as u32);
    match address.segments() {
        // 6to4, RFC 3056.
        [0x2002, ..] => vec![at(80)],
        // Teredo, RFC 4380: the server, and the inverted address of the client.
        [0x2001, 0, ..] => vec![at(64), Ipv4Addr::from(!bits as u32)],
        // NAT64, RFC 6052. `::a.b.c.d` is an old notation of the IPv4 address itself.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![at(0)],
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => vec![at(0)],
        // Stateless translation, RFC 2765.
        [0, 0, 0, 0, 0xffff, 0, ..] => vec![at(0)],
        // NAT64, RFC 8215: prefixes of 96, 64, 56 and 48 bits. Bits 64 to 71 are not part of the IPv4 address.
        [0x64, 0xff9b, 1, ..] => {
            let around_octet = |before: u32| {
                let (high, low) = ((bits >> 64) as u32, (bits >> (24 + before)) as u32);
                Ipv4Addr::from(high << (32 - before) | low & (u32::MAX >> before))
            };
            let is_dangerous = |address: &Ipv4Addr| address.is_link_local() || METADATA_V4.contains(address);
            [at(0), at(24), around_octet(8), around_octet(16)].into_iter().filter(is_dangerous).collect()
        }
        _ => Vec::new(),
    }
}

/// Host to which the service does not connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The address of the host is refused.
    #[error(transparent)]
    Address(#[from] RefusedAddress),
    /// The host is a cloud's metadata service.
    #[error("the host is a cloud's metadata service: give the host of an engine or a peer")]
    MetadataService,
    /// The host is neither a name nor an address.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Names of the metadata services of Google Cloud and AWS.
const METADATA_NAMES: [&str; 3] = ["metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"];

/// Rejects a host of a URL or an endpoint that is neither a name nor an address, or whose address is refused.
///
/// An IPv4 address has one accepted spelling: four decimal numbers. The system resolver accepts others, such as
/// `2852039166`, `0xa9fea9fe` and `169.254.43518`, which all mean 169.254.169.254.
pub fn check_host(host: &str) -> Result<(), HostError> {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let (address, zone) = literal.split_once('%').map_or((literal, None), |(address, zone)| (address, Some(zone)));
    if let Ok(address) = address.parse() {
        check_address(address)?;
        return match zone {
            None => Ok(()),
            Some(_) => Err(HostError::Malformed(
                "the address has a zone, which is valid on one machine only: leave out % and the zone",
            )),
        };
    }
    // The resolver does not append a search domain to a name with a final dot.
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if !name.split('.').all(is_label) {
        return Err(HostError::Malformed("the host is neither a name nor an address"));
    }
    if METADATA_NAMES.iter().any(|metadata| name.eq_ignore_ascii_case(metadata)) {
        return Err(HostError::MetadataService);
    }
    if name.split('.').all(is_number) {
        if let Some(address) = numbers_address(name) {
            check_address(IpAddr::V4(address))?;
        }
        return Err(HostError::Malformed(
            "the host consists of numbers, and is not an IPv4 address of four decimal numbers",
        ));
    }
    Ok(())
}

/// Whether the system resolver parses a label of a host as a number.
fn is_number(label: &str) -> bool {
    match hexadecimal(label) {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn hexadecimal(label: &str) -> Option<&str> {
    label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"))
}

/// Parses an address of one to four numbers, each decimal, octal or hexadecimal, as `inet_aton` of POSIX does: the last
/// number fills the remaining bytes.
fn numbers_address(host: &str) -> Option<Ipv4Addr> {
    let number = |label: &str| match (hexadecimal(label), label.strip_prefix('0')) {
        (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
        (None, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        (None, _) => label.parse().ok(),
    };
    let numbers = host.split('.').map(number).collect::<Option<Vec<u32>>>()?;
    let (&last, head) = numbers.split_last()?;
    let free_bits = 32_u32.checked_sub(8 * u32::try_from(head.len()).ok()?).filter(|&bits| bits > 0)?;
    if head.iter().any(|&number| number > 0xff) || u64::from(last) >> free_bits != 0 {
        return None;
    }
    let high = head.iter().fold(0_u64, |high, &number| high << 8 | u64::from(number)) << free_bits;
    u32::try_from(high | u64::from(last)).ok().map(Ipv4Addr::from)
}

/// Endpoint to which the service does not connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint is not an address of a supported transport.
    #[error(
        "invalid endpoint {endpoint:?}: {why}; give an address such as tcp://host:5557, tcp://10.0.0.1:5557, for events over gRPC grpc://host:30001 or, to pull the events of TensorRT-LLM, http://host:8000"
    )]
    Malformed {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        why: &'static str,
    },
    /// The host is refused.
    #[error("invalid endpoint {endpoint:?}: {refused}")]
    Address {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        refused: HostError,
    },
    /// The endpoint is a path of this machine, which `--allow-ipc` does not allow.
    #[error(
        "invalid endpoint {endpoint:?}: ipc:// is a path of this machine; give an address such as tcp://host:5557, name the \
         engine with --workers, or start the service with --allow-ipc"
    )]
    Ipc {
        /// The endpoint.
        endpoint: String,
    },
}

/// A host name that has to be resolved, with its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName {
    /// The name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostName {
    /// The host name of a TCP endpoint; none for an address or another transport.
    #[must_use]
    pub fn from_endpoint(endpoint: &str) -> Option<Self> {
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        let is_name = host.parse::<IpAddr>().is_err()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        Some(Self { host: host.to_owned(), port: port.parse().ok()? }).filter(|_| is_name)
    }
}

/// Whether an endpoint is a path of this machine.
pub fn is_ipc(endpoint: &str) -> bool {
    endpoint.starts_with("ipc://")
}

/// The host and port of an endpoint whose events are pulled over HTTP.
fn pulled_address(endpoint: &str) -> Option<&str> {
    ["http://", "https://"].into_iter().find_map(|scheme| endpoint.strip_prefix(scheme))
}

/// Whether the service pulls the events of an endpoint over HTTP.
pub fn is_pulled(endpoint: &str) -> bool {
    pulled_address(endpoint).is_some()
}

/// The host and port of an endpoint whose events are streamed over gRPC.
pub fn streamed_address(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("grpc://")
}

/// Whether the events of an endpoint are streamed over gRPC.
pub fn is_streamed(endpoint: &str) -> bool {
    streamed_address(endpoint).is_some()
}

/// The host and port of an endpoint; none for a path.
pub(crate) fn dialled_address(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix("tcp://").or_else(|| streamed_address(endpoint)).or_else(|| pulled_address(endpoint))
}

/// Prefix of the endpoint of a bound pod. The socket's addresses may follow, for display.
const BOUND: &str = "bound";

/// Whether an endpoint is that of a bound pod.
#[must_use]
pub fn is_bound(endpoint: &str) -> bool {
    endpoint.strip_prefix(BOUND).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Endpoint of a bound pod whose messages arrive over these addresses, for display.
#[must_use]
pub fn bound_endpoint(addresses: &[String]) -> String {
    format!("{BOUND}:{}", addresses.join(","))
}

/// Rejects an endpoint that no socket can be bound to on any machine, with the reason. It is `tcp://` with an address of the machine or
/// `*`, and a port or `*`, or `ipc://` with a path.
pub fn check_bound_endpoint(endpoint: &str) -> Result<(), &'static str> {
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.is_empty() { Err("the path is empty") } else { Ok(()) };
    }
    let address = endpoint.strip_prefix("tcp://").ok_or("it starts with neither tcp:// nor ipc://")?;
    match address.rsplit_once(':') {
        None => Err("there is no port"),
        Some(("", _)) => Err("the address is missing; * stands for all of the machine"),
        Some((_, port)) if port == "*" || port.parse::<u16>().is_ok() => Ok(()),
        Some(_) => Err("the port is neither a number up to 65535 nor *"),
    }
}

/// Rejects an endpoint that ZeroMQ accepts without an error and never connects, and an endpoint with a refused address.
pub fn check_endpoint(endpoint: &str) -> Result<(), EndpointError> {
    let invalid = |why| Err(EndpointError::Malformed { endpoint: masked_url(endpoint).into_owned(), why });
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.is_empty() { invalid("the path is empty") } else { Ok(()) };
    }
    let Some(address) = dialled_address(endpoint) else {
        return invalid("it starts with none of tcp://, ipc://, grpc://, http:// and https://");
    };
    let Some((host, port)) = address.rsplit_once(':') else { return invalid("there is no port") };
    if host.is_empty() || host.contains('*') || port.contains('*') {
        return invalid("the host or port is missing; * is valid only where the engine binds");
    }
    if !matches!(port.parse::<u16>(), Ok(1..)) {
        return invalid("the port is not a number from 1 to 65535");
    }
    match check_host(host) {
        Ok(()) => Ok(()),
        Err(HostError::Malformed(why)) => invalid(why),
        Err(refused) => Err(EndpointError::Address { endpoint: masked_url(endpoint).into_owned(), refused }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_distinguished_from_addresses() {
        let name = |host: &str, port| Some(HostName { host: host.to_owned(), port });
        assert_eq!(HostName::from_endpoint("tcp://gpu-1.fleet:5557"), name("gpu-1.fleet", 5557));
        for other in ["tcp://10.0.0.1:5557", "tcp://[::1]:5557", "tcp://::1:5557", "ipc:///tmp/a:1", "tcp://a;b:1"] {
            assert_eq!(HostName::from_endpoint(other), None, "{other}");
        }
    }

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
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "::ffff:100.100.100.200",
            "::169.254.169.254",
            "64:ff9b::100.100.100.200",
            "::ffff:0:169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:7::100.100.100.200",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:7a9:fe:a9fe::",
            "64:ff9b:1:7:a9:fea9:fe00:0",
            "2002:a9fe:a9fe::",
            "2002:a9fe:1::1",
            "2002:6464:64c8:1::9",
            "2001:0:a9fe:a9fe::1",
            "2001:0:808:808:0:1234:5601:5601",
        ] {
            assert!(check_address(address.parse().expect("an address")).is_err(), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "100.100.100.201",
            "::1",
            "fd00::1",
            "2001:db8::1",
            "2001:db8::a9fe:a9fe",
            "2002:a00:1::1",
            "64:ff9b::10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "2001:0:808:808:0:1234:f5ff:fffe",
        ] {
            assert_eq!(check_address(address.parse().expect("an address")), Ok(()), "{address}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_an_address_in_one_spelling() {
        for host in [
            "gpu-1",
            "gpu_1.fleet",
            "gpu-1.fleet.",
            "1.gpu",
            "10.0.0.1",
            "127.0.0.1",
            "::1",
            "[::1]",
            "[::ffff:10.0.0.1]",
            "metadata.google.internal.example.com",
        ] {
            assert_eq!(check_host(host), Ok(()), "{host}");
        }
        let link_local = |host: &str| match check_host(host) {
            Err(HostError::Address(refused)) => refused.cause == RefusalCause::Kind("a link-local address"),
            _ => false,
        };
        for host in [
            "169.254.169.254",
            "169.254.169.254.",
            "2852039166",
            "2852039166.",
            "0xa9fea9fe",
            "0XA9FEA9FE",
            "025177524776",
            "0251.0376.0251.0376",
            "0251.254.0xa9.254",
            "0xa9.0xfe.0xa9.0xfe",
            "169.254.43518",
            "169.16689662",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[fe80::1%eth0]",
            "fe80::1%1",
        ] {
            assert!(link_local(host), "{host}: {:?}", check_host(host));
        }
        for host in
            ["metadata.google.internal", "Metadata.Google.Internal.", "metadata.goog", "instance-data.ec2.internal"]
        {
            assert_eq!(check_host(host), Err(HostError::MetadataService), "{host}");
        }
        for host in [
            "",
            ".",
            "gpu..fleet",
            "gpu-1..",
            "[::1%lo]",
            "::1%lo",
            "[gpu-1]",
            "[::1",
            "gpu%31",
            "10.0.0.1.",
            "10.1",
            "010.0.0.1",
            "2130706433",
            "0x7f000001",
            "4294967296",
            "256.0.0.1",
            "1.2.3.4.5",
            "089",
            "0x",
            "a;b",
            "gpu 1",
            "１６９.254.169.254",
        ] {
            assert!(matches!(check_host(host), Err(HostError::Malformed(_))), "{host}: {:?}", check_host(host));
        }
    }

    #[test]
    fn numeric_hosts_parse_to_the_address_that_the_system_resolves() {
        use std::net::ToSocketAddrs;

        for host in ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "127.0.1", "4294967295", "0"] {
            let resolved = (host, 80).to_socket_addrs().expect(host).next().expect("an address");
            assert_eq!(numbers_address(host).map(IpAddr::V4), Some(resolved.ip()), "{host}");
        }
        for host in ["4294967296", "1.2.3.256", "1.2.65536", "256.1", "1.2.3.4.5", "08", "0x"] {
            assert_eq!(numbers_address(host), None, "{host}");
        }
    }

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for endpoint in [
            "tcp://gpu-1.fleet:5557",
            "tcp://gpu_1:1",
            "tcp://10.0.0.1:5557",
            "tcp://[::1]:5557",
            "ipc:///tmp/e",
            "http://gpu-1:8000",
            "https://[::1]:8443",
            "grpc://gpu-1:30001",
        ] {
            assert_eq!(check_endpoint(endpoint), Ok(()), "{endpoint}");
        }
        for endpoint in [
            "tcp://10.0.0.1:0",
            "tcp://[fe80::1%eth0]:5557",
            "tcp://[::ffff:169.254.169.254]:80",
            "tcp://10.0.0.1:1;169.254.169.254:80",
            "tcp://a;b:1",
            "tcp://0.0.0.0:5557",
            "http://gpu-1",
            "http://gpu-1:8000/",
            "http://gpu-1:8000/kv_cache_events",
            "http://user@gpu-1:8000",
            "http://gpu-1:8000?a=b",
            "http://169.254.169.254:80",
            "https://metadata.google.internal:443",
            "grpc://169.254.169.254:80",
            "grpc://gpu-1:0",
            "grpcs://gpu-1:30001",
            "ftp://gpu-1:21",
            "inproc://waker",
            "pgm://a:1",
            "ipc://",
        ] {
            assert!(check_endpoint(endpoint).is_err(), "{endpoint}");
        }
    }
}
