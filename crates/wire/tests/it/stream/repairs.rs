//! Requests of a repair, and the replies that it uses: silent endpoints, replies that end early, and the waiting messages.

use std::time::Duration;

use flash_indexer_wire::{
    ClearReason, DegradedReason, PendingReason, ReplayOutcome, ReplaySupport, Start, StreamEvent, StreamTrust,
};

use super::world::{World, degraded, limits, payload};
use super::{END, degraded_by_silence};

#[test]
fn a_replay_endpoint_that_does_not_respond_is_given_up_and_retried_after_a_pause() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    assert_eq!(degraded(world.trust), Some(DegradedReason::Lost { missed: 1, next: 2 }));
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    assert_eq!(degraded(world.trust), Some(DegradedReason::StartUnknown { missed: 1 }));
    world.pass_time();
    assert_eq!(world.request.map(|(_, from)| from), Some(0), "the whole history is requested");
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn replies_to_earlier_requests_and_out_of_order_are_rejected() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    assert_eq!(degraded(world.trust), Some(DegradedReason::StartUnknown { missed: 1 }));
}

#[test]
fn a_stream_is_not_exact_during_a_repair() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    assert!(world.is_exact());
    (0..2).for_each(|_| world.publish());
    world.lose();
    world.deliver();
    assert_eq!(world.pending, Some(PendingReason::Recovering { end: Some(3) }));
    world.reply(u64::MAX);
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

#[test]
fn a_dropped_last_message_is_requested_without_a_further_message() {
    for (replay, expected) in
        [(ReplaySupport::Available, None), (ReplaySupport::Unavailable, Some(PendingReason::TailLost))]
    {
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
        let lost = (replay == ReplaySupport::Unavailable).then_some(DegradedReason::Lost { missed: 1, next: 2 });
        assert_eq!(degraded(world.trust), lost);
    }
}

#[test]
fn an_undecodable_message_without_a_sequence_number_of_its_own_is_no_loss() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 100);
    world.connect();
    world.publish();
    world.deliver();
    world.stream.tail_lost(None, world.now);
    world.run();
    assert_eq!(world.pending, Some(PendingReason::TailLost));
    world.publish();
    world.deliver();
    assert!(world.is_exact());
}

#[test]
fn a_reply_that_ends_before_a_dropped_message_proves_nothing() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    while world.request.is_some() || !matches!(world.pending, Some(PendingReason::TailLost)) {
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
fn messages_lost_during_a_repair_are_requested_after_it() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    assert_eq!(world.pending, Some(PendingReason::TailLost));
    world.pass_time();
    world.reply(u64::MAX);
    assert_eq!((world.requests, world.is_exact()), (requests + 2, true));
}

#[test]
fn a_lost_tail_is_requested_at_once_when_the_connection_comes_back() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    for _ in 0..2 {
        world.publish();
        world.drop_received();
        world.reply(u64::MAX);
    }
    assert_eq!(
        (world.request, world.pending),
        (None, Some(PendingReason::TailLost)),
        "a backoff follows the first repair"
    );
    world.disconnect();
    world.connect();
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}

#[test]
fn a_large_loss_clears_the_state_and_a_small_one_does_not() {
    let mut world = World::new(ReplaySupport::Unavailable, Start::Immediate, 0);
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    assert_eq!(degraded(world.trust), Some(DegradedReason::Lost { missed: 1, next: 2 }));
}

#[test]
fn messages_that_waited_in_a_pause_do_not_show_what_was_dropped_in_it() {
    for replay in [ReplaySupport::Unavailable, ReplaySupport::OnReconnect] {
        let mut world = World::new(replay, Start::Immediate, 100);
        world.connect();
        (0..6).for_each(|_| world.publish());
        world.deliver();
        assert!(world.is_exact());
        world.pause(2);
        (0..3).for_each(|_| world.deliver());
        assert_eq!((world.applied.len(), world.pending), (4, Some(PendingReason::TailLost)));
        world.now += Duration::from_secs(20);
        world.publish();
        world.deliver();
        assert_eq!(degraded(world.trust), Some(DegradedReason::Lost { missed: 2, next: 6 }));
    }
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    world.settle();
    (0..6).for_each(|_| world.publish());
    world.pause(2);
    (0..4).for_each(|_| world.deliver());
    assert!(!world.is_exact());
    world.settle();
    assert!(world.is_exact(), "the reply was requested after the pause");
    assert_eq!(world.applied, world.whole_epoch());
}
