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
    /// Ranks of the dump; none for a rank whose blocks are skipped: its own stream is applied already, or its registration was refused.
    targets: BTreeMap<RankId, Option<RestoredRank>>,
    /// Instances that the restore added.
    added: Vec<(ModelKey, InstanceId)>,
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
        self.set_target(rank, None);
        Ok(())
    }

    /// Keeps the restored blocks, and returns the state from which each stream continues.
    pub fn commit(mut self) -> BTreeMap<RankId, RestoredRank> {
        self.added.clear();
        let instance_of = |rank: &RankId| (rank.model.clone(), rank.instance.clone());
        let not_held = self.targets.keys().filter(|rank| !self.held.contains(*rank));
        let with_ranks_not_held: BTreeSet<_> = not_held.map(instance_of).collect();
        let restored = std::mem::take(&mut self.targets).into_iter().filter_map(|(rank, target)| {
            let mut target = target?;
            let lists_other_ranks = with_ranks_not_held.contains(&instance_of(&rank));
            target.restored.complete(&target.model, target.rank, lists_other_ranks);
            Some((rank, target))
        });
        restored.collect()
    }

    /// The restored rank; none if its blocks are skipped.
    fn target(&mut self, rank: &RankId, block_size: BlockSize) -> Result<Option<&mut RestoredRank>, Rejection> {
        match self.targets.get(rank) {
            None => {
                let target = self.new_target(rank, block_size)?;
                self.set_target(rank, target);
            }
            Some(Some(_)) if !self.may_restore(rank) => self.set_target(rank, None),
            Some(_) => {}
        }
        Ok(self.targets.get_mut(rank).and_then(Option::as_mut))
    }

    fn set_target(&mut self, rank: &RankId, target: Option<RestoredRank>) {
        if let Some(orphan) = self.targets.insert(rank.clone(), target).flatten() {
            // An entry may have been applied after the blocks of the unregistered rank were removed.
            self.indexer.release_restored(rank, Some(orphan));
        }
    }

    /// Ranks of the same instance whose streams were held when the restore began.
    fn held_of<'r>(&'r self, rank: &'r RankId) -> impl Iterator<Item = &'r RankId> {
        let first = RankId { dp_rank: DpRank(0), ..rank.clone() };
        self.held.range(first..).take_while(move |id| id.model == rank.model && id.instance == rank.instance)
    }

    /// Whether a rank was not unregistered since the restore began. A rank that was registered again has its own stream, which is applied
    /// already. Looks up one rank, or, for a rank that only batches name, ranks of its instance until one is held.
    fn may_restore(&self, rank: &RankId) -> bool {
        if self.held.contains(rank) {
            return self.indexer.is_held(rank);
        }
        // A rank that only batches name belongs to one of the instance's streams.
        let mut held = self.held_of(rank).peekable();
        let has_stream = held.peek().is_none() || held.any(|id| self.indexer.is_held(id));
        has_stream && !self.indexer.is_unregistered(rank)
    }

    /// The destination of a rank's blocks; none if they are skipped. Adds the instance to its model if it is new.
    fn new_target(&mut self, rank: &RankId, block_size: BlockSize) -> Result<Option<RestoredRank>, Rejection> {
        if !self.may_restore(rank) {
            return Ok(None);
        }
        let indexer = &self.indexer;
        let _registering = indexer.registering.lock();
        let model = indexer.model_for(&rank.model, block_size).map_err(|error| Rejection(error.to_string()))?;
        let mut instances = model.instances.write();
        if !instances.contains_key(&rank.instance) {
            self.added.push((rank.model.clone(), rank.instance.clone()));
        }
        let new_instance = || Instance::new(WorkerId(indexer.new_id()));
        let known = instances.entry(rank.instance.clone()).or_insert_with(new_instance);
        let is_restored = match known.listeners.contains_key(&rank.dp_rank) {
            true => self.held.contains(rank),
            // A rank that only batches name belongs to one of the instance's streams.
            false => known.listeners.is_empty() || self.held_of(rank).next().is_some(),
        };
        let worker_rank = WorkerRank { worker: known.worker, dp_rank: rank.dp_rank };
        drop(instances);
        indexer.models.write().entry(rank.model.clone()).or_insert_with(|| Arc::clone(&model));
        Ok(is_restored.then(|| RestoredRank { model, rank: worker_rank, restored: RestoredState::default() }))
    }
}

impl DumpSink for Restore {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        let block_size =
            BlockSize::new(record.block_size).ok_or_else(|| Rejection("invalid block size 0".to_owned()))?;
        let (model, instance) = (record.key(), record.instance_id.clone());
        let rank = RankId { model, instance, dp_rank: DpRank(record.dp_rank) };
        if let Some(target) = self.target(&rank, block_size)? {
            target.restored.apply_record(&target.model, target.rank, &record);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        let id = RankId { model: rank.key.clone(), instance: rank.instance.clone(), dp_rank: rank.dp_rank };
        if let Some(target) = self.target(&id, rank.block_size)? {
            target.restored.apply_entry(&target.model, target.rank, entry);
        }
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        for target in std::mem::take(&mut self.targets).into_values().flatten() {
            target.model.clear_restored(target.rank);
        }
        for (key, instance) in self.added.drain(..) {
            self.indexer.unregister(&instance, &key.model_name, Some(&key.tenant_id), None);
        }
    }
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

    pub(super) fn listener_of(&self, rank: &RankId) -> Option<Arc<Listener>> {
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
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{Block, LocalHash, SequenceHash, SharedIndex, Tier};
    use flash_indexer_snapshot::{StoredBlocks, UnheldAncestors};
    use flash_indexer_types::Registration;
    use flash_indexer_wire::Start;

    use super::*;
    use crate::IndexerOptions;

    #[test]
    fn an_entry_that_is_applied_while_its_rank_is_unregistered_leaves_no_blocks() {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("it starts"));
        let (key, size, instance) =
            (ModelKey::new("m", None), BlockSize::new(1).expect("a size"), InstanceId::number(1));
        let registration = Registration::new(instance.clone(), key.clone(), "tcp://127.0.0.1:9", size);
        for dp_rank in [DpRank(0), DpRank(1)] {
            let registration = Registration { dp_rank, ..registration.clone() };
            indexer.register_configured(registration, Start::Paused).expect("it is registered");
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

        let target = restore.target(&id(DpRank(1)), size).expect("a target").expect("it is held");
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
