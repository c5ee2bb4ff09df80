//! Restarts of a stream whose state is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_types::{ConnectionStatus, LossReason};
use flash_indexer_wire::ReplaySupport;

use super::ListenerDecoder;
use crate::change::Change;
use crate::listener::Listener;

impl ListenerDecoder {
    /// The decoder that replaces this one after a panic. It removes all blocks of the stream, whose ranks in the registry are
    /// `ranks`, and requests no replay, which would return the message that caused the panic. A paused stream stays paused.
    pub(crate) fn after_panic(mut self, ranks: Vec<DpRank>, now: Instant) -> Self {
        self.listener.reject("panicked", LossReason::DecoderPanicked.to_string());
        if self.listener.is_held() {
            return self.into_paused(now);
        }
        self.ranks.extend(ranks);
        self.ranks.extend(self.listener.hold().ranks());
        self.into_restarted(LossReason::DecoderPanicked, ReplaySupport::Unavailable, now)
    }

    /// Starts a paused stream over after a panic, and keeps it paused.
    pub(crate) fn hold_again(&mut self, now: Instant) {
        let (listener, metrics) = (Arc::clone(&self.listener), Arc::clone(&self.metrics));
        let lost = std::mem::replace(self, Self::with_replay(listener, metrics, ReplaySupport::Unavailable));
        *self = lost.into_paused(now);
    }

    /// The decoder that replaces this one, whose stream is paused and whose state is lost. Blocks may be restored for its
    /// ranks at this moment, so no message is applied before the release. The messages that were received before are lost.
    fn into_paused(self, now: Instant) -> Self {
        let replay = replay_after_restart(&self.listener, ReplaySupport::Unavailable);
        let mut held = Self::with_replay(self.listener, self.metrics, replay);
        held.ignored_ranks = self.ignored_ranks;
        held.changes.push(Change::Restarted);
        held.changes.extend(Change::acknowledge_received(&held.listener));
        let released = held.listener.hold().released().into_iter().map(|(dp_rank, _)| dp_rank);
        for dp_rank in self.translators.into_keys().chain(released).collect::<BTreeSet<_>>() {
            // Its decoder state was restored before, and is lost.
            held.groups_unknown.insert(dp_rank);
            held.changes_after_trust
                .push(Change::RecordLoss(Some(dp_rank), LossReason::DecoderPanickedInRestore.to_string()));
        }
        // It is no longer known whether the connection was interrupted before.
        held.stream.disconnected();
        if held.listener.connection() == ConnectionStatus::Connected {
            held.stream.connected(now);
        }
        held.tail_lost(None, now);
        held.changes.push(Change::Pending(held.stream.pending()));
        held
    }

    /// Restarts the stream because its state is lost. `ranks` are the stream's ranks in the registry.
    pub(crate) fn restart(&mut self, ranks: Vec<DpRank>, replay: ReplaySupport, now: Instant) {
        let (listener, metrics) = (Arc::clone(&self.listener), Arc::clone(&self.metrics));
        let mut lost = std::mem::replace(self, Self::with_replay(listener, metrics, ReplaySupport::Unavailable));
        lost.ranks.extend(ranks);
        *self = lost.into_restarted(LossReason::ThreadPanicked, replay, now);
    }

    /// The decoder that replaces this one, whose state is lost.
    fn into_restarted(self, why: LossReason, replay: ReplaySupport, now: Instant) -> Self {
        let replay = replay_after_restart(&self.listener, replay);
        let mut restarted = Self::with_replay(self.listener, self.metrics, replay);
        restarted.listener.cancel_replay();
        restarted.has_restarted = true;
        restarted.changes.push(Change::Restarted);
        restarted.changes.extend(Change::acknowledge_received(&restarted.listener));
        restarted.ranks = self.ranks;
        restarted.ignored_ranks = self.ignored_ranks;
        restarted.forget_ranks();
        restarted.changes.push(Change::RecordLoss(None, why.to_string()));
        restarted.stream.release(None, now);
        if let (ReplaySupport::Available, last @ Some(_)) = (replay, self.stream.last_known()) {
            restarted.stream.tail_lost(last, now);
        }
        if restarted.listener.connection() == ConnectionStatus::Connected {
            restarted.stream.connected(now);
        }
        restarted.execute();
        restarted.changes.push(Change::Pending(restarted.stream.pending()));
        restarted
    }
}

/// Replays that a stream may request after it has lost its state.
fn replay_after_restart(listener: &Listener, replay: ReplaySupport) -> ReplaySupport {
    match listener.options.replay() {
        ReplaySupport::Available => listener.replay_after_restart(replay),
        other => other,
    }
}
