//! Runs simulations of the service, one for each seed.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use clap::Parser;
use flash_indexer_simulator::{Coverage, Failure, Plan, run, shrunk, silence_injected_panics};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// Simulate the service with its engines, networks and faults. Each seed is one simulation, and decides all of it.
///
/// A failing seed is printed with a smaller plan that fails as well, and the program exits with 1.
#[derive(Parser)]
#[command(after_help = "Examples:
  flash-indexer-simulator --seeds 0..1000
  flash-indexer-simulator --seeds 17..18 --verbose")]
struct Arguments {
    /// Seeds to run, without the last one.
    #[arg(long, value_parser = range, default_value = "0..1000")]
    seeds: Range<u64>,

    /// Steps of each simulation.
    #[arg(long, default_value_t = 150)]
    steps: usize,

    /// Seeds that run at the same time, each on its own thread.
    #[arg(long, default_value_t = 1)]
    jobs: usize,

    /// Print every step and the state after it.
    #[arg(long)]
    verbose: bool,

    /// Do not search for a smaller plan that fails as well.
    #[arg(long)]
    no_shrink: bool,
}

fn range(text: &str) -> Result<Range<u64>> {
    let (first, end) = text.split_once("..").context("expected a range such as 0..1000")?;
    let range = first.parse()?..end.parse()?;
    if range.is_empty() {
        bail!("the range is empty; give a range such as 0..1000");
    }
    Ok(range)
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    silence_injected_panics();
    let progress = ProgressBar::new(arguments.seeds.end - arguments.seeds.start);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos} of {len} seeds, {elapsed} elapsed, {eta} left")?);
    let next = AtomicU64::new(arguments.seeds.start);
    let coverage = Mutex::new(Coverage::default());
    let failed: Mutex<Option<(u64, Failure)>> = Mutex::default();
    let simulate = || {
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= arguments.seeds.end || failed.lock().is_some() {
                return;
            }
            match run(&Plan::generate(seed, arguments.steps), arguments.verbose) {
                Ok(of_seed) => *coverage.lock() += of_seed,
                Err(failure) => {
                    failed.lock().get_or_insert((seed, failure));
                }
            }
            progress.inc(1);
        }
    };
    std::thread::scope(|scope| (0..arguments.jobs.max(1)).for_each(|_| drop(scope.spawn(simulate))));
    progress.finish_and_clear();
    let Some((seed, failure)) = failed.into_inner() else {
        println!("{:?}", coverage.into_inner());
        println!("no seed of {:?} failed", arguments.seeds);
        return Ok(ExitCode::SUCCESS);
    };
    println!("seed {seed} failed {failure}");
    if !arguments.no_shrink {
        report_shrunk(&Plan::generate(seed, arguments.steps));
    }
    println!("repeat it with --seeds {seed}..{} --steps {} --verbose", seed + 1, arguments.steps);
    Ok(ExitCode::FAILURE)
}

/// Prints a smaller plan that fails as well.
fn report_shrunk(plan: &Plan) {
    let smaller = shrunk(plan);
    println!("a smaller plan fails as well:\n{smaller}");
    if let Err(failure) = run(&smaller, false) {
        println!("  it fails {failure}");
    }
}
