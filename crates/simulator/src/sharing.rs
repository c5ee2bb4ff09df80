//! The runtime of the clients of a simulated store, and the history of the ranks that they publish.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::time::Duration;

use flash_indexer_ingest::ListenerReport;
use flash_indexer_redis::StoreOptions;
use flash_indexer_types::{RankId, Trust};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::store::{RETENTION, Store};

/// Validity of entries in the store.
pub(crate) const TIME_TO_LIVE: Duration = Duration::from_secs(3);
/// Deadline of a query of the store.
const DEADLINE: Duration = Duration::from_millis(50);
/// Time window in which an answer was correct: entries are valid for their time to live when a query reads them.
const WINDOW: Duration = Duration::from_millis(3_100);
/// Time for which positions of streams are recorded.
const HISTORY: Duration = Duration::from_secs(60);

/// Range of messages of an epoch after which a rank may have been published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) epoch: usize,
    pub(crate) first: Option<u64>,
    pub(crate) last: u64,
}

/// Position of a rank's stream at a service during some time.
#[derive(Debug, Clone)]
pub(crate) struct ObservedPosition {
    /// Number of the service's start.
    start: u64,
    until: Instant,
    pub(crate) trust: Trust,
    /// Last applied message, with the epochs that it may be of.
    last: Option<u64>,
    epochs: (usize, usize),
    pub(crate) spans: Vec<Span>,
}

/// The store, the runtime of its clients, and the history of the ranks that they publish.
pub(crate) struct Sharing {
    runtime: Runtime,
    pub(crate) store: Store,
    began: Instant,
    /// Number of the present start of each service.
    starts: Vec<u64>,
    next_start: u64,
    positions: BTreeMap<RankId, VecDeque<ObservedPosition>>,
}

impl Sharing {
    pub(crate) fn new(nodes: usize, services: usize, seed: u64) -> Self {
        // Its clock stands still, and is advanced when all tasks wait for it.
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let (store, began) = {
            let _entered = runtime.enter();
            (Store::new(nodes, services, seed), Instant::now())
        };
        Self {
            runtime,
            store,
            began,
            starts: (0..services as u64).collect(),
            next_start: services as u64,
            positions: BTreeMap::new(),
        }
    }

    /// Runs a function in the runtime, such as the start of a service.
    pub(crate) fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        call()
    }

    /// Options of the store for a service.
    pub(crate) fn options(&self, service: usize) -> StoreOptions {
        StoreOptions {
            time_to_live: TIME_TO_LIVE,
            retention: RETENTION,
            deadline: DEADLINE,
            simulated: Some(self.store.of_service(service)),
            ..StoreOptions::at("redis://simulated:1".parse().expect("an address"))
        }
    }

    /// Records that a service starts again.
    pub(crate) fn restart(&mut self, service: usize) {
        self.store.kill(service);
        self.starts[service] = self.next_start;
        self.next_start += 1;
    }

    /// Waits for a future. The tasks run meanwhile, and time passes if all of them wait for it.
    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Present moment of the tasks' clock.
    pub(crate) fn now(&self) -> Instant {
        self.enter(Instant::now)
    }

    /// Time of the tasks' clock since the start, in milliseconds.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        (self.now() - self.began).as_millis() as u64
    }

    /// Runs tasks that are ready, in this number of rounds. No time passes.
    pub(crate) fn run_tasks(&self, rounds: usize) {
        self.runtime.block_on(async {
            for _ in 0..rounds {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Records the position of a rank's stream at a service.
    pub(crate) fn record(&mut self, service: usize, rank: &RankId, report: &ListenerReport, epochs: (usize, usize)) {
        let (start, now) = (self.starts[service], self.now());
        let ListenerReport { last_seq: last, trust, .. } = *report;
        let positions = self.positions.entry(rank.clone()).or_default();
        while positions.front().is_some_and(|position| position.until + HISTORY < now) {
            positions.pop_front();
        }
        let previous = positions.iter().rposition(|position| position.start == start);
        let spans = match previous.map(|at| &positions[at]) {
            Some(previous) if previous.epochs == epochs && previous.last <= last => {
                let span = |epoch| Span { epoch, first: previous.last, last: last.map_or(0, |last| last + 1) };
                (epochs.0..=epochs.1).map(span).collect()
            }
            previous => {
                let first = previous.map_or(epochs.0, |previous| previous.epochs.0.min(epochs.0));
                (first..=epochs.1).map(|epoch| Span { epoch, first: None, last: u64::MAX }).collect()
            }
        };
        let is_same = |known: &ObservedPosition| (known.trust, known.last, known.epochs) == (trust, last, epochs);
        match previous.map(|at| &mut positions[at]) {
            Some(known) if is_same(known) && now <= known.until + WINDOW => known.until = now,
            _ => positions.push_back(ObservedPosition { start, until: now, trust, last, epochs, spans }),
        }
    }

    /// Start of the window in which an answer was correct.
    pub(crate) fn window_start(&self) -> Instant {
        let now = self.now();
        now.checked_sub(WINDOW + self.store.set_back()).unwrap_or(now)
    }

    /// Positions of a rank since a moment at other services than this one, and at this one before its last start.
    pub(crate) fn positions_of_others(&self, service: usize, rank: &RankId, since: Instant) -> Vec<&ObservedPosition> {
        let start = self.starts[service];
        let positions = self.positions.get(rank).into_iter().flatten();
        positions.filter(|position| position.start != start && position.until >= since).collect()
    }
}
