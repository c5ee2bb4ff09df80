//! A replica without a service: it writes its ranks to a store and queries the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use flash_indexer_bench::WorkerEvent;
use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{LocalHash, WorkerRank};
use flash_indexer_redis::{
    Holder, HolderDepth, HolderId, LocalRank, PublisherReport, PublisherWaker, RankRegistry, Scope, Store,
    StoreOptions, StoreUrl,
};
use tokio::runtime::{Builder, Runtime};

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Longer than the default, so no lease expires on a busy machine.
const TIME_TO_LIVE: Duration = Duration::from_secs(15);
/// Deadline of a query, which fails the benchmark.
const DEADLINE: Duration = Duration::from_secs(5);

/// The local ranks of a replica, numbered from zero.
pub(super) struct LocalRanks {
    waker: PublisherWaker,
    ranks: Vec<LocalRank>,
}

pub(super) fn scope() -> Scope {
    Scope::of(&["a model", "a tenant", "64"])
}

/// A rank's id in the store.
pub(super) fn holder(rank: WorkerRank) -> HolderId {
    HolderId::of(scope(), &[&rank.worker.0.to_string(), &rank.dp_rank.0.to_string()])
}

impl LocalRanks {
    pub(super) fn of(ranks: impl IntoIterator<Item = WorkerRank>) -> Self {
        let waker = PublisherWaker::default();
        let own = |rank| LocalRank {
            holder: Holder { id: holder(rank), scope: scope(), description: format!("{rank:?}").into_bytes() },
            state: Vec::new(),
            unfinished_state: Vec::new(),
            rank: waker.new_rank(),
        };
        let ranks = ranks.into_iter().map(own).collect();
        Self { waker, ranks }
    }

    pub(super) fn apply(&self, WorkerEvent { rank, event }: &WorkerEvent) {
        self.ranks[rank.worker.0 as usize].rank.apply(&RankEvent::Primary(event.clone()));
    }
}

impl RankRegistry for LocalRanks {
    fn ranks(&self) -> Vec<LocalRank> {
        self.ranks.clone()
    }
}

pub(super) struct Replica {
    runtime: Runtime,
    store: Store,
}

impl Replica {
    /// Starts publishing the local ranks.
    pub(super) fn start(port: u16, local_ranks: &Arc<LocalRanks>) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let url: StoreUrl = format!("redis://127.0.0.1:{port}").parse()?;
        let options = StoreOptions { time_to_live: TIME_TO_LIVE, deadline: DEADLINE, ..StoreOptions::at(url) };
        let ranks = Arc::clone(local_ranks) as Arc<dyn RankRegistry>;
        let store = Store::start(options, &local_ranks.waker, ranks, runtime.handle())?;
        Ok(Self { runtime, store })
    }

    /// The store's answer to a query.
    pub(super) fn find(&self, query: &[LocalHash]) -> Result<Vec<HolderDepth>> {
        Ok(self.runtime.block_on(self.store.find(scope(), query))?.depths)
    }

    pub(super) fn published(&self) -> PublisherReport {
        self.store.report().published
    }

    /// Waits until `ranks` ranks are written completely and no change waits.
    pub(super) fn wait_until_written(&self, ranks: usize) -> Result<()> {
        let done = |report: PublisherReport| {
            report.published_ranks == ranks && report.unfinished_ranks == 0 && report.waiting_changes == 0
        };
        self.wait_until("everything to be written", done)
    }

    /// Waits until the publisher's report meets a condition.
    pub(super) fn wait_until(&self, what: &str, condition: impl Fn(PublisherReport) -> bool) -> Result<()> {
        wait_until(what, || Ok(condition(self.published()))).with_context(|| format!("{:?}", self.store.report()))
    }
}

/// Polls a condition.
pub(super) fn wait_until(what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > PATIENCE {
            bail!("waited {PATIENCE:?} for {what}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
