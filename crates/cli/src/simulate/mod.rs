//! `flash-indexer simulate`: engines for people without a GPU.

mod recorded;
mod service;
mod workload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use flash_indexer_sim::{Publisher, PublisherOptions, ReplayFraming};
use flash_indexer_wire::Encoding;
use indicatif::{ProgressBar, ProgressStyle};

use self::service::Service;
pub(crate) use self::workload::reusable_tokens;
use crate::stop::StopFlag;

/// Be one or more engines: play a recorded stream, or simulate caches under a workload.
///
/// Every engine publishes live batches on a PUB socket and replays recent ones from a ROUTER socket,
/// as vLLM does. With --connect it connects to the service, and is listed there by the name in its topic. Without --recording or --trace the workload is made up: conversations of many turns
/// over shared system prompts, the same for the same --seed.
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

    /// Pace, as a multiple of the original; 0 is as fast as it goes.
    #[arg(long, default_value_t = 0.0)]
    speed: f64,

    /// Address that the engines bind.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Port of the first engine's live batches; further engines take the following ports. 0 takes free ones.
    #[arg(long, default_value_t = 5557)]
    port: u16,

    /// Port of the first engine's replay; further engines take the following ports. 0 takes free ones.
    #[arg(long, default_value_t = 6557)]
    replay_port: u16,

    /// Connect every engine to this address, where a service waits for engines (`serve --listen-events`), instead of
    /// binding its own; topics name the pods 1, 2, … and --model-name. Replays are bound.
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

    /// Stop after so many requests [default: the whole trace, or 1000 made-up requests].
    #[arg(long, conflicts_with = "recording")]
    requests: Option<usize>,

    /// Changes every token and every choice of the workload.
    #[arg(long, default_value_t = 1, conflicts_with = "recording")]
    seed: u64,

    /// Seed of block hashes, as PYTHONHASHSEED is for vLLM.
    #[arg(long, default_value = "0", conflicts_with = "recording")]
    hash_seed: String,

    /// How events are written.
    #[arg(long, value_enum, default_value_t = EncodingName::Map, conflicts_with = "recording")]
    encoding: EncodingName,

    /// Register the engines with this service before the first request, and unregister them after the last.
    #[arg(long, value_name = "URL")]
    register: Option<String>,

    /// Model to register as, and of topics with --connect.
    #[arg(long, default_value = "simulated")]
    model_name: String,

    /// Tenant to register as.
    #[arg(long, default_value = "default", requires = "register")]
    tenant_id: String,

    /// Ask the service before every request what it predicts, and compare with what the engine had.
    #[arg(long, requires = "register")]
    verify: bool,

    /// Keep the engines up, and registered, after the last request until Ctrl-C.
    #[arg(long)]
    stay: bool,

    /// Seconds to wait for somebody to listen to each engine before the first request.
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

impl EncodingName {
    fn encoding(self) -> Encoding {
        match self {
            Self::Map => Encoding::Map,
            Self::Array => Encoding::Array,
        }
    }
}

/// The topic that simulated engines publish under.
const TOPIC: &[u8] = b"kv-events";

pub(crate) fn run(arguments: &SimulateArguments) -> Result<()> {
    if arguments.speed < 0.0 || !arguments.speed.is_finite() {
        bail!("--speed must be a number from 0 up");
    }
    let stop = StopFlag::on_signal()?;
    match &arguments.recording {
        Some(path) => recorded::run(arguments, path, &stop),
        None => workload::run(arguments, &stop),
    }
}

impl SimulateArguments {
    /// The sockets of engine `number`, counted from zero, which is registered as `instance`.
    fn publisher(&self, number: u16, instance: u64, topic: Vec<u8>, framing: ReplayFraming) -> Result<Publisher> {
        let address = |port: u16| match port {
            0 => Ok(format!("tcp://{}:*", self.host)),
            port => {
                let port = port.checked_add(number).context("the engines need ports above 65535: choose lower ones")?;
                Ok::<_, anyhow::Error>(format!("tcp://{}:{port}", self.host))
            }
        };
        let (replay_endpoint, on_loopback) = (address(self.replay_port)?, PublisherOptions::on_loopback());
        Ok(match &self.connect {
            None => Publisher::bind(PublisherOptions {
                endpoint: address(self.port)?,
                replay_endpoint,
                topic,
                framing,
                ..on_loopback
            })?,
            Some(endpoint) => Publisher::connect(PublisherOptions {
                endpoint: endpoint.clone(),
                replay_endpoint,
                topic: format!("kv@{instance}@{}", self.model_name).into_bytes(),
                framing,
                ..on_loopback
            })?,
        })
    }

    /// What an engine is registered with.
    fn endpoint<'p>(&self, publisher: &'p Publisher) -> &'p str {
        if self.connect.is_some() { "bound" } else { publisher.endpoint() }
    }

    fn service(&self) -> Option<Service> {
        let url = self.register.as_deref()?;
        Some(Service::new(url, &self.model_name, &self.tenant_id))
    }

    /// Waits until somebody listens to every engine.
    fn wait_for_listeners<'p>(
        &self,
        publishers: impl IntoIterator<Item = &'p Publisher>,
        stop: &StopFlag,
    ) -> Result<()> {
        for publisher in publishers {
            let endpoint = publisher.endpoint();
            if self.register.is_none() {
                let replay = publisher.replay_endpoint();
                let way = if self.connect.is_some() { "publishing to" } else { "publishing on" };
                println!("{way} {endpoint}, replaying from {replay}: waiting for a listener");
            }
            let start = Instant::now();
            while !publisher.wait_for_subscriber(Duration::from_secs_f64(LONGEST_SLEEP_S))? {
                if stop.is_raised() {
                    bail!("stopped before anybody listened");
                }
                if start.elapsed() >= Duration::from_secs(self.wait_seconds) {
                    bail!("nobody listened to {endpoint} within {} s: register it with a service", self.wait_seconds);
                }
            }
        }
        Ok(())
    }

    /// Keeps everything as it is until Ctrl-C, if that was asked for.
    fn stay(&self, stop: &StopFlag) {
        if self.stay && !stop.is_raised() {
            println!("staying up: Ctrl-C ends");
            stop.wait();
        }
    }
}

/// Lets time pass as in the original, or not at all.
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

    /// Waits until `at_ms` of the original's time; fails when the run should end.
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

/// A sleeping engine notices within this time that it should end.
const LONGEST_SLEEP_S: f64 = 0.1;

/// A bar on standard error, where it is a terminal.
pub(crate) fn progress(total: usize, unit: &str) -> ProgressBar {
    let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {unit}  {{elapsed}} (left {{eta}})  {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is valid");
    ProgressBar::new(total as u64).with_style(style)
}

/// A part of a whole, in percent; of nothing, nothing.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}
