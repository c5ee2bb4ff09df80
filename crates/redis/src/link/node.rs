//! Connection to one node, established and re-established in the background.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::error::StoreError;
use crate::script::Call;

/// Deadline of a connection attempt.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Bounds of the backoff between attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How the node's address is found.
pub(super) enum Dialler {
    /// The address is configured.
    Node(Box<Client>),
    /// Sentinels provide the master's address.
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
}

struct State {
    connection: Option<MultiplexedConnection>,
    /// Number of the current connection. A failed call closes only the connection that it used.
    number: u64,
    last_error: String,
}

/// One connection, shared by concurrent calls.
pub(crate) struct NodeLink {
    dialler: Dialler,
    /// Address for logs, without the password.
    endpoint: String,
    state: Mutex<State>,
    lost: Notify,
}

impl NodeLink {
    pub(super) fn new(dialler: Dialler) -> Self {
        let state = State { connection: None, number: 0, last_error: "not connected yet".to_owned() };
        let endpoint = match &dialler {
            Dialler::Node(node) => node.get_connection_info().addr().to_string(),
            Dialler::Sentinel(_) => "sentinel".to_owned(),
        };
        Self { dialler, endpoint, state: Mutex::new(state), lost: Notify::new() }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state.lock().connection.is_some()
    }

    pub(super) fn last_error(&self) -> String {
        self.state.lock().last_error.clone()
    }

    /// Connects and reconnects, in a separate task.
    pub(super) async fn maintain(self: Arc<Self>) {
        let mut pause = BACKOFF_MIN;
        loop {
            if self.is_connected() {
                self.lost.notified().await;
                continue;
            }
            let dialled = tokio::time::timeout(CONNECT_DEADLINE, self.dial()).await;
            let dialled = dialled.map_err(|_| StoreError::TimedOut(CONNECT_DEADLINE).to_string());
            match dialled.and_then(|dialled| dialled.map_err(|error| error.to_string())) {
                Ok(connection) => {
                    let mut state = self.state.lock();
                    info!(endpoint = self.endpoint.as_str(), "connected to the shared store");
                    state.connection = Some(connection);
                    state.number += 1;
                    pause = BACKOFF_MIN;
                }
                Err(error) => self.log_failed_dial(error),
            }
            if !self.is_connected() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
            }
        }
    }

    fn log_failed_dial(&self, error: String) {
        let mut state = self.state.lock();
        if state.last_error != error {
            warn!(
                endpoint = self.endpoint.as_str(),
                error = error.as_str(),
                "failed to connect to the shared store; retrying"
            );
            state.last_error = error;
        }
    }

    async fn dial(&self) -> RedisResult<MultiplexedConnection> {
        // Each call has its own deadline.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = match &self.dialler {
            Dialler::Node(node) => node.get_multiplexed_async_connection_with_config(&config).await?,
            Dialler::Sentinel(sentinels) => sentinels.lock().await.get_async_connection_with_config(&config).await?,
        };
        // A suspended node also accepts connections.
        run(&mut connection, &redis::cmd("PING")).await?;
        Ok(connection)
    }

    /// Runs a script and returns its response.
    pub(super) async fn call(&self, call: &Call, deadline: Duration) -> Result<Value, StoreError> {
        self.with_connection(deadline, async |connection| match run(connection, &call.by_digest()).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                run(connection, &call.by_source()).await
            }
            response => response,
        })
        .await
    }

    /// Runs a command and returns its response.
    pub(super) async fn command(&self, command: &Cmd, deadline: Duration) -> Result<Value, StoreError> {
        self.with_connection(deadline, async |connection| run(connection, command).await).await
    }

    async fn with_connection(
        &self,
        deadline: Duration,
        execute: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<Value>,
    ) -> Result<Value, StoreError> {
        let (mut connection, number) = {
            let state = self.state.lock();
            match &state.connection {
                Some(connection) => (connection.clone(), state.number),
                None => return Err(StoreError::Unreachable(state.last_error.clone())),
            }
        };
        let Ok(answer) = tokio::time::timeout(deadline, execute(&mut connection)).await else {
            let error = StoreError::TimedOut(deadline);
            self.close(number, &error.to_string());
            return Err(error);
        };
        answer.map_err(|error| {
            if is_lost(&error) {
                self.close(number, &error.to_string());
            }
            classify(&error)
        })
    }

    fn close(&self, number: u64, error: &str) {
        let mut state = self.state.lock();
        if state.number == number && state.connection.take().is_some() {
            warn!(endpoint = self.endpoint.as_str(), error, "lost the connection to the shared store; reconnecting");
            error.clone_into(&mut state.last_error);
            drop(state);
            self.lost.notify_one();
        }
    }
}

async fn run(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(command).await?.extract_error()
}

/// Classifies an error response.
fn classify(error: &RedisError) -> StoreError {
    use ServerErrorKind as Kind;
    match error.kind() {
        ErrorKind::Server(Kind::Moved) => {
            StoreError::Moved(error.redirect_node().map_or_else(|| error.to_string(), |(node, _)| node.to_owned()))
        }
        // `ASK` is not followed to the migration target: the older entry that migrates later would overwrite a change
        // written there, and a read there lacks the entries not yet migrated.
        ErrorKind::Server(
            Kind::ClusterDown | Kind::TryAgain | Kind::Ask | Kind::BusyLoading | Kind::MasterDown | Kind::ReadOnly,
        ) => StoreError::Busy([error.code(), error.detail()].map(Option::unwrap_or_default).join(" ")),
        _ => StoreError::Refused(error.to_string()),
    }
}

/// Whether the connection is to be replaced.
fn is_lost(error: &RedisError) -> bool {
    use ServerErrorKind as Kind;
    let is_wrong_node =
        matches!(error.kind(), ErrorKind::Server(Kind::ReadOnly | Kind::MasterDown | Kind::BusyLoading));
    is_wrong_node || error.is_io_error() || error.is_connection_dropped() || error.is_timeout()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (StoreError, bool) {
        let error = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a response");
        let error = error.extract_error().expect_err("an error");
        (classify(&error), is_lost(&error))
    }

    #[test]
    fn temporary_errors_are_classified_as_busy() {
        for (line, is_lost) in [
            ("CLUSTERDOWN The cluster is down", false),
            ("CLUSTERDOWN Hash slot not served", false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", false),
            ("ASK 3999 127.0.0.1:6381", false),
            ("LOADING Redis is loading the dataset in memory", true),
            ("MASTERDOWN Link with MASTER is down", true),
            ("READONLY You can't write against a read only replica.", true),
        ] {
            let (error, was_lost) = refused(line);
            assert!(matches!(error, StoreError::Busy(_)), "{line}: {error}");
            assert_eq!(was_lost, is_lost, "{line}");
        }
        assert_eq!(refused("MOVED 3999 127.0.0.1:6381").0, StoreError::Moved("127.0.0.1:6381".to_owned()));
        assert!(matches!(refused("WRONGTYPE Operation against a key").0, StoreError::Refused(_)));
    }
}
