//! `flash-indexer simulate`: engines without a GPU.

mod recorded;
mod service;
mod workload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use flash_indexer_sim::{Publisher, PublisherOptions, ReplayFraming};

use self::service::Service;
use crate::stop::StopFlag;
use flash_indexer_commands::TlsArguments;

/// Run simulated engines: play a recorded stream, or simulate caches under a workload.
///
/// Every engine publishes live batches on a PUB socket and replays recent ones from a ROUTER socket, as vLLM does. With
/// --connect it connects to the service, which identifies it by its topic. Without --recording or --trace the workload
/// is synthetic: conversations of many turns over shared system prompts, equal for equal --seed.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer simulate --register http://127.0.0.1:8090 --verify --requests 1000
  flash-indexer simulate --recording stream.jsonl --register http://127.0.0.1:8090 --verify
  flash-indexer simulate --trace conversation_trace.jsonl --engines 8 --blocks 32768
  flash-indexer simulate --connect tcp://127.0.0.1:5557 --stay")]
pub(crate) struct SimulateArguments {
    /// Play this stream, recorded from a real engine.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    recording: Option<PathBuf>,

    /// Serve the requests of this trace (Mooncake's JSON lines).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Speed, as a multiple of the original; 0 is unlimited.
    #[arg(long, default_value_t = 0.0)]
    speed: f64,

    /// Address that the engines bind.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Port of the first engine's live batches; further engines use the following ports. 0 picks free ones.
    #[arg(long, default_value_t = 5557)]
    port: u16,

    /// Port of the first engine's replay; further engines use the following ports. 0 picks free ones.
    #[arg(long, default_value_t = 6557)]
    replay_port: u16,

    /// Connect every engine to this address of a service (`serve --listen-events`), instead of binding a port. The
    /// topics contain the pod names 1, 2, … and --model-name. Replay ports are bound.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "port")]
    connect: Option<String>,

    /// Engines to simulate.
    #[arg(long, default_value_t = 4, conflicts_with = "recording", value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,

    /// Blocks of each engine's cache.
    #[arg(long, default_value_t = 16_384, conflicts_with = "recording", value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,

    /// Tokens in a block.
    #[arg(long, default_value_t = 64, conflicts_with = "recording", value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,

    /// Number of requests to serve [default: the whole trace, or 1000 synthetic requests].
    #[arg(long, conflicts_with = "recording")]
    requests: Option<usize>,

    /// Seed of the workload's tokens and choices.
    #[arg(long, default_value_t = 1, conflicts_with = "recording")]
    seed: u64,

    /// Seed of block hashes, as PYTHONHASHSEED is for vLLM.
    #[arg(long, default_value = "0", conflicts_with = "recording")]
    hash_seed: String,

    /// Encoding of events.
    #[arg(long, value_enum, default_value_t = EncodingName::Map, conflicts_with = "recording")]
    encoding: EncodingName,

    /// Register the engines with this service before the first request, and unregister them after the last.
    #[arg(long, value_name = "URL")]
    register: Option<String>,

    #[command(flatten)]
    tls: TlsArguments,

    /// Model of the registration, and of topics with --connect.
    #[arg(long, default_value = "simulated")]
    model_name: String,

    /// Tenant of the registration.
    #[arg(long, default_value = "default", requires = "register")]
    tenant_id: String,

    /// Query the service before every request, and compare its prediction with the engine's cache.
    #[arg(long, requires = "register")]
    verify: bool,

    /// Keep the engines running and registered after the last request, until Ctrl-C.
    #[arg(long)]
    stay: bool,

    /// Seconds to wait for a subscriber of each engine before the first request.
    #[arg(long, default_value_t = 60)]
    wait_seconds: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum EncodingName {
    /// Maps, as vLLM 0.24 to 0.32.
    Map,
    /// Arrays, as vLLM 0.23.
    Array,
}

/// The topic that simulated engines publish under.
const TOPIC: &[u8] = b"kv-events";

pub(crate) fn run(arguments: &SimulateArguments) -> Result<()> {
    ensure!(arguments.speed >= 0.0 && arguments.speed.is_finite(), "--speed must be a number from 0 up");
    let stop = StopFlag::on_signal()?;
    match &arguments.recording {
        Some(path) => recorded::run(arguments, path, &stop),
        None => workload::run(arguments, &stop),
    }
}

impl SimulateArguments {
    /// Opens the sockets of engine `number`, counted from zero, which is registered as `instance`.
    fn publisher(&self, number: u16, instance: u64, topic: Vec<u8>, framing: ReplayFraming) -> Result<Publisher> {
        let address = |port: u16| match port {
            0 => Ok(format!("tcp://{}:*", self.host)),
            port => {
                let port = port.checked_add(number).context("the engines' ports exceed 65535; choose lower ones")?;
                Ok::<_, anyhow::Error>(format!("tcp://{}:{port}", self.host))
            }
        };
        let replay_endpoint = address(self.replay_port)?;
        let options = PublisherOptions { replay_endpoint, topic, framing, ..PublisherOptions::on_loopback() };
        Ok(match &self.connect {
            None => Publisher::bind(PublisherOptions { endpoint: address(self.port)?, ..options })?,
            Some(endpoint) => {
                let (endpoint, topic) = (endpoint.clone(), format!("kv@{instance}@{}", self.model_name).into_bytes());
                Publisher::connect(PublisherOptions { endpoint, topic, ..options })?
            }
        })
    }

    /// The endpoint that an engine is registered with.
    fn endpoint<'p>(&self, publisher: &'p Publisher) -> &'p str {
        if self.connect.is_some() { "bound" } else { publisher.endpoint() }
    }

    fn service(&self) -> Result<Option<Service>> {
        let Some(url) = &self.register else { return Ok(None) };
        Ok(Some(Service::new(self.tls.client(url)?, &self.model_name, &self.tenant_id)))
    }

    /// Waits until every engine has a subscriber.
    fn wait_for_subscribers<'p>(
        &self,
        publishers: impl IntoIterator<Item = &'p Publisher>,
        stop: &StopFlag,
    ) -> Result<()> {
        for publisher in publishers {
            let endpoint = publisher.endpoint();
            if self.register.is_none() {
                let replay = publisher.replay_endpoint();
                let direction = if self.connect.is_some() { "publishing to" } else { "publishing on" };
                println!("{direction} {endpoint}, replaying from {replay}: waiting for a subscriber");
            }
            let start = Instant::now();
            while !publisher.wait_for_subscriber(Duration::from_secs_f64(LONGEST_SLEEP_S))? {
                ensure!(!stop.is_raised(), "stopped before the first subscription");
                ensure!(
                    start.elapsed() < Duration::from_secs(self.wait_seconds),
                    "no subscriber of {endpoint} within {} s; register the engine with a service",
                    self.wait_seconds
                );
            }
        }
        Ok(())
    }

    /// With `--stay`, waits for Ctrl-C.
    fn stay(&self, stop: &StopFlag) {
        if self.stay && !stop.is_raised() {
            println!("staying up until Ctrl-C");
            stop.wait();
        }
    }
}

/// Waits between requests or messages, as in the original.
struct Pace {
    speed: f64,
    start: Instant,
    first_ms: Option<u64>,
    stop: StopFlag,
}

impl Pace {
    fn new(speed: f64, stop: &StopFlag) -> Self {
        Self { speed, start: Instant::now(), first_ms: None, stop: stop.clone() }
    }

    /// Waits until `at_ms` of the original's time; fails when the run is stopped.
    fn wait_for(&mut self, at_ms: u64) -> Result<()> {
        let first_ms = *self.first_ms.get_or_insert(at_ms);
        while !self.stop.is_raised() {
            let elapsed_ms = self.start.elapsed().as_secs_f64() * 1e3 * self.speed;
            let left_ms = at_ms.saturating_sub(first_ms) as f64 - elapsed_ms;
            if self.speed == 0.0 || left_ms <= 0.0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_secs_f64((left_ms / self.speed / 1e3).min(LONGEST_SLEEP_S)));
        }
        bail!("stopped before the end")
    }
}

/// Longest sleep between two checks of the stop flag, in seconds.
const LONGEST_SLEEP_S: f64 = 0.1;
