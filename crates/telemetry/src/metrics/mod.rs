//! Metrics of the service in the text formats of Prometheus.
//!
//! Counters and histograms are updated where an event happens. Gauges are computed when metrics are scraped, from a
//! [`State`]. Counters on the path of an event or message are resolved once and updated without a lock.
//!
//! | file | role |
//! |---|---|
//! | `declarations.rs` | declaration of a metric: its name, its help, and the values of its labels |
//! | `descriptions.rs` | descriptions of all metrics and of the values of their labels, for the documentation |
//! | `discovery.rs` | discovery sources and the registrations that discovery makes |
//! | `format.rs` | the classic and the OpenMetrics text format |
//! | `histogram.rs` | a histogram without locks |
//! | `ingest.rs` | messages, gaps, replays, events, blocks, rejections |
//! | `label_values.rs` | values of labels, with their meanings |
//! | `limits.rs` | limits that were reached |
//! | `peers.rs` | recovery from peers and comparison with peers |
//! | `process.rs` | the process as the operating system reports it |
//! | `rejections.rs` | reasons for which messages and events are rejected |
//! | `requests.rs`, `rpc.rs` | HTTP and gRPC requests |
//! | `scores.rs` | scores, predictions and picks |
//! | `spans.rs` | spans of traced requests |
//! | `snapshots.rs` | snapshots on disk, and the source of the index at the start |
//! | `state.rs` | gauges, by model and for the whole service |
//! | `threads.rs` | panics and index replacements |
//! | `tokenization.rs` | tokenization of prompts |

mod declarations;
mod descriptions;
mod discovery;
mod format;
mod histogram;
mod ingest;
mod label_values;
mod limits;
mod peers;
mod process;
mod rejections;
mod requests;
mod rpc;
mod scores;
mod snapshots;
mod spans;
mod state;
mod threads;
mod tokenization;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use self::descriptions::{MetricDescription, describe_labels, describe_metrics};
pub use self::format::TextFormat;
pub use self::ingest::{CurveSocket, PullOutcome, StreamedBatch};
pub use self::label_values::{LabelValue, LabelValues};
pub use self::limits::Limit;
pub use self::requests::{Endpoint, Latencies, ReloadedFile};
pub use self::scores::PickOutcome;
pub use self::spans::SpanOutcome;
pub use self::state::{
    Families, IngestQueueState, ListenerState, ModelCounts, ModelState, QueryTotals, QueueState, State, StateSection,
};
pub use self::tokenization::TokenizedPrompt;

use self::declarations::Declarations;
use self::discovery::DiscoveryMetrics;
use self::ingest::IngestMetrics;
use self::limits::LimitMetrics;
use self::peers::PeerMetrics;
use self::process::Process;
use self::requests::RequestMetrics;
use self::rpc::RpcMetrics;
use self::scores::ScoreMetrics;
use self::snapshots::SnapshotMetrics;
use self::spans::SpanMetrics;
use self::threads::ThreadMetrics;
use self::tokenization::TokenizationMetrics;
use crate::log;

const PREFIX: &str = "flash_indexer";
/// Prefix of the metric names that dashboards of Dynamo's indexer use.
const COMPAT_PREFIX: &str = "dynamo_kvindexer";

/// All counters and histograms of one service.
#[derive(Debug)]
pub struct Metrics {
    declarations: Declarations,
    /// A subset of the metrics under [`COMPAT_PREFIX`].
    compat: Option<Registry>,
    process: Process,
    requests: RequestMetrics,
    ingest: IngestMetrics,
    peers: PeerMetrics,
    snapshots: SnapshotMetrics,
    spans: SpanMetrics,
    scores: ScoreMetrics,
    tokenization: TokenizationMetrics,
    rpc: RpcMetrics,
    discovery: DiscoveryMetrics,
    limits: LimitMetrics,
    threads: ThreadMetrics,
}

/// Metric names that a service exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricNames {
    /// `flash_indexer_…`
    Own,
    /// `flash_indexer_…`, and a subset also as `dynamo_kvindexer_…`.
    OwnAndCompat,
}

impl Metrics {
    /// Creates metrics under these names, all zero.
    pub fn new(names: MetricNames) -> Self {
        let mut declarations = Declarations::new(PREFIX);
        let mut compat = (names == MetricNames::OwnAndCompat).then(|| Registry::with_prefix(COMPAT_PREFIX));
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        declarations.registry.register("build", "Version of the service", build);
        // The fields are in the order in which `/metrics` has their families.
        Self {
            requests: RequestMetrics::declare(&mut declarations, compat.as_mut()),
            ingest: IngestMetrics::declare(&mut declarations),
            peers: PeerMetrics::declare(&mut declarations),
            snapshots: SnapshotMetrics::declare(&mut declarations),
            spans: SpanMetrics::declare(&mut declarations),
            scores: ScoreMetrics::declare(&mut declarations),
            tokenization: TokenizationMetrics::declare(&mut declarations),
            rpc: RpcMetrics::declare(&mut declarations),
            discovery: DiscoveryMetrics::declare(&mut declarations),
            limits: LimitMetrics::declare(&mut declarations),
            threads: ThreadMetrics::declare(&mut declarations),
            process: Process::new(),
            declarations,
            compat,
        }
    }

    /// Encodes all metrics and `state` as text. Linear in the number of models.
    pub fn encode(&self, state: State, format: TextFormat) -> String {
        let mut text = String::new();
        let gauges = self.gauges(state);
        let registries = [Some(&self.declarations.registry), self.compat.as_ref()].into_iter().flatten();
        for registry in registries.chain(&gauges) {
            encode_registry(&mut text, registry).expect("writing to a String cannot fail");
        }
        format.finish(text)
    }

    /// Registries of the values that are computed for each scrape.
    fn gauges(&self, state: State) -> Vec<Registry> {
        let (models, workers) = (state.models.len(), state.instances());
        let mut own = Registry::with_prefix(PREFIX);
        own.register_collector(Box::new(state));
        let help = "Log lines that were dropped because the log was not read fast enough";
        own.register("log_lines_dropped", help, ConstCounter::new(log::dropped_lines()));
        let mut process = Registry::default();
        process.register_collector(Box::new(self.process));
        let mut registries = vec![own, process];
        if self.compat.is_some() {
            let mut compat = Registry::with_prefix(COMPAT_PREFIX);
            for (name, help, value) in
                [("models", "Model and tenant pairs", models), ("workers", "Registered instances", workers)]
            {
                let gauge: Gauge = Gauge::default();
                gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
                compat.register(name, help, gauge);
            }
            registries.push(compat);
        }
        registries
    }
}
