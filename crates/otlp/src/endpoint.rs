//! The URL of a collector.

use std::fmt;
use std::str::FromStr;

use flash_indexer_types::names::shortened;
use ureq::http::Uri;

/// Path of spans at a collector.
const TRACES_PATH: &str = "/v1/traces";

/// URL to which spans are sent, such as `http://collector:4318/v1/traces`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

/// Text that is not the URL of a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid collector URL {url:?}: {cause}; expected one such as http://collector:4318")]
pub struct OtlpEndpointError {
    url: String,
    cause: &'static str,
}

impl OtlpEndpoint {
    /// The URL, with the path of spans.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the port is the usual one of OTLP over gRPC.
    pub(crate) fn has_grpc_port(&self) -> bool {
        self.0.parse::<Uri>().is_ok_and(|uri| uri.port_u16() == Some(4317))
    }
}

impl FromStr for OtlpEndpoint {
    type Err = OtlpEndpointError;

    /// Reads a collector's URL. `/v1/traces` is appended unless the path ends so.
    fn from_str(text: &str) -> Result<Self, OtlpEndpointError> {
        let text = text.trim();
        let refuse = |cause| Err(OtlpEndpointError { url: shortened(text).into_owned(), cause });
        if text.starts_with("grpc://") || text.starts_with("grpcs://") {
            return refuse("spans are sent over HTTP; give the collector's port for OTLP over HTTP, usually 4318");
        }
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return refuse("it starts with neither http:// nor https://");
        }
        let url = text.trim_end_matches('/');
        let Some(uri) = url.parse::<Uri>().ok().filter(|uri| uri.scheme().is_some()) else {
            return refuse("it cannot be parsed");
        };
        let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
            return refuse("there is no host");
        };
        if authority.as_str().contains('@') {
            return Err(OtlpEndpointError { url: "(with a user)".to_owned(), cause: "it has a user" });
        }
        let port = authority.as_str().strip_prefix(authority.host()).and_then(|port| port.strip_prefix(':'));
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return refuse("the port is not a number from 1 to 65535");
        }
        if uri.query().is_some() || url.contains('#') {
            return refuse("it has a query");
        }
        let path = if url.ends_with(TRACES_PATH) { "" } else { TRACES_PATH };
        Ok(Self(format!("{url}{path}")))
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_base_url_or_the_url_of_spans() {
        for (given, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            (" https://[::1]:4318/ ", "https://[::1]:4318/v1/traces"),
            ("http://10.0.0.1/otlp/", "http://10.0.0.1/otlp/v1/traces"),
            ("http://collector/v1/traces", "http://collector/v1/traces"),
        ] {
            assert_eq!(given.parse::<OtlpEndpoint>().expect(given).as_str(), url);
        }
        for (given, cause) in [
            ("collector:4318", "neither http:// nor https://"),
            ("", "neither http:// nor https://"),
            ("grpc://collector:4317", "usually 4318"),
            ("http://", "cannot be parsed"),
            ("http://:4318", "there is no host"),
            ("http://collector:0", "the port"),
            ("http://collector:x", "the port"),
            ("http://collector:99999", "the port"),
            ("http://collector:4318/?a=b", "a query"),
            ("http://collector:4318/#a", "a query"),
            ("http://user:secret@collector:4318", "it has a user"),
        ] {
            let error = given.parse::<OtlpEndpoint>().expect_err(given).to_string();
            assert!(error.contains(cause) && error.contains("http://collector:4318"), "{given}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
