//! Restarts of streams whose state is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_wire::Replay;

use super::decoder::Decoder;
#[cfg(any(test, feature = "fault-injection"))]
use super::delivery::Delivery;
use crate::change::Change;
use crate::listener::Listener;
use crate::listener_decoder::{DECODER_PANICKED, ListenerDecoder};
use crate::log_listener;

impl Decoder {
    /// Restarts a stream whose state is lost.
    pub(super) fn restart(&mut self, listener: &Arc<Listener>, replay: Replay, now: Instant) {
        let ranks = listener.model.ranks_of(listener);
        let is_held = ranks.iter().any(|&dp_rank| listener.hold().holds(dp_rank));
        if is_held || (ranks.is_empty() && !self.listener_decoders.contains_key(&listener.id)) {
            // The stream is held, so nothing was applied yet; or it is unregistered.
            return self.writers.write(listener, vec![Change::Restarted], None);
        }
        let has_replay = replay == Replay::Available;
        log_listener!(warn, **listener, has_replay, "restarting the stream: its state is lost");
        self.with_decoder(listener, |decoder, _| decoder.restart(ranks, replay, now));
    }

    /// Restarts every stream of the thread after a panic, because the panic may have left any of them in an unknown state.
    /// The current listener's stream requests no replay, which would return the message that caused the panic.
    pub(super) fn restart_all(&mut self) {
        let culprit = self.current.take();
        let listener_decoders: BTreeMap<u64, ListenerDecoder> =
            std::mem::take(&mut self.listener_decoders).into_iter().collect();
        let listeners: Vec<_> = listener_decoders.values().map(|decoder| Arc::clone(decoder.listener())).collect();
        let listeners: Vec<_> = listeners.into_iter().chain(culprit.clone()).collect();
        // All of them lose trust before the first one restarts.
        for listener in &listeners {
            listener.require_restart(DECODER_PANICKED);
        }
        self.timers = listener_decoders.iter().filter_map(|(&id, decoder)| Some((decoder.wakes_at()?, id))).collect();
        self.waiting_bytes = listener_decoders.values().map(ListenerDecoder::waiting_bytes).sum();
        self.listener_decoders.extend(listener_decoders);
        for listener in listeners {
            let is_culprit = culprit.as_ref().is_some_and(|culprit| culprit.id == listener.id);
            let replay = if is_culprit { Replay::Unavailable } else { Replay::Available };
            self.restart(&listener, replay, self.clock.now());
        }
    }
}

/// Panics on the topic by which a test injects a fault.
#[cfg(any(test, feature = "fault-injection"))]
pub(super) fn inject_fault(delivery: &Delivery) {
    let is_fault = |frames: &Vec<Vec<u8>>| frames[0] == b"decoder fault";
    assert!(!delivery.messages().iter().any(is_fault), "a test asked for a failure");
}
