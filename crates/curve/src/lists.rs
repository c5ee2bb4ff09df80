//! Lists of public keys. Each line has a key and its owner; a line that begins with `#` is a comment.

use std::collections::{HashMap, HashSet};

use crate::keys::PublicKey;

/// Limit of the keys in a list.
const KEYS_MAX: usize = 65_536;
/// Instead of an address: every address that no other line names.
const ANY: &str = "*";

/// A line of a list that has no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The line does not begin with a key.
    #[error("line {line} does not begin with a public key of 40 characters in Z85; write {form}")]
    NoKey {
        /// Number of the line, from one.
        line: usize,
        /// Form of a line.
        form: &'static str,
    },
    /// The line names no address.
    #[error("line {line} names no address after the key; write KEY HOST, KEY HOST:PORT, KEY ipc://PATH or KEY *")]
    NoAddress {
        /// Number of the line, from one.
        line: usize,
    },
    /// An address has two keys.
    #[error("line {line} gives a second key for {address}; leave one of them")]
    SecondKey {
        /// Number of the line, from one.
        line: usize,
        /// The address.
        address: String,
    },
    /// The list is too long.
    #[error("it has more than {KEYS_MAX} keys; remove unused ones")]
    TooMany,
}

/// Public keys of servers by their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerKeys(HashMap<String, PublicKey>);

impl ServerKeys {
    /// Reads lines `KEY ADDRESS…`, where an address is `HOST`, `HOST:PORT`, `ipc://PATH` or `*`.
    ///
    /// # Errors
    ///
    /// When a line is malformed, or gives an address a second key.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let mut keys = HashMap::new();
        for (line, key, rest) in keyed_lines(text, "KEY ADDRESS…") {
            let key = key?;
            let mut addresses = rest.split_whitespace().peekable();
            if addresses.peek().is_none() {
                return Err(ListError::NoAddress { line });
            }
            for address in addresses {
                let address = address.strip_prefix("tcp://").unwrap_or(address).to_ascii_lowercase();
                if keys.insert(address.clone(), key).is_some_and(|known| known != key) {
                    return Err(ListError::SecondKey { line, address });
                }
                if keys.len() > KEYS_MAX {
                    return Err(ListError::TooMany);
                }
            }
        }
        Ok(Self(keys))
    }

    /// The key of the server at an endpoint such as `tcp://host:5557`: the key of its host and port, else of its host, else of `*`.
    #[must_use]
    pub fn of_endpoint(&self, endpoint: &str) -> Option<PublicKey> {
        let address = endpoint.strip_prefix("tcp://").unwrap_or(endpoint).to_ascii_lowercase();
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        [&*address, host, ANY].into_iter().find_map(|address| self.0.get(address).copied())
    }
}

/// Public keys of admitted clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientKeys(HashSet<PublicKey>);

impl ClientKeys {
    /// Reads lines `KEY`, with any text after the key.
    ///
    /// # Errors
    ///
    /// When a line is malformed.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let keys = keyed_lines(text, "KEY, with a name after it").map(|(_, key, _)| key);
        let keys: HashSet<_> = keys.take(KEYS_MAX + 1).collect::<Result<_, _>>()?;
        if keys.len() > KEYS_MAX { Err(ListError::TooMany) } else { Ok(Self(keys)) }
    }

    /// Whether a client with this key is admitted.
    #[must_use]
    pub fn admit(&self, key: &PublicKey) -> bool {
        self.0.contains(key)
    }
}

/// Lines with their numbers, keys, and the text after the key.
fn keyed_lines<'t>(
    text: &'t str,
    form: &'static str,
) -> impl Iterator<Item = (usize, Result<PublicKey, ListError>, &'t str)> {
    text.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim();
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match first.parse() {
            Ok(key) => Some((at + 1, Ok(key), rest)),
            // No key begins with the character: its first digit would be too large.
            Err(_) if line.is_empty() || line.starts_with('#') => None,
            Err(_) => Some((at + 1, Err(ListError::NoKey { line: at + 1, form }), rest)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyPair;

    fn keys<const N: usize>() -> [PublicKey; N] {
        std::array::from_fn(|_| KeyPair::generate().expect("CURVE").public())
    }

    #[test]
    fn the_most_specific_address_of_an_endpoint_has_its_key() {
        let [port, host, any, path] = keys();
        let text =
            format!("# engines\n{port} GPU-1:5557\n\n{host} gpu-1 [fd00::1]\n{any} *\n{path} ipc:///run/engine\n");
        let servers = ServerKeys::parse(&text).expect("a list");
        for (endpoint, key) in [
            ("tcp://gpu-1:5557", port),
            ("tcp://gpu-1:6557", host),
            ("tcp://[FD00::1]:5557", host),
            ("tcp://gpu-2:5557", any),
            ("ipc:///run/engine", path),
        ] {
            assert_eq!(servers.of_endpoint(endpoint), Some(key), "{endpoint}");
        }
        let some = ServerKeys::parse(&format!("{port} gpu-1:5557")).expect("a list");
        assert_eq!(some.of_endpoint("tcp://gpu-1:5558"), None);
    }

    #[test]
    fn a_malformed_line_is_an_error_that_names_it() {
        let [one, other] = keys();
        let error = |text: &str| ServerKeys::parse(text).expect_err("an error").to_string();
        assert!(error(&format!("{one} a\nnot-a-key b")).starts_with("line 2 does not begin with a public key"));
        assert!(error(&one.to_string()).starts_with("line 1 names no address"));
        assert!(error(&format!("{one} a\n{other} a")).starts_with("line 2 gives a second key for a"));
        assert!(ServerKeys::parse(&format!("{one} a\n{one} a")).is_ok());
        assert!(ClientKeys::parse("word").is_err());
    }

    #[test]
    fn listed_clients_alone_are_admitted() {
        let [listed, other] = keys();
        let clients = ClientKeys::parse(&format!("# relays\n{listed} the relay of gpu-1\n")).expect("a list");
        assert!(clients.admit(&listed) && !clients.admit(&other));
    }
}
