//! The shared store of one replica: queries, publisher and reports.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use flash_indexer_core::LocalHash;
use flash_indexer_core::hashing::sequence_hashes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::directory::Directory;
use crate::environment::{Environment, SimulatedStore};
use crate::error::StoreError;
use crate::identity::{PublisherId, Scope};
use crate::keys::{Keys, Namespace};
use crate::link::{Credentials, Link};
use crate::publisher::{Publisher, PublisherReport, PublisherState, RankRegistry, Timing};
use crate::query_response::{FoundRanks, QueryResponse, decode};
use crate::rank_prefixes::RankPrefixes;
use crate::script::FIND;
use crate::supervision::{RESTART_PAUSE, panic_count, supervise};
use crate::url::{StoreUrl, Topology};

/// Configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The store's address.
    pub url: StoreUrl,
    /// User, password and certificate authorities.
    pub credentials: Credentials,
    /// First part of all keys.
    pub namespace: Namespace,
    /// Validity of written entries after a confirmation. A replica confirms three times in this time.
    pub time_to_live: Duration,
    /// Retention of blocks that are not written again.
    pub retention: Duration,
    /// Deadline of a query.
    pub deadline: Duration,
    /// The store of a simulation, instead of the one at the address.
    pub simulated: Option<Arc<dyn SimulatedStore>>,
}

impl StoreOptions {
    /// Default options for a store at this address.
    #[must_use]
    pub fn at(url: StoreUrl) -> Self {
        Self {
            url,
            credentials: Credentials::default(),
            namespace: Namespace::default(),
            time_to_live: Duration::from_secs(3),
            retention: Duration::from_secs(3600),
            deadline: Duration::from_millis(50),
            simulated: None,
        }
    }
}

/// Number of buckets in a cluster, spread over its nodes.
const CLUSTER_BUCKETS: u16 = 64;

/// Status of a replica's store.
#[derive(Debug, Clone)]
pub struct StoreReport {
    /// The store's address, without the password.
    pub url: String,
    /// Whether the store accepts queries and writes for all keys.
    pub is_connected: bool,
    /// Last error of a link that is not connected.
    pub last_error: String,
    /// This replica's id in the store.
    pub publisher: PublisherId,
    /// Counters of the publisher.
    pub published: PublisherReport,
    /// Number of panics of store tasks in this process.
    pub task_panics: u64,
}

/// Client of the shared store. Dropping it stops publishing: written entries expire with their confirmation.
pub struct Store {
    options: StoreOptions,
    shared: Arc<PublisherState>,
    /// Queries have a separate connection, so no query waits for a batch.
    query_link: Arc<Link>,
    stop: watch::Sender<bool>,
    publisher_task: Mutex<Option<JoinHandle<()>>>,
    link_tasks: [JoinHandle<()>; 2],
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Store {
    /// Connects in the background and publishes the ranks of `ranks`, which `waker` created, in tasks of the runtime
    /// `on`.
    ///
    /// # Errors
    ///
    /// When the address or the certificates are invalid. An unreachable store is not an error.
    pub fn start(
        options: StoreOptions,
        waker: &PublisherWaker,
        ranks: Arc<dyn RankRegistry>,
        on: &Handle,
    ) -> Result<Self, StoreError> {
        let buckets = match (&options.simulated, &options.url.topology) {
            (Some(store), _) => store.buckets(),
            (None, Topology::Cluster) => CLUSTER_BUCKETS,
            (None, Topology::Single | Topology::Sentinel { .. }) => 1,
        };
        let keys = Keys::new(options.namespace.clone(), buckets);
        let [.., probe_key] = keys.list();
        let link = || match &options.simulated {
            Some(store) => Ok(Arc::new(Link::Simulated(store.connect()))),
            None => Link::new(&options.url, &options.credentials, probe_key.clone()).map(Arc::new),
        };
        let (write_link, query_link) = (link()?, link()?);
        let environment = options.simulated.clone().map_or(Environment::System, Environment::Simulated);
        let shared = Arc::new(PublisherState {
            id: PublisherId::from_number(environment.random_id()),
            environment,
            keys,
            timing: Timing { time_to_live: options.time_to_live, retention: options.retention },
            link: write_link,
            directory: ArcSwap::default(),
            report: Mutex::default(),
            changed: Arc::clone(&waker.changed),
            listed: Notify::new(),
            suspects: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(false);
        let link_tasks = [&shared.link, &query_link].map(|link| {
            let link = Arc::clone(link);
            on.spawn(supervise("link", RESTART_PAUSE, move || Arc::clone(&link).maintain()))
        });
        let publisher_task = {
            let shared = Arc::clone(&shared);
            // By then the confirmations of the panicked publisher have expired, so its unwritten changes cannot make
            // an answer too large.
            let pause = shared.timing.time_to_live;
            let publish = move || Publisher::new(Arc::clone(&shared), Arc::clone(&ranks)).run(stopped.clone());
            on.spawn(supervise("publisher", pause, publish))
        };
        Ok(Self { options, shared, query_link, stop, publisher_task: Mutex::new(Some(publisher_task)), link_tasks })
    }

    /// Finds the depths of a query for all ranks of a scope, as their publishers confirmed them within the time to
    /// live. One call of the store.
    ///
    /// # Errors
    ///
    /// When the store does not respond in time, or responds with an error.
    pub async fn find(&self, scope: Scope, query: &[LocalHash]) -> Result<FoundRanks, StoreError> {
        let Some(&first) = query.first() else { return Ok(FoundRanks::default()) };
        let keys = &self.shared.keys;
        let bucket = keys.bucket_of(scope, first);
        let mut ends = Vec::with_capacity(query.len() * 8);
        sequence_hashes(query).for_each(|prefix| ends.extend_from_slice(&Keys::block(scope, prefix)));
        let call = FIND.on(keys.bucket_tables(bucket)).argument(keys.blocks(bucket)).argument(ends);
        let response = self.query_link.call(&call, self.options.deadline).await?;
        let QueryResponse { found, invalid } = decode(response, u32::try_from(query.len()).unwrap_or(u32::MAX))?;
        if !invalid.is_empty() {
            self.shared.suspect(bucket, invalid);
        }
        Ok(found)
    }

    /// Runs a call that may block on a thread for such calls. None if it panics, or if the runtime is shutting down.
    pub async fn run_blocking<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.shared.environment.run_blocking(call).await
    }

    /// Waits until the directory is read again. For a single task.
    pub async fn listed(&self) {
        self.shared.listed.notified().await;
    }

    /// The directory as of its last read.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.shared.directory.load_full()
    }

    /// This replica's id in the store.
    #[must_use]
    pub fn publisher(&self) -> PublisherId {
        self.shared.id
    }

    /// Whether the store accepts queries and writes for all keys.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        [&self.shared.link, &self.query_link].iter().all(|link| link.is_connected())
    }

    /// Status and counters.
    #[must_use]
    pub fn report(&self) -> StoreReport {
        let disconnected = [&self.shared.link, &self.query_link].into_iter().find(|link| !link.is_connected());
        StoreReport {
            url: self.options.url.to_string(),
            is_connected: self.is_connected(),
            last_error: disconnected.map_or_else(String::new, |link| link.last_error()),
            publisher: self.shared.id,
            published: *self.shared.report.lock(),
            task_panics: panic_count(),
        }
    }

    /// Ends this replica's leases: other replicas then publish its ranks at once. Takes at most a few seconds.
    pub async fn stop(&self) {
        // The send fails only if the publisher has ended.
        let _ = self.stop.send(true);
        let publisher_task = self.publisher_task.lock().take();
        if let Some(task) = publisher_task {
            // The join fails only if the runtime has cancelled the publisher.
            let _ = task.await;
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.link_tasks.iter().for_each(JoinHandle::abort);
        if let Some(task) = self.publisher_task.lock().take() {
            task.abort();
        }
    }
}

/// Creates the ranks of a store and wakes its publisher when they change.
#[derive(Debug, Clone, Default)]
pub struct PublisherWaker {
    changed: Arc<Notify>,
}

impl PublisherWaker {
    /// A rank without prefixes.
    #[must_use]
    pub fn new_rank(&self) -> Arc<RankPrefixes> {
        Arc::new(RankPrefixes::new(Arc::clone(&self.changed)))
    }
}
