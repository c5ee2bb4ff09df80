//! Bounds that were reached.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Metrics, registered, resolved};

/// Something that is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Messages or bytes that wait to be decoded.
    Queue,
    /// Messages or bytes of one pod that wait to be decoded.
    PodQueue,
    /// Pods that wait to be registered, and their messages.
    Arrivals,
    /// Pods that have registered themselves.
    Pods,
    /// Models that pods have added by registering themselves.
    PodModels,
    /// Changes that wait for a writer.
    WriterQueue,
    /// Live messages that wait for earlier ones.
    WaitingMessages,
    /// Ranks named in one stream.
    RanksPerListener,
    /// Blocks of a rank that wait for a parent.
    WaitingBlocks,
    /// Names of one prefix in one rank.
    Twins,
    /// Cache groups of a rank, and blocks in one.
    CacheGroups,
    /// Open HTTP connections.
    Connections,
    /// A request's body.
    BodyBytes,
    /// Dumps at a time.
    Dumps,
    /// Digests that are waited for at a time.
    Digests,
    /// Peers that are known.
    Peers,
    /// Explanations at a time.
    Explanations,
    /// Pairs of model and tenant.
    Models,
    /// Registered ranks.
    Listeners,
    /// Blocks whose recent uses are counted.
    RecentUses,
    /// Blocks that pods are predicted to hold.
    PredictedBlocks,
    /// Lookups of tiers that wait for writers, and their time.
    TierLookups,
    /// The wait of a registration, or its end, for threads that have a part in it.
    RegistrationWait,
    /// Ranks that a source of discovery may name.
    DiscoveryTargets,
    /// Bytes of a name, an endpoint or a salt; also counts names with control characters.
    Names,
    /// Addresses and paths that no engine or peer may have.
    Addresses,
}

impl Bound {
    const ALL: [Self; 26] = [
        Self::Queue,
        Self::PodQueue,
        Self::Arrivals,
        Self::Pods,
        Self::PodModels,
        Self::WriterQueue,
        Self::WaitingMessages,
        Self::RanksPerListener,
        Self::WaitingBlocks,
        Self::Twins,
        Self::CacheGroups,
        Self::Connections,
        Self::BodyBytes,
        Self::Dumps,
        Self::Digests,
        Self::Peers,
        Self::Explanations,
        Self::Models,
        Self::Listeners,
        Self::RecentUses,
        Self::PredictedBlocks,
        Self::TierLookups,
        Self::RegistrationWait,
        Self::DiscoveryTargets,
        Self::Names,
        Self::Addresses,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::PodQueue => "pod_queue",
            Self::Arrivals => "arrivals",
            Self::Pods => "pods",
            Self::PodModels => "pod_models",
            Self::WriterQueue => "writer_queue",
            Self::WaitingMessages => "waiting_messages",
            Self::RanksPerListener => "ranks_per_listener",
            Self::WaitingBlocks => "waiting_blocks",
            Self::Twins => "twins",
            Self::CacheGroups => "cache_groups",
            Self::Connections => "connections",
            Self::BodyBytes => "body_bytes",
            Self::Dumps => "dumps",
            Self::Digests => "digests",
            Self::Peers => "peers",
            Self::Explanations => "explanations",
            Self::Models => "models",
            Self::Listeners => "listeners",
            Self::RecentUses => "recent_uses",
            Self::PredictedBlocks => "predicted_blocks",
            Self::TierLookups => "tier_lookups",
            Self::RegistrationWait => "registration_wait",
            Self::DiscoveryTargets => "discovery_targets",
            Self::Names => "names",
            Self::Addresses => "addresses",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    bound: &'static str,
}

#[derive(Debug)]
pub(super) struct LimitMetrics {
    reached: [Counter; Bound::ALL.len()],
}

impl LimitMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Times that a bound was reached, by bound";
        let family = registered(registry, "bounds_reached", help, Family::<LimitLabel, Counter>::default());
        Self { reached: resolved(&family, Bound::ALL, |bound| LimitLabel { bound: bound.as_str() }) }
    }
}

impl Metrics {
    /// A bound was reached: something was refused, dropped or made to wait.
    pub fn bound(&self, bound: Bound) {
        self.bounded(bound, 1);
    }

    /// How often a bound was reached.
    /// Value of the counter, for tests.
    #[must_use]
    pub fn bound_reached(&self, bound: Bound) -> u64 {
        self.bounds.reached[bound as usize].get()
    }

    /// A bound was reached for so many things.
    pub fn bounded(&self, bound: Bound, times: u64) {
        self.bounds.reached[bound as usize].inc_by(times);
    }
}
