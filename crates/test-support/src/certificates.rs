//! Authorities and the certificates that they issue.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

/// An authority, and a folder for its files.
pub struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Files of a certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct IssuedFiles {
    /// File of the certificate.
    pub certificate: PathBuf,
    /// File of the private key.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Panics
    ///
    /// When the system provides no random bytes or no folder.
    #[must_use]
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("random bytes");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("authority {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { folder: tempfile::tempdir().expect("a folder"), issuer: Issuer::new(params, key), pem }
    }

    /// Path of a file of this name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the authority's own certificate.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn write_to(&self, path: &Path) {
        std::fs::write(path, &self.pem).expect("a file");
    }

    /// File of the authority's own certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        let path = self.path("ca.crt");
        self.write_to(&path);
        path
    }

    /// Issues a certificate for `localhost` and `127.0.0.1` into files of this name.
    #[must_use]
    pub fn issue(&self, name: &str) -> IssuedFiles {
        let files =
            IssuedFiles { certificate: self.path(&format!("{name}.crt")), key: self.path(&format!("{name}.key")) };
        self.issue_to(&files);
        files
    }

    /// Issues a certificate for `localhost` and `127.0.0.1` into these files, and replaces their content.
    ///
    /// # Panics
    ///
    /// When a file cannot be written.
    pub fn issue_to(&self, files: &IssuedFiles) {
        let key = KeyPair::generate().expect("random bytes");
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(&files.certificate, certificate.pem()).expect("a file");
        std::fs::write(&files.key, key.serialize_pem()).expect("a file");
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
