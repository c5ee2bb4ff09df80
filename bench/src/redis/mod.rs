//! Comparison of the shared store on Redis with the same index in memory.

mod publishing;
mod queries;
mod ranks;
mod replica;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use flash_indexer_bench::{Child, Play};
use flash_indexer_core::LocalHash;
use flash_indexer_sim::workload::MooncakeTrace;
use flash_indexer_sim::{Fleet, FleetOptions};
use flash_indexer_test_support::{RedisNode, find_redis_server};
use serde::{Deserialize, Serialize};

use self::publishing::{rank, stored, synthetic};
use self::queries::{InMemory, Kind};
pub(crate) use self::ranks::SharedRanks;
use self::replica::{LocalRanks, Replica};

/// Results of the redis part.
#[derive(Serialize, Deserialize)]
pub(crate) struct RedisReport {
    /// Sizes and versions.
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) queries: Vec<QueryLine>,
    pub(crate) publishing: Vec<PublishingLine>,
    /// Time until a stored prompt of [`LONG_PROMPT_BLOCKS`] is written to the store, in microseconds.
    pub(crate) long_prompt_us: f64,
    pub(crate) memory: Vec<MemoryLine>,
}

/// Query latencies of one kind of prompts.
#[derive(Serialize, Deserialize)]
pub(crate) struct QueryLine {
    pub(crate) what: String,
    /// Ranks in an answer, on average.
    pub(crate) holders: f64,
    pub(crate) store: LatencyPair,
    pub(crate) memory: LatencyPair,
    pub(crate) two_level: LatencyPair,
}

/// Median and 99th percentile.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LatencyPair {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Write rate of one replica.
#[derive(Serialize, Deserialize)]
pub(crate) struct PublishingLine {
    pub(crate) what: String,
    pub(crate) rate: Rate,
}

/// Changes of prefixes over a time.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) changes: u64,
    pub(crate) changes_per_second: f64,
}

impl Rate {
    fn new(changes: u64, during: Duration) -> Self {
        Self { changes, changes_per_second: changes as f64 / during.as_secs_f64() }
    }
}

/// Memory of one component.
#[derive(Serialize, Deserialize)]
pub(crate) struct MemoryLine {
    pub(crate) what: String,
    pub(crate) bytes: u64,
    pub(crate) distinct_blocks: u64,
    pub(crate) held_blocks: u64,
}

/// Published time of llm-d's indexer with Redis for adding [`LONG_PROMPT_BLOCKS`] keys of one pod, on its authors' machine.
pub(crate) const PUBLISHED_ADD: &str = "410 ms (an imitation of Redis in the same process)";
/// Published time of llm-d's indexer in memory for looking up [`LONG_PROMPT_BLOCKS`] keys of one pod.
pub(crate) const PUBLISHED_LOOKUP: &str = "179 ms, later 6.5 ms; cost-aware 13.9 ms";

/// Blocks of the prompt for which llm-d's authors have published figures.
pub(crate) const LONG_PROMPT_BLOCKS: usize = 10_000;
/// Lengths of prompts of the trace, in blocks.
const PROMPT_BLOCKS: [usize; 3] = [10, 100, 1_000];
/// Prompts of each kind.
const PROMPTS: usize = 200;
/// Number of different prompts of [`LONG_PROMPT_BLOCKS`].
const LONG_PROMPTS: usize = 5;
/// Number of the first synthetic prompt that no rank holds.
const UNKNOWN: u64 = 1 << 16;
/// Blocks of a common prompt, such as system instructions.
const COMMON_BLOCKS: usize = 100;
/// Ranks that hold the less common prompt.
const FEW_RANKS: usize = 4;

/// Takes all measures with a trace's first `requests`. Queries run `rounds` times; `child` measures memory.
pub(crate) fn measure(trace: &Path, requests: usize, rounds: usize, child: Child) -> Result<RedisReport> {
    let (rounds, fleet) = (rounds.max(1), FleetOptions::default());
    let Some(program) = find_redis_server() else {
        bail!(
            "failed to find redis-server; install it with scripts/prepare --tests, or set FLASH_REDIS_SERVER to its path"
        );
    };
    let of_ranks = ranks::resident_bytes(trace, requests, &fleet, child)?;
    let opened = MooncakeTrace::open(trace)?;
    let (play, workers) = (Play::of(opened.prompts().take(requests), &mut Fleet::new(fleet.clone())), fleet.workers);
    let node = RedisNode::start(&program, &[]);
    let empty = publishing::used_memory(&node)?;
    // One more rank, without blocks of the trace.
    let of_long_prompts = rank(workers);
    let ranks = workers + 1;
    let local_ranks = Arc::new(LocalRanks::of((0..ranks).map(rank)));

    let held = play.held_blocks();
    eprintln!("redis: {} blocks of {workers} ranks are written", held.held);
    let middle = play.requests.get(play.requests.len() / 2).map_or(0, |request| request.events.start);
    let (before, live) = play.events.split_at(middle);
    before.iter().for_each(|event| local_ranks.apply(event));
    let replica = Replica::start(node.port(), &local_ranks)?;
    let whole = publishing::write_whole(&replica, ranks)?;
    let changes = publishing::write_changes(&replica, &local_ranks, ranks, live)?;
    let in_store = publishing::used_memory(&node)? - empty;

    eprintln!("redis: prompts of {LONG_PROMPT_BLOCKS} blocks are written");
    let (long_prompt_us, mut later_events) =
        publishing::write_long_prompts(&replica, &local_ranks, of_long_prompts, LONG_PROMPTS)?;
    let common = [(synthetic(0, COMMON_BLOCKS), FEW_RANKS), (synthetic(LONG_PROMPTS as u64 + 1, COMMON_BLOCKS), ranks)];
    for (prompt, holders) in &common {
        let stores = (0..*holders).map(|number| stored(rank(number), prompt));
        later_events.extend(stores.inspect(|event| local_ranks.apply(event)));
    }

    let memory = InMemory::of(ranks, play.events.iter().chain(&later_events));
    let kinds = kinds(&play, &memory, &common)?;
    eprintln!("redis: {} kinds of queries, {rounds} rounds", kinds.len());
    let queries = queries::measure(&replica, &memory, &kinds, rounds)?;
    publishing::lost_nothing(replica.published())?;

    let line = |what: &str, rate| PublishingLine { what: what.to_owned(), rate };
    let mut report = RedisReport {
        setting: vec![
            ("redis-server".to_owned(), version(&node)?),
            ("ranks".to_owned(), ranks.to_string()),
            ("requests of the trace".to_owned(), play.requests.len().to_string()),
            ("rounds of queries".to_owned(), rounds.to_string()),
            ("cores, shared by all".to_owned(), std::thread::available_parallelism()?.to_string()),
        ],
        queries,
        publishing: vec![line("whole ranks: a replica joins", whole), line("live changes, removals included", changes)],
        long_prompt_us,
        memory: Vec::new(),
    };
    let memory = [("in Redis", Some(in_store)), ("in the replica, besides its index", of_ranks)];
    report.memory.extend(memory.into_iter().filter_map(|(what, bytes)| {
        let (what, bytes) = (what.to_owned(), bytes?);
        Some(MemoryLine { what, bytes, distinct_blocks: held.distinct, held_blocks: held.held })
    }));
    Ok(report)
}

/// All kinds of queries.
fn kinds(play: &Play, memory: &InMemory, common: &[(Vec<LocalHash>, usize)]) -> Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for blocks in PROMPT_BLOCKS {
        let prompts = play.requests.iter().rev().filter_map(|request| request.query.get(..blocks));
        let held = prompts.filter(|prompt| memory.holds(prompt)).take(PROMPTS).map(<[LocalHash]>::to_vec);
        kinds.push(Kind { what: format!("{blocks} blocks of the trace, held"), prompts: held.collect() });
    }
    let held = &kinds.last().context("there are lengths")?.prompts;
    let half = held.iter().zip(UNKNOWN..).map(|(prompt, number)| {
        let (held, rest) = prompt.split_at(prompt.len() / 2);
        [held, &synthetic(number, rest.len())].concat()
    });
    let half = Kind { what: "1000 blocks, the first half held".to_owned(), prompts: half.collect() };
    kinds.push(half);
    let cold = (2 * UNKNOWN..).take(PROMPTS).map(|number| synthetic(number, 1_000));
    kinds.push(Kind { what: "1000 blocks, none held".to_owned(), prompts: cold.collect() });
    for (prompt, holders) in common {
        let what = format!("{} blocks, held by {holders}", prompt.len());
        kinds.push(Kind { what, prompts: vec![prompt.clone(); PROMPTS] });
    }
    let long = (1..=LONG_PROMPTS as u64).cycle().take(PROMPTS).map(|number| synthetic(number, LONG_PROMPT_BLOCKS));
    kinds.push(Kind { what: format!("{LONG_PROMPT_BLOCKS} blocks, held by one"), prompts: long.collect() });
    match kinds.iter().find(|kind| kind.prompts.is_empty()) {
        Some(kind) => bail!("{}: the trace has no such prompt; use more requests", kind.what),
        None => Ok(kinds),
    }
}

fn version(node: &RedisNode) -> Result<String> {
    let info = node.try_command(&["INFO", "server"])?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    Ok(version.context("INFO of redis-server has no redis_version")?.trim().to_owned())
}
