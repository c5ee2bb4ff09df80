//! Export of requests' spans to a collector: OTLP over HTTP, as protobuf.
//!
//! ```text
//!  requests ──ended spans──▶ bounded queue ──▶ one thread ──POST /v1/traces──▶ collector
//! ```
//!
//! A request never waits for the collector: a span that finds the queue full is dropped and counted. The thread sends batches. It
//! repeats a batch until the collector receives it. A short outage loses no span that fits into the queue.
//!
//! | file | role |
//! |---|---|
//! | `endpoint.rs` | the URL of a collector |
//! | `ratio.rs` | the share of requests that begin a trace |
//! | `queue.rs` | the queue of ended spans |
//! | `collector.rs` | requests to the collector, and its answers |
//! | `export.rs` | the thread that sends batches |

mod collector;
mod endpoint;
mod export;
mod queue;
mod ratio;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use flash_indexer_credentials::{ClientCredentials, ClientFiles, CredentialsError};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_traces::Tracer;
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::{info, warn};

use self::collector::Collector;
pub use self::endpoint::{OtlpEndpoint, OtlpEndpointError};
use self::export::Export;
use self::queue::SpanQueue;
pub use self::ratio::{SampleRatio, SampleRatioError};

/// Spans that wait to be sent, of about 1 KiB each. Further spans are dropped.
const QUEUED_SPANS_MAX: usize = 8_192;
/// Longest time for a request to the collector.
const SEND_DEADLINE: Duration = Duration::from_secs(5);

/// Options of the export.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// The collector.
    pub endpoint: OtlpEndpoint,
    /// Share of the requests without a caller's context that are traced.
    pub sample_ratio: SampleRatio,
    /// Credentials for the collector.
    pub credentials: ClientFiles,
    /// Limit of the spans that wait to be sent.
    pub queued_spans_max: usize,
    /// Longest time for a request to the collector.
    pub send_deadline: Duration,
}

impl OtlpOptions {
    /// The usual options for a collector.
    #[must_use]
    pub fn to(endpoint: OtlpEndpoint) -> Self {
        Self {
            endpoint,
            sample_ratio: SampleRatio::default(),
            credentials: ClientFiles::default(),
            queued_spans_max: QUEUED_SPANS_MAX,
            send_deadline: SEND_DEADLINE,
        }
    }
}

/// Failure to start the export.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// A file of the credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The operating system refuses a thread.
    #[error("failed to start a thread: {0}; raise the limit of threads")]
    Thread(#[from] io::Error),
}

/// A running export. Without [`Exporter::stop`], the waiting spans are dropped with it.
#[derive(Debug)]
pub struct Exporter {
    endpoint: OtlpEndpoint,
    tracer: Tracer,
    stop: Sender<Instant>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Exporter {
    /// Starts the export. `instance_id` identifies the process in traces.
    ///
    /// The collector is not contacted before the first span. The thread is not supervised: a service without traces is ready.
    ///
    /// # Errors
    ///
    /// If a file cannot be used, or the system refuses a thread.
    pub fn start(options: &OtlpOptions, instance_id: &str, metrics: &Arc<Metrics>) -> Result<Self, OtlpError> {
        let credentials = ClientCredentials::load(&options.credentials)?;
        let resource = resource(instance_id);
        let collector = Collector::new(&options.endpoint, options.send_deadline, &credentials, &resource);
        let (queue, spans) = SpanQueue::new(options.queued_spans_max, metrics);
        let (stop, stopped) = bounded(1);
        let (running, ended) = bounded(0);
        let metrics = Arc::clone(metrics);
        let export = Export { spans, stop: stopped, collector, metrics, end: None, outage: None };
        std::thread::Builder::new().name("span-export".to_owned()).spawn(move || {
            // Dropped when the thread ends, even by a panic.
            let _running: Sender<()> = running;
            export.run();
        })?;
        info!(endpoint = %options.endpoint, sample_ratio = options.sample_ratio.get(), "tracing requests");
        let root = Sampler::TraceIdRatioBased(options.sample_ratio.get());
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_span_processor(queue);
        Ok(Self { endpoint: options.endpoint.clone(), tracer: Tracer::new(&provider.build()), stop, ended })
    }

    /// The tracer whose spans are exported.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Sends the waiting spans, and ends. Spans that are not sent within `deadline` are dropped and counted. Blocks.
    pub fn stop(self, deadline: Duration) {
        let end = Instant::now() + deadline;
        // A thread that has panicked receives nothing.
        let _ = self.stop.try_send(end);
        if self.ended.recv_deadline(end) == Err(RecvTimeoutError::Timeout) {
            warn!(endpoint = %self.endpoint, ?deadline, "failed to export the last spans: the collector does not answer within the deadline");
        }
    }
}

/// Attributes of the service. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence over the service's own attributes.
fn resource(instance_id: &str) -> Resource {
    let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes([
            KeyValue::new("service.name", "flash-indexer"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance_id.to_owned()),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(name.map(|name| KeyValue::new("service.name", name)))
        .build()
}
