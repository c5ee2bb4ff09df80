//! Reports of instances, readiness and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RankSize, SharedIndex, WorkerRank};
use flash_indexer_ingest::{Listener, ListenerReport, ReplayProgress};
use flash_indexer_telemetry::metrics::{IngestQueueState, ListenerState, QueryTotals, State, StateSection, TextFormat};
use flash_indexer_types::{ConnectionStatus, InstanceId, ModelKey, RankId};

use super::Indexer;
use crate::state_metrics::{StoreState, TokenizationState};

/// An instance and its listeners.
#[derive(Debug, Clone)]
pub struct InstanceReport {
    /// The instance.
    pub instance: InstanceId,
    /// Model and tenant.
    pub model: ModelKey,
    /// Tokens in its blocks.
    pub block_size: BlockSize,
    /// The instances that are attached to it, in their order, if it is a shared cache.
    pub attached: Vec<InstanceId>,
    /// Reports of its listeners, by rank.
    pub listeners: BTreeMap<DpRank, ListenerReport>,
    /// Sizes of its ranks that hold blocks.
    pub sizes: BTreeMap<DpRank, RankSize>,
}

impl Indexer {
    /// Every registered instance, by model and then by instance. Linear in the ranks. An index without published sizes waits
    /// for its writer.
    pub fn instances(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<InstanceReport> {
        let mut reports = Vec::new();
        for model in self.models_of(model_name, tenant_id) {
            let sizes: BTreeMap<WorkerRank, RankSize> = model.index().sizes().into_iter().collect();
            let instances = model.instances.read();
            let mut attached: BTreeMap<&InstanceId, BTreeSet<&InstanceId>> = BTreeMap::new();
            for (instance, found) in instances.iter() {
                for cache in found.listeners.values().flat_map(|listener| listener.options.shared_caches.ids()) {
                    attached.entry(cache).or_default().insert(instance);
                }
            }
            for (instance, found) in instances.iter() {
                let report = |(&dp_rank, listener): (&DpRank, &Arc<Listener>)| {
                    let rank = RankId { model: model.key.clone(), instance: instance.clone(), dp_rank };
                    (dp_rank, ListenerReport { source: self.owners.source(&rank), ..listener.report(dp_rank) })
                };
                let ranks = found
                    .listeners
                    .keys()
                    .filter_map(|&dp_rank| Some((dp_rank, *sizes.get(&WorkerRank { worker: found.worker, dp_rank })?)));
                reports.push(InstanceReport {
                    sizes: ranks.collect(),
                    attached: attached.get(instance).into_iter().flatten().copied().cloned().collect(),
                    instance: instance.clone(),
                    model: model.key.clone(),
                    block_size: model.block_size,
                    listeners: found.listeners.iter().map(report).collect(),
                });
            }
        }
        reports
    }

    /// The ranks that are registered and not connected.
    pub fn unconnected(&self, ranks: &BTreeSet<RankId>) -> Vec<RankId> {
        let is_unconnected = |listener: Arc<Listener>| listener.connection() != ConnectionStatus::Connected;
        ranks.iter().filter(|rank| self.listener_of(rank).is_some_and(is_unconnected)).cloned().collect()
    }

    /// The ranks that are connected and whose initial replay is not applied yet, with its progress.
    pub fn catching_up(&self, ranks: &BTreeSet<RankId>) -> Vec<(RankId, Option<ReplayProgress>)> {
        let progress = |rank: &RankId| {
            let listener = self.listener_of(rank)?;
            let is_connected = listener.connection() == ConnectionStatus::Connected;
            let catching_up = listener.catching_up().filter(|_| is_connected)?;
            Some((rank.clone(), catching_up.replay))
        };
        ranks.iter().filter_map(progress).collect()
    }

    /// Problems that make the service not ready: threads that panicked or do not make progress, and streams that
    /// restart. Does not block.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.supervisor.problems(Instant::now());
        for model in self.models_of(None, None) {
            let streams = model.awaited_restarts();
            if streams > 0 {
                problems.push(format!("{} lost its index in a panic; {streams} streams are restarting", model.key));
            }
        }
        problems
    }

    /// Encodes all metrics. Linear in the ranks. Waits for a writer if the index design reads its size under the
    /// writer's lock.
    pub fn metrics_text(&self, format: TextFormat) -> String {
        let models = self.models_of(None, None);
        let mut listeners: BTreeMap<ListenerState, usize> = BTreeMap::new();
        for model in &models {
            for (&rank, listener) in model.instances.read().values().flat_map(|instance| &instance.listeners) {
                let state =
                    ListenerState { status: listener.connection().as_str(), trust: listener.trust(rank).as_str() };
                *listeners.entry(state).or_default() += 1;
            }
        }
        let models = models.iter().map(|model| model.state()).collect();
        let mut sections: Vec<Box<dyn StateSection>> = Vec::new();
        sections.extend(self.tokenization.statistics().map(|pool| Box::new(TokenizationState(pool)) as Box<_>));
        sections.extend(self.store_report().map(|report| Box::new(StoreState(report)) as Box<_>));
        self.metrics.encode(
            State {
                models,
                listeners,
                decoders: self.decoders.queues(),
                ingest_queue: IngestQueueState {
                    bytes: self.decoders.queue_bytes(),
                    bytes_max: self.decoders.queue_bytes_max(),
                },
                writers: self.writers.queues(),
                predicted_blocks: self.predictions.count(),
                sections,
                stalled_threads: self.supervisor.problems(Instant::now()).len(),
            },
            format,
        )
    }

    /// Blocks held by all ranks of all models.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        self.models_of(None, None).iter().map(|model| model.size().blocks).sum()
    }

    /// Query counters of all models, summed. The counters of an unregistered model are no longer included.
    #[must_use]
    pub fn query_totals(&self) -> QueryTotals {
        let mut totals = QueryTotals::default();
        self.models.read().values().for_each(|model| model.counts.add_to(&mut totals));
        totals
    }

    /// Events applied since the start.
    #[must_use]
    pub fn events_applied(&self) -> u64 {
        self.metrics.events_applied()
    }
}
