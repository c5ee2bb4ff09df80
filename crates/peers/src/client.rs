//! Client of another indexer's HTTP API.

use std::io::Read;
use std::time::Duration;

use flash_indexer_api::Worker;
use flash_indexer_credentials::{ClientCredentials, tls_remedy};
use flash_indexer_snapshot::RankRecord;
use flash_indexer_types::names::{shorten, shortened};
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{InstanceId, ModelKey, RankId};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::Response;
use ureq::http::header::LOCATION;
use ureq::typestate::WithoutBody;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, RequestBuilder};

use super::PROCESS_HEADER;
use super::resolver::PeerResolver;
use super::url::PeerUrl;

/// Deadlines of a request to a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerDeadlines {
    /// Longest time to connect.
    pub connect: Duration,
    /// Longest time to the first byte of the response.
    pub first_byte: Duration,
    /// Longest pause between reads of the response.
    pub stall: Duration,
    /// Longest time of the whole request.
    pub whole: Duration,
}

impl Default for PeerDeadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(10),
            stall: Duration::from_secs(15),
            whole: Duration::from_secs(600),
        }
    }
}

/// Failure of a request to a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The connection failed or a deadline passed.
    #[error("failed to reach peer {url}: {source}; {}", advice(.source))]
    Unreachable { url: PeerUrl, source: Box<ureq::Error> },
    /// The peer redirects the request.
    #[error(
        "failed to query peer {url}: it answered {status}, a redirect to {to}, and redirects of peers are not followed; register the peer by its own URL"
    )]
    Redirected { url: PeerUrl, status: u16, to: String },
    /// The peer answers with an error.
    #[error("failed to query peer {url}: it answered {status}: {message}")]
    Refused { url: PeerUrl, status: u16, message: String },
    /// The response is not an indexer's.
    #[error("failed to read the response of peer {url}: {cause}; check that the URL is an indexer's")]
    Protocol { url: PeerUrl, cause: String },
}

/// Limit of a response that is not streamed, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Limit of an error's text, in bytes.
const ERROR_BYTES_MAX: u64 = 4 << 10;

/// Blocking client for all peers.
#[derive(Debug, Clone)]
pub(crate) struct PeerClient {
    agent: Agent,
}

impl PeerClient {
    /// Creates a client with these credentials for every peer in the networks.
    pub(crate) fn new(deadlines: &PeerDeadlines, credentials: &ClientCredentials, networks: &EngineNetworks) -> Self {
        let config = credentials
            .apply(Agent::config_builder())
            .http_status_as_error(false)
            // A redirect would let a peer choose what this service requests.
            .max_redirects(0)
            .timeout_connect(Some(deadlines.connect))
            .timeout_recv_response(Some(deadlines.first_byte))
            .timeout_per_read(Some(deadlines.stall))
            .timeout_global(Some(deadlines.whole))
            .build();
        Self { agent: Agent::with_parts(config, DefaultConnector::default(), PeerResolver::new(networks.clone())) }
    }

    /// Fetches the instances that the peer listens to. Indexers of other projects list them in other forms, without tenants; such instances
    /// are left out.
    pub(crate) fn workers(&self, url: &PeerUrl) -> Result<PeerWorkers, PeerError> {
        let response = self.call(url, self.agent.get(format!("{url}/workers")))?;
        let process = response.headers().get(PROCESS_HEADER).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let workers: Vec<Value> = Self::json(url, response)?;
        let is_own = |worker: &Value| ["listeners", "tenant_id"].iter().all(|field| worker.get(field).is_some());
        let workers = workers.into_iter().filter(is_own);
        let workers = workers.map(serde_json::from_value).collect::<Result<_, _>>();
        Ok(PeerWorkers { process, workers: workers.map_err(|error| protocol_error(url, &error))? })
    }

    /// Streams the peer's dump, of one instance or of all.
    pub(crate) fn dump(
        &self,
        url: &PeerUrl,
        only: Option<(&ModelKey, &InstanceId)>,
    ) -> Result<impl Read + use<>, PeerError> {
        let mut request = self.agent.get(format!("{url}/dump"));
        if let Some((model, instance)) = only {
            request = request.query("model_name", &model.model_name).query("tenant_id", &model.tenant_id);
            request = request.query("instance_id", instance.as_key());
        }
        let request = request.header("accept", "application/x-ndjson, application/json;q=0.5");
        let response = self.call(url, request.header("accept-encoding", "zstd"))?;
        Ok(response.into_body().into_with_config().limit(u64::MAX).reader())
    }

    /// Fetches the digest of a rank after the message `at`, for which the peer waits up to `wait`.
    pub(crate) fn digest(
        &self,
        url: &PeerUrl,
        rank: &RankId,
        at: u64,
        wait: Duration,
    ) -> Result<RankRecord, PeerError> {
        let request = self.agent.get(format!("{url}/digest"));
        let request = request.query("model_name", &rank.model.model_name).query("tenant_id", &rank.model.tenant_id);
        let request = request.query("instance_id", rank.instance.as_key()).query("dp_rank", rank.dp_rank.to_string());
        let request = request.query("at_sequence", at.to_string()).query("wait_ms", wait.as_millis().to_string());
        Self::json(url, self.call(url, request)?)
    }

    fn json<T: DeserializeOwned>(url: &PeerUrl, mut response: Response<Body>) -> Result<T, PeerError> {
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|source| PeerError::Unreachable { url: url.clone(), source: Box::new(source) })?;
        serde_json::from_slice(&body).map_err(|error| protocol_error(url, &error))
    }

    fn call(&self, url: &PeerUrl, request: RequestBuilder<WithoutBody>) -> Result<Response<Body>, PeerError> {
        let mut response =
            request.call().map_err(|source| PeerError::Unreachable { url: url.clone(), source: Box::new(source) })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()));
            let to = to.map_or_else(|| "no location".to_owned(), |to| format!("{:?}", shortened(&to)));
            return Err(PeerError::Redirected { url: url.clone(), status: status.as_u16(), to });
        }
        let text = response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let message = json.as_ref().and_then(|json| json["error"].as_str()).unwrap_or(&text);
        let message = shortened(message).into_owned();
        Err(PeerError::Refused { url: url.clone(), status: status.as_u16(), message })
    }
}

/// Advice for a request that failed, for the end of an error.
fn advice(error: &ureq::Error) -> &'static str {
    tls_remedy(error).unwrap_or("check its URL and the network")
}

fn protocol_error(url: &PeerUrl, error: &serde_json::Error) -> PeerError {
    PeerError::Protocol { url: url.clone(), cause: shorten(error.to_string()) }
}

/// Instances that a peer listens to.
pub(crate) struct PeerWorkers {
    /// Random id of the peer's process; none for an older version.
    pub(crate) process: Option<String>,
    pub(crate) workers: Vec<Worker>,
}
