//! The service behind an address.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_wire::Start;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::connections::{BoundedListener, ConnectionHandle, Protocol};
use crate::grpc::GrpcServer;
use crate::http::{self, Api};
use crate::peers::{
    Check, CheckGuard, PeerDeadlines, PeerUrl, Peers, Recovery, RecoveryError, RecoveryState, RecoveryStatus,
};
use crate::registrar::DiscoveryRegistrar;
use flash_indexer_discovery::{Discovery, DiscoveryOptions};
use flash_indexer_registry::{Indexer, IndexerOptions, ListenError, PodOptions, PodsGuard, RegistrationError};
use flash_indexer_types::Registration;

/// What a server is made with.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to listen on; the default is loopback only.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Port for gRPC at the same address; 0 takes a free one, none offers none.
    pub grpc_port: Option<u16>,
    /// Largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// Connections that may be open; further ones wait.
    pub connections_max: usize,
    /// The indexer behind it.
    pub indexer: IndexerOptions,
    /// How engines that connect to the service are taken in; none does not wait for any.
    pub pods: Option<PodOptions>,
    /// Ranks to listen to from the start; readiness waits for them.
    pub registrations: Vec<Registration>,
    /// Other indexers of the fleet, to be asked in this order.
    pub peers: Vec<PeerUrl>,
    /// How long a peer may take.
    pub peer_deadlines: PeerDeadlines,
    /// How often it is compared with its peers, if it is.
    pub peer_check_interval: Option<Duration>,
    /// A dump to start from when no peer can help.
    pub load: Option<PathBuf>,
    /// How engines are found that register nowhere.
    pub discovery: DiscoveryOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8090,
            grpc_port: None,
            body_bytes_max: 8 << 20,
            connections_max: 4_096,
            indexer: IndexerOptions::default(),
            pods: None,
            registrations: Vec::new(),
            peers: Vec::new(),
            peer_deadlines: PeerDeadlines::default(),
            peer_check_interval: Some(Duration::from_secs(60)),
            load: None,
            discovery: DiscoveryOptions::default(),
        }
    }
}

/// A server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not one of this machine.
    #[error("failed to listen on {host}:{port}: {source}; choose another --port, --grpc-port or --host")]
    Bind {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("failed to start a thread: {0}")]
    Thread(io::Error),
    /// Engines cannot connect.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// gRPC cannot be offered.
    #[error("failed to describe the gRPC services: {0}")]
    Grpc(tonic_reflection::server::Error),
    /// A rank asked for at the start cannot be listened to.
    #[error("failed to register instance {instance}: {source}")]
    Registration {
        /// The instance.
        instance: String,
        /// Why.
        source: RegistrationError,
    },
}

/// How long requests may still run after a server is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Longest wait for the store to take this replica's ranks off its list.
const STORE_STOP_DEADLINE: Duration = Duration::from_secs(3);

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    indexer: Arc<Indexer>,
    recovery: Arc<RecoveryStatus>,
    check: Option<CheckGuard>,
    pods: Option<PodsGuard>,
    grpc: Option<(SocketAddr, GrpcServer)>,
    discovery: Option<Discovery>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Listens, registers what was asked for, and serves until [`Server::stop`].
    ///
    /// # Errors
    ///
    /// When the address cannot be bound or a registration is refused.
    pub async fn start(options: ServerOptions) -> Result<Self, StartError> {
        let ServerOptions { host, port, body_bytes_max, connections_max, indexer, registrations, .. } = options;
        let (listener, address) = bind(&host, port).await?;
        let grpc = match options.grpc_port {
            None => None,
            Some(port) => Some(bind(&host, port).await?),
        };
        let indexer = Arc::new(Indexer::start(indexer).map_err(StartError::Thread)?);
        let waits_for_pods = options.pods.is_some();
        if let Some(pods) = options.pods {
            indexer.listen_for_pods(pods)?;
        }
        let peers = Arc::new(Peers::new(options.peers));
        let recovers = options.load.is_some() || !peers.urls().is_empty();
        let mut asked = BTreeSet::new();
        for registration in registrations {
            let rank = registration.rank_id();
            let registered = match recovers {
                true => indexer.register_configured(registration, Start::Held),
                false => indexer.register_configured(registration, Start::Immediate),
            };
            registered.map_err(|source| StartError::Registration { instance: rank.instance.to_string(), source })?;
            asked.insert(rank);
        }
        let recovery = match recovers {
            false => RecoveryStatus::finished(),
            true => {
                let (indexer, peers, held) = (Arc::clone(&indexer), Arc::clone(&peers), asked.clone());
                let recovery = Recovery { indexer, peers, deadlines: options.peer_deadlines, load: options.load, held };
                recovery.start().map_err(StartError::Thread)?
            }
        };
        let pods = waits_for_pods.then(|| {
            // What a peer knows of a pod is of use only until the pod is followed.
            let recovery = Arc::clone(&recovery);
            indexer.start_pod_registrar(move || !matches!(recovery.state(), RecoveryState::Running(_)))
        });
        let pods = pods.transpose().map_err(StartError::Thread)?;
        let check = options.peer_check_interval.map(|interval| {
            let (indexer, peers, recovery) = (Arc::clone(&indexer), Arc::clone(&peers), Arc::clone(&recovery));
            Check { indexer, peers, deadlines: options.peer_deadlines, interval, recovery }.start()
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
        let api = Api::new(Arc::clone(&indexer), body_bytes_max, asked, peers, Arc::clone(&recovery), status);
        let router = http::router(api);
        let grpc = grpc.map(|(listener, address)| {
            let listener = BoundedListener::new(listener, Protocol::Grpc, connections_max, Arc::clone(&indexer));
            let server = GrpcServer::start(listener, Arc::clone(&indexer), body_bytes_max, Arc::clone(&recovery));
            server.map(|server| (address, server))
        });
        let grpc = grpc.transpose().map_err(StartError::Grpc)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = BoundedListener::new(listener, Protocol::Http, connections_max, Arc::clone(&indexer));
        let serving = tokio::spawn(serve(listener, router, async {
            // A dropped server stops as well.
            let _ = stopped.await;
        }));
        Ok(Self { address, indexer, recovery, check, pods, grpc, discovery, stop, serving })
    }

    /// Where it listens, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for gRPC, with its real port, if it does.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(address, _)| *address)
    }

    /// The indexer behind it.
    #[must_use]
    pub fn indexer(&self) -> &Arc<Indexer> {
        &self.indexer
    }

    /// Waits until the server has learned what there was to learn from peers, or from a dump.
    ///
    /// # Errors
    ///
    /// When the dump that it should start from cannot be used: it has started from nothing.
    pub async fn recovered(&self) -> Result<(), RecoveryError> {
        self.recovery.end().await
    }

    /// Takes no more requests, lets running ones finish for a few seconds, applies what engines
    /// have sent, and closes every socket. Ends within a deadline: threads that do not are abandoned and logged.
    pub async fn stop(self) {
        drop((self.check, self.pods, self.discovery));
        // The task that serves may have ended by itself.
        let _ = self.stop.send(());
        let grpc = self.grpc.map(|(_, grpc)| tokio::spawn(grpc.stop(DRAIN)));
        let mut serving = self.serving;
        if tokio::time::timeout(DRAIN, &mut serving).await.is_err() {
            warn!("requests were still running after {DRAIN:?}: they are cut off");
            serving.abort();
        }
        if let Some(stopped) = grpc {
            // It ends by itself within the time that it was given.
            let _ = stopped.await;
        }
        let indexer = self.indexer;
        if tokio::time::timeout(STORE_STOP_DEADLINE, indexer.stop_shared_store()).await.is_err() {
            warn!(
                "failed to hand this replica's ranks over in the store within {STORE_STOP_DEADLINE:?}: others learn later"
            );
        }
        if tokio::task::spawn_blocking(move || indexer.stop()).await.is_err() {
            warn!("stopping the index threads failed");
        }
    }
}

async fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { host: host.to_owned(), port, source };
    let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

async fn serve(
    listener: BoundedListener,
    router: axum::Router,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<ConnectionHandle>();
    axum::serve(listener, service).with_graceful_shutdown(stopped).await
}
