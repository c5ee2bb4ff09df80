//! Streams that start over because their state is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_wire::Replay;

use super::Decoder;
#[cfg(any(test, feature = "fault-injection"))]
use super::Delivery;
use crate::change::Change;
use crate::listener::Listener;
use crate::listener_decoder::{DECODER_PANICKED, ListenerDecoder};
use crate::log_listener;

impl Decoder {
    /// Has a stream start over.
    pub(super) fn restart(&mut self, listener: &Arc<Listener>, replay: Replay, now: Instant) {
        let ranks = listener.model.ranks_of(listener);
        let is_held = ranks.iter().any(|&dp_rank| listener.hold().holds(dp_rank));
        if is_held || (ranks.is_empty() && !self.listener_decoders.contains_key(&listener.id)) {
            // Nothing of it was applied yet, or it is unregistered.
            return self.writers.write(listener, vec![Change::Restarted]);
        }
        let has_replay = replay == Replay::Available;
        log_listener!(warn, **listener, has_replay, "stream starts over: its state was lost");
        self.with_decoder(listener, |decoder, _| decoder.restart(ranks, replay, now));
    }

    /// Has every stream start over after a step that panicked: which of them it has left in an unknown state cannot be
    /// known. That of the listener at work does so without a replay, which would bring the message again.
    pub(super) fn restart_all(&mut self) {
        let culprit = self.current.take();
        let listener_decoders: BTreeMap<u64, ListenerDecoder> =
            std::mem::take(&mut self.listener_decoders).into_iter().collect();
        let listeners: Vec<_> = listener_decoders.values().map(|decoder| Arc::clone(decoder.listener())).collect();
        let listeners: Vec<_> = listeners.into_iter().chain(culprit.clone()).collect();
        // All of them at once, before the first one starts over.
        for listener in &listeners {
            listener.require_restart(DECODER_PANICKED);
        }
        self.timers = listener_decoders.iter().filter_map(|(&id, decoder)| Some((decoder.wakes_at()?, id))).collect();
        self.waiting_bytes = listener_decoders.values().map(ListenerDecoder::waiting_bytes).sum();
        self.listener_decoders.extend(listener_decoders);
        for listener in listeners {
            let is_culprit = culprit.as_ref().is_some_and(|culprit| culprit.id == listener.id);
            let replay = if is_culprit { Replay::Unavailable } else { Replay::Available };
            self.restart(&listener, replay, Instant::now());
        }
    }
}

/// No message is known to make a decoder fail, so a topic does.
#[cfg(any(test, feature = "fault-injection"))]
pub(super) fn inject_fault(delivery: &Delivery) {
    let is_fault = |frames: &Vec<Vec<u8>>| frames[0] == b"decoder fault";
    assert!(!delivery.messages().iter().any(is_fault), "a test asked for a failure");
}
