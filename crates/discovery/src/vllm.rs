//! Discovery source: the gRPC server of an engine of vLLM, which names the endpoints of the engine's events.

mod control;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_proto::vllm_control::KvEventSource;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::endpoints::{HostError, check_host};
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{EngineKind, InstanceId, masked_url};

pub use self::control::VllmError;
use self::control::{EngineDescription, describe};
use super::reconcile::Targets;
use super::report::{DiscoveredTargets, Reporter};
use super::template::{EngineTemplate, EngineTraits};

/// Hosts of a publisher that binds every address.
const WILDCARDS: [&str; 4] = ["*", "0.0.0.0", "[::]", "::"];

/// Address of an engine's gRPC server. It is the engine's instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmAddress {
    instance: InstanceId,
    host: String,
    port: u16,
}

/// The gRPC server of an engine, and the interval at which it is polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmOptions {
    /// Its address.
    pub address: VllmAddress,
    /// Time between two calls.
    pub interval: Duration,
}

impl VllmOptions {
    /// Polls every five seconds: ports may change with each start of the engine.
    #[must_use]
    pub const fn new(address: VllmAddress) -> Self {
        Self { address, interval: Duration::from_secs(5) }
    }
}

/// Text that is not the address of a gRPC server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VllmAddressError {
    /// There is no host or no port.
    #[error("{0:?} is not an address; give a host and a port, such as gpu-1:50051")]
    Malformed(String),
    /// The service does not connect to the host.
    #[error("invalid address {address:?}: {refused}")]
    Host {
        /// The address.
        address: String,
        /// The cause.
        refused: HostError,
    },
    /// The address cannot be an instance id.
    #[error("{0:?} cannot be an instance id; give another name of the host")]
    Instance(String),
}

impl FromStr for VllmAddress {
    type Err = VllmAddressError;

    fn from_str(text: &str) -> Result<Self, VllmAddressError> {
        let text = text.trim();
        let malformed = || VllmAddressError::Malformed(masked_url(text).into_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or_else(malformed)?;
        check_host(host)
            .map_err(|refused| VllmAddressError::Host { address: masked_url(text).into_owned(), refused })?;
        let instance = InstanceId::parse(text).ok().filter(|instance| instance.shared_cache().is_none());
        let instance = instance.ok_or_else(|| VllmAddressError::Instance(masked_url(text).into_owned()))?;
        Ok(Self { instance, host: host.to_owned(), port })
    }
}

impl fmt::Display for VllmAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// An engine of vLLM, as its gRPC server describes it.
#[derive(Debug, Clone, Default)]
pub struct VllmEngine {
    /// Its ranks that publish events.
    pub ranks: Vec<VllmRank>,
    /// The name by which requests name its model.
    pub model_name: Option<String>,
    /// Size of its blocks of full attention.
    pub block_size: Option<BlockSize>,
    /// Publishers that cannot be followed, with the cause.
    pub problems: Vec<String>,
}

/// A rank that publishes events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmRank {
    /// The rank.
    pub dp_rank: DpRank,
    /// Endpoint of its events.
    pub endpoint: String,
    /// Endpoint of its replays.
    pub replay_endpoint: Option<String>,
}

impl VllmEngine {
    /// Queries the engine at an address, which has to be in `networks`. Takes at most five seconds.
    ///
    /// # Errors
    ///
    /// When the engine does not answer, or does not name its endpoints.
    pub async fn ask(address: &VllmAddress, networks: &EngineNetworks) -> Result<Self, VllmError> {
        Ok(Self::of(address, describe(address, networks).await?))
    }

    fn of(address: &VllmAddress, description: EngineDescription) -> Self {
        let EngineDescription { sources, model_name, block_size } = description;
        let mut engine = Self { model_name, block_size, ..Self::default() };
        if sources.is_empty() {
            let problem = format!("{address} publishes no KV events: start the engine with --kv-events-config");
            engine.problems.push(problem);
        }
        for source in &sources {
            match endpoint_of(address, source) {
                Ok(endpoint) => engine.ranks.push(VllmRank {
                    dp_rank: DpRank(source.data_parallel_rank.unwrap_or_default()),
                    endpoint,
                    replay_endpoint: connectable(address, &source.replay_endpoint),
                }),
                Err(why) => engine.problems.push(format!("{address}: {why}")),
            }
        }
        engine
    }
}

/// Polls the server, and reports the engine's ranks.
pub(super) async fn watch(
    VllmOptions { address, interval }: VllmOptions,
    template: EngineTemplate,
    registrar: (EngineNetworks, Arc<Metrics>),
    reporter: Reporter,
) {
    let (networks, metrics) = registrar;
    loop {
        let found = VllmEngine::ask(&address, &networks).await.map_err(|error| {
            if error.is_refused() {
                metrics.limit_reached(Limit::Addresses);
            }
            error.to_string()
        });
        match found.and_then(|engine| targets(&address, engine, &template)) {
            Ok(found) => reporter.found(found),
            Err(why) => reporter.failed(format!(
                "failed to ask {address} for its KV event sources: {why}; its engine stays registered"
            )),
        }
        tokio::time::sleep(interval).await;
    }
}

/// Ranks of the engine at this address. The engine's own block size takes precedence over the template's, and the template's
/// model over the engine's.
fn targets(address: &VllmAddress, engine: VllmEngine, template: &EngineTemplate) -> Result<DiscoveredTargets, String> {
    let VllmEngine { ranks, model_name, block_size, mut problems } = engine;
    let unknown = || "its server does not name the size of its blocks: give --block-size".to_owned();
    let block_size = block_size.or(template.block_size).ok_or_else(unknown)?;
    let traits = EngineTraits {
        model_name: template.model_name.clone().or(model_name),
        block_size: Some(block_size),
        engine: Some(EngineKind::Vllm),
        ..EngineTraits::default()
    };
    let mut targets = Targets::new();
    for VllmRank { dp_rank, endpoint, replay_endpoint } in ranks {
        match template.registration(&address.instance, dp_rank, (endpoint, replay_endpoint), &traits) {
            Ok(registration) => drop(targets.insert(registration.rank_id(), registration)),
            Err(error) => problems.push(format!("{address}: {error}")),
        }
    }
    Ok(DiscoveredTargets::new(targets, problems))
}

fn endpoint_of(address: &VllmAddress, source: &KvEventSource) -> Result<String, String> {
    let KvEventSource { transport, encoding, endpoint, .. } = source;
    if transport != "zmq" || encoding != "msgpack" {
        return Err(format!(
            "a source has the transport {transport:?} and the encoding {encoding:?}, not zmq and msgpack"
        ));
    }
    connectable(address, endpoint).ok_or_else(|| format!("the endpoint {endpoint:?} is not an address with a port"))
}

/// The endpoint at which subscribers reach a publisher. A publisher that binds every address is at the host of the gRPC server.
fn connectable(address: &VllmAddress, endpoint: &str) -> Option<String> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|&port| port > 0)?;
    let host = if WILDCARDS.contains(&host) { &address.host } else { host };
    Some(format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use flash_indexer_proto::vllm_control::GetKvEventSourcesResponse;
    use prost::Message as _;

    use super::*;

    /// A response, encoded by the definition of the crate vllm-proto.
    const RESPONSE: &str = "0a450a037a6d71120d7463703a2f2f2a3a34313030311a026b7622137463703a2f2f302e302e302e303a3431303032280032076d73677061636b380140904e48a08d0650a08d060a260a037a6d7112147463703a2f2f31302e302e302e323a3431303033280132076d73677061636b";

    fn address() -> VllmAddress {
        "gpu-1:50051".parse().expect("an address")
    }

    fn found_from(sources: &[KvEventSource]) -> DiscoveredTargets {
        let template = EngineTemplate {
            model_name: Some("m".to_owned()),
            block_size: BlockSize::new(16),
            ..EngineTemplate::default()
        };
        let description = EngineDescription { sources: sources.to_vec(), ..EngineDescription::default() };
        targets(&address(), VllmEngine::of(&address(), description), &template).expect("its block size is known")
    }

    #[test]
    fn the_engines_block_size_and_the_operators_model_take_precedence() {
        let rank = VllmRank { dp_rank: DpRank(0), endpoint: "tcp://gpu-1:1".to_owned(), replay_endpoint: None };
        let named = |engine: (Option<&str>, u32), template: (Option<&str>, u32)| {
            let engine = VllmEngine {
                ranks: vec![rank.clone()],
                model_name: engine.0.map(str::to_owned),
                block_size: BlockSize::new(engine.1),
                problems: Vec::new(),
            };
            let template = EngineTemplate {
                model_name: template.0.map(str::to_owned),
                block_size: BlockSize::new(template.1),
                ..EngineTemplate::default()
            };
            let found = targets(&address(), engine, &template)?;
            let registration = found.targets.values().next().expect("a rank").clone();
            Ok::<_, String>((registration.model.model_name, registration.block_size.tokens()))
        };
        assert_eq!(named((Some("served"), 32), (None, 16)), Ok(("served".to_owned(), 32)));
        assert_eq!(named((Some("served"), 0), (Some("asked"), 16)), Ok(("asked".to_owned(), 16)));
        assert_eq!(named((None, 32), (None, 0)), Ok(("default".to_owned(), 32)));
        assert!(named((Some("served"), 0), (None, 0)).is_err_and(|why| why.contains("--block-size")));
    }

    #[test]
    fn sources_of_the_published_definition_are_ranks() {
        let bytes = (0..RESPONSE.len()).step_by(2);
        let bytes: Vec<u8> =
            bytes.map(|at| u8::from_str_radix(&RESPONSE[at..at + 2], 16).expect("hexadecimal")).collect();
        let response = GetKvEventSourcesResponse::decode(&bytes[..]).expect("a response");
        let found = found_from(&response.sources);
        assert_eq!(found.problems.len(), 0, "{found:?}");
        let ranks: Vec<_> = found.targets.values().collect();
        let endpoints =
            ranks.iter().map(|rank| (rank.dp_rank.0, &*rank.options.endpoint, rank.options.replay_endpoint.as_deref()));
        assert_eq!(
            endpoints.collect::<Vec<_>>(),
            [(0, "tcp://gpu-1:41001", Some("tcp://gpu-1:41002")), (1, "tcp://10.0.0.2:41003", None)],
            "a wildcard is the host of the gRPC server"
        );
        assert!(ranks.iter().all(|rank| rank.instance.to_string() == "gpu-1:50051" && rank.options.engine == Some(EngineKind::Vllm)));
    }

    #[test]
    fn sources_that_cannot_be_read_are_problems() {
        let source = |transport: &str, encoding: &str, endpoint: &str| KvEventSource {
            transport: transport.to_owned(),
            encoding: encoding.to_owned(),
            endpoint: endpoint.to_owned(),
            ..KvEventSource::default()
        };
        for unusable in [
            source("grpc", "msgpack", "tcp://a:1"),
            source("zmq", "protobuf", "tcp://a:1"),
            source("zmq", "msgpack", "tcp://*:0"),
            source("zmq", "msgpack", "ipc:///tmp/e"),
            source("zmq", "msgpack", ""),
        ] {
            let found = found_from(&[unusable.clone(), source("zmq", "msgpack", "tcp://a:1")]);
            assert_eq!((found.targets.len(), found.problems.len()), (1, 1), "{unusable:?}");
        }
        assert_eq!(found_from(&[]).problems.len(), 1, "an engine without events");
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for address in ["gpu-1:50051", "10.0.0.1:1", "[::1]:50051"] {
            assert_eq!(address.parse::<VllmAddress>().map(|parsed| parsed.to_string()), Ok(address.to_owned()));
        }
        for address in ["gpu-1", "gpu-1:0", "gpu-1:http", ":1", "169.254.169.254:80", "node:1", "http://gpu-1:1"] {
            assert!(address.parse::<VllmAddress>().is_err(), "{address}");
        }
    }
}
