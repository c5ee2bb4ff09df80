//! Benchmark of the service over real sockets: batches by ZeroMQ, queries by HTTP.

mod clears;
mod client;
mod compare;
mod content;
mod ingest;
mod neighbours;
mod probe;
mod program;
mod queries;
mod scaling;
mod sockets;
mod waits;

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use self::content::Shape;
use self::ingest::Engines;
use self::program::Program;

pub(crate) use self::clears::ClearsReport;
pub(crate) use self::compare::{ComparedLine, Comparison, compare};
pub(crate) use self::content::BLOCK_TOKENS;
pub(crate) use self::ingest::ENGINES;
pub(crate) use self::neighbours::NeighbourLine;
pub(crate) use self::queries::{CONNECTIONS, PROMPT_TOKENS};
pub(crate) use self::scaling::{Scaling, measure as measure_scaling};

/// Results of the service part; medians over rounds.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServiceReport {
    /// Processor, cores and rounds.
    pub(crate) setting: Vec<(String, String)>,
    /// One line for each shape of batches.
    pub(crate) ingest: Vec<IngestLine>,
    /// A burst that is published faster than it is applied.
    #[serde(default)]
    pub(crate) burst: Option<BurstLine>,
    /// The same queries, alone and during ingest.
    pub(crate) queries: Vec<QueryLine>,
    /// Waits of queries and events while large answers are read.
    #[serde(default)]
    pub(crate) waits: Vec<WaitLine>,
    /// Waits while ranks are cleared and unregistered.
    #[serde(default)]
    pub(crate) clears: Option<ClearsReport>,
    /// Waits of events while other instances publish as fast as they can.
    #[serde(default)]
    pub(crate) neighbours: Vec<NeighbourLine>,
}

/// Ingest rate of batches of one shape.
#[derive(Serialize, Deserialize)]
pub(crate) struct IngestLine {
    pub(crate) shape: String,
    pub(crate) bytes_per_event: f64,
    pub(crate) events_per_second: f64,
    pub(crate) blocks_per_second: f64,
}

/// A burst. No message of it may be lost.
#[derive(Serialize, Deserialize)]
pub(crate) struct BurstLine {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    pub(crate) messages: u64,
    /// Duration of its publication, in seconds.
    pub(crate) published_seconds: f64,
    /// Seconds until all of it is visible to queries.
    pub(crate) applied_seconds: f64,
}

/// Rate and latency of queries.
#[derive(Serialize, Deserialize)]
pub(crate) struct QueryLine {
    pub(crate) beside: String,
    /// Offered rate; none for a closed loop.
    pub(crate) offered_per_second: Option<f64>,
    pub(crate) requests_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Events applied meanwhile.
    pub(crate) events_per_second: f64,
}

/// Waits while one kind of large answer is read again and again.
#[derive(Serialize, Deserialize)]
pub(crate) struct WaitLine {
    /// The request that is repeated; none for comparison.
    pub(crate) reading: Option<String>,
    /// Answers to it per second, and megabytes of one answer.
    pub(crate) readings_per_second: f64,
    pub(crate) reading_megabytes: f64,
    pub(crate) queries: Waits,
    /// From the publication of an event until it is visible to queries.
    pub(crate) events: Waits,
}

/// Waits of one kind, in microseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Waits {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// Offered queries a second during ingest.
const REQUESTS_WANTED: f64 = 10_000.0;
/// Events a second during the queries, in batches of 64 single-block events.
const MODERATE_EVENTS: f64 = 100_000.0;

/// Takes all measures of the program at `path`. Every round starts a new service.
pub(crate) fn measure(path: &Path, rounds: usize) -> Result<ServiceReport> {
    let rounds = rounds.max(1);
    let mut ingest = Vec::new();
    for shape in Shape::ALL {
        eprintln!("service: {}", shape.name);
        let program = Program::start(path)?;
        let mut engines = Engines::register(&program, shape)?;
        // In the first round the index has to grow.
        engines.fill(&program)?;
        engines.clear(&program)?;
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            seconds.push(engines.fill(&program)?.as_secs_f64());
            engines.clear(&program)?;
        }
        let seconds = median(seconds);
        ingest.push(IngestLine {
            shape: shape.name.to_owned(),
            bytes_per_event: engines.bytes() as f64 / engines.events() as f64,
            events_per_second: engines.events() as f64 / seconds,
            blocks_per_second: engines.blocks() as f64 / seconds,
        });
    }
    let burst = Some(measure_burst(path, rounds)?);
    let mut queries = Vec::new();
    for (beside, events) in [("nothing", 0.0), ("ingest", MODERATE_EVENTS)] {
        for offered in [None, Some(REQUESTS_WANTED), Some(REQUESTS_WANTED / 2.0)] {
            eprintln!("service: queries beside {beside}");
            let lines = (0..rounds).map(|_| queries::measure(path, offered, events)).collect::<Result<Vec<_>>>()?;
            let of = |figure: fn(&QueryLine) -> f64| median(lines.iter().map(figure).collect());
            queries.push(QueryLine {
                beside: beside.to_owned(),
                offered_per_second: offered,
                requests_per_second: of(|line| line.requests_per_second),
                p50_us: of(|line| line.p50_us),
                p99_us: of(|line| line.p99_us),
                events_per_second: of(|line| line.events_per_second),
            });
        }
    }
    let waits = waits::measure(path, rounds)?;
    let clears = Some(clears::measure(path)?);
    let neighbours = neighbours::measure(path, rounds)?;
    Ok(ServiceReport { setting: setting(rounds), ingest, burst, queries, waits, clears, neighbours })
}

/// Each round has a new service, whose index has to grow.
fn measure_burst(path: &Path, rounds: usize) -> Result<BurstLine> {
    let mut bursts = Vec::new();
    for _ in 0..rounds {
        eprintln!("service: {}", Shape::BURST.name);
        let program = Program::start(path)?;
        let mut engines = Engines::register(&program, Shape::BURST)?;
        let burst = engines.burst(&program)?;
        bursts.push(BurstLine {
            events: engines.events(),
            bytes: engines.bytes(),
            messages: engines.messages(),
            published_seconds: burst.published.as_secs_f64(),
            applied_seconds: burst.applied.as_secs_f64(),
        });
    }
    bursts.sort_unstable_by(|a, b| a.applied_seconds.total_cmp(&b.applied_seconds));
    Ok(bursts.swap_remove(rounds / 2))
}

fn setting(rounds: usize) -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        ("cores".to_owned(), format!("{cores}, shared by the service, the engines and the client")),
        ("engines".to_owned(), ENGINES.to_string()),
        ("rounds".to_owned(), rounds.to_string()),
    ]
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
