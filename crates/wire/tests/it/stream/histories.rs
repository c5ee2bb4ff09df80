//! Histories of a stream: steps of its world, generated or decoded from bytes, and the invariants after them.
//!
//! ```text
//!  history: replay (2 bits), held at first (1 bit), unused (5) | messages in the replay buffer (8) | steps
//!  held:    published before (8) | steps before the import | 0xff | steps before the release | 0xff | steps
//!  step:    kind (4 bits), argument (4 bits) | for a partial reply: kept messages (64)
//! ```

use flash_indexer_wire::{ReplaySupport, Start};

use super::world::World;

/// A step of a world.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Publish(u8),
    Lose(u8),
    Drop(u8),
    Repeat(u8),
    DeliverLate(u64),
    Deliver(u8),
    Connect,
    Disconnect,
    Restart,
    Reply(u64),
    PassTime,
    Shed,
    Pause(u8),
    Malformed,
}

pub(crate) fn take(world: &mut World, step: Step) {
    match step {
        Step::Publish(count) => (0..count).for_each(|_| world.publish()),
        Step::Lose(count) => (0..count).for_each(|_| world.lose()),
        Step::Drop(count) => (0..count).for_each(|_| world.drop_received()),
        Step::Repeat(later) => world.repeat(later),
        Step::DeliverLate(later) => world.deliver_late(later),
        Step::Deliver(count) => (0..count).for_each(|_| world.deliver()),
        Step::Connect => world.connect(),
        Step::Disconnect => world.disconnect(),
        Step::Restart => world.restart(),
        Step::Reply(kept) => world.reply(kept),
        Step::PassTime => world.pass_time(),
        Step::Shed => {
            world.stream.release_buffered(world.now);
            world.run();
        }
        Step::Pause(dropped) => world.pause(dropped),
        Step::Malformed => {
            if let Some((attempt, _)) = world.request {
                world.stream.replay_failed(attempt, world.now);
                world.run();
            }
        }
    }
}

/// A stream that follows its engine from the first message on.
pub(crate) fn check_followed(replay: ReplaySupport, buffer_max: u64, steps: Vec<Step>) {
    let mut world = World::new(replay, Start::Immediate, buffer_max);
    steps.into_iter().for_each(|step| take(&mut world, step));
    world.settle();
    world.check_whole();
    world.settle_with_message();
    assert_eq!(world.applied.last(), world.whole_epoch().last(), "the last message is applied");
    world.check_whole();
    // A new epoch that is followed from its start is exact, also after a loss.
    world.restart();
    world.pass_backlog();
    world.settle_with_message();
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

/// Steps of a stream that is held at first, and released with the state of an observer.
#[derive(Debug, Default)]
pub(crate) struct HeldHistory {
    /// Messages published before the connection.
    pub(crate) published: u64,
    /// Steps before the state is taken.
    pub(crate) before: Vec<Step>,
    /// Steps between that and the release.
    pub(crate) between: Vec<Step>,
    /// Steps after the release.
    pub(crate) after: Vec<Step>,
}

/// A stream that continues an imported state.
pub(crate) fn check_imported(replay: ReplaySupport, buffer_max: u64, history: HeldHistory) {
    let mut world = World::new(replay, Start::Paused, buffer_max);
    (0..history.published).for_each(|_| world.publish());
    world.connect();
    history.before.into_iter().for_each(|step| take(&mut world, step));
    assert!(world.applied.is_empty(), "no message is delivered before the release");
    let position = world.true_position();
    let state = world.whole_epoch();
    history.between.into_iter().for_each(|step| take(&mut world, step));
    assert_eq!(world.cleared, []);
    world.applied = state;
    world.stream.release(Some(position), world.now);
    world.run();
    history.after.into_iter().for_each(|step| take(&mut world, step));
    world.settle();
    world.check_whole();
    world.settle_with_message();
    assert_eq!(world.applied.last(), world.whole_epoch().last());
    world.check_whole();
}

/// Steps and messages of a history that is decoded from bytes: the checks compare the whole state after each action.
const STEPS_MAX: usize = 120;
const MESSAGES_MAX: u64 = 250;

/// Decodes bytes as a history, and checks it.
pub(crate) fn play(bytes: &[u8]) {
    let mut bytes = Bytes { bytes, messages_left: MESSAGES_MAX };
    let (Some(kind), Some(buffer)) = (bytes.next(), bytes.next()) else { return };
    let replay =
        [ReplaySupport::Available, ReplaySupport::OnReconnect, ReplaySupport::Unavailable, ReplaySupport::Available]
            [usize::from(kind % 4)];
    let buffer_max = u64::from(buffer % 40) + 1;
    if kind & 4 == 0 {
        check_followed(replay, buffer_max, bytes.steps());
        return;
    }
    let published = bytes.next().map_or(0, |published| u64::from(published % 30));
    let (before, between, after) = (bytes.steps(), bytes.steps(), bytes.steps());
    check_imported(replay, buffer_max, HeldHistory { published, before, between, after });
}

/// The remaining bytes, and messages that they may publish.
struct Bytes<'a> {
    bytes: &'a [u8],
    messages_left: u64,
}

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    /// The steps up to the end of a part.
    fn steps(&mut self) -> Vec<Step> {
        std::iter::from_fn(|| self.step()).take(STEPS_MAX).collect()
    }

    fn step(&mut self) -> Option<Step> {
        let byte = self.next().filter(|&byte| byte != 0xff)?;
        let argument = byte >> 4;
        Some(match byte % 16 {
            0 | 1 => self.publish(argument % 5 + 1)?,
            2 => self.publish(argument + 8)?,
            3 => Step::Lose(argument % 3 + 1),
            4 => Step::Drop(argument % 3 + 1),
            5 => Step::Repeat(argument % 9),
            6 => Step::DeliverLate(u64::from(argument) * 2),
            7 | 8 => Step::Deliver(argument % 7 + 1),
            9 => Step::Connect,
            10 => Step::Disconnect,
            11 => Step::Restart,
            12 => Step::Reply(u64::MAX),
            13 => Step::Reply((0..8).fold(0, |kept, _| kept << 8 | u64::from(self.next().unwrap_or(0xff)))),
            14 => Step::PassTime,
            _ if argument % 4 == 2 => Step::Pause(argument / 4),
            _ if argument % 2 == 0 => Step::Shed,
            _ => Step::Malformed,
        })
    }

    fn publish(&mut self, count: u8) -> Option<Step> {
        self.messages_left = self.messages_left.checked_sub(count.into())?;
        Some(Step::Publish(count))
    }
}
