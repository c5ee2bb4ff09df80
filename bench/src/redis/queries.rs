//! The same queries on the store and on indexes in memory, in turn.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use flash_indexer_bench::{Backend, Clock, Contender, Latencies, LatencyFigures, MatchTotals, Setup, WorkerEvent};
use flash_indexer_core::{LocalHash, PerTier, SharedIndex, Tier};
use flash_indexer_designs::Design;
use flash_indexer_redis::HolderId;

use super::replica::{Replica, holder, wait_until};
use super::{LatencyPair, QueryLine};
use crate::peers::TwoLevelLruPeer;

/// Prompts of one kind.
pub(super) struct Kind {
    pub(super) what: String,
    pub(super) prompts: Vec<Vec<LocalHash>>,
}

/// The indexes in memory that are queried in addition to the store.
pub(super) struct InMemory {
    index: Box<dyn SharedIndex>,
    two_level: Box<dyn Backend>,
}

type Depths = BTreeMap<HolderId, PerTier<u32>>;

impl InMemory {
    /// Fills both indexes with all events.
    pub(super) fn of<'a>(ranks: usize, events: impl Iterator<Item = &'a WorkerEvent> + Clone) -> Self {
        let index = Design::DEFAULT.build();
        for WorkerEvent { rank, event } in events.clone() {
            index.apply(*rank, event);
        }
        let two_level = TwoLevelLruPeer.build(Setup { workers: ranks, event_threads: 1 });
        let events: Vec<&WorkerEvent> = events.collect();
        let count = events.len();
        let mut lane = two_level.lane(events);
        lane.apply(count);
        lane.settle();
        drop(lane);
        Self { index, two_level }
    }

    /// Whether a rank holds a whole prompt.
    pub(super) fn holds(&self, prompt: &[LocalHash]) -> bool {
        let ranks = self.index.find(prompt).ranks;
        ranks.iter().any(|found| found.blocks[Tier::Device] as usize == prompt.len())
    }

    fn depths(&self, prompt: &[LocalHash]) -> Depths {
        self.index.find(prompt).ranks.into_iter().map(|found| (holder(found.rank), found.blocks)).collect()
    }
}

fn depths(found: &[flash_indexer_redis::HolderDepth]) -> Depths {
    found.iter().map(|found| (found.holder, found.blocks)).collect()
}

/// Queries every prompt of every kind `rounds` times on all three in turn, and compares each answer.
pub(super) fn measure(replica: &Replica, memory: &InMemory, kinds: &[Kind], rounds: usize) -> Result<Vec<QueryLine>> {
    let clock = Clock::calibrated();
    let mut two_level = memory.two_level.finder();
    let mut timed: Vec<[Latencies; 3]> = kinds.iter().map(|_| Default::default()).collect();
    let mut holders = vec![0; kinds.len()];
    for prompt in kinds.iter().flat_map(|kind| &kind.prompts) {
        let expected = memory.depths(prompt);
        wait_until("the store's answer to be the index's", || Ok(depths(&replica.find(prompt)?) == expected))?;
    }
    for _ in 0..rounds {
        for ((kind, [store, index, peer]), holders) in kinds.iter().zip(&mut timed).zip(&mut holders) {
            for prompt in &kind.prompts {
                let expected = memory.depths(prompt);
                let mut found = Ok(Vec::new());
                store.record(clock.time(|| found = replica.find(prompt)));
                if depths(&found?) != expected {
                    bail!("{}: the store's answer differs from the index's", kind.what);
                }
                index.record(clock.time(|| drop(std::hint::black_box(memory.index.find(prompt)))));
                two_level.load(prompt);
                peer.record(clock.time(|| two_level.find()));
                let in_device = expected.values().map(|blocks| blocks[Tier::Device]);
                if two_level.totals() != MatchTotals::of(in_device) {
                    bail!("{}: the answer of {} differs from the index's", kind.what, TwoLevelLruPeer.name());
                }
                *holders += expected.len();
            }
        }
    }
    let lines = kinds.iter().zip(timed).zip(holders).map(|((kind, timed), holders)| {
        let [store, memory, two_level] = timed.map(|latencies| LatencyPair::from(latencies.figures()));
        let queries = (rounds * kind.prompts.len()).max(1);
        QueryLine { what: kind.what.clone(), holders: holders as f64 / queries as f64, store, memory, two_level }
    });
    Ok(lines.collect())
}

impl From<LatencyFigures> for LatencyPair {
    fn from(figures: LatencyFigures) -> Self {
        Self { p50_us: figures.p50_ns / 1e3, p99_us: figures.p99_ns / 1e3 }
    }
}
