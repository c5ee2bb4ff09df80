//! Allow-list of the networks of engines and peers.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::endpoints::{
    EndpointError, HostError, RefusalCause, RefusedAddress, check_address, check_endpoint, check_host, dialled_address,
};

/// A network of engines or peers, such as `10.0.0.0/8`. A single address is a network too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineNetwork(IpNet);

/// Text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network; give one such as 10.0.0.0/8, fd00::/8 or 10.1.2.3")]
pub struct EngineNetworkError(String);

impl FromStr for EngineNetwork {
    type Err = EngineNetworkError;

    fn from_str(text: &str) -> Result<Self, EngineNetworkError> {
        let text = text.trim();
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self).map_err(|_| EngineNetworkError(text.to_owned()))
    }
}

/// Networks to which the service connects. An empty list permits every address that [`check_address`] permits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineNetworks(Arc<[EngineNetwork]>);

impl EngineNetworks {
    /// A list of networks.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = EngineNetwork>) -> Self {
        Self(networks.into_iter().collect())
    }

    /// Rejects an address outside the networks, and one that [`check_address`] rejects.
    pub fn check_address(&self, address: IpAddr) -> Result<(), RefusedAddress> {
        check_address(address)?;
        let dialled = address.to_canonical();
        let is_permitted = self.0.is_empty() || self.0.iter().any(|EngineNetwork(network)| network.contains(&dialled));
        if is_permitted { Ok(()) } else { Err(RefusedAddress { address, cause: RefusalCause::OutsideNetworks }) }
    }

    /// The permitted ones of a name's addresses.
    ///
    /// # Errors
    ///
    /// When there are addresses and none of them is permitted.
    pub fn permitted(&self, found: &[SocketAddr]) -> Result<Vec<SocketAddr>, RefusedAddress> {
        let checked = |address: &SocketAddr| self.check_address(address.ip()).map(|()| *address);
        let permitted: Vec<_> = found.iter().flat_map(checked).collect();
        match found.first() {
            Some(first) if permitted.is_empty() => checked(first).map(|first| vec![first]),
            _ => Ok(permitted),
        }
    }

    /// Rejects a host that [`check_host`] rejects, and an address outside the networks. The addresses of a name are checked
    /// after its lookup.
    pub fn check_host(&self, host: &str) -> Result<(), HostError> {
        check_host(host)?;
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(literal.parse().map_or(Ok(()), |address| self.check_address(address))?)
    }

    /// Rejects an endpoint that [`check_endpoint`] rejects, and one with an address outside the networks.
    pub fn check_endpoint(&self, endpoint: &str) -> Result<(), EndpointError> {
        check_endpoint(endpoint)?;
        let host = dialled_address(endpoint).and_then(|address| address.rsplit_once(':'));
        let checked = host.map_or(Ok(()), |(host, _)| self.check_host(host));
        checked.map_err(|refused| EndpointError::Address { endpoint: endpoint.to_owned(), refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(list: &[&str]) -> EngineNetworks {
        EngineNetworks::new(list.iter().map(|text| text.parse().expect("a network")))
    }

    #[test]
    fn addresses_outside_the_networks_are_refused_in_every_notation() {
        let networks = networks(&["10.0.0.0/8", "192.168.1.7", "fd00::/16"]);
        for permitted in ["10.0.0.1", "10.255.255.255", "192.168.1.7", "::ffff:10.0.0.1", "fd00::1"] {
            assert_eq!(networks.check_address(permitted.parse().expect("an address")), Ok(()), "{permitted}");
        }
        for refused in ["11.0.0.1", "192.168.1.8", "127.0.0.1", "::1", "::ffff:11.0.0.1", "fd01::1", "64:ff9b::a00:1"] {
            let error = networks.check_address(refused.parse().expect("an address")).expect_err(refused);
            assert!(error.to_string().contains("--engine-networks"), "{error}");
        }
        for (endpoint, is_permitted) in [
            ("tcp://10.1.2.3:5557", true),
            ("tcp://[fd00::1]:5557", true),
            ("tcp://gpu-1:5557", true),
            ("ipc:///tmp/engine", true),
            ("tcp://[fd01::1]:5557", false),
            ("tcp://[::ffff:11.0.0.1]:5557", false),
            ("tcp://8.8.8.8:5557", false),
            ("http://10.1.2.3:8000", true),
            ("https://8.8.8.8:443", false),
        ] {
            assert_eq!(networks.check_endpoint(endpoint).is_ok(), is_permitted, "{endpoint}");
        }
    }

    #[test]
    fn of_a_names_addresses_the_permitted_ones_are_used() {
        let networks = networks(&["10.0.0.0/8"]);
        let [inside, outside]: [SocketAddr; 2] =
            ["10.0.0.1:80", "11.0.0.1:80"].map(|text| text.parse().expect("an address"));
        assert_eq!(networks.permitted(&[outside, inside]), Ok(vec![inside]));
        assert_eq!(networks.permitted(&[]), Ok(Vec::new()));
        assert!(networks.permitted(&[outside]).is_err());
    }

    #[test]
    fn a_network_permits_no_address_that_is_always_refused() {
        let networks = networks(&["0.0.0.0/0", "::/0"]);
        assert!(networks.check_address(IpAddr::from([10, 0, 0, 1])).is_ok());
        for refused in ["169.254.169.254", "0.0.0.0", "fe80::1", "fd00:ec2::254"] {
            assert!(networks.check_address(refused.parse().expect("an address")).is_err(), "{refused}");
        }
        assert!(networks.check_host("metadata.google.internal").is_err());
    }

    #[test]
    fn without_a_list_addresses_are_checked_as_before() {
        let any = EngineNetworks::default();
        assert!(any.check_endpoint("tcp://8.8.8.8:5557").is_ok());
        assert!(any.check_endpoint("tcp://169.254.169.254:80").is_err());
    }

    #[test]
    fn a_network_is_an_address_with_or_without_a_prefix_length() {
        for text in ["", "10.0.0.0/33", "gpu-1", "10.0.0/8", "10.0.0.0/8,"] {
            assert!(text.parse::<EngineNetwork>().is_err(), "{text}");
        }
        assert_eq!("10.1.2.3".parse::<EngineNetwork>(), "10.1.2.3/32".parse());
    }
}
