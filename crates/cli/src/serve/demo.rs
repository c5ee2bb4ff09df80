//! `flash-indexer serve --demo`: simulated engines and clients around a real service.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use flash_indexer_bench::Latencies;
use flash_indexer_commands::output::percent;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, Tier};
use flash_indexer_server::{
    EngineKind, Indexer, InstanceId, ModelKey, Query, QueryOptions, Registration, ReportedHits, RequestPhase, Server,
    TokenPrompt,
};
use flash_indexer_sim::workload::{ConversationOptions, Conversations};
use flash_indexer_sim::{EngineOptions, Publisher, PublisherOptions, Request, SimulatedEngine};
use flash_indexer_telemetry::metrics::QueryTotals;
use flash_indexer_wire::Encoding;
use serde_json::json;
use ureq::Agent;

const MODEL: &str = "demo";
const BLOCK_TOKENS: u32 = 16;
const BLOCKS_PER_ENGINE: usize = 8_192;
/// Time between requests that engines serve.
const REQUEST_INTERVAL: Duration = Duration::from_millis(5);
/// Time between queries, which run concurrently with these requests.
const QUERY_INTERVAL: Duration = Duration::from_micros(200);
/// Conversations that are open at the same time. Their blocks fit into the engines' caches, which are full of ended conversations.
const OPEN_CONVERSATIONS: usize = 64;
/// One of this number of requests goes to an engine without regard to its blocks.
const BUSY_EVERY: usize = 64;
/// Tokens of a prompt that the first engine keeps cached for the first query of a user: 1 to 64.
const FIRST_PROMPT: RangeInclusive<u32> = 1..=64;
/// Requests between two of this prompt.
const FIRST_PROMPT_EVERY: usize = 64;
/// Number of next requests from which queries are chosen.
const NEXT_REQUESTS: usize = 2;
/// Longest wait for the service to listen to an engine.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Time between queries over HTTP.
const HTTP_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for an answer over HTTP. The demo does not end before an answer or this deadline.
const HTTP_TIMEOUT: Duration = Duration::from_secs(2);
const HEADER_EVERY_ROWS: u32 = 20;
/// Rows of one second whose hit rates are shown together, as in the dashboard.
const SMOOTHED_ROWS: usize = 5;

/// Options of the demo.
#[derive(Args)]
#[command(next_help_heading = "A demonstration")]
pub(crate) struct DemoArguments {
    /// Simulate engines and clients inside this process and print live figures; needs no other process.
    #[arg(long)]
    demo: bool,

    /// Engines that the demo simulates.
    #[arg(long, default_value_t = 4, requires = "demo", value_parser = clap::value_parser!(u64).range(1..=64))]
    demo_engines: u64,

    /// Seconds until the demo ends [default: at Ctrl-C].
    #[arg(long, requires = "demo", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    demo_seconds: Option<u64>,
}

impl DemoArguments {
    pub(crate) fn is_enabled(&self) -> bool {
        self.demo
    }
}

/// A simulated engine and the sockets it publishes on.
struct DemoEngine {
    instance: InstanceId,
    engine: SimulatedEngine,
    publisher: Publisher,
}

/// State that the demo's threads share.
struct Demo {
    indexer: Arc<Indexer>,
    /// Times of queries by tokens inside the process since the last row: hashing the prompt, searching the index, making the answer.
    queries: Mutex<Latencies>,
    /// Prompts of the next requests, without those for a busy engine: a query of them finds what their engine will have cached.
    next: Mutex<Vec<Vec<u32>>>,
    stop: AtomicBool,
}

/// Runs until `stopped` resolves or `--demo-seconds` are over.
pub(crate) async fn run(arguments: &DemoArguments, server: &Server, stopped: impl Future<Output = ()>) -> Result<()> {
    let indexer = Arc::clone(server.indexer());
    let engine_count = arguments.demo_engines;
    tokio::pin!(stopped);
    let starting = tokio::task::spawn_blocking({
        let indexer = Arc::clone(&indexer);
        move || start_engines(&indexer, engine_count)
    });
    let engines = tokio::select! {
        () = &mut stopped => return Ok(()),
        engines = starting => engines??,
    };
    println!(
        "{engine_count} simulated engines, {BLOCKS_PER_ENGINE} blocks of {BLOCK_TOKENS} tokens each; model {MODEL:?}"
    );
    println!("try: curl -s {}/workers", server.url());
    let first_block: Vec<u32> = FIRST_PROMPT.take(BLOCK_TOKENS as usize).collect();
    let query = json!({ "model_name": MODEL, "token_ids": first_block });
    println!("     curl -s {}/query -d '{query}'    # engine 1 holds it", server.url());
    let dashboard = format!("{}/ui", server.url());
    println!("dashboard: {dashboard}");

    let (queries, next) = (Mutex::default(), Mutex::default());
    let demo = Arc::new(Demo { indexer, queries, next, stop: AtomicBool::new(false) });
    let serving = std::thread::spawn({
        let demo = Arc::clone(&demo);
        move || demo.serve_requests(engines)
    });
    let querying = std::thread::spawn({
        let demo = Arc::clone(&demo);
        move || demo.ask_queries()
    });
    let url = format!("{}/query", server.url());
    let asking = std::thread::spawn({
        let demo = Arc::clone(&demo);
        move || demo.ask_over_http(&url)
    });

    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    let mut table = LiveTable::new(&demo.indexer, engine_count, dashboard);
    let rows = print_in_background();
    let ends = arguments.demo_seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut result = Ok(());
    while result.is_ok() && !serving.is_finished() && ends.is_none_or(|ends| Instant::now() < ends) {
        tokio::select! {
            () = &mut stopped => break,
            _ = second.tick() => match table.row(&demo) {
                // A terminal that is not read gets the next row for which it has room.
                Ok(row) => drop(rows.try_send(row)),
                Err(error) => result = Err(error),
            },
        }
    }
    demo.stop.store(true, Ordering::Relaxed);
    let joined = tokio::task::spawn_blocking(move || (serving.join(), querying.join(), asking.join())).await?;
    joined.2.map_err(|_| anyhow::anyhow!("the thread of HTTP queries panicked"))?;
    joined.1.map_err(|_| anyhow::anyhow!("the querying thread panicked"))?;
    joined.0.map_err(|_| anyhow::anyhow!("the engines' thread panicked"))?.and(result)
}

fn block_size() -> BlockSize {
    BlockSize::new(BLOCK_TOKENS).expect("sixteen is not zero")
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        block_size: block_size(),
        blocks: BLOCKS_PER_ENGINE,
        dp_rank: DpRank(0),
        hash_seed: "0".to_owned(),
        encoding: Encoding::Map,
    }
}

fn start_engines(indexer: &Indexer, count: u64) -> Result<Vec<DemoEngine>> {
    let block_size = block_size();
    let mut engines = Vec::new();
    for number in 1..=count {
        let publisher = Publisher::bind(PublisherOptions::on_loopback())?;
        let instance = InstanceId::number(number);
        let mut registration =
            Registration::new(instance.clone(), ModelKey::new(MODEL, None), publisher.endpoint(), block_size);
        registration.options.replay_endpoint = Some(publisher.replay_endpoint().to_owned());
        registration.options.engine = Some(EngineKind::Vllm);
        indexer.register(registration)?;
        anyhow::ensure!(publisher.wait_for_subscriber(CONNECT_DEADLINE)?, "engine {number} has no subscriber");
        let engine = SimulatedEngine::new(engine_options());
        engines.push(DemoEngine { instance, engine, publisher });
    }
    Ok(engines)
}

impl Demo {
    fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).record(ns);
    }

    /// Sends each request to the engine with the longest matching prefix, as a router would, and reports the cached tokens. One request of
    /// [`BUSY_EVERY`] goes to the next engine in turn, as if the other were busy. The first engine also serves [`FIRST_PROMPT`] repeatedly,
    /// which no figure counts.
    fn serve_requests(&self, mut engines: Vec<DemoEngine>) -> Result<()> {
        let key = ModelKey::new(MODEL, None);
        let options = ConversationOptions { open_conversations: OPEN_CONVERSATIONS, ..ConversationOptions::default() };
        let mut requests = Conversations::new(options, 1).enumerate();
        let mut following: VecDeque<_> = requests.by_ref().take(NEXT_REQUESTS).collect();
        let mut due = Instant::now();
        for ahead in requests {
            following.push_back(ahead);
            let (number, request) = following.pop_front().expect("there are requests that follow");
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let asked = following.iter().filter(|(number, _)| !number.is_multiple_of(BUSY_EVERY));
            let asked = asked.map(|(_, request)| request.prompt.clone()).collect();
            *self.next.lock().unwrap_or_else(PoisonError::into_inner) = asked;
            if number.is_multiple_of(FIRST_PROMPT_EVERY) {
                let first = Request { prompt: FIRST_PROMPT.collect(), output: Vec::new(), at_ms: request.at_ms };
                engines[0].serve(&first)?;
            }
            wait_until(&mut due, REQUEST_INTERVAL);
            let start = Instant::now();
            let answer = self.indexer.query_local(&key, prompt(&request.prompt), QueryOptions::default())?;
            self.record(start.elapsed());
            // Engines that match equally deep take turns.
            let turn = number % engines.len();
            let matched = |at: usize| {
                let rank = answer.ranks.iter().find(|rank| *answer.name(rank).id() == engines[at].instance);
                rank.map_or(0, |rank| rank.tokens[Tier::Device])
            };
            let order = (0..engines.len()).map(|step| (turn + step) % engines.len());
            let deepest = order.rev().max_by_key(|&at| matched(at)).expect("there are engines");
            let is_busy = number.is_multiple_of(BUSY_EVERY);
            let chosen = if is_busy { number / BUSY_EVERY % engines.len() } else { deepest };
            let cached = engines[chosen].serve(&request)?;
            let hits = ReportedHits::of(RequestPhase::Finished, Some(request.prompt.len() as u64), Some(cached))?;
            hits.into_iter().for_each(|hits| self.indexer.report_hits(&key, hits));
        }
        Ok(())
    }

    /// Queries prompts of the next requests, one every [`QUERY_INTERVAL`].
    fn ask_queries(&self) {
        let key = ModelKey::new(MODEL, None);
        let mut due = Instant::now();
        for number in 0usize.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            wait_until(&mut due, QUERY_INTERVAL);
            let asked = {
                let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                if next.is_empty() {
                    continue;
                }
                next[number % next.len()].clone()
            };
            let start = Instant::now();
            if self.indexer.query_local(&key, prompt(&asked), QueryOptions::default()).is_ok() {
                self.record(start.elapsed());
            }
        }
    }

    /// Queries prompts of the next requests over HTTP, one every [`HTTP_INTERVAL`], for the latencies in the service's metrics. A service with
    /// tokens or TLS refuses them.
    fn ask_over_http(&self, url: &str) {
        let agent: Agent =
            Agent::config_builder().timeout_global(Some(HTTP_TIMEOUT)).http_status_as_error(false).build().into();
        let mut due = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            wait_until(&mut due, HTTP_INTERVAL);
            let tokens = self.next.lock().unwrap_or_else(PoisonError::into_inner).last().cloned();
            let Some(tokens) = tokens else { continue };
            let body = json!({ "model_name": MODEL, "token_ids": tokens }).to_string();
            match agent.post(url).content_type("application/json").send(body) {
                // The connection is reused after the whole body was read.
                Ok(mut response) if response.status() == 200 => drop(response.body_mut().read_to_vec()),
                _ => return,
            }
        }
    }
}

impl DemoEngine {
    /// Serves a request, publishes the cache's changes, and returns the number of cached prompt tokens.
    fn serve(&mut self, request: &Request) -> Result<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let served = self.engine.serve(request, now.as_secs_f64())?;
        for batch in &served.batches {
            self.publisher.publish(batch.sequence, &batch.payload)?;
        }
        Ok(served.cached_tokens as u64)
    }
}

fn prompt(tokens: &[u32]) -> Query<'_> {
    Query::Tokens(TokenPrompt { tokens, lora_name: None, cache_salt: None })
}

/// Sleeps until `due` and adds `interval` to it; a late caller does not catch up.
fn wait_until(due: &mut Instant, interval: Duration) {
    let now = Instant::now();
    if let Some(left) = due.checked_duration_since(now) {
        std::thread::sleep(left);
        *due += interval;
    } else {
        *due = now + interval;
    }
}

/// Live figures, printed as one row a second.
struct LiveTable {
    engines: u64,
    /// Its address.
    dashboard: String,
    rows: u32,
    since: Instant,
    events: u64,
    /// Totals at the last rows, the oldest first. The first of all are those of the start.
    totals: VecDeque<QueryTotals>,
}

impl LiveTable {
    fn new(indexer: &Indexer, engines: u64, dashboard: String) -> Self {
        Self {
            engines,
            dashboard,
            rows: 0,
            since: Instant::now(),
            events: indexer.events_applied(),
            totals: [indexer.query_totals()].into(),
        }
    }

    /// The next row; every [`HEADER_EVERY_ROWS`] rows with the address of the dashboard and a header.
    fn row(&mut self, demo: &Demo) -> Result<String> {
        let Demo { indexer, queries, .. } = demo;
        let seconds = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        let events = indexer.events_applied();
        let new_events = events - std::mem::replace(&mut self.events, events);
        let taken = std::mem::take(&mut *queries.lock().unwrap_or_else(PoisonError::into_inner));
        let queries = taken.figures();
        self.totals.push_back(indexer.query_totals());
        if self.totals.len() > SMOOTHED_ROWS + 1 {
            self.totals.pop_front();
        }
        let (first, last) = (self.totals[0], self.totals[self.totals.len() - 1]);
        let predicted = percent(last.found_blocks - first.found_blocks, last.queried_blocks - first.queried_blocks);
        let prompt_tokens = last.reported_prompt_tokens - first.reported_prompt_tokens;
        let reported = percent(last.reported_cached_tokens - first.reported_cached_tokens, prompt_tokens);

        let mut out = String::new();
        if self.rows.is_multiple_of(HEADER_EVERY_ROWS) {
            let title = "workers  blocks held  events/s  queries/s  query p50 µs  p99 µs  hit predicted  hit reported";
            if self.rows > 0 {
                writeln!(out, "dashboard: {}", self.dashboard)?;
            }
            writeln!(out, "{title}")?;
        }
        self.rows += 1;
        writeln!(
            out,
            "{:>7}  {:>11}  {:>8.0}  {:>9.0}  {:>12.1}  {:>6.1}  {:>12.1}%  {:>11.1}%",
            self.engines,
            indexer.held_blocks(),
            new_events as f64 / seconds,
            queries.count as f64 / seconds,
            queries.p50_ns / 1e3,
            queries.p99_ns / 1e3,
            predicted,
            reported,
        )?;
        Ok(out)
    }
}

/// Rows that may wait for the terminal.
const ROWS_WAITING_MAX: usize = 4;

/// Starts a thread that prints rows: a blocked terminal blocks no other thread.
fn print_in_background() -> SyncSender<String> {
    let (rows, received) = sync_channel::<String>(ROWS_WAITING_MAX);
    std::thread::spawn(move || {
        let mut out = std::io::stdout();
        while let Ok(row) = received.recv() {
            // A closed pipe ends the printing, not the demo.
            if out.write_all(row.as_bytes()).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation stays with its engine, as the demo routes it. Open conversations must fit into the caches. Otherwise the demo would
    /// show the hit rate of caches that are too small.
    #[test]
    fn open_conversations_stay_cached_while_ended_ones_are_evicted() {
        const REQUESTS: usize = 4_000;
        let options = ConversationOptions { open_conversations: OPEN_CONVERSATIONS, ..ConversationOptions::default() };
        let mut engines: Vec<_> = (0..4).map(|_| SimulatedEngine::new(engine_options())).collect();
        let mut served: VecDeque<(Vec<u32>, usize)> = VecDeque::new();
        let (mut prompt_tokens, mut cached_tokens) = (0, 0);
        for (number, request) in Conversations::new(options, 1).take(REQUESTS).enumerate() {
            let continued = served.iter().position(|(text, _)| request.prompt.starts_with(text));
            let engine =
                continued.and_then(|at| served.remove(at)).map_or(number % engines.len(), |(_, engine)| engine);
            let cached = engines[engine].serve(&request, 0.0).expect("it fits").cached_tokens;
            // The caches are full in the second half.
            if number >= REQUESTS / 2 {
                prompt_tokens += request.prompt.len();
                cached_tokens += cached;
            }
            served.push_back(([request.prompt, request.output].concat(), engine));
            if served.len() > 8 * OPEN_CONVERSATIONS {
                served.pop_front();
            }
        }
        let percent = 100 * cached_tokens / prompt_tokens;
        assert!(percent >= 85, "{percent} %");
        let full =
            engines.iter().map(SimulatedEngine::cache).all(|cache| cache.cached_blocks() > cache.capacity() * 9 / 10);
        assert!(full, "nothing is evicted");
    }
}
