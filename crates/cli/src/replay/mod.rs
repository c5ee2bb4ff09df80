//! `flash-indexer replay`: plays a trace through simulated caches into an index, without sockets or a service.

mod bounded;
mod figures;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flash_indexer_bench::{Clock, Play, resident_bytes};
use flash_indexer_core::{MatchScores, SharedIndex, Tier};
use flash_indexer_designs::Design;
use flash_indexer_sim::workload::MooncakeTrace;
use flash_indexer_sim::{Fleet, FleetOptions, HashSeeds, HoleShare, Routing};

use self::bounded::BoundedComparison;
use self::figures::ReplayReport;
use crate::parsers::{byte_size, one_of};
use crate::trace::trace_file;
use flash_indexer_commands::output::progress;

/// Play a request trace through simulated caches into an index design, and measure its cost.
///
/// Before each request the index is queried, as a router would; then it applies the events of the worker's cache.
/// Only the index is measured: there are no sockets, tokens or service, and the caches are simulated in advance.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer replay conversation_trace.jsonl --verify
  flash-indexer replay conversation_trace.jsonl --index radix-tree --workers 1000
  flash-indexer replay conversation_trace.jsonl --memory-max 4MiB --verify
  flash-indexer replay conversation_trace.jsonl --private-hash-seeds --holes 2 --verify

Resident memory is the growth of the process while the index was filled. It includes the allocator's own memory, and
misses memory that the allocator reuses; flash-indexer bench measures memory in a fresh process.")]
pub(crate) struct ReplayArguments {
    /// The trace, as Mooncake publishes them: JSON lines with a hash id for every 512 tokens of prompt, plain or
    /// compressed with zstd (`.zst`) [default: testdata/mooncake/conversation_trace.jsonl.zst].
    trace: Option<PathBuf>,

    /// Index design.
    #[arg(long, value_name = "NAME", env = "FLASH_INDEXER_INDEX", default_value = Design::DEFAULT.as_str(), value_parser = one_of(Design::ALL.map(Design::as_str), Design::named))]
    index: Design,

    /// Workers of the fleet.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,

    /// Blocks of each worker's cache.
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,

    /// Tokens in a block; must divide the 512 tokens of a hash id.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,

    /// Number of requests to play [default: the whole trace].
    #[arg(long)]
    requests: Option<usize>,

    /// Send each prompt to the worker with the longest match, instead of to the workers in turn.
    #[arg(long)]
    prefix_affinity: bool,

    /// Give each worker its own sequence hashes, as engines with random hash seeds have.
    #[arg(long)]
    private_hash_seeds: bool,

    /// Percentage of stored blocks that are removed from the middle of their sequence.
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = hole_share)]
    holes: HoleShare,

    /// Seed of all hashes, and of the choice of holes.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Memory limit of the index, such as 64MiB. Beyond it the least useful blocks are evicted.
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    memory_max: Option<usize>,

    /// Compare each answer for the serving worker with its cache. With --memory-max, also play the trace a second time
    /// and compare each answer for all workers with an unlimited index.
    #[arg(long)]
    verify: bool,
}

/// Tokens of one hash id of a trace.
const TOKENS_PER_HASH_ID: u32 = 512;
/// Maximum number of differences that are printed individually.
const DIFFERENCES_SHOWN_MAX: usize = 20;

fn hole_share(text: &str) -> Result<HoleShare, String> {
    let share = text.parse().ok().and_then(HoleShare::percent);
    share.ok_or_else(|| "expected a percentage from 0 to 99".to_owned())
}

pub(crate) fn run(arguments: &ReplayArguments) -> Result<()> {
    let options = arguments.fleet()?;
    let trace = MooncakeTrace::open(&trace_file(arguments.trace.as_deref())?)?;
    let count = arguments.requests.unwrap_or(usize::MAX).min(trace.len());
    let bar = progress(2 * count, "requests").with_message("playing the caches");
    let mut fleet = Fleet::new(options);
    let play = Play::of(trace.prompts().take(count).inspect(|_| bar.inc(1)), &mut fleet);
    bar.set_message("filling the index");
    let index = match arguments.memory_max {
        None => arguments.index.build(),
        Some(bytes) => arguments.index.build_bounded(bytes).context("--memory-max")?,
    };
    let replayed = replay(&*index, &play, || bar.inc(1));
    bar.finish_and_clear();
    replayed.figures.print(arguments.index, &play);
    match arguments.memory_max.filter(|_| arguments.verify) {
        None if arguments.verify => replayed.check_exact(),
        None => Ok(()),
        Some(bytes) => {
            replayed.check_not_too_high()?;
            let bounded = arguments.index.build_bounded(bytes).context("--memory-max")?;
            BoundedComparison::of(&play, &*bounded, &*arguments.index.build()).check()
        }
    }
}

impl ReplayArguments {
    fn fleet(&self) -> Result<FleetOptions> {
        let Self { block_size, .. } = self;
        ensure!(
            TOKENS_PER_HASH_ID.is_multiple_of(*block_size),
            "--block-size {block_size}: must divide {TOKENS_PER_HASH_ID}, the tokens of a hash id"
        );
        Ok(FleetOptions {
            workers: self.workers.into(),
            blocks: self.blocks as usize,
            blocks_per_hash_id: (TOKENS_PER_HASH_ID / self.block_size) as usize,
            routing: if self.prefix_affinity { Routing::PrefixAffinity } else { Routing::RoundRobin },
            hash_seeds: if self.private_hash_seeds { HashSeeds::Private } else { HashSeeds::Shared },
            holes: self.holes,
            seed: self.seed,
        })
    }
}

/// The result of a replay.
#[derive(Default)]
struct ReplayOutcome {
    figures: ReplayReport,
    equal: usize,
    /// Requests with more predicted than cached blocks, counted in `differences` as well.
    too_high: usize,
    differences: Vec<String>,
}

/// Queries the index and applies each request's events.
fn replay(index: &dyn SharedIndex, play: &Play, mut done: impl FnMut()) -> ReplayOutcome {
    let clock = Clock::calibrated();
    let mut outcome = ReplayOutcome::default();
    let figures = &mut outcome.figures;
    let resident = resident_bytes();
    for (number, request) in play.requests.iter().enumerate() {
        let mut scores = MatchScores::default();
        figures.queries.record(clock.time(|| scores = index.find(&request.query)));
        let predicted = scores.get(request.rank).map_or(0, |found| found.blocks[Tier::Device] as usize);
        if predicted == request.reused {
            outcome.equal += 1;
        } else {
            let (cached, worker) = (request.reused, request.rank.worker.0);
            let text = format!("request {number}: {predicted} blocks predicted, {cached} cached by worker {worker}");
            outcome.differences.push(text);
        }
        outcome.too_high += usize::from(predicted > request.reused);
        figures.predicted_blocks += predicted.min(request.reused) as u64;
        figures.matched_blocks += scores.ranks.iter().map(|found| u64::from(found.blocks[Tier::Device])).sum::<u64>();
        figures.matching_ranks += scores.ranks.len() as u64;
        figures.reused_blocks += request.reused as u64;
        let start = Instant::now();
        for event in &play.events[request.events.clone()] {
            index.apply(event.rank, &event.event);
        }
        figures.ingest += start.elapsed();
        done();
    }
    figures.grown_by = resident.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    figures.bound = index.memory_limit();
    outcome
}

impl ReplayOutcome {
    fn print(&self) {
        println!("predictions: {} equal, {} different, {} too high", self.equal, self.differences.len(), self.too_high);
    }

    /// Checks an index that evicts: its predictions may be too low, not too high.
    fn check_not_too_high(&self) -> Result<()> {
        self.print();
        ensure!(self.too_high == 0, "{} predictions were higher than the cached blocks", self.too_high);
        Ok(())
    }

    /// Checks an unlimited index: all predictions must be exact.
    fn check_exact(&self) -> Result<()> {
        self.print();
        for difference in self.differences.iter().take(DIFFERENCES_SHOWN_MAX) {
            println!("  {difference}");
        }
        let different = self.differences.len();
        ensure!(different == 0, "{different} predictions differed from the cached blocks");
        Ok(())
    }
}
