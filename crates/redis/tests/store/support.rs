//! Replicas of a fleet, and the depths that each of them finds in the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{BlockEvent, LocalHash, PerTier, Tier, WorkerRank};
use flash_indexer_redis::{
    FoundRanks, Holder, HolderId, LocalRank, PublisherWaker, RankPrefixes, RankRegistry, Scope, Store, StoreOptions,
};
use flash_indexer_test_support::{RedisNode, wait_for};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Depths by holder.
pub(crate) type Depths = BTreeMap<HolderId, PerTier<u32>>;

#[derive(Default)]
struct Registry(Mutex<BTreeMap<WorkerRank, LocalRank>>);

impl RankRegistry for Registry {
    fn ranks(&self) -> Vec<LocalRank> {
        self.0.lock().values().cloned().collect()
    }
}

/// A replica that listens to some ranks.
pub(crate) struct Replica {
    pub(crate) store: Store,
    waker: PublisherWaker,
    registry: Arc<Registry>,
    runtime: Runtime,
}

pub(crate) fn scope() -> Scope {
    Scope::of(&["a model", "a tenant", "64"])
}

pub(crate) fn holder(rank: WorkerRank) -> HolderId {
    HolderId::of(scope(), &[&rank.worker.0.to_string(), &rank.dp_rank.0.to_string()])
}

pub(crate) fn options(url: &str) -> StoreOptions {
    StoreOptions {
        time_to_live: Duration::from_millis(1_500),
        deadline: Duration::from_secs(5),
        ..StoreOptions::at(url.parse().expect("an address"))
    }
}

pub(crate) fn single_url(node: &RedisNode) -> String {
    format!("redis://127.0.0.1:{}", node.port())
}

pub(crate) fn cluster_url(nodes: &[RedisNode]) -> String {
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

impl Replica {
    pub(crate) fn start(options: StoreOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (waker, registry) = (PublisherWaker::default(), Arc::new(Registry::default()));
        let store = Store::start(options, &waker, Arc::clone(&registry) as Arc<dyn RankRegistry>, runtime.handle());
        Self { store: store.expect("a store"), waker, registry, runtime }
    }

    /// Listens to a rank that holds nothing yet.
    pub(crate) fn register(&self, rank: WorkerRank) -> Arc<RankPrefixes> {
        let shared = self.waker.new_rank();
        self.list(rank, &shared);
        shared
    }

    fn list(&self, rank: WorkerRank, shared: &Arc<RankPrefixes>) {
        let holder = Holder { id: holder(rank), scope: scope(), description: format!("{rank:?}").into_bytes() };
        let (state, unfinished_state) = (b"fine".to_vec(), b"unfinished".to_vec());
        let local = LocalRank { holder, state, unfinished_state, rank: Arc::clone(shared) };
        self.registry.0.lock().insert(rank, local);
    }

    /// Changes the status of a rank that is completely written to the store.
    pub(crate) fn set_state(&self, rank: WorkerRank, state: &[u8]) {
        self.registry.0.lock().get_mut(&rank).expect("a registered rank").state = state.to_vec();
    }

    pub(crate) fn unregister(&self, rank: WorkerRank) {
        self.registry.0.lock().remove(&rank);
    }

    /// Applies an event of a rank. An unknown rank is registered with its first event: the publisher does not list it
    /// before, when it holds nothing.
    pub(crate) fn apply(&self, rank: WorkerRank, event: &BlockEvent) {
        let event = RankEvent::Primary(event.clone());
        let known = self.registry.0.lock().get(&rank).map(|own| Arc::clone(&own.rank));
        if let Some(shared) = known {
            return shared.apply(&event);
        }
        let shared = self.waker.new_rank();
        shared.apply(&event);
        self.list(rank, &shared);
    }

    /// Depths of a query; none if the store does not respond.
    pub(crate) fn find(&self, query: &[LocalHash]) -> Option<Depths> {
        let found = self.find_all(query)?;
        Some(found.depths.into_iter().map(|found| (found.holder, found.blocks)).collect())
    }

    /// Result of a query; none if the store does not respond.
    pub(crate) fn find_all(&self, query: &[LocalHash]) -> Option<FoundRanks> {
        self.runtime.block_on(self.store.find(scope(), query)).ok()
    }

    /// Waits until the depths of a query meet a condition.
    pub(crate) fn wait_until(&self, what: &str, query: &[LocalHash], condition: impl Fn(&Depths) -> bool) -> Depths {
        wait_for(what, PATIENCE, || self.find(query).filter(&condition))
    }

    /// Waits until one rank has `depth` blocks in device memory.
    pub(crate) fn wait_for_depth(&self, query: &[LocalHash], rank: WorkerRank, depth: u32) {
        let what = format!("depth {depth} of {rank:?}");
        self.wait_until(&what, query, |depths| device_depth(depths, rank) == depth);
    }

    pub(crate) fn stop(self) {
        self.runtime.block_on(self.store.stop());
    }

    /// Suspends the replica's tasks, like SIGSTOP, until the returned sender is dropped.
    pub(crate) fn suspend(&self) -> Sender<()> {
        let (resume, resumed) = channel::<()>();
        // The only thread of the runtime waits here.
        self.runtime.spawn(async move {
            // Returns when the sender is dropped.
            let _ = resumed.recv();
        });
        resume
    }

    /// Ends without releasing the leases, like a killed process.
    pub(crate) fn die(self) {
        self.runtime.shutdown_background();
    }
}

pub(crate) fn device_depth(depths: &Depths, rank: WorkerRank) -> u32 {
    depths.get(&holder(rank)).map_or(0, |blocks| blocks[Tier::Device])
}
