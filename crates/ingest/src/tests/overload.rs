//! Overload: a stalled writer, a flooding engine, a large message, a reading of a rank and a model of many instances,
//! together with engines that must not be affected.

use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use flash_indexer_core::{ReadingProgress, WorkerId};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_test_support::wait_for;
use flash_indexer_types::Trust;

use crate::tests::fixture::TestModel;
use crate::tests::fixture::{Fixture, PATIENCE, RANK, chain_payload, payload};
use crate::{DecoderStateDetail, Delivery, ModelSink, RankReader, ReadAt, ResumePoint, Writers};

const MESSAGES: u64 = 2_000;
const BLOCKS: u64 = 200;
/// Less than the messages of one flood take.
const QUEUE_BYTES: usize = 2 << 20;

/// Publishes messages 1 to [`MESSAGES`] of [`BLOCKS`] blocks each.
fn flood(fixture: &Fixture, engine: usize) {
    for sequence in 1..=MESSAGES {
        let payload = chain_payload(1_000 + sequence * BLOCKS, BLOCKS);
        fixture.engines[engine].publish(sequence, &payload).expect("published");
    }
}

fn times_dropped(fixture: &Fixture, listener: usize) -> u64 {
    fixture.listener(listener).report(RANK).rejected.get("queue_full").copied().unwrap_or_default()
}

/// Floods the queues of a stalled model, and shows that another model's engine neither waits nor loses a message.
fn overload(fixture: &Fixture) {
    let stalled = fixture.models[0].gate.lock();
    flood(fixture, 0);
    wait_for("a full budget", PATIENCE, || (times_dropped(fixture, 0) > 0).then_some(()));
    assert_eq!(fixture.listener(0).trust(RANK), Trust::Degraded, "at once");
    for sequence in 1..100 {
        fixture.engines[1].publish(sequence, &payload(1 + sequence)).expect("published");
        fixture.wait(1, sequence, Trust::Exact);
        assert!(fixture.decoders.queue_bytes() <= QUEUE_BYTES);
    }
    assert_eq!(times_dropped(fixture, 1), 0);
    assert_eq!(fixture.listener(0).last_sequence(), Some(0), "the model is still stalled");
    drop(stalled);
}

#[test]
fn dropped_messages_are_replayed_when_the_queue_has_drained() {
    let fixture = Fixture::start_models(2, 2, true, QUEUE_BYTES);
    overload(&fixture);
    fixture.wait(0, MESSAGES, Trust::Exact);
    assert_eq!(fixture.held_blocks() as u64, 1 + MESSAGES * BLOCKS + 100, "all blocks of both engines");
    wait_for("empty queues", PATIENCE, || (fixture.decoders.queue_bytes() == 0).then_some(()));
}

#[test]
fn an_overload_without_replay_degrades_the_engine_that_caused_it() {
    let fixture = Fixture::start_models(2, 2, false, QUEUE_BYTES);
    overload(&fixture);
    wait_for("empty queues", PATIENCE, || (fixture.decoders.queue_bytes() == 0).then_some(()));
    // The rest of the flood may still be in the sockets and fill the queues again, so one more message may be dropped as well.
    let mut sequence = MESSAGES;
    wait_for("a message after the flood", PATIENCE, || {
        sequence += 1;
        fixture.engines[0].publish(sequence, &payload(7)).expect("published");
        (fixture.listener(0).last_sequence() > Some(MESSAGES)).then_some(())
    });
    fixture.wait(0, sequence, Trust::Degraded);
    assert_eq!(fixture.listener(1).trust(RANK), Trust::Exact);
}

#[test]
fn a_flooding_engine_does_not_delay_another_engine_of_its_model() {
    let fixture = Fixture::start(2, false);
    let stalled = fixture.models[0].gate.lock();
    flood(&fixture, 0);
    let bytes = MESSAGES as usize * chain_payload(1_000, BLOCKS).len();
    wait_for("the flood", PATIENCE, || (fixture.decoders.queue_bytes() > bytes).then_some(()));
    let metrics = fixture.models[0].metrics();
    let is_parked = || (metrics.limit_reached_count(Limit::WriterQueue) > 0).then_some(());
    wait_for("a parked queue", PATIENCE, is_parked);
    let parked = fixture.writers.queues()[0];
    fixture.engines[1].publish(1, &payload(2)).expect("published");
    wait_for("the other engine's batch", PATIENCE, || (fixture.writers.queues()[0] > parked).then_some(()));
    drop(stalled);
    fixture.wait(1, 1, Trust::Exact);
    fixture.wait(0, MESSAGES, Trust::Exact);
    let applied = fixture.models[0].applied.lock();
    let quiet = applied.iter().rposition(|&worker| worker == WorkerId(2)).expect("it is applied");
    let after = applied[quiet..].iter().filter(|&&worker| worker == WorkerId(1)).count();
    assert!(after as u64 > MESSAGES * 9 / 10, "it was applied before nine tenths of the flood: {after}");
}

#[test]
fn a_large_message_is_applied_in_parts_between_which_others_take_their_turns() {
    const LARGE: u64 = 100_000;
    let fixture = Fixture::start(2, false);
    let stalled = fixture.models[0].gate.lock();
    fixture.engines[0].publish(1, &chain_payload(1_000, LARGE)).expect("published");
    fixture.engines[0].publish(2, &payload(2)).expect("published");
    let metrics = fixture.models[0].metrics();
    let is_parked = || (metrics.limit_reached_count(Limit::WriterQueue) > 0).then_some(());
    wait_for("the end of decoding the large message", PATIENCE, is_parked);
    let queued = |batches| wait_for("the writer", PATIENCE, || (fixture.writers.queues()[0] == batches).then_some(()));
    queued(0);
    fixture.engines[1].publish(1, &payload(2)).expect("published");
    queued(1);
    drop(stalled);
    fixture.wait(0, 2, Trust::Exact);
    fixture.wait(1, 1, Trust::Exact);
    assert_eq!(fixture.held_blocks() as u64, 2 + LARGE + 2);
    let applied = fixture.models[0].applied.lock();
    let small = applied.iter().rposition(|&worker| worker == WorkerId(2)).expect("it is applied");
    let after = applied[small..].iter().filter(|&&worker| worker == WorkerId(1)).count();
    assert!(after >= 20, "the other engine waited for all but {after} parts of the message");
}

/// Reads in parts until the other engine's message is applied and a message of the rank's own engine waits.
struct Waiting {
    model: Arc<TestModel>,
    writers: Arc<Writers>,
    /// Receives the workers of the events that were applied before the end of the reading.
    applied: Sender<Vec<WorkerId>>,
}

impl RankReader for Waiting {
    fn read_part(&mut self) -> ReadingProgress {
        let others = self.model.applied.lock().iter().filter(|&&worker| worker == WorkerId(2)).count();
        match others > 1 && self.writers.queues()[0] > 0 {
            true => ReadingProgress::Complete,
            false => ReadingProgress::More,
        }
    }

    fn finish(self: Box<Self>, point: ResumePoint) {
        assert_eq!(point.position.cursor.map(|cursor| cursor.sequence), Some(0), "its own messages wait");
        self.applied.send(self.model.applied.lock().clone()).expect("the test waits");
    }
}

#[test]
fn a_rank_is_read_between_the_messages_of_others() {
    for at in [ReadAt::Now, ReadAt::Message(0)] {
        let fixture = Fixture::start(2, false);
        let (applied, read) = bounded(1);
        let model = Arc::clone(&fixture.models[0]);
        let reader = Box::new(Waiting { model, writers: Arc::clone(&fixture.writers), applied });
        let detail = DecoderStateDetail::Brief;
        fixture.decoders.deliver(&fixture.listener(0), Delivery::Read { dp_rank: RANK, at, detail, reader });
        for engine in [0, 1] {
            fixture.engines[engine].publish(1, &payload(2)).expect("published");
        }
        let applied = read.recv_timeout(PATIENCE).expect("the reading ends");
        assert_eq!(applied.iter().filter(|&&worker| worker == WorkerId(1)).count(), 1, "its own messages wait");
        for engine in [0, 1] {
            fixture.wait(engine, 1, Trust::Exact);
        }
    }
}

#[test]
fn a_model_of_many_instances_does_not_delay_another_model() {
    const INSTANCES: u64 = 2_000;
    let fixture = Fixture::start_models(2, 2, false, 64 << 20);
    let stalled = fixture.models[0].gate.lock();
    let mut many = Vec::new();
    while many.len() < INSTANCES as usize {
        let listener = fixture.unconnected("tcp://127.0.0.1:9", None);
        if listener.model.writer(listener.worker) == 0 {
            many.push(listener);
        }
    }
    for sequence in 0..10_u64 {
        for listener in &many {
            let frames = vec![b"t".to_vec(), sequence.to_be_bytes().to_vec(), payload(1 + sequence)];
            fixture.decoders.deliver(listener, Delivery::Live(vec![frames]));
        }
        fixture.engines[1].publish(1 + sequence, &payload(2 + sequence)).expect("published");
        fixture.wait(1, 1 + sequence, Trust::Exact);
    }
    assert!(many.iter().all(|listener| listener.last_sequence().is_none()), "the model is still stalled");
    drop(stalled);
    wait_for("all instances", PATIENCE, || {
        many.iter().all(|listener| listener.last_sequence() == Some(9)).then_some(())
    });
}
