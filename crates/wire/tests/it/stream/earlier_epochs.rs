//! Earlier epochs, until it is proven that another one follows: histories that the fuzzer found.

use std::time::Duration;

use flash_indexer_wire::{ClearReason, DegradedReason, ReplaySupport, Start};

use super::histories::{HeldHistory, Step, check_followed, check_imported};
use super::world::{World, degraded};

/// The number of a dropped message of the earlier epoch, and a restart that no reply shows: the publisher's buffer has one message.
#[test]
fn a_number_that_the_publisher_never_reaches_again_is_doubted_until_two_live_messages_follow() {
    use Step::{Connect, Deliver, Disconnect, Drop, Lose, Publish, Restart, Shed};
    let before = [Connect, Publish(1), Deliver(1), Publish(8), Disconnect, Connect, Publish(1), Drop(1), Restart];
    let after = [Publish(1), Connect, Publish(4), Lose(3), Shed, Deliver(1)];
    check_followed(ReplaySupport::Available, 1, before.into_iter().chain(after).collect());
}

/// Message 0 arrives late, like the first one of a new epoch, and a reply lacks the last message. Then a message arrives
/// again, which does not show that either epoch continues.
#[test]
fn a_message_that_arrives_again_ends_no_earlier_epoch() {
    use Step::{Connect, Deliver, DeliverLate, Drop, PassTime, Publish, Repeat, Reply, Shed};
    let without_the_last = u64::MAX - (1 << 4);
    let delivered = [Connect, Publish(5), Shed, Drop(2), Deliver(3), PassTime, DeliverLate(4), Shed, PassTime];
    // The received messages wait for a reply: the only delivered message is of the reply after the late message.
    let waiting = [Connect, Publish(5), PassTime, Drop(2), Deliver(3), DeliverLate(4), Shed, PassTime, Shed];
    for late in [delivered.to_vec(), waiting.into_iter().chain([PassTime]).collect()] {
        let again = [Reply(without_the_last), Repeat(1)];
        check_followed(ReplaySupport::Available, 21, late.into_iter().chain(again).collect());
    }
}

/// The live messages after a restart continue a state that may be of another epoch. Then one arrives late, like the first
/// of a new epoch, and a reply differs from that state: this proves nothing about the live messages, which the reply lacks.
#[test]
fn a_message_of_an_unverified_epoch_ends_no_doubt_of_the_next_one() {
    use Step::{Connect, Deliver, DeliverLate, Drop, Lose, PassTime, Publish, Reply, Restart, Shed};
    let before = [Connect, Reply(u64::MAX), Publish(3), Deliver(3), Restart, Connect, Publish(3), Lose(3)];
    let unverified = [Publish(5), Shed, Drop(2), Deliver(3), DeliverLate(6), PassTime, Reply(1 << 63 | 0b1111)];
    check_followed(ReplaySupport::Available, 21, before.into_iter().chain(unverified).collect());
}

/// As above, with live messages that still wait for a reply that shows whether the engine has restarted.
#[test]
fn a_message_of_an_unverified_epoch_ends_no_doubt_of_messages_that_waited() {
    use Step::{Connect, Deliver, DeliverLate, Drop, PassTime, Publish, Reply, Restart, Shed};
    let before = [Connect, Reply(u64::MAX), Publish(2), Deliver(2), Restart, Connect, Publish(5), PassTime];
    let waiting = [Drop(2), Deliver(3), DeliverLate(4), Shed, PassTime, Reply(1 << 63 | 0b11)];
    check_followed(ReplaySupport::Available, 21, before.into_iter().chain(waiting).collect());
}

/// A reply is ahead of the live messages. One of these arrives late, like the first of a new epoch. The next ones do not show that the last
/// message, which the reply had and the connection loses, is missing again.
#[test]
fn live_messages_behind_a_reply_end_no_doubt_of_what_the_reply_had() {
    let mut world = World::new(ReplaySupport::Available, Start::Paused, 40);
    world.connect();
    (0..15).for_each(|_| world.publish());
    let (position, state) = (world.true_position(), world.whole_epoch());
    (0..5).for_each(|_| world.publish());
    (0..8).for_each(|_| world.lose());
    world.deliver();
    world.applied = state;
    world.stream.release(Some(position), world.now);
    world.run();
    world.pause(1);
    world.reply(u64::MAX);
    assert_eq!(world.applied, world.whole_epoch());
    world.deliver_late(2);
    assert_eq!(world.cleared.last(), Some(&ClearReason::Restarted));
    world.stream.release_buffered(world.now);
    world.run();
    (0..10).for_each(|_| world.deliver());
    world.pass_time();
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.reply(!(1 << 19));
    assert_eq!(world.applied.last(), Some(&(0, 18)));
    assert!(!world.is_exact());
}

/// A live message of an unverified epoch differs from those after it. That ends its epoch, but not the doubt about a number
/// that was seen later on the connection.
#[test]
fn a_message_that_differs_from_an_older_epoch_ends_no_doubt_of_a_later_number() {
    use Step::{Connect, Deliver, Disconnect, Drop, Publish, Reply, Restart};
    let older = [Publish(1), Deliver(1), Restart, Publish(10), Connect, Publish(3), Drop(3), Disconnect];
    let after = older.into_iter().chain([Connect, Reply(u64::MAX), Reply(1 << 63 | 0xfff)]).collect();
    check_imported(ReplaySupport::Available, 13, HeldHistory { published: 1, after, ..HeldHistory::default() });
}

/// A reply has messages after a gap, which wait when the connection is lost. The next reply continues the epoch and lacks them.
#[test]
fn messages_that_a_reply_has_shown_are_known_after_a_lost_connection() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 40);
    (0..10).for_each(|_| world.publish());
    world.connect();
    world.reply(0b11_1011_1111);
    world.disconnect();
    world.connect();
    world.reply(1 << 63 | 0b111_1111);
    assert_eq!(world.applied.last(), Some(&(0, 6)));
    assert!(!world.is_exact());
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

/// An engine restarts together with a service that continues an imported position. The numbers of its live messages stay
/// below that position, and no message of the earlier epoch is left to compare with.
#[test]
fn live_messages_below_an_imported_position_end_its_doubt_once_none_can_have_waited() {
    let mut world = World::new(ReplaySupport::Available, Start::Paused, 40);
    (0..200).for_each(|_| world.publish());
    let position = world.true_position();
    world.restart();
    (0..3).for_each(|_| world.publish());
    world.connect();
    world.stream.release(Some(position), world.now);
    world.run();
    (0..3).for_each(|_| world.reply(u64::MAX));
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), false));
    for is_exact in [false, true] {
        world.publish();
        world.deliver();
        assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), is_exact));
        world.now += Duration::from_secs(20);
    }
}

/// The whole history is requested on a new connection without a live message, and the reply lacks the last messages. The
/// messages of the earlier connection are of the same epoch, so they are missing.
#[test]
fn live_numbers_of_an_earlier_connection_count_where_the_history_replaces_a_state() {
    use Step::{Connect, Deliver, Disconnect, Lose, PassTime, Publish, Reply, Shed};
    let lost = [Connect, Reply(u64::MAX), Publish(6), Deliver(1), Lose(2), Deliver(1), Shed, Deliver(2)];
    let again = [Disconnect, Connect, Reply(u64::MAX), PassTime, Reply(1 << 63 | 0b1111)];
    check_followed(ReplaySupport::Available, 21, lost.into_iter().chain(again).collect());
}

/// As below, where the reply begins above the numbers that count as lost.
#[test]
fn live_numbers_of_an_earlier_connection_show_no_restart_once_a_reply_has_begun() {
    use Step::{Connect, Deliver, PassTime, Pause, Publish, Reply, Restart, Shed};
    let all = u64::MAX;
    let lost = [Reply(all), Reply(all), Shed, Restart, Connect, Shed, PassTime];
    let after = [Publish(5), Publish(5), Publish(5), Reply(0b11 << 7), Pause(2), PassTime, Reply(all)];
    let history = HeldHistory {
        published: 21,
        before: vec![Publish(5)],
        between: vec![Restart, Connect, Publish(5), Deliver(5), Shed],
        after: [&lost[..], &after].concat(),
    };
    check_imported(ReplaySupport::Available, 9, history);
}

/// An engine that has its whole history loses message 0 of its reply to the request for a gap. The state begins after that
/// message, and the history is still requested.
#[test]
fn a_reply_without_the_first_message_leaves_the_history_to_be_requested() {
    let mut world = World::new(ReplaySupport::Available, Start::Paused, 40);
    world.connect();
    (0..5).for_each(|_| world.publish());
    (0..5).for_each(|_| world.deliver());
    world.stream.release_buffered(world.now);
    world.stream.release(None, world.now);
    world.stream.release_buffered(world.now);
    world.run();
    assert_eq!(degraded(world.trust), Some(DegradedReason::StartUnknown { missed: 5 }));
    world.disconnect();
    world.connect();
    world.reply(u64::MAX - 1);
    assert_eq!(degraded(world.trust), Some(DegradedReason::StartUnknown { missed: 1 }));
    assert_eq!(world.applied, world.whole_epoch()[1..]);
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

/// Messages that were lost before any was delivered seem to be of a restarted engine as well, until one of its live messages arrives late,
/// after a pause in which the engine dropped the last ones. A reply had all of them before, or all but message 0.
#[test]
fn a_reply_is_taken_also_where_messages_count_as_lost_before_the_first() {
    use Step::{Connect, Deliver, PassTime, Pause, Publish, Reply, Restart, Shed};
    let all = u64::MAX;
    for last in [all, all - 1, all - 0b11] {
        let lost = [Reply(all), Reply(all), Shed];
        let empty = [Restart, Connect, Shed, PassTime, Reply(1 << 63), Reply(all)];
        let after = [Publish(5), Pause(2), PassTime, Reply(last)];
        let history = HeldHistory {
            published: 21,
            before: vec![Publish(5)],
            between: vec![Restart, Connect, Publish(5), Deliver(5), Shed],
            after: [&lost[..], &empty, &after].concat(),
        };
        check_imported(ReplaySupport::Available, 9, history);
    }
}
