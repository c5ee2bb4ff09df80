//! Files with certificates and keys, in PEM.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flash_indexer_regular_files::{self as regular_files, ReadError};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::bearer_token::BearerTokenError;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Failure to load credentials from a file.
#[derive(Debug, thiserror::Error)]
#[error("failed to load the {role} {}: {cause}", .path.display())]
pub struct CredentialsError {
    role: FileRole,
    path: PathBuf,
    cause: FileCause,
}

/// Content of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileRole {
    Certificate,
    Key,
    Authorities,
    Token,
}

impl fmt::Display for FileRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::Key => "private key",
            Self::Authorities => "certificate authorities",
            Self::Token => "bearer token",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FileCause {
    #[error("{0}; create the file, or make it readable")]
    Read(io::Error),
    #[error("it exceeds {FILE_BYTES_MAX} bytes; leave out what is not needed")]
    TooLarge,
    #[error("it is not PEM: {0}; write it in PEM, with its BEGIN and END lines")]
    Pem(pem::Error),
    #[error("it has no certificate; write certificates in PEM")]
    NoCertificate,
    #[error("it has no private key; write one in PEM, in PKCS #8, PKCS #1 or SEC 1 form, without a passphrase")]
    NoKey,
    #[error("{error}; give the private key of the first certificate in {}", .certificate.display())]
    Pair { error: rustls::Error, certificate: PathBuf },
    #[error("{0}; write certificates of authorities in PEM")]
    Authority(String),
    #[error(transparent)]
    Token(#[from] BearerTokenError),
}

impl From<ReadError> for FileCause {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Read(error),
            ReadError::TooLarge { .. } => Self::TooLarge,
        }
    }
}

impl FileCause {
    pub(crate) fn of(self, role: FileRole, path: &Path) -> CredentialsError {
        CredentialsError { role, path: path.to_owned(), cause: self }
    }
}

/// Files of a certificate chain, the owner's certificate first, and of its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// File of the chain.
    pub certificate: PathBuf,
    /// File of the private key.
    pub key: PathBuf,
}

/// A certificate chain and its private key, as read. `Debug` is not implemented because of the key.
#[derive(PartialEq, Eq)]
pub(crate) struct KeyPair {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// Content of the key's file, in the form that an HTTP client takes.
    pub(crate) key_pem: Vec<u8>,
}

impl KeyPair {
    /// Reads a pair, and checks that the key is the certificate's.
    pub(crate) fn read(files: &KeyPairFiles) -> Result<Self, CredentialsError> {
        let KeyPairFiles { certificate, key: key_file } = files;
        let chain = read_certificates(certificate).map_err(|cause| cause.of(FileRole::Certificate, certificate))?;
        let of_key = |cause: FileCause| cause.of(FileRole::Key, key_file);
        let key_pem = regular_files::read(key_file, FILE_BYTES_MAX).map_err(|error| of_key(error.into()))?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| match error {
            pem::Error::NoItemsFound => of_key(FileCause::NoKey),
            error => of_key(FileCause::Pem(error)),
        })?;
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider())
            .map_err(|error| of_key(FileCause::Pair { error, certificate: certificate.clone() }))?;
        Ok(Self { chain, key, key_pem })
    }
}

/// Certificates of trusted authorities.
#[derive(PartialEq, Eq)]
pub(crate) struct Authorities(pub(crate) Vec<CertificateDer<'static>>);

impl Authorities {
    pub(crate) fn read(path: &Path) -> Result<Self, CredentialsError> {
        let authorities = read_certificates(path).map(Self);
        let checked = authorities.and_then(|authorities| authorities.roots().map(|_| authorities));
        checked.map_err(|cause| cause.of(FileRole::Authorities, path))
    }

    /// The authorities as trust anchors.
    pub(crate) fn roots(&self) -> Result<RootCertStore, FileCause> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.0 {
            roots.add(certificate.clone()).map_err(|error| FileCause::Authority(error.to_string()))?;
        }
        Ok(roots)
    }
}

/// Cryptography of every connection.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads a text file, such as one with a token.
pub(crate) fn read_text(path: &Path) -> Result<String, FileCause> {
    Ok(regular_files::read_text(path, FILE_BYTES_MAX)?)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileCause> {
    let pem = regular_files::read(path, FILE_BYTES_MAX)?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(FileCause::Pem)?;
    if certificates.is_empty() { Err(FileCause::NoCertificate) } else { Ok(certificates) }
}
