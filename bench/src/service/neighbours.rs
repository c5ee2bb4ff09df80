//! Waits of events while many instances of one model, or one engine, publish as fast as they can.
//!
//! One probe is an instance of the busy model, another probe of another model. The engines of a fleet take no time from the service's
//! processors, so a second history is published at the lowest priority.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use flash_indexer_core::SequenceHash;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Connection, Prepared};
use super::content::BLOCK_TOKENS;
use super::ingest::MODEL;
use super::probe::{PATIENCE, PROBE, Probe, batch, stored};
use super::program::{Program, free_port};
use super::waits::{median_waits, waits};
use super::{Waits, median};

const INSTANCES: usize = 7_000;
/// Connections of the instances: 7,000 sockets would be more files than a process may open.
const CONNECTIONS: usize = 8;
/// Blocks of the event that each instance publishes again and again, as 64 blocks of 16 tokens.
const EVENT_BLOCKS: usize = 64;
/// Such events of each instance. The probes take some 300 waits meanwhile, so that a percentile is not the maximum.
const ROUNDS: usize = 10;
/// Instances that connect at once: the service limits the number of pending registrations.
const CONNECTED_AT_ONCE: usize = 500;
/// Single-block events of the flooding engine, and those of one batch.
const FLOOD_EVENTS: usize = 1_000_000;
const FLOOD_BATCH: usize = 8;
const SETTLING: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);
const OTHER_MODEL: &str = "other";
const UNSENT_MAX: i32 = 1 << 20;

const PHASES: [&str; 3] = [
    "nothing",
    "7,000 instances store 640 blocks each, at once",
    "one instance stores 1,000,000 blocks, one in an event",
];

/// The phase in which the client prepares messages, or checks that the service has applied all of them.
const UNMEASURED: usize = PHASES.len();

/// Nice value of the threads that publish.
#[derive(Clone, Copy)]
enum PublisherPriority {
    Normal = 0,
    Lowest = 19,
}

/// Waits in one phase, from the publication of an event until it is visible to queries.
#[derive(Serialize, Deserialize)]
pub(crate) struct NeighbourLine {
    pub(crate) phase: String,
    /// Time until the last event of the busy model is visible to queries, in seconds.
    pub(crate) seconds: f64,
    pub(crate) other_model: Waits,
    pub(crate) same_model: Waits,
}

/// Instances that connect, several on one socket, each under its own topic.
struct Pods {
    sockets: Vec<zmq::Socket>,
    /// Messages that each pod has published.
    published: Vec<u64>,
}

impl Pods {
    fn connect(address: &str) -> Result<Self> {
        let context = zmq::Context::new();
        let mut sockets = Vec::new();
        for _ in 0..CONNECTIONS {
            // An XPUB receives the subscription as a message.
            let socket = context.socket(zmq::XPUB)?;
            socket.set_sndhwm(UNSENT_MAX)?;
            socket.set_linger(0)?;
            socket.connect(address)?;
            sockets.push(socket);
        }
        for socket in &sockets {
            let patience = i64::try_from(PATIENCE.as_millis()).unwrap_or(i64::MAX);
            ensure!(socket.poll(zmq::POLLIN, patience)? > 0, "the service does not subscribe");
        }
        Ok(Self { sockets, published: vec![0; INSTANCES] })
    }

    fn publish(&mut self, pod: usize, payload: &[u8]) -> Result<()> {
        let topic = format!("kv@pod-{pod}@{MODEL}");
        let sequence = self.published[pod].to_be_bytes();
        self.sockets[pod % CONNECTIONS].send_multipart([topic.as_bytes(), &sequence, payload], 0)?;
        self.published[pod] += 1;
        Ok(())
    }
}

/// One line for each phase and priority: medians over rounds, and the highest maximum.
pub(super) fn measure(path: &Path, rounds: usize) -> Result<Vec<NeighbourLine>> {
    let mut lines = measure_priority(path, rounds, PublisherPriority::Normal)?;
    for line in measure_priority(path, rounds, PublisherPriority::Lowest)?.into_iter().skip(1) {
        lines.push(NeighbourLine { phase: format!("{}; published at the lowest priority", line.phase), ..line });
    }
    Ok(lines)
}

fn measure_priority(path: &Path, rounds: usize, priority: PublisherPriority) -> Result<Vec<NeighbourLine>> {
    let taken = (0..rounds).map(|_| measure_round(path, priority)).collect::<Result<Vec<_>>>()?;
    let lines = PHASES.iter().enumerate().map(|(at, phase)| {
        let of = |waits: fn(&NeighbourLine) -> Waits| median_waits(taken.iter().map(|lines| waits(&lines[at])));
        NeighbourLine {
            phase: (*phase).to_owned(),
            seconds: median(taken.iter().map(|lines| lines[at].seconds).collect()),
            other_model: of(|line| line.other_model),
            same_model: of(|line| line.same_model),
        }
    });
    Ok(lines.collect())
}

fn measure_round(path: &Path, priority: PublisherPriority) -> Result<Vec<NeighbourLine>> {
    eprintln!("service: events beside {INSTANCES} instances");
    let address = format!("tcp://127.0.0.1:{}", free_port()?);
    let program = Program::start_with(path, &["--listen-events", &address, "--pods-max", &INSTANCES.to_string()])?;
    let (other, same) = (Probe::register(&program, OTHER_MODEL)?, Probe::register(&program, MODEL)?);

    let (stop, phase) = (AtomicBool::new(false), AtomicUsize::new(UNMEASURED));
    let (other, same, seconds) = std::thread::scope(|scope| {
        let other = scope.spawn(|| other.publish_until(PHASES.len() + 1, &phase, &stop));
        let same = scope.spawn(|| same.publish_until(PHASES.len() + 1, &phase, &stop));
        let history = scope.spawn(|| play(&address, &program, priority, &phase)).join();
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread of the client panicked");
        anyhow::Ok((other.join().map_err(panicked)??, same.join().map_err(panicked)??, history.map_err(panicked)??))
    })?;
    let lines = PHASES.iter().zip(seconds).zip(other).zip(same).map(|(((phase, seconds), other), same)| {
        ensure!(!other.is_empty() && !same.is_empty(), "nothing was measured while {phase}");
        let (other_model, same_model) = (waits(other), waits(same));
        Ok(NeighbourLine { phase: (*phase).to_owned(), seconds, other_model, same_model })
    });
    lines.collect()
}

/// The history of the busy model. Returns the duration of each phase, without the settling time.
fn play(address: &str, program: &Program, priority: PublisherPriority, phase: &AtomicUsize) -> Result<Vec<f64>> {
    let set_phase = |number| phase.store(number, Ordering::Relaxed);
    // Of this thread, and of the threads of libzmq that it starts.
    setpriority_process(None, priority as i32)?;
    let (pods, connection) = (&mut Pods::connect(address)?, &mut program.connect()?);
    for first in (0..INSTANCES).step_by(CONNECTED_AT_ONCE) {
        let last = (first + CONNECTED_AT_ONCE).min(INSTANCES);
        for pod in first..last {
            pods.publish(pod, &chain(pod, 0))?;
        }
        wait(connection, pods, last)?;
    }
    set_phase(0);
    std::thread::sleep(SETTLING);
    set_phase(UNMEASURED);
    let chains: Vec<_> =
        (0..INSTANCES).map(|pod| (1..=ROUNDS).map(|round| chain(pod, round)).collect::<Vec<_>>()).collect();
    set_phase(1);
    let begun = Instant::now();
    for round in 0..ROUNDS {
        for (pod, batches) in chains.iter().enumerate() {
            pods.publish(pod, &batches[round])?;
        }
    }
    wait_for_tokens(connection, INSTANCES - 1, &chain_tokens(INSTANCES - 1, ROUNDS))?;
    let stored = begun.elapsed().as_secs_f64();
    set_phase(UNMEASURED);
    wait(connection, pods, INSTANCES)?;
    drop(chains);
    let flood: Vec<_> = (0..FLOOD_EVENTS / FLOOD_BATCH).map(flood_batch).collect();
    set_phase(2);
    let begun = Instant::now();
    for payload in &flood {
        pods.publish(0, payload)?;
    }
    wait_for_tokens(connection, 0, &flood_tokens(FLOOD_EVENTS - 1))?;
    let flooded = begun.elapsed().as_secs_f64();
    set_phase(UNMEASURED);
    wait(connection, pods, INSTANCES)?;
    Ok(vec![SETTLING.as_secs_f64(), stored, flooded])
}

/// Waits until queries see the blocks of these tokens at a pod. Costs the service less than [`wait`], which reads the list of all pods.
fn wait_for_tokens(connection: &mut Connection, pod: usize, tokens: &[u32]) -> Result<()> {
    let query = Prepared::post("/query", &json!({ "model_name": MODEL, "token_ids": tokens, "top_k": 1 }))?;
    let started = Instant::now();
    loop {
        let answer: Value = serde_json::from_slice(connection.send(&query)?)?;
        if answer["scores"][format!("pod-{pod}")]["0"].as_u64().is_some_and(|found| found > 0) {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "queries do not see the last blocks of pod-{pod}");
        std::thread::sleep(POLL);
    }
}

/// Waits until the last message of this number of pods is visible to queries. Fails if a message was lost.
fn wait(connection: &mut Connection, pods: &Pods, instances: usize) -> Result<()> {
    let started = Instant::now();
    loop {
        let workers = connection.workers()?;
        let workers = workers.as_array().context("workers are a list")?;
        let of_pods = workers.iter().filter(|worker| worker["instance_id"] != PROBE);
        let mut applied = 0;
        for worker in of_pods {
            let listener = &worker["listeners"]["0"];
            let name = worker["instance_id"].as_str().context("a name")?;
            let pod: usize = name.trim_start_matches("pod-").parse()?;
            ensure!(listener["gaps"] == 0, "a stream has gaps: {listener}");
            applied += usize::from(listener["last_seq"].as_u64().map(|last| last + 1) == Some(pods.published[pod]));
        }
        if applied == instances {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "the service has applied all messages of {applied} instances only");
        std::thread::sleep(POLL);
    }
}

/// A chain of blocks that no other instance has.
fn chain(pod: usize, round: usize) -> Vec<u8> {
    let hash = |block: usize| SequenceHash(((pod as u64 + 1) << 32) | (round * EVENT_BLOCKS + block) as u64);
    batch(&[stored((0..EVENT_BLOCKS).map(hash).collect(), None, chain_tokens(pod, round))])
}

fn chain_tokens(pod: usize, round: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..(EVENT_BLOCKS * BLOCK_TOKENS) as u32).collect();
    tokens[..2].copy_from_slice(&[pod as u32, round as u32]);
    tokens
}

/// Events of one block each, all without a parent.
fn flood_batch(at: usize) -> Vec<u8> {
    let events = (at * FLOOD_BATCH..(at + 1) * FLOOD_BATCH)
        .map(|block| stored(vec![SequenceHash((1 << 56) | block as u64)], None, flood_tokens(block)));
    batch(&events.collect::<Vec<_>>())
}

fn flood_tokens(block: usize) -> Vec<u32> {
    let mut tokens = vec![1; BLOCK_TOKENS];
    tokens[0] = block as u32;
    tokens
}
