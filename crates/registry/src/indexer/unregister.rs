//! Unregistration of ranks: no answer includes them from then on, and their blocks are removed.

use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::{DpRank, SharedIndex, WorkerId};
use flash_indexer_explain::Tombstone;
use flash_indexer_ingest::{Delivery, Listener, ModelSink};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{EmptyModelPolicy, InstanceId, Owner, RankId, StreamName, log_rank};
use flash_indexer_wire::StreamPosition;

use super::Indexer;
use super::cleanup::PendingWork;
use crate::model::{Instance, Model};

/// Outcome of unregistering ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnregisterOutcome {
    /// Number of unregistered ranks; zero if none matched.
    pub ranks: usize,
    /// Whether their blocks are removed already. If not, no answer includes them, and they are removed after the call.
    pub is_forgotten: bool,
}

impl Indexer {
    /// Unregisters an instance or one of its ranks and removes their blocks, in one tenant or in all tenants of the
    /// model. A model is removed with its last instance, and can then be registered with another block size.
    ///
    /// No answer includes the ranks from then on. Waits up to two seconds for their decoders and writers.
    pub fn unregister(
        &self,
        instance: &InstanceId,
        model_name: &str,
        tenant_id: Option<&str>,
        dp_rank: Option<DpRank>,
    ) -> UnregisterOutcome {
        let mut pending = PendingWork::default();
        let ranks = {
            let _registering = self.registering.lock();
            let models: Vec<Arc<Model>> = self.models_of(Some(model_name), tenant_id);
            let remove = |model: &Arc<Model>| {
                let ranks = self.remove_ranks(model, instance, dp_rank, &mut pending);
                self.remove_model_if_empty(model);
                ranks
            };
            models.iter().map(remove).sum()
        };
        UnregisterOutcome { ranks, is_forgotten: self.wait(pending) }
    }

    /// Unregisters a rank unless it is registered manually, with the ranks that only its stream names.
    pub fn unregister_owned(&self, rank: &RankId, emptied: EmptyModelPolicy) -> UnregisterOutcome {
        let mut pending = PendingWork::default();
        let ranks = self.unregister_unless_manual(rank, emptied, &mut pending);
        UnregisterOutcome { ranks, is_forgotten: self.wait(pending) }
    }

    /// Waits up to two seconds for pending work of other threads, and returns whether it is finished.
    pub(super) fn wait(&self, pending: PendingWork) -> bool {
        let is_done = pending.wait(&self.supervisor);
        if !is_done {
            self.metrics.limit_reached(Limit::RegistrationWait);
        }
        is_done
    }

    fn unregister_unless_manual(&self, rank: &RankId, emptied: EmptyModelPolicy, pending: &mut PendingWork) -> usize {
        let _registering = self.registering.lock();
        let model = self.find_model(&rank.model);
        let Some(model) = model.filter(|_| self.owners.owner(rank).is_some_and(|owner| owner != Owner::Manual)) else {
            return 0;
        };
        let stream = model.listener(&rank.instance, rank.dp_rank);
        let mut removed = self.remove_ranks(&model, &rank.instance, Some(rank.dp_rank), pending);
        let of_stream = stream.map(|stream| model.ranks_of(&stream)).unwrap_or_default().into_iter();
        let of_stream: Vec<RankId> = of_stream.map(|dp_rank| RankId { dp_rank, ..rank.clone() }).collect();
        if of_stream.iter().all(|other| self.owners.owner(other).is_none()) {
            let remove = |other: &RankId| self.remove_ranks(&model, &rank.instance, Some(other.dp_rank), pending);
            removed += of_stream.iter().map(remove).sum::<usize>();
        }
        if emptied == EmptyModelPolicy::Remove {
            self.remove_model_if_empty(&model);
        }
        removed
    }

    /// Removes an instance or one of its ranks from a model, and returns the number of ranks.
    pub(super) fn remove_ranks(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: Option<DpRank>,
        pending: &mut PendingWork,
    ) -> usize {
        let restored = self.remove_restored(model, instance, dp_rank, pending);
        let closed = unlist(model, instance, dp_rank);
        for (dp_rank, listener) in &closed {
            self.stop_listening(model, *dp_rank, listener, pending);
            let rank = RankId { model: model.key.clone(), instance: instance.clone(), dp_rank: *dp_rank };
            let owner = self.owners.owner(&rank);
            let owner = owner.as_ref().map(Owner::as_str);
            log_rank!(info, rank, endpoint = listener.options.endpoint.as_str(), owner, "rank unregistered");
            self.owners.remove(&rank);
            let (instance, model) = (instance.clone(), model.key.clone());
            self.tombstones.record(Tombstone { at: Instant::now(), instance, dp_rank: *dp_rank, model });
        }
        model.update_lora_name();
        restored + closed.len()
    }

    /// Closes the stream of a rank. If other ranks share the stream, only the rank's events are ignored from now on.
    fn stop_listening(&self, model: &Arc<Model>, dp_rank: DpRank, listener: &Arc<Listener>, pending: &mut PendingWork) {
        let is_listed = |instance: &Instance| instance.has_stream(listener);
        if model.instances.read().get(&listener.instance).is_some_and(is_listed) {
            let removal =
                UnfinishedRemoval { model: Arc::clone(model), listener: Arc::clone(listener), dp_rank: Some(dp_rank) };
            let done = pending.add();
            let ignored = move || {
                drop(removal);
                // The caller may have stopped waiting.
                let _ = done.send(());
            };
            self.decoders.deliver(listener, Delivery::IgnoreRank(dp_rank, Box::new(ignored)));
            self.release_hold(listener, dp_rank, None, pending);
            return;
        }
        self.routed.remove(listener);
        let name = StreamName::new(model.key.clone(), listener.instance.clone(), listener.dp_rank, &listener.options);
        let stream_positions = Arc::clone(&self.stream_positions);
        let removal = UnfinishedRemoval { model: Arc::clone(model), listener: Arc::clone(listener), dp_rank: None };
        let store_position = move |position| {
            drop(removal);
            stream_positions.lock().insert(name, position);
        };
        // With the last listener, all ranks of the instance are removed, including those without a listener.
        let is_last = model.worker(&listener.instance) != Some(listener.worker);
        self.retire(listener, is_last.then_some(listener.worker), store_position, pending);
    }

    /// Closes a stream and removes its blocks, and all blocks of `worker` if given. `on_closed` receives the final
    /// position of the stream.
    pub(super) fn retire(
        &self,
        listener: &Arc<Listener>,
        worker: Option<WorkerId>,
        on_closed: impl FnOnce(StreamPosition) + Send + 'static,
        pending: &mut PendingWork,
    ) {
        let (model, done) = (Arc::clone(&listener.model), pending.add());
        let remove = move |model: &dyn ModelSink| worker.into_iter().for_each(|worker| model.remove_worker(worker));
        let retired = move |position| {
            on_closed(position);
            remove(&*model);
            // The caller may have stopped waiting.
            let _ = done.send(());
        };
        if !self.sockets.close(listener, Box::new(retired)) {
            let model = Arc::clone(&listener.model);
            self.cleanup.run(pending, move || remove(&*model));
        }
    }

    /// Removes an instance that is known from a dump only, or one of its ranks, and returns the number of ranks.
    fn remove_restored(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: Option<DpRank>,
        pending: &mut PendingWork,
    ) -> usize {
        let mut instances = model.instances.write();
        let known = instances.get(instance).filter(|known| known.listeners.is_empty());
        let Some(worker) = known.map(|known| known.worker) else { return 0 };
        let mut ranks = model.index().ranks();
        ranks.retain(|rank| rank.worker == worker);
        let held = ranks.len();
        ranks.retain(|rank| dp_rank.is_none_or(|dp_rank| dp_rank == rank.dp_rank));
        if dp_rank.is_none() || ranks.len() == held {
            instances.remove(instance);
        }
        let (model, removed) = (Arc::clone(model), ranks.len());
        self.cleanup.run(pending, move || ranks.into_iter().for_each(|rank| model.clear_rank(rank)));
        removed
    }
}

/// Removal of the blocks of an unregistered rank, or of all ranks, of a listener. It ends when it is dropped.
struct UnfinishedRemoval {
    model: Arc<Model>,
    listener: Arc<Listener>,
    dp_rank: Option<DpRank>,
}

impl Drop for UnfinishedRemoval {
    fn drop(&mut self) {
        self.model.end_removals(&self.listener, self.dp_rank);
    }
}

/// Removes the listeners of an instance, or of one of its ranks, from a model, and returns them.
pub(super) fn unlist(model: &Model, instance: &InstanceId, dp_rank: Option<DpRank>) -> Vec<(DpRank, Arc<Listener>)> {
    let mut instances = model.instances.write();
    let Entry::Occupied(mut entry) = instances.entry(instance.clone()) else { return Vec::new() };
    let Instance { listeners, unregistered, removals, .. } = entry.get_mut();
    let closed: Vec<_> = match dp_rank {
        Some(dp_rank) => listeners.remove_entry(&dp_rank).into_iter().collect(),
        None => std::mem::take(listeners).into_iter().collect(),
    };
    for (dp_rank, listener) in &closed {
        removals.insert((listener.id, *dp_rank));
        match listeners.values().any(|other| Arc::ptr_eq(other, listener)) {
            true => {
                unregistered.insert((listener.id, *dp_rank));
                listener.end_contests_of(*dp_rank);
            }
            false => {
                unregistered.retain(|(id, _)| *id != listener.id);
                listeners.values().for_each(|other| other.end_contest(listener));
            }
        }
    }
    if listeners.is_empty() && !closed.is_empty() {
        entry.remove();
    }
    closed
}
