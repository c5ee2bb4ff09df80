//! Restarts of streams whose state is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_types::LossReason;
use flash_indexer_wire::ReplaySupport;

use super::decoder::Decoder;
use crate::change::Change;
use crate::listener::Listener;
use crate::listener_decoder::ListenerDecoder;
use crate::log_listener;

impl Decoder {
    /// Restarts a stream whose state is lost.
    pub(super) fn restart(&mut self, listener: &Arc<Listener>, replay: ReplaySupport, now: Instant) {
        let ranks = listener.model.ranks_of(listener);
        if listener.is_held() || (ranks.is_empty() && !self.listener_decoders.contains_key(&listener.id)) {
            // The stream is held, so nothing was applied yet; or it is unregistered.
            let acknowledged = Change::acknowledge_received(listener);
            let changes = std::iter::once(Change::Restarted).chain(acknowledged).collect();
            return self.writers.write(listener, changes, None);
        }
        let has_replay = replay == ReplaySupport::Available;
        log_listener!(warn, **listener, has_replay, "restarting the stream: its state is lost");
        self.with_decoder(listener, |decoder, _| decoder.restart(ranks, replay, now));
    }

    /// Restarts every stream of the thread after a panic, because the panic may have left any of them in an unknown state.
    /// The current listener's stream requests no replay, which would return the message that caused the panic.
    pub(super) fn restart_all(&mut self) {
        let culprit = self.current.take();
        let listener_decoders: BTreeMap<u64, ListenerDecoder> =
            std::mem::take(&mut self.listener_decoders).into_iter().collect();
        if let Some(culprit) = &culprit {
            culprit.reject("panicked", LossReason::DecoderPanicked.to_string());
        }
        let is_culprit = |listener: &Listener| culprit.as_ref().is_some_and(|culprit| culprit.id == listener.id);
        let listeners = listener_decoders.values().map(|decoder| decoder.listener());
        let listeners: Vec<_> =
            listeners.filter(|listener| !is_culprit(listener)).chain(&culprit).map(Arc::clone).collect();
        // All of them lose trust before the first one restarts.
        for listener in &listeners {
            listener.require_restart(LossReason::DecoderPanicked);
        }
        self.timers = listener_decoders.iter().filter_map(|(&id, decoder)| Some((decoder.wakes_at()?, id))).collect();
        self.waiting_bytes = listener_decoders.values().map(ListenerDecoder::waiting_bytes).sum();
        let managed_bytes = listener_decoders.values().map(ListenerDecoder::managed_bytes).sum();
        self.change_managed_bytes(self.managed_bytes, managed_bytes);
        self.listener_decoders.extend(listener_decoders);
        for listener in listeners {
            if is_culprit(&listener) && listener.is_held() {
                let now = self.clock.now();
                self.with_decoder(&listener, |decoder, _| decoder.hold_again(now));
                continue;
            }
            let replay = if is_culprit(&listener) { ReplaySupport::Unavailable } else { ReplaySupport::Available };
            self.restart(&listener, replay, self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use flash_indexer_core::groups::RankEvent;
    use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, SequenceHash, Tier, WorkerRank};
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::{LossReason, RankPosition, Trust};
    use flash_indexer_wire::{Cursor, Encoding, EngineEvent, encode_batch};

    use crate::tests::fixture::{Fixture, PATIENCE, RANK, payload};
    use crate::{Delivery, Listener, ModelSink};

    #[test]
    fn a_panic_of_a_decoder_thread_is_counted_and_requests_no_replay_of_the_stream_that_caused_it() {
        let fixture = Fixture::start(1, true);
        let (engine, listener) = (&fixture.engines[0], fixture.listener(0));
        // A replay would return another message in its place and make the rank exact.
        engine.keep(1, &payload(2));
        engine.publish_frames(&[b"decoder fault".as_slice(), &1_u64.to_be_bytes(), &payload(2)]).expect("published");
        let panics = || listener.report(RANK).rejected.get("panicked").copied();
        assert_eq!(wait_for("the panic", PATIENCE, panics), 1);
        engine.publish(2, &payload(3)).expect("published");
        fixture.wait(0, 2, Trust::Degraded);
        assert_eq!(fixture.held_blocks(), 1, "only the message after the restart is applied");
    }

    #[test]
    fn a_rank_that_is_unregistered_before_its_lost_stream_restarts_holds_no_blocks() {
        let fixture = Fixture::start(2, false);
        let [shared, alone] = [0, 1].map(|at| fixture.listener(at));
        assert_eq!(fixture.held_blocks(), 2);
        for listener in [&shared, &alone] {
            listener.require_restart(LossReason::IndexStartedOver);
        }
        let (done, is_done) = bounded(1);
        let ignored = move || done.send(()).expect("the test waits");
        fixture.decoders.deliver(&shared, Delivery::IgnoreRank(RANK, Box::new(ignored)));
        is_done.recv_timeout(PATIENCE).expect("the rank is ignored");
        assert_eq!(fixture.held_blocks(), 1);
        let (done, is_done) = bounded(1);
        let retired = move |_| done.send(()).expect("the test waits");
        fixture.decoders.deliver(&alone, Delivery::Retire(Box::new(retired)));
        is_done.recv_timeout(PATIENCE).expect("the stream is closed");
        assert_eq!(fixture.held_blocks(), 0);
    }

    /// The blocks that a restore applies to the index.
    fn restore(fixture: &Fixture, listener: &Listener) {
        let block = Block { sequence: SequenceHash(1), local: LocalHash(1) };
        let event = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: vec![block], copies: 1 };
        let rank = WorkerRank { worker: listener.worker, dp_rank: RANK };
        fixture.models[0].index().apply_event(rank, &RankEvent::Primary(event));
    }

    #[test]
    fn a_held_stream_applies_nothing_after_a_panic_until_it_is_released() {
        for topic in [b"fault".as_slice(), b"decoder fault"] {
            let fixture = Fixture::start(0, false);
            let listener = fixture.held("tcp://127.0.0.1:9");
            let live = |topic: &[u8], sequence: u64, payload: Vec<u8>| {
                let frames = vec![topic.to_vec(), sequence.to_be_bytes().to_vec(), payload];
                fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
            };
            fixture.decoders.deliver(&listener, Delivery::Connected);
            live(topic, 8, payload(8));
            live(b"t", 9, encode_batch(9.0, &[EngineEvent::Cleared], None, Encoding::Map));
            let (done, handled) = bounded(1);
            let ignore = move || done.send(()).expect("the test waits");
            fixture.decoders.deliver(&listener, Delivery::IgnoreRank(DpRank(7), Box::new(ignore)));
            handled.recv_timeout(PATIENCE).expect("the messages are handled");
            // The restored block was stored before the clear.
            restore(&fixture, &listener);
            assert_ne!(listener.trust(RANK), Trust::Exact, "while the block is held");
            let cursor = Some(Cursor::new(7, &payload(7)));
            listener.hold().release(RANK, Some(RankPosition { cursor, trust: Trust::Exact, ..RankPosition::UNKNOWN }));
            let (done, released) = bounded(1);
            fixture.decoders.deliver(&listener, Delivery::Release(done));
            released.recv_timeout(PATIENCE).expect("released");
            assert_eq!((listener.last_sequence(), fixture.held_blocks()), (Some(9), 0), "the clear is applied");
            assert_eq!(listener.trust(RANK), Trust::Exact);
        }
    }

    #[test]
    fn restored_blocks_are_removed_after_a_panic_before_the_release() {
        let fixture = Fixture::start(0, false);
        let listener = fixture.held("tcp://127.0.0.1:9");
        restore(&fixture, &listener);
        listener.hold().release(RANK, Some(RankPosition { trust: Trust::Exact, ..RankPosition::UNKNOWN }));
        let frames = vec![b"fault".to_vec(), 0_u64.to_be_bytes().to_vec(), payload(1)];
        fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        let (done, released) = bounded(1);
        fixture.decoders.deliver(&listener, Delivery::Release(done));
        released.recv_timeout(PATIENCE).expect("released");
        assert_eq!((fixture.held_blocks(), listener.trust(RANK)), (0, Trust::Degraded));
    }

    #[test]
    fn a_held_stream_is_not_exact_after_a_panic_lost_its_last_message() {
        let fixture = Fixture::start(1, false);
        let listener = fixture.held("tcp://127.0.0.1:9");
        let live = |topic: &[u8], sequence: u64| {
            let frames = vec![topic.to_vec(), sequence.to_be_bytes().to_vec(), payload(sequence)];
            fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        };
        fixture.decoders.deliver(&listener, Delivery::Connected);
        live(b"t", 7);
        live(b"decoder fault", 8);
        // The decoder has panicked once it handles the next delivery.
        let (done, ignored) = bounded(1);
        let ignore = move || done.send(()).expect("the test waits");
        fixture.decoders.deliver(&listener, Delivery::IgnoreRank(DpRank(7), Box::new(ignore)));
        ignored.recv_timeout(PATIENCE).expect("ignored");
        let cursor = Some(Cursor::new(7, &payload(7)));
        listener.hold().release(RANK, Some(RankPosition { cursor, trust: Trust::Exact, ..RankPosition::UNKNOWN }));
        let (done, released) = bounded(1);
        fixture.decoders.deliver(&listener, Delivery::Release(done));
        released.recv_timeout(PATIENCE).expect("released");
        assert_eq!((listener.last_sequence(), listener.trust(RANK)), (Some(7), Trust::Degraded));
    }
}
