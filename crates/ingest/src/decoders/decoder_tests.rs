//! A decoder, without its thread.

use crossbeam_channel::bounded;
use flash_indexer_core::SequenceHash;
use flash_indexer_telemetry::metrics::MetricNames;
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::tests::fixture::{Fixture, PATIENCE, RANK, listener_of_first_decoder};

/// Records the fields of the entered span at each event.
#[derive(Default)]
struct SpanRecorder {
    spans: Mutex<Vec<Vec<&'static str>>>,
    entered: Mutex<Vec<usize>>,
    events: Arc<Mutex<Vec<Vec<&'static str>>>>,
}

impl Subscriber for SpanRecorder {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.spans.lock();
        spans.push(span.metadata().fields().iter().map(|field| field.name()).collect());
        Id::from_u64(spans.len() as u64)
    }

    fn event(&self, _event: &Event<'_>) {
        if let Some(&span) = self.entered.lock().last() {
            self.events.lock().push(self.spans.lock()[span - 1].clone());
        }
    }

    fn enter(&self, span: &Id) {
        self.entered.lock().push(span.into_u64() as usize);
    }

    fn exit(&self, _span: &Id) {
        self.entered.lock().pop();
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
}

const EVENT: [u8; 3] = [0x91, 0xa1, b'x'];

/// A delivery of a message with events of an unknown type, each of which is counted when it is decoded.
fn unknown_events(listener: &Arc<Listener>, sequence: u64, events: u32) -> Work {
    let mut payload = vec![0x93, 0xcb];
    payload.extend(1_f64.to_be_bytes());
    payload.push(0xdd);
    payload.extend(events.to_be_bytes());
    payload.extend(EVENT.repeat(events as usize));
    payload.push(0xc0);
    let frames = vec![b"t".to_vec(), sequence.to_be_bytes().to_vec(), payload];
    Work::Delivery { listener: Arc::clone(listener), delivery: Delivery::Live(vec![frames]) }
}

#[test]
fn a_large_message_is_decoded_in_turns_between_those_of_other_engines() {
    const EVENTS: u32 = 200_000;
    let fixture = Fixture::start(2, false);
    let metrics = Arc::new(Metrics::new(MetricNames::Own));
    let supervisor = Supervisor::start(&metrics).expect("a thread");
    let writers = Arc::new(Writers::start(1, &supervisor).expect("a thread"));
    let queues = Arc::new(Queues::new(1, usize::MAX, Clock::System));
    let mut decoder =
        Decoder::new(0, Arc::clone(&queues), bounded(1).0, Arc::default(), writers, metrics, Clock::System);
    let [large, other] = [0, 1].map(|at| listener_of_first_decoder(&fixture.listener(at)));
    let decoded =
        |listener: &Listener| listener.report(RANK).rejected.get("unknown_event_type").copied().unwrap_or_default();
    for (listener, sequence, events) in [(&large, 1, EVENTS), (&large, 2, 1), (&other, 1, 1), (&other, 2, 1)] {
        queues.push(&QueueKey::of(listener), 0, unknown_events(listener, sequence, events), |_| {});
    }
    let mut turns = Vec::new();
    while turns.iter().sum::<u64>() < u64::from(EVENTS) + 3 {
        let before = [&large, &other].map(|listener| decoded(listener));
        let taken = queues.take(0, decoder.turn_bytes(), Some(Instant::now() + PATIENCE), || {});
        assert!(!matches!(taken, TakenEntry::Timeout), "after {turns:?}");
        decoder.handle_taken(taken);
        decoder.reservation = None;
        turns.push(decoded(&large) - before[0] + decoded(&other) - before[1]);
    }
    let events_max = (TURN_BYTES_MAX / EVENT.len()) as u64 + 1;
    assert!(turns.iter().all(|&events| events <= events_max), "{turns:?}");
    assert_eq!(turns[..4], [events_max, 1, events_max, 1], "the other engine has every second turn");
    assert_eq!(turns[turns.len() - 1], 1, "the engine's next message follows the large one");
    assert_eq!(turns.len(), 2 + u64::from(EVENTS).div_ceil(events_max) as usize + 1);
    wait_for("both messages to be written", PATIENCE, || (large.last_sequence() == Some(2)).then_some(()));
    wait_for("their bytes to be released", PATIENCE, || (queues.bytes() == 0).then_some(()));
}

#[test]
fn a_short_message_waits_for_one_turn_of_long_ones_however_many_engines_send_them() {
    const ENGINES: usize = 300;
    let fixture = Fixture::start(0, false);
    let metrics = Arc::new(Metrics::new(MetricNames::Own));
    let supervisor = Supervisor::start(&metrics).expect("a thread");
    let writers = Arc::new(Writers::start(1, &supervisor).expect("a thread"));
    let queues = Arc::new(Queues::new(1, usize::MAX, Clock::System));
    let mut decoder =
        Decoder::new(0, Arc::clone(&queues), bounded(1).0, Arc::default(), writers, metrics, Clock::System);
    let events_max = (TURN_BYTES_MAX / EVENT.len()) as u32;
    let push = |events| {
        let listener = fixture.models[0].listener();
        queues.push(&QueueKey::of(&listener), 0, unknown_events(&listener, 1, events), |_| {});
        listener
    };
    let decoded =
        |listener: &Listener| listener.report(RANK).rejected.get("unknown_event_type").copied().unwrap_or_default();
    let long: Vec<_> = (0..ENGINES).map(|_| push(2 * events_max)).collect();
    for _ in 0..10 {
        let short = push(1);
        let mut turns = 0;
        while decoded(&short) == 0 {
            let taken = queues.take(0, decoder.turn_bytes(), Some(Instant::now()), || {});
            assert!(!matches!(taken, TakenEntry::Timeout), "the message is lost");
            decoder.handle_taken(taken);
            decoder.reservation = None;
            turns += 1;
        }
        assert!(turns <= 2, "{turns} turns");
    }
    let begun = long.iter().filter(|listener| decoded(listener) > 0).count();
    assert!((9..=20).contains(&begun), "{begun} long messages are begun meanwhile");
}

#[test]
fn managers_above_the_limit_of_a_decoder_are_forgotten_and_counted() {
    let fixture = Fixture::start(3, false);
    let metrics = Arc::new(Metrics::new(MetricNames::Own));
    let supervisor = Supervisor::start(&metrics).expect("a thread");
    let writers = Arc::new(Writers::start(1, &supervisor).expect("a thread"));
    let queues = Arc::new(Queues::new(1, usize::MAX, Clock::System));
    let (registrations, counted) = (bounded(1).0, Arc::clone(&metrics));
    let mut decoder = Decoder::new(0, queues, registrations, Arc::default(), writers, counted, Clock::System);
    let listeners = [0, 1, 2].map(|at| listener_of_first_decoder(&fixture.listener(at)));
    let store = |decoder: &mut Decoder, at: usize, sequence: u64| {
        let stored = EngineEvent::Stored(BlockStored {
            block_hashes: (0..1_000).map(SequenceHash).collect(),
            token_ids: TokenIds::Plain((0..1_000).collect()),
            block_size: 1,
            ownership: Some("a manager"),
            ..BlockStored::default()
        });
        let payload = encode_batch(1.0, &[stored], None, Encoding::Map);
        let frames = vec![b"t".to_vec(), sequence.to_be_bytes().to_vec(), payload];
        decoder.turn_bytes_left = TURN_BYTES_MAX;
        decoder.handle(&listeners[at], Delivery::Live(vec![frames]));
        (decoder.managed_bytes, metrics.limit_reached_count(Limit::ManagedCopies))
    };
    let (bytes, _) = store(&mut decoder, 0, 0);
    assert!(bytes > 1_000, "{bytes} bytes");
    decoder.managed_bytes_max = 2 * bytes;
    assert_eq!(store(&mut decoder, 1, 0), (2 * bytes, 0));
    assert_eq!(store(&mut decoder, 2, 0), (2 * bytes, 1), "the rank that exceeds the limit forgets its own");
    assert_eq!(store(&mut decoder, 2, 1), (2 * bytes, 1), "until its cache is cleared");
    assert_eq!(metrics.managed_bytes(), 2 * bytes as i64);
    decoder.remove_decoder(listeners[0].id);
    assert_eq!((decoder.managed_bytes, metrics.managed_bytes()), (bytes, bytes as i64));
}

#[test]
fn a_decoder_works_on_a_delivery_within_the_span_of_its_listener() {
    let fixture = Fixture::start(1, false);
    let metrics = Arc::new(Metrics::new(MetricNames::Own));
    let supervisor = Supervisor::start(&metrics).expect("a thread");
    let writers = Arc::new(Writers::start(1, &supervisor).expect("a thread"));
    let queues = Arc::new(Queues::new(1, usize::MAX, Clock::System));
    let mut decoder = Decoder::new(0, queues, bounded(1).0, Arc::default(), writers, metrics, Clock::System);
    // Registers the span before the subscriber is installed: the span of another test's thread, which has no
    // subscriber, would otherwise register it as disabled meanwhile.
    decoder.with_decoder(&fixture.listener(0), |_, _| ());
    let recorder = SpanRecorder::default();
    let events = Arc::clone(&recorder.events);
    tracing::subscriber::with_default(recorder, || {
        decoder.with_decoder(&fixture.listener(0), |_, _| tracing::info!("an event"));
    });
    assert_eq!(*events.lock(), [["model", "tenant", "instance", "dp_rank", "endpoint"]]);
}
