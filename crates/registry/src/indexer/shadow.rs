//! Rebuilding an instance next to the registered one, and swapping the two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::{DpRank, WorkerId, WorkerRank};
use flash_indexer_ingest::{Delivery, Listener, ListenerState};
use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection};
use flash_indexer_types::{ConnectionStatus, InstanceId, ModelKey, Trust};
use flash_indexer_wire::Start;

use super::cleanup::PendingWork;
use super::registration_error::connect_error;
use super::restored_state::RestoredState;
use super::{Indexer, RegistrationError};
use crate::model::{Instance, Model};

/// A second copy of a registered instance, which no answer includes. It has its own subscriptions, which start held,
/// and its own worker id in the index. As a [`DumpSink`] it applies the dump of the instance and skips other instances.
/// Dropping it before [`Shadow::exchange`] removes it.
pub struct Shadow {
    indexer: Arc<Indexer>,
    model: Arc<Model>,
    instance: InstanceId,
    worker: WorkerId,
    /// Generation of the index that it is in.
    generation: u64,
    /// Listeners of the registered instance.
    replaced: BTreeMap<DpRank, Arc<Listener>>,
    /// Its own listeners.
    listeners: BTreeMap<DpRank, Arc<Listener>>,
    restored: BTreeMap<DpRank, RestoredState>,
    /// Whether the dump lists ranks of the instance that are not registered here.
    lists_other_ranks: bool,
}

/// Failure to rebuild an instance.
#[derive(Debug, thiserror::Error)]
pub enum ShadowError {
    /// The registration of the instance changed or ended.
    #[error("failed to rebuild instance {0}: its registration changed meanwhile; retry")]
    Changed(InstanceId),
    /// Its last messages were lost. A second subscription does not receive them, and could not detect the loss.
    #[error("failed to rebuild instance {0}: its last messages were lost; the engine's next message shows how many")]
    TailLost(InstanceId),
    /// The registered instance has received later messages. They were published before the second subscription began.
    #[error("failed to rebuild instance {0}: its rebuilt copy lacks messages that were received meanwhile; retry")]
    Behind(InstanceId),
    /// Its engine does not accept a second subscription.
    #[error("{0}")]
    Listen(#[from] RegistrationError),
}

impl Shadow {
    /// Opens a second subscription to every stream of an instance.
    pub fn of(indexer: &Arc<Indexer>, key: &ModelKey, instance: &InstanceId) -> Result<Self, ShadowError> {
        let _registering = indexer.registering.lock();
        let model = indexer.find_model(key);
        let model = model.ok_or_else(|| ShadowError::Changed(instance.clone()))?;
        let replaced = model.instances.read().get(instance).map(|found| found.listeners.clone());
        let replaced = replaced.ok_or_else(|| ShadowError::Changed(instance.clone()))?;
        if replaced.values().any(|listener| listener.has_lost_tail()) {
            return Err(ShadowError::TailLost(instance.clone()));
        }
        let mut shadow = Self {
            indexer: Arc::clone(indexer),
            worker: WorkerId(indexer.new_id()),
            generation: model.replaceable.generation(),
            model,
            instance: instance.clone(),
            replaced: BTreeMap::new(),
            listeners: BTreeMap::new(),
            restored: BTreeMap::new(),
            lists_other_ranks: false,
        };
        for (&dp_rank, original) in &replaced {
            let same = replaced.iter().find(|(_, other)| Arc::ptr_eq(other, original)).map(|(rank, _)| rank);
            let shared = same.and_then(|rank| shadow.listeners.get(rank)).map(Arc::clone);
            let listener = match shared {
                Some(shared) => shared,
                None => shadow.listen(dp_rank, original)?,
            };
            listener.hold().hold(dp_rank);
            shadow.listeners.insert(dp_rank, listener);
        }
        shadow.replaced = replaced;
        let unregistered = shadow.model.instances.read().get(instance).map(|found| found.unregistered.clone());
        for (listener, dp_rank) in shadow.own_ranks(&unregistered.unwrap_or_default()) {
            // Its stream starts without messages, so the completion is not awaited.
            indexer.decoders.deliver(&listener, Delivery::IgnoreRank(dp_rank, Box::new(|| {})));
        }
        Ok(shadow)
    }

    /// Unregistered ranks, by listeners of the registered instance, as ranks of its own listeners.
    fn own_ranks(&self, unregistered: &BTreeSet<(u64, DpRank)>) -> Vec<(Arc<Listener>, DpRank)> {
        let own = unregistered.iter().filter_map(|&(id, dp_rank)| {
            let (same, _) = self.replaced.iter().find(|(_, replaced)| replaced.id == id)?;
            Some((Arc::clone(self.listeners.get(same)?), dp_rank))
        });
        own.collect()
    }

    /// Opens a second subscription to an engine. The messages of a pod are copied instead.
    fn listen(&self, dp_rank: DpRank, original: &Listener) -> Result<Arc<Listener>, RegistrationError> {
        let is_bound = original.options.is_bound();
        let listener = Arc::new(Listener {
            id: self.indexer.new_id(),
            model: Arc::<Model>::clone(&self.model),
            instance: self.instance.clone(),
            worker: self.worker,
            dp_rank,
            options: original.options.clone(),
            start: Start::Paused,
            decoder: if is_bound { original.decoder } else { self.indexer.decoders.assign() },
            resume_from: None,
            state: ListenerState::new(&original.options),
        });
        self.indexer.sockets.open(Arc::clone(&listener)).map_err(|error| connect_error(&error))?;
        if is_bound {
            self.indexer.decoders.deliver(&listener, Delivery::AttachShadow);
        }
        Ok(listener)
    }

    /// Whether all of its listeners are connected.
    pub fn is_connected(&self) -> bool {
        self.listeners.values().all(|listener| listener.connection() == ConnectionStatus::Connected)
    }

    /// Whether every rank is exact.
    pub fn is_exact(&self) -> bool {
        self.listeners.iter().all(|(&dp_rank, listener)| listener.trust(dp_rank) == Trust::Exact)
    }

    /// Whether the registered instance has received messages that this copy lacks. The copy gets them from a dump or a replay, if they were
    /// published before its subscriptions began.
    pub fn is_behind(&self) -> bool {
        self.listeners.iter().any(|(dp_rank, own)| {
            let replaced = self.replaced.get(dp_rank);
            replaced.is_some_and(|replaced| replaced.last_known_sequence() > own.last_known_sequence())
        })
    }

    /// Whether its engine has a replay endpoint for every rank.
    pub fn can_replay(&self) -> bool {
        self.listeners.values().all(|listener| listener.options.replay_endpoint.is_some())
    }

    /// Releases the paused streams. They continue from the restored state, or start over without one.
    pub fn resume(&mut self) {
        let mut pending = PendingWork::default();
        for (&dp_rank, listener) in &self.listeners {
            match self.restored.remove(&dp_rank) {
                Some(mut restored) => {
                    let rank = WorkerRank { worker: self.worker, dp_rank };
                    restored.complete(&self.model, rank, self.lists_other_ranks);
                    self.indexer.resume_from_restored(listener, dp_rank, restored, &mut pending);
                }
                None => drop(self.indexer.release_hold(listener, dp_rank, None, &mut pending)),
            }
        }
        pending.wait_for_all(&self.indexer.supervisor);
    }

    /// Replaces the registered instance by this one.
    pub fn exchange(mut self) -> Result<(), ShadowError> {
        let indexer = Arc::clone(&self.indexer);
        let registering = indexer.registering.lock();
        {
            let mut instances = self.model.instances.write();
            let changed = || ShadowError::Changed(self.instance.clone());
            let original = instances.get_mut(&self.instance).ok_or_else(changed)?;
            let streams = |listeners: &BTreeMap<DpRank, Arc<Listener>>| -> BTreeMap<DpRank, u64> {
                listeners.iter().map(|(&dp_rank, listener)| (dp_rank, listener.id)).collect()
            };
            let is_index_replaced = self.model.replaceable.generation() != self.generation;
            if is_index_replaced || streams(&original.listeners) != streams(&self.replaced) {
                return Err(changed());
            }
            if self.replaced.values().any(|listener| listener.has_lost_tail()) {
                return Err(ShadowError::TailLost(self.instance.clone()));
            }
            if self.is_behind() {
                return Err(ShadowError::Behind(self.instance.clone()));
            }
            for listener in self.listeners.values().filter(|listener| listener.options.is_bound()) {
                indexer.decoders.deliver(listener, Delivery::PromoteShadow);
            }
            let unregistered = self.own_ranks(&original.unregistered).into_iter();
            *original = Instance {
                unregistered: unregistered.map(|(listener, dp_rank)| (listener.id, dp_rank)).collect(),
                listeners: self.listeners.clone(),
                ..Instance::new(self.worker)
            };
        }
        drop(registering);
        let replaced = std::mem::take(&mut self.replaced);
        let own = std::mem::take(&mut self.listeners);
        self.close(replaced.values());
        Self::compare_received(&indexer, &replaced, &own);
        Ok(())
    }

    /// Compares the messages that the replaced listeners had received when they were closed with those of their successors. A message may
    /// have been queued when the instance was exchanged, and lost on the other connection.
    fn compare_received(
        indexer: &Indexer,
        replaced: &BTreeMap<DpRank, Arc<Listener>>,
        own: &BTreeMap<DpRank, Arc<Listener>>,
    ) {
        for (dp_rank, own) in own {
            let Some(replaced) = replaced.get(dp_rank) else { continue };
            if replaced.connection() == ConnectionStatus::Disconnected {
                // Its messages may be of an earlier epoch. The other connection is lost as well, and its epoch is verified.
                continue;
            }
            let last = replaced.last_known_sequence();
            if last > own.last_known_sequence() {
                indexer.decoders.lose_tail(own, last);
            }
        }
    }

    /// Closes listeners, and removes their blocks.
    fn close<'a>(&self, listeners: impl Iterator<Item = &'a Arc<Listener>>) {
        let closed: BTreeMap<u64, _> = listeners.map(|listener| (listener.id, listener)).collect();
        let mut pending = PendingWork::default();
        for listener in closed.into_values() {
            self.indexer.retire(listener, Some(listener.worker), |_| {}, &mut pending);
        }
        pending.wait(&self.indexer.supervisor);
    }

    /// Whether a rank of the registered instance has secondary cache groups.
    fn has_groups(&self, dp_rank: DpRank) -> bool {
        let original = self.replaced.get(&dp_rank).map(|listener| WorkerRank { worker: listener.worker, dp_rank });
        original.is_some_and(|rank| !self.model.index().secondary_groups(rank).is_empty())
    }

    fn is_same_instance(&self, key: &ModelKey, instance: &InstanceId) -> bool {
        self.model.key == *key && self.instance == *instance
    }
}

impl DumpSink for Shadow {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        if self.is_same_instance(&record.key(), &record.instance_id) {
            if record.block_size != self.model.block_size.tokens() {
                return Err(Rejection(format!("the peer has blocks of {} tokens", record.block_size)));
            }
            let dp_rank = DpRank(record.dp_rank);
            if !self.listeners.contains_key(&dp_rank) {
                self.lists_other_ranks = true;
                return Ok(());
            }
            if record.groups.is_none() && self.has_groups(dp_rank) {
                return Err(Rejection(
                    "the peer does not dump the secondary cache groups of a hybrid model".to_owned(),
                ));
            }
            let of = WorkerRank { worker: self.worker, dp_rank };
            self.restored.entry(dp_rank).or_default().apply_record(&self.model, of, &record);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        if self.is_same_instance(rank.key, rank.instance) && self.listeners.contains_key(&rank.dp_rank) {
            let of = WorkerRank { worker: self.worker, dp_rank: rank.dp_rank };
            self.restored.entry(rank.dp_rank).or_default().apply_entry(&self.model, of, entry);
        }
        Ok(())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let own = std::mem::take(&mut self.listeners);
        self.close(own.values());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flash_indexer_core::hashing::BlockSize;
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::Registration;
    use flash_indexer_wire::{Encoding, EngineEvent, encode_batch};

    use super::*;
    use crate::IndexerOptions;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// An indexer with one instance, which has one rank and no replay endpoint.
    fn registered() -> (Arc<Indexer>, ModelKey, InstanceId) {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("it starts"));
        let (key, instance) = (ModelKey::new("m", None), InstanceId::number(1));
        let (endpoint, block_size) = ("tcp://127.0.0.1:9", BlockSize::new(4).expect("a size"));
        indexer
            .register(Registration::new(instance.clone(), key.clone(), endpoint, block_size))
            .expect("it is registered");
        (indexer, key, instance)
    }

    /// A listener receives the live message 0, as its socket's thread delivers it.
    fn receive(indexer: &Indexer, listener: &Arc<Listener>) {
        let payload = encode_batch(1.0, &[EngineEvent::Cleared], None, Encoding::Map);
        let frames = vec![b"kv-events".to_vec(), 0_u64.to_be_bytes().to_vec(), payload];
        indexer.decoders.deliver(listener, Delivery::Live(vec![frames]));
        wait_for("the message", PATIENCE, || listener.last_known_sequence());
    }

    #[test]
    fn a_copy_without_a_message_that_the_registered_instance_has_received_does_not_replace_it() {
        let (indexer, key, instance) = registered();
        let present = || {
            let model = indexer.model(&key).expect("it is registered");
            model.listener(&instance, DpRank(0)).expect("it is registered")
        };
        let original = present();
        receive(&indexer, &original);

        // Its subscription begins after the message, and its engine has no replay endpoint.
        let mut late = Shadow::of(&indexer, &key, &instance).expect("a copy");
        late.resume();
        assert!(matches!(late.exchange(), Err(ShadowError::Behind(_))));
        assert_eq!(present().id, original.id);

        let mut whole = Shadow::of(&indexer, &key, &instance).expect("a copy");
        let copy = Arc::clone(&whole.listeners[&DpRank(0)]);
        whole.resume();
        receive(&indexer, &copy);
        whole.exchange().expect("it has the message");
        assert_eq!(present().id, copy.id);
    }

    #[test]
    fn a_message_that_the_replaced_instance_had_queued_is_missing_until_its_successor_has_it() {
        let (indexer, key, instance) = registered();
        let mut shadow = Shadow::of(&indexer, &key, &instance).expect("a copy");
        shadow.resume();
        let (replaced, own) = (shadow.replaced.clone(), shadow.listeners.clone());
        shadow.exchange().expect("neither has a message");
        let successor = &own[&DpRank(0)];
        // Before the first contact, a lost message does not add another doubt.
        indexer.decoders.deliver(successor, Delivery::Connected);
        let exactness = || (successor.drop_runs(), successor.trust(DpRank(0)));

        Shadow::compare_received(&indexer, &replaced, &own);
        assert_eq!(exactness(), (0, Trust::Cold), "nothing is missing");
        receive(&indexer, &replaced[&DpRank(0)]);
        Shadow::compare_received(&indexer, &replaced, &own);
        assert_eq!(successor.drop_runs(), 1);
        wait_for("the loss", PATIENCE, || successor.has_lost_tail().then_some(()));
        receive(&indexer, successor);
        wait_for("the message", PATIENCE, || (successor.trust(DpRank(0)) == Trust::Exact).then_some(()));
    }
}
