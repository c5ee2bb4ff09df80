//! Messages that arrive twice, late or out of order.

use flash_indexer_wire::{ClearReason, DegradedReason, PendingReason, ReplaySupport, Start, StreamEvent};

use super::replayed_idle_engine;
use super::world::{World, degraded, payload};

#[test]
fn a_damaged_number_ends_its_doubt_with_the_second_live_message_below_it() {
    for replay in [ReplaySupport::Available, ReplaySupport::Unavailable] {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.connect();
        world.reply(u64::MAX);
        world.publish();
        world.deliver();
        world.stream.tail_lost(Some(u64::MAX), world.now);
        world.run();
        assert!(!world.is_exact());
        world.settle_until_pause();
        assert_eq!(world.pending, Some(PendingReason::TailLost), "no reply has that number");
        for expected in [false, true] {
            world.publish();
            world.deliver();
            assert_eq!(world.is_exact(), expected);
        }
        assert_eq!(world.applied, world.whole_epoch());
    }
}

#[test]
fn two_messages_in_reverse_order_of_which_the_first_is_lost_leave_the_stream_inexact() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    world.deliver();
    world.in_flight.swap(0, 1);
    world.drop_received();
    world.deliver();
    assert_eq!((world.applied.len(), world.pending), (2, Some(PendingReason::TailLost)), "message 2 is missing");
    world.publish();
    world.deliver();
    assert_eq!((world.pending, degraded(world.trust)), (None, Some(DegradedReason::Lost { missed: 1, next: 3 })));
}

#[test]
fn a_message_received_twice_is_ignored() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    for later in 0..3 {
        world.repeat(later);
        let duplicates = world.events.iter().filter(|event| **event == StreamEvent::Duplicate).count();
        assert_eq!((duplicates, world.cleared.len(), world.is_exact()), (usize::from(later) + 1, 0, true));
    }
    // Another message of that number is of another epoch.
    world.stream.live(2, payload(1, 2), world.now);
    world.run();
    assert_eq!(world.cleared, [ClearReason::Restarted]);
}

#[test]
fn a_late_message_of_the_connection_leaves_the_stream_inexact_until_a_later_one_shows_its_epoch() {
    // Message 0 is not remembered, because the position was imported; or a message before it was received late.
    for late in [&[0][..], &[5, 0]] {
        for replay in [ReplaySupport::Available, ReplaySupport::Unavailable] {
            let mut world = World::new(replay, Start::Paused, 1_000);
            (0..300).for_each(|_| world.publish());
            world.connect();
            world.applied = world.whole_epoch();
            world.stream.release(Some(world.true_position()), world.now);
            world.publish();
            world.deliver();
            world.settle();
            assert!(world.is_exact());
            for &sequence in late {
                world.stream.live(sequence, payload(0, sequence), world.now);
                world.run();
                assert!(!world.is_exact(), "after a late message {sequence}, {replay:?}");
            }
            world.settle();
            assert_eq!(world.is_exact(), replay == ReplaySupport::Available);
            world.check_whole();
            world.publish();
            world.deliver();
            let lost = DegradedReason::Lost { missed: 300, next: 301 };
            assert_eq!(degraded(world.trust), (replay == ReplaySupport::Unavailable).then_some(lost));
        }
    }
}

#[test]
fn two_messages_in_reverse_order_leave_the_stream_inexact_although_the_first_one_clears() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    world.deliver();
    world.in_flight.swap(0, 1);
    (0..2).for_each(|_| world.deliver());
    // A clear in message 1 would make its rank exact.
    assert_eq!(world.pending, Some(PendingReason::TailLost));
    world.publish();
    world.deliver();
    assert_eq!((world.pending, degraded(world.trust)), (None, Some(DegradedReason::Lost { missed: 1, next: 3 })));
}

#[test]
fn a_message_that_comes_late_after_the_one_that_a_connection_repeats_leaves_the_stream_inexact() {
    let mut world = World::new(ReplaySupport::OnReconnect, Start::Immediate, 100);
    (0..2).for_each(|_| world.publish());
    world.connect();
    world.publish();
    world.deliver();
    world.disconnect();
    world.connect();
    world.deliver();
    assert_eq!(world.applied, [(0, 2)], "the first message of the connection is the last one of the connection before");
    world.deliver_late(2);
    assert_eq!(world.pending, Some(PendingReason::TailLost));
}

#[test]
fn a_replayed_message_received_twice_afterwards_is_ignored() {
    let mut world = replayed_idle_engine(8);
    for _ in 0..2 {
        world.stream.live(5, payload(0, 5), world.now);
        world.run();
    }
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
    assert_eq!(world.cleared, []);
}

#[test]
fn a_message_of_before_a_truncated_replay_received_twice_is_no_restart() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 2);
    world.connect();
    (0..6).for_each(|_| world.publish());
    world.reply(u64::MAX);
    assert_eq!(world.applied, [(0, 4), (0, 5)], "the buffer has the last two");
    for sequence in [0, 0, 1, 1, 2] {
        world.stream.live(sequence, payload(0, sequence), world.now);
        world.run();
    }
    world.in_flight.retain(|&(_, sequence)| sequence > 2);
    world.settle();
    assert!(!world.cleared.contains(&ClearReason::Restarted), "{:?}", world.cleared);
    assert_eq!((world.applied.last(), world.stream.position().epoch), (Some(&(0, 5)), 1));
    assert_eq!(world.events.iter().filter(|&&event| event == StreamEvent::Duplicate).count(), 2);
}

#[test]
fn an_old_message_received_twice_before_its_epoch_is_verified_is_no_restart() {
    let mut world = replayed_idle_engine(300);
    for _ in 0..2 {
        world.stream.live(9, payload(0, 9), world.now);
        world.run();
    }
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
    assert_eq!(world.cleared, []);
}
