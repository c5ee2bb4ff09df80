//! Whole histories: a stream without one is not exact, and a reply must meet conditions to be one.

use flash_indexer_wire::{
    ClearReason, Cursor, DegradedReason, PendingReason, ReplaySupport, Start, StreamEvent, StreamPosition, StreamTrust,
};

use super::degraded_by_silence;
use super::world::{World, degraded, payload};

#[test]
fn the_whole_history_is_requested_for_an_imported_rank_that_lacks_changes() {
    let mut world = World::new(ReplaySupport::Available, Start::Paused, 100);
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
    assert_eq!(degraded(world.trust), Some(DegradedReason::Lost { missed: 1, next: 2 }));
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
fn messages_before_the_first_contact_are_not_a_gap() {
    let is_gap = |event: &StreamEvent| matches!(event, StreamEvent::Gap { .. });
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    (0..9).for_each(|_| world.publish());
    world.connect();
    let (attempt, _) = world.request.expect("a request");
    for sequence in 0..9 {
        world.stream.replayed(attempt, sequence, payload(0, sequence), world.now);
        world.run();
        assert_eq!(world.pending, Some(PendingReason::Recovering { end: None }), "after message {sequence}");
    }
    world.stream.replay_ended(attempt, world.now);
    world.run();
    assert!(world.is_exact());
    assert_eq!(world.applied, world.whole_epoch());
}

#[test]
fn a_history_that_cannot_be_replayed_is_not_exact_and_is_requested_again() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
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
fn an_epoch_that_could_not_be_verified_is_verified_later_without_a_further_message() {
    let mut world = World::new(ReplaySupport::Available, Start::Immediate, 100);
    world.connect();
    world.reply(u64::MAX);
    world.publish();
    world.deliver();
    world.restart();
    (0..2).for_each(|_| world.publish());
    world.connect();
    world.pass_time_until_given_up();
    assert_eq!(degraded(world.trust), Some(DegradedReason::Unverified));
    world.pass_time();
    world.reply(u64::MAX);
    world.reply(u64::MAX);
    assert_eq!((world.applied.clone(), world.is_exact()), (world.whole_epoch(), true));
}
