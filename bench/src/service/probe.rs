//! An engine that stores one block after the other, each timed until it is visible to queries.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flash_indexer_core::SequenceHash;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

use super::client::{Connection, Prepared};
use super::content::BLOCK_TOKENS;
use super::program::Program;
use super::sockets::LiveSockets;

/// Instance of the probe.
pub(super) const PROBE: &str = "probe";
const BETWEEN_EVENTS: Duration = Duration::from_millis(5);
/// Between two queries for an event. Queries without a pause would take a core of those that the service shares.
const BETWEEN_QUERIES: Duration = Duration::from_micros(200);
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Sequence hashes of the probe, above those of other engines.
const HASHES: u64 = 1 << 60;

pub(super) struct Probe {
    sockets: LiveSockets,
    connection: Connection,
    model: &'static str,
}

impl Probe {
    /// Registers the probe as an instance of `model`.
    pub(super) fn register(program: &Program, model: &'static str) -> Result<Self> {
        let (sockets, mut connection) = (LiveSockets::bind(1)?, program.connect()?);
        register(&mut connection, model, PROBE, &sockets.endpoints()?[0])?;
        ensure!(sockets.wait_for_subscribers(PATIENCE)? == 1, "the probe is not connected");
        Ok(Self { sockets, connection, model })
    }

    /// Publishes until `stop`. Returns the waits that were begun in each phase.
    pub(super) fn publish_until(
        mut self,
        phases: usize,
        phase: &AtomicUsize,
        stop: &AtomicBool,
    ) -> Result<Vec<Vec<Duration>>> {
        let mut taken = vec![Vec::new(); phases];
        for at in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let tokens = vec![u32::MAX - at; BLOCK_TOKENS];
            let query =
                Prepared::post("/query", &json!({ "model_name": self.model, "token_ids": tokens, "top_k": 1 }))?;
            let stored = batch(&[stored(vec![SequenceHash(HASHES | u64::from(at))], None, tokens)]);
            let (begun_in, published) = (phase.load(Ordering::Relaxed), Instant::now());
            self.sockets.publish_to(0, &[stored])?;
            loop {
                let answer: Value = serde_json::from_slice(self.connection.send(&query)?)?;
                if answer["scores"][PROBE]["0"].as_u64().is_some_and(|found| found > 0) {
                    break;
                }
                std::thread::sleep(BETWEEN_QUERIES);
                ensure!(published.elapsed() < PATIENCE, "queries do not see the probe's event");
            }
            taken[begun_in].push(published.elapsed());
            std::thread::sleep(BETWEEN_EVENTS);
        }
        Ok(taken)
    }
}

pub(super) fn register(connection: &mut Connection, model: &str, instance: &str, endpoint: &str) -> Result<()> {
    let request = json!({
        "instance_id": instance, "endpoint": endpoint, "model_name": model, "block_size": BLOCK_TOKENS,
    });
    connection.send(&Prepared::post("/register", &request)?)?;
    Ok(())
}

pub(super) fn stored(
    block_hashes: Vec<SequenceHash>,
    parent_block_hash: Option<SequenceHash>,
    tokens: Vec<u32>,
) -> EngineEvent<'static> {
    EngineEvent::Stored(BlockStored {
        block_hashes,
        parent_block_hash,
        token_ids: TokenIds::Plain(tokens),
        block_size: BLOCK_TOKENS as u32,
        medium: Some("GPU"),
        ..BlockStored::default()
    })
}

pub(super) fn batch(events: &[EngineEvent<'_>]) -> Vec<u8> {
    encode_batch(0.0, events, None, Encoding::Array)
}
