//! Connections to the store.

mod cluster;
mod node;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode, Value,
};

use self::cluster::ClusterLink;
use self::node::{Dialler, NodeLink};
use crate::environment::SimulatedLink;
use crate::error::StoreError;
use crate::script::Call;
use crate::url::{StoreUrl, Topology};

/// Credentials for the store, and the authorities for its certificate.
#[derive(Clone, Default)]
pub struct Credentials {
    /// User name, if the address has none.
    pub user: Option<String>,
    /// Password, if the address has none.
    pub password: Option<String>,
    /// PEM certificates of the authorities that replace the system's.
    pub authorities: Option<Vec<u8>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Link to the store, shared by concurrent calls.
pub(crate) enum Link {
    /// Link to a single node with all keys.
    Node(Arc<NodeLink>),
    /// Links to the nodes of a cluster.
    Cluster(Arc<ClusterLink>),
    /// Link to the store of a simulation.
    Simulated(Arc<dyn SimulatedLink>),
}

impl Link {
    /// A link to a store. `probe_key` is any key that the user may read.
    pub(crate) fn new(url: &StoreUrl, credentials: &Credentials, probe_key: String) -> Result<Self, StoreError> {
        let unusable = |error: redis::RedisError| StoreError::Refused(error.to_string());
        let settings = Settings::of(url, credentials);
        let dialler = match &url.topology {
            Topology::Single => {
                let (host, port) = url.nodes.first().expect("an address has a node at least");
                Dialler::Node(Box::new(settings.client(host, *port).map_err(unusable)?))
            }
            Topology::Sentinel { master } => {
                let sentinels = settings.sentinels(&url.nodes, master).map_err(unusable)?;
                Dialler::Sentinel(Box::new(tokio::sync::Mutex::new(sentinels)))
            }
            Topology::Cluster => {
                return Ok(Self::Cluster(Arc::new(ClusterLink::new(settings, url.nodes.clone(), probe_key))));
            }
        };
        Ok(Self::Node(Arc::new(NodeLink::new(dialler))))
    }

    /// Connects and reconnects, in a separate task.
    pub(crate) async fn maintain(self: Arc<Self>) {
        match &*self {
            Self::Node(node) => Arc::clone(node).maintain().await,
            Self::Cluster(cluster) => Arc::clone(cluster).maintain().await,
            // The simulation controls when it is connected.
            Self::Simulated(_) => {}
        }
    }

    /// Whether all keys can be read and written.
    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Node(node) => node.is_connected(),
            Self::Cluster(cluster) => cluster.is_connected(),
            Self::Simulated(link) => link.is_connected(),
        }
    }

    /// Whether some keys can be read and written.
    pub(crate) fn is_usable(&self) -> bool {
        match self {
            Self::Cluster(cluster) => cluster.is_usable(),
            Self::Node(_) | Self::Simulated(_) => self.is_connected(),
        }
    }

    pub(crate) fn last_error(&self) -> String {
        match self {
            Self::Node(node) => node.last_error(),
            Self::Cluster(cluster) => cluster.last_error(),
            Self::Simulated(_) => "simulated".to_owned(),
        }
    }

    /// Runs a script and returns its response.
    pub(crate) async fn call(&self, call: &Call, deadline: Duration) -> Result<Value, StoreError> {
        match self {
            Self::Node(node) => node.call(call, deadline).await,
            Self::Cluster(cluster) => cluster.call(call, deadline).await,
            Self::Simulated(link) => link.call(call.script_call(), deadline).await,
        }
    }
}

/// Connection settings, equal for all nodes.
struct Settings {
    is_encrypted: bool,
    user: Option<String>,
    password: Option<String>,
    authorities: Option<Vec<u8>>,
    database: i64,
}

impl Settings {
    fn of(url: &StoreUrl, credentials: &Credentials) -> Self {
        Self {
            is_encrypted: url.is_encrypted,
            user: url.user.clone().or_else(|| credentials.user.clone()),
            password: url.password.clone().or_else(|| credentials.password.clone()),
            authorities: credentials.authorities.clone(),
            database: url.database,
        }
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: self.authorities.clone() }
    }

    fn address(&self, host: &str, port: u16) -> ConnectionAddr {
        match self.is_encrypted {
            false => ConnectionAddr::Tcp(host.to_owned(), port),
            true => ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None },
        }
    }

    fn client(&self, host: &str, port: u16) -> RedisResult<Client> {
        let mut settings = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let info = self.address(host, port).into_connection_info()?.set_redis_settings(settings);
        if self.is_encrypted { Client::build_with_tls(info, self.certificates()) } else { Client::open(info) }
    }

    fn sentinels(&self, nodes: &[(String, u16)], master: &str) -> RedisResult<SentinelClient> {
        let addresses = nodes.iter().map(|(host, port)| self.address(host, *port));
        let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
            .set_client_to_redis_db(self.database);
        if let Some(user) = &self.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if self.is_encrypted {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(self.certificates())
                .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_certificates(self.certificates());
        }
        builder.build()
    }
}
