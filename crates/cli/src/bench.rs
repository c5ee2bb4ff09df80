//! `flash-indexer bench`: compares the index designs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use flash_indexer_bench::{
    BoundedContender, Child, Contender, DesignContender, Measure, Observer, Processes, RESIDENT_UNAVAILABLE, Report,
    RunOptions, resident_bytes, serve_child,
};
use flash_indexer_designs::Design;
use flash_indexer_sim::FleetOptions;
use indicatif::ProgressBar;

use crate::parsers::{byte_size, one_of};
use crate::trace::trace_file;
use flash_indexer_commands::output::{progress, table};

/// Compare the index designs, without sockets or a service.
///
/// A request trace is played through simulated caches. Each design in turn applies their events and answers the queries
/// of a router, round after round. The tables show medians, and their ratios to the baseline design. Designs with
/// different answers are listed below the table. Run nothing else on the machine meanwhile.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  flash-indexer bench conversation_trace.jsonl
  flash-indexer bench conversation_trace.jsonl --requests 2000 --measures ingest,query --repeats 5
  flash-indexer bench conversation_trace.jsonl --designs radix-tree --json results.json"
)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    child: Option<ChildCommand>,

    /// The trace, as Mooncake publishes them: JSON lines with a hash id for every 512 tokens of prompt, plain or
    /// compressed with zstd (`.zst`) [default: testdata/mooncake/conversation_trace.jsonl.zst].
    trace: Option<PathBuf>,

    /// Designs to measure [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = one_of(Design::ALL.map(Design::as_str), Design::named))]
    designs: Vec<Design>,

    /// Measures to take [default: all].
    #[arg(long, value_delimiter = ',', value_name = "MEASURE,…", value_parser = one_of(Measure::ALL.map(Measure::as_str), Measure::named))]
    measures: Vec<Measure>,

    /// Design whose figures the others are divided by [default: the default design if it takes part, else the first].
    #[arg(long, value_name = "NAME", value_parser = one_of(Design::ALL.map(Design::as_str), Design::named))]
    baseline: Option<Design>,

    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,

    /// Number of requests to play [default: the whole trace].
    #[arg(long)]
    requests: Option<usize>,

    /// Workers, unless the measure sets its own number.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,

    /// Blocks of each worker's cache.
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,

    /// Memory limit of an additional contender, run-bounded: the default design with eviction. Where it evicts, its
    /// answers differ.
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    memory_max: Option<usize>,

    /// Write the results to this file as well, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ChildCommand {
    /// Take the measure that the parent process writes to standard input.
    #[command(hide = true)]
    Child {
        /// Memory limit of the bounded contender, if it takes part.
        #[arg(long, value_parser = byte_size)]
        memory_max: Option<usize>,
    },
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    if let Some(ChildCommand::Child { memory_max }) = &arguments.child {
        let (designs, bounded) = (DesignContender::all(), bounded(*memory_max)?);
        let designs = designs.iter().map(|design| design as &dyn Contender);
        let contenders: Vec<&dyn Contender> =
            designs.chain(bounded.as_ref().map(|bounded| bounded as &dyn Contender)).collect();
        return Ok(serve_child(&contenders)?);
    }
    let report = arguments.measure()?;
    print(&report);
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// The bounded contender, if there is a memory limit.
fn bounded(memory_max: Option<usize>) -> Result<Option<BoundedContender>> {
    memory_max.map(BoundedContender::new).transpose().context("--memory-max")
}

impl BenchArguments {
    fn measure(&self) -> Result<Report> {
        let trace = trace_file(self.trace.as_deref())?;
        let designs = if self.designs.is_empty() { Design::ALL.to_vec() } else { self.designs.clone() };
        let first = if designs.contains(&Design::DEFAULT) { Design::DEFAULT } else { designs[0] };
        let contenders: Vec<DesignContender> = designs.into_iter().map(DesignContender).collect();
        let mut contenders: Vec<&dyn Contender> = contenders.iter().map(|design| design as &dyn Contender).collect();
        let bounded = bounded(self.memory_max)?;
        contenders.extend(bounded.as_ref().map(|bounded| bounded as &dyn Contender));
        let mut child_arguments = vec!["bench".into(), "child".into()];
        if let Some(bytes) = self.memory_max {
            child_arguments.extend(["--memory-max".into(), bytes.to_string().into()]);
        }
        let options = RunOptions {
            measures: if self.measures.is_empty() { Measure::ALL.to_vec() } else { self.measures.clone() },
            repeats: self.repeats.into(),
            requests: self.requests.unwrap_or(usize::MAX),
            fleet: FleetOptions {
                workers: self.workers.into(),
                blocks: self.blocks as usize,
                ..FleetOptions::default()
            },
            baseline: self.baseline.unwrap_or(first).as_str().to_owned(),
            processes: Processes::Own(Child {
                program: std::env::current_exe()
                    .context("failed to find this program, which is needed to measure in separate processes")?,
                arguments: child_arguments,
            }),
        };
        let mut bar = Bar(None);
        let report = flash_indexer_bench::run(&contenders, &trace, &options, &mut bar)?;
        if let Some(bar) = bar.0 {
            bar.finish_and_clear();
        }
        Ok(report)
    }
}

/// Progress of the run, on standard error.
struct Bar(Option<ProgressBar>);

impl Observer for Bar {
    fn steps(&mut self, count: usize) {
        self.0 = Some(progress(count, "measurements"));
    }

    fn step(&mut self, name: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(name.to_owned());
            bar.inc(1);
        }
    }
}

fn print(report: &Report) {
    for (name, value) in &report.setting {
        println!("{name}: {value}");
    }
    println!("in brackets: times the figure of {}", report.baseline);
    for measure in &report.measures {
        let header = std::iter::once("design").chain(measure.columns.iter().map(String::as_str));
        let mut table = table(header, 1..=measure.columns.len());
        table.add_rows(measure.cells(&report.baseline));
        println!("\n{}: {}\n{table}", measure.measure, measure.method);
        measure.differences().iter().for_each(|line| println!("{line}"));
    }
    if resident_bytes().is_none() {
        println!("\nmemory: {RESIDENT_UNAVAILABLE}");
    }
}
