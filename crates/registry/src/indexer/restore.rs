//! Taking over what a dump says.

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

/// Puts a dump's blocks into the index while it is read; dropped before [`Restore::commit`], it takes them out
/// again.
///
/// Blocks go to ranks whose streams are held, and to instances that nobody is registered for, which then hold
/// what they held for good. What other ranks hold is left out, because their own streams tell it.
pub struct Restore {
    indexer: Arc<Indexer>,
    held: BTreeSet<RankId>,
    places: BTreeMap<ModelKey, BTreeMap<InstanceId, BTreeMap<DpRank, RestoreTarget>>>,
    /// Instances that were not known before.
    added: Vec<(ModelKey, InstanceId)>,
}

/// Where the blocks of one rank go.
enum RestoreTarget {
    RestoredRank(RestoredRank),
    /// Its own stream is followed already.
    LeftOut,
}

/// A rank that was restored.
pub struct RestoredRank {
    model: Arc<Model>,
    rank: WorkerRank,
    restored: Restored,
}

/// What is known of a restored rank besides its blocks.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Where its stream stood, if the dump says so.
    stream: Option<StreamRecord>,
    /// What its stream has said before.
    decoder_state: DecoderState,
    /// Blocks, cache groups and contents that are not kept.
    refused: u64,
    /// Of which index this is, if anything was put into one.
    generation: Option<u64>,
}

impl Restored {
    /// Takes what the rank holds into an index.
    pub(super) fn take(&mut self, model: &Model, rank: WorkerRank, told: DumpEntry) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        match told {
            DumpEntry::Blocks(stored) => {
                self.learn(stored.salt, stored.remembered, stored.parent, &stored.blocks);
                model.restore(rank, BlockEvent::from(stored));
            }
            DumpEntry::Names(stored) => self.take_names(model, rank, stored),
            DumpEntry::Gone(gone) => self.learn(gone.salt, Some(gone.age), gone.parent, &gone.blocks),
        }
    }

    /// Takes what the stream will leave decoder_state of blocks.
    fn learn(&mut self, salt: Option<Salt>, age: Option<Age>, parent: Option<SequenceHash>, blocks: &[Block]) {
        let BlockDecoderState { salts, contents } = &mut self.decoder_state.block_state;
        salts.extend(salt.into_iter().flat_map(|salt| blocks.iter().map(move |block| (block.sequence, salt))));
        if let Some(age) = age {
            let contents = contents.get_or_insert_default();
            let room = CONTENTS_MAX.saturating_sub(contents.len());
            contents.extend(remembered(parent, blocks, age).take(room));
            self.refused += blocks.len().saturating_sub(room) as u64;
        }
    }

    fn take_names(&mut self, model: &Model, rank: WorkerRank, stored: StoredNames) {
        let refused = model.apply_group(rank, GroupChange::from(stored)).refused;
        if refused > 0 {
            model.metrics.bounded(Bound::CacheGroups, refused);
            self.refused += refused;
        }
    }

    /// Takes what is told besides the blocks.
    pub(super) fn note(&mut self, model: &Model, rank: WorkerRank, record: &RankRecord) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        record.windows.iter().for_each(|&window| model.windows.note(window.into()));
        self.stream = record.stream;
        self.decoder_state.groups = record.groups.as_ref().map(|groups| groups.iter().map(Into::into).collect());
        if record.remembers.is_some() {
            // It offloads, also if there is nothing to be remembered yet.
            self.decoder_state.block_state.contents.get_or_insert_default();
        }
        for group in record.groups.iter().flatten().filter_map(GroupRecord::kept) {
            // That it exists limits what is usable, also when it is empty.
            self.take_names(model, rank, StoredNames { group, tier: Tier::Device, copies: 1, names: Vec::new() });
        }
    }

    /// Whether the index that the blocks were put into was given up since.
    pub(super) fn is_lost(&self, model: &dyn ModelSink) -> bool {
        self.generation.is_some_and(|generation| generation != model.generation())
    }

    /// The place in the rank's stream that its blocks are of.
    fn position(&self) -> Position {
        match self.stream {
            Some(StreamRecord { cursor, epoch, trust }) => {
                let trust = if self.refused > 0 { Trust::Degraded } else { trust };
                Position { cursor: cursor.map(Into::into), epoch, trust }
            }
            None => Position::UNKNOWN,
        }
    }
}

impl Restore {
    /// `held`: ranks whose streams wait for the end of this.
    pub fn new(indexer: Arc<Indexer>, held: BTreeSet<RankId>) -> Self {
        Self { indexer, held, places: BTreeMap::new(), added: Vec::new() }
    }

    /// The stream of another rank is held as well.
    pub fn hold(&mut self, rank: RankId) {
        self.held.insert(rank);
    }

    /// Keeps what was taken, and tells where each stream goes on.
    pub fn commit(mut self) -> BTreeMap<RankId, RestoredRank> {
        self.added.clear();
        let mut all = BTreeMap::new();
        for (model, instances) in std::mem::take(&mut self.places) {
            for (instance, ranks) in instances {
                for (dp_rank, place) in ranks {
                    if let RestoreTarget::RestoredRank(taken) = place {
                        all.insert(RankId { model: model.clone(), instance: instance.clone(), dp_rank }, taken);
                    }
                }
            }
        }
        all
    }

    /// Where a rank's blocks go; none if they are left out.
    fn place(
        &mut self,
        key: &ModelKey,
        block_size: BlockSize,
        instance: &InstanceId,
        dp_rank: DpRank,
    ) -> Result<Option<&mut RestoredRank>, Refused> {
        let known = self.places.get(key).and_then(|instances| instances.get(instance)?.get(&dp_rank));
        if known.is_none() {
            let place = self.new_place(key, block_size, instance, dp_rank)?;
            let instances = self.places.entry(key.clone()).or_default();
            instances.entry(instance.clone()).or_default().insert(dp_rank, place);
        }
        let instances = self.places.get_mut(key).and_then(|instances| instances.get_mut(instance)?.get_mut(&dp_rank));
        Ok(instances.and_then(|place| match place {
            RestoreTarget::RestoredRank(taken) => Some(taken),
            RestoreTarget::LeftOut => None,
        }))
    }

    fn new_place(
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
        let is_taken = match found.listens_to.contains(&dp_rank) {
            true => held.any(|id| id.dp_rank == dp_rank),
            // Only batches name it: it is fed by one of the instance's streams.
            false => found.listens_to.is_empty() || held.next().is_some(),
        };
        let rank = WorkerRank { worker: found.worker, dp_rank };
        Ok(match is_taken {
            true => {
                RestoreTarget::RestoredRank(RestoredRank { model: found.model, rank, restored: Restored::default() })
            }
            false => RestoreTarget::LeftOut,
        })
    }
}

impl DumpSink for Restore {
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused> {
        let block_size = BlockSize::new(record.block_size).ok_or_else(|| Refused("a block size of 0".to_owned()))?;
        let place = self.place(&record.key(), block_size, &record.instance_id, DpRank(record.dp_rank))?;
        if let Some(taken) = place {
            taken.restored.note(&taken.model, taken.rank, &record);
        }
        Ok(())
    }

    fn told(&mut self, rank: RankName<'_>, told: DumpEntry) -> Result<(), Refused> {
        if let Some(taken) = self.place(rank.key, rank.block_size, rank.instance, rank.dp_rank)? {
            taken.restored.take(&taken.model, taken.rank, told);
        }
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let places = std::mem::take(&mut self.places).into_values();
        for place in places.flat_map(BTreeMap::into_values).flat_map(BTreeMap::into_values) {
            if let RestoreTarget::RestoredRank(taken) = place {
                taken.model.clear_restored(taken.rank);
            }
        }
        for (key, instance) in self.added.drain(..) {
            self.indexer.unregister(&instance, &key.model_name, Some(&key.tenant_id), None);
        }
    }
}

/// An instance that blocks can be put under.
struct TargetInstance {
    model: Arc<Model>,
    worker: WorkerId,
    /// Ranks that are registered.
    listens_to: BTreeSet<DpRank>,
    is_new: bool,
}

impl Indexer {
    /// Whether a rank's stream waits to be released.
    pub fn is_held(&self, rank: &RankId) -> bool {
        self.listener_of(rank).is_some_and(|listener| listener.hold().holds(rank.dp_rank))
    }

    /// A rank need not be what the index says, for a reason that its stream does not know of.
    pub fn distrust(&self, rank: &RankId, why: String) {
        if let Some(listener) = self.listener_of(rank) {
            listener.record_loss(Some(rank.dp_rank), why);
        }
    }

    /// The last message that was taken in of a rank's stream.
    pub fn last_sequence(&self, rank: &RankId) -> Option<u64> {
        self.listener_of(rank)?.last_sequence()
    }

    fn listener_of(&self, rank: &RankId) -> Option<Arc<Listener>> {
        listener(self.models.read().get(&rank.model)?, &rank.instance, rank.dp_rank)
    }

    /// Lets a held rank's stream go on from what was taken, or from its start.
    pub fn release_restored(&self, rank: &RankId, taken: Option<RestoredRank>) {
        let mut pending = PendingWork::default();
        {
            let _registering = self.registering.lock();
            match (self.listener_of(rank), taken) {
                (Some(listener), Some(taken)) => {
                    self.go_on_from(&listener, rank.dp_rank, taken.restored, &mut pending);
                }
                (Some(listener), None) => {
                    self.release_held(&listener, rank.dp_rank, None, &mut pending);
                }
                // It was unregistered meanwhile.
                (None, Some(taken)) => {
                    self.cleanup.run(&mut pending, move || taken.model.clear_restored(taken.rank));
                }
                (None, None) => {}
            }
        }
        pending.wait_for_all();
    }

    /// Lets a held stream go on from what was restored of a rank.
    pub(super) fn go_on_from(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        restored: Restored,
        pending: &mut PendingWork,
    ) {
        if restored.is_lost(&*listener.model) {
            self.release_held(listener, dp_rank, None, pending);
            return;
        }
        let position = restored.position();
        self.decoders.deliver(listener, Delivery::RestoreDecoderState(dp_rank, restored.decoder_state));
        self.release_held(listener, dp_rank, Some(position), pending);
    }

    /// The instance, which is made known if it is not.
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
            let listens_to = known.listeners.keys().copied().collect();
            TargetInstance { model: Arc::clone(&model), worker: known.worker, listens_to, is_new }
        };
        self.models.write().entry(key.clone()).or_insert(model);
        Ok(found)
    }
}
