//! Start and stop of the whole service.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_access::{BearerVerifier, JwtOptions, JwtVerifier, LoadError};
use flash_indexer_credentials::{ClientFiles, CredentialsError, TlsFiles};
use flash_indexer_dashboard::{LiveFigures, LiveGuard};
use flash_indexer_discovery::{Discovery, DiscoveryOptions};
use flash_indexer_otlp::{Exporter, OtlpError, OtlpOptions};
use flash_indexer_registry::{Indexer, IndexerOptions, ListenError, PodOptions, PodsGuard, RegistrationError};
use flash_indexer_snapshot::DirectoryError;
use flash_indexer_telemetry::metrics::ReloadedFile;
use flash_indexer_types::Registration;
use flash_indexer_wire::Start;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::access::AccessControl;
use crate::body_limits::BodyLimits;
use crate::grpc::{EndpointPickerOptions, GrpcServer};
use crate::http::{self, Api};
use crate::registrar::DiscoveryRegistrar;
use crate::reload::{PeriodicTasks, Reload};
use crate::traced::RequestTracer;
use flash_indexer_connections::{BoundedListener, Protocol};
use flash_indexer_peers::{Check, CheckGuard, PeerDeadlines, PeerUrl, Peers, Recovery, RecoveryError, RecoveryStatus};
use flash_indexer_peers::{SnapshotOptions, Snapshots, SnapshotsGuard};

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to listen on. The default is loopback.
    pub host: String,
    /// Port for HTTP; 0 takes a free one.
    pub port: u16,
    /// Port for gRPC at the same address. 0 takes a free one; none disables gRPC.
    pub grpc_port: Option<u16>,
    /// Endpoint picker for gateways; none disables it.
    pub endpoint_picker: Option<EndpointPickerOptions>,
    /// File with the digests of bearer tokens. Without it and without [`ServerOptions::jwt`], every request is permitted.
    pub token_file: Option<PathBuf>,
    /// File with the keys of an issuer of JWTs, and the claims that its tokens must have; none accepts no JWT.
    pub jwt: Option<(PathBuf, JwtOptions)>,
    /// File with the limits of tenants; none means no limits.
    pub limits_file: Option<PathBuf>,
    /// Certificates of HTTP and gRPC; none serves both without encryption.
    pub tls: Option<TlsFiles>,
    /// Largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// Limit of the bytes of all bodies that are received and not answered, at least twice the limit of one; none takes a
    /// part of the memory.
    pub body_bytes_total_max: Option<usize>,
    /// Limit of open connections; further connections wait.
    pub connections_max: usize,
    /// Configuration of the indexer.
    pub indexer: IndexerOptions,
    /// Registration of engines that connect to the service; none binds no socket for them.
    pub pods: Option<PodOptions>,
    /// Ranks that are registered at the start; readiness waits for them.
    pub registrations: Vec<Registration>,
    /// Peers to recover from, in this order.
    pub peers: Vec<PeerUrl>,
    /// Deadlines of requests to peers.
    pub peer_deadlines: PeerDeadlines,
    /// Credentials for requests to peers.
    pub peer_credentials: ClientFiles,
    /// Interval of comparisons with peers; none disables them.
    pub peer_check_interval: Option<Duration>,
    /// Snapshots on disk, from which the server recovers first; none disables them.
    pub snapshots: Option<SnapshotOptions>,
    /// Dump to load if neither a snapshot nor a peer can be recovered from.
    pub load: Option<PathBuf>,
    /// Discovery sources.
    pub discovery: DiscoveryOptions,
    /// Export of requests' spans; none disables tracing.
    pub traces: Option<OtlpOptions>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8090,
            grpc_port: None,
            endpoint_picker: None,
            token_file: None,
            jwt: None,
            limits_file: None,
            tls: None,
            body_bytes_max: 8 << 20,
            body_bytes_total_max: None,
            connections_max: 4_096,
            indexer: IndexerOptions::default(),
            pods: None,
            registrations: Vec::new(),
            peers: Vec::new(),
            peer_deadlines: PeerDeadlines::default(),
            peer_credentials: ClientFiles::default(),
            peer_check_interval: Some(Duration::from_secs(60)),
            snapshots: None,
            load: None,
            discovery: DiscoveryOptions::default(),
            traces: None,
        }
    }
}

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, or does not belong to this machine.
    #[error(
        "failed to listen on {host}:{port}: {source}; choose another --port, --grpc-port, --host or --endpoint-picker-bind"
    )]
    Bind {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// The cause.
        source: io::Error,
    },
    /// The token file, the key set of JWTs or the limits file cannot be read, or is invalid.
    #[error(transparent)]
    Tokens(#[from] LoadError),
    /// The only source of the recovery, a dump, cannot be opened.
    #[error("failed to load the dump {path}: {source}; check --load")]
    Load {
        /// The dump.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDirectory(#[from] DirectoryError),
    /// A certificate, its key, or a token for peers cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The export of spans cannot be started.
    #[error(transparent)]
    Traces(#[from] OtlpError),
    /// The operating system refuses a thread.
    #[error("failed to start a thread: {0}; raise the limit of threads")]
    Thread(io::Error),
    /// The socket for engines that connect cannot be bound.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The descriptors of the gRPC services are invalid.
    #[error("failed to describe the gRPC services: {0}")]
    Grpc(tonic_reflection::server::Error),
    /// A rank of [`ServerOptions::registrations`] cannot be registered.
    #[error("failed to register instance {instance}: {source}")]
    Registration {
        /// The instance.
        instance: String,
        /// The cause.
        source: RegistrationError,
    },
}

/// Time for running requests to finish after [`Server::stop`].
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Longest wait for the shared store to remove this replica's ranks from its directory.
const STORE_STOP_DEADLINE: Duration = Duration::from_secs(3);

/// Longest wait for the collector to take the last spans.
const SPANS_STOP_DEADLINE: Duration = Duration::from_secs(2);

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    is_encrypted: bool,
    indexer: Arc<Indexer>,
    recovery: Arc<RecoveryStatus>,
    check: Option<CheckGuard>,
    snapshots: Option<(Arc<Snapshots>, SnapshotsGuard)>,
    pods: Option<PodsGuard>,
    grpc: Option<(SocketAddr, GrpcServer)>,
    endpoint_picker: Option<(SocketAddr, GrpcServer)>,
    discovery: Option<Discovery>,
    periodic: PeriodicTasks,
    live: LiveGuard,
    exporter: Option<Exporter>,
    #[cfg(test)]
    pub(crate) bodies: BodyLimits,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    /// Binds the addresses, registers the configured ranks, and serves until [`Server::stop`].
    ///
    /// # Errors
    ///
    /// Fails as [`ServerOptions::check`], or if an address cannot be bound, a thread cannot be started, or a registration is rejected.
    pub async fn start(options: ServerOptions) -> Result<Self, StartError> {
        let loaded = options.checked()?;
        let ServerOptions { host, port, body_bytes_max, body_bytes_total_max, connections_max, .. } = options;
        let ServerOptions { indexer, registrations, .. } = options;
        let (listener, address) = bind(&host, port).await?;
        let grpc = match options.grpc_port {
            None => None,
            Some(port) => Some(bind(&host, port).await?),
        };
        let endpoint_picker = match options.endpoint_picker {
            None => None,
            Some(picker) => Some((bind(&picker.address.ip().to_string(), picker.address.port()).await?, picker)),
        };
        let (limits, tokens) = (loaded.limits, loaded.tokens);
        let indexer = IndexerOptions { tenant_limits: limits.clone(), ..indexer };
        let networks = indexer.engine_networks.clone();
        let tokenizer_pool = indexer.tokenization.pool.clone();
        let indexer = Arc::new(Indexer::start(indexer).map_err(StartError::Thread)?);
        let mut files = Vec::new();
        if let Some(tokens) = &tokens {
            info!(tokens = tokens.token_count(), "token file loaded");
            files.push(Reload::config(ReloadedFile::Tokens, tokens));
        }
        let jwt = loaded.jwt_keys.zip(options.jwt).map(|(keys, (_, options))| {
            info!(keys = keys.key_count(), issuer = options.issuer, "key set of JWTs loaded");
            files.push(Reload::config(ReloadedFile::JwtKeys, &keys));
            JwtVerifier::new(keys, options)
        });
        files.extend(limits.as_ref().map(|limits| Reload::config(ReloadedFile::Limits, limits)));
        let access = Arc::new(AccessControl::new(BearerVerifier::new(tokens, jwt), limits));
        let tls = loaded.tls;
        files.extend(tls.as_ref().map(Reload::certificates));
        let is_encrypted = tls.is_some();
        let registers_pods = options.pods.is_some();
        if let Some(pods) = options.pods {
            indexer.listen_for_pods(pods)?;
        }
        let peers = Arc::new(Peers::new(options.peers, networks));
        let snapshots = options.snapshots.map(|options| Snapshots::open(&options, Arc::clone(&indexer)));
        let snapshots = snapshots.transpose()?.map(Arc::new);
        let recovers = snapshots.is_some() || options.load.is_some() || !peers.urls().is_empty();
        let mut configured = BTreeSet::new();
        let start = if recovers { Start::Paused } else { Start::Immediate };
        for registration in registrations {
            let rank = registration.rank_id();
            let registered = indexer.register_configured(registration, start);
            registered.map_err(|source| StartError::Registration { instance: rank.instance.to_string(), source })?;
            configured.insert(rank);
        }
        let recovery = match recovers {
            false => RecoveryStatus::finished(),
            true => {
                let recovery = Recovery {
                    indexer: Arc::clone(&indexer),
                    peers: Arc::clone(&peers),
                    deadlines: options.peer_deadlines,
                    credentials: loaded.peer_credentials,
                    snapshots: snapshots.clone(),
                    load: options.load,
                    held: configured.clone(),
                };
                recovery.start().map_err(StartError::Thread)?
            }
        };
        let snapshots = snapshots.map(|snapshots| {
            let guard = snapshots.start(Arc::clone(&recovery));
            guard.map(|guard| (snapshots, guard))
        });
        let snapshots = snapshots.transpose().map_err(StartError::Thread)?;
        let pods = registers_pods.then(|| {
            // Blocks of a pod are recovered from a peer only before the service follows the pod's own stream.
            let recovery = Arc::clone(&recovery);
            indexer.start_pod_registrar(move || !recovery.is_running())
        });
        let pods = pods.transpose().map_err(StartError::Thread)?;
        let check = options.peer_check_interval.map(|interval| {
            let (indexer, peers, recovery) = (Arc::clone(&indexer), Arc::clone(&peers), Arc::clone(&recovery));
            let (deadlines, credentials) = (options.peer_deadlines, options.peer_credentials);
            Check { indexer, peers, deadlines, credentials, interval, recovery }.start()
        });
        let check = check.transpose().map_err(StartError::Thread)?;
        let discovery = match options.discovery.sources.is_empty() {
            true => None,
            false => {
                let (indexer, recovery) = (Arc::clone(&indexer), Arc::clone(&recovery));
                let registrar = Arc::new(DiscoveryRegistrar { indexer, recovery });
                Some(Discovery::start(options.discovery, registrar).map_err(StartError::Thread)?)
            }
        };
        let status = discovery.as_ref().map(|discovery| Arc::clone(discovery.status()));
        let bodies = BodyLimits::new((body_bytes_max, body_bytes_total_max), &tokenizer_pool, indexer.metrics());
        let bodies = bodies.map_err(StartError::Thread)?;
        let identity = (peers.process(), is_encrypted);
        let traces = RequestTracer::start(options.traces.as_ref(), identity, indexer.metrics())?;
        let (exporter, tracer) = traces.unzip();
        let (live, live_guard) = {
            let indexer = Arc::clone(&indexer);
            LiveFigures::start(move || http::sample(&indexer))
        };
        let parts = (Arc::clone(&indexer), Arc::clone(&access), bodies.clone());
        let api = Api::new(parts, configured, peers, Arc::clone(&recovery));
        let api = Arc::new(Api { live, discovery: status, tracer: tracer.clone(), ..api });
        let router = http::router(Arc::clone(&api));
        let bounded = |listener, protocol| {
            let metrics = Arc::clone(indexer.metrics());
            BoundedListener::new(listener, protocol, tls.clone(), connections_max, metrics)
        };
        let endpoint_picker = endpoint_picker.map(|((listener, address), picker)| {
            let listener = bounded(listener, Protocol::Grpc);
            (address, GrpcServer::start_endpoint_picker(listener, api, &bodies, picker))
        });
        let grpc = grpc.map(|(listener, address)| {
            let listener = bounded(listener, Protocol::Grpc);
            let server = GrpcServer::start(
                listener,
                (Arc::clone(&indexer), Arc::clone(&access)),
                &bodies,
                Arc::clone(&recovery),
                tracer,
            );
            server.map(|server| (address, server))
        });
        let grpc = grpc.transpose().map_err(StartError::Grpc)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving =
            tokio::spawn(flash_indexer_connections::serve(bounded(listener, Protocol::Http), router, async {
                // Dropping the server drops the sender, which also stops it.
                let _ = stopped.await;
            }));
        let periodic = PeriodicTasks::start(files, &indexer);
        Ok(Self {
            address,
            is_encrypted,
            indexer,
            recovery,
            check,
            snapshots,
            pods,
            grpc,
            endpoint_picker,
            discovery,
            periodic,
            live: live_guard,
            exporter,
            #[cfg(test)]
            bodies,
            stop,
            serving,
        })
    }

    /// Address of HTTP, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of HTTP, such as `https://127.0.0.1:8090`.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Address of gRPC, with its real port, if gRPC is enabled.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(address, _)| *address)
    }

    /// Address of the endpoint picker, with its real port, if it is enabled.
    #[must_use]
    pub fn endpoint_picker_address(&self) -> Option<SocketAddr> {
        self.endpoint_picker.as_ref().map(|(address, _)| *address)
    }

    /// The indexer.
    #[must_use]
    pub fn indexer(&self) -> &Arc<Indexer> {
        &self.indexer
    }

    /// Waits until recovery from peers or a dump has finished.
    ///
    /// # Errors
    ///
    /// Fails if the configured dump cannot be used. The index then starts empty.
    pub async fn recovered(&self) -> Result<(), RecoveryError> {
        self.recovery.end().await
    }

    /// Stops the server: accepts no more requests, drains running ones, applies received messages and closes every socket.
    /// Returns within a deadline; threads that have not ended by then are abandoned and logged.
    pub async fn stop(self) {
        // Streams of live figures would not end by themselves.
        drop((self.check, self.pods, self.discovery, self.periodic, self.live));
        // The serving task may have ended already.
        let _ = self.stop.send(());
        let grpc = [self.grpc, self.endpoint_picker].into_iter().flatten();
        let grpc: Vec<_> = grpc.map(|(_, grpc)| tokio::spawn(grpc.stop(DRAIN_DEADLINE))).collect();
        let mut serving = self.serving;
        if tokio::time::timeout(DRAIN_DEADLINE, &mut serving).await.is_err() {
            warn!(deadline = ?DRAIN_DEADLINE, "failed to drain HTTP requests: deadline exceeded; closing their connections");
            serving.abort();
        }
        for stopped in grpc {
            // The task ends within its own deadline.
            let _ = stopped.await;
        }
        if let Some((snapshots, guard)) = self.snapshots {
            drop(guard);
            let recovered = !self.recovery.is_running();
            // A partial index must not pass for a complete one.
            if recovered && tokio::task::spawn_blocking(move || snapshots.write_last()).await.is_err() {
                warn!("failed to write the last snapshot: the write panicked; previous snapshots are kept");
            }
        }
        // Runs while the store removes ranks: both waits end within the longer one.
        let exporter = self.exporter.map(|it| tokio::task::spawn_blocking(move || it.stop(SPANS_STOP_DEADLINE)));
        let indexer = self.indexer;
        if tokio::time::timeout(STORE_STOP_DEADLINE, indexer.stop_shared_store()).await.is_err() {
            warn!(
                deadline = ?STORE_STOP_DEADLINE,
                "failed to remove this replica's ranks from the shared store: deadline exceeded; they expire with their lease"
            );
        }
        if let Some(exporter) = exporter
            && exporter.await.is_err()
        {
            warn!("failed to export the last spans: the stop panicked");
        }
        if tokio::task::spawn_blocking(move || indexer.stop()).await.is_err() {
            warn!("failed to stop the index threads: the stop panicked");
        }
    }
}

async fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { host: host.to_owned(), port, source };
    let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
