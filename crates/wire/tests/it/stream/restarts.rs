//! Restarts of the engine: which connections, replies and imported positions show another epoch.

use flash_indexer_wire::{
    ClearReason, Cursor, DegradedReason, PendingReason, ReplaySupport, Start, StreamEvent, StreamPosition, StreamTrust,
};

use super::world::{World, degraded, payload};
use super::{END, replayed_idle_engine};

#[test]
fn messages_of_a_restarted_engine_end_the_doubt_of_a_loss_before_them() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Paused, 100);
    (0..11).for_each(|_| world.publish());
    world.connect();
    let position = world.true_position();
    world.stream.tail_lost(None, world.now);
    world.run();
    // The engine restarts behind a forwarder, which keeps the connection.
    (world.epoch, world.published) = (1, 0);
    world.applied = (0..11).map(|sequence| (0, sequence)).collect();
    world.stream.release(Some(position), world.now);
    world.run();
    (0..2).for_each(|_| world.publish());
    (0..2).for_each(|_| world.deliver());
    assert!(!world.is_exact(), "they may be late messages of the imported epoch");
    world.pass_time();
    assert_eq!((world.applied.as_slice(), world.is_exact()), (&[(1, 0), (1, 1)][..], true));
}

#[test]
fn a_connection_that_begins_with_the_last_message_continues_the_epoch() {
    let mut world = World::new(ReplaySupport::OnReconnect, Start::Immediate, 100);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    assert!(world.is_exact());
    world.disconnect();
    assert_eq!(world.pending, Some(PendingReason::Unverified));
    world.connect();
    assert_eq!(world.pending, Some(PendingReason::Unverified), "a connection alone shows nothing");
    world.deliver();
    assert!(world.is_exact(), "the last message is repeated");
    assert!(!world.events.contains(&StreamEvent::Duplicate), "{:?}", world.events);
    world.settle_with_message();
    assert!(world.is_exact());
    assert_eq!((world.applied.clone(), world.cleared.len()), (world.whole_epoch(), 0));

    // Another process has reached the same number.
    world.restart();
    (0..6).for_each(|_| world.publish());
    world.settle();
    assert_eq!(world.cleared, [ClearReason::Restarted]);
    assert_eq!(world.applied, [(1, 3), (1, 4), (1, 5)]);
    assert_eq!(degraded(world.trust), Some(DegradedReason::StartUnknown { missed: 3 }));
}

#[test]
fn a_connection_that_begins_later_leaves_the_stream_degraded() {
    let mut world = World::new(ReplaySupport::OnReconnect, Start::Immediate, 1);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    world.disconnect();
    world.publish();
    world.connect();
    world.deliver();
    assert_eq!(degraded(world.trust), Some(DegradedReason::Unverified), "message 2 was not repeated");
    assert_eq!(world.applied, world.whole_epoch());
    world.settle_with_message();
    assert!(!world.is_exact(), "later messages do not end the doubt");
}

#[test]
fn a_lost_message_of_an_earlier_connection_is_missing_in_the_same_epoch_only() {
    for restarts in [false, true] {
        let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
        world.connect();
        world.reply(u64::MAX);
        world.publish();
        world.deliver();
        (0..3).for_each(|_| world.publish());
        (0..3).for_each(|_| world.drop_received());
        if restarts {
            world.restart();
            world.publish();
        } else {
            world.disconnect();
        }
        world.connect();
        // The replies end before message 3. A new epoch has none.
        (0..2).for_each(|_| world.reply(END | 0b111));
        assert_eq!(world.is_exact(), restarts);
        world.settle();
        assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
    }
}

#[test]
fn a_restart_behind_a_forwarder_is_exact_from_its_second_message_on() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    // The connection to the forwarder stays.
    (world.epoch, world.published) = (1, 0);
    (0..2).for_each(|_| world.publish());
    world.deliver();
    assert_eq!((world.applied.clone(), world.pending), (vec![(1, 0)], Some(PendingReason::TailLost)));
    world.deliver();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_live_message_that_differs_from_the_replayed_one_starts_a_new_epoch() {
    let mut world = replayed_idle_engine(8);
    // The engine restarts behind a forwarder whose connection stays.
    (world.epoch, world.published) = (1, 0);
    for sequence in 0..5 {
        world.publish();
        world.deliver();
        assert_eq!(world.applied, world.whole_epoch(), "after message {sequence}");
        assert!(world.is_exact());
    }
    assert_eq!((world.cleared.clone(), world.stream.position().epoch), (vec![ClearReason::Restarted], 2));
}

#[test]
fn a_first_live_message_below_the_remembered_ones_makes_the_stream_verify_its_epoch() {
    let mut world = replayed_idle_engine(300);
    let requests = world.requests;
    // An old message of the same epoch.
    world.stream.live(9, payload(0, 9), world.now);
    world.run();
    assert_eq!((world.is_exact(), world.requests), (false, requests + 1));
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
    // A message of an epoch that began behind a forwarder, which lost the first one.
    let mut world = replayed_idle_engine(300);
    (world.epoch, world.published) = (1, 0);
    (0..2).for_each(|_| world.publish());
    world.lose();
    world.deliver();
    assert!(!world.is_exact());
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_restart_that_a_replay_shows_while_connected_is_followed_from_the_start() {
    let mut world = replayed_idle_engine(6);
    world.publish();
    world.deliver();
    (world.epoch, world.published) = (1, 0);
    (0..10).for_each(|_| world.publish());
    (0..10).for_each(|_| world.lose());
    world.publish();
    world.deliver();
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

/// A reply that has none of the messages and is marked as whole.
const EMPTY: u64 = 1 << 63;

#[test]
fn replies_that_lose_messages_in_a_row_do_not_make_an_epoch_that_goes_on_exact() {
    let mut world = replayed_idle_engine(20);
    world.disconnect();
    world.connect();
    (0..2).for_each(|_| world.reply(EMPTY));
    assert_eq!(world.cleared, [ClearReason::Restarted], "a new epoch seems to have begun");
    world.reply(EMPTY | 0b111);
    assert_eq!((world.applied.len(), world.pending), (3, Some(PendingReason::Unverified)));
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn an_epoch_that_only_missing_messages_show_is_exact_with_its_first_message() {
    let mut world = replayed_idle_engine(300);
    world.restart();
    (0..3).for_each(|_| world.publish());
    world.connect();
    (0..2).for_each(|_| world.reply(EMPTY));
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_live_message_of_a_connection_without_a_verified_epoch_is_known_in_the_epoch_that_a_reply_shows() {
    let mut world = replayed_idle_engine(5);
    world.restart();
    world.connect();
    (0..7).for_each(|_| world.publish());
    (0..5).for_each(|_| world.lose());
    (0..2).for_each(|_| world.deliver());
    world.disconnect();
    world.connect();
    world.reply(u64::MAX);
    assert_eq!(world.cleared, [ClearReason::Restarted], "the last message of the epoch before differs");
    // The reply has lost all messages but the first.
    world.reply(EMPTY | 1);
    assert_eq!((world.applied.clone(), world.is_exact()), (vec![(1, 0)], false));
    // The reply that differed has shown a later message, so the rest is requested at once.
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_restart_detected_by_a_replay_is_counted_once() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    (0..9).for_each(|_| world.publish());
    (0..9).for_each(|_| world.deliver());
    world.restart();
    (0..3).for_each(|_| world.publish());
    world.connect();
    (0..3).for_each(|_| world.reply(u64::MAX));
    assert_eq!((world.cleared.clone(), world.applied.clone()), (vec![ClearReason::Restarted], world.whole_epoch()));
    world.publish();
    world.deliver();
    assert_eq!(world.cleared, [ClearReason::Restarted], "the first live message is below where the old epoch ended");
    assert_eq!(world.stream.position().epoch, 2);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn epochs_are_counted_across_listeners() {
    let epoch_after = |remembered: Option<Cursor>, epoch: u64, published: u64, replay| {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.stream.continue_epochs(StreamPosition { cursor: remembered, epoch: 5, trust: StreamTrust::Exact });
        world.epoch = epoch;
        (0..published).for_each(|_| world.publish());
        world.settle_with_message();
        world.stream.position().epoch
    };
    let stopped_at_3 = Some(Cursor::new(3, &payload(0, 3)));
    assert_eq!(epoch_after(stopped_at_3, 0, 6, ReplaySupport::Available), 5);
    assert_eq!(epoch_after(stopped_at_3, 1, 6, ReplaySupport::Available), 6, "another message has that number");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, ReplaySupport::Available), 6, "the stream has not reached the position");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, ReplaySupport::Unavailable), 6);
    assert_eq!(epoch_after(stopped_at_3, 0, 6, ReplaySupport::Unavailable), 5);
}

#[test]
fn an_imported_position_is_compared_with_the_waiting_messages() {
    for (epoch, expected) in [(0, 0), (1, 1)] {
        let mut world = World::new(ReplaySupport::Unavailable, Start::Paused, 100);
        world.connect();
        (0..6).for_each(|_| world.publish());
        (0..4).for_each(|_| world.deliver());
        // The exporter was ahead of this connection, in the same epoch or in another one.
        let cursor = Cursor::new(4, &payload(epoch, 4));
        world.applied = (0..5).map(|sequence| (epoch, sequence)).collect();
        let position = StreamPosition { cursor: Some(cursor), epoch: 1, trust: StreamTrust::Exact };
        world.stream.release(Some(position), world.now);
        world.run();
        assert_eq!(world.applied.len(), 5, "the stream waits for the imported position");
        (0..2).for_each(|_| world.deliver());
        assert_eq!(world.cleared.len(), expected);
        assert_eq!((world.applied.clone(), world.trust), (world.whole_epoch(), StreamTrust::Exact));
    }
    let mut world = World::new(ReplaySupport::Unavailable, Start::Paused, 100);
    world.connect();
    world.publish();
    world.deliver();
    world.applied = (0..5).map(|sequence| (7, sequence)).collect();
    let cursor = Some(Cursor::new(4, &payload(7, 4)));
    world.stream.release(Some(StreamPosition { cursor, epoch: 1, trust: StreamTrust::Exact }), world.now);
    world.run();
    world.pass_time();
    assert_eq!(world.cleared, [ClearReason::Restarted], "the publisher never reaches the imported position");
    assert_eq!((world.applied.clone(), world.trust), (world.whole_epoch(), StreamTrust::Exact));
}

#[test]
fn a_first_live_message_below_the_end_of_an_imported_state_begins_another_epoch() {
    for (imported_end, expected) in [(49, vec![ClearReason::Restarted]), (33, vec![ClearReason::TooMuchLost])] {
        let mut world = World::new(ReplaySupport::Unavailable, Start::Paused, 100);
        (0..19).for_each(|_| world.publish());
        world.applied = world.whole_epoch();
        world.stream.release(Some(world.true_position()), world.now);
        world.stream.record_imported_end(imported_end);
        world.run();
        // Nothing but the number of the next message shows whether the engine has restarted.
        (world.epoch, world.published) = (1, 33);
        world.connect();
        world.publish();
        world.deliver();
        assert_eq!((world.cleared.clone(), world.applied.clone()), (expected, vec![(1, 33)]));
        assert!(!world.is_exact());
    }
}
