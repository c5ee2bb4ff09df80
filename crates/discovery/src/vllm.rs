//! Discovery source: the gRPC server of an engine of vLLM, which names the endpoints of the engine's events.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_proto::vllm_control::{GetKvEventSourcesRequest, GetKvEventSourcesResponse, KvEventSource};
use flash_indexer_types::endpoints::{HostError, check_host};
use flash_indexer_types::names::shorten;
use flash_indexer_types::{EngineKind, InstanceId, ModelKey, Registration};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::reconcile::Targets;
use super::report::{DiscoveredTargets, Reporter};
use super::template::EngineTemplate;

/// Longest time of a call, with its connection.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Limit of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
const PATH: &str = "/vllm.Control/GetKvEventSources";
/// Hosts of a publisher that binds every address.
const WILDCARDS: [&str; 4] = ["*", "0.0.0.0", "[::]", "::"];

/// Address of an engine's gRPC server. It is the engine's instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmAddress {
    instance: InstanceId,
    host: String,
    port: u16,
}

/// The gRPC server of an engine, and how often it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmOptions {
    /// Its address.
    pub address: VllmAddress,
    /// Time between two calls.
    pub interval: Duration,
}

impl VllmOptions {
    /// Asks every five seconds: ports may change with each start of the engine.
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
        let malformed = || VllmAddressError::Malformed(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or_else(malformed)?;
        check_host(host).map_err(|refused| VllmAddressError::Host { address: text.to_owned(), refused })?;
        let instance = InstanceId::parse(text).ok().filter(|instance| instance.shared_cache().is_none());
        let instance = instance.ok_or_else(|| VllmAddressError::Instance(text.to_owned()))?;
        Ok(Self { instance, host: host.to_owned(), port })
    }
}

impl fmt::Display for VllmAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Asks the server repeatedly, and reports the engine's ranks.
pub(super) async fn watch(
    VllmOptions { address, interval }: VllmOptions,
    template: EngineTemplate,
    reporter: Reporter,
) {
    let failed = |why: String| {
        reporter
            .failed(format!("failed to ask {address} for its KV event sources: {why}; its engine stays registered"));
    };
    let endpoint = match Endpoint::from_shared(format!("http://{address}")) {
        Ok(endpoint) => endpoint.connect_timeout(CALL_DEADLINE).timeout(CALL_DEADLINE),
        Err(error) => return failed(error.to_string()),
    };
    let channel = endpoint.connect_lazy();
    loop {
        match (tokio::time::timeout(CALL_DEADLINE, ask(channel.clone())).await, template.block_size) {
            (_, None) => failed("the block size is unknown: give --block-size".to_owned()),
            (Err(_), _) => failed(format!("no response within {CALL_DEADLINE:?}")),
            (Ok(Err(status)), _) if status.code() == Code::Unimplemented => {
                failed(
                    "its server has no vllm.Control/GetKvEventSources: give the ZeroMQ endpoints of the engine"
                        .to_owned(),
                );
            }
            (Ok(Err(status)), _) => failed(shorten(format!("{:?}: {}", status.code(), status.message()))),
            (Ok(Ok(response)), Some(block_size)) => {
                reporter.found(found(&address, &response.sources, &template, block_size));
            }
        }
        tokio::time::sleep(interval).await;
    }
}

async fn ask(channel: Channel) -> Result<GetKvEventSourcesResponse, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<GetKvEventSourcesRequest, GetKvEventSourcesResponse>::default();
    let request = Request::new(GetKvEventSourcesRequest {});
    grpc.unary(request, PathAndQuery::from_static(PATH), codec).await.map(tonic::Response::into_inner)
}

/// Ranks of the engine at this address.
fn found(
    address: &VllmAddress,
    sources: &[KvEventSource],
    template: &EngineTemplate,
    block_size: BlockSize,
) -> DiscoveredTargets {
    let (mut targets, mut problems) = (Targets::new(), Vec::new());
    if sources.is_empty() {
        problems.push(format!("{address} publishes no KV events: start the engine with --kv-events-config"));
    }
    let model = ModelKey { model_name: template.model_name.clone(), tenant_id: template.tenant_id.clone() };
    for source in sources {
        let registration = endpoint_of(address, source).map(|endpoint| Registration {
            dp_rank: DpRank(source.data_parallel_rank.unwrap_or_default()),
            replay_endpoint: connectable(address, &source.replay_endpoint),
            engine: Some(EngineKind::Vllm.name()),
            ..Registration::new(address.instance.clone(), model.clone(), endpoint, block_size)
        });
        let checked = registration.and_then(|registration| match registration.check_names() {
            Ok(()) => Ok(registration),
            Err(error) => Err(error.to_string()),
        });
        match checked {
            Ok(registration) => drop(targets.insert(registration.rank_id(), registration)),
            Err(why) => problems.push(format!("{address}: {why}")),
        }
    }
    DiscoveredTargets::new(targets, problems)
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

/// The endpoint at which others connect to a publisher. One that binds every address is at the host of the gRPC server.
fn connectable(address: &VllmAddress, endpoint: &str) -> Option<String> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|&port| port > 0)?;
    let host = if WILDCARDS.contains(&host) { &address.host } else { host };
    Some(format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// A response, as the definition of the crate vllm-proto encodes it.
    const RESPONSE: &str = "0a450a037a6d71120d7463703a2f2f2a3a34313030311a026b7622137463703a2f2f302e302e302e303a3431303032280032076d73677061636b380140904e48a08d0650a08d060a260a037a6d7112147463703a2f2f31302e302e302e323a3431303033280132076d73677061636b";

    fn template() -> EngineTemplate {
        EngineTemplate { model_name: "m".to_owned(), block_size: BlockSize::new(16), ..EngineTemplate::default() }
    }

    fn found_from(sources: &[KvEventSource]) -> DiscoveredTargets {
        let address = "gpu-1:50051".parse().expect("an address");
        found(&address, sources, &template(), BlockSize::new(16).expect("not zero"))
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
        let endpoints = ranks.iter().map(|rank| (rank.dp_rank.0, &*rank.endpoint, rank.replay_endpoint.as_deref()));
        assert_eq!(
            endpoints.collect::<Vec<_>>(),
            [(0, "tcp://gpu-1:41001", Some("tcp://gpu-1:41002")), (1, "tcp://10.0.0.2:41003", None)],
            "a wildcard is the host of the gRPC server"
        );
        assert!(ranks.iter().all(|rank| rank.instance.to_string() == "gpu-1:50051" && rank.engine == Some("vllm")));
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
