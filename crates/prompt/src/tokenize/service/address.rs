//! Addresses of tokenizer services.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

/// An address of a tokenizer service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAddress {
    /// A Unix socket: `unix:/run/tokenizer.sock`.
    Unix(PathBuf),
    /// Host and port: `tcp://localhost:50051`, also without `tcp://` or with `http://`.
    Tcp(String),
}

/// A text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid address of a tokenizer service {0:?}; expected unix:/path/of/socket or tcp://host:port")]
pub struct AddressError(String);

impl FromStr for ServiceAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let authority = ["tcp://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
        let (host, port) = authority.trim_end_matches('/').rsplit_once(':').ok_or_else(wrong)?;
        let has_plain_host = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if has_plain_host { Ok(Self::Tcp(format!("{host}:{port}"))) } else { Err(wrong()) }
    }
}

impl Display for ServiceAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(authority) => write!(f, "tcp://{authority}"),
        }
    }
}
