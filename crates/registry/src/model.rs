//! One model of one tenant: its index, its instances, and the sink that ingestion writes into.

mod answers;
mod instance;
mod instance_table;
mod replaceable_index;
mod shared_caches;
mod variant_matches;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use arc_swap::Guard;
use flash_indexer_access::TenantState;
use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, DpRank, LocalHash, RankSize, SharedIndex, TokenWindows, WorkerId, WorkerRank, shard_of,
};
use flash_indexer_routing::RecentUses;
use parking_lot::RwLock;
use rustc_hash::FxHashSet;
use tracing::error;

pub(crate) use self::instance::{Instance, StreamStatus};
pub(crate) use self::instance_table::InstanceTable;
pub(crate) use self::replaceable_index::{ReplaceableIndex, unbounded_index};
pub(crate) use self::shared_caches::SharedDepths;

use flash_indexer_explain::{History, SeenVariants};
use flash_indexer_ingest::{Decoders, Listener, MaintainedIndex, ModelSink, RankOwner};
use flash_indexer_telemetry::metrics::{Metrics, ModelCounts, ModelState};
use flash_indexer_telemetry::supervision::{ThreadKind, guarded};
use flash_indexer_types::{ClearCause, EventContext, InstanceId, LossReason, ModelKey, Ordinal, Trust};
use flash_indexer_wire::AdapterSalt;

use crate::published_ranks::PublishedRanks;

/// Models by name and tenant.
pub(crate) type Models = RwLock<BTreeMap<ModelKey, Arc<Model>>>;

/// A model of one tenant: its index and the instances registered for it.
///
/// # Consistency
///
/// Only a worker's writer applies its events, to the index and to `published` alike. The index design defines which part
/// of an event a concurrent query may see.
pub(crate) struct Model {
    pub key: ModelKey,
    pub block_size: BlockSize,
    /// Adapter of queries that name none: the adapter that all registrations have in common.
    pub lora_name: RwLock<Option<String>>,
    /// Read through [`Model::index`], changed by the methods of the model.
    pub replaceable: ReplaceableIndex,
    /// Restarts streams after the index was replaced.
    pub decoders: Weak<Decoders>,
    /// Publishes the model's ranks to the shared store, if one is configured.
    pub published: Option<PublishedRanks>,
    pub instances: InstanceTable,
    pub windows: TokenWindows,
    pub counts: ModelCounts,
    /// Unique in the process.
    pub id: u64,
    /// Counts uses of blocks, if configured.
    pub recent_uses: Option<Arc<RecentUses>>,
    pub metrics: Arc<Metrics>,
    /// Recent changes, for explanations.
    pub history: History,
    pub seen_variants: SeenVariants,
    /// What remains of the limits of the model's tenant.
    pub tenant: Arc<TenantState>,
    /// Number of the writer that applies the events of each shard's workers.
    pub writers: Vec<usize>,
}

impl MaintainedIndex for Model {
    fn maintain(&self, shard: usize) -> bool {
        self.change(|index| index.maintain_shard(shard))
    }
}

impl ModelSink for Model {
    fn key(&self) -> &ModelKey {
        &self.key
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn writer(&self, worker: WorkerId) -> usize {
        self.writers[shard_of(worker, self.writers.len())]
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    fn index(&self) -> Arc<GroupedIndex> {
        Guard::into_inner(self.replaceable.load())
    }

    fn write(
        &self,
        index: &GroupedIndex,
        rank: WorkerRank,
        event: &RankEvent,
        context: EventContext,
    ) -> AppliedChanges {
        let applied = self.apply_to(index, rank, event);
        if let RankEvent::Primary(event) = event {
            self.history.record(rank, event, &applied, context);
        }
        applied
    }

    fn forget(&self, index: &GroupedIndex, rank: WorkerRank, cause: ClearCause, now: Instant) {
        self.clear_rank_in(index, rank);
        self.history.record_clear(rank, cause, now);
    }

    fn last_event(&self) -> Ordinal {
        self.history.last()
    }

    fn replace_failed_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>) {
        self.replace_index(failed, culprit);
    }

    fn record_variant(&self, window: TokenWindow, adapter_salt: &AdapterSalt) {
        self.windows.record(window);
        self.seen_variants.record(adapter_salt);
    }

    fn list_rank(&self, listener: &Arc<Listener>, dp_rank: DpRank) -> RankOwner {
        // Each batch of an unregistered rank comes here, and needs no exclusive lock.
        let owner = { self.instances.read().get(&listener.instance).and_then(|known| known.owner(listener, dp_rank)) };
        if let Some(owner) = owner {
            return owner;
        }
        let mut instances = self.instances.write();
        let Some(instance) = instances.get_mut(&listener.instance) else { return RankOwner::SameStream };
        // Another stream may have named it meanwhile.
        if let Some(owner) = instance.owner(listener, dp_rank) {
            return owner;
        }
        if instance.has_stream(listener) {
            if !self.tenant.take_rank() {
                return RankOwner::Refused;
            }
            instance.list(listener, dp_rank);
        } else if instance.removals.iter().any(|(id, _)| *id == listener.id) {
            // The blocks that it stores before it is closed are removed with the others.
            instance.removals.insert((listener.id, dp_rank));
        }
        RankOwner::SameStream
    }

    fn ranks_of(&self, listener: &Listener) -> Vec<DpRank> {
        let instances = self.instances.read();
        let listed = instances.get(&listener.instance).into_iter().flat_map(|instance| &instance.listeners);
        listed.filter(|(_, other)| other.id == listener.id).map(|(&dp_rank, _)| dp_rank).collect()
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.change(|index| index.remove_worker(worker));
        if let Some(published) = &self.published {
            published.remove_worker(worker);
        }
    }

    fn generation(&self) -> u64 {
        self.replaceable.generation()
    }

    fn is_partial(&self, rank: WorkerRank) -> bool {
        self.partial_ranks().is_some_and(|ranks| ranks.contains(&rank))
    }

    fn is_full(&self) -> bool {
        self.tenant.is_full()
    }
}

impl Model {
    /// Records that the blocks of an unregistered rank, or of all ranks, of a listener are removed. If another stream has claimed such a
    /// rank meanwhile, it may have lost blocks with them.
    pub(crate) fn end_removals(&self, listener: &Listener, dp_rank: Option<DpRank>) {
        let mut instances = self.instances.write();
        let instance = instances.get_mut(&listener.instance);
        let displaced = instance.map(|instance| instance.end_removals(listener.id, dp_rank)).unwrap_or_default();
        drop(instances);
        displaced.iter().for_each(|(dp_rank, owner)| owner.record_removal_after_move(*dp_rank, listener.id));
    }

    /// The listener of a rank, if there is one.
    pub(crate) fn listener(&self, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
        self.instances.read().get(instance)?.listeners.get(&dp_rank).cloned()
    }

    /// The current index.
    pub(crate) fn index(&self) -> Guard<Arc<GroupedIndex>> {
        self.replaceable.load()
    }

    /// Applies one event of a rank to `index`, an index of this model, and returns its effect. The caller catches a
    /// panic and then calls [`Model::replace_index`].
    pub(crate) fn apply_to(&self, index: &GroupedIndex, rank: WorkerRank, event: &RankEvent) -> AppliedChanges {
        #[cfg(any(test, feature = "fault-injection"))]
        crate::faults::apply(event);
        let applied = index.apply_event(rank, event);
        if let Some(published) = &self.published {
            published.get_or_create(rank).apply(event);
        }
        applied
    }

    /// Applies one event from a dump to a rank's primary cache group, and records it for explanations.
    pub(crate) fn restore(&self, rank: WorkerRank, event: BlockEvent) {
        let event = RankEvent::Primary(event);
        let applied = self.apply(rank, &event);
        if let RankEvent::Primary(event) = &event {
            self.history.record(rank, event, &applied, Instant::now());
        }
    }

    /// Applies one event of a rank to the current index without recording it for explanations, and returns its effect. If that
    /// panics, an empty index replaces the current one.
    pub(crate) fn apply(&self, rank: WorkerRank, event: &RankEvent) -> AppliedChanges {
        self.change(|index| self.apply_to(index, rank, event))
    }

    /// Changes the current index. If that panics, an empty index replaces it.
    pub(crate) fn change<T: Default>(&self, change: impl FnOnce(&GroupedIndex) -> T) -> T {
        let index = self.index();
        guarded(&self.metrics, ThreadKind::Request, "request", || change(&index)).unwrap_or_else(|| {
            self.replace_index(&index, None);
            T::default()
        })
    }

    /// Replaces an index in which a change panicked by an empty one, and restarts all streams of the model. No rank is
    /// exact until its stream has republished its blocks. The stream of the listener `culprit`, whose event panicked,
    /// restarts without a replay, because a replay would repeat the event.
    pub(crate) fn replace_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>) {
        let await_restarts = || {
            let mut listeners: BTreeMap<u64, Arc<Listener>> = BTreeMap::new();
            for listener in self.instances.read().values().flat_map(|instance| instance.listeners.values()) {
                if listener.require_restart(LossReason::IndexPanicked) {
                    listeners.insert(listener.id, Arc::clone(listener));
                }
            }
            listeners
        };
        // Before the replacement, and again after it for listeners registered meanwhile.
        let mut listeners = await_restarts();
        if self.replaceable.replace(failed) {
            self.metrics.index_replaced();
            let (model, tenant) = (&self.key.model_name, &self.key.tenant_id);
            error!(model, tenant, "index replaced by an empty one; its streams start over");
            if let Some(published) = &self.published {
                published.clear_all();
            }
            listeners.append(&mut await_restarts());
        }
        if let Some(decoders) = self.decoders.upgrade() {
            decoders.restart_streams(listeners.into_values(), culprit);
        }
    }

    /// Number of streams that have not restarted yet.
    pub(crate) fn awaited_restarts(&self) -> usize {
        let instances = self.instances.read();
        instances.values().flat_map(|instance| instance.listeners.values()).filter(|it| it.needs_restart()).count()
    }

    /// Removes the restored blocks of a rank, and records that for explanations.
    pub(crate) fn clear_restored(&self, rank: WorkerRank) {
        self.clear_rank(rank);
        self.history.record_clear(rank, ClearCause::Service, Instant::now());
    }

    /// Removes every block of a rank.
    pub(crate) fn clear_rank(&self, rank: WorkerRank) {
        self.change(|index| self.clear_rank_in(index, rank));
    }

    /// Removes every block of a rank from `index`, as [`Model::apply_to`].
    pub(crate) fn clear_rank_in(&self, index: &GroupedIndex, rank: WorkerRank) {
        index.clear_rank(rank);
        if let Some(published) = &self.published {
            published.clear(rank);
        }
    }

    /// Hash variant of an adapter and a salt. The default is the adapter that all registrations have in common.
    pub(crate) fn hash_variant(&self, lora_name: Option<&str>, cache_salt: Option<&str>) -> HashVariant {
        match lora_name {
            Some(name) => HashVariant::new(Some(name), cache_salt),
            None => HashVariant::new(self.lora_name.read().as_deref(), cache_salt),
        }
    }

    /// Local hashes of a prompt's blocks, for each token window that the model's engines use.
    pub(crate) fn window_hashes(&self, variant: HashVariant, tokens: &[u32]) -> impl Iterator<Item = Vec<LocalHash>> {
        self.windows.in_use().map(move |window| local_hashes(variant, tokens, self.block_size, window))
    }

    /// Trust in a rank of a registered instance, and the faults of its stream.
    pub(crate) fn stream_status(&self, instance: &InstanceId, dp_rank: DpRank) -> StreamStatus {
        let instances = self.instances.read();
        let instance = instances.get(instance);
        let listener = instance.and_then(|instance| instance.listeners.get(&dp_rank));
        StreamStatus {
            trust: instance.map_or(Trust::Cold, |instance| instance.trust(dp_rank)),
            last_error: listener.and_then(|listener| listener.report(dp_rank).last_error),
            gap: listener.and_then(|listener| listener.unrepaired_gap(dp_rank)),
        }
    }

    /// Trust in a rank of a registered instance; cold if the instance is not registered.
    pub(crate) fn listed_trust(&self, instance: &InstanceId, dp_rank: DpRank) -> Trust {
        self.instances.read().get(instance).map_or(Trust::Cold, |instance| instance.trust(dp_rank))
    }

    /// Whether the engine of a rank publishes events. True for a rank without a listener.
    pub(crate) fn has_events(&self, instance: &InstanceId, dp_rank: DpRank) -> bool {
        self.listener(instance, dp_rank).is_none_or(|listener| listener.options.has_events())
    }

    /// The number of a registered instance in the index.
    pub(crate) fn worker(&self, instance: &InstanceId) -> Option<WorkerId> {
        self.instances.read().get(instance).map(|instance| instance.worker)
    }

    /// Whether the index may have a rank that is not listed: it was restored from a dump, and not unregistered.
    pub(crate) fn is_restored(&self, instance: &InstanceId, rank: WorkerRank) -> bool {
        let instances = self.instances.read();
        instances.get(instance).is_some_and(|known| {
            let mut unregistered = known.removals.iter().chain(&known.unregistered);
            known.worker == rank.worker && unregistered.all(|&(_, dp_rank)| dp_rank != rank.dp_rank)
        })
    }

    /// Trust in a rank that is registered or holds blocks.
    pub(crate) fn trust(&self, instance: &InstanceId, dp_rank: DpRank) -> Option<Trust> {
        let instances = self.instances.read();
        let instance = instances.get(instance)?;
        let rank = WorkerRank { worker: instance.worker, dp_rank };
        let is_known = instance.listeners.contains_key(&dp_rank) || self.index().size(rank).blocks > 0;
        is_known.then(|| instance.trust(dp_rank))
    }

    /// Every rank that is registered, or that is in the index for a registered instance.
    pub(crate) fn ranks(&self) -> Vec<(InstanceId, WorkerRank)> {
        let instances = self.instances.read();
        let by_worker: BTreeMap<WorkerId, &InstanceId> =
            instances.iter().map(|(name, instance)| (instance.worker, name)).collect();
        let registered = instances.iter().flat_map(|(name, instance)| {
            let worker = instance.worker;
            instance.listeners.keys().map(move |&dp_rank| (name.clone(), WorkerRank { worker, dp_rank }))
        });
        let indexed = self.index().ranks().into_iter();
        let indexed = indexed.filter_map(|rank| Some((InstanceId::clone(by_worker.get(&rank.worker)?), rank)));
        let mut ranks: Vec<_> = registered.chain(indexed).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Updates the adapter that all registrations have in common. Called after registrations change.
    pub(crate) fn update_lora_name(&self) {
        let instances = self.instances.read();
        // The events of a shared cache name adapters.
        let targets = instances.iter().filter(|(name, _)| name.shared_cache().is_none());
        let mut names = targets.flat_map(|(_, instance)| instance.listeners.values());
        let first = names.next().and_then(|listener| listener.options.lora_name.clone());
        let agreed = first.filter(|first| names.all(|listener| listener.options.lora_name.as_ref() == Some(first)));
        *self.lora_name.write() = agreed;
    }

    /// Number of registered ranks.
    pub(crate) fn rank_count(&self) -> usize {
        self.instances.read().values().map(|instance| instance.listeners.len()).sum()
    }

    /// Size of all ranks together.
    pub(crate) fn size(&self) -> RankSize {
        self.index().sizes().into_iter().map(|(_, size)| size).sum()
    }

    /// The partial ranks: those whose engines hold more blocks than the index has for them. Their matches are lower bounds. None if
    /// memory is not bounded and no rank has omitted entries.
    pub(crate) fn partial_ranks(&self) -> Option<Arc<FxHashSet<WorkerRank>>> {
        self.index().partial_ranks()
    }

    /// State of the model for metrics.
    pub(crate) fn state(&self) -> ModelState {
        let sizes = self.index().sizes();
        let (instances, shared_caches) = {
            let instances = self.instances.read();
            (instances.len(), instances.keys().filter(|name| name.shared_cache().is_some()).count())
        };
        ModelState {
            key: self.key.clone(),
            instances: instances - shared_caches,
            shared_caches,
            ranks: sizes.len(),
            size: sizes.into_iter().map(|(_, size)| size).sum(),
            bytes: self.index().memory_bytes(),
            twins_skipped: self.index().twins_skipped(),
            memory_limit: self.index().memory_limit(),
            counts: self.counts.clone(),
        }
    }
}
