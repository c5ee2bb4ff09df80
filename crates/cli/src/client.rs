//! A client of the service's HTTP API.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use flash_indexer_core::LocalHash;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::Body;
use ureq::http::{Response, StatusCode, Uri};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to whether a service lives, which it gives at once or not at all.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// A service at a URL; connections are kept open between requests.
pub(crate) struct IndexerClient {
    url: String,
    agent: ureq::Agent,
}

/// What a query may say besides its tokens.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Query<'a> {
    pub(crate) token_ids: &'a [u32],
    pub(crate) model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lora_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_salt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_score: Option<u64>,
}

/// A query whose answer is to be explained.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainQuery<'a> {
    #[serde(flatten)]
    pub(crate) query: Query<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance_id: Option<&'a str>,
}

/// The parts of an explanation that this program shows.
#[derive(Debug, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) blocks: usize,
    pub(crate) ranks: Vec<ExplainedRank>,
    pub(crate) absent: Vec<Absent>,
}

/// One rank's part of an explanation; matches in tokens.
#[derive(Debug, Deserialize)]
pub(crate) struct ExplainedRank {
    pub(crate) instance_id: Value,
    pub(crate) dp_rank: u32,
    pub(crate) trust: String,
    pub(crate) gpu: u64,
    pub(crate) longest_matched: u64,
    pub(crate) ends: Vec<ExplainedEnd>,
}

/// Where a rank's match ends.
#[derive(Debug, Deserialize)]
pub(crate) struct ExplainedEnd {
    pub(crate) position: usize,
    pub(crate) local_hash: Option<u64>,
    pub(crate) sequence_hash: Option<u64>,
    pub(crate) why: String,
    /// Cache groups of a hybrid model that end it there.
    #[serde(default)]
    pub(crate) cache_groups: Vec<LackingGroup>,
}

/// A cache group that cannot use what full attention holds.
#[derive(Debug, Deserialize)]
pub(crate) struct LackingGroup {
    pub(crate) group: u32,
    pub(crate) missing: Vec<MissingBlock>,
}

/// A block that a cache group lacks.
#[derive(Debug, Deserialize)]
pub(crate) struct MissingBlock {
    pub(crate) position: usize,
    pub(crate) local_hash: Option<u64>,
    pub(crate) sequence_hash: Option<u64>,
    pub(crate) tier: Option<String>,
}

/// An instance that is not registered.
#[derive(Debug, Deserialize)]
pub(crate) struct Absent {
    pub(crate) instance_id: Value,
    pub(crate) dp_rank: Option<u32>,
    pub(crate) why: String,
}

type ByRank<T> = BTreeMap<u32, T>;

/// The parts of an answer that this program uses.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) scores: BTreeMap<String, ByRank<u64>>,
    pub(crate) tree_sizes: BTreeMap<String, ByRank<u64>>,
    pub(crate) instances: BTreeMap<String, InstanceAnswer>,
}

/// One instance's part of an answer, in tokens.
#[derive(Debug, Deserialize)]
pub(crate) struct InstanceAnswer {
    pub(crate) longest_matched: u64,
    pub(crate) cpu: u64,
    pub(crate) disk: u64,
    pub(crate) trust: String,
}

/// The parts of `/workers` that this program uses.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Worker {
    pub(crate) instance_id: Value,
    pub(crate) model_name: String,
    pub(crate) tenant_id: String,
    pub(crate) block_size: u32,
    pub(crate) listeners: ByRank<Listener>,
}

/// One listener of a worker.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Listener {
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
    pub(crate) engine: Option<String>,
    pub(crate) lora_name: Option<String>,
    pub(crate) removal: Option<String>,
    pub(crate) status: String,
    pub(crate) last_seq: Option<u64>,
    pub(crate) gaps: u64,
    pub(crate) trust: String,
    pub(crate) rejected: BTreeMap<String, u64>,
    pub(crate) last_error: Option<String>,
}

/// A source of discovery, as far as this program uses it.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscoverySource {
    pub(crate) source: String,
    pub(crate) state: String,
    pub(crate) last_success_ms_ago: Option<u64>,
    pub(crate) error: Option<String>,
    pub(crate) problems: Vec<String>,
    pub(crate) targets: Vec<DiscoveryTarget>,
}

/// A rank that a source names.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscoveryTarget {
    pub(crate) instance_id: Value,
    pub(crate) endpoint: String,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
}

/// The parts of `/store` that this program uses.
#[derive(Debug, Deserialize)]
pub(crate) struct StoreState {
    pub(crate) url: String,
    pub(crate) status: String,
    pub(crate) last_error: Option<String>,
    pub(crate) published_ranks: usize,
    pub(crate) unfinished_ranks: usize,
    pub(crate) ranks: Vec<Value>,
}

/// A rank to be registered.
#[derive(Debug, Serialize)]
pub(crate) struct Registration<'a> {
    pub(crate) instance_id: u64,
    pub(crate) endpoint: &'a str,
    pub(crate) replay_endpoint: Option<&'a str>,
    pub(crate) model_name: &'a str,
    pub(crate) tenant_id: &'a str,
    pub(crate) block_size: u32,
    pub(crate) dp_rank: u32,
}

impl IndexerClient {
    pub(crate) fn new(url: &str) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let config = config.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_global(Some(TIMEOUT)).build();
        Self { url: url.trim_end_matches('/').to_owned(), agent: config.into() }
    }

    /// Registers a rank; false if it was registered in the same way already.
    pub(crate) fn register(&self, registration: &Registration<'_>) -> Result<bool> {
        let response = self.agent.post(format!("{}/register", self.url)).send_json(registration);
        let is_new = response.as_ref().is_ok_and(|response| response.status() == StatusCode::CREATED);
        self.read(response).map(|_: Value| is_new)
    }

    pub(crate) fn unregister(&self, instance_id: u64, model_name: &str, tenant_id: &str) -> Result<()> {
        let request = json!({ "instance_id": instance_id, "model_name": model_name, "tenant_id": tenant_id });
        self.post("/unregister", &request).map(|_: Value| ())
    }

    pub(crate) fn query(&self, query: &Query<'_>) -> Result<Answer> {
        self.post("/query", query)
    }

    /// The answer as the service gave it.
    pub(crate) fn query_json(&self, query: &Query<'_>) -> Result<Value> {
        self.post("/query", query)
    }

    /// The explanation as the service gave it.
    pub(crate) fn explain(&self, query: &ExplainQuery<'_>) -> Result<Value> {
        self.post("/explain", query)
    }

    pub(crate) fn workers(&self, model_name: &str, tenant_id: &str) -> Result<Vec<Worker>> {
        let request = self.agent.get(format!("{}/workers", self.url));
        self.read(request.query("model_name", model_name).query("tenant_id", tenant_id).call())
    }

    /// All registered instances.
    pub(crate) fn all_workers(&self) -> Result<Vec<Worker>> {
        self.get("/workers")
    }

    /// Asks whether the service lives.
    pub(crate) fn health(&self) -> Result<()> {
        let request = self.agent.get(format!("{}/health", self.url));
        let response = request.config().timeout_global(Some(HEALTH_TIMEOUT)).build().call();
        self.read(response).map(|_: Value| ())
    }

    /// Asks whether the service is ready; the error says what is missing.
    pub(crate) fn ready(&self) -> Result<()> {
        self.get("/ready").map(|_: Value| ())
    }

    /// Other services that this one knows; none if it has no such list.
    pub(crate) fn peers(&self) -> Result<Vec<String>> {
        Ok(self.get_if_there("/peers")?.unwrap_or_default())
    }

    /// What names its engines; nothing if it has no such list.
    pub(crate) fn discovery(&self) -> Result<Vec<DiscoverySource>> {
        Ok(self.get_if_there("/discovery")?.unwrap_or_default())
    }

    /// The index that it shares with others, if it shares one.
    pub(crate) fn store(&self) -> Result<Option<StoreState>> {
        self.get_if_there("/store")
    }

    pub(crate) fn query_by_hash(&self, hashes: &[LocalHash], model_name: &str, tenant_id: &str) -> Result<Answer> {
        let hashes: Vec<u64> = hashes.iter().map(|hash| hash.0).collect();
        let query = json!({ "block_hashes": hashes, "model_name": model_name, "tenant_id": tenant_id });
        self.post("/query_by_hash", &query)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.agent.get(format!("{}{path}", self.url)).call())
    }

    fn get_if_there<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        match &response {
            Ok(response) if response.status() == StatusCode::NOT_FOUND => Ok(None),
            _ => self.read(response).map(Some),
        }
    }

    /// The dump as lines while they come, compressed or not, of what fits.
    pub(crate) fn dump(&self, model_name: Option<&str>, tenant_id: Option<&str>, form: DumpBytes) -> Result<Dump> {
        let mut request = self.agent.get(format!("{}/dump", self.url)).header("accept", "application/x-ndjson");
        for (name, value) in [("model_name", model_name), ("tenant_id", tenant_id)] {
            if let Some(value) = value {
                request = request.query(name, value);
            }
        }
        if form == DumpBytes::Compressed {
            request = request.header("accept-encoding", "zstd");
        }
        // It takes as long as it takes, but must not stand still.
        let response = request.config().timeout_global(None).timeout_per_read(Some(TIMEOUT)).build().call();
        let response = self.accepted(response)?;
        let is_compressed = response.headers().get("content-encoding").is_some_and(|encoding| encoding == "zstd");
        let bytes = response.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Dump { bytes: Box::new(bytes), is_compressed })
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.read(self.agent.post(format!("{}{path}", self.url)).send_json(body))
    }

    fn read<T: DeserializeOwned>(&self, response: Result<Response<Body>, ureq::Error>) -> Result<T> {
        let mut response = self.accepted(response)?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        serde_json::from_slice(&body).with_context(|| format!("{} does not answer as a Flash Indexer does", self.url))
    }

    /// The response, if it is no error.
    fn accepted(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>> {
        let mut response =
            response.map_err(|error| match self.url.parse::<Uri>().is_ok_and(|url| url.scheme().is_some()) {
                true => no_answer(&self.url, error),
                false => anyhow!(error)
                    .context(format!("{:?} is no URL of a service: give one such as http://127.0.0.1:8090", self.url)),
            })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            bail!(
                "{} answered {status}, a redirect, which is not followed: give the URL where the service answers itself",
                self.url
            );
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        let error = serde_json::from_slice::<Value>(&body).ok();
        match error.as_ref().and_then(|error| error["error"].as_str()) {
            Some(error) => Err(anyhow!("{error}")),
            None => bail!("{} answered {status}", self.url),
        }
    }
}

/// Why a service does not answer, and what to do about it.
fn no_answer(url: &str, error: ureq::Error) -> anyhow::Error {
    let is_refused = match &error {
        ureq::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        error => matches!(error, ureq::Error::ConnectionFailed),
    };
    let why = match &error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => format!(
            "no connection to {url}: see whether the host is up and network policies and firewalls let the port through"
        ),
        ureq::Error::Timeout(_) => format!(
            "{url} accepts connections, but does not answer: the process is stopped or overloaded; continue or restart it"
        ),
        _ if is_refused => {
            format!("{url} refuses connections: start `flash-indexer serve` there, or give its right port")
        }
        _ => format!("no answer from {url}: is `flash-indexer serve` running there?"),
    };
    anyhow!(error).context(why)
}

/// How a dump is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpBytes {
    Plain,
    Compressed,
}

/// A dump that is on its way.
pub(crate) struct Dump {
    pub(crate) bytes: Box<dyn Read>,
    pub(crate) is_compressed: bool,
}
