//! Waits of events and scrapes while the ranks of a large fleet are cleared and unregistered.
//!
//! All ranks store one prefix, each under its own sequence hashes, with many blocks after it, and store the prefix again. In an
//! index that looks at other ranks' blocks when one rank is cleared, such a history takes minutes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use flash_indexer_core::SequenceHash;
use flash_indexer_wire::{BlockRemoved, EngineEvent};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Waits;
use super::client::{Connection, Prepared, read_whole};
use super::content::{BLOCK_TOKENS, cleared};
use super::ingest::MODEL;
use super::probe::{PATIENCE, PROBE, Probe, batch, register, stored};
use super::program::Program;
use super::sockets::LiveSockets;
use super::waits::waits;

const RANKS: usize = 1_000;
/// Blocks of the prefix, and blocks that each rank has after it.
const PREFIX_BLOCKS: usize = 128;
const CHILDREN: usize = 500;
/// Ranks that are cleared one after the other, and at once. The others are unregistered.
const CLEARED_IN_TURN: std::ops::Range<usize> = 1..251;
const CLEARED_AT_ONCE: std::ops::Range<usize> = 251..501;
const BETWEEN_CLEARS: Duration = Duration::from_millis(10);

/// Pause between two scrapes, and the time for which a phase continues after its last event.
const BETWEEN_SCRAPES: Duration = Duration::from_millis(100);
const SETTLING: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(200);

const PHASES: [&str; 7] = [
    "nothing",
    "every rank stores 628 blocks",
    "every rank removes its prefix and stores it again",
    "one rank is cleared",
    "250 ranks are cleared, one after the other",
    "250 ranks are cleared at once",
    "499 ranks are unregistered",
];

/// Results of one run.
#[derive(Serialize, Deserialize)]
pub(crate) struct ClearsReport {
    pub(crate) phases: Vec<PhaseLine>,
    /// Duration of a `POST /unregister`.
    pub(crate) unregistrations: Waits,
    /// From SIGTERM until the process has ended.
    pub(crate) end_seconds: f64,
}

/// Waits in one phase.
#[derive(Serialize, Deserialize)]
pub(crate) struct PhaseLine {
    pub(crate) phase: String,
    /// From the publication of an event of another rank until it is visible to queries.
    pub(crate) events: Waits,
    /// Duration of a `GET /metrics`.
    pub(crate) scrapes: Waits,
}

pub(super) fn measure(path: &Path) -> Result<ClearsReport> {
    eprintln!("service: clears of {RANKS} ranks");
    let program = Program::start(path)?;
    let mut connection = program.connect()?;
    let mut ranks = LiveSockets::bind(RANKS)?;
    for (rank, endpoint) in ranks.endpoints()?.into_iter().enumerate() {
        register(&mut connection, MODEL, &format!("rank-{rank}"), &endpoint)?;
    }
    let probe = Probe::register(&program, MODEL)?;
    ensure!(ranks.wait_for_subscribers(PATIENCE)? == RANKS, "not all ranks are connected");

    let (stop, phase) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (events, scrapes, unregistered) = std::thread::scope(|scope| {
        let events = scope.spawn(|| probe.publish_until(PHASES.len(), &phase, &stop));
        let scrapes = scope.spawn(|| scrape_until(&program, &phase, &stop));
        let history = play(&mut ranks, &mut connection, &phase);
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread of the client panicked");
        anyhow::Ok((events.join().map_err(panicked)??, scrapes.join().map_err(panicked)??, history?))
    })?;
    let end_seconds = program.end(PATIENCE)?.as_secs_f64();
    let lines = PHASES.iter().zip(events).zip(scrapes).map(|((phase, events), scrapes)| {
        ensure!(!events.is_empty() && !scrapes.is_empty(), "nothing was measured while {phase}");
        Ok(PhaseLine { phase: (*phase).to_owned(), events: waits(events), scrapes: waits(scrapes) })
    });
    Ok(ClearsReport { phases: lines.collect::<Result<_>>()?, unregistrations: waits(unregistered), end_seconds })
}

/// The history of the ranks. Returns the duration of each unregistration.
fn play(ranks: &mut LiveSockets, connection: &mut Connection, phase: &AtomicUsize) -> Result<Vec<Duration>> {
    let next = || _ = phase.fetch_add(1, Ordering::Relaxed);
    let clear = [cleared()];
    std::thread::sleep(SETTLING);
    let fills: Vec<_> = (0..RANKS).map(fill).collect();
    next();
    for (rank, batch) in fills.iter().enumerate() {
        ranks.publish_to(rank, std::slice::from_ref(batch))?;
    }
    wait_for_message(connection, 0)?;
    let again: Vec<_> = (0..RANKS).map(|rank| [removed_prefix(rank), stored_prefix(rank)]).collect();
    next();
    for (rank, batches) in again.iter().enumerate() {
        ranks.publish_to(rank, batches)?;
    }
    wait_for_message(connection, 2)?;
    std::thread::sleep(SETTLING);
    next();
    ranks.publish_to(0, &clear)?;
    std::thread::sleep(SETTLING);
    next();
    for rank in CLEARED_IN_TURN {
        ranks.publish_to(rank, &clear)?;
        std::thread::sleep(BETWEEN_CLEARS);
    }
    std::thread::sleep(SETTLING);
    next();
    for rank in CLEARED_AT_ONCE {
        ranks.publish_to(rank, &clear)?;
    }
    std::thread::sleep(SETTLING);
    next();
    let mut taken = Vec::new();
    for rank in CLEARED_AT_ONCE.end..RANKS {
        let request = json!({ "instance_id": format!("rank-{rank}"), "model_name": MODEL });
        let request = Prepared::post("/unregister", &request)?;
        let sent = Instant::now();
        connection.send(&request)?;
        taken.push(sent.elapsed());
    }
    std::thread::sleep(SETTLING);
    Ok(taken)
}

/// Waits until a message of every rank is visible to queries.
fn wait_for_message(connection: &mut Connection, sequence: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let workers = connection.workers()?;
        let workers = workers.as_array().context("workers are a list")?;
        let of_ranks = workers.iter().filter(|worker| worker["instance_id"] != PROBE);
        let lasts = of_ranks.map(|worker| worker["listeners"]["0"]["last_seq"].as_u64());
        if lasts.min().flatten() >= Some(sequence) {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "the service has not applied message {sequence} of every rank");
        std::thread::sleep(POLL);
    }
}

/// Sequence hash that only one rank has.
fn own_hash(rank: usize, at: usize) -> SequenceHash {
    SequenceHash(((rank as u64 + 1) << 32) | at as u64)
}

fn prefix_hashes(rank: usize) -> Vec<SequenceHash> {
    (0..PREFIX_BLOCKS).map(|at| own_hash(rank, at)).collect()
}

fn prefix(rank: usize) -> EngineEvent<'static> {
    let tokens = (0..(PREFIX_BLOCKS * BLOCK_TOKENS) as u32).collect();
    stored(prefix_hashes(rank), None, tokens)
}

/// The prefix, and the blocks after it that no other rank has.
fn fill(rank: usize) -> Vec<u8> {
    let children = (0..CHILDREN).map(|child| {
        let mut tokens = vec![0; BLOCK_TOKENS];
        tokens[..2].copy_from_slice(&[rank as u32, child as u32]);
        stored(vec![own_hash(rank, PREFIX_BLOCKS + child)], Some(own_hash(rank, PREFIX_BLOCKS - 1)), tokens)
    });
    batch(&std::iter::once(prefix(rank)).chain(children).collect::<Vec<_>>())
}

fn removed_prefix(rank: usize) -> Vec<u8> {
    let block_hashes = prefix_hashes(rank);
    batch(&[EngineEvent::Removed(BlockRemoved { block_hashes, medium: Some("GPU"), ..BlockRemoved::default() })])
}

fn stored_prefix(rank: usize) -> Vec<u8> {
    batch(&[prefix(rank)])
}

/// The durations of the scrapes that were begun in each phase.
fn scrape_until(program: &Program, phase: &AtomicUsize, stop: &AtomicBool) -> Result<Vec<Vec<Duration>>> {
    let mut taken = vec![Vec::new(); PHASES.len()];
    while !stop.load(Ordering::Relaxed) {
        let (begun_in, sent) = (phase.load(Ordering::Relaxed), Instant::now());
        read_whole(program.address(), "/metrics")?;
        taken[begun_in].push(sent.elapsed());
        std::thread::sleep(BETWEEN_SCRAPES);
    }
    Ok(taken)
}
