//! A client of the service's HTTP API. Each request waits at most 30 s; errors name the URL without its password, and what to do.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Command};
use flash_indexer_api::{
    DiscoverySource, ExplainRequest, HashQuery, ModelScope, QueryResponse, Readiness, RegisterRequest, StoreState,
    Success, TokenQuery, TokenizedPrompt, UnregisterRequest, Unregistration, Worker,
};
use flash_indexer_core::LocalHash;
use flash_indexer_credentials::{ClientCredentials, ClientFiles, KeyPairFiles, tls_remedy};
use flash_indexer_types::{InstanceId, masked_url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Body;
use ureq::http::{Response, StatusCode, Uri};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for `/health`, which a running service answers at once.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response that is read, in bytes.
const RESPONSE_BYTES_MAX: u64 = 256 << 20;

/// The program of the service.
const SERVICE: &str = "`flash-indexer serve`";

/// Environment variable with the bearer token for the service.
pub const TOKEN_VARIABLE: &str = "FLASH_INDEXER_TOKEN";

/// The service, as an argument or as an option.
#[derive(Args)]
pub struct ServiceUrl {
    /// URL of the service, instead of --url. It takes precedence over FLASH_INDEXER_URL.
    #[arg(value_name = "URL")]
    service_url: Option<String>,

    /// URL of the service.
    #[arg(long, env = "FLASH_INDEXER_URL", default_value = "http://127.0.0.1:8090", hide_env_values = true)]
    url: String,
}

impl ServiceUrl {
    /// The URL as it was given.
    pub fn as_str(&self) -> &str {
        self.service_url.as_deref().unwrap_or(&self.url)
    }

    /// The URL for output.
    pub fn masked(&self) -> Cow<'_, str> {
        masked_url(self.as_str())
    }
}

/// Certificates of a client of the service.
#[derive(Args)]
pub struct TlsArguments {
    /// File with the CA certificates, in PEM, that verify the certificate of an https:// service [default: public CAs].
    #[arg(long, env = "FLASH_INDEXER_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// File with the certificate chain, in PEM, for a service that requires client certificates.
    #[arg(long, env = "FLASH_INDEXER_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert, in PEM.
    #[arg(long, env = "FLASH_INDEXER_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsArguments {
    /// Client of the service at a URL, with these certificates and the token of the environment.
    pub fn client(&self, url: &str) -> Result<IndexerClient> {
        let pair = self.tls_cert.clone().zip(self.tls_key.clone());
        let pair = pair.map(|(certificate, key)| KeyPairFiles { certificate, key });
        let credentials = ClientCredentials::load(&ClientFiles { token: None, ca: self.tls_ca.clone(), pair })?;
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
        let credentials = match token {
            None => credentials,
            Some(token) => credentials.with_token(token.parse().context(TOKEN_VARIABLE)?),
        };
        Ok(IndexerClient::with_credentials(url, &credentials))
    }
}

/// Meaning of [`TOKEN_VARIABLE`].
pub const TOKEN_HELP: &str = "Bearer token for a service that needs one";

/// Whether a command sends [`TOKEN_VARIABLE`]: it has [`TlsArguments`].
pub fn sends_token(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == "tls_ca")
}

/// Client of the service at a URL; connections are kept open between requests.
pub struct IndexerClient {
    url: String,
    /// The program that runs at the URL.
    server: &'static str,
    agent: ureq::Agent,
}

impl IndexerClient {
    /// Client of an engine's OpenAI API, for the endpoints that it has in common with the service. It has no credentials of the service.
    pub fn of_engine(url: &str) -> Self {
        let client = Self::with_credentials(url, &ClientCredentials::default());
        Self { server: "the engine's OpenAI API", ..client }
    }

    fn with_credentials(url: &str, credentials: &ClientCredentials) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let config = config.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_global(Some(TIMEOUT));
        let config = credentials.apply(config).build();
        Self { url: without_slash(url), server: SERVICE, agent: config.into() }
    }

    /// Client of another service with the same credentials.
    pub fn at(&self, url: &str) -> Self {
        Self { url: without_slash(url), server: self.server, agent: self.agent.clone() }
    }

    /// Registers a rank; false if the same registration exists already.
    pub fn register(&self, registration: &RegisterRequest) -> Result<bool> {
        let response = self.send("/register", registration);
        let is_new = response.as_ref().is_ok_and(|response| response.status() == StatusCode::CREATED);
        self.read(response).map(|_: Success| is_new)
    }

    /// Unregisters an instance with all of its ranks.
    pub fn unregister(&self, instance_id: u64, model_name: &str, tenant_id: &str) -> Result<()> {
        let instance_id = InstanceId::number(instance_id).into();
        let scope = ModelScope::of(model_name, Some(tenant_id));
        let request = UnregisterRequest { instance_id, scope, dp_rank: None };
        self.post("/unregister", &request).map(|_: Unregistration| ())
    }

    /// The matches of each rank with a prompt.
    pub fn query(&self, query: &TokenQuery) -> Result<QueryResponse> {
        self.post("/query", query)
    }

    /// Queries, and returns the response as JSON.
    pub fn query_json(&self, query: &TokenQuery) -> Result<Value> {
        self.post("/query", query)
    }

    /// The tokens of a request with a prompt. Engines have the same endpoint.
    pub fn tokenize(&self, request: &Value) -> Result<TokenizedPrompt> {
        self.post("/tokenize", request)
    }

    /// Requests an explanation, and returns it as JSON.
    pub fn explain(&self, query: &ExplainRequest) -> Result<Value> {
        self.post("/explain", query)
    }

    /// The registered instances of a model and a tenant.
    pub fn workers(&self, model_name: &str, tenant_id: &str) -> Result<Vec<Worker>> {
        let request = self.agent.get(format!("{}/workers", self.url));
        self.read(request.query("model_name", model_name).query("tenant_id", tenant_id).call())
    }

    /// All registered instances.
    pub fn all_workers(&self) -> Result<Vec<Worker>> {
        self.get("/workers")
    }

    /// Fails if no instance of a model and a tenant is registered, and names the registered ones. Absent names select all.
    pub fn check_selection(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Result<()> {
        let selected = [("model", model_name), ("tenant", tenant_id)];
        let selected = selected.map(|(name, value)| value.map(|value| format!("{name} {value:?}")));
        let selected = selected.into_iter().flatten().collect::<Vec<_>>().join(" and ");
        if selected.is_empty() {
            return Ok(());
        }
        // Another indexer may have no such list, and a service that does not respond fails the request itself.
        let Ok(workers) = self.all_workers() else { return Ok(()) };
        let is_selected = |worker: &Worker| {
            model_name.is_none_or(|model| worker.model_name == *model)
                && tenant_id.is_none_or(|tenant| worker.tenant_id == *tenant)
        };
        if workers.iter().any(is_selected) {
            return Ok(());
        }
        let named = |worker: &Worker| format!("{:?} of tenant {:?}", worker.model_name, worker.tenant_id);
        let registered: Vec<String> = workers.iter().map(named).collect::<BTreeSet<_>>().into_iter().collect();
        let registered = if registered.is_empty() { "none".to_owned() } else { registered.join(", ") };
        bail!("no instance of {selected} is registered with {}; its models: {registered}", self.masked())
    }

    /// Checks that the service runs.
    pub fn health(&self) -> Result<()> {
        let request = self.agent.get(format!("{}/health", self.url));
        let response = request.config().timeout_global(Some(HEALTH_TIMEOUT)).build().call();
        self.read(response).map(|_: Success| ())
    }

    /// Checks that the service is ready; the error names what is missing.
    pub fn ready(&self) -> Result<()> {
        self.get("/ready").map(|_: Readiness| ())
    }

    /// URLs of the service's peers; none if it is an indexer without peers.
    pub fn peers(&self) -> Result<Vec<String>> {
        Ok(self.get_optional("/peers")?.unwrap_or_default())
    }

    /// Discovery sources of the service; none if it is an indexer without discovery.
    pub fn discovery(&self) -> Result<Vec<DiscoverySource>> {
        Ok(self.get_optional("/discovery")?.unwrap_or_default())
    }

    /// State of the shared store; none if the service uses no store.
    pub fn store(&self) -> Result<Option<StoreState>> {
        self.get_optional("/store")
    }

    /// The matches of each rank with a prompt that is given by the local hashes of its blocks.
    pub fn query_by_hash(&self, hashes: &[LocalHash], model_name: &str, tenant_id: &str) -> Result<QueryResponse> {
        let scope = ModelScope::of(model_name, Some(tenant_id));
        self.post("/query_by_hash", &HashQuery { block_hashes: hashes.to_vec(), scope, ..HashQuery::default() })
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.agent.get(format!("{}{path}", self.url)).call())
    }

    fn get_optional<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        match &response {
            Ok(response) if response.status() == StatusCode::NOT_FOUND => Ok(None),
            _ => self.read(response).map(Some),
        }
    }

    /// A dump of the selected models and tenants, as a stream of lines.
    pub fn dump(&self, model_name: Option<&str>, tenant_id: Option<&str>, encoding: DumpEncoding) -> Result<Dump> {
        let mut request = self.agent.get(format!("{}/dump", self.url)).header("accept", "application/x-ndjson");
        for (name, value) in [("model_name", model_name), ("tenant_id", tenant_id)] {
            if let Some(value) = value {
                request = request.query(name, value);
            }
        }
        if encoding == DumpEncoding::Compressed {
            request = request.header("accept-encoding", "zstd");
        }
        // The whole dump has no deadline, but each read has one.
        let response = request.config().timeout_global(None).timeout_per_read(Some(TIMEOUT)).build().call();
        let response = self.check_status(response)?;
        let is_compressed = response.headers().get("content-encoding").is_some_and(|encoding| encoding == "zstd");
        let bytes = response.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Dump { bytes: Box::new(bytes), is_compressed })
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.read(self.send(path, body))
    }

    /// Sends JSON without white space. `send_json` indents, which doubles the bytes of a list of tokens.
    fn send(&self, path: &str, body: &impl Serialize) -> Result<Response<Body>, ureq::Error> {
        let body = serde_json::to_vec(body).map_err(ureq::Error::Json)?;
        self.agent.post(format!("{}{path}", self.url)).content_type("application/json").send(&body)
    }

    fn read<T: DeserializeOwned>(&self, response: Result<Response<Body>, ureq::Error>) -> Result<T> {
        let mut response = self.check_status(response)?;
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec()?;
        serde_json::from_slice(&body).with_context(|| {
            format!("failed to parse the response of {}; give the URL of {}", self.masked(), self.server)
        })
    }

    /// The URL for errors.
    fn masked(&self) -> Cow<'_, str> {
        masked_url(&self.url)
    }

    /// The response, if its status is a success.
    fn check_status(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>> {
        let is_http = |url: Uri| matches!(url.scheme_str(), Some("http" | "https"));
        let mut response = response.map_err(|error| match self.url.parse().is_ok_and(is_http) {
            true => connection_error(&self.masked(), self.server, error),
            false => {
                let invalid = format!("invalid URL {:?}; expected one such as http://127.0.0.1:8090", self.masked());
                // The cause may repeat the URL.
                if self.masked() == self.url { anyhow!(error).context(invalid) } else { anyhow!(invalid) }
            }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            bail!(
                "{} answered {status}, a redirect, which is not followed; give the URL that it redirects to",
                self.masked()
            );
        }
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec()?;
        let error = serde_json::from_slice::<Value>(&body).ok();
        // Engines send an object with a message.
        let error = error.as_ref().map(|error| &error["error"]);
        match error.and_then(|error| error.as_str().or_else(|| error["message"].as_str())) {
            // The service names the header, which commands have no option for.
            Some(error) if status == StatusCode::UNAUTHORIZED && self.server == SERVICE => {
                Err(anyhow!("{error}; this command takes the token from {TOKEN_VARIABLE}"))
            }
            Some(error) => Err(anyhow!("{error}")),
            None => bail!("{} answered {status}; check that {} runs there", self.masked(), self.server),
        }
    }
}

fn without_slash(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// The error for a service that does not respond, with its fix. The URL is masked.
fn connection_error(url: &str, server: &str, error: ureq::Error) -> anyhow::Error {
    let is_refused = match &error {
        ureq::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
        error => matches!(error, ureq::Error::ConnectionFailed),
    };
    let why = match &error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => format!(
            "failed to connect to {url}; check that the host is up and that network policies and firewalls let the port through"
        ),
        ureq::Error::Timeout(_) => format!(
            "{url} accepts connections, but does not respond: the process is stopped or overloaded; continue or restart it"
        ),
        _ if is_refused => {
            format!("{url} refuses connections: start {server} there, or give its right port")
        }
        error => match tls_remedy(error) {
            Some(remedy) => format!("failed to secure the connection to {url}; {remedy}"),
            None if matches!(error, ureq::Error::Protocol(_)) && url.starts_with("http://") => format!(
                "{url} does not answer with HTTP; if this port has TLS, give an https:// URL, else check that {server} runs there"
            ),
            None => format!("no response from {url}; check that {server} runs there"),
        },
    };
    anyhow!(error).context(why)
}

/// Encoding of a dump in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpEncoding {
    /// Lines of JSON.
    Plain,
    /// The same lines, compressed with zstd if the service supports it.
    Compressed,
}

/// A dump that is being received.
pub struct Dump {
    /// Bytes of the dump in its encoding, which are received while they are read.
    pub bytes: Box<dyn Read>,
    /// Whether they are compressed with zstd.
    pub is_compressed: bool,
}
