//! Content encodings of bodies and messages.

use std::io::{self, Read};

use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::bufread::GzDecoder;

use crate::large_requests::LARGE_BYTES;

/// Largest window of a zstd frame, as a power of two: the 8 MiB that RFC 9659 allows in HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Members of a gzip body. Clients send one; an empty one of 20 bytes costs a separate decompressor.
const GZIP_MEMBERS_MAX: usize = 16;

/// Content encodings that are accepted.
pub const ENCODINGS: &str = "gzip, zstd";

/// Content encoding of a body, or of gRPC messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEncoding {
    /// No encoding.
    Identity,
    /// gzip, with one or a few members.
    Gzip,
    /// zstd.
    Zstd,
}

impl ContentEncoding {
    /// The encoding of a body with these headers.
    pub fn of(headers: &HeaderMap) -> Result<Self, UnknownEncoding> {
        let lists = headers.get_all(CONTENT_ENCODING).iter().map(|list| list.to_str().unwrap_or("not a text"));
        let encodings = lists.flat_map(|list| list.split(',')).map(|encoding| encoding.trim().to_ascii_lowercase());
        let encodings: Vec<_> =
            encodings.filter(|encoding| !encoding.is_empty() && encoding.as_str() != "identity").collect();
        match encodings.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Identity),
            ["gzip" | "x-gzip"] => Ok(Self::Gzip),
            ["zstd"] => Ok(Self::Zstd),
            _ => Err(UnknownEncoding(encodings.join(", "))),
        }
    }

    /// Decodes a body to at most one byte more than `bytes_max`.
    pub fn decode(self, body: Vec<u8>, bytes_max: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Identity => Ok(body),
            Self::Gzip | Self::Zstd => self.decompress(&body, bytes_max),
        }
    }

    /// Decompresses a body to at most one byte more than `bytes_max`.
    pub fn decompress(self, body: &[u8], bytes_max: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Identity => Ok(body.to_vec()),
            Self::Gzip => gunzip(body, bytes_max + 1),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                let mut bytes = Vec::new();
                decoder.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// The encoding of a gRPC call's messages. Other encodings are refused.
    pub fn of_messages(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"gzip") => Self::Gzip,
            Some(b"zstd") => Self::Zstd,
            _ => Self::Identity,
        }
    }

    /// Whether a body with this encoding has a small content. It is decompressed up to the length of a small one. Errors are reported by
    /// its reader.
    pub fn is_small(self, body: &[u8]) -> bool {
        self.decompress(body, LARGE_BYTES).is_ok_and(|content| content.len() <= LARGE_BYTES)
    }
}

/// A body has an encoding that is not accepted.
#[derive(Debug)]
pub struct UnknownEncoding(pub String);

/// Decompresses the members of a gzip body, to at most `bytes_max` bytes. Each member costs as much as some kilobytes.
fn gunzip(mut body: &[u8], bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut member = GzDecoder::new(body);
        (&mut member).take((bytes_max - bytes.len()) as u64).read_to_end(&mut bytes)?;
        body = member.into_inner();
        if body.is_empty() || bytes.len() == bytes_max {
            return Ok(bytes);
        }
    }
    let cause = format!("it has more than {GZIP_MEMBERS_MAX} gzip members; send one");
    Err(io::Error::new(io::ErrorKind::InvalidData, cause))
}
