//! Engines that publish at the rate at which the service applies their batches.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flash_indexer_sim::{Publisher, PublisherOptions};
use serde_json::{Value, json};

use super::client::{Connection, Prepared};
use super::content::{BLOCK_TOKENS, SEQUENCE_BLOCKS, Sequence, Shape, cleared};
use super::program::Program;

/// Engines of the fleet, each with one rank.
pub(crate) const ENGINES: usize = 4;
/// Bytes and messages in flight: the service is never idle, and its queues stay short.
const AHEAD_BYTES_MAX: usize = 32 << 20;
const AHEAD_MESSAGES_MAX: usize = 1 << 14;
/// Interval of polling the service's position.
const POLL: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const MODEL: &str = "bench";

/// The connected engines and their batches.
pub(super) struct Engines {
    publishers: Vec<Publisher>,
    connection: Connection,
    /// Batches of each engine that fill its cache.
    batches: Vec<Vec<Vec<u8>>>,
    shape: Shape,
    /// Messages that each engine has published.
    published: u64,
}

/// Times of a burst, measured from its first message.
pub(super) struct Burst {
    /// Until the last message was published.
    pub(super) published: Duration,
    /// Until all messages are visible to queries.
    pub(super) applied: Duration,
}

impl Engines {
    /// Encodes the batches, and registers the engines with the service.
    pub(super) fn register(program: &Program, shape: Shape) -> Result<Self> {
        let mut connection = program.connect()?;
        let mut publishers = Vec::new();
        for engine in 0..ENGINES {
            let publisher = Publisher::bind(PublisherOptions::on_loopback())?;
            let registration = json!({
                "instance_id": engine + 1,
                "endpoint": publisher.endpoint(),
                "model_name": MODEL,
                "block_size": BLOCK_TOKENS,
            });
            connection.send(&Prepared::post("/register", &registration)?)?;
            ensure!(publisher.wait_for_subscriber(PATIENCE)?, "the service does not listen to engine {engine}");
            publishers.push(publisher);
        }
        let of_engine = |engine| (0..shape.sequences).flat_map(move |number| Sequence { engine, number }.stored(shape));
        let batches = (0..ENGINES).map(|engine| of_engine(engine).collect()).collect();
        Ok(Self { publishers, connection, batches, shape, published: 0 })
    }

    pub(super) fn blocks(&self) -> usize {
        ENGINES * self.shape.sequences * SEQUENCE_BLOCKS
    }

    pub(super) fn events(&self) -> usize {
        self.blocks() / self.shape.blocks_per_event
    }

    pub(super) fn bytes(&self) -> usize {
        self.batches.iter().flatten().map(Vec::len).sum()
    }

    /// Messages that all engines together have published.
    pub(super) fn messages(&self) -> u64 {
        self.published * ENGINES as u64
    }

    /// Publishes all batches and waits until they are visible to queries. Returns the time taken; fails if a message was lost.
    pub(super) fn fill(&mut self, program: &Program) -> Result<Duration> {
        let started = Instant::now();
        let mut ahead: VecDeque<(u64, usize)> = VecDeque::new();
        let mut ahead_bytes = 0;
        for at in 0..self.batches[0].len() {
            let turn: Vec<&[u8]> = self.batches.iter().map(|batches| batches[at].as_slice()).collect();
            let bytes = turn.iter().map(|batch| batch.len()).sum();
            for (publisher, batch) in self.publishers.iter().zip(turn) {
                publish(publisher, self.published, batch)?;
            }
            ahead.push_back((self.published, bytes));
            ahead_bytes += bytes;
            self.published += 1;
            while ahead_bytes > AHEAD_BYTES_MAX || ahead.len() * ENGINES > AHEAD_MESSAGES_MAX {
                let taken = applied_messages(&self.connection.workers()?)?;
                let waited_for = ahead.len();
                while let Some(&(message, bytes)) = ahead.front()
                    && message < taken
                {
                    ahead.pop_front();
                    ahead_bytes -= bytes;
                }
                if ahead.len() == waited_for {
                    std::thread::sleep(POLL);
                }
            }
        }
        self.wait()?;
        let took = started.elapsed();
        self.check(program, self.shape.sequences * SEQUENCE_BLOCKS)?;
        Ok(took)
    }

    /// Publishes all batches without waiting for the service, then waits until they are visible to queries. Fails if a message was lost.
    pub(super) fn burst(&mut self, program: &Program) -> Result<Burst> {
        let started = Instant::now();
        for at in 0..self.batches[0].len() {
            for (publisher, batches) in self.publishers.iter().zip(&self.batches) {
                publish(publisher, self.published, &batches[at])?;
            }
            self.published += 1;
        }
        let published = started.elapsed();
        self.wait()?;
        let applied = started.elapsed();
        self.check(program, self.shape.sequences * SEQUENCE_BLOCKS)?;
        Ok(Burst { published, applied })
    }

    /// Publishes one batch of each engine.
    pub(super) fn publish_each(&mut self, batch: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        for (engine, publisher) in self.publishers.iter().enumerate() {
            publish(publisher, self.published, &batch(engine))?;
        }
        self.published += 1;
        Ok(())
    }

    /// Drops every cache.
    pub(super) fn clear(&mut self, program: &Program) -> Result<()> {
        self.publish_each(|_| cleared())?;
        self.wait()?;
        self.check(program, 0)
    }

    /// Waits until all published messages are in the index.
    pub(super) fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        while applied_messages(&self.connection.workers()?)? < self.published {
            ensure!(started.elapsed() < PATIENCE, "the service has not applied all batches");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Checks that every engine's stream is `exact` and that the index holds `blocks` blocks of each.
    pub(super) fn check(&mut self, program: &Program, blocks: usize) -> Result<()> {
        let workers = self.connection.workers()?;
        for listener in listeners(&workers)? {
            let is_whole = listener["gaps"] == 0 && listener["trust"] == "exact" && listener["rejected"] == json!({});
            ensure!(is_whole, "a stream has gaps or rejections: {listener}");
        }
        let nothing = Prepared::post("/query", &json!({ "model_name": MODEL, "token_ids": [] }))?;
        let answer: Value = serde_json::from_slice(program.connect()?.send(&nothing)?)?;
        for engine in 1..=ENGINES {
            let held = &answer["tree_sizes"][engine.to_string()]["0"];
            ensure!(*held == json!(blocks), "engine {engine} has {blocks} blocks, the index {held}");
        }
        Ok(())
    }
}

fn publish(publisher: &Publisher, sequence: u64, batch: &[u8]) -> Result<()> {
    Ok(publisher.publish_frames(&[b"kv-events".as_slice(), &sequence.to_be_bytes(), batch])?)
}

/// Number of each engine's messages that are visible to queries, the lowest of all engines.
fn applied_messages(workers: &Value) -> Result<u64> {
    let taken =
        listeners(workers)?.into_iter().map(|listener| listener["last_seq"].as_u64().map_or(0, |last| last + 1));
    taken.min().context("no engine is registered")
}

fn listeners(workers: &Value) -> Result<Vec<&Value>> {
    let workers = workers.as_array().context("workers are a list")?;
    Ok(workers.iter().map(|worker| &worker["listeners"]["0"]).collect())
}
