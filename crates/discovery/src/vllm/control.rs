//! Calls of the service `vllm.Control`, which the gRPC server of an engine of vLLM has.

use std::io;
use std::time::Duration;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_proto::vllm_control::{
    GetKvEventSourcesRequest, GetKvEventSourcesResponse, GetModelInfoRequest, GetServerInfoRequest, KvEventSource,
    ModelInfo, ServerInfo,
};
use flash_indexer_types::endpoints::{HostError, RefusedAddress};
use flash_indexer_types::names::shorten;
use flash_indexer_types::networks::EngineNetworks;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tonic::codegen::http::uri::{PathAndQuery, Uri};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::VllmAddress;

/// Longest time of all calls to an engine, including their connection.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Limit of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// An engine's description of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineDescription {
    /// Publishers of its events.
    pub(super) sources: Vec<KvEventSource>,
    /// The name by which requests name its model.
    pub(super) model_name: Option<String>,
    /// Size of its blocks of full attention.
    pub(super) block_size: Option<BlockSize>,
}

/// Failure to query the endpoints of an engine's events.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VllmError {
    /// The address of its host is refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Its host resolves to addresses that are refused.
    #[error("the host is refused: {0}")]
    Refused(#[from] RefusedAddress),
    /// It cannot be reached, or a call failed.
    #[error("{0}")]
    Failed(String),
    /// The calls did not end in time.
    #[error("no response within {CALL_DEADLINE:?}; check that the engine's gRPC server runs")]
    TimedOut,
    /// The server does not have the call.
    #[error("its server has no vllm.Control/GetKvEventSources: give the ZeroMQ endpoints of the engine")]
    Unimplemented,
}

impl VllmError {
    /// Whether the service does not connect to the engine's host.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Host(_) | Self::Refused(_))
    }
}

/// Queries the engine at an address.
pub(super) async fn describe(address: &VllmAddress, networks: &EngineNetworks) -> Result<EngineDescription, VllmError> {
    networks.check_host(&address.host)?;
    tokio::time::timeout(CALL_DEADLINE, ask(address, networks)).await.map_err(|_| VllmError::TimedOut)?
}

async fn ask(address: &VllmAddress, networks: &EngineNetworks) -> Result<EngineDescription, VllmError> {
    let channel = connect(address, networks).await?;
    let sources =
        call::<_, GetKvEventSourcesResponse>(&channel, "/vllm.Control/GetKvEventSources", GetKvEventSourcesRequest {});
    let sources = sources.await?.ok_or(VllmError::Unimplemented)?.sources;
    let server = call::<_, ServerInfo>(&channel, "/vllm.Control/GetServerInfo", GetServerInfoRequest {}).await?;
    let model = call::<_, ModelInfo>(&channel, "/vllm.Control/GetModelInfo", GetModelInfoRequest {}).await?;
    Ok(EngineDescription {
        sources,
        model_name: model.map(|model| model.served_model_name).filter(|name| !name.is_empty()),
        block_size: server.and_then(|server| block_size(&server)),
    })
}

/// Size of the blocks of full attention: the configured size, if the engine does not name its own.
fn block_size(server: &ServerInfo) -> Option<BlockSize> {
    let effective = server.effective_attention_block_size.filter(|&tokens| tokens > 0);
    BlockSize::new(u32::try_from(effective.unwrap_or_else(|| server.kv_block_size.into())).ok()?)
}

/// Calls a method of the server; none if the server does not have it.
async fn call<Q, A>(channel: &Channel, method: &'static str, request: Q) -> Result<Option<A>, VllmError>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX);
    grpc.ready().await.map_err(|error| VllmError::Failed(shorten(error.to_string())))?;
    let codec = ProstCodec::<Q, A>::default();
    match grpc.unary(Request::new(request), PathAndQuery::from_static(method), codec).await {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(failed(&status)),
    }
}

fn failed(status: &Status) -> VllmError {
    VllmError::Failed(shorten(format!("{:?}: {}", status.code(), status.message())))
}

/// Connects to one of the permitted addresses of the engine's host.
async fn connect(address: &VllmAddress, networks: &EngineNetworks) -> Result<Channel, VllmError> {
    let unreachable = |error: io::Error| VllmError::Failed(error.to_string());
    let found: Vec<_> = tokio::net::lookup_host(address.to_string()).await.map_err(unreachable)?.collect();
    let stream = TcpStream::connect(&networks.permitted(&found)?[..]).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    // The calls share a connection, so one process answers all of them, and no address is dialled unchecked.
    let mut stream = Some(TokioIo::new(stream));
    let connector = service_fn(move |_: Uri| {
        std::future::ready(stream.take().ok_or_else(|| io::Error::other("the connection has ended")))
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| VllmError::Failed(error.to_string()))?;
    endpoint.connect_with_connector(connector).await.map_err(|error| VllmError::Failed(shorten(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response, encoded by the definition of the crate vllm-proto: sizes of 16 and 1,056 tokens.
    const SERVER_INFO: &str = "0a06302e33332e30288020301038a01f70a008";

    #[test]
    fn the_size_of_full_attention_takes_precedence() {
        let bytes: Vec<u8> = (0..SERVER_INFO.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&SERVER_INFO[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        let server = ServerInfo::decode(&bytes[..]).expect("a response");
        assert_eq!(block_size(&server), BlockSize::new(1_056));
        let of = |kv_block_size, effective_attention_block_size| {
            block_size(&ServerInfo { kv_block_size, effective_attention_block_size }).map(BlockSize::tokens)
        };
        assert_eq!([of(16, None), of(16, Some(0)), of(0, None), of(0, Some(64))], [Some(16), Some(16), None, Some(64)]);
        assert_eq!(of(16, Some(1 << 40)), None);
    }
}
