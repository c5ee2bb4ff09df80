//! The measures.

mod clear;
mod fan_out;
mod ingest;
mod mixed;
mod query;
mod span;
mod stalls;

use flash_indexer_sim::workload::{AgenticOptions, AgenticSessions, DocumentPrompts, GeneratedPrompt, MooncakeTrace};
use flash_indexer_sim::{FleetOptions, HashSeeds, HoleShare, Routing};
use serde::{Deserialize, Serialize};

use crate::backend::{Contender, MatchTotals};
use crate::churn::churn;
use crate::clock::Clock;
use crate::workload::Workload;

flash_indexer_core::named_enum! {
    /// A measure of a contender. Measures with a common scenario are consecutive.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Measure {
        /// Events of the whole trace by one thread.
        Ingest = "ingest",
        /// The same by two threads.
        IngestTwoThreads = "ingest-2",
        /// Queries while nothing changes.
        Query = "query",
        /// Queries while another thread writes as fast as it can.
        QueryUnderWriter = "query-under-writer",
        /// Queries and events of the trace at once, on two threads.
        Mixed = "mixed",
        /// Memory of the fleet's blocks.
        Memory = "memory",
        /// Events of workers with private hash seeds.
        PrivateSeeds = "private-seeds",
        /// Events and queries where one block in fifty is removed from the middle of its sequence.
        Holes = "holes",
        /// Queries that 1,000 workers match.
        FanOut = "fan-out-1000",
        /// Clearing one of 1,000 workers.
        Clear = "clear",
        /// Queries that 7,000 workers match.
        FanOutWide = "fan-out-7000",
        /// Memory of the same blocks spread over 7,000 workers.
        MemoryWide = "memory-7000",
        /// Memory of 7,000 workers that hold the same prompts.
        MemorySame = "memory-7000-same",
        /// Events and queries of agents' sessions.
        Agentic = "agentic",
        /// Events and queries of prompts about long shared documents.
        Documents = "documents",
        /// Longest waits of events and queries while 1,000 workers with ten million blocks replace and lose them.
        Stalls = "stalls",
    }
}

/// Workers of [`Measure::FanOut`] and [`Measure::Clear`].
const MANY: usize = 1_000;
/// Workers of [`Measure::FanOutWide`], [`Measure::MemoryWide`] and [`Measure::MemorySame`].
const VERY_MANY: usize = 7_000;
/// Requests of the trace for each prompt that all workers of [`Measure::MemorySame`] hold: eight prompts for a whole trace.
const REQUESTS_PER_SAME_PROMPT: usize = 1_500;
const HOLES_PERCENT: f64 = 2.0;
/// Workers of [`Measure::Agentic`].
const AGENTIC_WORKERS: usize = 16;
/// Prompts of [`Measure::Agentic`] at most; an agent's prompt is as long as thirty of the trace.
const AGENTIC_PROMPTS_MAX: usize = 6_000;
/// Documents of [`Measure::Documents`].
const DOCUMENTS: usize = 400;
/// Blocks that the workers of [`Measure::Stalls`] hold for each request of the trace: ten million for a whole one.
const CHURNED_BLOCKS_PER_REQUEST: usize = 832;
/// Seed of generated prompts.
const PROMPTS_SEED: u64 = 1;

/// The fleet that a measure needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Fleet,
    PrivateSeeds,
    Holes,
    Workers(usize),
    /// A number of workers that all serve the same prompts.
    SameOnEach(usize),
    /// Agents' sessions instead of the trace.
    Agentic,
    /// Prompts about documents instead of the trace.
    Documents,
    /// A fleet of this many workers under churn instead of the trace.
    Churn(usize),
}

impl Scenario {
    /// The scenario's fleet, derived from the default fleet.
    fn options(self, default_fleet: &FleetOptions) -> FleetOptions {
        let default_fleet = default_fleet.clone();
        match self {
            Self::Fleet => default_fleet,
            Self::PrivateSeeds => FleetOptions { hash_seeds: HashSeeds::Private, ..default_fleet },
            Self::Holes => {
                let holes = HoleShare::percent(HOLES_PERCENT).expect("two of a hundred is a share");
                FleetOptions { holes, ..default_fleet }
            }
            Self::Workers(workers) | Self::SameOnEach(workers) | Self::Churn(workers) => {
                FleetOptions { workers, ..default_fleet }
            }
            Self::Agentic => FleetOptions {
                workers: AGENTIC_WORKERS,
                blocks: 2 * default_fleet.blocks,
                blocks_per_hash_id: 1,
                routing: Routing::SessionAffinity,
                ..default_fleet
            },
            Self::Documents => FleetOptions { blocks_per_hash_id: 1, ..default_fleet },
        }
    }

    /// Plays the first `requests` of a trace, or as many generated prompts, through this scenario's fleet.
    pub(crate) fn play(self, trace: &MooncakeTrace, requests: usize, default_fleet: &FleetOptions) -> Workload {
        let options = self.options(default_fleet);
        match self {
            Self::SameOnEach(workers) => {
                let prompts = trace.prompts().take((requests / REQUESTS_PER_SAME_PROMPT).max(1));
                Workload::play(prompts.flat_map(|prompt| std::iter::repeat_n(prompt, workers)), &options, 1)
            }
            Self::Fleet => Workload::play(trace.prompts().take(requests), &options, 2),
            Self::Agentic => {
                let prompts = AgenticSessions::new(AgenticOptions::default(), PROMPTS_SEED);
                play_generated(prompts.take(requests.min(AGENTIC_PROMPTS_MAX)), &options)
            }
            Self::Churn(workers) => {
                let first = churn(workers, requests * CHURNED_BLOCKS_PER_REQUEST);
                Workload { workers, first, ..Workload::default() }
            }
            Self::Documents => play_generated(DocumentPrompts::new(DOCUMENTS, PROMPTS_SEED).take(requests), &options),
            _ => Workload::play(trace.prompts().take(requests), &options, 1),
        }
    }
}

fn play_generated(prompts: impl Iterator<Item = GeneratedPrompt>, options: &FleetOptions) -> Workload {
    let prompts: Vec<GeneratedPrompt> = prompts.collect();
    Workload::play(prompts.iter().map(GeneratedPrompt::as_hashed), options, 1)
}

/// Result of one round of a measure for one contender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// A value for each of the measure's columns; none if the contender does not support it.
    pub(crate) values: Vec<Option<f64>>,
    pub(crate) answers: MatchTotals,
}

impl Measure {
    /// Description of the measure, in a sentence or two.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Ingest => "All events of the trace, removals included, applied in order by one thread.",
            Self::IngestTwoThreads => "As ingest, by two event threads, each with half of the workers.",
            Self::Query => {
                "Every query of the trace on the full index, timed one by one, with the query in the processor's cache \
                 and without the cost of reading the clock."
            }
            Self::QueryUnderWriter => {
                "The same queries in a loop, while another thread applies the trace a second time at full speed."
            }
            Self::Mixed => {
                "Block operations (blocks stored, removed and queried) of the trace per second on two threads: one \
                 reads and one writes (1 + 1), or each does both for half of the workers (2 x both)."
            }
            Self::Memory | Self::MemoryWide => {
                "Growth of the resident size of a fresh process while an empty index applies all events; pages of 4 KiB."
            }
            Self::MemorySame => {
                "As memory, with 7,000 workers that all hold the same prompts, the first of the trace (one for 1,500 requests)."
            }
            Self::FanOut | Self::FanOutWide => "The trace spread over many workers, all of which match every query.",
            Self::PrivateSeeds => "As ingest, with a private hash seed for each worker.",
            Self::Holes => "As ingest and query, with 2% of stored blocks removed from the middle of their sequence.",
            Self::Clear => "One of 1,000 workers clears its cache.",
            Self::Agentic => {
                "As ingest and query, with up to 6,000 prompts of agents' sessions instead of the trace: prompts of 1,700 \
                 blocks that add a dozen to the previous one, outputs stored block by block, 16 workers."
            }
            Self::Stalls => {
                "Longest waits of single events and queries on two threads, while 1,000 workers fill their caches \
                 (together ten million blocks for a whole trace's number of requests), replace prompts and leave, nine of ten at once. The \
                 thread's own time leaves out what other processes take."
            }
            Self::Documents => {
                "As ingest and query, with prompts of 244 blocks about 400 shared documents instead of the trace."
            }
        }
    }

    /// Names of its columns.
    #[must_use]
    pub const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Ingest | Self::IngestTwoThreads | Self::PrivateSeeds => &["ns/stored block", "M blocks/s"],
            Self::Query => &["mean ns", "p50 ns", "p99 ns", "max ns"],
            Self::QueryUnderWriter => {
                &["mean ns", "p50 ns", "p99 ns", "max ns", "p99 / own quiet p99", "writer ns/stored block"]
            }
            Self::Mixed => &["M ops/s, 1 + 1", "M ops/s, 2 x both", "M ops/s, better"],
            Self::Memory | Self::MemoryWide | Self::MemorySame => &["B/unique block", "B/held block", "MiB"],
            Self::FanOut | Self::FanOutWide => {
                &["full mean ns", "full p50 ns", "full p99 ns", "top-8 mean ns", "top-8 p50 ns", "top-8 p99 ns"]
            }
            Self::Holes | Self::Agentic | Self::Documents => &["ns/stored block", "query p50 ns", "query p99 ns"],
            Self::Clear => &["us/worker"],
            Self::Stalls => &[
                "event p99.99 us",
                "event max us",
                "event max us, own",
                "query p99.99 us",
                "query max us",
                "query max us, own",
            ],
        }
    }

    pub(crate) const fn scenario(self) -> Scenario {
        match self {
            Self::Ingest
            | Self::IngestTwoThreads
            | Self::Query
            | Self::QueryUnderWriter
            | Self::Mixed
            | Self::Memory => Scenario::Fleet,
            Self::PrivateSeeds => Scenario::PrivateSeeds,
            Self::Holes => Scenario::Holes,
            Self::FanOut | Self::Clear => Scenario::Workers(MANY),
            Self::FanOutWide | Self::MemoryWide => Scenario::Workers(VERY_MANY),
            Self::MemorySame => Scenario::SameOnEach(VERY_MANY),
            Self::Agentic => Scenario::Agentic,
            Self::Documents => Scenario::Documents,
            Self::Stalls => Scenario::Churn(MANY),
        }
    }

    /// Number of workers that hold a block, if all of them do; otherwise 0.
    pub(crate) const fn holders_of_a_block(self) -> usize {
        match self.scenario() {
            Scenario::SameOnEach(workers) => workers,
            _ => 0,
        }
    }

    /// Whether it measures memory, which needs a separate process.
    pub(crate) const fn is_memory(self) -> bool {
        matches!(self, Self::Memory | Self::MemoryWide | Self::MemorySame)
    }

    /// Measures one contender once; none if the contender does not support the measure, or if it measures memory.
    pub(crate) fn sample(self, contender: &dyn Contender, workload: &Workload, clock: Clock) -> Option<Sample> {
        match self {
            Self::Ingest | Self::PrivateSeeds => Some(ingest::one_thread(contender, workload)),
            Self::IngestTwoThreads => ingest::two_threads(contender, workload),
            Self::Query => Some(query::quiet(contender, workload, clock)),
            Self::QueryUnderWriter => Some(query::under_writer(contender, workload, clock)),
            Self::Mixed => Some(mixed::replay(contender, workload)),
            Self::Holes | Self::Agentic | Self::Documents => Some(query::with_ingest(contender, workload, clock)),
            Self::FanOut | Self::FanOutWide => Some(fan_out::full_and_top(contender, workload, clock)),
            Self::Clear => Some(clear::one_worker(contender, workload)),
            Self::Stalls => Some(stalls::under_churn(contender, workload, clock)),
            Self::Memory | Self::MemoryWide | Self::MemorySame => None,
        }
    }
}
