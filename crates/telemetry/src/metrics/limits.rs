//! Limits that were reached.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::{Metrics, registered, resolved};

flash_indexer_types::named_enum! {
    /// Limit of a queue, a table or a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Limit {
        /// Bytes of messages that are received and not applied yet.
        Queue = "queue",
        /// Pending registrations, and the messages that they keep.
        PendingRegistrations = "arrivals",
        /// Ranks registered because their engine connected.
        Pods = "pods",
        /// Models added by engines that connected.
        PodModels = "pod_models",
        /// Bytes of one engine's messages that are decoded and not applied yet.
        WriterQueue = "writer_queue",
        /// Live messages kept back until a gap before them is repaired.
        WaitingMessages = "waiting_messages",
        /// Ranks in one stream.
        RanksPerListener = "ranks_per_listener",
        /// Blocks of a rank whose parent has not been stored yet.
        WaitingBlocks = "waiting_blocks",
        /// Sequence hashes of one prefix in one rank.
        Twins = "twins",
        /// Blocks of a rank that a redefined sequence hash moves.
        MovedBlocks = "moved_blocks",
        /// Salted blocks of a rank.
        SaltedBlocks = "salted_blocks",
        /// Blocks of a rank whose events name their manager.
        OwnedBlocks = "owned_blocks",
        /// Unknown fields of events in one stream.
        UnknownFields = "unknown_fields",
        /// Cache groups of a rank, and blocks in one.
        CacheGroups = "cache_groups",
        /// Shared caches that a rank is attached to.
        SharedCaches = "shared_caches",
        /// Open HTTP connections.
        Connections = "connections",
        /// Bytes of a request's body.
        BodyBytes = "body_bytes",
        /// Bytes of all bodies that are received and not answered.
        BodyBytesTotal = "body_bytes_total",
        /// Bytes of all answers that are not sent yet.
        AnswerBytesTotal = "answer_bytes_total",
        /// Time without progress of answers that wait for their client to read.
        UnreadAnswers = "unread_answers",
        /// Requests with large bodies that wait for a thread.
        LargeRequests = "large_requests",
        /// Concurrent dumps.
        Dumps = "dumps",
        /// Concurrent digests.
        Digests = "digests",
        /// Registered peers.
        Peers = "peers",
        /// Concurrent subscribers of the dashboard's live figures.
        DashboardSubscribers = "dashboard_subscribers",
        /// Concurrent explanations.
        Explanations = "explanations",
        /// Model and tenant pairs.
        Models = "models",
        /// Registered ranks.
        Listeners = "listeners",
        /// Blocks with a count of recent uses.
        RecentUses = "recent_uses",
        /// Predicted blocks.
        PredictedBlocks = "predicted_blocks",
        /// Blocks of instances without events.
        RoutedBlocks = "routed_blocks",
        /// Requests in flight that routers report.
        RequestsInFlight = "requests_in_flight",
        /// Requests in flight of each instance that is ready, for the endpoint picker.
        InstanceRequests = "instance_requests",
        /// Concurrent tier lookups on writer threads, and their time.
        TierLookups = "tier_lookups",
        /// Concurrent waits for writers that apply predictions, and their time.
        PredictionWaits = "prediction_waits",
        /// Time that a registration or unregistration waits for other threads.
        RegistrationWait = "registration_wait",
        /// Ranks listed by one discovery source.
        DiscoveryTargets = "discovery_targets",
        /// Bytes of a name, an endpoint or a salt. Names with control characters also count.
        Names = "names",
        /// Addresses and paths that engines and peers must not use.
        Addresses = "addresses",
        /// Engines whose events are pulled.
        PulledEngines = "pulled_engines",
        /// Bytes of an engine's response to a pull.
        PulledBytes = "pulled_bytes",
        /// Long responses to pulls that are received at a time.
        LongPulls = "long_pulls",
        /// Ranks whose events are streamed over gRPC.
        StreamedRanks = "streamed_ranks",
        /// Bytes of a batch that is streamed over gRPC.
        StreamedBytes = "streamed_bytes",
        /// Snapshots that are received over gRPC at a time, and their bytes.
        Snapshots = "snapshots",
        /// Blocks of a pulled engine outside device memory, and partial ones.
        FollowedBlocks = "followed_blocks",
        /// Blocks that a tenant's ranks hold.
        TenantHeldBlocks = "tenant_held_blocks",
        /// Registered ranks of a tenant.
        TenantRanks = "tenant_ranks",
        /// Queries of a tenant.
        TenantQueries = "tenant_queries",
        /// Prompt tokens of a tenant.
        TenantPromptTokens = "tenant_prompt_tokens",
        /// Spans that wait to be sent to the collector.
        QueuedSpans = "queued_spans",
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
