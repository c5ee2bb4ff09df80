//! Waits of queries and events while a scrape, a digest or a dump is read again and again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::client::{Connection, Prepared, read_whole};
use super::content::{SEQUENCE_BLOCKS, Sequence, Shape};
use super::ingest::{ENGINES, Engines, MODEL};
use super::program::Program;
use super::{WaitLine, Waits, median};

/// Caches of 614,400 blocks each.
const HELD: Shape = Shape { sequences: 1_200, ..Shape::PREFILL };
/// A sequence of one block, which each engine stores and removes in turn.
const PROBE: Shape = Shape { sequence_blocks: 1, blocks_per_event: 1, events_per_batch: 1, ..Shape::SINGLE };
const READINGS: [Option<&str>; 4] =
    [None, Some("/metrics"), Some("/digest?model_name=bench&instance_id=1"), Some("/dump?instance_id=1")];
/// Time of each reading in a round, and pauses between two queries and two events.
const DURATION: Duration = Duration::from_secs(5);
const BETWEEN_QUERIES: Duration = Duration::from_micros(500);
const BETWEEN_EVENTS: Duration = Duration::from_millis(2);

/// One round: every reading in turn, on one service with full caches.
pub(super) fn measure(path: &Path, rounds: usize) -> Result<Vec<WaitLine>> {
    let mut taken: Vec<Vec<WaitLine>> = READINGS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        eprintln!("service: waits while large answers are read");
        let program = Program::start(path)?;
        let mut engines = Engines::register(&program, HELD)?;
        engines.fill(&program)?;
        for (reading, lines) in READINGS.iter().zip(&mut taken) {
            lines.push(beside(&program, &mut engines, *reading)?);
        }
        engines.wait()?;
        engines.check(&program, HELD.sequences * SEQUENCE_BLOCKS)?;
    }
    Ok(taken.into_iter().map(|lines| medians(&lines)).collect())
}

/// Queries and events while `reading` is read.
fn beside(program: &Program, engines: &mut Engines, reading: Option<&str>) -> Result<WaitLine> {
    let (stop, mut connections) = (AtomicBool::new(false), [program.connect()?, program.connect()?]);
    let [asked, seen] = &mut connections;
    let started = Instant::now();
    let (read, queries, events) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(program, reading, &stop));
        let asking = scope.spawn(|| query_until(asked, &stop));
        let publishing = scope.spawn(|| publish_until(engines, seen, &stop));
        std::thread::sleep(DURATION);
        stop.store(true, Ordering::Relaxed);
        (reader.join(), asking.join(), publishing.join())
    });
    let panicked = |_| anyhow!("a thread of the client panicked");
    let (count, bytes) = read.map_err(panicked)??;
    Ok(WaitLine {
        reading: reading.map(str::to_owned),
        readings_per_second: count as f64 / started.elapsed().as_secs_f64(),
        reading_megabytes: bytes as f64 / 1e6,
        queries: waits(queries.map_err(panicked)??),
        events: waits(events.map_err(panicked)??),
    })
}

/// Number of answers, and bytes of the last one.
fn read_until(program: &Program, reading: Option<&str>, stop: &AtomicBool) -> Result<(usize, usize)> {
    let (mut count, mut bytes) = (0, 0);
    if let Some(reading) = reading {
        while !stop.load(Ordering::Relaxed) {
            bytes = read_whole(program.address(), reading)?;
            count += 1;
        }
    }
    Ok((count, bytes))
}

fn query_until(connection: &mut Connection, stop: &AtomicBool) -> Result<Vec<Duration>> {
    let tokens = Sequence { engine: 0, number: 0 }.tokens(HELD);
    let query = Prepared::post("/query", &json!({ "model_name": MODEL, "token_ids": tokens }))?;
    let mut waited = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        connection.send(&query)?;
        waited.push(sent.elapsed());
        std::thread::sleep(BETWEEN_QUERIES);
    }
    Ok(waited)
}

/// Each engine stores a block and removes it; the time until the last engine's block is visible to queries.
fn publish_until(engines: &mut Engines, connection: &mut Connection, stop: &AtomicBool) -> Result<Vec<Duration>> {
    let probe = |engine| Sequence { engine, number: HELD.sequences };
    let last = ENGINES - 1;
    let query = Prepared::post("/query", &json!({ "model_name": MODEL, "token_ids": probe(last).tokens(PROBE) }))?;
    let mut waited = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for is_stored in [true, false] {
            let batches: Vec<_> = (0..ENGINES)
                .map(|engine| if is_stored { probe(engine).stored(PROBE) } else { probe(engine).removed(PROBE) })
                .collect();
            engines.publish_each(|engine| batches[engine].concat())?;
            let published = Instant::now();
            loop {
                let answer: Value = serde_json::from_slice(connection.send(&query)?)?;
                if answer["scores"][(last + 1).to_string()]["0"].as_u64().is_some_and(|found| found > 0) == is_stored {
                    break;
                }
            }
            waited.push(published.elapsed());
            std::thread::sleep(BETWEEN_EVENTS);
        }
    }
    Ok(waited)
}

pub(super) fn waits(mut waited: Vec<Duration>) -> Waits {
    waited.sort_unstable();
    let at = |part: f64| waited[((waited.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    Waits { p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
}

/// The median of each figure over rounds; of a maximum, the highest of all rounds.
fn medians(lines: &[WaitLine]) -> WaitLine {
    let of = |figure: &dyn Fn(&WaitLine) -> f64| median(lines.iter().map(figure).collect());
    let waits = |kind: fn(&WaitLine) -> Waits| median_waits(lines.iter().map(kind));
    WaitLine {
        reading: lines[0].reading.clone(),
        readings_per_second: of(&|line| line.readings_per_second),
        reading_megabytes: of(&|line| line.reading_megabytes),
        queries: waits(|line| line.queries),
        events: waits(|line| line.events),
    }
}

/// The median of each percentile over rounds, and the highest maximum.
pub(super) fn median_waits(rounds: impl Iterator<Item = Waits>) -> Waits {
    let rounds: Vec<_> = rounds.collect();
    let of = |figure: fn(&Waits) -> f64| median(rounds.iter().map(figure).collect());
    Waits {
        p50_us: of(|waits| waits.p50_us),
        p99_us: of(|waits| waits.p99_us),
        max_us: rounds.iter().map(|waits| waits.max_us).fold(0.0, f64::max),
    }
}
