//! Unregistering ranks: no answer names them from then on, and what they held is forgotten.

use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::{DpRank, SharedIndex, WorkerId};
use flash_indexer_wire::StreamPosition;

use super::Indexer;
use super::cleanup::PendingWork;
use super::handover::listener;
use crate::model::{Instance, Model};
use crate::stream_positions::StreamName;
use flash_indexer_explain::Tombstone;
use flash_indexer_ingest::{Delivery, Listener, ModelSink};
use flash_indexer_telemetry::metrics::Bound;
use flash_indexer_types::EmptyModelPolicy;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Owner;
use flash_indexer_types::RankId;
use flash_indexer_types::log_rank;

/// What was taken out of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unregistered {
    /// Ranks that are listened to no more; none if nothing fitted.
    pub ranks: usize,
    /// Whether what they held is forgotten already. If not, it is in no answer and is forgotten behind the call.
    pub is_forgotten: bool,
}

impl Indexer {
    /// Stops listening to an instance, or to one of its ranks, and forgets what it holds; in one
    /// tenant, or in all tenants of the model. A model goes with its last instance, so that it can
    /// be registered again with another block size.
    ///
    /// No answer names the ranks from then on. Waits for their decoders and writers to forget them, for two seconds at most.
    pub fn unregister(
        &self,
        instance: &InstanceId,
        model_name: &str,
        tenant_id: Option<&str>,
        dp_rank: Option<DpRank>,
    ) -> Unregistered {
        let mut pending = PendingWork::default();
        let ranks = {
            let _registering = self.registering.lock();
            let models: Vec<Arc<Model>> = self.models_of(Some(model_name), tenant_id);
            let leave = |model: &Arc<Model>| {
                let ranks = self.leave(model, instance, dp_rank, &mut pending);
                self.forget_if_empty(model);
                ranks
            };
            models.iter().map(leave).sum()
        };
        Unregistered { ranks, is_forgotten: self.wait(pending) }
    }

    /// Stops listening to a rank unless somebody wants it by hand, and with it to ranks that only its stream
    /// names.
    pub fn unregister_owned(&self, rank: &RankId, emptied: EmptyModelPolicy) -> Unregistered {
        let mut pending = PendingWork::default();
        let ranks = self.release_owned(rank, emptied, &mut pending);
        Unregistered { ranks, is_forgotten: self.wait(pending) }
    }

    /// Waits for other threads' part in a change, for two seconds at most; whether it is done.
    pub(super) fn wait(&self, pending: PendingWork) -> bool {
        let is_done = pending.wait();
        if !is_done {
            self.metrics.bound(Bound::RegistrationWait);
        }
        is_done
    }

    fn release_owned(&self, rank: &RankId, emptied: EmptyModelPolicy, pending: &mut PendingWork) -> usize {
        let _registering = self.registering.lock();
        let model = self.models.read().get(&rank.model).cloned();
        let Some(model) = model.filter(|_| self.owners.owner(rank).is_some_and(|owner| owner != Owner::Manual)) else {
            return 0;
        };
        let stream = listener(&model, &rank.instance, rank.dp_rank);
        let mut left = self.leave(&model, &rank.instance, Some(rank.dp_rank), pending);
        let of_stream: Vec<RankId> = {
            let instances = model.instances.read();
            let listed = instances.get(&rank.instance).into_iter().flat_map(|instance| &instance.listeners);
            let same = listed.filter(|(_, other)| stream.as_ref().is_some_and(|stream| Arc::ptr_eq(stream, other)));
            same.map(|(&dp_rank, _)| RankId { dp_rank, ..rank.clone() }).collect()
        };
        if of_stream.iter().all(|other| self.owners.owner(other).is_none()) {
            let leave = |other: &RankId| self.leave(&model, &rank.instance, Some(other.dp_rank), pending);
            left += of_stream.iter().map(leave).sum::<usize>();
        }
        if emptied == EmptyModelPolicy::Remove {
            self.forget_if_empty(&model);
        }
        left
    }

    /// Takes an instance or one of its ranks out of a model; how many ranks it was.
    fn leave(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        dp_rank: Option<DpRank>,
        pending: &mut PendingWork,
    ) -> usize {
        let mut ranks = self.forget_dumped(model, instance, dp_rank, pending);
        let closed = unlist(model, instance, dp_rank);
        ranks += closed.len();
        for (dp_rank, listener) in &closed {
            self.stop_listening(model, *dp_rank, listener, pending);
            let rank = RankId { model: model.key.clone(), instance: instance.clone(), dp_rank: *dp_rank };
            let owner = self.owners.owner(&rank);
            let owner = owner.as_ref().map(Owner::as_str);
            log_rank!(info, rank, endpoint = listener.options.endpoint.as_str(), owner, "rank unregistered");
            self.owners.forget(&rank);
            let (instance, model) = (instance.clone(), model.key.clone());
            self.tombstones.note(Tombstone { at: Instant::now(), instance, dp_rank: *dp_rank, model });
        }
        model.update_lora_name();
        ranks
    }

    /// Closes a stream that no rank needs any more; of one that others still need, ignores the rank.
    fn stop_listening(&self, model: &Arc<Model>, dp_rank: DpRank, listener: &Arc<Listener>, pending: &mut PendingWork) {
        let is_listed = |instance: &Instance| instance.listeners.values().any(|other| Arc::ptr_eq(other, listener));
        if model.instances.read().get(&listener.instance).is_some_and(is_listed) {
            self.decoders.deliver(listener, Delivery::IgnoreRank(dp_rank, pending.add()));
            self.release_held(listener, dp_rank, None, pending);
            return;
        }
        let name = StreamName::new(model.key.clone(), listener.instance.clone(), listener.dp_rank, &listener.options);
        let remembered = Arc::clone(&self.remembered);
        let remember = move |position| remembered.lock().keep(name, position);
        // Ranks of the instance that no listener was registered for, too.
        let is_last = model.worker(&listener.instance) != Some(listener.worker);
        self.retire(listener, is_last.then_some(listener.worker), remember, pending);
    }

    /// Closes a stream and has everything from it forgotten, and with it all of `worker`.
    pub(super) fn retire(
        &self,
        listener: &Arc<Listener>,
        worker: Option<WorkerId>,
        remember: impl FnOnce(StreamPosition) + Send + 'static,
        pending: &mut PendingWork,
    ) {
        let (model, done) = (Arc::clone(&listener.model), pending.add());
        let forget = move |model: &dyn ModelSink| worker.into_iter().for_each(|worker| model.remove_worker(worker));
        let retired = move |position| {
            remember(position);
            forget(&*model);
            // The one who asked may have stopped waiting.
            let _ = done.send(());
        };
        if !self.sockets.close(listener, Box::new(retired)) {
            let model = Arc::clone(&listener.model);
            self.cleanup.run(pending, move || forget(&*model));
        }
    }

    /// Forgets an instance that is known from a dump alone, or one of its ranks; how many ranks it was.
    fn forget_dumped(
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
        let (model, forgotten) = (Arc::clone(model), ranks.len());
        self.cleanup.run(pending, move || ranks.into_iter().for_each(|rank| model.clear_rank(rank)));
        forgotten
    }
}

/// Takes an instance, or one of its ranks, off the list of those that answers name.
pub(super) fn unlist(model: &Model, instance: &InstanceId, dp_rank: Option<DpRank>) -> Vec<(DpRank, Arc<Listener>)> {
    let mut instances = model.instances.write();
    let Entry::Occupied(mut entry) = instances.entry(instance.clone()) else { return Vec::new() };
    let listeners = &mut entry.get_mut().listeners;
    let closed: Vec<_> = match dp_rank {
        Some(dp_rank) => listeners.remove_entry(&dp_rank).into_iter().collect(),
        None => std::mem::take(listeners).into_iter().collect(),
    };
    if listeners.is_empty() && !closed.is_empty() {
        entry.remove();
    }
    closed
}
