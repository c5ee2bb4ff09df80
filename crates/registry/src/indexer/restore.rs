//! Restoring a dump into the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::groups::GroupChange;
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::{Block, BlockEvent, DpRank, SequenceHash, Tier, WorkerId, WorkerRank};
use flash_indexer_wire::{Age, CONTENTS_MAX};

use super::cleanup::PendingWork;
use super::handover::listener;
use super::{Indexer, RegistrationError};
use crate::model::{Instance, Model};
use flash_indexer_ingest::{BlockDecoderState, DecoderState, Delivery, Listener, ModelSink};
use flash_indexer_snapshot::{
    DumpEntry, DumpSink, GroupRecord, RankName, RankRecord, Refused, StoredNames, StreamRecord, remembered,
};
use flash_indexer_telemetry::metrics::Bound;
use flash_indexer_types::RankId;
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_types::{Position, Trust};

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
    /// The rank's own stream is applied already.
    Skipped,
}

/// A restored rank.
pub struct RestoredRank {
    model: Arc<Model>,
    rank: WorkerRank,
    restored: Restored,
}

/// State of a restored rank besides its blocks.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Position of its stream, if the dump has it.
    stream: Option<StreamRecord>,
    /// State that the decoder of its stream needs.
    decoder_state: DecoderState,
    /// Blocks, cache groups and contents that exceeded a limit.
    rejected: u64,
    /// Generation of the index that the blocks were restored into, if any were.
    generation: Option<u64>,
}

impl Restored {
    /// Applies one entry of the dump.
    pub(super) fn apply_entry(&mut self, model: &Model, rank: WorkerRank, entry: DumpEntry) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        match entry {
            DumpEntry::Blocks(stored) => {
                self.record_decoder_state(stored.salt, stored.remembered, stored.parent, &stored.blocks);
                model.restore(rank, BlockEvent::from(stored));
            }
            DumpEntry::Names(stored) => self.apply_group_blocks(model, rank, stored),
            DumpEntry::Gone(gone) => self.record_decoder_state(gone.salt, Some(gone.age), gone.parent, &gone.blocks),
        }
    }

    /// Records the salts and contents of blocks, which the decoder of the stream needs.
    fn record_decoder_state(
        &mut self,
        salt: Option<Salt>,
        age: Option<Age>,
        parent: Option<SequenceHash>,
        blocks: &[Block],
    ) {
        let BlockDecoderState { salts, contents } = &mut self.decoder_state.of_blocks;
        salts.extend(salt.into_iter().flat_map(|salt| blocks.iter().map(move |block| (block.sequence, salt))));
        if let Some(age) = age {
            let contents = contents.get_or_insert_default();
            let room = CONTENTS_MAX.saturating_sub(contents.len());
            contents.extend(remembered(parent, blocks, age).take(room));
            self.rejected += blocks.len().saturating_sub(room) as u64;
        }
    }

    /// Applies blocks of a secondary cache group.
    fn apply_group_blocks(&mut self, model: &Model, rank: WorkerRank, stored: StoredNames) {
        let rejected = model.apply_group(rank, GroupChange::from(stored)).refused;
        if rejected > 0 {
            model.metrics.bounded(Bound::CacheGroups, rejected);
            self.rejected += rejected;
        }
    }

    /// Applies the record of the rank, which precedes its entries.
    pub(super) fn apply_record(&mut self, model: &Model, rank: WorkerRank, record: &RankRecord) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        record.windows.iter().for_each(|&window| model.windows.record(window.into()));
        self.stream = record.stream;
        self.decoder_state.groups = record.groups.as_ref().map(|groups| groups.iter().map(Into::into).collect());
        if record.remembers.is_some() {
            // The engine offloads, even if there are no contents yet.
            self.decoder_state.of_blocks.contents.get_or_insert_default();
        }
        for group in record.groups.iter().flatten().filter_map(GroupRecord::kept) {
            // An empty group limits the usable blocks as well.
            self.apply_group_blocks(
                model,
                rank,
                StoredNames { group, tier: Tier::Device, copies: 1, names: Vec::new() },
            );
        }
    }

    /// Whether the index that the blocks were restored into has been replaced since.
    pub(super) fn is_index_replaced(&self, model: &dyn ModelSink) -> bool {
        self.generation.is_some_and(|generation| generation != model.generation())
    }

    /// The position in the rank's stream at which its blocks are valid.
    fn position(&self) -> Position {
        match self.stream {
            Some(StreamRecord { cursor, epoch, trust }) => {
                let trust = if self.rejected > 0 { Trust::Degraded } else { trust };
                Position { cursor: cursor.map(Into::into), epoch, trust }
            }
            None => Position::UNKNOWN,
        }
    }
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

    /// Keeps the restored blocks, and returns the state from which each stream continues.
    pub fn commit(mut self) -> BTreeMap<RankId, RestoredRank> {
        self.added.clear();
        let mut all = BTreeMap::new();
        for (model, instances) in std::mem::take(&mut self.targets) {
            for (instance, ranks) in instances {
                for (dp_rank, target) in ranks {
                    if let RestoreTarget::Rank(restored) = target {
                        all.insert(RankId { model: model.clone(), instance: instance.clone(), dp_rank }, restored);
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
    ) -> Result<Option<&mut RestoredRank>, Refused> {
        let known = self.targets.get(key).and_then(|instances| instances.get(instance)?.get(&dp_rank));
        if known.is_none() {
            let target = self.new_target(key, block_size, instance, dp_rank)?;
            let instances = self.targets.entry(key.clone()).or_default();
            instances.entry(instance.clone()).or_default().insert(dp_rank, target);
        }
        let instances = self.targets.get_mut(key).and_then(|instances| instances.get_mut(instance)?.get_mut(&dp_rank));
        Ok(instances.and_then(|target| match target {
            RestoreTarget::Rank(restored) => Some(restored),
            RestoreTarget::Skipped => None,
        }))
    }

    fn new_target(
        &mut self,
        key: &ModelKey,
        block_size: BlockSize,
        instance: &InstanceId,
        dp_rank: DpRank,
    ) -> Result<RestoreTarget, Refused> {
        let found = self.indexer.instance_to_restore(key, block_size, instance);
        let found = found.map_err(|error| Refused(error.to_string()))?;
        if found.is_new {
            self.added.push((key.clone(), instance.clone()));
        }
        let of_instance = RankId { model: key.clone(), instance: instance.clone(), dp_rank: DpRank(0) };
        let mut held = self.held.range(of_instance..).take_while(|id| id.model == *key && id.instance == *instance);
        let is_restored = match found.registered_ranks.contains(&dp_rank) {
            true => held.any(|id| id.dp_rank == dp_rank),
            // A rank that only batches name belongs to one of the instance's streams.
            false => found.registered_ranks.is_empty() || held.next().is_some(),
        };
        let rank = WorkerRank { worker: found.worker, dp_rank };
        Ok(match is_restored {
            true => RestoreTarget::Rank(RestoredRank { model: found.model, rank, restored: Restored::default() }),
            false => RestoreTarget::Skipped,
        })
    }
}

impl DumpSink for Restore {
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused> {
        let block_size = BlockSize::new(record.block_size).ok_or_else(|| Refused("invalid block size 0".to_owned()))?;
        let target = self.target(&record.key(), block_size, &record.instance_id, DpRank(record.dp_rank))?;
        if let Some(target) = target {
            target.restored.apply_record(&target.model, target.rank, &record);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Refused> {
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

    /// Degrades the trust in a rank, for a reason that its stream does not show.
    pub fn mark_degraded(&self, rank: &RankId, why: String) {
        if let Some(listener) = self.listener_of(rank) {
            listener.raise(Some(rank.dp_rank), why);
        }
    }

    /// Sequence number of the last applied message of a rank's stream.
    pub fn last_sequence(&self, rank: &RankId) -> Option<u64> {
        self.listener_of(rank)?.last_sequence()
    }

    fn listener_of(&self, rank: &RankId) -> Option<Arc<Listener>> {
        listener(self.models.read().get(&rank.model)?, &rank.instance, rank.dp_rank)
    }

    /// Releases a held rank. Its stream continues from the restored state, or starts over without one.
    pub fn release_restored(&self, rank: &RankId, restored: Option<RestoredRank>) {
        let mut pending = PendingWork::default();
        {
            let _registering = self.registering.lock();
            match (self.listener_of(rank), restored) {
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
        pending.wait_for_all();
    }

    /// Releases a held stream, which continues from the restored state of a rank.
    pub(super) fn resume_from_restored(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        restored: Restored,
        pending: &mut PendingWork,
    ) {
        if restored.is_index_replaced(&*listener.model) {
            self.release_hold(listener, dp_rank, None, pending);
            return;
        }
        let position = restored.position();
        self.decoders.deliver(listener, Delivery::Learn(dp_rank, restored.decoder_state));
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
            let new_instance = || Instance { worker: WorkerId(self.new_id()), listeners: BTreeMap::new() };
            let known = instances.entry(instance.clone()).or_insert_with(new_instance);
            let registered_ranks = known.listeners.keys().copied().collect();
            TargetInstance { model: Arc::clone(&model), worker: known.worker, registered_ranks, is_new }
        };
        self.models.write().entry(key.clone()).or_insert(model);
        Ok(found)
    }
}
