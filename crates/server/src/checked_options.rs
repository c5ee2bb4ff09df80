//! The check of a server's options before anything is bound, and the files that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use flash_indexer_access::{JwtKeyFile, LimitsFile, TokenFile};
use flash_indexer_credentials::{ClientCredentials, ServerTls};
use flash_indexer_registry::RegistrationError;
use flash_indexer_snapshot::DirectoryError;

use crate::server::{ServerOptions, StartError};

/// Files that options name, loaded.
pub(crate) struct OptionFiles {
    pub(crate) limits: Option<Arc<LimitsFile>>,
    pub(crate) tokens: Option<Arc<TokenFile>>,
    pub(crate) jwt_keys: Option<Arc<JwtKeyFile>>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) peer_credentials: ClientCredentials,
}

impl ServerOptions {
    /// Checks the options as [`Server::start`](crate::Server::start) does before it binds an address: addresses, engines, and the
    /// files that are read at the start. Connects to nothing and writes nothing.
    ///
    /// # Errors
    ///
    /// The first error with which the start would fail.
    pub fn check(&self) -> Result<(), StartError> {
        self.checked().map(drop)
    }

    /// Checks the options, and loads their files.
    pub(crate) fn checked(&self) -> Result<OptionFiles, StartError> {
        self.check_ports()?;
        if let Some(pods) = &self.pods {
            pods.check()?;
        }
        self.check_registrations()?;
        if let Some(snapshots) = &self.snapshots {
            check_directory(&snapshots.directory)?;
        }
        self.check_load()?;
        if let Some(traces) = &self.traces {
            ClientCredentials::load(&traces.credentials)?;
        }
        let jwt_keys = self.jwt.as_ref().map(|(keys, _)| JwtKeyFile::load(keys)).transpose()?;
        Ok(OptionFiles {
            limits: self.limits_file.as_deref().map(LimitsFile::load).transpose()?.map(Arc::new),
            tokens: self.token_file.as_deref().map(TokenFile::load).transpose()?.map(Arc::new),
            jwt_keys: jwt_keys.map(Arc::new),
            tls: self.tls.clone().map(ServerTls::load).transpose()?.map(Arc::new),
            peer_credentials: ClientCredentials::load(&self.peer_credentials)?,
        })
    }

    /// Rejects two listeners with one address.
    fn check_ports(&self) -> Result<(), StartError> {
        let picker = self.endpoint_picker.as_ref().map(|picker| picker.address);
        let picker = picker.map(|address| (address.ip().to_string(), address.port()));
        let own = [Some(self.port), self.grpc_port].into_iter().flatten().map(|port| (self.host.clone(), port));
        let mut addresses = BTreeSet::new();
        for (host, port) in own.chain(picker).filter(|(_, port)| *port != 0) {
            if !addresses.insert((host.clone(), port)) {
                let source = io::Error::new(io::ErrorKind::AddrInUse, "two options give this address");
                return Err(StartError::Bind { host, port, source });
            }
        }
        Ok(())
    }

    fn check_registrations(&self) -> Result<(), StartError> {
        let mut ranks = BTreeMap::new();
        for registration in &self.registrations {
            let rejected = |source| StartError::Registration { instance: registration.instance.to_string(), source };
            self.indexer.check_configured(registration).map_err(rejected)?;
            let first = *ranks.entry(registration.rank_id()).or_insert(registration);
            if first != registration {
                let (instance, dp_rank) = (registration.instance.clone(), registration.dp_rank);
                let existing = first.options.endpoint.clone();
                return Err(rejected(RegistrationError::Rank { instance, dp_rank, existing }));
            }
        }
        Ok(())
    }

    /// Rejects a dump that cannot be opened, if nothing else precedes it: with a snapshot or a peer it may be gone.
    fn check_load(&self) -> Result<(), StartError> {
        if let Some(path) = self.load.as_ref().filter(|_| self.snapshots.is_none() && self.peers.is_empty()) {
            File::open(path).map_err(|source| StartError::Load { path: path.display().to_string(), source })?;
        }
        Ok(())
    }
}

/// Rejects a path that is not a directory. A directory that does not exist is created at the start.
fn check_directory(path: &Path) -> Result<(), StartError> {
    if path.metadata().is_ok_and(|found| !found.is_dir()) {
        let (path, source) = (path.display().to_string(), io::ErrorKind::NotADirectory.into());
        return Err(DirectoryError::Open { path, source }.into());
    }
    Ok(())
}
