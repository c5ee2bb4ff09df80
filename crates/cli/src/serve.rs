//! `flash-indexer serve`: runs the service.

mod access_options;
mod demo;
mod discovery_options;
mod endpoint_picker_options;
#[cfg(feature = "hub")]
mod hub_options;
mod inbound_options;
mod shared_store_options;
mod tokenizer_options;
mod trace_options;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::run::{RunIndex, RunLimits};
use flash_indexer_server::{
    EngineNetwork, EngineNetworks, EngineTemplate, IndexerOptions, InstanceId, MetricNames, ModelKey, PeerUrl,
    Registration, Server, ServerOptions, SnapshotOptions, TierWeights,
};
use tracing::{debug, info, warn};

use self::access_options::AccessArguments;
use self::demo::DemoArguments;
use self::discovery_options::DiscoveryArguments;
use self::endpoint_picker_options::EndpointPickerArguments;
use self::inbound_options::InboundArguments;
use self::shared_store_options::SharedStoreArguments;
use self::tokenizer_options::TokenizerArguments;
use self::trace_options::TraceArguments;
use crate::log::LogFormat;
use crate::parsers::{at_least_one, byte_size, queue_bytes};
use crate::stop;

/// Run the service: listen to engines, answer queries over HTTP.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer serve --demo
  flash-indexer serve --block-size 16 --model-name llama-3-8b --workers \"1=tcp://gpu-1:5557,2:1=tcp://gpu-2:5558\"
  flash-indexer serve --block-size 16 --workers \"1=tcp://gpu-1:5557|replay=tcp://gpu-1:6557\"
  flash-indexer serve --listen-events tcp://0.0.0.0:5557 --insecure
  flash-indexer serve --host 0.0.0.0 --token-file tokens.toml --tls-cert tls.crt --tls-key tls.key
  flash-indexer serve --peers http://replica-b:8090,http://replica-c:8090
  flash-indexer serve --state-dir /var/lib/flash-indexer
  flash-indexer serve --load fleet.zst
  flash-indexer serve --discovery-file engines.json --block-size 16 --model-name llama-3-8b
  flash-indexer serve --discovery-dns vllm.default.svc.cluster.local:5557 --discovery-replay-port 6557 --block-size 16
  flash-indexer serve --discovery-kubernetes app=vllm --block-size 16
  flash-indexer serve --redis rediss://indexer@cache:6379 --redis-ca ca.pem
  flash-indexer serve --otlp-endpoint http://collector:4318

Engines can also be registered while it runs: POST /register.")]
pub(crate) struct ServeArguments {
    /// File of settings in TOML: these options by their names. Options of the command line and the environment take
    /// precedence over it. See `flash-indexer config`.
    #[arg(long, env = "FLASH_INDEXER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address to listen on; 0.0.0.0 for all. An address that other hosts reach needs --token-file, --jwt-keys, --tls-client-ca or
    /// --insecure.
    #[arg(long, env = "FLASH_INDEXER_HOST", default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 picks a free one.
    #[arg(long, env = "FLASH_INDEXER_PORT", default_value_t = 8090)]
    port: u16,

    /// Port for gRPC at the same address; 0 picks a free one. Without this option there is no gRPC.
    #[arg(long, env = "FLASH_INDEXER_GRPC_PORT", value_name = "PORT")]
    grpc_port: Option<u16>,

    /// Writer threads. The instances of a model are spread over as many of them as half of the processors, and models
    /// over all. With --memory-max each model has one.
    #[arg(long, env = "FLASH_INDEXER_THREADS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// Threads that decode messages from engines, each with its own queue; 0 for one for each processor, at most 8.
    #[arg(long, env = "FLASH_INDEXER_DECODERS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    decoders: u16,

    /// Limit of the messages from engines that are received and not applied yet, such as 512MiB; at least 64MiB. Beyond
    /// it the newest messages of the engine with the largest queue are dropped. [default: a quarter of the memory of the
    /// control group or the machine, at most 4GiB]
    #[arg(long, env = "FLASH_INDEXER_INGEST_QUEUE_BYTES", value_name = "SIZE", value_parser = queue_bytes)]
    ingest_queue_bytes: Option<usize>,

    /// Limit of the memory that the indexes of all models take together, such as 2GiB. Beyond it the least useful
    /// blocks are evicted, and answers are marked as partial.
    #[arg(long, env = "FLASH_INDEXER_MEMORY_MAX", value_name = "SIZE", value_parser = byte_size)]
    memory_max: Option<usize>,

    /// Engines to listen to from the start: instance_id[:dp_rank]=zmq_address, separated by commas. After an
    /// address, |replay=zmq_address names the engine's replay endpoint, from which missed messages are requested, as in
    /// 1=tcp://gpu-1:5557|replay=tcp://gpu-1:6557. |extra-keys says that requests use SGLang's extra_key, which its
    /// events do not carry: the rank is never exact.
    #[arg(
        long,
        env = "FLASH_INDEXER_WORKERS",
        value_delimiter = ',',
        value_name = "ID[:RANK]=ADDRESS[|replay=ADDRESS][|extra-keys]",
        requires = "block_size"
    )]
    workers: Vec<String>,

    /// Tokens in a block of the engines of --workers and of discovered engines; must equal the engines' setting.
    #[arg(long, env = "FLASH_INDEXER_BLOCK_SIZE", value_parser = clap::value_parser!(u32).range(1..))]
    block_size: Option<u32>,

    /// Model of --workers, and of discovered engines whose source names none; `default` if absent.
    #[arg(long, env = "FLASH_INDEXER_MODEL_NAME", value_parser = NonEmptyStringValueParser::new())]
    model_name: Option<String>,

    /// Tenant of --workers, and of discovered engines whose source names none.
    #[arg(long, env = "FLASH_INDEXER_TENANT_ID", default_value = ModelKey::DEFAULT_TENANT)]
    tenant_id: String,

    /// Other indexers of the fleet, separated by commas. This one starts with the index of the first that sends a dump.
    #[arg(long, env = "FLASH_INDEXER_PEERS", value_delimiter = ',', value_name = "URL")]
    peers: Vec<PeerUrl>,

    /// Seconds between comparisons with the peers, which find and repair drift; 0 turns them off.
    #[arg(long, env = "FLASH_INDEXER_PEER_CHECK_INTERVAL_S", default_value_t = 60, value_name = "SECONDS")]
    peer_check_interval_s: u64,

    /// Directory for snapshots of the index. At the start the newest undamaged one is loaded, and each engine is asked for
    /// what it has published since. One service uses a directory at a time.
    #[arg(long, env = "FLASH_INDEXER_STATE_DIR", value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,

    /// Seconds between two snapshots; one more is written at the stop.
    #[arg(long, env = "FLASH_INDEXER_STATE_INTERVAL_S", default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    state_interval_s: u64,

    /// Dump to start from when there is no snapshot and no peer sends one: see `flash-indexer dump`.
    #[arg(long, env = "FLASH_INDEXER_LOAD", value_name = "FILE")]
    load: Option<PathBuf>,

    /// Let requests, discovery sources and peers name ipc:// endpoints, which are paths of this machine. --workers is
    /// always allowed to.
    #[arg(long, env = "FLASH_INDEXER_ALLOW_IPC")]
    allow_ipc: bool,

    /// Networks of engines and peers, separated by commas, such as 10.0.0.0/8. The service connects to no engine and no peer
    /// outside, regardless of who names it. [default: all except link-local addresses and metadata services]
    #[arg(long, env = "FLASH_INDEXER_ENGINE_NETWORKS", value_delimiter = ',', value_name = "CIDR,…")]
    engine_networks: Vec<EngineNetwork>,

    /// Largest body of a request, as sent and as decompressed, in bytes.
    #[arg(long, env = "FLASH_INDEXER_BODY_BYTES_MAX", default_value = "8388608", value_parser = at_least_one::<NonZeroUsize>)]
    body_bytes_max: NonZeroUsize,

    /// Limit of the bodies of all requests that are received and not answered, such as 512MiB; at least twice
    /// --body-bytes-max. The clients of one address may have as much of it as is free, and three times as much with
    /// bodies of at most 64KiB; beyond it a request is answered with 503. All answers that clients have not read have the
    /// same limit by themselves. [default: a sixteenth of the memory of the control group or the machine, from 64MiB to 1GiB]
    #[arg(long, env = "FLASH_INDEXER_BODY_BYTES_TOTAL_MAX", value_name = "SIZE", value_parser = byte_size)]
    body_bytes_total_max: Option<usize>,

    /// Connections that may be open at a time. A further one closes the longest idle or slowest one, or waits.
    #[arg(long, env = "FLASH_INDEXER_CONNECTIONS_MAX", default_value = "4096", value_parser = at_least_one::<NonZeroUsize>)]
    connections_max: NonZeroUsize,

    /// Count how many queries reached each block during this number of seconds, for the frequencies in
    /// answers; 0 counts nothing.
    #[arg(long, env = "FLASH_INDEXER_FREQUENCY_WINDOW_S", default_value_t = 0, value_parser = clap::value_parser!(u32))]
    frequency_window_s: u32,

    /// History for explanations: stored blocks, and as many removed blocks, that are kept of each model; about
    /// 150 bytes for one of each. 0 keeps nothing.
    #[arg(long, env = "FLASH_INDEXER_HISTORY_BLOCKS_MAX", default_value_t = 16_384)]
    history_blocks_max: usize,

    /// Export some metrics a second time under the names dynamo_kvindexer_….
    #[arg(long, env = "FLASH_INDEXER_COMPAT_METRICS")]
    compat_metrics: bool,

    /// How log lines are written to standard error. FLASH_INDEXER_LOG selects them.
    #[arg(long, env = "FLASH_INDEXER_LOG_FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,

    /// Weight of a block in scores, by the tier that holds it.
    #[arg(
        long,
        env = "FLASH_INDEXER_TIER_WEIGHTS",
        default_value = "gpu=1.0,cpu=0.8,disk=0.5,external=0.4",
        value_name = "TIER=WEIGHT,…"
    )]
    tier_weights: TierWeights,

    /// How long predicted blocks count for the instance that a router sent a prompt to (POST /predict). A router can
    /// give another time with each prediction.
    #[arg(long, env = "FLASH_INDEXER_PREDICTION_TTL_MS", default_value_t = 2_000, value_name = "MILLISECONDS")]
    prediction_ttl_ms: u64,

    /// Milliseconds for which an instance that is registered with `"events": "none"` is taken to hold a prompt that was routed to
    /// it, unless the request names another time
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), env = "FLASH_INDEXER_ROUTED_TTL_MS")]
    routed_ttl_ms: u64,

    #[command(flatten)]
    tokenization: TokenizerArguments,

    #[command(flatten)]
    access: AccessArguments,

    #[command(flatten)]
    endpoint_picker: EndpointPickerArguments,

    #[command(flatten)]
    inbound: InboundArguments,

    #[command(flatten)]
    store: SharedStoreArguments,

    #[command(flatten)]
    traces: TraceArguments,

    #[command(flatten)]
    demo: DemoArguments,

    #[command(flatten)]
    discovery: DiscoveryArguments,
}

pub(crate) fn run(arguments: ServeArguments) -> Result<()> {
    flash_indexer_server::use_random_hash_key();
    let options = arguments.options()?;
    if let Some(file) = &arguments.config {
        info!(file = %file.display(), "read the configuration file");
    }
    raise_open_files_limit();
    stop::end_within(stop::END_DEADLINE)?;
    arguments.tokenization.warn_of_missing_paths();
    let runtime = tokio::runtime::Runtime::new().context("failed to start threads for HTTP")?;
    let result = runtime.block_on(async {
        let mut stopped = pin!(stop::signal()?);
        stop::survive_file_size_limit()?;
        let server = Server::start(options).await?;
        info!("listening on {}", server.url());
        if let Some(address) = server.grpc_address() {
            info!("listening for gRPC on {address}");
        }
        if let Some(address) = server.endpoint_picker_address() {
            info!("listening for gateways on {address}");
        }
        let started = tokio::select! {
            recovered = server.recovered() => Some(recovered),
            () = &mut stopped => None,
        };
        match started {
            Some(Ok(())) if arguments.demo.is_enabled() => demo::run(&arguments.demo, &server, stopped).await?,
            Some(Ok(())) => stopped.await,
            Some(Err(_)) | None => {}
        }
        info!("stopping");
        server.stop().await;
        started.unwrap_or(Ok(())).map_err(Into::into)
    });
    // A client that does not read its response must not keep the process alive.
    runtime.shutdown_timeout(LEFTOVER_DEADLINE);
    result
}

/// Longest wait for requests that the server has already cut off.
const LEFTOVER_DEADLINE: Duration = Duration::from_secs(1);

/// Raises the soft limit of open files. A listener takes about six file descriptors and a connection one, so the usual
/// soft limit of 1,024 is reached with 170 engines.
fn raise_open_files_limit() {
    match rlimit::increase_nofile_limit(OPEN_FILES_WANTED) {
        Ok(limit) => debug!(limit, "raised the limit of open files"),
        Err(error) => warn!(%error, "failed to raise the limit of open files; raise it with ulimit -n"),
    }
}

const OPEN_FILES_WANTED: u64 = 1 << 17;

/// A time in seconds, which is absent if it is 0.
fn seconds_unless_zero(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// Rejects a text that can be neither an address nor a name. Names are resolved only when the service starts.
fn check_host(option: &str, host: &str) -> Result<()> {
    let (address, _zone) = host.split_once('%').unwrap_or((host, ""));
    let is_address = address.parse::<IpAddr>().is_ok();
    let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) && !host.is_empty();
    ensure!(
        is_address || is_name,
        "{option} {host:?} is neither an address nor the name of a host; give one such as 127.0.0.1, or 0.0.0.0 for all"
    );
    Ok(())
}

impl ServeArguments {
    /// Runs the checks of the start before it binds an address, and logs the same warnings.
    pub(crate) fn check(&self) -> Result<()> {
        self.options()?.check()?;
        self.tokenization.warn_of_missing_paths();
        Ok(())
    }

    /// The server's options; fails if a value is wrong.
    pub(crate) fn options(&self) -> Result<ServerOptions> {
        let registrations = self.workers.iter().map(|worker| self.registration(worker));
        check_host("--host", &self.host)?;
        self.access.check("--host", &self.host)?;
        self.access.check_events(&self.inbound.listen_events)?;
        ensure!(
            self.body_bytes_total_max.is_none_or(|total| total / 2 >= self.body_bytes_max.get()),
            "--body-bytes-total-max: give at least twice --body-bytes-max, {} bytes",
            2 * self.body_bytes_max.get()
        );
        let endpoint_picker = self.endpoint_picker.options(self.model_name(), &self.tenant_id);
        if let Some(picker) = &endpoint_picker {
            self.access.check("--endpoint-picker-bind", &picker.address.ip().to_string())?;
        }
        Ok(ServerOptions {
            host: self.host.clone(),
            port: self.port,
            grpc_port: self.grpc_port,
            endpoint_picker,
            body_bytes_max: self.body_bytes_max.get(),
            body_bytes_total_max: self.body_bytes_total_max,
            connections_max: self.connections_max.get(),
            indexer: IndexerOptions {
                writer_threads: self.threads.into(),
                decoder_threads: (self.decoders > 0).then_some(self.decoders.into()),
                ingest_queue_bytes_max: self.ingest_queue_bytes,
                history_blocks_max: self.history_blocks_max,
                allow_ipc: self.allow_ipc,
                curve: self.access.curve(self.inbound.is_enabled())?,
                engine_networks: EngineNetworks::new(self.engine_networks.iter().copied()),
                memory_max: self.memory_max()?,
                store: self.store.options()?,
                use_window: seconds_unless_zero(self.frequency_window_s.into()),
                metric_names: if self.compat_metrics { MetricNames::OwnAndCompat } else { MetricNames::Own },
                tier_weights: self.tier_weights,
                prediction_ttl: Duration::from_millis(self.prediction_ttl_ms),
                routed_ttl: Duration::from_millis(self.routed_ttl_ms),
                tokenization: self.tokenization.options()?,
                prompt_text_bytes: self.tokenization.prompt_text_bytes,
                ..IndexerOptions::default()
            },
            pods: self.inbound.options(),
            registrations: registrations.collect::<Result<_>>()?,
            token_file: self.access.token_file.clone(),
            jwt: self.access.jwt(),
            limits_file: self.access.limits_file.clone(),
            tls: self.access.tls(),
            peer_credentials: self.access.peer_credentials(),
            peers: self.peers.clone(),
            peer_check_interval: seconds_unless_zero(self.peer_check_interval_s),
            snapshots: self
                .state_dir
                .clone()
                .map(|directory| SnapshotOptions { directory, interval: Duration::from_secs(self.state_interval_s) }),
            load: self.load.clone(),
            traces: self.traces.options(),
            discovery: self.discovery.options(self.model_name.clone(), self.tenant_id.clone(), self.block_size()),
            ..ServerOptions::default()
        })
    }

    /// Tokens in a block of the engines of `--workers` and of discovered engines.
    fn block_size(&self) -> Option<BlockSize> {
        self.block_size.and_then(BlockSize::new)
    }

    /// Model of engines for which no other model is named.
    fn model_name(&self) -> &str {
        self.model_name.as_deref().unwrap_or(EngineTemplate::MODEL_NAME)
    }

    /// The memory limit of all indexes; fails if one index would not fit.
    fn memory_max(&self) -> Result<Option<usize>> {
        if let Some(bytes) = self.memory_max {
            RunIndex::bounded(RunLimits::default(), bytes).context("--memory-max")?;
        }
        Ok(self.memory_max)
    }

    /// Parses one entry of `--workers`.
    fn registration(&self, worker: &str) -> Result<Registration> {
        let form = "expected instance_id[:dp_rank]=zmq_address[|replay=zmq_address][|extra-keys], such as 1=tcp://gpu-1:5557 or \
                    2:1=tcp://gpu-2:5558|replay=tcp://gpu-2:6558";
        let (name, addresses) = worker.split_once('=').ok_or_else(|| anyhow!("--workers {worker:?}: {form}"))?;
        let mut settings = addresses.split('|');
        let endpoint = settings.next().unwrap_or_default();
        let (mut replay, mut extra_keys) = (None, false);
        for setting in settings {
            match (setting, setting.strip_prefix("replay=")) {
                (_, Some(address)) if replay.is_none() => replay = Some(address),
                ("extra-keys", _) => extra_keys = true,
                _ => bail!("--workers {worker:?}: {setting:?} is not replay=zmq_address or extra-keys; {form}"),
            }
        }
        let (instance, dp_rank) = match name.rsplit_once(':') {
            None => (name, 0),
            Some((instance, rank)) => (
                instance,
                rank.parse().with_context(|| format!("--workers {worker:?}: {rank:?} is not a rank; {form}"))?,
            ),
        };
        let block_size =
            self.block_size().context("--workers needs --block-size: give the engines' block size in tokens")?;
        let instance = InstanceId::parse(instance).with_context(|| format!("--workers {worker:?}"))?;
        let model = ModelKey::new(self.model_name().to_owned(), Some(self.tenant_id.clone()));
        let mut registration = Registration::new(instance, model, endpoint, block_size);
        registration.dp_rank = DpRank(dp_rank);
        registration.options.replay_endpoint = replay.map(str::to_owned);
        registration.options.extra_keys = extra_keys;
        Ok(registration)
    }
}
