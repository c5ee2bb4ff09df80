//! Address of a store.

use std::fmt;
use std::str::FromStr;

/// Topology of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One node.
    Single,
    /// A Redis or Valkey Cluster; the nodes are the seeds.
    Cluster,
    /// One master among several nodes, found through sentinels.
    Sentinel {
        /// The master's name at the sentinels.
        master: String,
    },
}

/// Address of a store, as users write it:
///
/// * `redis://[user:password@]host[:port][/database]`
/// * `redis+cluster://[user:password@]host[:port],host[:port],…`
/// * `redis+sentinel://[user:password@]host[:port],host[:port],…/master[/database]`, with the addresses of sentinels
///
/// `rediss` instead of `redis` uses TLS; `valkey` and `valkeys` are synonyms. Displayed without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) topology: Topology,
    pub(crate) is_encrypted: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) nodes: Vec<(String, u16)>,
    pub(crate) database: i64,
}

/// The text is not a valid address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}; expected redis://host:port, redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/master, with rediss for TLS and user:password@ before the hosts"
)]
pub struct StoreUrlError {
    what: String,
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let bad = |what: String| Err(StoreUrlError { what });
        // Errors repeat only the names of hosts: a password may be anywhere in the text.
        let Some((scheme, rest)) = text.split_once("://") else { return bad("the address has no scheme".to_owned()) };
        let (kind, form) = scheme.split_once('+').map_or((scheme, None), |(kind, form)| (kind, Some(form)));
        let is_encrypted = match kind {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return bad("unknown scheme".to_owned()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return bad("a / precedes the last @; write / in a user or a password as %2F".to_owned());
        }
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (user, password) = (decoded(user)?, decoded(password)?);
        if [hosts, path].iter().any(|part| part.contains(['?', '#'])) {
            return bad("the address has parameters, which are not supported".to_owned());
        }
        let mut path = path.split('/').filter(|part| !part.is_empty());
        let topology = match form {
            None => Topology::Single,
            Some("cluster") => Topology::Cluster,
            Some("sentinel") => match path.next() {
                Some(master) => Topology::Sentinel { master: master.to_owned() },
                None => return bad("the master's name is missing after the sentinels".to_owned()),
            },
            Some(_) => return bad("unknown topology, neither cluster nor sentinel".to_owned()),
        };
        let database = match path.next() {
            None => 0,
            Some(_) if topology == Topology::Cluster => return bad("a cluster has no databases".to_owned()),
            Some(number) => match number.parse() {
                Ok(number) => number,
                Err(_) => return bad("what follows the hosts is not a number, the database".to_owned()),
            },
        };
        let port = if matches!(topology, Topology::Sentinel { .. }) { SENTINEL_PORT } else { REDIS_PORT };
        let nodes = hosts.split(',').map(|host| node(host, port)).collect::<Result<Vec<_>, _>>()?;
        if topology == Topology::Single && nodes.len() > 1 {
            return bad("several hosts need redis+cluster or redis+sentinel".to_owned());
        }
        Ok(Self { topology, is_encrypted, user, password, nodes, database })
    }
}

fn node(text: &str, default_port: u16) -> Result<(String, u16), StoreUrlError> {
    // IPv6 addresses are in brackets.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(default_port), |port| port.parse().ok().filter(|&port| port > 0));
    match port {
        _ if host.is_empty() => Err(StoreUrlError { what: "a host has no name".to_owned() }),
        Some(port) => Ok((host.to_owned(), port)),
        None => Err(StoreUrlError { what: format!("the port of host {host:?} is not a number from 1 to 65535") }),
    }
}

/// Decodes percent escapes of one part of the address; none if it is empty.
fn decoded(text: &str) -> Result<Option<String>, StoreUrlError> {
    let what = "a % in the user or password is not followed by two hexadecimal digits";
    let bad_escape = || StoreUrlError { what: what.to_owned() };
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for escape in parts {
        let (digits, plain) = escape.split_at_checked(2).ok_or_else(bad_escape)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad_escape())?);
        bytes.extend_from_slice(plain.as_bytes());
    }
    let text = String::from_utf8(bytes).map_err(|_| bad_escape())?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_encrypted { "rediss" } else { "redis" };
        let form = match self.topology {
            Topology::Single => "",
            Topology::Cluster => "+cluster",
            Topology::Sentinel { .. } => "+sentinel",
        };
        write!(f, "{kind}{form}://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        for (at, (host, port)) in self.nodes.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            write!(f, "{comma}{open}{host}{close}:{port}")?;
        }
        if let Topology::Sentinel { master } = &self.topology {
            write!(f, "/{master}")?;
        }
        if self.database > 0 {
            write!(f, "/{}", self.database)?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        text.parse::<StoreUrl>().map_or_else(|error| format!("error: {error}"), |url| url.to_string())
    }

    #[test]
    fn addresses_are_parsed_and_displayed_without_passwords() {
        assert_eq!(shown("redis://cache"), "redis://cache:6379");
        assert_eq!(shown("rediss://indexer:s%40cret@cache:7000/2"), "rediss://indexer@cache:7000/2");
        assert_eq!(shown("valkey+cluster://a:1,[::1]:2,c"), "redis+cluster://a:1,[::1]:2,c:6379");
        assert_eq!(shown("redis+sentinel://:secret@a,b:2/main"), "redis+sentinel://a:26379,b:2/main");
        let url: StoreUrl = "redis://indexer:s%40cr%3Aet@cache".parse().expect("an address");
        assert_eq!(url.password.as_deref(), Some("s@cr:et"));
        assert!(!format!("{url:?}").contains("cr:et"));
    }

    #[test]
    fn errors_name_the_mistake_and_not_the_password() {
        for (text, why) in [
            ("cache:6379", "no scheme"),
            ("http://secret@cache", "unknown scheme"),
            ("user:secret://x@cache", "unknown scheme"),
            ("user:secret@cache:1", "no scheme"),
            ("redis:/user:secret@cache", "no scheme"),
            ("redis+cluster//user:secret@cache", "no scheme"),
            ("redis+secret://a", "neither cluster nor sentinel"),
            ("redis+sentinel://a:1", "the master's name is missing"),
            ("redis://a,b", "several hosts"),
            ("redis://a:x", "the port of host \"a\" is not a number"),
            ("redis://user:secret", "the port of host \"user\" is not a number"),
            ("redis://:secret", "a host has no name"),
            ("redis://", "a host has no name"),
            ("redis://a?password=secret", "has parameters"),
            ("redis://a/?password=secret", "has parameters"),
            ("redis+sentinel://a/main?password=secret", "has parameters"),
            ("redis+sentinel://user:12/secret@a/main", "%2F"),
            ("redis://:secret%4@a", "hexadecimal"),
            ("redis+cluster://a/1", "no databases"),
            ("redis://a/one", "not a number"),
            ("redis://user:pass/secret@a", "%2F"),
            ("redis://user/secret@a", "%2F"),
        ] {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
