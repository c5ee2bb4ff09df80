//! The service compared with Dynamo's standalone indexer: the same messages, the same requests, one round of each in turn.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Connection, Prepared};
use super::content::{Sequence, Shape};
use super::ingest::{ENGINES, MODEL};
use super::program::Program;
use super::queries::{CONNECTIONS, DURATION, query_all};
use super::sockets::LiveSockets;
use super::{median, setting};

/// Results of the comparison; medians over rounds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) lines: Vec<ComparedLine>,
}

/// One figure of both services.
#[derive(Serialize, Deserialize)]
pub(crate) struct ComparedLine {
    pub(crate) work: String,
    pub(crate) unit: String,
    pub(crate) ours: f64,
    /// The service that it is compared with.
    pub(crate) peer: String,
    /// The peer's figure, or the reason for its absence.
    pub(crate) theirs: Result<f64, String>,
    /// Goal for our figure divided by the peer's; above one if more is better.
    pub(crate) goal: f64,
}

impl ComparedLine {
    /// Our figure divided by the other one.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.theirs.as_ref().ok().map(|theirs| self.ours / theirs)
    }

    /// Whether this ratio reaches the goal.
    pub(crate) fn is_reached(&self, ratio: f64) -> bool {
        if self.goal > EQUAL { ratio >= self.goal } else { ratio <= self.goal }
    }
}

/// A service that is compared.
#[derive(Clone, Copy)]
pub(super) enum Service<'a> {
    FlashIndexer(&'a Path),
    /// With this number of writers.
    Writers(&'a Path, usize),
    Dynamo,
}

/// Engines and their sequences.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) engines: usize,
    pub(super) shape: Shape,
    /// Whether all engines have the same sequences.
    pub(super) is_shared: bool,
}

/// A service with connected engines.
struct Running {
    program: Program,
    connection: Connection,
    sockets: LiveSockets,
}

pub(super) const DYNAMO: &str = "Dynamo's service";
/// Time for engines to be connected, and for messages to be applied.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// Sequences of each engine that are checked after a burst.
const CHECKED: usize = 16;
/// Different prompts of a measure.
const PROMPTS: usize = 64;
/// Ranks of a short answer.
const TOP_K: usize = 8;
/// Measures of each of two services that are queried in turn.
const TURNS: usize = 3;
/// A turn of an agent: tokens of its prompt, which ends shortly after a checkpoint.
const TURN_TOKENS: usize = 106_000;

/// Compares the program at `path` with Dynamo's service.
pub(crate) fn compare(path: &Path, rounds: usize) -> Result<Comparison> {
    let rounds = rounds.max(1);
    let ours = Service::FlashIndexer(path);
    let mut lines = Vec::new();

    for (shape, work, unit, goal) in [
        (Shape::BURST, "burst of 2.37 M single-block events, batches of 8, four engines", "s", 0.25),
        (Shape::LARGE_PREFILL, "64-block events, batches of 4, four engines", "M blocks/s", 6.0),
    ] {
        let load = Load { engines: ENGINES, shape, is_shared: false };
        let batches = load.batches();
        let blocks = (load.engines * shape.sequences * shape.sequence_blocks) as f64;
        let figure = |seconds: f64| if unit == "s" { seconds } else { blocks / seconds / 1e6 };
        let [measured] = rounds_of(ours, rounds, |service| {
            eprintln!("comparison: {work}");
            Ok(vec![figure(load.ingest(service, &batches)?.as_secs_f64())])
        })?;
        lines.push(measured.line(work, unit, goal));
    }

    let few = Load { engines: ENGINES, shape: Shape { sequences: 200, ..Shape::PREFILL }, is_shared: false };
    let prompts = few.prompts(|tokens| json!({ "model_name": MODEL, "token_ids": tokens }))?;
    let top_prompts_of_few =
        few.prompts(|tokens| json!({ "model_name": MODEL, "token_ids": tokens, "top_k": TOP_K }))?;
    let floor = [Prepared::get("/health")];
    let [single, several, floor] = rounds_of(ours, rounds, |service| {
        eprintln!("comparison: queries of 8,192 tokens");
        let running = few.fill(service)?;
        let several = query_all(&running.program, &prompts, CONNECTIONS, None)?;
        let rate = several.len() as f64 / DURATION.as_secs_f64();
        Ok(vec![running.p50_us(&prompts)?, rate, running.p50_us(&floor)?])
    })?;
    lines.push(floor.line("floor of a request: GET /health, 1 connection, p50", "µs", EQUAL));
    lines.push(single.line("/query, 8,192 tokens, 4 instances, 1 connection, p50", "µs", 0.2));
    lines.push(several.line("the same, 4 connections", "requests/s", 6.0));

    let load = Load { engines: ENGINES, shape: Shape::LONG, is_shared: false };
    let prompts = load.prompts(|tokens| json!({ "model_name": MODEL, "token_ids": tokens }))?;
    let [long, turn] = rounds_of(ours, rounds, |service| {
        eprintln!("comparison: queries of 131,072 tokens");
        let mut running = load.fill(service)?;
        let turn = if service.is_ours() { running.turn_p50_us(load)? } else { f64::NAN };
        Ok(vec![running.p50_us(&prompts)?, turn])
    })?;
    lines.push(long.line("/query, 131,072 tokens, blocks of 64 tokens, p50", "µs", 0.1));
    lines.push(ComparedLine {
        theirs: Ok(TURN_GOAL_US),
        peer: "goal".to_owned(),
        ..turn.line("`after` a cursor: the end of a turn of 106,000 tokens, p50", "µs", 1.0)
    });

    for (engines, work, goal) in [
        (500, "/query, 8,192 tokens, 500 instances that all match, p50", 0.15),
        (2_000, "/query, 8,192 tokens, 2,000 instances that all match, p50", 0.15),
    ] {
        let load = Load { engines, shape: Shape { sequences: 4, ..Shape::PREFILL }, is_shared: true };
        let prompts = load.prompts(|tokens| json!({ "model_name": MODEL, "token_ids": tokens }))?;
        let top = load.prompts(|tokens| json!({ "model_name": MODEL, "token_ids": tokens, "top_k": TOP_K }))?;
        let [full, top_of_all, top_of_few] = rounds_of(ours, rounds, |service| {
            eprintln!("comparison: {engines} instances that match");
            let running = load.fill(service)?;
            let full = running.p50_us(&prompts)?;
            if !service.is_ours() {
                return Ok(vec![full, f64::NAN, f64::NAN]);
            }
            // A service with few engines beside it, queried in turn: the speed of the machine changes within minutes.
            let beside = few.fill(service)?;
            let (mut all, mut of_few) = (Vec::new(), Vec::new());
            for _ in 0..TURNS {
                all.push(running.p50_us(&top)?);
                of_few.push(beside.p50_us(&top_prompts_of_few)?);
            }
            Ok(vec![full, median(all), median(of_few)])
        })?;
        let line = full.line(work, "µs", goal);
        lines.push(match &line.theirs {
            Ok(_) => line,
            // Without a figure of the peer, the goal is a time.
            Err(why) => {
                let peer = format!("goal; of {DYNAMO}: {why}");
                ComparedLine { theirs: Ok(FAN_OUT_GOAL_US), peer, goal: 1.0, ..line }
            }
        });
        lines.push(ComparedLine {
            theirs: Ok(top_of_few.ours),
            peer: format!("`top_k: {TOP_K}`, {ENGINES} instances, in turn"),
            ..top_of_all.line(&format!("{engines} instances with `top_k: {TOP_K}`"), "µs", EQUAL)
        });
    }
    Ok(Comparison { setting: setting(rounds), lines })
}

/// Goal for a figure that should equal another one, with some noise.
const EQUAL: f64 = 1.1;

/// Goal for an answer with 2,000 instances, in microseconds.
const FAN_OUT_GOAL_US: f64 = 1_000.0;

/// Goal for a query that continues a prefix, in microseconds.
const TURN_GOAL_US: f64 = 60.0;

/// Figures of one measure, as medians.
struct Measured {
    ours: f64,
    theirs: Result<f64, String>,
}

impl Measured {
    fn line(&self, work: &str, unit: &str, goal: f64) -> ComparedLine {
        let (work, unit, peer) = (work.to_owned(), unit.to_owned(), DYNAMO.to_owned());
        ComparedLine { work, unit, ours: self.ours, peer, theirs: self.theirs.clone(), goal }
    }
}

/// Takes measures of both services in turn. A measure that fails at the peer has no figure for the peer.
fn rounds_of<const N: usize>(
    ours: Service<'_>,
    rounds: usize,
    mut measure: impl FnMut(Service<'_>) -> Result<Vec<f64>>,
) -> Result<[Measured; N]> {
    let (mut of_ours, mut of_peer) = (Vec::new(), Ok(Vec::new()));
    for _ in 0..rounds {
        of_ours.push(measure(ours)?);
        if let Ok(figures) = &mut of_peer {
            match measure(Service::Dynamo) {
                Ok(taken) => figures.push(taken),
                Err(error) => of_peer = Err(format!("{error:#}")),
            }
        }
    }
    let of = |figures: &[Vec<f64>], at: usize| median(figures.iter().map(|taken: &Vec<f64>| taken[at]).collect());
    Ok(std::array::from_fn(|at| Measured {
        ours: of(&of_ours, at),
        theirs: of_peer.as_ref().map(|figures| of(figures, at)).map_err(Clone::clone),
    }))
}

impl Service<'_> {
    fn is_ours(self) -> bool {
        !matches!(self, Self::Dynamo)
    }

    fn start(self) -> Result<Program> {
        match self {
            Self::FlashIndexer(path) => Program::start(path),
            Self::Writers(path, writers) => Program::start_with(path, &["--threads", &writers.to_string()]),
            Self::Dynamo => Program::start_dynamo(),
        }
    }
}

impl Load {
    fn sequence(self, engine: usize, number: usize) -> Sequence {
        Sequence { engine: if self.is_shared { 0 } else { engine }, number }
    }

    /// Batches of each engine.
    pub(super) fn batches(self) -> Vec<Vec<Vec<u8>>> {
        let stored = |engine, number| self.sequence(engine, number).stored(self.shape);
        let of_engine = |engine| (0..self.shape.sequences).flat_map(|number| stored(engine, number)).collect();
        (0..self.engines).map(of_engine).collect()
    }

    /// Requests for held prompts, of every engine in turn.
    fn prompts(self, body: impl Fn(Vec<u32>) -> Value) -> Result<Vec<Prepared>> {
        let sequence = |prompt: usize| self.sequence(prompt % self.engines, prompt % self.shape.sequences);
        let bodies = (0..PROMPTS).map(|prompt| body(sequence(prompt).tokens(self.shape)));
        bodies.map(|body| Prepared::post("/query", &body)).collect()
    }

    /// Starts a service and registers the engines.
    fn register(self, service: Service<'_>, sockets: LiveSockets) -> Result<Running> {
        let program = service.start()?;
        let mut connection = program.connect()?;
        for (engine, endpoint) in sockets.endpoints()?.into_iter().enumerate() {
            let registration = json!({
                "instance_id": engine + 1,
                "endpoint": endpoint,
                "model_name": MODEL,
                "block_size": self.shape.block_tokens,
            });
            connection.send(&Prepared::post("/register", &registration)?)?;
        }
        let connected = sockets.wait_for_subscribers(PATIENCE)?;
        ensure!(connected == self.engines, "{connected} of {} engines connected", self.engines);
        Ok(Running { program, connection, sockets })
    }

    /// Starts a service whose engines hold all sequences.
    fn fill(self, service: Service<'_>) -> Result<Running> {
        let mut running = self.register(service, LiveSockets::bind(self.engines)?)?;
        running.sockets.publish(&self.batches())?;
        running.wait(self)?;
        Ok(running)
    }

    /// The time from the first of the batches, which are published at once, until the last one of each engine is visible
    /// to queries. Fails if one of the sequences that are checked lacks a block.
    fn ingest(self, service: Service<'_>, batches: &[Vec<Vec<u8>>]) -> Result<Duration> {
        let running = self.register(service, LiveSockets::bind(self.engines)?)?;
        self.ingest_into(running, |sockets| sockets.publish(batches))
    }

    /// The same, where each engine publishes with its own threads.
    pub(super) fn ingest_side_by_side(self, service: Service<'_>, batches: &[Vec<Vec<u8>>]) -> Result<Duration> {
        let running = self.register(service, LiveSockets::bind_apart(self.engines)?)?;
        self.ingest_into(running, |sockets| sockets.publish_side_by_side(batches))
    }

    fn ingest_into(
        self,
        mut running: Running,
        publish: impl FnOnce(&mut LiveSockets) -> Result<()>,
    ) -> Result<Duration> {
        let started = Instant::now();
        publish(&mut running.sockets)?;
        running.wait(self)?;
        let took = started.elapsed();
        for engine in 0..self.engines {
            for checked in 0..CHECKED {
                let number = checked * self.shape.sequences / CHECKED;
                let found = tokens_of(&running.tokens_by_engine(self, engine, number)?, engine);
                let wanted = self.shape.sequence_tokens();
                ensure!(found == wanted, "engine {engine} has {found} of {wanted} tokens of sequence {number}");
            }
        }
        Ok(took)
    }
}

impl Running {
    /// Waits until every engine has its last sequence.
    fn wait(&mut self, load: Load) -> Result<()> {
        let started = Instant::now();
        let last = load.shape.sequences - 1;
        // Engines that share a sequence are in one answer.
        for engine in 0..if load.is_shared { 1 } else { load.engines } {
            let wanted = if load.is_shared { 0..load.engines } else { engine..engine + 1 };
            loop {
                let answer = self.tokens_by_engine(load, engine, last)?;
                let whole = wanted.clone().filter(|&engine| tokens_of(&answer, engine) == load.shape.sequence_tokens());
                let (whole, engines) = (whole.count(), wanted.len());
                if whole == engines {
                    break;
                }
                ensure!(started.elapsed() < PATIENCE, "{whole} of {engines} engines have their last sequence");
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// The answer for a sequence of an engine.
    fn tokens_by_engine(&mut self, load: Load, engine: usize, number: usize) -> Result<Value> {
        let tokens = load.sequence(engine, number).tokens(load.shape);
        self.query(&json!({ "model_name": MODEL, "token_ids": tokens }))
    }

    fn query(&mut self, body: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(self.connection.send(&Prepared::post("/query", body)?)?)?)
    }

    /// Median latency over one connection.
    fn p50_us(&self, prompts: &[Prepared]) -> Result<f64> {
        let latencies = query_all(&self.program, prompts, 1, None)?;
        Ok(latencies[latencies.len() / 2].as_secs_f64() * 1e6)
    }

    /// Median latency of queries that continue the prefix named in the answer to the previous prompt.
    fn turn_p50_us(&mut self, load: Load) -> Result<f64> {
        let mut prompts = Vec::new();
        for prompt in 0..PROMPTS {
            let sequence = load.sequence(prompt % load.engines, prompt % load.shape.sequences);
            let tokens = &sequence.tokens(load.shape)[..TURN_TOKENS];
            let answer = self.query(&json!({ "model_name": MODEL, "token_ids": tokens }))?;
            let known = answer["cursor_tokens"].as_u64().context("a long prompt has a cursor")? as usize;
            let body = json!({ "model_name": MODEL, "after": answer["cursor"], "token_ids": tokens[known..] });
            let continued = self.query(&body)?;
            ensure!(continued["scores"] == answer["scores"], "a continued prompt has another answer");
            prompts.push(Prepared::post("/query", &body)?);
        }
        self.p50_us(&prompts)
    }
}

/// Tokens that an engine has, by an answer.
fn tokens_of(answer: &Value, engine: usize) -> usize {
    answer["scores"][(engine + 1).to_string()]["0"].as_u64().unwrap_or(0) as usize
}
