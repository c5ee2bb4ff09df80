//! Credentials of connections: certificates of listeners, certificates and bearer tokens of HTTP clients.
//!
//! ```no_run
//! use flash_indexer_credentials::{ApplicationProtocol, KeyPairFiles, ServerTls, TlsFiles};
//!
//! let pair = KeyPairFiles { certificate: "tls.crt".into(), key: "tls.key".into() };
//! let tls = ServerTls::load(TlsFiles { pair, client_ca: Some("clients.crt".into()) })?;
//! let config = tls.config(ApplicationProtocol::Http1);
//! # Ok::<(), flash_indexer_credentials::CredentialsError>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `files.rs` | reading of PEM files, with errors that name the file and the fix |
//! | `server.rs` | TLS of a listener, replaced when its files change |
//! | `client.rs`, `bearer_token.rs` | credentials of an HTTP client; its bearer token |

mod bearer_token;
mod client;
mod files;
mod server;

pub use bearer_token::{BearerToken, BearerTokenError};
pub use client::{ClientCredentials, ClientFiles, tls_remedy};
pub use files::{CredentialsError, KeyPairFiles};
pub use server::{ApplicationProtocol, ServerTls, TlsFiles};
