//! DNS names of engines.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A DNS name whose records are engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsName {
    /// Each address of the host is an engine.
    Addresses {
        /// The host's name.
        host: String,
        /// Port at which engines publish; none for the template's.
        port: Option<u16>,
    },
    /// Each target of the service's records is an engine, and publishes at the record's port.
    Services {
        /// The service's name, such as `_kv-events._tcp.vllm.default.svc`.
        service: String,
    },
}

/// A text that is not a DNS name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid DNS name {name:?}: {why}; give one such as vllm.default.svc.cluster.local:5557, or of service records, such as \
     _kv-events._tcp.vllm.default.svc.cluster.local"
)]
pub struct DnsNameError {
    name: String,
    why: &'static str,
}

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 253;

impl FromStr for DnsName {
    type Err = DnsNameError;

    fn from_str(text: &str) -> Result<Self, DnsNameError> {
        let bad = |why| Err(DnsNameError { name: text.chars().take(128).collect(), why });
        let (host, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((host, port)) => match port.parse::<u16>() {
                Ok(port @ 1..) => (host, Some(port)),
                _ => return bad("the port is not a number from 1 to 65535"),
            },
        };
        if text.parse::<IpAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return bad("it is an address, not a name");
        }
        if host.is_empty() || host.len() > NAME_BYTES_MAX {
            return bad("it is empty or too long");
        }
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) || host.contains("..") {
            return bad("it contains characters that are invalid in a name");
        }
        match (host.starts_with('_'), port) {
            (true, Some(_)) => bad("service records have ports of their own"),
            (true, None) => Ok(Self::Services { service: host.to_owned() }),
            (false, port) => Ok(Self::Addresses { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses { host, port: None } => f.write_str(host),
            Self::Addresses { host, port: Some(port) } => write!(f, "{host}:{port}"),
            Self::Services { service } => f.write_str(service),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_and_service_names_are_distinguished() {
        let host = |port| DnsName::Addresses { host: "vllm.default.svc".to_owned(), port };
        assert_eq!("vllm.default.svc".parse(), Ok(host(None)));
        assert_eq!("vllm.default.svc:5557".parse(), Ok(host(Some(5557))));
        let service = "_kv-events._tcp.vllm".to_owned();
        assert_eq!(service.parse(), Ok(DnsName::Services { service: service.clone() }));
        for name in ["vllm.default.svc:5557", "_kv-events._tcp.vllm"] {
            assert_eq!(name.parse::<DnsName>().expect("a name").to_string(), name);
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        let long = "a".repeat(254);
        for bad in [
            "",
            ":5557",
            "10.0.0.1",
            "10.0.0.1:5557",
            "::1",
            "[::1]:5557",
            "h:0",
            "h:x",
            "_a._tcp.b:1",
            "a..b",
            "tcp://h:1",
            &long,
        ] {
            assert!(bad.parse::<DnsName>().is_err(), "{bad}");
        }
    }
}
