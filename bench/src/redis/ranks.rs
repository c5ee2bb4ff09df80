//! Memory that a replica uses for the shared store in addition to its index, measured like an index.

use std::path::Path;

use anyhow::{Context, Result};
use flash_indexer_bench::{
    Backend, Child, Contender, Finder, Lane, MatchTotals, Measure, Processes, RunOptions, Setup, WorkerEvent,
};
use flash_indexer_core::LocalHash;
use flash_indexer_sim::FleetOptions;

use super::publishing::rank;
use super::replica::LocalRanks;

/// Local ranks of a replica without a store.
pub(crate) struct SharedRanks;

const NAME: &str = "shared ranks";

/// Growth of a fresh process that applies the events of `requests`, in bytes; none where the system does not report it.
pub(super) fn resident_bytes(trace: &Path, requests: usize, fleet: &FleetOptions, child: Child) -> Result<Option<u64>> {
    let options = RunOptions {
        measures: vec![Measure::Memory],
        repeats: 1,
        requests,
        fleet: fleet.clone(),
        baseline: NAME.to_owned(),
        processes: Processes::Own(child),
    };
    let report = flash_indexer_bench::run(&[&SharedRanks], trace, &options, &mut crate::Log::default())
        .context("failed to measure the memory of shared ranks")?;
    let mebibytes = report.value(Measure::Memory.as_str(), "MiB", NAME);
    Ok(mebibytes.map(|mebibytes| (mebibytes * f64::from(1 << 20)) as u64))
}

impl Contender for SharedRanks {
    fn name(&self) -> &str {
        NAME
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        Box::new(LocalRanks::of((0..setup.workers).map(rank)))
    }
}

impl Backend for LocalRanks {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        Box::new(RanksLane { ranks: self, events: events.into_iter() })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(EmptyFinder)
    }
}

struct RanksLane<'a> {
    ranks: &'a LocalRanks,
    events: std::vec::IntoIter<&'a WorkerEvent>,
}

impl Lane for RanksLane<'_> {
    fn apply(&mut self, events: usize) {
        self.events.by_ref().take(events).for_each(|event| self.ranks.apply(event));
    }
}

/// A finder without answers: queries go to the store, which does not run here.
struct EmptyFinder;

impl Finder for EmptyFinder {
    fn load(&mut self, _: &[LocalHash]) {}

    fn find(&mut self) {}

    fn find_top(&mut self, _: usize) {}

    fn totals(&self) -> MatchTotals {
        MatchTotals::default()
    }
}
