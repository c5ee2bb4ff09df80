//! TLS of a listener.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use crate::files::{Authorities, CredentialsError, FileCause, FileRole, KeyPair, KeyPairFiles, provider};

/// Files of a listener's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain and its key.
    pub pair: KeyPairFiles,
    /// Authorities of client certificates. With this file, a client without a certificate of such an authority is refused.
    pub client_ca: Option<PathBuf>,
}

/// Protocol inside TLS, which client and server negotiate (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplicationProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, which gRPC needs.
    Http2,
}

impl ApplicationProtocol {
    const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    const fn id(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// TLS of the listeners of a service, replaced as a whole when a file changes.
///
/// Consistency: a connection keeps the certificates with which it began. Files that cannot be used leave the previous
/// certificates in force.
pub struct ServerTls {
    files: TlsFiles,
    current: ArcSwap<LoadedFiles>,
}

struct LoadedFiles {
    contents: Contents,
    /// By [`ApplicationProtocol`].
    configs: [Arc<ServerConfig>; 2],
}

#[derive(PartialEq, Eq)]
struct Contents {
    pair: KeyPair,
    client_ca: Option<Authorities>,
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if the key does not match the certificate.
    pub fn load(files: TlsFiles) -> Result<Self, CredentialsError> {
        let loaded = Contents::read(&files)?.loaded(&files)?;
        Ok(Self { files, current: ArcSwap::from_pointee(loaded) })
    }

    /// Reads the files again. Returns whether they have changed. It blocks on the file system.
    ///
    /// # Errors
    ///
    /// Fails as [`ServerTls::load`] does. The previous certificates stay in force.
    pub fn refresh(&self) -> Result<bool, CredentialsError> {
        let contents = Contents::read(&self.files)?;
        let has_changed = self.current.load().contents != contents;
        if has_changed {
            self.current.store(Arc::new(contents.loaded(&self.files)?));
        }
        Ok(has_changed)
    }

    /// Configuration of the next connection.
    #[must_use]
    pub fn config(&self, protocol: ApplicationProtocol) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().configs[protocol as usize])
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, CredentialsError> {
        let pair = KeyPair::read(&files.pair)?;
        Ok(Self { pair, client_ca: files.client_ca.as_deref().map(Authorities::read).transpose()? })
    }

    fn loaded(self, files: &TlsFiles) -> Result<LoadedFiles, CredentialsError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites of every version");
        let config = match self.client_ca.as_ref().zip(files.client_ca.as_deref()) {
            None => config.with_no_client_auth(),
            Some((authorities, path)) => {
                let verifier = authorities.roots().and_then(|roots| {
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                        .build()
                        .map_err(|error| FileCause::Authority(error.to_string()))
                });
                config.with_client_cert_verifier(verifier.map_err(|cause| cause.of(FileRole::Authorities, path))?)
            }
        };
        let KeyPair { chain, key, .. } = &self.pair;
        let config = config.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| {
            let certificate = files.pair.certificate.clone();
            FileCause::Pair { error, certificate }.of(FileRole::Key, &files.pair.key)
        })?;
        let configs = ApplicationProtocol::ALL.map(|protocol| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.id().to_vec()];
            Arc::new(config)
        });
        Ok(LoadedFiles { contents: self, configs })
    }
}
