//! Limits that were reached.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::{Metrics, registered, resolved};

/// Limit of a queue, a table or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Bytes of messages that are received and not applied yet.
    Queue,
    /// Pending registrations, and the messages that they keep.
    PendingRegistrations,
    /// Ranks registered because their engine connected.
    Pods,
    /// Models added by engines that connected.
    PodModels,
    /// Bytes of one engine's messages that are decoded and not applied yet.
    WriterQueue,
    /// Live messages kept back until a gap before them is repaired.
    WaitingMessages,
    /// Ranks in one stream.
    RanksPerListener,
    /// Blocks of a rank whose parent has not been stored yet.
    WaitingBlocks,
    /// Sequence hashes of one prefix in one rank.
    Twins,
    /// Blocks of a rank that a redefined sequence hash moves.
    MovedBlocks,
    /// Salted blocks of a rank.
    SaltedBlocks,
    /// Blocks of a rank whose events name their manager.
    OwnedBlocks,
    /// Unknown fields of events in one stream.
    UnknownFields,
    /// Cache groups of a rank, and blocks in one.
    CacheGroups,
    /// Shared caches that a rank is attached to.
    SharedCaches,
    /// Open HTTP connections.
    Connections,
    /// Bytes of a request's body.
    BodyBytes,
    /// Bytes of all bodies that are received and not answered.
    BodyBytesTotal,
    /// Bytes of all answers that are not sent yet.
    AnswerBytesTotal,
    /// Time without progress of answers that wait for their client to read.
    UnreadAnswers,
    /// Requests with large bodies that wait for a thread.
    LargeRequests,
    /// Concurrent dumps.
    Dumps,
    /// Concurrent digests.
    Digests,
    /// Registered peers.
    Peers,
    /// Concurrent subscribers of the dashboard's live figures.
    DashboardSubscribers,
    /// Concurrent explanations.
    Explanations,
    /// Model and tenant pairs.
    Models,
    /// Registered ranks.
    Listeners,
    /// Blocks with a count of recent uses.
    RecentUses,
    /// Predicted blocks.
    PredictedBlocks,
    /// Blocks of instances without events.
    RoutedBlocks,
    /// Requests in flight that routers report.
    RequestsInFlight,
    /// Requests in flight of each instance that is ready, for the endpoint picker.
    InstanceRequests,
    /// Concurrent tier lookups on writer threads, and their time.
    TierLookups,
    /// Concurrent waits for writers that apply predictions, and their time.
    PredictionWaits,
    /// Time that a registration or unregistration waits for other threads.
    RegistrationWait,
    /// Ranks listed by one discovery source.
    DiscoveryTargets,
    /// Bytes of a name, an endpoint or a salt. Names with control characters also count.
    Names,
    /// Addresses and paths that engines and peers must not use.
    Addresses,
    /// Engines whose events are pulled.
    PulledEngines,
    /// Bytes of an engine's response to a pull.
    PulledBytes,
    /// Long responses to pulls that are received at a time.
    LongPulls,
    /// Ranks whose events are streamed over gRPC.
    StreamedRanks,
    /// Bytes of a batch that is streamed over gRPC.
    StreamedBytes,
    /// Snapshots that are received over gRPC at a time, and their bytes.
    Snapshots,
    /// Blocks of a pulled engine outside device memory, and partial ones.
    FollowedBlocks,
    /// Blocks that a tenant's ranks hold.
    TenantHeldBlocks,
    /// Registered ranks of a tenant.
    TenantRanks,
    /// Queries of a tenant.
    TenantQueries,
    /// Prompt tokens of a tenant.
    TenantPromptTokens,
    /// Spans that wait to be sent to the collector.
    QueuedSpans,
}

impl Limit {
    const ALL: [Self; 51] = [
        Self::Queue,
        Self::PendingRegistrations,
        Self::Pods,
        Self::PodModels,
        Self::WriterQueue,
        Self::WaitingMessages,
        Self::RanksPerListener,
        Self::WaitingBlocks,
        Self::Twins,
        Self::MovedBlocks,
        Self::SaltedBlocks,
        Self::OwnedBlocks,
        Self::UnknownFields,
        Self::CacheGroups,
        Self::SharedCaches,
        Self::Connections,
        Self::BodyBytes,
        Self::BodyBytesTotal,
        Self::AnswerBytesTotal,
        Self::UnreadAnswers,
        Self::LargeRequests,
        Self::Dumps,
        Self::Digests,
        Self::Peers,
        Self::DashboardSubscribers,
        Self::Explanations,
        Self::Models,
        Self::Listeners,
        Self::RecentUses,
        Self::PredictedBlocks,
        Self::RoutedBlocks,
        Self::RequestsInFlight,
        Self::InstanceRequests,
        Self::TierLookups,
        Self::PredictionWaits,
        Self::RegistrationWait,
        Self::DiscoveryTargets,
        Self::Names,
        Self::Addresses,
        Self::PulledEngines,
        Self::PulledBytes,
        Self::LongPulls,
        Self::StreamedRanks,
        Self::StreamedBytes,
        Self::Snapshots,
        Self::FollowedBlocks,
        Self::TenantHeldBlocks,
        Self::TenantRanks,
        Self::TenantQueries,
        Self::TenantPromptTokens,
        Self::QueuedSpans,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::PendingRegistrations => "arrivals",
            Self::Pods => "pods",
            Self::PodModels => "pod_models",
            Self::WriterQueue => "writer_queue",
            Self::WaitingMessages => "waiting_messages",
            Self::RanksPerListener => "ranks_per_listener",
            Self::WaitingBlocks => "waiting_blocks",
            Self::Twins => "twins",
            Self::MovedBlocks => "moved_blocks",
            Self::SaltedBlocks => "salted_blocks",
            Self::OwnedBlocks => "owned_blocks",
            Self::UnknownFields => "unknown_fields",
            Self::CacheGroups => "cache_groups",
            Self::SharedCaches => "shared_caches",
            Self::Connections => "connections",
            Self::BodyBytes => "body_bytes",
            Self::BodyBytesTotal => "body_bytes_total",
            Self::AnswerBytesTotal => "answer_bytes_total",
            Self::UnreadAnswers => "unread_answers",
            Self::LargeRequests => "large_requests",
            Self::Dumps => "dumps",
            Self::Digests => "digests",
            Self::Peers => "peers",
            Self::DashboardSubscribers => "dashboard_subscribers",
            Self::Explanations => "explanations",
            Self::Models => "models",
            Self::Listeners => "listeners",
            Self::RecentUses => "recent_uses",
            Self::PredictedBlocks => "predicted_blocks",
            Self::RoutedBlocks => "routed_blocks",
            Self::RequestsInFlight => "requests_in_flight",
            Self::InstanceRequests => "instance_requests",
            Self::TierLookups => "tier_lookups",
            Self::PredictionWaits => "prediction_waits",
            Self::RegistrationWait => "registration_wait",
            Self::DiscoveryTargets => "discovery_targets",
            Self::Names => "names",
            Self::Addresses => "addresses",
            Self::PulledEngines => "pulled_engines",
            Self::PulledBytes => "pulled_bytes",
            Self::LongPulls => "long_pulls",
            Self::StreamedRanks => "streamed_ranks",
            Self::StreamedBytes => "streamed_bytes",
            Self::Snapshots => "snapshots",
            Self::FollowedBlocks => "followed_blocks",
            Self::TenantHeldBlocks => "tenant_held_blocks",
            Self::TenantRanks => "tenant_ranks",
            Self::TenantQueries => "tenant_queries",
            Self::TenantPromptTokens => "tenant_prompt_tokens",
            Self::QueuedSpans => "queued_spans",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

/// Label of the deprecated metric name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BoundLabel {
    bound: &'static str,
}

#[derive(Debug)]
pub(super) struct LimitMetrics {
    reached: [Counter; Limit::ALL.len()],
}

impl LimitMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Times that a limit was reached, by limit";
        let family = registered(registry, "limit_reached", help, Family::<LimitLabel, Counter>::default());
        let reached = resolved(&family, Limit::ALL, |limit| LimitLabel { limit: limit.as_str() });
        registry.register("bounds_reached", "Alias of limit_reached until 1.0", BoundsReached(reached.clone()));
        Self { reached }
    }
}

/// The counters of `limit_reached` under the old metric name `bounds_reached` and the old label `bound`.
#[derive(Debug)]
struct BoundsReached([Counter; Limit::ALL.len()]);

impl EncodeMetric for BoundsReached {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (limit, counter) in Limit::ALL.into_iter().zip(&self.0) {
            counter.encode(encoder.encode_family(&BoundLabel { bound: limit.as_str() })?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        Counter::<u64>::TYPE
    }
}

impl Metrics {
    /// Counts one item that was refused, dropped or delayed because of a limit.
    pub fn limit_reached(&self, limit: Limit) {
        self.limit_reached_by(limit, 1);
    }

    /// Counts several items that were refused, dropped or delayed because of a limit.
    pub fn limit_reached_by(&self, limit: Limit, items: u64) {
        self.limits.reached[limit as usize].inc_by(items);
    }

    /// Value of a limit's counter.
    #[must_use]
    pub fn limit_reached_count(&self, limit: Limit) -> u64 {
        self.limits.reached[limit as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;

    use super::*;
    use crate::metrics::MetricNames;

    #[test]
    fn the_old_metric_name_is_an_alias_of_the_new_one() {
        let metrics = Metrics::new(MetricNames::Own);
        metrics.limit_reached(Limit::Dumps);
        metrics.limit_reached_by(Limit::Dumps, 2);
        let mut text = String::new();
        encode_registry(&mut text, &metrics.registry).expect("writing to a String cannot fail");
        for line in [
            "# TYPE flash_indexer_limit_reached counter",
            "flash_indexer_limit_reached_total{limit=\"dumps\"} 3",
            "flash_indexer_limit_reached_total{limit=\"peers\"} 0",
            "# HELP flash_indexer_bounds_reached Alias of limit_reached until 1.0.",
            "# TYPE flash_indexer_bounds_reached counter",
            "flash_indexer_bounds_reached_total{bound=\"dumps\"} 3",
            "flash_indexer_bounds_reached_total{bound=\"peers\"} 0",
        ] {
            assert!(text.lines().any(|given| given == line), "{line} is missing: {text}");
        }
        assert_eq!(text.matches("flash_indexer_bounds_reached_total{").count(), Limit::ALL.len());
    }
}
