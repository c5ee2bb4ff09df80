//! HTTP client of one engine's pull API.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_ingest::Listener;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::endpoints::RefusedAddress;
use flash_indexer_types::names::shorten;
use flash_indexer_types::networks::EngineNetworks;
use parking_lot::Mutex;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport};
use ureq::{Agent, Error};

use super::long_pulls::{LongPull, LongPulls};

/// Path of the pull API.
const PATH: &str = "/kv_cache_events";
/// Longest time to connect.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Longest time of a pull. Some releases wait two seconds for the first event.
const PULL_DEADLINE: Duration = Duration::from_secs(10);
/// Limit of a response, in bytes. It has the events of an engine since the last pull, with about 70 bytes for each token.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Bytes of a response that are received without a turn among long ones.
const SHORT_BYTES_MAX: usize = 256 << 10;
/// Time for which the addresses of a host are used.
const ADDRESSES_AGE_MAX: Duration = Duration::from_secs(5);
/// Limit of the text of an error's response, in bytes.
const ERROR_BYTES_MAX: u64 = 512;

/// A pull without events, after which the engine may be another process.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    /// The host resolves to addresses that are refused.
    #[error("the host of {url} is refused: {refused}")]
    Refused { url: String, refused: RefusedAddress },
    /// The connection failed or a deadline passed.
    #[error("failed to pull events from {url}: {why}; check that the engine serves")]
    Unreachable { url: String, why: String },
    /// The response has another status than 200.
    #[error(
        "failed to pull events from {url}: it answered {status}{what}; check that it is TensorRT-LLM's server, with event_buffer_max_size above 0"
    )]
    Status { url: String, status: u16, what: String },
    /// The response is too long.
    #[error(
        "failed to pull events from {url}: its response has more than {RESPONSE_BYTES_MAX} bytes, and its events are lost; lower the engine's event_buffer_max_size"
    )]
    TooLarge { url: String },
    /// Other long responses are being received.
    #[error(
        "failed to pull events from {url}: {} responses of other engines are received at a time, and its events are lost",
        LongPulls::COUNT_MAX
    )]
    Busy { url: String },
}

impl PullError {
    /// Label for counters.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused_address",
            Self::Unreachable { .. } => "pull_unreachable",
            Self::Status { .. } => "pull_failed",
            Self::TooLarge { .. } | Self::Busy { .. } => "pull_too_large",
        }
    }

    /// Whether the metrics count the error: the engine has answered, and events of it may be lost.
    pub(super) const fn is_counted(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::TooLarge { .. } | Self::Busy { .. })
    }
}

/// Response to a pull, and the connection that it was received over.
pub(super) struct PullResponse {
    pub(super) body: Vec<u8>,
    /// Number of the connection. The same process has answered all pulls of one connection.
    pub(super) connection: u64,
    /// Turn of a long response, until it is decoded.
    pub(super) _turn: Option<LongPull>,
}

/// Client of one engine. It follows no redirect, uses no proxy, and keeps one connection.
pub(super) struct PullClient {
    agent: Agent,
    url: String,
    opened: Arc<AtomicU64>,
    long_pulls: Arc<LongPulls>,
    metrics: Arc<Metrics>,
}

impl PullClient {
    pub(super) fn new(listener: &Listener, networks: &EngineNetworks, long_pulls: Arc<LongPulls>) -> Self {
        let opened = Arc::new(AtomicU64::new(0));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect or a proxy would choose the host that this service connects to.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT_DEADLINE))
            .timeout_global(Some(PULL_DEADLINE))
            .build();
        let connector = CountingConnector { system: DefaultConnector::default(), opened: Arc::clone(&opened) };
        let resolver =
            EngineResolver { system: DefaultResolver::default(), networks: networks.clone(), found: Mutex::default() };
        let agent = Agent::with_parts(config, connector, resolver);
        let (url, metrics) = (format!("{}{PATH}", listener.options.endpoint), Arc::clone(listener.model.metrics()));
        Self { agent, url, opened, long_pulls, metrics }
    }

    /// Pulls the events since the last pull.
    pub(super) fn pull(&self) -> Result<PullResponse, PullError> {
        let until = Instant::now() + PULL_DEADLINE;
        let request = self.agent.post(&self.url).header("accept", "application/json");
        let mut response = request.send_empty().map_err(|error| self.unreachable(error))?;
        let status = response.status();
        if status.as_u16() != 200 {
            let text = response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
            let what = match status.is_redirection() {
                true => ", a redirect, which is not followed".to_owned(),
                false if text.is_empty() => String::new(),
                false => format!(": {:?}", shorten(text)),
            };
            return Err(PullError::Status { url: self.url.clone(), status: status.as_u16(), what });
        }
        // The reader has its own limit, which is below that of long responses.
        let reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let (body, turn) = self.read(reader, until)?;
        Ok(PullResponse { body, connection: self.opened.load(Ordering::Relaxed), _turn: turn })
    }

    /// Reads a body. A long one waits for its turn among other long ones.
    fn read(&self, mut reader: impl Read, until: Instant) -> Result<(Vec<u8>, Option<LongPull>), PullError> {
        let mut body = Vec::new();
        let failed = |error: std::io::Error| self.unreachable(Error::Io(error));
        reader.by_ref().take(SHORT_BYTES_MAX as u64).read_to_end(&mut body).map_err(failed)?;
        if body.len() < SHORT_BYTES_MAX {
            return Ok((body, None));
        }
        let Some(turn) = self.long_pulls.begin(until, &self.metrics) else {
            return Err(PullError::Busy { url: self.url.clone() });
        };
        let rest_max = RESPONSE_BYTES_MAX - SHORT_BYTES_MAX + 1;
        reader.take(rest_max as u64).read_to_end(&mut body).map_err(failed)?;
        if body.len() > RESPONSE_BYTES_MAX {
            self.metrics.limit_reached(Limit::PulledBytes);
            return Err(PullError::TooLarge { url: self.url.clone() });
        }
        Ok((body, Some(turn)))
    }

    fn unreachable(&self, error: Error) -> PullError {
        let url = self.url.clone();
        if let Error::Other(other) = &error
            && let Some(&refused) = other.downcast_ref::<RefusedAddress>()
        {
            self.metrics.limit_reached(Limit::Addresses);
            return PullError::Refused { url, refused };
        }
        PullError::Unreachable { url, why: shorten(error.to_string()) }
    }
}

/// System resolver that leaves out addresses that engines must not use. The client asks it before every pull.
#[derive(Debug)]
struct EngineResolver {
    system: DefaultResolver,
    networks: EngineNetworks,
    found: Mutex<Option<(Instant, ResolvedSocketAddrs)>>,
}

impl Resolver for EngineResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        if let Some((at, found)) = &*self.found.lock()
            && at.elapsed() < ADDRESSES_AGE_MAX
        {
            return Ok(found.clone());
        }
        let found = self.system.resolve(uri, config, timeout)?;
        let permitted = self.networks.permitted(&found).map_err(|refused| Error::Other(Box::new(refused)))?;
        let mut allowed = self.empty();
        permitted.into_iter().for_each(|address| allowed.push(address));
        *self.found.lock() = Some((Instant::now(), allowed.clone()));
        Ok(allowed)
    }
}

/// Connector that counts its connections.
#[derive(Debug)]
struct CountingConnector {
    system: DefaultConnector,
    opened: Arc<AtomicU64>,
}

impl Connector for CountingConnector {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, Error> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.system.connect(details, chained)
    }
}
