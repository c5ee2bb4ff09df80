//! Queries over kept connections, alone and during ingest.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::QueryLine;
use super::client::{Connection, Prepared};
use super::content::{SEQUENCE_BLOCKS, Sequence, Shape};
use super::ingest::{ENGINES, Engines, MODEL};
use super::program::Program;

/// Connections of the client, each with one request at a time.
pub(crate) const CONNECTIONS: usize = 4;
pub(crate) const PROMPT_TOKENS: usize = SEQUENCE_BLOCKS * super::BLOCK_TOKENS;
/// Different prompts, of different engines; every fourth one is half unknown.
const PROMPTS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(300);
/// Time in which latencies are recorded.
pub(super) const DURATION: Duration = Duration::from_secs(2);
/// Caches that hold the prompts.
const HELD: Shape = Shape { sequences: 200, ..Shape::PREFILL };
/// Interval of the batches during the queries.
const TICK: Duration = Duration::from_millis(4);

/// Queries for a fixed time, in a closed loop or at the rate `offered`, while engines publish `events` events a second.
pub(super) fn measure(path: &Path, offered: Option<f64>, events: f64) -> Result<QueryLine> {
    let program = Program::start(path)?;
    let mut engines = Engines::register(&program, HELD)?;
    engines.fill(&program)?;
    let prompts = prompts(HELD)?;
    check(&mut program.connect()?, &prompts)?;
    let stop = AtomicBool::new(false);
    let (latencies, event_rate) = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| if events > 0.0 { publish(&mut engines, events, &stop) } else { Ok(0.0) });
        let latencies = query_all(&program, &prompts, CONNECTIONS, offered);
        stop.store(true, Ordering::Relaxed);
        (latencies, publishing.join())
    });
    let events_per_second = event_rate.map_err(|_| anyhow!("the engines' thread panicked"))??;
    engines.wait()?;
    engines.check(&program, HELD.sequences * SEQUENCE_BLOCKS)?;
    let latencies = latencies?;
    let at = |part: f64| latencies[(latencies.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    Ok(QueryLine {
        beside: String::new(),
        offered_per_second: offered,
        requests_per_second: latencies.len() as f64 / DURATION.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        events_per_second,
    })
}

fn prompts(shape: Shape) -> Result<Vec<Prepared>> {
    let prompts = (0..PROMPTS).map(|prompt| {
        let mut tokens = Sequence { engine: prompt % ENGINES, number: prompt }.tokens(shape);
        if prompt % 4 == 3 {
            tokens[PROMPT_TOKENS / 2] += 1;
        }
        Prepared::post("/query", &json!({ "model_name": MODEL, "token_ids": tokens }))
    });
    prompts.collect()
}

/// Checks the answers before the timing.
fn check(connection: &mut Connection, prompts: &[Prepared]) -> Result<()> {
    for (prompt, request) in prompts.iter().enumerate() {
        let answer: Value = serde_json::from_slice(connection.send(request)?)?;
        let expected = if prompt % 4 == 3 { PROMPT_TOKENS / 2 } else { PROMPT_TOKENS };
        let found = &answer["scores"][(prompt % ENGINES + 1).to_string()]["0"];
        ensure!(*found == json!(expected), "prompt {prompt}: {expected} tokens are held, the answer is {found}");
    }
    Ok(())
}

/// Latencies of all queries over this number of connections, in ascending order.
pub(super) fn query_all(
    program: &Program,
    prompts: &[Prepared],
    connections: usize,
    offered: Option<f64>,
) -> Result<Vec<Duration>> {
    let interval = offered.map(|offered| Duration::from_secs_f64(connections as f64 / offered));
    let count = connections;
    let connections = (0..count).map(|_| program.connect()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let asking = connections.into_iter().enumerate().map(|(first, mut connection)| {
            // Every connection starts with another prompt.
            let prompts = prompts.iter().cycle().skip(first * prompts.len() / count);
            let offset = interval.unwrap_or_default() * first as u32 / count as u32;
            scope.spawn(move || query(&mut connection, prompts, interval, offset))
        });
        let asking: Vec<_> = asking.collect();
        let mut latencies = Vec::new();
        for one in asking {
            latencies.extend(one.join().map_err(|_| anyhow!("a client's thread panicked"))??);
        }
        ensure!(!latencies.is_empty(), "the service answered no query");
        latencies.sort_unstable();
        Ok(latencies)
    })
}

/// Queries of one connection. With an interval, each latency is measured from the query's scheduled time, so a slow answer
/// also delays the next queries.
fn query<'p>(
    connection: &mut Connection,
    prompts: impl Iterator<Item = &'p Prepared>,
    interval: Option<Duration>,
    offset: Duration,
) -> Result<Vec<Duration>> {
    let started = Instant::now() + offset;
    let measured = started + WARM_UP;
    let mut latencies = Vec::new();
    let mut due = started;
    for prompt in prompts {
        let now = Instant::now();
        match interval {
            Some(interval) => {
                due += interval;
                std::thread::sleep(due.saturating_duration_since(now));
            }
            None => due = now,
        }
        connection.send(prompt)?;
        let answered = Instant::now();
        if answered >= measured + DURATION {
            break;
        }
        if answered >= measured {
            latencies.push(answered - due);
        }
    }
    Ok(latencies)
}

/// Stores and removes further sequences, `events` events a second, until `stop` is set; returns the actual rate. At the
/// end the engines hold the same blocks as before.
fn publish(engines: &mut Engines, events: f64, stop: &AtomicBool) -> Result<f64> {
    let shape = Shape::SINGLE;
    let turns: Vec<Vec<Vec<u8>>> = (0..ENGINES)
        .map(|engine| {
            let numbers = (HELD.sequences..).take(TURN_SEQUENCES);
            let sequences: Vec<_> = numbers.map(|number| Sequence { engine, number }).collect();
            let stored = sequences.iter().flat_map(|sequence| sequence.stored(shape));
            stored.chain(sequences.iter().flat_map(|sequence| sequence.removed(shape))).collect()
        })
        .collect();
    let count = turns.first().context("there are engines")?.len();
    let per_tick = events * TICK.as_secs_f64() / (ENGINES * shape.events_per_batch) as f64;
    let started = Instant::now();
    let first = engines.messages();
    let (mut owed, mut ticks, mut at) = (0.0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        ticks += 1;
        std::thread::sleep((started + TICK * ticks).saturating_duration_since(Instant::now()));
        owed += per_tick;
        while owed >= 1.0 {
            owed -= 1.0;
            engines.publish_each(|engine| turns[engine][at % count].clone())?;
            at += 1;
        }
    }
    let rate = (engines.messages() - first) as f64 * shape.events_per_batch as f64 / started.elapsed().as_secs_f64();
    while at % count != 0 {
        engines.publish_each(|engine| turns[engine][at % count].clone())?;
        at += 1;
    }
    Ok(rate)
}

/// Sequences that are stored and then removed in one turn.
const TURN_SEQUENCES: usize = 16;
