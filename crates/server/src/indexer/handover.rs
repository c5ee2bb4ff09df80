//! Taking a rank's state over from another service, and giving it away: what the index holds of a rank
//! together with the place in the rank's stream that it is of.

use std::sync::Arc;

use crossbeam_channel::bounded;
use flash_indexer_core::{BlockEvent, DpRank, SharedIndex, WorkerRank};
use flash_indexer_wire::Start;

use super::{Indexer, Registered, Registration, RegistrationError};
use crate::ingest::{Delivery, Listener, Position, Released};
use crate::instance::{InstanceId, ModelKey};
use crate::model::Model;

/// What one rank holds, and where its stream stood at that moment.
#[derive(Debug, Clone)]
pub struct RankDump {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// The place in the rank's stream up to which `events` tell it, no more and no less; none for a rank
    /// that nobody listens to.
    pub position: Option<Position>,
    /// Stored events that make an empty index know the same; parents come before children.
    pub events: Vec<BlockEvent>,
}

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
        self.register_from(registration, Start::Held)
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
    ) -> Released {
        let _registering = self.registering.lock();
        let listener = self.models.read().get(model).and_then(|model| listener(model, instance, dp_rank));
        listener.map_or(Released::NotHeld, |listener| self.release_held(&listener, dp_rank, position))
    }

    pub(super) fn release_held(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        position: Option<Position>,
    ) -> Released {
        let released = listener.hold.lock().release(dp_rank, position);
        if released == Released::Now {
            let (done, finished) = bounded(1);
            self.decoders.deliver(listener, Delivery::Release(done));
            // An error means that the service stops.
            let _ = finished.recv();
        }
        released
    }

    /// What each rank of a model holds, one rank at a time: each at one moment, together with the place in
    /// its stream that this is, and no more than one rank in memory.
    pub fn dump(&self, key: &ModelKey) -> impl Iterator<Item = RankDump> + use<'_> {
        let model = self.models.read().get(key).cloned();
        let ranks = model.as_ref().map(|model| model.ranks()).unwrap_or_default();
        ranks.into_iter().filter_map(move |(instance, rank)| Some(self.dump_rank(model.as_ref()?, instance, rank)))
    }

    /// Where the streams of a model's ranks stand, with nothing of what they hold.
    #[must_use]
    pub fn positions(&self, key: &ModelKey) -> Vec<(InstanceId, DpRank, Position)> {
        let Some(model) = self.models.read().get(key).cloned() else { return Vec::new() };
        let ranks = model.ranks().into_iter();
        let positions = ranks.filter_map(|(instance, rank)| {
            let listener = listener(&model, &instance, rank.dp_rank)?;
            let position = self.read(&listener, rank.dp_rank, |position| position)?;
            Some((instance, rank.dp_rank, position))
        });
        positions.collect()
    }

    fn dump_rank(&self, model: &Arc<Model>, instance: InstanceId, rank: WorkerRank) -> RankDump {
        let dp_rank = rank.dp_rank;
        let read = listener(model, &instance, dp_rank).and_then(|listener| {
            let model = Arc::clone(model);
            self.read(&listener, dp_rank, move |position| (position, model.index.dump(rank)))
        });
        match read {
            Some((position, events)) => RankDump { instance, dp_rank, position: Some(position), events },
            None => RankDump { instance, dp_rank, position: None, events: model.index.dump(rank) },
        }
    }

    /// Reads something where the rank's writer is between two messages, knowing which; nothing when the
    /// service stops.
    fn read<T: Send + 'static>(
        &self,
        listener: &Arc<Listener>,
        dp_rank: DpRank,
        read: impl FnOnce(Position) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = bounded(1);
        let read = Delivery::Read(Box::new(move |position| {
            // Whoever asked waits for this.
            let _ = reply.send(read(position(dp_rank)));
        }));
        self.decoders.deliver(listener, read);
        answer.recv().ok()
    }
}

fn listener(model: &Model, instance: &InstanceId, dp_rank: DpRank) -> Option<Arc<Listener>> {
    model.instances.read().get(instance)?.listeners.get(&dp_rank).cloned()
}
