//! What the service counts, as text that Prometheus reads.
//!
//! Counters live where things happen, one file for each area; what is a state rather than a count is
//! looked at when somebody asks ([`State`]). What happens for each event or message is counted with
//! handles that are resolved once, without a lock.

mod discovery;
mod format;
mod histogram;
mod ingest;
mod limits;
mod peers;
mod process;
mod requests;
mod rpc;
mod scores;
mod state;
mod threads;
mod tokenization;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use self::format::TextFormat;
pub use self::limits::Bound;
pub use self::requests::Endpoint;
pub use self::state::{Families, ListenerState, ModelCounts, ModelState, QueueState, State, StateSection};
pub use self::tokenization::TokenizedPrompt;

use self::discovery::DiscoveryMetrics;
use self::ingest::IngestMetrics;
use self::limits::LimitMetrics;
use self::peers::PeerMetrics;
use self::process::Process;
use self::requests::RequestMetrics;
use self::rpc::RpcMetrics;
use self::scores::ScoreMetrics;
use self::threads::ThreadMetrics;
use self::tokenization::TokenizationMetrics;

const PREFIX: &str = "flash_indexer";
/// Prefix of the names by which an earlier indexer's dashboards know the same figures.
const COMPAT_PREFIX: &str = "dynamo_kvindexer";

/// Everything that the service counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Some of it again, by the names of [`COMPAT_PREFIX`].
    compat: Option<Registry>,
    process: Process,
    requests: RequestMetrics,
    ingest: IngestMetrics,
    peers: PeerMetrics,
    scores: ScoreMetrics,
    tokenization: TokenizationMetrics,
    rpc: RpcMetrics,
    discovery: DiscoveryMetrics,
    bounds: LimitMetrics,
    threads: ThreadMetrics,
}

/// Which names the metrics have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricNames {
    /// `flash_indexer_…`
    Own,
    /// Those, and some again as `dynamo_kvindexer_…`.
    OwnAndCompat,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

impl Metrics {
    /// Metrics under these names, all zero.
    pub fn new(names: MetricNames) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let mut compat = (names == MetricNames::OwnAndCompat).then(|| Registry::with_prefix(COMPAT_PREFIX));
        registry.register("build", "The program", Info::new(Build { version: env!("CARGO_PKG_VERSION") }));
        let requests = RequestMetrics::register(&mut registry, compat.as_mut());
        let ingest = IngestMetrics::register(&mut registry);
        let peers = PeerMetrics::register(&mut registry);
        let scores = ScoreMetrics::register(&mut registry);
        let tokenization = TokenizationMetrics::register(&mut registry);
        let rpc = RpcMetrics::register(&mut registry);
        let discovery = DiscoveryMetrics::register(&mut registry);
        let bounds = LimitMetrics::register(&mut registry);
        let threads = ThreadMetrics::register(&mut registry);
        Self {
            registry,
            compat,
            process: Process::new(),
            requests,
            ingest,
            peers,
            scores,
            tokenization,
            rpc,
            discovery,
            bounds,
            threads,
        }
    }

    /// The text of all metrics. Linear in the number of models.
    pub fn encode(&self, state: State, format: TextFormat) -> String {
        let mut text = String::new();
        let now = self.at_this_moment(state);
        let registries = [Some(&self.registry), self.compat.as_ref()].into_iter().flatten();
        for registry in registries.chain(&now) {
            encode_registry(&mut text, registry).expect("writing to a String cannot fail");
        }
        format.finish(text)
    }

    fn at_this_moment(&self, state: State) -> Vec<Registry> {
        let (models, workers) = (state.models.len(), state.instances());
        let mut own = Registry::with_prefix(PREFIX);
        own.register_collector(Box::new(state));
        let mut process = Registry::default();
        process.register_collector(Box::new(self.process));
        let mut registries = vec![own, process];
        if self.compat.is_some() {
            let mut compat = Registry::with_prefix(COMPAT_PREFIX);
            for (name, help, value) in
                [("models", "Pairs of model and tenant", models), ("workers", "Registered instances", workers)]
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

/// Registers a metric and hands it out.
fn registered<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
where
    M: prometheus_client::registry::Metric + Clone,
{
    registry.register(name, help, metric.clone());
    metric
}

/// One handle for each of a fixed set of labels: no lookup and no lock where it is counted, and every
/// series is there from the start.
fn resolved<L, M, T: Copy, const N: usize>(family: &Family<L, M>, all: [T; N], label: impl Fn(T) -> L) -> [M; N]
where
    L: Clone + std::hash::Hash + Eq,
    M: Clone + Default,
{
    all.map(|one| family.get_or_create_owned(&label(one)))
}
