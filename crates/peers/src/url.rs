//! Base URL of another indexer.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use flash_indexer_types::endpoints::{HostError, check_host};
use flash_indexer_types::masked_url;
use flash_indexer_types::names::ENDPOINT_BYTES_MAX;
use serde::Serialize;
use ureq::http::Uri;

/// Base URL of another indexer, such as `http://replica-b:8090`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct PeerUrl(String);

/// Text that is not the URL of an indexer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid peer URL {url:?}: {cause}; expected one such as http://replica-b:8090")]
pub struct PeerUrlError {
    url: String,
    cause: Cow<'static, str>,
}

impl PeerUrl {
    /// Name or address of the host.
    #[must_use]
    pub fn host(&self) -> String {
        let uri: Uri = self.0.parse().expect("it was parsed before");
        uri.host().unwrap_or_default().to_owned()
    }

    /// The URL without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PeerUrl {
    type Err = PeerUrlError;

    fn from_str(text: &str) -> Result<Self, PeerUrlError> {
        let url = text.trim().trim_end_matches('/');
        let refuse = |cause| Err(PeerUrlError { url: masked_url(url).chars().take(128).collect(), cause });
        let invalid = |cause| refuse(Cow::Borrowed(cause));
        if url.len() > ENDPOINT_BYTES_MAX {
            return invalid("it is too long");
        }
        let Ok(uri) = url.parse::<Uri>() else { return invalid("it cannot be parsed") };
        match uri.scheme_str() {
            Some("http" | "https") => {}
            _ => return invalid("it starts with neither http:// nor https://"),
        }
        let Some(authority) = uri.authority() else { return invalid("there is no host") };
        if authority.host().is_empty() {
            return invalid("there is no host");
        }
        match check_host(authority.host()) {
            Ok(()) => {}
            Err(HostError::Malformed(cause)) => return invalid(cause),
            Err(refused) => return refuse(Cow::Owned(refused.to_string())),
        }
        if authority.port_u16() == Some(0) {
            return invalid("the port is 0");
        }
        if authority.as_str().contains('@') {
            return invalid("it has a user");
        }
        if authority
            .as_str()
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.ends_with(']') && port.parse::<u16>().is_err())
        {
            return invalid("the port is not a number from 0 to 65535");
        }
        if uri.query().is_some() || url.contains('#') {
            return invalid("it has a query");
        }
        Ok(Self(url.to_owned()))
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
