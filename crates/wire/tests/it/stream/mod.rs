//! Ordering and repair of a stream: a simulated engine publishes over channels that drop messages.

mod earlier_epochs;
mod histories;
mod repairs;
mod repeated;
mod restarts;
mod whole_histories;
mod world;

use flash_indexer_wire::{DegradedReason, ReplaySupport, Start};
use proptest::prelude::*;

use self::histories::{HeldHistory, Step, check_followed, check_imported, play};
use self::world::{World, degraded};

/// The bit of [`World::reply`] for the end marker.
const END: u64 = 1 << 63;

/// A stream that lost one message of five, because its replay endpoint did not respond.
fn degraded_by_silence(buffer_max: u64) -> World {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, buffer_max);
    world.connect();
    world.reply(u64::MAX);
    (0..5).for_each(|_| world.publish());
    world.deliver();
    world.lose();
    (0..3).for_each(|_| world.deliver());
    while world.is_repairing() {
        world.pass_time();
    }
    assert_eq!(degraded(world.trust), Some(DegradedReason::Lost { missed: 1, next: 2 }));
    world
}

/// A stream that has messages 0 to `published` from a replay only.
fn replayed_idle_engine(published: u64) -> World {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 1_000);
    (0..published).for_each(|_| world.publish());
    world.connect();
    world.reply(u64::MAX);
    while world.applied.len() < published as usize {
        world.reply(u64::MAX);
    }
    assert!(world.is_exact());
    world
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6_u8).prop_map(Step::Publish),
        2 => (1..4_u8).prop_map(Step::Lose),
        2 => (1..4_u8).prop_map(Step::Drop),
        1 => (0..9_u8).prop_map(Step::Repeat),
        1 => (0..40_u64).prop_map(Step::DeliverLate),
        1 => (8..30_u8).prop_map(Step::Publish),
        6 => (1..8_u8).prop_map(Step::Deliver),
        4 => Just(Step::Connect),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Restart),
        3 => Just(Step::Reply(u64::MAX)),
        2 => any::<u64>().prop_map(Step::Reply),
        2 => Just(Step::PassTime),
        1 => Just(Step::Shed),
        1 => (0..4_u8).prop_map(Step::Pause),
        1 => Just(Step::Malformed),
    ]
}

fn replay() -> impl Strategy<Value = ReplaySupport> {
    prop_oneof![3 => Just(ReplaySupport::Available), 2 => Just(ReplaySupport::OnReconnect), 1 => Just(ReplaySupport::Unavailable)]
}

/// Eight times the configured number of cases, because each case is cheap.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 8, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn an_exact_stream_has_delivered_every_message(
        replay in replay(), buffer in 1..40_u64, steps in prop::collection::vec(step(), 0..60),
    ) {
        check_followed(replay, buffer, steps);
    }

    #[test]
    fn an_imported_state_continues_without_loss_or_duplicate(
        replay in replay(),
        buffer in 1..40_u64,
        published in 0..30_u64,
        before in prop::collection::vec(step(), 0..20),
        between in prop::collection::vec(step(), 0..10),
        after in prop::collection::vec(step(), 0..20),
    ) {
        check_imported(replay, buffer, HeldHistory { published, before, between, after });
    }

    /// The same as the fuzz target `stream_histories`, without a fuzzer.
    #[test]
    fn both_hold_for_histories_of_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        play(&bytes);
    }
}
