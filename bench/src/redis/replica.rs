//! A replica without a service around it: what its ranks hold, written into a store and asked of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use flash_indexer_bench::WorkerEvent;
use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{LocalHash, WorkerRank};
use flash_indexer_redis::{
    Found, Holder, HolderId, LocalRank, PublisherReport, RankMaker, Ranks, Scope, Store, StoreOptions, StoreUrl,
};
use tokio::runtime::{Builder, Runtime};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Longer than by default, so that nothing runs out where a machine looks elsewhere for a moment.
const TIME_TO_LIVE: Duration = Duration::from_secs(15);
/// A query that takes longer is a failure here, and not a figure.
const DEADLINE: Duration = Duration::from_secs(5);

/// The ranks that a replica listens to, numbered from zero.
pub(super) struct Listened {
    maker: RankMaker,
    ranks: Vec<LocalRank>,
}

pub(super) fn scope() -> Scope {
    Scope::of(&["a model", "a tenant", "64"])
}

/// A rank's name in the store.
pub(super) fn holder(rank: WorkerRank) -> HolderId {
    HolderId::of(scope(), &[&rank.worker.0.to_string(), &rank.dp_rank.0.to_string()])
}

impl Listened {
    pub(super) fn to(ranks: impl IntoIterator<Item = WorkerRank>) -> Self {
        let maker = RankMaker::default();
        let own = |rank| LocalRank {
            holder: Holder { id: holder(rank), scope: scope(), description: format!("{rank:?}").into_bytes() },
            state: Vec::new(),
            rank: maker.rank(),
        };
        let ranks = ranks.into_iter().map(own).collect();
        Self { maker, ranks }
    }

    pub(super) fn apply(&self, WorkerEvent { rank, event }: &WorkerEvent) {
        self.ranks[rank.worker.0 as usize].rank.apply(&RankEvent::Indexed(event.clone()));
    }
}

impl Ranks for Listened {
    fn ranks(&self) -> Vec<LocalRank> {
        self.ranks.clone()
    }
}

pub(super) struct Replica {
    runtime: Runtime,
    store: Store,
}

impl Replica {
    /// Begins to publish all that is listened to.
    pub(super) fn start(port: u16, listened: &Arc<Listened>) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let url: StoreUrl = format!("redis://127.0.0.1:{port}").parse()?;
        let options = StoreOptions { time_to_live: TIME_TO_LIVE, deadline: DEADLINE, ..StoreOptions::at(url) };
        let ranks = Arc::clone(listened) as Arc<dyn Ranks>;
        let store = Store::start(options, &listened.maker, ranks, runtime.handle())?;
        Ok(Self { runtime, store })
    }

    /// What the store says of a query.
    pub(super) fn find(&self, query: &[LocalHash]) -> Result<Vec<Found>> {
        Ok(self.runtime.block_on(self.store.find(scope(), query))?)
    }

    pub(super) fn published(&self) -> PublisherReport {
        self.store.report().published
    }

    /// Waits until so many ranks are written as a whole and no change waits.
    pub(super) fn wait_until_written(&self, ranks: usize) -> Result<()> {
        let done = |report: PublisherReport| {
            report.published_ranks == ranks && report.unfinished_ranks == 0 && report.waiting_changes == 0
        };
        self.wait_until("everything to be written", done)
    }

    /// Waits until what was published is as it should be.
    pub(super) fn wait_until(&self, what: &str, condition: impl Fn(PublisherReport) -> bool) -> Result<()> {
        wait_until(what, || Ok(condition(self.published()))).with_context(|| format!("{:?}", self.store.report()))
    }
}

/// Asks again and again.
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
