//! The connection to the store: made in the background, made anew when it is lost.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::script::Call;
use crate::url::{StoreUrl, Topology};

/// Who one is to the store, and whom one trusts to be it.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Name of the user, if it is not in the address.
    pub user: Option<String>,
    /// The password, if it is not in the address.
    pub password: Option<String>,
    /// Certificates of authorities in PEM, instead of the system's.
    pub authorities: Option<Vec<u8>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The store did not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// There is no connection.
    #[error("the store is not reachable: {0}")]
    Away(String),
    /// No answer in time.
    #[error("the store did not answer within {0:?}")]
    Late(Duration),
    /// It answered with an error.
    #[error("the store refused: {0}")]
    Refused(String),
    /// It answered something that is no answer.
    #[error("the store answered what cannot be understood: {0}")]
    Strange(&'static str),
}

/// Longest wait for a new connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Waits between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A cluster's connection looks after its nodes by itself; after so many failures in a row it is made anew.
const CLUSTER_FAILURES_MAX: u32 = 20;
/// How often the cluster's connection follows a redirection, or tries again.
const CLUSTER_RETRIES: u32 = 2;

enum Dialler {
    Single(Client),
    Cluster(ClusterClient),
    Sentinel(tokio::sync::Mutex<SentinelClient>),
}

#[derive(Clone)]
enum Connection {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn command(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self {
            Self::Node(node) => node.req_packed_command(command).await?,
            Self::Cluster(cluster) => cluster.req_packed_command(command).await?,
        };
        answer.extract_error()
    }
}

struct State {
    connection: Option<Connection>,
    /// Counts connections, so that nobody gives up one that he has not used.
    number: u64,
    failures: u32,
    last_error: String,
}

/// One connection, used by many at once.
pub(crate) struct Link {
    dialler: Dialler,
    state: Mutex<State>,
    lost: Notify,
}

impl Link {
    pub(crate) fn new(url: &StoreUrl, credentials: &Credentials) -> Result<Self, LinkError> {
        let dialler = dialler(url, credentials).map_err(|error| LinkError::Refused(error.to_string()))?;
        let last_error = "not connected yet".to_owned();
        let state = State { connection: None, number: 0, failures: 0, last_error };
        Ok(Self { dialler, state: Mutex::new(state), lost: Notify::new() })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().connection.is_some()
    }

    pub(crate) fn last_error(&self) -> String {
        self.state.lock().last_error.clone()
    }

    /// Keeps a connection; to be run as a task of its own.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.is_connected() {
                self.lost.notified().await;
                continue;
            }
            let dialled = tokio::time::timeout(CONNECT_DEADLINE, self.dial()).await;
            match dialled.map_err(|_| LinkError::Late(CONNECT_DEADLINE).to_string()) {
                Ok(Ok(connection)) => {
                    let mut state = self.state.lock();
                    info!("connected to the store");
                    (state.connection, state.failures) = (Some(connection), 0);
                    state.number += 1;
                    pause = FIRST_PAUSE;
                }
                Ok(Err(error)) => self.failed_to_dial(error.to_string()),
                Err(error) => self.failed_to_dial(error),
            }
            if !self.is_connected() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn failed_to_dial(&self, error: String) {
        let mut state = self.state.lock();
        if state.last_error != error {
            warn!("failed to connect to the store: {error}");
            state.last_error = error;
        }
    }

    async fn dial(&self) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = match &self.dialler {
            Dialler::Cluster(cluster) => return Ok(Connection::Cluster(cluster.get_async_connection().await?)),
            Dialler::Single(node) => {
                Connection::Node(node.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Dialler::Sentinel(sentinels) => {
                Connection::Node(sentinels.lock().await.get_async_connection_with_config(&config).await?)
            }
        };
        // A node that stands still accepts connections as well.
        connection.command(&redis::cmd("PING")).await?;
        Ok(connection)
    }

    /// Runs a script and returns its answer.
    pub(crate) async fn call(&self, call: &Call, deadline: Duration) -> Result<Value, LinkError> {
        let (mut connection, number) = {
            let state = self.state.lock();
            match &state.connection {
                Some(connection) => (connection.clone(), state.number),
                None => return Err(LinkError::Away(state.last_error.clone())),
            }
        };
        let asking = async {
            match connection.command(&call.by_digest()).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    connection.command(&call.by_source()).await
                }
                answer => answer,
            }
        };
        match tokio::time::timeout(deadline, asking).await {
            Ok(Ok(answer)) => {
                self.state.lock().failures = 0;
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.failed(number, &error.to_string(), is_lost(&error));
                Err(LinkError::Refused(error.to_string()))
            }
            Err(_) => {
                let error = LinkError::Late(deadline);
                self.failed(number, &error.to_string(), true);
                Err(error)
            }
        }
    }

    fn failed(&self, number: u64, error: &str, is_lost: bool) {
        let mut state = self.state.lock();
        if state.number != number || state.connection.is_none() {
            return;
        }
        state.failures += 1;
        error.clone_into(&mut state.last_error);
        let gives_up = match self.dialler {
            Dialler::Cluster(_) => state.failures >= CLUSTER_FAILURES_MAX,
            _ => is_lost,
        };
        if gives_up {
            warn!("lost the connection to the store: {error}");
            state.connection = None;
            drop(state);
            self.lost.notify_one();
        }
    }
}

/// Whether another connection may do better.
fn is_lost(error: &RedisError) -> bool {
    let is_elsewhere = matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading)
    );
    is_elsewhere || error.is_io_error() || error.is_connection_dropped() || error.is_timeout()
}

fn dialler(url: &StoreUrl, credentials: &Credentials) -> RedisResult<Dialler> {
    let user = url.user.as_ref().or(credentials.user.as_ref());
    let password = url.password.as_ref().or(credentials.password.as_ref());
    let certificates = || TlsCertificates { client_tls: None, root_cert: credentials.authorities.clone() };
    let mut settings = RedisConnectionInfo::default().set_db(url.database);
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    let addresses = url.nodes.iter().map(|(host, port)| match url.is_encrypted {
        false => ConnectionAddr::Tcp(host.clone(), *port),
        true => ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None },
    });
    let infos =
        addresses.clone().map(|address| Ok(address.into_connection_info()?.set_redis_settings(settings.clone())));
    let infos = infos.collect::<RedisResult<Vec<ConnectionInfo>>>()?;
    Ok(match &url.topology {
        Topology::Single => {
            let info = infos.into_iter().next().expect("an address has a node at least");
            Dialler::Single(if url.is_encrypted {
                Client::build_with_tls(info, certificates())?
            } else {
                Client::open(info)?
            })
        }
        Topology::Cluster => {
            let mut builder = ClusterClientBuilder::new(infos)
                .retries(CLUSTER_RETRIES)
                .connection_timeout(CONNECT_DEADLINE)
                .response_timeout(CONNECT_DEADLINE);
            if url.is_encrypted {
                builder = builder.tls(TlsMode::Secure).certs(certificates());
            }
            Dialler::Cluster(builder.build()?)
        }
        Topology::Sentinel { master } => {
            let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
                .set_client_to_redis_db(url.database);
            if let Some(user) = user {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = password {
                builder = builder.set_client_to_redis_password(password);
            }
            if url.is_encrypted {
                builder = builder
                    .set_client_to_redis_tls_mode(TlsMode::Secure)
                    .set_client_to_redis_certificates(certificates())
                    .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                    .set_client_to_sentinel_certificates(certificates());
            }
            Dialler::Sentinel(tokio::sync::Mutex::new(builder.build()?))
        }
    })
}
