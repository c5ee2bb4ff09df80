//! Restoring a dump into the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, WorkerId, WorkerRank};
use flash_indexer_ingest::{Delivery, Listener};
use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection};
use flash_indexer_types::{InstanceId, ModelKey, RankId};

use super::cleanup::PendingWork;
use super::restored_state::RestoredState;
use super::{Indexer, RegistrationError};
use crate::model::{Instance, Model};

/// Applies a dump to the index while the dump is read. Dropping it before [`Restore::commit`] removes the restored
/// blocks.
///
/// Blocks are restored for ranks whose streams are held, and for instances that are not registered; the latter keep
/// them unchanged. Blocks of other ranks are skipped, because their own streams publish them.
pub struct Restore {
    indexer: Arc<Indexer>,
    held: BTreeSet<RankId>,
    targets: BTreeMap<ModelKey, BTreeMap<InstanceId, BTreeMap<DpRank, RestoreTarget>>>,
    /// Instances that the restore added.
    added: Vec<(ModelKey, InstanceId)>,
}

/// Destination of the blocks of one rank.
enum RestoreTarget {
    Rank(RestoredRank),
    /// The rank's own stream is applied already, or its registration was refused.
    Skipped,
}

/// A restored rank.
pub struct RestoredRank {
    model: Arc<Model>,
    rank: WorkerRank,
    restored: RestoredState,
}

impl Restore {
    /// Creates a restore. `held` are the ranks whose streams are held until it ends.
    pub fn new(indexer: Arc<Indexer>, held: BTreeSet<RankId>) -> Self {
        Self { indexer, held, targets: BTreeMap::new(), added: Vec::new() }
    }

    /// Adds a rank whose stream is held.
    pub fn hold(&mut self, rank: RankId) {
        self.held.insert(rank);
    }

    /// Skips a rank of the dump whose registration was refused. Restored without a listener, it would keep the state of the dump forever.
    /// Restored under another registration of the rank, it would continue from a position in another stream.
    ///
    /// # Errors
    ///
    /// If no rank of its model can be registered: the dump does not fit the configuration.
    pub fn skip_refused(&mut self, rank: &RankId, error: &RegistrationError) -> Result<(), Rejection> {
        if let RegistrationError::BlockSize { .. }
        | RegistrationError::Memory { .. }
        | RegistrationError::TooMany { what: "models", .. } = error
        {
            return Err(Rejection(error.to_string()));
        }
        self.set_target(&rank.model, &rank.instance, rank.dp_rank, RestoreTarget::Skipped);
        Ok(())
    }

    /// Keeps the restored blocks, and returns the state from which each stream continues.
    pub fn commit(mut self) -> BTreeMap<RankId, RestoredRank> {
        self.added.clear();
        let mut all = BTreeMap::new();
        for (model, instances) in std::mem::take(&mut self.targets) {
            for (instance, ranks) in instances {
                let id = |dp_rank| RankId { model: model.clone(), instance: instance.clone(), dp_rank };
                let has_ranks_not_held = ranks.keys().any(|&dp_rank| !self.held.contains(&id(dp_rank)));
                for (dp_rank, target) in ranks {
                    if let RestoreTarget::Rank(mut restored) = target {
                        restored.restored.complete(&restored.model, restored.rank, has_ranks_not_held);
                        all.insert(id(dp_rank), restored);
                    }
                }
            }
        }
        all
    }

    /// The restored rank; none if its blocks are skipped.
    fn target(
        &mut self,
        key: &ModelKey,
        block_size: BlockSize,
        instance: &InstanceId,
        dp_rank: DpRank,
    ) -> Result<Option<&mut RestoredRank>, Rejection> {
        let known = self.targets.get(key).and_then(|instances| instances.get(instance)?.get(&dp_rank));
        let target = match known {
            None => Some(self.new_target(key, block_size, instance, dp_rank)?),
            Some(RestoreTarget::Rank(_)) if !self.may_restore(key, instance, dp_rank) => Some(RestoreTarget::Skipped),
            Some(_) => None,
        };
        if let Some(target) = target {
            self.set_target(key, instance, dp_rank, target);
        }
        let instances = self.targets.get_mut(key).and_then(|instances| instances.get_mut(instance)?.get_mut(&dp_rank));
        Ok(instances.and_then(|target| match target {
            RestoreTarget::Rank(restored) => Some(restored),
            RestoreTarget::Skipped => None,
        }))
    }

    fn set_target(&mut self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank, target: RestoreTarget) {
        let instances = self.targets.entry(key.clone()).or_default();
        let replaced = instances.entry(instance.clone()).or_default().insert(dp_rank, target);
        if let Some(RestoreTarget::Rank(orphan)) = replaced {
            // An entry may have been applied after the blocks of the unregistered rank were removed.
            let rank = RankId { model: key.clone(), instance: instance.clone(), dp_rank };
            self.indexer.release_restored(&rank, Some(orphan));
        }
    }

    /// Ranks of an instance whose streams were held when the restore began.
    fn held_of<'r>(&'r self, key: &'r ModelKey, instance: &'r InstanceId) -> impl Iterator<Item = &'r RankId> {
        let first = RankId { model: key.clone(), instance: instance.clone(), dp_rank: DpRank(0) };
        self.held.range(first..).take_while(move |id| id.model == *key && id.instance == *instance)
    }

    /// Whether a rank was not unregistered since the restore began. A rank that was registered again has its own stream, which is applied
    /// already. Looks up one rank, or, for a rank that only batches name, ranks of its instance until one is held.
    fn may_restore(&self, key: &ModelKey, instance: &InstanceId, dp_rank: DpRank) -> bool {
        let own = RankId { model: key.clone(), instance: instance.clone(), dp_rank };
        if self.held.contains(&own) {
            return self.indexer.is_held(&own);
        }
        // A rank that only batches name belongs to one of the instance's streams.
        let mut held = self.held_of(key, instance).peekable();
        let has_stream = held.peek().is_none() || held.any(|id| self.indexer.is_held(id));
        has_stream && !self.indexer.is_unregistered(&own)
    }

    fn new_target(
        &mut self,
        key: &ModelKey,
        block_size: BlockSize,
        instance: &InstanceId,
        dp_rank: DpRank,
    ) -> Result<RestoreTarget, Rejection> {
        if !self.may_restore(key, instance, dp_rank) {
            return Ok(RestoreTarget::Skipped);
        }
        let found = self.indexer.instance_to_restore(key, block_size, instance);
        let found = found.map_err(|error| Rejection(error.to_string()))?;
        if found.is_new {
            self.added.push((key.clone(), instance.clone()));
        }
        let mut held = self.held_of(key, instance);
        let is_restored = match found.registered_ranks.contains(&dp_rank) {
            true => held.any(|id| id.dp_rank == dp_rank),
            // A rank that only batches name belongs to one of the instance's streams.
            false => found.registered_ranks.is_empty() || held.next().is_some(),
        };
        let rank = WorkerRank { worker: found.worker, dp_rank };
        Ok(match is_restored {
            true => RestoreTarget::Rank(RestoredRank { model: found.model, rank, restored: RestoredState::default() }),
            false => RestoreTarget::Skipped,
        })
    }
}

impl DumpSink for Restore {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        let block_size =
            BlockSize::new(record.block_size).ok_or_else(|| Rejection("invalid block size 0".to_owned()))?;
        let target = self.target(&record.key(), block_size, &record.instance_id, DpRank(record.dp_rank))?;
        if let Some(target) = target {
            target.restored.apply_record(&target.model, target.rank, &record);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        if let Some(target) = self.target(rank.key, rank.block_size, rank.instance, rank.dp_rank)? {
            target.restored.apply_entry(&target.model, target.rank, entry);
        }
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let targets = std::mem::take(&mut self.targets).into_values();
        for target in targets.flat_map(BTreeMap::into_values).flat_map(BTreeMap::into_values) {
            if let RestoreTarget::Rank(restored) = target {
                restored.model.clear_restored(restored.rank);
            }
        }
        for (key, instance) in self.added.drain(..) {
            self.indexer.unregister(&instance, &key.model_name, Some(&key.tenant_id), None);
        }
    }
}

/// An instance to restore blocks for.
struct TargetInstance {
    model: Arc<Model>,
    worker: WorkerId,
    /// Its registered ranks.
    registered_ranks: BTreeSet<DpRank>,
    is_new: bool,
}

impl Indexer {
    /// Whether a rank's stream is held.
    pub fn is_held(&self, rank: &RankId) -> bool {
        self.listener_of(rank).is_some_and(|listener| listener.hold().holds(rank.dp_rank))
    }

    /// Whether a rank was unregistered while other ranks of its instance keep its stream.
    fn is_unregistered(&self, rank: &RankId) -> bool {
        let Some(model) = self.find_model(&rank.model) else { return false };
        let instances = model.instances.read();
        let known = instances.get(&rank.instance);
        known.is_some_and(|known| known.unregistered.iter().any(|&(_, dp_rank)| dp_rank == rank.dp_rank))
    }

    /// Degrades the trust in a rank, for a reason that its stream does not show.
    pub fn mark_degraded(&self, rank: &RankId, why: String) {
        if let Some(listener) = self.listener_of(rank) {
            listener.record_loss(Some(rank.dp_rank), why);
        }
    }

    /// Sequence number of the last applied message of a rank's stream.
    pub fn last_sequence(&self, rank: &RankId) -> Option<u64> {
        self.listener_of(rank)?.last_sequence()
    }

    fn listener_of(&self, rank: &RankId) -> Option<Arc<Listener>> {
        self.models.read().get(&rank.model)?.listener(&rank.instance, rank.dp_rank)
    }

    /// Releases a paused rank. Its stream continues from the restored state, or starts over without one.
    pub fn release_restored(&self, rank: &RankId, restored: Option<RestoredRank>) {
        let mut pending = PendingWork::default();
        {
            let _registering = self.registering.lock();
            match (self.listener_of(rank), restored) {
                // The rank was unregistered and registered again meanwhile: its stream continues by itself.
                (Some(listener), _) if !listener.hold().holds(rank.dp_rank) => {}
                (Some(listener), Some(rank_restored)) => {
                    self.resume_from_restored(&listener, rank.dp_rank, rank_restored.restored, &mut pending);
                }
                (Some(listener), None) => {
                    self.release_hold(&listener, rank.dp_rank, None, &mut pending);
                }
                // The rank was unregistered meanwhile.
                (None, Some(orphan)) => {
                    self.cleanup.run(&mut pending, move || orphan.model.clear_restored(orphan.rank));
                }
                (None, None) => {}
            }
        }
        pending.wait_for_all(&self.supervisor);
    }

    /// Removes the restored blocks of a paused rank, and releases it. Its stream starts over.
    pub fn release_cleared(&self, rank: &RankId) {
        let mut pending = PendingWork::default();
        {
            let _registering = self.registering.lock();
            let model = self.find_model(&rank.model);
            if let (Some(model), Some(listener)) = (model, self.listener_of(rank)) {
                model.clear_restored(WorkerRank { worker: listener.worker, dp_rank: rank.dp_rank });
                self.release_hold(&listener, rank.dp_rank, None, &mut pending);
            }
        }
        pending.wait_for_all(&self.supervisor);
    }

    /// Releases a paused stream, which continues from the restored state of a rank.
    pub(super) fn resume_from_restored(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        restored: RestoredState,
        pending: &mut PendingWork,
    ) {
        if restored.is_index_replaced(&*listener.model) {
            self.release_hold(listener, dp_rank, None, pending);
            return;
        }
        let position = restored.position();
        self.decoders.deliver(listener, Delivery::RestoreDecoderState(dp_rank, restored.decoder_state));
        self.release_hold(listener, dp_rank, Some(position), pending);
    }

    /// The instance, added to the model if it is new.
    fn instance_to_restore(
        &self,
        key: &ModelKey,
        block_size: BlockSize,
        instance: &InstanceId,
    ) -> Result<TargetInstance, RegistrationError> {
        let _registering = self.registering.lock();
        let model = self.model_for(key, block_size)?;
        let found = {
            let mut instances = model.instances.write();
            let is_new = !instances.contains_key(instance);
            let new_instance = || Instance::new(WorkerId(self.new_id()));
            let known = instances.entry(instance.clone()).or_insert_with(new_instance);
            let registered_ranks = known.listeners.keys().copied().collect();
            TargetInstance { model: Arc::clone(&model), worker: known.worker, registered_ranks, is_new }
        };
        self.models.write().entry(key.clone()).or_insert(model);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{Block, LocalHash, SequenceHash, SharedIndex, Tier};
    use flash_indexer_snapshot::{StoredBlocks, UnheldAncestors};
    use flash_indexer_types::Registration;

    use super::*;
    use crate::IndexerOptions;

    #[test]
    fn an_entry_that_is_applied_while_its_rank_is_unregistered_leaves_no_blocks() {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("it starts"));
        let (key, size, instance) =
            (ModelKey::new("m", None), BlockSize::new(1).expect("a size"), InstanceId::number(1));
        let registration = Registration::new(instance.clone(), key.clone(), "tcp://127.0.0.1:9", size);
        for dp_rank in [DpRank(0), DpRank(1)] {
            indexer.register_paused(Registration { dp_rank, ..registration.clone() }).expect("it is registered");
        }
        let id = |dp_rank| RankId { model: key.clone(), instance: instance.clone(), dp_rank };
        let mut restore = Restore::new(Arc::clone(&indexer), [0, 1].map(|rank| id(DpRank(rank))).into());
        let entry = |block: u64| {
            let blocks = vec![Block { sequence: SequenceHash(block), local: LocalHash(block) }];
            DumpEntry::Blocks(StoredBlocks {
                tier: Tier::Device,
                parent: None,
                blocks,
                copies: 1,
                salt: None,
                remembered: None,
            })
        };
        let name = RankName { key: &key, block_size: size, instance: &instance, dp_rank: DpRank(1) };

        let target = restore.target(&key, size, &instance, DpRank(1)).expect("a target").expect("it is held");
        let (model, rank) = (Arc::clone(&target.model), target.rank);
        indexer.unregister(&instance, "m", None, Some(DpRank(1)));
        target.restored.apply_entry(&model, rank, entry(1));
        assert_eq!(model.index().size(rank).blocks, 1, "applied after its blocks were removed");
        restore.entry(name, entry(2)).expect("skipped");
        assert_eq!(model.index().size(rank).blocks, 0);
        assert!(!restore.commit().contains_key(&id(DpRank(1))));
    }

    #[test]
    fn a_refused_rank_is_not_restored_and_a_refused_model_rejects_the_dump() {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("it starts"));
        let (key, size) = (ModelKey::new("m", None), BlockSize::new(1).expect("a size"));
        let rank = RankId { model: key.clone(), instance: InstanceId::number(1), dp_rank: DpRank(0) };
        let mut restore = Restore::new(Arc::clone(&indexer), BTreeSet::new());
        let model_refused = RegistrationError::BlockSize { model: key.clone(), existing: 1, asked: 2 };
        restore.skip_refused(&rank, &model_refused).expect_err("the dump does not fit");
        let refused = RegistrationError::TooMany { what: "ranks", max: 0 };
        restore.skip_refused(&rank, &refused).expect("the rank alone is skipped");
        let name = RankName { key: &key, block_size: size, instance: &rank.instance, dp_rank: rank.dp_rank };
        let kept = UnheldAncestors { parent: None, blocks: Vec::new(), salt: None };
        restore.entry(name, DumpEntry::Kept(kept)).expect("skipped");
        assert!(restore.commit().is_empty() && indexer.matching_models(None, None).is_empty());
    }
}
