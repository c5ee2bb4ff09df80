//! What a replica keeps for the store beside its index, measured as indexes are.

use std::path::Path;

use anyhow::{Context, Result};
use flash_indexer_bench::{
    Backend, Child, Contender, Finder, Found, Lane, Measure, Processes, RunOptions, Setup, WorkerEvent,
};
use flash_indexer_core::LocalHash;
use flash_indexer_sim::FleetOptions;

use super::publishing::rank;
use super::replica::Listened;

/// Ranks that a replica listens to while there is no store.
pub(crate) struct SharedRanks;

const NAME: &str = "shared ranks";

/// Bytes by which a fresh process grows that takes in so many requests; none where the system does not say.
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
        Box::new(Listened::to((0..setup.workers).map(rank)))
    }
}

impl Backend for Listened {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        Box::new(RanksLane { ranks: self, events: events.into_iter() })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        Box::new(NothingFound)
    }
}

struct RanksLane<'a> {
    ranks: &'a Listened,
    events: std::vec::IntoIter<&'a WorkerEvent>,
}

impl Lane for RanksLane<'_> {
    fn apply(&mut self, events: usize) {
        self.events.by_ref().take(events).for_each(|event| self.ranks.apply(event));
    }
}

/// Queries go to the store, and there is none.
struct NothingFound;

impl Finder for NothingFound {
    fn load(&mut self, _: &[LocalHash]) {}

    fn find(&mut self) {}

    fn find_top(&mut self, _: usize) {}

    fn found(&self) -> Found {
        Found::default()
    }
}
