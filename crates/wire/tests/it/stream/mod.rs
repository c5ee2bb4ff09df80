//! Ordering and repair of a stream: a simulated engine publishes over channels that drop messages.

mod earlier_epochs;
mod histories;
mod world;

use std::time::Duration;

use flash_indexer_wire::{
    ClearReason, Cursor, Degraded, Pending, Replay, ReplayOutcome, Start, StreamEvent, StreamPosition, StreamTrust,
};
use proptest::prelude::*;

use self::histories::{HeldHistory, Step, check_followed, check_imported, play};
use self::world::{World, degraded, limits, payload};

#[test]
fn a_replay_endpoint_that_does_not_respond_is_given_up_and_retried_after_a_pause() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    assert_eq!(world.request, Some((1, 0)), "the history is requested at once");
    world.reply(u64::MAX);
    assert_eq!((world.request, world.trust), (None, StreamTrust::Cold), "the engine has published no message");
    world.publish();
    world.deliver();
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!(world.request, Some((2, 0)), "the request starts at the cursor");
    while world.is_repairing() {
        assert_eq!(world.stream.waiting_messages(), 1);
        world.pass_time();
    }
    assert_eq!(world.requests, 1 + world.limits.failed_requests_max as usize);
    assert!(world.events.contains(&StreamEvent::Replay(ReplayOutcome::GivenUp)));
    assert!(world.events.contains(&StreamEvent::Lost { messages: 1 }));
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
    assert_eq!(world.applied, [(0, 0), (0, 2)]);

    let requests = world.requests;
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!((world.requests, world.applied.len()), (requests, 3), "the next gap does not stall the stream");
    world.now += world.limits.repair_pause;
    world.publish();
    world.lose();
    world.publish();
    world.deliver();
    assert_eq!(world.requests, requests + 1, "the endpoint is tried again after the pause");
    world.reply(u64::MAX);
    assert_eq!(world.applied, [(0, 0), (0, 2), (0, 4), (0, 5), (0, 6)]);
}

/// A stream that lost one message of five, because its replay endpoint did not respond.
fn degraded_by_silence(buffer_max: u64) -> World {
    let mut world = World::new(Replay::Available, Start::Immediate, buffer_max);
    world.connect();
    world.reply(u64::MAX);
    (0..5).for_each(|_| world.publish());
    world.deliver();
    world.lose();
    (0..3).for_each(|_| world.deliver());
    while world.is_repairing() {
        world.pass_time();
    }
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
    world
}

#[test]
fn messages_that_a_silent_endpoint_did_not_replay_come_with_the_whole_history_later() {
    let mut world = degraded_by_silence(100);
    let (given_up_at, kept) = (world.now, world.applied.clone());
    world.pass_time();
    assert_eq!(world.now, given_up_at + world.limits.repair_pause);
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.publish();
    world.deliver();
    assert_eq!(world.applied, [kept, vec![(0, 5)]].concat(), "live messages do not wait for it");
    world.pass_time();
    assert_eq!((world.request, world.cleared.as_slice()), (None, &[][..]), "no reply changes nothing");
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.cleared.as_slice(), world.is_exact()), (&[ClearReason::Replayed][..], true));
    assert_eq!(world.applied, world.whole_epoch());
    assert_eq!((world.stream.wakes_at(), world.stream.position().epoch), (None, 1), "nothing is left to request");
}

#[test]
fn messages_lost_in_the_pause_after_a_repair_of_an_earlier_epoch_come_with_the_whole_history_later() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    (0..2).for_each(|_| world.publish());
    (0..2).for_each(|_| world.deliver());
    world.restart();
    world.publish();
    world.connect();
    while world.is_repairing() {
        world.pass_time();
    }
    world.publish();
    world.deliver();
    assert_eq!(degraded(world.trust), Some(Degraded::StartUnknown { missed: 1 }));
    world.pass_time();
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn the_whole_history_is_requested_for_an_imported_rank_that_lacks_changes() {
    let mut world = World::new(Replay::Available, Start::Held, 100);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    world.applied = vec![(0, 0), (0, 1)];
    let cursor = Some(Cursor::new(1, &payload(0, 1)));
    world.stream.release(Some(StreamPosition { cursor, epoch: 1, trust: StreamTrust::Exact }), world.now);
    world.stream.record_inexact_rank(world.now);
    world.run();
    assert_eq!((world.applied.clone(), world.request), (world.whole_epoch(), None), "the stream itself lacks nothing");
    world.pass_time();
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.reply(u64::MAX);
    assert_eq!((world.cleared.as_slice(), world.is_exact()), (&[ClearReason::Replayed][..], true));
    assert_eq!((world.applied.clone(), world.stream.wakes_at()), (world.whole_epoch(), None), "it is requested once");
}

#[test]
fn an_incomplete_reply_with_the_history_is_continued() {
    let mut world = degraded_by_silence(100);
    world.pass_time();
    // Message 0 alone, and no end.
    world.reply(1);
    assert_eq!((world.cleared.as_slice(), world.is_exact()), (&[ClearReason::Replayed][..], false));
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_history_without_its_first_message_leaves_the_state_as_it_is() {
    let mut world = degraded_by_silence(4);
    let kept = world.applied.clone();
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((&world.applied, world.cleared.as_slice(), world.request), (&kept, &[][..], None));
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
    assert_eq!(world.stream.wakes_at(), None, "it is not requested again");
}

#[test]
fn a_history_that_lacks_a_message_of_an_earlier_reply_is_not_whole() {
    let mut world = degraded_by_silence(100);
    world.publish();
    world.drop_received();
    world.pass_time();
    // No reply has the history; the one to the next request has the dropped message.
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!(world.applied.last(), Some(&(0, 5)));
    world.pass_time();
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.reply(!(1 << 5));
    assert_eq!((world.applied.last(), world.is_exact()), (Some(&(0, 4)), false), "message 5 is known");
    world.settle();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn an_empty_reply_is_no_proof_of_a_restart() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    (0..5).for_each(|_| world.publish());
    (0..5).for_each(|_| world.deliver());
    world.disconnect();
    world.connect();
    assert_eq!(world.request.map(|(_, from)| from), Some(4));
    // Only the end of the reply arrives, and then the first message and the end.
    world.reply(1 << 63);
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "all messages are requested and compared");
    assert!(!world.is_exact());
    world.reply(1 << 63 | 1);
    assert_eq!((world.applied.clone(), world.cleared.len()), (world.whole_epoch(), 0));
    world.settle();
    assert!(world.is_exact());

    // The same requests show an engine that has restarted and stored less.
    world.restart();
    world.publish();
    world.settle();
    assert_eq!((world.cleared.as_slice(), world.applied.as_slice()), (&[ClearReason::Restarted][..], &[(1, 0)][..]));
    assert!(world.is_exact());
}

#[test]
fn messages_of_a_restarted_engine_end_the_doubt_of_a_loss_before_them() {
    let mut world = World::new(Replay::Unavailable, Start::Held, 100);
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
    let mut world = World::new(Replay::OnReconnect, Start::Immediate, 100);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    assert!(world.is_exact());
    world.disconnect();
    assert_eq!(world.pending, Some(Pending::Unverified));
    world.connect();
    assert_eq!(world.pending, Some(Pending::Unverified), "a connection alone shows nothing");
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
    assert_eq!(degraded(world.trust), Some(Degraded::StartUnknown { missed: 3 }));
}

#[test]
fn a_connection_that_begins_later_leaves_the_stream_degraded() {
    let mut world = World::new(Replay::OnReconnect, Start::Immediate, 1);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    world.disconnect();
    world.publish();
    world.connect();
    world.deliver();
    assert_eq!(degraded(world.trust), Some(Degraded::Unverified), "message 2 was not repeated");
    assert_eq!(world.applied, world.whole_epoch());
    world.settle_with_message();
    assert!(!world.is_exact(), "later messages do not end the doubt");
}

#[test]
fn replies_to_earlier_requests_and_out_of_order_are_rejected() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (first, _) = world.request.expect("a request");
    world.stream.replayed(first, 1, payload(0, 1), world.now);
    world.stream.replayed(first, 1, payload(0, 1), world.now);
    world.run();
    let (second, _) = world.request.expect("a second request");
    assert!(second > first);
    world.stream.replayed(first, 2, payload(0, 2), world.now);
    world.stream.replay_ended(first, world.now);
    world.run();
    assert_eq!(world.applied, [(0, 1)], "the reply shows that the start is lost");
    world.reply(u64::MAX);
    assert_eq!(world.applied, [(0, 1), (0, 2)]);
    assert_eq!(degraded(world.trust), Some(Degraded::StartUnknown { missed: 1 }));
}

#[test]
fn messages_before_the_first_contact_are_not_a_gap() {
    let is_gap = |event: &StreamEvent| matches!(event, StreamEvent::Gap { .. });
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..9).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.request.expect("a request");
    world.stream.replayed(attempt, 0, payload(0, 0), world.now);
    world.run();
    world.publish();
    world.deliver();
    assert!(!world.events.iter().any(is_gap), "the reply is in progress: {:?}", world.events);
    (1..9).for_each(|sequence| world.stream.replayed(attempt, sequence, payload(0, sequence), world.now));
    world.run();
    assert_eq!((world.applied.clone(), world.trust), (world.whole_epoch(), StreamTrust::Exact));

    world.publish();
    world.publish();
    world.lose();
    world.deliver();
    assert_eq!(world.events.iter().copied().find(is_gap), Some(StreamEvent::Gap { missed: 1 }));
}

#[test]
fn a_stream_is_not_exact_before_its_history_is_complete() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..9).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.request.expect("a request");
    for sequence in 0..9 {
        world.stream.replayed(attempt, sequence, payload(0, sequence), world.now);
        world.run();
        assert_eq!(world.pending, Some(Pending::Recovering { end: None }), "after message {sequence}");
    }
    world.stream.replay_ended(attempt, world.now);
    world.run();
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

#[test]
fn a_stream_is_not_exact_during_a_repair() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    assert!(world.is_exact());
    (0..2).for_each(|_| world.publish());
    world.lose();
    world.deliver();
    assert_eq!(world.pending, Some(Pending::Recovering { end: Some(3) }));
    world.reply(u64::MAX);
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

#[test]
fn a_dropped_last_message_is_requested_without_a_further_message() {
    for (replay, expected) in [(Replay::Available, None), (Replay::Unavailable, Some(Pending::TailLost))] {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.connect();
        world.reply(u64::MAX);
        world.publish();
        world.deliver();
        world.publish();
        world.drop_received();
        assert!(!world.is_exact(), "at once");
        world.settle();
        assert_eq!(world.pending, expected);
        world.check_whole();
        // The next message shows whether one is missing.
        world.publish();
        world.deliver();
        assert_eq!(world.pending, None);
        let lost = (replay == Replay::Unavailable).then_some(Degraded::Lost { missed: 1, next: 2 });
        assert_eq!(degraded(world.trust), lost);
    }
}

#[test]
fn an_undecodable_message_without_a_sequence_number_of_its_own_is_no_loss() {
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 100);
    world.connect();
    world.publish();
    world.deliver();
    world.stream.tail_lost(None, world.now);
    world.run();
    assert_eq!(world.pending, Some(Pending::TailLost));
    world.publish();
    world.deliver();
    assert!(world.is_exact());
}

/// The bit of [`World::reply`] for the end marker.
const END: u64 = 1 << 63;

#[test]
fn a_reply_that_ends_before_a_dropped_message_proves_nothing() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    (0..2).for_each(|_| world.publish());
    (0..2).for_each(|_| world.drop_received());
    // The reply has message 1, not message 2, and its end.
    for _ in 0..2 {
        assert_eq!(world.request.map(|(_, from)| from), Some(world.applied.len() as u64 - 1));
        world.reply(END | 0b11);
        assert!(!world.is_exact());
    }
    while world.request.is_some() || !matches!(world.pending, Some(Pending::TailLost)) {
        world.pass_time();
        world.reply(END | 0b11);
        assert!(!world.is_exact());
    }
    assert!(world.stream.wakes_at().is_some(), "it is requested again after a pause");
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_lost_message_of_an_earlier_connection_is_missing_in_the_same_epoch_only() {
    for restarts in [false, true] {
        let mut world = World::new(Replay::Available, Start::Immediate, 100);
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
fn a_damaged_number_ends_its_doubt_with_the_second_live_message_below_it() {
    for replay in [Replay::Available, Replay::Unavailable] {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.connect();
        world.reply(u64::MAX);
        world.publish();
        world.deliver();
        world.stream.tail_lost(Some(u64::MAX), world.now);
        world.run();
        assert!(!world.is_exact());
        world.settle_until_pause();
        assert_eq!(world.pending, Some(Pending::TailLost), "no reply has that number");
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
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    world.deliver();
    world.in_flight.swap(0, 1);
    world.drop_received();
    world.deliver();
    assert_eq!((world.applied.len(), world.pending), (2, Some(Pending::TailLost)), "message 2 is missing");
    world.publish();
    world.deliver();
    assert_eq!((world.pending, degraded(world.trust)), (None, Some(Degraded::Lost { missed: 1, next: 3 })));
}

#[test]
fn messages_lost_during_a_repair_are_requested_after_it() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (first, _) = world.request.expect("a request");
    world.publish();
    world.drop_received();
    // The engine sent the reply before it published the dropped message.
    (0..3).for_each(|sequence| world.stream.replayed(first, sequence, payload(0, sequence), world.now));
    world.stream.replay_ended(first, world.now);
    world.run();
    assert_eq!(world.request, Some((first + 1, 2)));
    world.reply(u64::MAX);
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

#[test]
fn replies_to_requests_of_an_earlier_stream_are_ignored() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.stream.continue_attempts(7);
    (0..2).for_each(|_| world.publish());
    world.connect();
    assert_eq!(world.request, Some((8, 0)));
    // The reply to the last request of the earlier stream was sent before the second message was published.
    world.stream.replayed(7, 0, payload(0, 0), world.now);
    world.stream.replay_ended(7, world.now);
    world.run();
    assert_eq!((world.applied.len(), world.is_exact()), (0, false));
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_flood_of_undecodable_messages_causes_one_request_for_each_backoff() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    let requests = world.requests;
    for _ in 0..100 {
        world.stream.tail_lost(None, world.now);
        world.run();
        world.reply(u64::MAX);
    }
    assert_eq!(world.requests, requests + 1);
    assert_eq!(world.pending, Some(Pending::TailLost));
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.requests, world.is_exact()), (requests + 2, true));
}

#[test]
fn a_message_received_twice_is_ignored() {
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 0);
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
        for replay in [Replay::Available, Replay::Unavailable] {
            let mut world = World::new(replay, Start::Held, 1_000);
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
            assert_eq!(world.is_exact(), replay == Replay::Available);
            world.check_whole();
            world.publish();
            world.deliver();
            let lost = Degraded::Lost { missed: 300, next: 301 };
            assert_eq!(degraded(world.trust), (replay == Replay::Unavailable).then_some(lost));
        }
    }
}

#[test]
fn two_messages_in_reverse_order_leave_the_stream_inexact_although_the_first_one_clears() {
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    world.deliver();
    world.in_flight.swap(0, 1);
    (0..2).for_each(|_| world.deliver());
    // A clear in message 1 would make its rank exact.
    assert_eq!(world.pending, Some(Pending::TailLost));
    world.publish();
    world.deliver();
    assert_eq!((world.pending, degraded(world.trust)), (None, Some(Degraded::Lost { missed: 1, next: 3 })));
}

#[test]
fn a_message_that_comes_late_after_the_one_that_a_connection_repeats_leaves_the_stream_inexact() {
    let mut world = World::new(Replay::OnReconnect, Start::Immediate, 100);
    (0..2).for_each(|_| world.publish());
    world.connect();
    world.publish();
    world.deliver();
    world.disconnect();
    world.connect();
    world.deliver();
    assert_eq!(world.applied, [(0, 2)], "the first message of the connection is the last one of the connection before");
    world.deliver_late(2);
    assert_eq!(world.pending, Some(Pending::TailLost));
}

#[test]
fn a_restart_behind_a_forwarder_is_exact_from_its_second_message_on() {
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 0);
    world.connect();
    (0..3).for_each(|_| world.publish());
    (0..3).for_each(|_| world.deliver());
    // The connection to the forwarder stays.
    (world.epoch, world.published) = (1, 0);
    (0..2).for_each(|_| world.publish());
    world.deliver();
    assert_eq!((world.applied.clone(), world.pending), (vec![(1, 0)], Some(Pending::TailLost)));
    world.deliver();
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

/// A stream that knows messages 0 to `published` by a replay only.
fn replayed_idle_engine(published: u64) -> World {
    let mut world = World::new(Replay::Available, Start::Immediate, 1_000);
    (0..published).for_each(|_| world.publish());
    world.connect();
    world.reply(u64::MAX);
    while world.applied.len() < published as usize {
        world.reply(u64::MAX);
    }
    assert!(world.is_exact());
    world
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
    let mut world = World::new(Replay::Available, Start::Immediate, 2);
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
    assert_eq!((world.applied.len(), world.pending), (3, Some(Pending::Unverified)));
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
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
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
fn a_history_that_cannot_be_replayed_is_not_exact_and_is_requested_again() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    world.pass_time_until_given_up();
    assert_eq!(world.trust, StreamTrust::Cold, "no message was received");
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_truncated_reply_is_not_exact_and_is_requested_again() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    (0..3).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.request.expect("a request");
    world.stream.replayed(attempt, 0, payload(0, 0), world.now);
    world.run();
    world.pass_time_until_given_up();
    // The repair is retried after the pause even if no further message arrives.
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_lost_tail_is_requested_at_once_when_the_connection_comes_back() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    for _ in 0..2 {
        world.publish();
        world.drop_received();
        world.reply(u64::MAX);
    }
    assert_eq!((world.request, world.pending), (None, Some(Pending::TailLost)), "a backoff follows the first repair");
    world.disconnect();
    world.connect();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn an_epoch_that_could_not_be_verified_is_verified_later_without_a_further_message() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    world.restart();
    (0..2).for_each(|_| world.publish());
    world.connect();
    world.pass_time_until_given_up();
    assert_eq!(degraded(world.trust), Some(Degraded::Unverified));
    world.pass_time();
    world.reply(u64::MAX);
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_large_loss_clears_the_state_and_a_small_one_does_not() {
    let mut world = World::new(Replay::Unavailable, Start::Immediate, 0);
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
        world.cleared.clone()
    };
    assert_eq!(lose(limits().cleared_loss_min - 1), []);
    assert_eq!(lose(limits().cleared_loss_min), [ClearReason::TooMuchLost]);
}

#[test]
fn a_full_buffer_of_waiting_messages_ends_a_repair() {
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.publish();
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    for _ in 0..30 {
        world.publish();
    }
    world.lose();
    while !world.in_flight.is_empty() {
        world.deliver();
    }
    assert!(world.events.contains(&StreamEvent::WaitingFull { dropped: 0 }));
    assert_eq!(world.applied.len(), 31, "all messages except the lost one");
    assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 1, next: 2 }));
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
    assert_eq!(epoch_after(stopped_at_3, 0, 6, Replay::Available), 5);
    assert_eq!(epoch_after(stopped_at_3, 1, 6, Replay::Available), 6, "another message has that number");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, Replay::Available), 6, "the stream has not reached the position");
    assert_eq!(epoch_after(stopped_at_3, 1, 2, Replay::Unavailable), 6);
    assert_eq!(epoch_after(stopped_at_3, 0, 6, Replay::Unavailable), 5);
}

#[test]
fn an_imported_position_is_compared_with_the_waiting_messages() {
    for (epoch, expected) in [(0, 0), (1, 1)] {
        let mut world = World::new(Replay::Unavailable, Start::Held, 100);
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
    let mut world = World::new(Replay::Unavailable, Start::Held, 100);
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
        let mut world = World::new(Replay::Unavailable, Start::Held, 100);
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

#[test]
fn messages_that_waited_in_a_pause_do_not_show_what_was_dropped_in_it() {
    for replay in [Replay::Unavailable, Replay::OnReconnect] {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.connect();
        (0..6).for_each(|_| world.publish());
        world.deliver();
        assert!(world.is_exact());
        world.pause(2);
        (0..3).for_each(|_| world.deliver());
        assert_eq!((world.applied.len(), world.pending), (4, Some(Pending::TailLost)));
        world.now += Duration::from_secs(20);
        world.publish();
        world.deliver();
        assert_eq!(degraded(world.trust), Some(Degraded::Lost { missed: 2, next: 6 }));
    }
    let mut world = World::new(Replay::Available, Start::Immediate, 100);
    world.settle();
    (0..6).for_each(|_| world.publish());
    world.pause(2);
    (0..4).for_each(|_| world.deliver());
    assert!(!world.is_exact());
    world.settle();
    assert!(world.is_exact(), "the reply was requested after the pause");
    assert_eq!(world.applied, world.whole_epoch());
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

fn replay() -> impl Strategy<Value = Replay> {
    prop_oneof![3 => Just(Replay::Available), 2 => Just(Replay::OnReconnect), 1 => Just(Replay::Unavailable)]
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
