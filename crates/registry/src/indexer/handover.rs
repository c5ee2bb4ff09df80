//! Taking a rank's state over from another service, and giving it away: what the index holds of a rank
//! together with the place in the rank's stream that it is of.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{DpRank, SharedIndex, WorkerRank, stored_events};
use flash_indexer_wire::Start;

use super::cleanup::PendingWork;
use super::{Indexer, RegistrationError};
use crate::model::Model;
use flash_indexer_ingest::{DecoderStateDetail, Delivery, Listener, ReadAt, ReleaseOutcome, ResumePoint};
use flash_indexer_snapshot::RankDump;
use flash_indexer_types::Position;
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_types::{Owner, Registered, Registration};

impl Indexer {
    /// Connects to a rank, but applies nothing of it before [`Indexer::release`]: its messages wait, within
    /// bounds. Meanwhile whoever holds it may apply to the index what it knows of the rank.
    ///
    /// A rank whose stream is listened to already, for another rank, is not held.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_held(&self, registration: Registration) -> Result<Registered, RegistrationError> {
        self.register_from(registration, Start::Held, Owner::Manual)
    }

    /// The same for a rank that another service listens to, for whoever keeps it registered there.
    ///
    /// # Errors
    ///
    /// As [`Indexer::register`].
    pub fn register_taken_over(
        &self,
        registration: Registration,
        owner: Owner,
    ) -> Result<Registered, RegistrationError> {
        self.register_from(registration, Start::Held, owner)
    }

    /// Ends the hold of a rank. `position` says what the index holds of it by now: the stream goes on from
    /// there, without a seam if that can be had. Without a position the rank is forgotten and heard from
    /// its start.
    ///
    /// A stream that several held ranks share goes on when the last of them is released. Returns when
    /// what waited is applied, as far as nothing has to be asked for.
    pub fn release(
        &self,
        instance: &InstanceId,
        model: &ModelKey,
        dp_rank: DpRank,
        position: Option<Position>,
    ) -> ReleaseOutcome {
        let mut pending = PendingWork::default();
        let released = {
            let _registering = self.registering.lock();
            let listener = self.models.read().get(model).and_then(|model| listener(model, instance, dp_rank));
            listener.map_or(ReleaseOutcome::NotHeld, |listener| {
                self.release_held(&listener, dp_rank, position, &mut pending)
            })
        };
        pending.wait_for_all();
        released
    }

    /// [`Indexer::release`] that does not wait for the stream.
    pub(super) fn release_held(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        position: Option<Position>,
        pending: &mut PendingWork,
    ) -> ReleaseOutcome {
        let released = listener.hold().release(dp_rank, position);
        if released == ReleaseOutcome::Now {
            self.decoders.deliver(listener, Delivery::Release(pending.add()));
        }
        released
    }

    /// What each rank of a model holds, one rank at a time: each at one moment, together with the place in
    /// its stream that this is, and no more than one rank in memory.
    pub fn dump(&self, key: &ModelKey) -> impl Iterator<Item = RankDump> + use<'_> {
        self.dump_of(key, None)
    }

    /// The same for one instance, or for all.
    pub(super) fn dump_of<'i>(
        &'i self,
        key: &ModelKey,
        instance: Option<&InstanceId>,
    ) -> impl Iterator<Item = RankDump> + use<'i> {
        let model = self.models.read().get(key).cloned();
        let mut ranks = model.as_ref().map(|model| model.ranks()).unwrap_or_default();
        ranks.retain(|(of, _)| instance.is_none_or(|wanted| wanted == of));
        ranks.into_iter().filter_map(move |(instance, rank)| Some(self.dump_rank(model.as_ref()?, instance, rank)))
    }

    fn dump_rank(&self, model: &Arc<Model>, instance: InstanceId, rank: WorkerRank) -> RankDump {
        let dp_rank = rank.dp_rank;
        let read = listener(model, &instance, dp_rank).and_then(|listener| {
            let model = Arc::clone(model);
            // The writer waits for this: what is made of it is made elsewhere.
            self.read(&listener, dp_rank, (ReadAt::Now, DecoderStateDetail::Full), None, move |place| {
                (place, model.index().held(rank), model.index().further_stores(rank), model.is_partial(rank))
            })
        });
        match read {
            Some((ResumePoint { position, decoder_state }, held, further, is_partial)) => RankDump {
                instance,
                dp_rank,
                // Whoever takes it over must not believe to have all of it.
                position: Some(if is_partial { position.degraded() } else { position }),
                events: stored_events(held),
                further,
                named_groups: decoder_state.groups,
                salts: decoder_state.block_state.salts.into_iter().collect(),
                contents: decoder_state.block_state.contents,
            },
            None => RankDump {
                instance,
                dp_rank,
                position: None,
                events: model.index().dump(rank),
                further: model.index().further_stores(rank),
                named_groups: Some(Vec::new()),
                salts: KeyedMap::default(),
                contents: None,
            },
        }
    }

    /// Where the streams of a model's ranks stand, with nothing of what they hold.
    #[must_use]
    pub fn positions(&self, key: &ModelKey) -> Vec<(InstanceId, DpRank, Position)> {
        let Some(model) = self.models.read().get(key).cloned() else { return Vec::new() };
        let ranks = model.ranks().into_iter();
        let positions = ranks.filter_map(|(instance, rank)| {
            let listener = listener(&model, &instance, rank.dp_rank)?;
            let now = (ReadAt::Now, DecoderStateDetail::Brief);
            let position = self.read(&listener, rank.dp_rank, now, None, |place| place.position)?;
            Some((instance, rank.dp_rank, position))
        });
        positions.collect()
    }

    /// Reads something where the rank's writer is between two messages, knowing which; nothing when the
    /// service stops, or when it does not come to the message within `patience`.
    pub(super) fn read<T: Send + 'static>(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        (at, detail): (ReadAt, DecoderStateDetail),
        patience: Option<Duration>,
        read: impl FnOnce(ResumePoint) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = bounded(1);
        let read = Box::new(move |place| {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(read(place));
        });
        self.decoders.deliver(listener, Delivery::Read { dp_rank, at, detail, read });
        match patience {
            None => answer.recv().ok(),
            Some(patience) => answer.recv_timeout(patience).ok(),
        }
    }
}

pub(super) fn listener(model: &Model, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
    model.instances.read().get(instance)?.listeners.get(&dp_rank).cloned()
}
