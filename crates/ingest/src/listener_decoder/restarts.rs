//! Restarts of a stream whose state is lost.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_wire::Replay;

use super::{DECODER_PANICKED, ListenerDecoder};
use crate::change::Change;
use crate::listener::Connection;

impl ListenerDecoder {
    /// The decoder that replaces this one after a panic. It removes all blocks of the stream, and requests no replay, which
    /// would return the message that caused the panic.
    pub(crate) fn after_panic(self, now: Instant) -> Self {
        self.listener.reject("panicked", DECODER_PANICKED.to_owned());
        self.into_restarted(DECODER_PANICKED, Replay::Unavailable, now)
    }

    /// Restarts the stream because its state is lost. `ranks` are the stream's ranks in the registry.
    pub(crate) fn restart(&mut self, ranks: Vec<DpRank>, replay: Replay, now: Instant) {
        let (listener, metrics) = (Arc::clone(&self.listener), Arc::clone(&self.metrics));
        let mut lost = std::mem::replace(self, Self::with_replay(listener, metrics, Replay::Unavailable));
        lost.ranks.extend(ranks);
        *self =
            lost.into_restarted("a thread of the service panicked; the blocks of the stream are removed", replay, now);
    }

    /// The decoder that replaces this one, whose state is lost.
    fn into_restarted(self, why: &str, replay: Replay, now: Instant) -> Self {
        let replay = match self.listener.options.replay() {
            Replay::Available => self.listener.replay_after_restart(replay),
            other => other,
        };
        let mut restarted = Self::with_replay(self.listener, self.metrics, replay);
        restarted.listener.cancel_replay();
        restarted.has_restarted = true;
        restarted.changes.push(Change::Restarted);
        // Earlier acknowledgements were discarded with the other changes. The stream is read from its start again.
        restarted.changes.push(Change::DropsAcknowledged(restarted.listener.drop_runs()));
        restarted.ranks = self.ranks;
        restarted.ignored_ranks = self.ignored_ranks;
        restarted.forget_ranks();
        restarted.changes.push(Change::RecordLoss(None, why.to_owned()));
        restarted.stream.release(None, now);
        if restarted.listener.connection() == Connection::Connected {
            restarted.stream.connected(now);
        }
        restarted.execute();
        restarted.changes.push(Change::Pending(restarted.stream.pending()));
        restarted
    }
}
