//! Benchmarks of Flash Indexer and of other indexes. The script `run` in this folder starts them.
//!
//! | module | role |
//! |---|---|
//! | `peers/` | other indexes as contenders |
//! | `service/`, `redis/`, `prompt/`, `memory` | benchmarks of the service, the shared store, the prompt pipeline, the memory limit |
//! | `goals`, `markdown`, `plots/`, `results` | goals, BENCHMARKS.md, plots, result files |

mod goals;
mod markdown;
mod memory;
mod peers;
mod plots;
mod prompt;
mod redis;
mod results;
mod service;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use flash_indexer_bench::{
    Child, Contender, DesignContender, EventDensity, Measure, Observer, Play, Processes, RunOptions, ShardsContender,
    SweepPoint, Workload, serve_child, sweep,
};
use flash_indexer_designs::Design;
use flash_indexer_sim::workload::MooncakeTrace;
use flash_indexer_sim::{Fleet, FleetOptions};
use flash_indexer_test_support::testdata;

use crate::results::{Results, SweepLine};

/// One allocator for all indexes: the allocator of `serve`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Compare Flash Indexer's designs with other indexes.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Take the measures, and write them as measures.json.
    Measures(MeasuresArguments),
    /// Replay the trace at rising load; writes sweep.json and sweep.svg.
    Sweep(SweepArguments),
    /// Draw stores and removals over time as a heat map; writes density.svg.
    Density(DensityArguments),
    /// Measure the hit rate lost to a memory limit; writes memory.json and memory.svg.
    Memory(MemoryArguments),
    /// Measure the service over real sockets, next to Dynamo's; writes comparison.json and service.json.
    Service(ServiceArguments),
    /// Measure ingest by the number of writers, next to Dynamo's; writes scaling.json.
    Scaling(ServiceArguments),
    /// Measure the prompt pipeline, from a chat to scored pods; writes prompt.json.
    Prompt(PromptArguments),
    /// Compare the shared store on a Redis server with the index in memory; writes redis.json.
    Redis(RedisArguments),
    /// Write BENCHMARKS.md from the results of the other parts.
    Report(ReportArguments),
    /// Run Dynamo's standalone indexer, for the comparison of services.
    #[command(hide = true)]
    DynamoService {
        /// HTTP port.
        #[arg(long)]
        port: u16,
    },
    /// Take the measures that the parent process writes to standard input.
    #[command(hide = true)]
    Child,
}

/// Paths of the trace and the results.
#[derive(Args)]
struct Paths {
    /// The trace, as Mooncake publishes them.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,

    /// Folder of the results.
    #[arg(long, value_name = "FOLDER")]
    results: PathBuf,
}

#[derive(Args)]
struct MeasuresArguments {
    #[command(flatten)]
    places: Paths,

    /// Measures to take [default: all].
    #[arg(long, value_delimiter = ',', value_parser = measure_name())]
    measures: Vec<Measure>,

    /// Names of contenders [default: all].
    #[arg(long, value_delimiter = ';')]
    contenders: Vec<String>,

    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5)]
    repeats: usize,

    /// Requests of the trace [default: all].
    #[arg(long)]
    requests: Option<usize>,
}

#[derive(Args)]
struct SweepArguments {
    #[command(flatten)]
    places: Paths,

    /// Names of contenders [default: all].
    #[arg(long, value_delimiter = ';')]
    contenders: Vec<String>,

    /// Requests of the trace: at the lowest load all of them take as long as their blocks need.
    #[arg(long, default_value_t = 3_000)]
    requests: usize,

    /// Rounds; the plot shows medians over them.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
}

#[derive(Args)]
struct DensityArguments {
    #[command(flatten)]
    places: Paths,
}

#[derive(Args)]
struct MemoryArguments {
    #[command(flatten)]
    places: Paths,

    /// Requests of the trace [default: all].
    #[arg(long)]
    requests: Option<usize>,
}

#[derive(Args)]
struct ServiceArguments {
    /// The flash-indexer program.
    #[arg(long, value_name = "FILE")]
    program: PathBuf,

    /// Folder of the results.
    #[arg(long, value_name = "FOLDER")]
    results: PathBuf,

    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3)]
    repeats: usize,

    /// Additional information on the measurement for the report, such as `code=commit 1234567`.
    #[arg(long, value_name = "NAME=TEXT")]
    setting: Vec<String>,
}

impl ServiceArguments {
    fn settings(&self) -> Vec<(String, String)> {
        let given = self.setting.iter().filter_map(|setting| setting.split_once('='));
        given.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    }
}

#[derive(Args)]
struct PromptArguments {
    /// A directory of models; the first one is used [default: that of testdata/].
    #[arg(long, value_name = "FOLDER")]
    tokenizers: Option<PathBuf>,

    /// Folder of the results.
    #[arg(long, value_name = "FOLDER")]
    results: PathBuf,

    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 51)]
    repeats: usize,
}

#[derive(Args)]
struct RedisArguments {
    #[command(flatten)]
    places: Paths,

    /// Requests of the trace [default: all].
    #[arg(long)]
    requests: Option<usize>,

    /// Rounds of queries.
    #[arg(long, default_value_t = 11)]
    repeats: usize,
}

#[derive(Args)]
struct ReportArguments {
    /// Folder of the results.
    #[arg(long, value_name = "FOLDER")]
    results: PathBuf,

    /// The report.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Loads of the sweep, in block operations per second: doubling.
const SWEEP_FROM: f64 = 1e6;
const SWEEP_POINTS: i32 = 9;
/// The heat map's share of the trace, workers and cache, and its time bins.
const DENSITY_TRACE_PARTS: usize = 20;
const DENSITY_WORKERS: usize = 16;
const DENSITY_BLOCKS: usize = 2_048;
const DENSITY_BINS: usize = 120;

/// The fleet of the memory part: few workers, so round-robin requests find reusable blocks, with large caches of
/// blocks of 16 tokens.
const MEMORY_WORKERS: usize = 8;
const MEMORY_BLOCKS: usize = 131_072;
const MEMORY_BLOCKS_PER_HASH_ID: usize = 32;

fn main() -> Result<()> {
    match Arguments::parse().part {
        Part::Measures(arguments) => measures(&arguments),
        Part::Sweep(arguments) => sweep_all(&arguments),
        Part::Density(arguments) => density(&arguments),
        Part::Memory(arguments) => memory(&arguments),
        Part::Service(arguments) => {
            let (results, given) = (Results::new(&arguments.results), arguments.settings());
            let mut comparison = service::compare(&arguments.program, arguments.repeats)?;
            comparison.setting.extend(given.clone());
            results.write_comparison(&comparison)?;
            let mut report = service::measure(&arguments.program, arguments.repeats)?;
            report.setting.extend(given);
            results.write_service(&report)
        }
        Part::Scaling(arguments) => {
            let mut scaling = service::measure_scaling(&arguments.program, arguments.repeats)?;
            scaling.setting.extend(arguments.settings());
            Results::new(&arguments.results).write_scaling(&scaling)
        }
        Part::Prompt(arguments) => {
            let report = prompt::measure(
                &arguments.tokenizers.unwrap_or_else(|| testdata().join("tokenizers")),
                arguments.repeats,
            )?;
            Results::new(&arguments.results).write_prompt(&report)
        }
        Part::Redis(arguments) => shared_through_redis(&arguments),
        Part::DynamoService { port } => peers::serve_dynamo(port),
        Part::Report(arguments) => markdown::write(&Results::new(&arguments.results), &arguments.to),
        Part::Child => {
            let contenders = contenders(&[])?;
            let mut contenders: Vec<&dyn Contender> = contenders.iter().map(|contender| &**contender).collect();
            contenders.push(&redis::SharedRanks);
            contenders.extend(ShardsContender::ALL.iter().map(|contender| contender as &dyn Contender));
            Ok(serve_child(&contenders)?)
        }
    }
}

/// The named contenders, or all except the ones with a fixed number of shards: the designs of this project, then the peers.
fn contenders(names: &[String]) -> Result<Vec<Box<dyn Contender>>> {
    let designs = DesignContender::all().into_iter().map(|design| Box::new(design) as Box<dyn Contender>);
    let mut all: Vec<_> = designs.chain(peers::all()).collect();
    if !names.is_empty() {
        all.extend(ShardsContender::ALL.map(|contender| Box::new(contender) as Box<dyn Contender>));
    }
    let known: Vec<String> = all.iter().map(|contender| contender.name().to_owned()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("no contender is called {unknown:?}: choose from {}", known.join("; "));
    }
    Ok(all
        .into_iter()
        .filter(|contender| names.is_empty() || names.iter().any(|name| name == contender.name()))
        .collect())
}

fn measures(arguments: &MeasuresArguments) -> Result<()> {
    let contenders = contenders(&arguments.contenders)?;
    let contenders: Vec<&dyn Contender> = contenders.iter().map(|contender| &**contender).collect();
    let ours = Design::DEFAULT.as_str();
    let baseline = contenders.iter().find(|contender| contender.name() == ours).unwrap_or(&contenders[0]);
    let options = RunOptions {
        measures: if arguments.measures.is_empty() { Measure::ALL.to_vec() } else { arguments.measures.clone() },
        repeats: arguments.repeats,
        requests: arguments.requests.unwrap_or(usize::MAX),
        fleet: FleetOptions::default(),
        baseline: baseline.name().to_owned(),
        processes: Processes::Own(child()?),
    };
    let mut report = flash_indexer_bench::run(&contenders, &arguments.places.trace, &options, &mut Log::default())?;
    report.setting.push(("allocator".to_owned(), "jemalloc, as in `serve`, for every index".to_owned()));
    arguments.places.results().write_report(&report)
}

fn sweep_all(arguments: &SweepArguments) -> Result<()> {
    let trace = arguments.places.open()?;
    let workload = Workload::play(trace.prompts().take(arguments.requests), &FleetOptions::default(), 1);
    let contenders = contenders(&arguments.contenders)?;
    let lines = contenders.iter();
    let mut lines: Vec<SweepLine> =
        lines.map(|of| SweepLine { contender: of.name().to_owned(), points: Vec::new() }).collect();
    for doubled in 0..SWEEP_POINTS {
        let offered = SWEEP_FROM * 2f64.powi(doubled);
        eprintln!("sweep: {:.0} million block operations per second", offered / 1e6);
        let mut rounds = vec![Vec::new(); contenders.len()];
        for _ in 0..arguments.repeats.max(1) {
            for (contender, achieved) in contenders.iter().zip(&mut rounds) {
                achieved.push(sweep(&**contender, &workload, offered).achieved);
            }
        }
        for (line, mut achieved) in lines.iter_mut().zip(rounds) {
            achieved.sort_unstable_by(f64::total_cmp);
            line.points.push(SweepPoint { offered, achieved: achieved[achieved.len() / 2] });
        }
    }
    let results = arguments.places.results();
    plots::sweep(&lines, &results.sweep_plot())?;
    results.write_sweep(&lines)
}

fn density(arguments: &DensityArguments) -> Result<()> {
    let trace = arguments.places.open()?;
    let mut fleet =
        Fleet::new(FleetOptions { workers: DENSITY_WORKERS, blocks: DENSITY_BLOCKS, ..FleetOptions::default() });
    let play = Play::of(trace.prompts().take(trace.len().div_ceil(DENSITY_TRACE_PARTS)), &mut fleet);
    let results = arguments.places.results();
    results.create()?;
    plots::density(&EventDensity::of(&play, DENSITY_WORKERS, DENSITY_BINS), &results.density_plot())
}

fn memory(arguments: &MemoryArguments) -> Result<()> {
    let trace = arguments.places.open()?;
    let options = FleetOptions {
        workers: MEMORY_WORKERS,
        blocks: MEMORY_BLOCKS,
        blocks_per_hash_id: MEMORY_BLOCKS_PER_HASH_ID,
        ..FleetOptions::default()
    };
    let requests = arguments.requests.unwrap_or(trace.len());
    let play = Play::of(trace.prompts().take(requests), &mut Fleet::new(options.clone()));
    let report = memory::measure(&play, options.workers)?;
    let results = arguments.places.results();
    results.write_memory(&report)?;
    plots::memory(&report, &results.memory_plot())
}

fn shared_through_redis(arguments: &RedisArguments) -> Result<()> {
    let Paths { trace, .. } = &arguments.places;
    let report = redis::measure(trace, arguments.requests.unwrap_or(usize::MAX), arguments.repeats, child()?)?;
    arguments.places.results().write_redis(&report)
}

/// This program as a measuring process.
fn child() -> Result<Child> {
    let program =
        std::env::current_exe().context("failed to find this program, to measure in processes of their own")?;
    Ok(Child { program, arguments: vec!["child".into()] })
}

impl Paths {
    fn open(&self) -> Result<MooncakeTrace> {
        Ok(MooncakeTrace::open(&self.trace)?)
    }

    fn results(&self) -> Results {
        Results::new(&self.results)
    }
}

fn measure_name() -> impl TypedValueParser<Value = Measure> {
    PossibleValuesParser::new(Measure::ALL.map(Measure::as_str)).map(|name| {
        let known = Measure::ALL.into_iter().find(|measure| measure.as_str() == name);
        known.expect("only names of measures are possible")
    })
}

/// Progress of a run, on standard error.
#[derive(Default)]
struct Log {
    done: usize,
    steps: usize,
}

impl Observer for Log {
    fn steps(&mut self, count: usize) {
        self.steps = count;
    }

    fn step(&mut self, name: &str) {
        self.done += 1;
        eprintln!("[{}/{}] {name}", self.done, self.steps);
    }
}
