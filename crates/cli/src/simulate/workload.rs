//! `simulate` without a recording: simulated engines under a workload.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use flash_indexer_commands::output::{percent, progress};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::workload::{ConversationOptions, Conversations, MooncakeTrace};
use flash_indexer_sim::{EngineOptions, Publisher, ReplayFraming, Request, SimulatedEngine, reusable_blocks};
use flash_indexer_wire::Encoding;

use super::service::{EngineRank, Service};
use super::{EncodingName, Pace, SimulateArguments, TOPIC};
use crate::stop::StopFlag;

/// Default number of synthetic requests.
const SYNTHETIC_REQUESTS_DEFAULT: usize = 1_000;
/// Batches after which an unverified run waits for the service. The wait prevents overflows of queues.
const BATCHES_BETWEEN_WAITS: u64 = 1_000;
/// Maximum number of printed differences.
const DIFFERENCES_SHOWN_MAX: usize = 20;

struct Engine {
    rank: EngineRank,
    engine: SimulatedEngine,
    publisher: Publisher,
}

/// Totals of a run.
#[derive(Default)]
struct Totals {
    requests: u64,
    refused: u64,
    batches: u64,
    events: u64,
    blocks: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    equal: u64,
    differences: Vec<String>,
}

pub(super) fn run(arguments: &SimulateArguments, stop: &StopFlag) -> Result<()> {
    match &arguments.trace {
        Some(path) => {
            let trace = MooncakeTrace::open(path)?;
            let count = arguments.requests.unwrap_or(usize::MAX).min(trace.len());
            serve(arguments, trace.requests(arguments.seed).take(count), count, stop)
        }
        None => {
            let count = arguments.requests.unwrap_or(SYNTHETIC_REQUESTS_DEFAULT);
            let requests = Conversations::new(ConversationOptions::default(), arguments.seed).take(count);
            serve(arguments, requests, count, stop)
        }
    }
}

fn serve(
    arguments: &SimulateArguments,
    requests: impl Iterator<Item = Request>,
    count: usize,
    stop: &StopFlag,
) -> Result<()> {
    let block_size = BlockSize::new(arguments.block_size).expect("the argument parser refuses zero");
    let mut engines = start_engines(arguments, block_size)?;
    let mut service = arguments.service()?;
    if let Some(service) = &mut service {
        for engine in &engines {
            let endpoint = arguments.endpoint(&engine.publisher);
            service.register(engine.rank, endpoint, &engine.publisher, block_size)?;
        }
    }
    arguments.wait_for_subscribers(engines.iter().map(|engine| &engine.publisher), stop)?;

    let bar = progress(count, "requests");
    let mut totals = Totals::default();
    let mut pace = Pace::new(arguments.speed, stop);
    let start = Instant::now();
    let mut waited_at = 0;
    for (number, request) in requests.enumerate() {
        pace.wait_for(request.at_ms)?;
        let turn = number % engines.len();
        let engine = &mut engines[turn];
        let predicted = match &service {
            Some(service) if arguments.verify => Some(engine.predict(service, &request, block_size)?),
            _ => None,
        };
        engine.serve(number, &request, predicted, &mut totals)?;
        if let Some(service) = &service
            && totals.batches - waited_at >= BATCHES_BETWEEN_WAITS
        {
            waited_at = totals.batches;
            service.catch_up(&published(&engines))?;
        }
        bar.inc(1);
    }
    if let Some(service) = &service {
        service.catch_up(&published(&engines))?;
    }
    bar.finish_and_clear();
    totals.print(start.elapsed().as_secs_f64(), arguments.verify);
    arguments.stay(stop);
    let different = totals.differences.len();
    ensure!(different == 0, "{different} predictions differed from the engines' caches");
    Ok(())
}

fn start_engines(arguments: &SimulateArguments, block_size: BlockSize) -> Result<Vec<Engine>> {
    let (encoding, framing) = match arguments.encoding {
        EncodingName::Map => (Encoding::Map, ReplayFraming::WithTopic),
        EncodingName::Array => (Encoding::Array, ReplayFraming::WithoutTopic),
    };
    let engine = |number: u16| {
        Ok(Engine {
            rank: EngineRank { instance: u64::from(number) + 1, dp_rank: DpRank(0) },
            publisher: arguments.publisher(number, u64::from(number) + 1, TOPIC.to_vec(), framing)?,
            engine: SimulatedEngine::new(EngineOptions {
                block_size,
                blocks: arguments.blocks as usize,
                dp_rank: DpRank(0),
                hash_seed: arguments.hash_seed.clone(),
                encoding,
            }),
        })
    };
    (0..arguments.engines).map(engine).collect()
}

/// The last message of every engine that has published one.
fn published(engines: &[Engine]) -> BTreeMap<EngineRank, u64> {
    engines.iter().filter_map(|engine| Some((engine.rank, engine.engine.last_sequence()?))).collect()
}

impl Engine {
    /// Prompt tokens that the service predicts for this engine's cache.
    fn predict(&self, service: &Service, request: &Request, block_size: BlockSize) -> Result<u64> {
        if let Some(last) = self.engine.last_sequence() {
            service.catch_up(&BTreeMap::from([(self.rank, last)]))?;
        }
        let predicted = service.predict(&request.prompt, None, None)?;
        let matched = predicted.get(&self.rank).copied();
        let matched = matched.with_context(|| format!("instance {} is not in the response", self.rank.instance))?;
        Ok(matched.min(reusable_tokens(request.prompt.len(), block_size)))
    }

    fn serve(&mut self, number: usize, request: &Request, predicted: Option<u64>, totals: &mut Totals) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        totals.requests += 1;
        let served = match self.engine.serve(request, now.as_secs_f64()) {
            Ok(served) => served,
            Err(too_long) => {
                totals.refused += 1;
                tracing::warn!(request = number, error = %too_long, "skipped a request");
                return Ok(());
            }
        };
        for batch in &served.batches {
            self.publisher.publish(batch.sequence, &batch.payload)?;
            totals.batches += 1;
            totals.events += batch.events as u64;
            totals.blocks += batch.blocks as u64;
        }
        let cached = served.cached_tokens as u64;
        totals.prompt_tokens += request.prompt.len() as u64;
        totals.cached_tokens += cached;
        match predicted {
            Some(predicted) if predicted != cached => totals.differences.push(format!(
                "request {number}: {predicted} tokens predicted, {cached} cached by engine {}",
                self.rank.instance
            )),
            Some(_) => totals.equal += 1,
            None => {}
        }
        Ok(())
    }
}

impl Totals {
    fn print(&self, seconds: f64, verified: bool) {
        println!(
            "{} requests ({} refused), {} batches, {} events, {} blocks stored or removed in {seconds:.1} s",
            self.requests, self.refused, self.batches, self.events, self.blocks
        );
        println!(
            "hit rate {:.2}% ({} of {} prompt tokens)",
            percent(self.cached_tokens, self.prompt_tokens),
            self.cached_tokens,
            self.prompt_tokens
        );
        if verified {
            println!("predictions: {} equal, {} different", self.equal, self.differences.len());
            for difference in self.differences.iter().take(DIFFERENCES_SHOWN_MAX) {
                println!("  {difference}");
            }
        }
    }
}

/// Maximum number of prompt tokens that an engine can reuse from its cache.
pub(crate) fn reusable_tokens(prompt: usize, block_size: BlockSize) -> u64 {
    (reusable_blocks(prompt, block_size) * block_size.token_count()) as u64
}
