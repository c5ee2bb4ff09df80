//! Content type and content encoding of a request's body.

use std::io::{self, Read};

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use flate2::read::MultiGzDecoder;

use super::error::ApiError;

/// Content type of binary bodies.
pub(super) const OCTET_STREAM: &str = "application/octet-stream";

/// Content encodings that are accepted.
pub(super) const ENCODINGS: &str = "gzip, zstd";

/// Largest window of a zstd frame, as a power of two: the 8 MiB that RFC 9659 allows in HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Forms of a body that an endpoint accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    Json,
    JsonOrBinary,
}

/// Form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyForm {
    Json,
    /// Numbers in little-endian order; the other fields are in the query string.
    Binary,
}

impl BodyForm {
    /// The form of a body with these headers. Rejects a body that a web page of another origin may have sent without a CORS
    /// preflight.
    ///
    /// A browser sends a preflight before `application/json` and `application/octet-stream`. The other accepted types are
    /// the defaults of clients such as `curl -d`; a browser adds `Origin` or `Sec-Fetch-Site` to requests with these types.
    pub(super) fn of(headers: &HeaderMap, accepted: Accepted) -> Result<Self, ApiError> {
        let given = headers.get(CONTENT_TYPE).map(|given| given.to_str().unwrap_or_default());
        let essence = given.map(|given| given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let is_of_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
        match essence.as_deref() {
            Some("application/json") => Ok(Self::Json),
            Some(essence) if essence.starts_with("application/") && essence.ends_with("+json") => Ok(Self::Json),
            None | Some("application/x-www-form-urlencoded") if !is_of_browser => Ok(Self::Json),
            Some(OCTET_STREAM) if accepted == Accepted::JsonOrBinary => Ok(Self::Binary),
            None | Some(_) => Err(ApiError::unsupported_type(given.unwrap_or("none"), accepted)),
        }
    }
}

/// Content encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentEncoding {
    Identity,
    Gzip,
    Zstd,
}

impl ContentEncoding {
    /// The encoding of a body with these headers.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let lists = headers.get_all(CONTENT_ENCODING).iter().map(|list| list.to_str().unwrap_or("not a text"));
        let encodings = lists.flat_map(|list| list.split(',')).map(|encoding| encoding.trim().to_ascii_lowercase());
        let encodings: Vec<_> =
            encodings.filter(|encoding| !encoding.is_empty() && encoding.as_str() != "identity").collect();
        match encodings.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Identity),
            ["gzip" | "x-gzip"] => Ok(Self::Gzip),
            ["zstd"] => Ok(Self::Zstd),
            _ => Err(ApiError::unsupported_encoding(&encodings.join(", "))),
        }
    }

    /// Decodes a body to at most one byte more than `bytes_max`.
    pub(super) fn decode(self, body: Vec<u8>, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
        match self {
            Self::Identity => Ok(body),
            Self::Gzip | Self::Zstd => self.decompress(&body, bytes_max),
        }
    }

    /// Decompresses a body to at most one byte more than `bytes_max`.
    pub(super) fn decompress(self, body: &[u8], bytes_max: usize) -> Result<Vec<u8>, ApiError> {
        let decompressed = match self {
            Self::Identity => Ok(body.to_vec()),
            Self::Gzip => read_up_to(bytes_max + 1, MultiGzDecoder::new(body)),
            Self::Zstd => zstd_decoder(body).and_then(|decoder| read_up_to(bytes_max + 1, decoder)),
        };
        decompressed.map_err(|error| {
            ApiError::bad_request(format!(
                "failed to decompress the body: {error}; compress it as the header content-encoding says"
            ))
        })
    }
}

fn zstd_decoder(body: &[u8]) -> io::Result<impl Read> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(decoder)
}

fn read_up_to(bytes_max: usize, from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
