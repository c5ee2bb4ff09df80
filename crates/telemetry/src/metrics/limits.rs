//! Limits that were reached.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::Metrics;
use super::declarations::Declarations;

flash_indexer_types::named_enum! {
    /// Limit of a queue, a table or a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Limit {
        /// Bytes of messages that are received and not applied yet. The newest messages of the engine with the largest
        /// queue were dropped, and must be replayed.
        Queue = "queue",
        /// Pods that wait for their registration, and the messages that they keep.
        PendingRegistrations = "pending_registrations",
        /// Ranks that register themselves because their engine connected: `--pods-max`.
        Pods = "pods",
        /// Models that pods add by their topics: `--pod-models-max`.
        PodModels = "pod_models",
        /// Bytes of one engine's messages that are decoded and not applied yet. Further messages waited undecoded.
        WriterQueue = "writer_queue",
        /// Live messages kept back until a gap before them is repaired. Further ones were dropped, and are replayed in
        /// turn.
        WaitingMessages = "waiting_messages",
        /// Ranks in one stream.
        RanksPerListener = "ranks_per_listener",
        /// Blocks of a rank whose parent has not been stored yet.
        WaitingBlocks = "waiting_blocks",
        /// Sequence hashes of one prefix in one rank.
        Twins = "twins",
        /// Blocks that a redefined sequence hash moves: thousands follow it. The index dropped what the rank held, and
        /// the rank is `degraded`.
        MovedBlocks = "moved_blocks",
        /// Salted blocks of a rank: 1,048,576, or one whose salt may be forgotten was stored. Such stores are left out,
        /// and the rank is `degraded`.
        SaltedBlocks = "salted_blocks",
        /// Managers of a rank's copies: 8, 65,536 copies, and 256 MiB for a decoder. They were forgotten, or a clear of
        /// one manager's blocks was rejected, because these are unknown.
        ManagedCopies = "managed_copies",
        /// Unknown fields of the events of one stream: 64. Further ones are not logged.
        UnknownFields = "unknown_fields",
        /// Cache groups of a rank, and blocks in one. The rank is `degraded`.
        CacheGroups = "cache_groups",
        /// Shared caches that a rank is attached to: 8. The registration is rejected.
        SharedCaches = "shared_caches",
        /// Open connections: `--connections-max`. Idle and slow ones were closed for new ones.
        Connections = "connections",
        /// Bytes of a request's body: `--body-bytes-max`.
        BodyBytes = "body_bytes",
        /// Bytes of all bodies that are received and not answered, or of those of one client. Requests were refused.
        BodyBytesTotal = "body_bytes_total",
        /// Bytes of all answers that clients have not read, or of those of one client. Requests were refused.
        AnswerBytesTotal = "answer_bytes_total",
        /// Time in which a client reads nothing of its answers: 60 s. Its connection was closed.
        UnreadAnswers = "unread_answers",
        /// Requests with bodies above 256 KiB that wait for a thread, of all clients or of one. Further ones were
        /// refused.
        LargeRequests = "large_requests",
        /// Dumps at a time.
        Dumps = "dumps",
        /// Digests at a time.
        Digests = "digests",
        /// Registered peers.
        Peers = "peers",
        /// Subscribers of the dashboard's live figures: 16.
        DashboardSubscribers = "dashboard_subscribers",
        /// Explanations at a time.
        Explanations = "explanations",
        /// Pairs of model and tenant.
        Models = "models",
        /// Registered ranks.
        Listeners = "listeners",
        /// Blocks with a count of recent uses. Counts in `frequencies` are too low.
        RecentUses = "recent_uses",
        /// Predicted blocks: 1,048,576. Predictions were dropped before their time.
        PredictedBlocks = "predicted_blocks",
        /// Blocks of instances without events: 4,194,304. They were dropped before their time.
        RoutedBlocks = "routed_blocks",
        /// Requests in flight that routers report: 65,536. The ones that were reported first were dropped.
        RequestsInFlight = "requests_in_flight",
        /// Requests in flight of each ready pod, for the endpoint picker: `--endpoint-picker-requests-max`. The client
        /// gets 429.
        InstanceRequests = "instance_requests",
        /// Lookups of tiers on writer threads at a time, and their time. Scores were lower bounds.
        TierLookups = "tier_lookups",
        /// Waits for writers that apply predictions, and their time. A prediction for an instance without events was
        /// answered before its blocks counted.
        PredictionWaits = "prediction_waits",
        /// Time that a registration or its end waits for other threads, which continue after the answer.
        RegistrationWait = "registration_wait",
        /// Ranks that one discovery source names: 16,384. The source fails.
        DiscoveryTargets = "discovery_targets",
        /// Bytes of a name, an endpoint or a salt, from a client or from a replica through the shared store. Names with
        /// control characters count too.
        Names = "names",
        /// Addresses and paths to which the service may connect. A client, a discovery source or a DNS name gave another
        /// one.
        Addresses = "addresses",
        /// Engines registered with an HTTP endpoint: 256. Further ones are refused.
        PulledEngines = "pulled_engines",
        /// Bytes of an engine's response to a pull: 64 MiB. Its events are lost.
        PulledBytes = "pulled_bytes",
        /// Responses of more than 256 KiB that are received at a time: four. Further ones waited.
        LongPulls = "long_pulls",
        /// Ranks registered with a gRPC endpoint: 256. Further ones are refused.
        StreamedRanks = "streamed_ranks",
        /// Bytes of a batch over gRPC: 16 MiB. It is lost.
        StreamedBytes = "streamed_bytes",
        /// Snapshots that are received over gRPC at a time: four, of which further ones waited; and their bytes: 64 MiB,
        /// above which one is left out.
        Snapshots = "snapshots",
        /// Blocks outside device memory, and partial ones, of an engine that is read over HTTP: 524,288. The event is
        /// left out, and the rank is `degraded`.
        FollowedBlocks = "followed_blocks",
        /// Blocks that a tenant's ranks hold, and bytes of its indexes. Further blocks are refused, and their rank is `degraded`.
        TenantHeldBlocks = "tenant_held_blocks",
        /// Registered ranks of a tenant. Further ones are refused.
        TenantRanks = "tenant_ranks",
        /// Ranks of a tenant that batches name beyond that limit. The batches were rejected.
        TenantBatchRanks = "tenant_batch_ranks",
        /// Queries a second of a tenant; answered with 429.
        TenantQueries = "tenant_queries",
        /// Prompt tokens a second of a tenant; answered with 429.
        TenantPromptTokens = "tenant_prompt_tokens",
        /// Spans that wait for the collector: 8,192. Further ones were dropped.
        QueuedSpans = "queued_spans",
    }
}

#[derive(Debug)]
pub(super) struct LimitMetrics {
    reached: [Counter; Limit::ALL.len()],
}

impl LimitMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Times that a limit was reached, by limit: something was refused, dropped or delayed";
        let reached = declarations.counters("limit_reached", help, "limit", &Limit::DESCRIPTIONS);
        let alias = BoundsReached(reached.clone());
        declarations.registry.register("bounds_reached", "Alias of limit_reached until 1.0", alias);
        Self { reached }
    }
}

/// The counters of `limit_reached` under the old metric name `bounds_reached` and the old label `bound`.
#[derive(Debug)]
struct BoundsReached([Counter; Limit::ALL.len()]);

impl EncodeMetric for BoundsReached {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (limit, counter) in Limit::ALL.into_iter().zip(&self.0) {
            counter.encode(encoder.encode_family(&[("bound", limit.as_str())])?)?;
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
        encode_registry(&mut text, &metrics.declarations.registry).expect("writing to a String cannot fail");
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
