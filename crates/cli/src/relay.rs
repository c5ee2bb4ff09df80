//! `flash-indexer relay`: one engine's events, without tokens.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_curve::{Curve, CurveFiles};
use flash_indexer_relay::{HasherOptions, RelayOptions};
use flash_indexer_types::EngineKind;

use crate::parsers::one_of;
use crate::stop::StopFlag;

/// Follow an engine on its host, and publish its events with hashes instead of tokens.
///
/// Tokens, cache salts and identities of images never leave the host. The service follows the relay as it follows an engine: register
/// the addresses of --publish and --publish-replay. Run one relay for each data-parallel rank that publishes.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer relay --block-size 16 --engine tcp://127.0.0.1:5557 --publish tcp://0.0.0.0:5657
  flash-indexer relay --block-size 16 --engine tcp://127.0.0.1:5557 --engine-replay tcp://127.0.0.1:6557 --publish tcp://0.0.0.0:5657 --publish-replay tcp://0.0.0.0:6657
  flash-indexer relay --block-size 16 --engine tcp://127.0.0.1:5557 --connect --publish tcp://indexer:5557 --topic kv@gpu-1@llama

With CURVE: --curve-key relay.key_secret --curve-clients clients, where the file has the public key of the service.")]
pub(crate) struct RelayArguments {
    /// Address at which the engine publishes.
    #[arg(long, env = "FLASH_INDEXER_RELAY_ENGINE", value_name = "ADDRESS")]
    engine: String,

    /// Address at which the engine replays messages. Without it, a restart of the relay degrades the rank until the engine's cache
    /// is cleared.
    #[arg(long, env = "FLASH_INDEXER_RELAY_ENGINE_REPLAY", value_name = "ADDRESS")]
    engine_replay: Option<String>,

    /// Tokens in a block of the engine, as it is registered.
    #[arg(long, env = "FLASH_INDEXER_BLOCK_SIZE", value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,

    /// Address to publish at; with --connect, the address of --listen-events of the service.
    #[arg(long, env = "FLASH_INDEXER_RELAY_PUBLISH", value_name = "ADDRESS")]
    publish: String,

    /// Address to replay messages at.
    #[arg(
        long,
        env = "FLASH_INDEXER_RELAY_PUBLISH_REPLAY",
        value_name = "ADDRESS",
        default_value = "tcp://127.0.0.1:*"
    )]
    publish_replay: String,

    /// Connect to the service instead of listening.
    #[arg(long, requires = "topic")]
    connect: bool,

    /// Topic of the published messages [default: the engine's].
    #[arg(long)]
    topic: Option<String>,

    /// Adapter of events that name none.
    #[arg(long)]
    lora_name: Option<String>,

    /// Format of the engine's messages [default: detected].
    #[arg(long = "engine-kind", value_parser = one_of(EngineKind::ALL.map(EngineKind::as_str), EngineKind::named))]
    engine_kind: Option<EngineKind>,

    /// Requests never carry a cache salt. After missed messages, stores that follow unknown blocks are then hashed, where
    /// otherwise they are left out.
    #[arg(long)]
    no_salts: bool,

    /// Messages kept for replays.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    replay_messages_max: u32,

    /// File with the relay's CURVE key pair; `flash-indexer curve-key` makes one.
    #[arg(long, env = "FLASH_INDEXER_CURVE_KEY", value_name = "FILE")]
    curve_key: Option<PathBuf>,

    /// File with the public keys of services that may follow the relay, one on each line. With it, no other can.
    #[arg(long, env = "FLASH_INDEXER_CURVE_CLIENTS", value_name = "FILE", requires = "curve_key")]
    curve_clients: Option<PathBuf>,

    /// File with the public keys of the engine, or with --connect of the service, and their addresses: lines KEY HOST:PORT.
    #[arg(long, env = "FLASH_INDEXER_CURVE_SERVER_KEYS", value_name = "FILE", requires = "curve_key")]
    curve_server_keys: Option<PathBuf>,
}

pub(crate) fn run(arguments: &RelayArguments) -> Result<()> {
    let stop = StopFlag::on_signal()?;
    Ok(flash_indexer_relay::run(&arguments.options()?, &|| stop.is_raised())?)
}

impl RelayArguments {
    fn options(&self) -> Result<RelayOptions> {
        let curve = self.curve_key.clone().map(|key| {
            let (servers, clients) = (self.curve_server_keys.clone(), self.curve_clients.clone());
            Curve::load(&CurveFiles { key, servers, clients }).map(Arc::new)
        });
        Ok(RelayOptions {
            engine: self.engine.clone(),
            engine_replay: self.engine_replay.clone(),
            hasher: HasherOptions {
                block_size: BlockSize::new(self.block_size).context("--block-size must be at least 1")?,
                lora_name: self.lora_name.clone(),
                adapter: EngineKind::adapter(self.engine_kind),
                has_salts: !self.no_salts,
            },
            publish: self.publish.clone(),
            publish_replay: self.publish_replay.clone(),
            connects: self.connect,
            topic: self.topic.clone(),
            replay_messages_max: self.replay_messages_max.max(1) as usize,
            curve: curve.transpose()?,
        })
    }
}
