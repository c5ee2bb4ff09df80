//! Handover of a rank's state between replicas: its blocks in the index, and the position in its stream at which they
//! are valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{DpRank, SharedIndex, WorkerRank, stored_events};
use flash_indexer_ingest::{DecoderStateDetail, Delivery, Listener, ModelSink, ReadAt, ReleaseOutcome, ResumePoint};
use flash_indexer_snapshot::RankDump;
use flash_indexer_types::{InstanceId, ModelKey, Owner, RankId, RankPosition, Registration, RegistrationOutcome};
use flash_indexer_wire::Start;

use super::cleanup::PendingWork;
use super::readings::{in_parts, reading_of};
use super::registration_check::IpcPaths;
use super::{Indexer, RegistrationError};
use crate::model::Model;

impl Indexer {
    /// Connects to a rank of a peer, with its owner there, but applies no message before [`Indexer::release`]. Messages are
    /// queued within limits. Meanwhile the caller may restore blocks of the rank into the index.
    ///
    /// A rank that shares the stream of a registered rank is not held.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_from_peer(
        &self,
        registration: Registration,
        owner: Owner,
    ) -> Result<RegistrationOutcome, RegistrationError> {
        self.register_from(registration, Start::Paused, owner, IpcPaths::AsConfigured)
    }

    /// Releases a paused rank. Its stream continues from `position`, at which the restored blocks are valid; messages
    /// missing after it are replayed if possible. Without a position, the rank's blocks are removed and its stream is
    /// read from the start.
    ///
    /// A stream that several paused ranks share continues when the last of them is released. Returns when the queued
    /// messages are applied, except for messages that a replay must precede.
    pub fn release(&self, rank: &RankId, position: Option<RankPosition>) -> ReleaseOutcome {
        let mut pending = PendingWork::default();
        let released = {
            let _registering = self.registering.lock();
            let release = |listener: Arc<Listener>| self.release_hold(&listener, rank.dp_rank, position, &mut pending);
            self.listener_of(rank).map_or(ReleaseOutcome::NotHeld, release)
        };
        pending.wait_for_all(&self.supervisor);
        released
    }

    /// [`Indexer::release`] that does not wait for the stream.
    pub(super) fn release_hold(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        position: Option<RankPosition>,
        pending: &mut PendingWork,
    ) -> ReleaseOutcome {
        let released = listener.hold().release(dp_rank, position);
        if released == ReleaseOutcome::Now {
            self.decoders.deliver(listener, Delivery::Release(pending.add()));
        }
        released
    }

    /// Dumps the ranks of a model, of one instance or of all, one at a time, with their listeners. Each dump is consistent and
    /// has the position in the rank's stream at which it is valid. One dump is in memory at a time.
    pub(super) fn dump_instance<'i>(
        &'i self,
        key: &ModelKey,
        instance: Option<&InstanceId>,
    ) -> impl Iterator<Item = (RankDump, Option<Arc<Listener>>)> + use<'i> {
        let model = self.find_model(key);
        let mut ranks = model.as_ref().map(|model| model.ranks()).unwrap_or_default();
        ranks.retain(|(of, _)| instance.is_none_or(|wanted| wanted == of));
        let mut listed: BTreeMap<u64, BTreeSet<DpRank>> = BTreeMap::new();
        for (instance, rank) in &ranks {
            if let Some(listener) = model.as_ref().and_then(|model| model.listener(instance, rank.dp_rank)) {
                listed.entry(listener.id).or_default().insert(rank.dp_rank);
            }
        }
        ranks.into_iter().filter_map(move |(instance, rank)| self.dump_rank(model.as_ref()?, &instance, rank, &listed))
    }

    /// Dumps one rank, with its listener. `listed` are the ranks of each listener in the dump. None if the rank was unregistered
    /// meanwhile: without its registration, a replica would restore it as a rank known only from a dump.
    fn dump_rank(
        &self,
        model: &Arc<Model>,
        instance: &InstanceId,
        rank: WorkerRank,
        listed: &BTreeMap<u64, BTreeSet<DpRank>>,
    ) -> Option<(RankDump, Option<Arc<Listener>>)> {
        let restored = || dump_of_index(model, instance, rank);
        let holds_blocks = |dump: &RankDump| !dump.events.is_empty() || !dump.secondary.is_empty();
        loop {
            let listener = model.listener(instance, rank.dp_rank);
            let dump = match &listener {
                Some(listener) => Some(self.dump_listed(model, listener, rank.dp_rank, listed)),
                None => model.is_restored(instance, rank).then(restored).filter(holds_blocks),
            };
            // If the rank left the stream while it was read, the dump has the stream's position and none of the rank's blocks.
            let id = |listener: &Option<Arc<Listener>>| listener.as_ref().map(|listener| listener.id);
            if id(&model.listener(instance, rank.dp_rank)) == id(&listener) {
                return Some((dump?, listener));
            }
        }
    }

    /// Dumps one rank of a stream.
    fn dump_listed(
        &self,
        model: &Arc<Model>,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        listed: &BTreeMap<u64, BTreeSet<DpRank>>,
    ) -> RankDump {
        let instance = &listener.instance;
        if !listener.options.has_events() {
            // The registration alone: times to live do not outlive the process.
            return RankDump {
                instance: instance.clone(),
                dp_rank,
                position: None,
                events: Vec::new(),
                secondary: Vec::new(),
                named_groups: None,
                salts: KeyedMap::default(),
                contents: None,
            };
        }
        let rank = WorkerRank { worker: listener.worker, dp_rank };
        let of_part = Arc::clone(model);
        let mut read_part = in_parts(Arc::clone(model), reading_of(model, rank).with_kept());
        let read = self.read(listener, dp_rank, (ReadAt::Now, DecoderStateDetail::Full), None, move || {
            Some((read_part()?, of_part.is_partial(rank)))
        });
        let Some((ResumePoint { mut position, named_ranks, decoder_state }, (reading, is_partial))) = read else {
            return dump_of_index(model, instance, rank);
        };
        RankDump {
            instance: instance.clone(),
            dp_rank,
            position: Some({
                // A rank that was named after the ranks were listed, is unregistered here, or belongs to another stream.
                let is_listed = listed.get(&listener.id).is_some_and(|listed| named_ranks.is_subset(listed));
                position.unlisted_degraded |= !is_listed;
                // A reader must not take a partial dump for an exact one.
                if is_partial { position.degraded() } else { position }
            }),
            secondary: reading.secondary_stores(),
            events: stored_events(reading.held.into_blocks_and_kept()),
            named_groups: decoder_state.groups,
            salts: decoder_state.block_state.salts.iter().map(|block| (block.sequence, block.salt)).collect(),
            contents: decoder_state.block_state.contents,
        }
    }
}

/// Dumps one rank without its stream: it has no listener, or its decoder does not read it any more.
fn dump_of_index(model: &Model, instance: &InstanceId, rank: WorkerRank) -> RankDump {
    RankDump {
        instance: instance.clone(),
        dp_rank: rank.dp_rank,
        position: None,
        events: model.index().dump(rank),
        secondary: model.index().secondary_stores(rank),
        named_groups: Some(Vec::new()),
        salts: KeyedMap::default(),
        contents: None,
    }
}
