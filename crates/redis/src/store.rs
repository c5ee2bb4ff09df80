//! The store as a whole: what a replica writes into it and asks of it.

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
use crate::find::{Answer, FindError, HolderDepth, read};
use crate::holder::{PublisherId, Scope};
use crate::keys::{Keys, Namespace};
use crate::link::{Credentials, Link, StoreError};
use crate::publisher::{Counts, Publisher, PublisherReport, Ranks, Shared, Times};
use crate::random::unique;
use crate::script::FIND;
use crate::shared_rank::SharedRank;
use crate::supervised::{panics, supervised};
use crate::url::{StoreUrl, Topology};

/// How a store is used.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where it is.
    pub url: StoreUrl,
    /// Who one is to it.
    pub credentials: Credentials,
    /// Beginning of all keys.
    pub namespace: Namespace,
    /// What a replica has written counts for so long after it was confirmed; confirmed three times as often.
    pub time_to_live: Duration,
    /// Blocks that nobody writes again are dropped by the store after so long.
    pub keep: Duration,
    /// Longest wait of a query.
    pub deadline: Duration,
}

impl StoreOptions {
    /// The usual times for a store at this address.
    #[must_use]
    pub fn at(url: StoreUrl) -> Self {
        Self {
            url,
            credentials: Credentials::default(),
            namespace: Namespace::default(),
            time_to_live: Duration::from_secs(3),
            keep: Duration::from_secs(3600),
            deadline: Duration::from_millis(50),
        }
    }
}

/// Parts in which keys are spread over a cluster's nodes.
const CLUSTER_BUCKETS: u16 = 64;

/// The list of holders is read three times in a time to live, and is current for this many times to live.
const DIRECTORY_AGE_MAX: u32 = 2;
/// Pause before a link that panicked is kept again.
pub(crate) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// What a replica knows of its store.
#[derive(Debug, Clone)]
pub struct StoreReport {
    /// Where it is, without password.
    pub url: String,
    /// Whether it can be asked and written to.
    pub is_connected: bool,
    /// Whether the list of holders was read lately.
    pub is_directory_current: bool,
    /// What went wrong last.
    pub last_error: String,
    /// This replica's name in it.
    pub publisher: PublisherId,
    /// What was written.
    pub published: PublisherReport,
    /// Panics of tasks of the store in this process.
    pub task_panics: u64,
}

/// A store that is used; dropped, it is used no more, and what was written counts until it is no longer confirmed.
pub struct Store {
    options: StoreOptions,
    shared: Arc<Shared>,
    /// Queries have a connection of their own, so that none waits for a batch.
    asking: Arc<Link>,
    stop: watch::Sender<bool>,
    publishing: Mutex<Option<JoinHandle<()>>>,
    linking: [JoinHandle<()>; 2],
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Store {
    /// Connects in the background and publishes what `ranks` says, made by `maker`, with tasks of this runtime.
    ///
    /// # Errors
    ///
    /// When the address or the certificates cannot be used. That nobody is there is no error.
    pub fn start(
        options: StoreOptions,
        maker: &RankMaker,
        ranks: Arc<dyn Ranks>,
        on: &Handle,
    ) -> Result<Self, StoreError> {
        let buckets = match options.url.topology {
            Topology::Cluster => CLUSTER_BUCKETS,
            Topology::Single | Topology::Sentinel { .. } => 1,
        };
        let keys = Keys::new(options.namespace.clone(), buckets);
        let [.., probe_key] = keys.list();
        let link = || Link::new(&options.url, &options.credentials, probe_key.clone()).map(Arc::new);
        let (writing, asking) = (link()?, link()?);
        let shared = Arc::new(Shared {
            id: PublisherId::from_number(unique()),
            keys,
            times: Times { to_live: options.time_to_live, keep: options.keep },
            link: writing,
            directory: ArcSwap::default(),
            counts: Arc::new(Counts::default()),
            changed: Arc::clone(&maker.changed),
            listed: Notify::new(),
            suspects: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(false);
        let linking = [&shared.link, &asking].map(|link| {
            let link = Arc::clone(link);
            on.spawn(async move { supervised("link", RESTART_PAUSE, || Arc::clone(&link).keep()).await })
        });
        let publishing = {
            let shared = Arc::clone(&shared);
            // By then nothing counts any more that the one that panicked has confirmed: what it had not written yet cannot
            // make an answer too high.
            let pause = shared.times.to_live;
            let publish = move || Publisher::new(Arc::clone(&shared), Arc::clone(&ranks)).run(stopped.clone());
            on.spawn(async move { supervised("publisher", pause, publish).await })
        };
        Ok(Self { options, shared, asking, stop, publishing: Mutex::new(Some(publishing)), linking })
    }

    /// How many leading blocks of a query the holders of a scope have, as far as their publishers have confirmed it
    /// lately. One call.
    ///
    /// # Errors
    ///
    /// When the store does not answer in time.
    pub async fn find(&self, scope: Scope, query: &[LocalHash]) -> Result<Vec<HolderDepth>, FindError> {
        let Some(&first) = query.first() else { return Ok(Vec::new()) };
        let keys = &self.shared.keys;
        let bucket = keys.bucket_of(scope, first);
        let mut ends = Vec::with_capacity(query.len() * 8);
        sequence_hashes(query).for_each(|prefix| ends.extend_from_slice(&Keys::block(scope, prefix)));
        let call = FIND.on(keys.bucket_tables(bucket)).argument(keys.blocks(bucket)).argument(ends);
        let answer = self.asking.call(&call, self.options.deadline).await?;
        let Answer { found, invalid } = read(answer, u32::try_from(query.len()).unwrap_or(u32::MAX))?;
        if !invalid.is_empty() {
            self.shared.suspect(bucket, invalid);
        }
        Ok(found)
    }

    /// Returns when the list of holders has been read again. For one task.
    pub async fn listed(&self) {
        self.shared.listed.notified().await;
    }

    /// Whether the list of holders was read lately. What an older one says of a rank may no longer be so.
    #[must_use]
    pub fn is_directory_current(&self) -> bool {
        let age_max = self.options.time_to_live * DIRECTORY_AGE_MAX;
        self.directory().read_at().is_some_and(|read_at| read_at.elapsed() < age_max)
    }

    /// Who is listed.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.shared.directory.load_full()
    }

    /// This replica's name in the store.
    #[must_use]
    pub fn publisher(&self) -> PublisherId {
        self.shared.id
    }

    /// Whether it can be asked and written to.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        [&self.shared.link, &self.asking].iter().all(|link| link.is_connected())
    }

    /// How it fares.
    #[must_use]
    pub fn report(&self) -> StoreReport {
        let links = [&self.shared.link, &self.asking];
        StoreReport {
            url: self.options.url.to_string(),
            is_connected: self.is_connected(),
            is_directory_current: self.is_directory_current(),
            last_error: links
                .iter()
                .find(|link| !link.is_connected())
                .map_or_else(String::new, |link| link.last_error()),
            publisher: self.shared.id,
            published: self.shared.counts.report(),
            task_panics: panics(),
        }
    }

    /// Takes this replica's ranks off the list, so that others publish them at once. Waits for at most a few seconds.
    pub async fn stop(&self) {
        // Nobody listens if the task has ended.
        let _ = self.stop.send(true);
        let publishing = self.publishing.lock().take();
        if let Some(publishing) = publishing {
            // It was cancelled with its runtime: then nothing is published any more either.
            let _ = publishing.await;
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.linking.iter().for_each(JoinHandle::abort);
        if let Some(publishing) = self.publishing.lock().take() {
            publishing.abort();
        }
    }
}

/// Makes ranks that tell the publisher when they change.
#[derive(Debug, Clone, Default)]
pub struct RankMaker {
    changed: Arc<Notify>,
}

impl RankMaker {
    /// A rank that holds nothing.
    #[must_use]
    pub fn rank(&self) -> Arc<SharedRank> {
        Arc::new(SharedRank::new(Arc::clone(&self.changed)))
    }
}
