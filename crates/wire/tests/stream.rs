//! A stream's numbers, told by a plain engine over channels that lose what they like.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use flash_indexer_wire::{
    Action, Cursor, Degraded, Forgotten, Note, Pending, Replay, ReplayOutcome, Start, Stream, StreamLimits,
    StreamOptions, StreamPosition, StreamTrust,
};
use proptest::prelude::*;

type Payload = Vec<u8>;

/// What a message says: which life of the engine it is of, and its number.
fn payload(life: u64, sequence: u64) -> Payload {
    [life.to_le_bytes(), sequence.to_le_bytes()].concat()
}

fn life_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}

/// An engine, both channels to it, and whoever executes what the stream wants.
struct World {
    stream: Stream<Payload>,
    now: Instant,
    limits: StreamLimits,
    // The engine.
    life: u64,
    published: u64,
    buffer_max: u64,
    // The channels.
    connected: bool,
    in_flight: VecDeque<(u64, u64)>,
    /// The last messages in flight were lost by the network, which no service can know before the next one.
    is_tail_lost_unseen: bool,
    /// Messages that the service received, dropped or not, count up to this number in this epoch.
    known_end: u64,
    /// The last live message of this connection that was not dropped.
    last_live: Option<(u64, u64)>,
    asked: Option<(u32, u64)>,
    asks: usize,
    // The index.
    applied: Vec<(u64, u64)>,
    trust: StreamTrust,
    pending: Option<Pending>,
    forgotten: Vec<Forgotten>,
    notes: Vec<Note>,
}

fn limits() -> StreamLimits {
    StreamLimits { waiting_messages_max: 20, waiting_bytes_max: 18 * 16, lost_forgotten_min: 8, ..Default::default() }
}

impl World {
    fn new(replay: Replay, start: Start, buffer_max: u64) -> Self {
        let limits = limits();
        Self {
            stream: Stream::new(StreamOptions { replay, start, limits }),
            now: Instant::now(),
            limits,
            life: 0,
            published: 0,
            buffer_max,
            connected: false,
            in_flight: VecDeque::new(),
            is_tail_lost_unseen: false,
            known_end: 0,
            last_live: None,
            asked: None,
            asks: 0,
            applied: Vec::new(),
            trust: StreamTrust::Cold,
            pending: Some(Pending::FirstContact),
            forgotten: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Executes what the stream wants, and checks everything that must always be so.
    fn run(&mut self) {
        while let Some(action) = self.stream.next_action() {
            match action {
                Action::Apply { sequence, payload: said } => {
                    assert_eq!(said[8..], sequence.to_le_bytes());
                    self.applied.push((life_of(&said), sequence));
                }
                Action::Ask { attempt, from } => {
                    self.asked = Some((attempt, from));
                    self.asks += 1;
                }
                Action::HangUp => self.asked = None,
                Action::Forget(why) => {
                    self.applied.clear();
                    self.forgotten.push(why);
                }
                Action::Trust(trust) => self.trust = trust,
                Action::Pending(pending) => self.pending = pending,
                Action::Note(note) => self.notes.push(note),
            }
            self.check();
        }
        if self.is_exact() {
            assert!(self.asked.is_none(), "exact while messages are asked for");
            let known = (0..self.known_end).map(|sequence| (self.life, sequence)).collect::<Vec<_>>();
            assert!(
                self.applied.starts_with(&known),
                "exact, but of {} known messages only {:?}",
                known.len(),
                self.applied
            );
        }
        assert!(self.stream.waiting_messages() <= self.limits.waiting_messages_max);
        assert!(self.stream.waiting_bytes() <= self.limits.waiting_bytes_max);
    }

    /// Whether the stream says that nothing is known to be missing.
    fn is_exact(&self) -> bool {
        self.trust == StreamTrust::Exact && self.pending.is_none()
    }

    fn check(&self) {
        let once: HashSet<_> = self.applied.iter().collect();
        assert_eq!(once.len(), self.applied.len(), "a message was applied twice: {:?}", self.applied);
        if self.trust == StreamTrust::Exact {
            let life = self.applied.first().map(|(life, _)| *life);
            for (at, message) in self.applied.iter().enumerate() {
                assert_eq!(Some(*message), life.map(|life| (life, at as u64)), "exact, but {:?}", self.applied);
            }
        }
        if self.trust == StreamTrust::Cold {
            assert!(self.applied.is_empty());
        }
    }

    fn publish(&mut self) {
        if self.connected {
            self.in_flight.push_back((self.life, self.published));
        }
        self.is_tail_lost_unseen &= !self.connected;
        self.published += 1;
    }

    /// The network loses the oldest message in flight.
    fn lose(&mut self) {
        if self.in_flight.pop_front().is_some() && self.in_flight.is_empty() {
            self.is_tail_lost_unseen = true;
        }
    }

    fn deliver(&mut self) {
        if let Some((life, sequence)) = self.in_flight.pop_front() {
            self.known_end = sequence + 1;
            self.last_live = Some((life, sequence));
            self.stream.live(sequence, payload(life, sequence), self.now);
            self.run();
        }
    }

    /// The oldest message in flight reaches the service, which drops it or cannot read it.
    fn drop_received(&mut self) {
        if let Some((_, sequence)) = self.in_flight.pop_front() {
            self.known_end = sequence + 1;
            self.stream.tail_lost(self.now);
            self.run();
        }
    }

    /// The service receives the last message that was applied once more.
    fn repeat(&mut self) {
        if let Some(&(life, sequence)) = self.applied.last()
            && self.last_live == Some((life, sequence))
        {
            self.stream.live(sequence, payload(self.life, sequence), self.now);
            self.run();
        }
    }

    fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.stream.connected(self.now);
            self.run();
        }
    }

    fn disconnect(&mut self) {
        if self.connected {
            self.connected = false;
            self.in_flight.clear();
            self.last_live = None;
            self.is_tail_lost_unseen = false;
            self.stream.disconnected();
            self.run();
        }
    }

    fn restart(&mut self) {
        self.disconnect();
        self.life += 1;
        self.published = 0;
        self.known_end = 0;
        self.is_tail_lost_unseen = false;
    }

    /// Answers what is asked, but loses each message whose bit is not set; the last bit is the end marker's.
    fn answer(&mut self, kept: u64) {
        let Some((attempt, from)) = self.asked else { return };
        let first = from.max(self.published.saturating_sub(self.buffer_max));
        for sequence in first..self.published {
            if kept >> (sequence % 63) & 1 == 1 {
                self.stream.replayed(attempt, sequence, payload(self.life, sequence), self.now);
                self.run();
            }
        }
        if kept >> 63 == 1 {
            let is_last_lost = first < self.published && kept >> ((self.published - 1) % 63) & 1 == 0;
            if is_last_lost {
                // The end of an answer that says it is whole was lost unseen: only the next live message can show it.
                self.known_end = 0;
                self.is_tail_lost_unseen = true;
            }
            self.stream.replay_ended(attempt, self.now);
            self.run();
        }
    }

    /// Waits for whatever the stream is waiting for.
    fn pass_time(&mut self) {
        if let Some(wake) = self.stream.wakes_at() {
            self.now = self.now.max(wake);
            self.stream.tick(self.now);
            self.run();
        }
    }

    /// Lets everything arrive, and one message more, until nothing is open.
    fn settle_with_message(&mut self) {
        self.connect();
        self.publish();
        self.settle();
    }

    /// Lets everything arrive until nothing is open.
    fn settle(&mut self) {
        self.connect();
        for _ in 0..2_000 {
            self.deliver();
            self.answer(u64::MAX);
            if self.in_flight.is_empty() && self.asked.is_none() {
                if self.stream.wakes_at().is_none() {
                    return;
                }
                self.pass_time();
            }
        }
        panic!("it does not come to rest: {:?}", self.stream);
    }

    /// An exact stream at rest has handed out everything, unless the network lost the end unseen.
    fn check_whole(&self) -> Result<(), TestCaseError> {
        if self.is_exact() && !self.is_tail_lost_unseen {
            prop_assert_eq!(&self.applied, &self.whole_life());
        }
        Ok(())
    }

    fn whole_life(&self) -> Vec<(u64, u64)> {
        (0..self.published).map(|sequence| (self.life, sequence)).collect()
    }

    /// Where an observer stands that has seen everything.
    fn truth(&self) -> StreamPosition {
        let last = self.published.checked_sub(1);
        let cursor = last.map(|last| Cursor::new(last, &payload(self.life, last)));
        let trust = if last.is_some() { StreamTrust::Exact } else { StreamTrust::Cold };
        StreamPosition { cursor, epoch: self.life + 1, trust }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u8),
    Lose(u8),
    Drop(u8),
    Repeat,
    Deliver(u8),
    Connect,
    Disconnect,
    Restart,
    Answer(u64),
    PassTime,
    Shed,
    Malformed,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6_u8).prop_map(Step::Publish),
        2 => (1..4_u8).prop_map(Step::Lose),
        2 => (1..4_u8).prop_map(Step::Drop),
        1 => Just(Step::Repeat),
        1 => (8..30_u8).prop_map(Step::Publish),
        6 => (1..8_u8).prop_map(Step::Deliver),
        4 => Just(Step::Connect),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Restart),
        3 => Just(Step::Answer(u64::MAX)),
        2 => any::<u64>().prop_map(Step::Answer),
        2 => Just(Step::PassTime),
        1 => Just(Step::Shed),
        1 => Just(Step::Malformed),
    ]
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::Publish(count) => (0..count).for_each(|_| world.publish()),
        Step::Lose(count) => (0..count).for_each(|_| world.lose()),
        Step::Drop(count) => (0..count).for_each(|_| world.drop_received()),
        Step::Repeat => world.repeat(),
        Step::Deliver(count) => (0..count).for_each(|_| world.deliver()),
        Step::Connect => world.connect(),
        Step::Disconnect => world.disconnect(),
        Step::Restart => world.restart(),
        Step::Answer(kept) => world.answer(kept),
        Step::PassTime => world.pass_time(),
        Step::Shed => {
            world.stream.shed(world.now);
            world.run();
        }
        Step::Malformed => {
            if let Some((attempt, _)) = world.asked {
                world.stream.replay_failed(attempt, world.now);
                world.run();
            }
        }
    }
}

fn replay() -> impl Strategy<Value = Replay> {
    prop_oneof![3 => Just(Replay::Available), 1 => Just(Replay::Unavailable)]
}

fn degraded(trust: StreamTrust) -> Option<Degraded> {
    match trust {
        StreamTrust::Degraded(why) => Some(why),
        _ => None,
    }
}

#[test]
fn an_endpoint_that_does_not_answer_is_given_up_and_left_alone_for_a_while() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    world.connect();
    assert_eq!(world.asked, Some((1, 0)), "what was published before is asked for at once");
    world.answer(u64::MAX);
    assert_eq!((world.asked, world.trust), (None, StreamTrust::Cold), "nothing was");
    world.publish();
    world.deliver();
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!(world.asked, Some((2, 0)), "the last message that was handed out comes first");
    while world.stream.wakes_at().is_some() {
        assert_eq!(world.stream.waiting_messages(), 1);
        world.pass_time();
    }
    assert_eq!(world.asks, 1 + world.limits.fruitless_asks_max as usize);
    assert!(world.notes.contains(&Note::Replay(ReplayOutcome::GivenUp)));
    assert!(world.notes.contains(&Note::Lost { messages: 1 }));
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
    assert_eq!(world.applied, [(0, 0), (0, 2)]);

    let asks = world.asks;
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!((world.asks, world.applied.len()), (asks, 3), "the next gap does not hold the stream up");
    world.now += world.limits.quiet;
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!(world.asks, asks + 1, "it is tried again later");
    world.answer(u64::MAX);
    assert_eq!(world.applied, [(0, 0), (0, 2), (0, 4), (0, 5), (0, 6)]);
}

#[test]
fn answers_to_earlier_requests_and_out_of_order_are_not_believed() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (first, _) = world.asked.expect("asked");
    world.stream.replayed(first, 1, payload(0, 1), world.now);
    world.stream.replayed(first, 1, payload(0, 1), world.now);
    world.run();
    let (second, _) = world.asked.expect("asked again");
    assert!(second > first);
    world.stream.replayed(first, 2, payload(0, 2), world.now);
    world.stream.replay_ended(first, world.now);
    world.run();
    assert_eq!(world.applied, [(0, 1)], "the start was said to be gone");
    world.answer(u64::MAX);
    assert_eq!(world.applied, [(0, 1), (0, 2)]);
    assert_eq!(degraded(world.trust), Some(Degraded::StartUnknown { missed: 1 }));
}

#[test]
fn what_was_published_before_the_first_contact_is_no_gap() {
    let is_gap = |note: &Note| matches!(note, Note::Gap { .. });
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..9).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.asked.expect("asked");
    world.stream.replayed(attempt, 0, payload(0, 0), world.now);
    world.run();
    world.publish();
    world.deliver();
    assert!(!world.notes.iter().any(is_gap), "the answer is on its way: {:?}", world.notes);
    (1..9).for_each(|sequence| world.stream.replayed(attempt, sequence, payload(0, sequence), world.now));
    world.run();
    assert_eq!((world.applied.clone(), world.trust), (world.whole_life(), StreamTrust::Exact));

    world.publish();
    world.publish();
    world.lose();
    world.deliver();
    assert_eq!(world.notes.iter().copied().find(is_gap), Some(Note::Gap { missed: 1 }));
}

#[test]
fn catching_up_is_not_exact_before_its_end() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..9).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.asked.expect("asked");
    for sequence in 0..9 {
        world.stream.replayed(attempt, sequence, payload(0, sequence), world.now);
        world.run();
        assert_eq!(world.pending, Some(Pending::Recovering { end: None }), "after message {sequence}");
    }
    world.stream.replay_ended(attempt, world.now);
    world.run();
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_life());
}

#[test]
fn a_running_repair_is_not_exact() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    world.connect();
    world.answer(u64::MAX);
    world.publish();
    world.deliver();
    assert!(world.is_exact());
    (0..2).for_each(|_| world.publish());
    world.lose();
    world.deliver();
    assert_eq!(world.pending, Some(Pending::Recovering { end: Some(3) }));
    world.answer(u64::MAX);
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_life());
}

#[test]
fn a_dropped_last_message_is_asked_for_without_a_further_one() {
    for (replay, expected) in [(Replay::Available, None), (Replay::Unavailable, Some(Pending::TailLost))] {
        let mut world = World::new(replay, Start::AtOnce, 100);
        world.connect();
        world.answer(u64::MAX);
        world.publish();
        world.deliver();
        world.publish();
        world.drop_received();
        assert!(!world.is_exact(), "at once");
        world.settle();
        assert_eq!(world.pending, expected);
        world.check_whole().expect("whole where it is exact");
        // The next message shows whether one is missing.
        world.publish();
        world.deliver();
        assert_eq!(world.pending, None);
        let lost = (replay == Replay::Unavailable).then_some(Degraded::Lost { missed: 1, next: 2 });
        assert_eq!(degraded(world.trust), lost);
    }
}

#[test]
fn an_unreadable_message_without_a_number_of_its_own_is_no_loss() {
    let mut world = World::new(Replay::Unavailable, Start::AtOnce, 100);
    world.connect();
    world.publish();
    world.deliver();
    world.stream.tail_lost(world.now);
    world.run();
    assert_eq!(world.pending, Some(Pending::TailLost));
    world.publish();
    world.deliver();
    assert!(world.is_exact());
}

#[test]
fn a_loss_during_a_repair_is_asked_for_after_it() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (first, _) = world.asked.expect("asked");
    world.publish();
    world.drop_received();
    // The answer was made before the message that was dropped.
    (0..3).for_each(|sequence| world.stream.replayed(first, sequence, payload(0, sequence), world.now));
    world.stream.replay_ended(first, world.now);
    world.run();
    assert_eq!(world.asked, Some((first + 1, 2)));
    world.answer(u64::MAX);
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_life());
}

#[test]
fn a_flood_of_unreadable_messages_asks_once_a_rest() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    world.connect();
    world.answer(u64::MAX);
    world.publish();
    world.deliver();
    let asks = world.asks;
    for _ in 0..100 {
        world.stream.tail_lost(world.now);
        world.run();
        world.answer(u64::MAX);
    }
    assert_eq!(world.asks, asks + 1);
    assert_eq!(world.pending, Some(Pending::TailLost));
    world.pass_time();
    world.answer(u64::MAX);
    assert_eq!((world.asks, world.is_exact()), (asks + 2, true));
}

#[test]
fn a_message_received_twice_is_ignored() {
    let mut world = World::new(Replay::Unavailable, Start::AtOnce, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    world.repeat();
    assert!(world.notes.contains(&Note::Duplicate));
    assert_eq!((world.forgotten.len(), world.is_exact()), (0, true));
    // Another message of that number is of another epoch.
    world.stream.live(2, payload(1, 2), world.now);
    world.run();
    assert_eq!(world.forgotten, [Forgotten::Restarted]);
}

#[test]
fn a_restart_that_a_replay_shows_is_counted_once() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    world.connect();
    world.answer(u64::MAX);
    (0..9).for_each(|_| world.publish());
    (0..9).for_each(|_| world.deliver());
    world.restart();
    (0..3).for_each(|_| world.publish());
    world.connect();
    (0..3).for_each(|_| world.answer(u64::MAX));
    assert_eq!((world.forgotten.clone(), world.applied.clone()), (vec![Forgotten::Restarted], world.whole_life()));
    world.publish();
    world.deliver();
    assert_eq!(world.forgotten, [Forgotten::Restarted], "the first live message is below where the old epoch ended");
    assert_eq!(world.stream.position().epoch, 2);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_life(), true));
}

#[test]
fn a_history_that_cannot_be_replayed_leaves_a_doubt_and_is_asked_for_again() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    while world.asked.is_some() || !matches!(world.pending, Some(Pending::TailLost)) {
        world.pass_time();
    }
    assert_eq!(world.trust, StreamTrust::Cold, "nothing was received");
    world.pass_time();
    world.answer(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_life(), true));
}

#[test]
fn an_answer_that_breaks_off_leaves_a_doubt() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.asked.expect("asked");
    world.stream.replayed(attempt, 0, payload(0, 0), world.now);
    world.run();
    while world.asked.is_some() || !matches!(world.pending, Some(Pending::TailLost)) {
        world.pass_time();
    }
    // It is tried again after a while, also where no further message arrives.
    world.pass_time();
    world.answer(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_life(), true));
}

#[test]
fn a_large_loss_forgets_and_a_small_one_does_not() {
    let mut world = World::new(Replay::Unavailable, Start::AtOnce, 0);
    world.connect();
    world.publish();
    world.deliver();
    let mut lose = |count: u64| {
        for _ in 0..count {
            world.publish();
            world.lose();
        }
        world.publish();
        world.deliver();
        world.forgotten.clone()
    };
    assert_eq!(lose(limits().lost_forgotten_min - 1), []);
    assert_eq!(lose(limits().lost_forgotten_min), [Forgotten::TooMuchLost]);
}

#[test]
fn too_many_waiting_messages_end_a_repair() {
    let mut world = World::new(Replay::Available, Start::AtOnce, 100);
    world.publish();
    world.connect();
    world.answer(u64::MAX);
    world.publish();
    for _ in 0..30 {
        world.publish();
    }
    world.lose();
    while !world.in_flight.is_empty() {
        world.deliver();
    }
    assert!(world.notes.contains(&Note::WaitingFull { dropped: 0 }));
    assert_eq!(world.applied.len(), 31, "all but the one that was lost");
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
}

#[test]
fn lives_are_counted_over_listeners() {
    let epoch_after = |remembered: Option<Cursor>, life: u64, published: u64, replay| {
        let mut world = World::new(replay, Start::AtOnce, 100);
        world.stream.remember(StreamPosition { cursor: remembered, epoch: 5, trust: StreamTrust::Exact });
        world.life = life;
        (0..published).for_each(|_| world.publish());
        world.settle_with_message();
        world.stream.position().epoch
    };
    let stopped_at_3 = Some(Cursor::new(3, &payload(0, 3)));
    assert_eq!(epoch_after(stopped_at_3, 0, 6, Replay::Available), 5);
    assert_eq!(epoch_after(stopped_at_3, 1, 6, Replay::Available), 6, "another message of that number");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, Replay::Available), 6, "not so far yet");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, Replay::Unavailable), 6);
    assert_eq!(epoch_after(stopped_at_3, 0, 6, Replay::Unavailable), 5);
}

#[test]
fn a_place_that_was_taken_over_is_recognised_in_what_waits() {
    for (life, expected) in [(0, 0), (1, 1)] {
        let mut world = World::new(Replay::Unavailable, Start::Held, 100);
        world.connect();
        (0..6).for_each(|_| world.publish());
        (0..4).for_each(|_| world.deliver());
        // Whoever it is from was ahead of this connection, and in this life or in another.
        let cursor = Cursor::new(4, &payload(life, 4));
        world.applied = (0..5).map(|sequence| (life, sequence)).collect();
        let position = StreamPosition { cursor: Some(cursor), epoch: 1, trust: StreamTrust::Exact };
        world.stream.release(Some(position), world.now);
        world.run();
        assert_eq!(world.applied.len(), 5, "it waits for the place");
        (0..2).for_each(|_| world.deliver());
        assert_eq!(world.forgotten.len(), expected);
        assert_eq!((world.applied.clone(), world.trust), (world.whole_life(), StreamTrust::Exact));
    }
    let mut world = World::new(Replay::Unavailable, Start::Held, 100);
    world.connect();
    world.publish();
    world.deliver();
    world.applied = (0..5).map(|sequence| (7, sequence)).collect();
    let cursor = Some(Cursor::new(4, &payload(7, 4)));
    world.stream.release(Some(StreamPosition { cursor, epoch: 1, trust: StreamTrust::Exact }), world.now);
    world.run();
    world.pass_time();
    assert_eq!(world.forgotten, [Forgotten::Restarted], "it never comes so far");
    assert_eq!((world.applied.clone(), world.trust), (world.whole_life(), StreamTrust::Exact));
}

/// Cheap enough for more than the usual number; `PROPTEST_CASES` still counts.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 8, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn exact_is_never_claimed_wrongly(
        replay in replay(), buffer in 1..40_u64, steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new(replay, Start::AtOnce, buffer);
        for step in steps {
            take(&mut world, step);
        }
        world.settle();
        world.check_whole()?;
        world.settle_with_message();
        prop_assert_eq!(world.applied.last().copied(), world.whole_life().last().copied(), "the last one was applied");
        world.check_whole()?;
        // A new epoch that is followed from its start is exact, whatever was before.
        world.restart();
        world.settle_with_message();
        prop_assert!(world.is_exact());
        prop_assert_eq!(&world.applied, &world.whole_life());
    }

    #[test]
    fn a_state_that_was_taken_over_goes_on_without_a_seam(
        replay in replay(),
        buffer in 1..40_u64,
        before in 0..30_u64,
        held in prop::collection::vec(step(), 0..20),
        between in prop::collection::vec(step(), 0..10),
        after in prop::collection::vec(step(), 0..20),
    ) {
        let mut world = World::new(replay, Start::Held, buffer);
        (0..before).for_each(|_| world.publish());
        world.connect();
        held.into_iter().for_each(|step| take(&mut world, step));
        prop_assert!(world.applied.is_empty(), "nothing is handed out before the release");
        let position = world.truth();
        let state = world.whole_life();
        between.into_iter().for_each(|step| take(&mut world, step));
        prop_assert_eq!(&world.forgotten, &[]);
        world.applied = state;
        world.stream.release(Some(position), world.now);
        world.run();
        after.into_iter().for_each(|step| take(&mut world, step));
        world.settle();
        world.check_whole()?;
        world.settle_with_message();
        prop_assert_eq!(world.applied.last().copied(), world.whole_life().last().copied());
        world.check_whole()?;
    }
}
