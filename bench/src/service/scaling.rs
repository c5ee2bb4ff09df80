//! Ingest by the number of writers, on a machine with many cores.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::compare::{DYNAMO, Load, Service};
use super::content::{SEQUENCE_BLOCKS, Shape};
use super::{median, setting};

/// Engines of one model, each with its own two publishing threads.
const ENGINES: usize = 16;
/// Sequences of each engine: half as many as in the comparison.
const SEQUENCES: usize = 1_750;
const WRITERS: [usize; 5] = [1, 2, 4, 8, 16];

/// Results of the scaling part; medians over rounds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Scaling {
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) lines: Vec<ScalingLine>,
}

/// Rate of one service.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScalingLine {
    pub(crate) service: String,
    pub(crate) blocks_per_second: f64,
    pub(crate) bytes_per_second: f64,
}

/// Measures the program at `path` with each number of [`WRITERS`] that does not exceed the machine's cores and with its defaults, and
/// Dynamo's service with its defaults.
pub(crate) fn measure(path: &Path, rounds: usize) -> Result<Scaling> {
    let rounds = rounds.max(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load =
        Load { engines: ENGINES, shape: Shape { sequences: SEQUENCES, ..Shape::LARGE_PREFILL }, is_shared: false };
    let batches = load.batches();
    let bytes: usize = batches.iter().flatten().map(Vec::len).sum();
    let blocks = ENGINES * SEQUENCES * SEQUENCE_BLOCKS;
    let writers = WRITERS.into_iter().filter(|&writers| writers <= cores);
    let mut services: Vec<_> =
        writers.map(|writers| (format!("--threads {writers}"), Service::Writers(path, writers))).collect();
    services.push(("defaults".to_owned(), Service::FlashIndexer(path)));
    services.push((DYNAMO.to_owned(), Service::Dynamo));
    let mut seconds = vec![Vec::new(); services.len()];
    for _ in 0..rounds {
        for ((name, service), seconds) in services.iter().zip(&mut seconds) {
            eprintln!("scaling: {name}");
            seconds.push(load.ingest_side_by_side(*service, &batches)?.as_secs_f64());
        }
    }
    let line = |((service, _), seconds): ((String, Service<'_>), Vec<f64>)| {
        let seconds = median(seconds);
        ScalingLine { service, blocks_per_second: blocks as f64 / seconds, bytes_per_second: bytes as f64 / seconds }
    };
    let mut setting = setting(rounds);
    setting.retain(|(name, _)| name != "engines");
    setting.push(("engines".to_owned(), format!("{ENGINES}, each with a thread and a context of ZeroMQ")));
    Ok(Scaling { setting, lines: services.into_iter().zip(seconds).map(line).collect() })
}
