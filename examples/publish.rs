//! An engine that publishes its cache events to a running service, as vLLM does.
//!
//! Start the service with `flash-indexer serve --block-size 4 --model-name demo`, then run this and ask:
//! `curl localhost:8090/query -d '{"model_name": "demo", "token_ids": [1,2,3,4,5,6,7,8]}'`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use flash_indexer_core::SequenceHash;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::json;

const SERVICE: &str = "http://127.0.0.1:8090";

fn main() -> Result<()> {
    // A PUB socket for live messages, and a ROUTER that replays recent ones.
    let publisher = Publisher::bind(PublisherOptions::on_loopback())?;
    let registration = json!({
        "instance_id": 1, "model_name": "demo", "block_size": 4,
        "endpoint": publisher.endpoint(), "replay_endpoint": publisher.replay_endpoint(),
    });
    ureq::post(format!("{SERVICE}/register")).content_type("application/json").send(registration.to_string())?;
    ensure!(publisher.wait_for_subscriber(Duration::from_secs(10))?, "the service does not subscribe");

    // One batch a message, numbered from 0 without gaps: two blocks of four tokens, the second after the first.
    let stored = EngineEvent::Stored(BlockStored {
        block_hashes: vec![SequenceHash(0xA1), SequenceHash(0xA2)],
        token_ids: TokenIds::Plain((1..=8).collect()),
        block_size: 4,
        ..BlockStored::default()
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    publisher.publish(0, &encode_batch(now, &[stored], None, Encoding::Map))?;
    println!("published two blocks; press Ctrl-C to end the engine");
    loop {
        std::thread::park();
    }
}
