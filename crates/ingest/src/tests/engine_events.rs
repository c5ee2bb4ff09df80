//! Effects of the written vectors of engine events on the index and on trust, from the socket on.

use std::collections::BTreeMap;

use crossbeam_channel::bounded;
use flash_indexer_core::groups::{GroupChange, GroupEvent};
use flash_indexer_core::hashing::{HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{SequenceHash, SharedIndex, Tier, WorkerRank};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_test_support::{EventVector, event_vectors};
use flash_indexer_types::Trust;
use flash_indexer_wire::{BlockTransferred, Encoding, EngineEvent, encode_batch};

use crate::tests::fixture::{Fixture, PATIENCE, RANK, chain_stored, payload};
use crate::{DecoderState, Delivery, ModelSink};

/// Every encoding of a vector.
fn vectors(name: &str) -> Vec<EventVector> {
    let found: Vec<_> = event_vectors().into_iter().filter(|vector| vector.name == name).collect();
    assert!(!found.is_empty(), "no vector {name:?}");
    found
}

/// Publishes the messages of a vector after the first message of an engine, which stores block 1.
fn publish(vector: &EventVector, trust: Trust) -> Fixture {
    let fixture = Fixture::start(1, false);
    for (sequence, message) in (1..).zip(&vector.messages) {
        fixture.engines[0].publish(sequence, &message.payload).expect("published");
    }
    fixture.wait(0, vector.messages.len() as u64, trust);
    fixture
}

/// Copies of each block of the vector in each tier.
fn held(fixture: &Fixture) -> BTreeMap<u64, [u32; 4]> {
    let listener = fixture.listener(0);
    let held = listener.model.index().held(WorkerRank { worker: listener.worker, dp_rank: RANK });
    held.into_iter().filter(|block| block.sequence.0 != 1).map(|block| (block.sequence.0, block.copies.0)).collect()
}

/// Publishes every encoding of a vector, and compares the blocks that the rank holds.
fn check(name: &str, trust: Trust, expected: &[(u64, [u32; 4])]) {
    for vector in vectors(name) {
        let fixture = publish(&vector, trust);
        assert_eq!(held(&fixture), expected.iter().copied().collect(), "{name} ({})", vector.encoding);
    }
}

/// Like [`check`], for an event that does not show all of its effects and is counted as rejected.
fn check_rejected(name: &str, reason: &str, expected: &[(u64, [u32; 4])]) {
    check(name, Trust::Degraded, expected);
    for vector in vectors(name) {
        let fixture = publish(&vector, Trust::Degraded);
        assert_eq!(fixture.listener(0).report(RANK).rejected.get(reason), Some(&1), "{name} ({})", vector.encoding);
    }
}

#[test]
fn a_clear_of_a_medium_removes_its_tier_only() {
    check("a clear of a medium", Trust::Exact, &[(10, [0, 1, 0, 0]), (11, [0, 1, 0, 0])]);
    // As in every event, an empty medium is that of the device.
    check("a clear of an empty medium", Trust::Exact, &[(10, [0, 1, 0, 0]), (11, [0, 1, 0, 0])]);
}

#[test]
fn a_clear_of_a_managers_blocks_leaves_the_other_copies() {
    check("a clear of a manager's blocks", Trust::Exact, &[(10, [1, 1, 0, 0]), (11, [1, 0, 0, 0])]);
}

#[test]
fn a_clear_of_a_cache_group_leaves_the_other_groups() {
    for vector in vectors("a clear of a cache group") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture), BTreeMap::from([(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]));
        let listener = fixture.listener(0);
        let rank = WorkerRank { worker: listener.worker, dp_rank: RANK };
        let stores = listener.model.index().secondary_stores(rank);
        let is_empty =
            |change: &GroupChange| matches!(&change.event, GroupEvent::Stored { blocks, .. } if blocks.is_empty());
        assert!(stores.len() == 1 && stores.iter().all(is_empty), "{stores:?}");
    }
}

#[test]
fn a_cache_group_with_larger_blocks_counts_in_its_own_blocks() {
    for vector in vectors("a cache group with larger blocks") {
        let whole = EventVector { messages: vector.messages[..1].to_vec(), ..vector.clone() };
        let fixture = publish(&whole, Trust::Exact);
        assert_eq!([4, 3, 2, 1].map(|tokens| depth(&fixture, tokens, None)), [4, 2, 2, 0], "({})", vector.encoding);
        assert_eq!(fixture.listener(0).report(RANK).rejected, BTreeMap::new());
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(depth(&fixture, 4, None), 2, "the second block of the group is removed ({})", vector.encoding);
    }
}

#[test]
fn a_cache_group_whose_block_size_changes_degrades_the_rank() {
    let device = [1, 0, 0, 0];
    let expected = [10, 11, 12, 13].map(|block| (block, device));
    check_rejected("a cache group whose block size changes", "block_size_mismatch", &expected);
}

#[test]
fn a_clear_of_an_unknown_cache_group_changes_nothing_and_degrades_the_rank() {
    let device = [1, 0, 0, 0];
    check_rejected("a clear of a cache group that no store named", "hybrid_group", &[(10, device), (11, device)]);
}

#[test]
fn a_clear_of_an_unknown_medium_changes_nothing() {
    for vector in vectors("a clear of an unknown medium") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture), BTreeMap::from([(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]));
        assert_eq!(fixture.listener(0).report(RANK).rejected.get("unknown_medium"), Some(&1));
    }
}

#[test]
fn a_clear_of_a_manager_whose_blocks_are_unknown_degrades_the_rank() {
    for vector in vectors("a clear of a manager's blocks") {
        let fixture = Fixture::start(1, false);
        let listener = fixture.held("tcp://127.0.0.1:9");
        fixture.decoders.deliver(&listener, Delivery::RestoreDecoderState(RANK, DecoderState::default()));
        listener.hold().release(RANK, None);
        let (done, released) = bounded(1);
        fixture.decoders.deliver(&listener, Delivery::Release(done));
        released.recv_timeout(PATIENCE).expect("released");
        for (sequence, message) in (0..).zip(&vector.messages) {
            let frames = vec![b"t".to_vec(), u64::to_be_bytes(sequence).to_vec(), message.payload.clone()];
            fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        }
        fixture.wait(1, 1, Trust::Degraded);
        assert_eq!(listener.report(RANK).rejected.get("manager_unknown"), Some(&1));
        let metrics = fixture.models[0].metrics();
        assert_eq!(metrics.limit_reached_count(Limit::ManagedCopies), 1);
    }
}

#[test]
fn an_unknown_field_is_counted_once_in_a_stream() {
    for vector in vectors("unknown fields") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture), BTreeMap::from([(10, [1, 0, 0, 0]), (12, [1, 0, 0, 0])]));
        let metrics = fixture.models[0].metrics();
        assert_eq!(["BlockStored", "BlockRemoved"].map(|event| metrics.unknown_fields_count(event)), [1, 1]);
    }
}

#[test]
fn unknown_fields_above_the_limit_are_counted_as_such() {
    let fixture = Fixture::start(1, false);
    for sequence in 1..=9_u8 {
        // One clear with eight unknown fields.
        let mut event = b"\x89\xa4type\xb0AllBlocksCleared".to_vec();
        event.extend((0..8).flat_map(|field| [0xa2, b'a' + sequence, b'a' + field, 0xc0]));
        let payload = [b"\x92\x00\x91", &event[..]].concat();
        fixture.engines[0].publish(sequence.into(), &payload).expect("published");
    }
    fixture.wait(0, 9, Trust::Exact);
    let metrics = fixture.models[0].metrics();
    assert_eq!(metrics.unknown_fields_count("AllBlocksCleared"), 64);
    assert_eq!(metrics.limit_reached_count(Limit::UnknownFields), 8);
}

/// Usable depth of the chain 10, 11, … in device memory, with this salt.
fn depth(fixture: &Fixture, blocks: u32, salt: Option<&str>) -> u32 {
    let listener = fixture.listener(0);
    let tokens: Vec<u32> = (10..10 + blocks).collect();
    let block_size = listener.model.block_size();
    let query = local_hashes(HashVariant::new(None, salt), &tokens, block_size, TokenWindow::Block);
    let rank = WorkerRank { worker: listener.worker, dp_rank: RANK };
    listener.model.index().find(&query).get(rank).map_or(0, |found| found.blocks[Tier::Device])
}

#[test]
fn published_counts_of_copies_replace_counting() {
    // Three copies of each: the counts leave two, one and none. A removal without a count ends one copy.
    check("copies that are left", Trust::Exact, &[(10, [2, 0, 0, 0])]);
    // The engine has more copies than it has published, and those of block 77 are of unknown content.
    check("more copies than were published", Trust::Degraded, &[(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]);
    check("copies that are left in a tier without copies", Trust::Exact, &[(10, [0, 2, 0, 0])]);
}

#[test]
fn a_reused_block_is_no_further_copy() {
    // Of block 12, only the reuse is known; blocks 10 and 11 have two copies.
    check("reused blocks", Trust::Exact, &[(10, [2, 0, 0, 0]), (11, [1, 0, 0, 0])]);
}

#[test]
fn an_inactive_block_is_still_held() {
    for vector in vectors("inactive blocks") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture), BTreeMap::from([(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]));
        assert_eq!(fixture.models[0].metrics().inactive_blocks_count(), 2);
    }
}

#[test]
fn a_transferred_block_changes_its_tier_and_keeps_its_content() {
    let expected = [(10, [1, 0, 0, 0]), (11, [0, 1, 0, 0]), (12, [0, 0, 1, 0])];
    check("transferred blocks", Trust::Exact, &expected);
    for vector in vectors("blocks transferred to an unknown medium") {
        let fixture = publish(&vector, Trust::Degraded);
        assert_eq!(fixture.listener(0).report(RANK).rejected.get("unknown_medium"), Some(&1));
    }
}

#[test]
fn blocks_from_an_unknown_medium_are_copies_of_known_content() {
    let both = [1, 1, 0, 0];
    check("blocks transferred from an unknown medium", Trust::Exact, &[(10, both), (11, both)]);
    check_rejected("unknown blocks transferred from an unknown medium", "no_token_ids", &[(10, [1, 0, 0, 0])]);
}

/// Moves the first of two copies of block 10 from device to host memory, for an engine that publishes the removal of the last
/// copy only.
#[test]
fn a_move_of_one_of_several_copies_degrades_the_rank_of_an_engine_that_publishes_the_last_removal_only() {
    for (stores, trust) in [(1, Trust::Exact), (2, Trust::Degraded)] {
        let fixture = Fixture::start(1, false);
        let listener = fixture.of_last_copies("tcp://127.0.0.1:9");
        fixture.decoders.deliver(&listener, Delivery::Connected);
        let transferred = BlockTransferred {
            block_hashes: vec![SequenceHash(10)],
            from_medium: Some("GPU"),
            to_medium: Some("CPU"),
            group_idx: None,
        };
        let events = (0..stores).map(|_| chain_stored(None, 10, 1)).chain([EngineEvent::Transferred(transferred)]);
        let message = encode_batch(1.0, &events.collect::<Vec<_>>(), None, Encoding::Map);
        let frames = vec![b"t".to_vec(), 0_u64.to_be_bytes().to_vec(), message];
        fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        fixture.wait(1, 0, trust);
        let rejected = listener.report(RANK).rejected.get("moved_copies_unknown").copied();
        assert_eq!(rejected, (trust == Trust::Degraded).then_some(1), "{stores} copies");
    }
}

#[test]
fn a_block_after_skipped_ancestors_has_their_salt() {
    for vector in vectors("skipped ancestors with a salt") {
        // Salted blocks were stored while another waited for its parent.
        let fixture = publish(&vector, Trust::Degraded);
        assert_eq!((depth(&fixture, 4, Some("tenant")), depth(&fixture, 4, None)), (4, 0), "{}", vector.encoding);
    }
}

#[test]
fn a_block_that_lost_a_component_is_still_held() {
    for vector in vectors("components") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture).len(), 3);
        assert_eq!(depth(&fixture, 3, None), 2, "the last block has no recurrent state: {}", vector.encoding);
    }
    for vector in vectors("a removal of a block with components") {
        let fixture = publish(&vector, Trust::Exact);
        assert_eq!(held(&fixture), BTreeMap::from([(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]));
        assert_eq!(depth(&fixture, 3, None), 2, "{}", vector.encoding);
    }
    for vector in vectors("a component with an unknown window") {
        let fixture = publish(&vector, Trust::Degraded);
        assert_eq!(depth(&fixture, 2, None), 2, "{}", vector.encoding);
    }
}

#[test]
fn an_event_of_a_whole_block_changes_its_components() {
    for (name, depths) in [
        ("a clear of a manager's blocks with components", 0),
        ("a removal of the last copy of a block with components", 1),
    ] {
        check(name, Trust::Exact, &[(10, [1, 0, 0, 0]), (11, [1, 0, 0, 0])]);
        for vector in vectors(name) {
            assert_eq!(depth(&publish(&vector, Trust::Exact), 2, None), depths, "{name} ({})", vector.encoding);
        }
    }
    let device = [1, 0, 0, 0];
    check_rejected(
        "copies that are left of a block with components",
        "components_unknown",
        &[(10, device), (11, device)],
    );
    let host = [0, 1, 0, 0];
    check_rejected("a transfer of blocks with components", "components_unknown", &[(10, host), (11, host)]);
}

#[test]
fn a_clear_of_a_manager_whose_copies_are_in_doubt_keeps_the_engines_copies_and_degrades_the_rank() {
    let both = [1, 1, 0, 0];
    check_rejected("copies that are left of two holders", "manager_unknown", &[(10, both)]);
    check_rejected("a transfer of a manager's blocks", "manager_unknown", &[(10, [1, 1, 1, 0])]);
    check_rejected("a transfer of blocks of an unknown manager", "manager_unknown", &[(10, [1, 2, 0, 0])]);
    check_rejected("a reuse of the engine's blocks by a manager", "manager_unknown", &[(10, both)]);
    check_rejected("a removal of a manager's blocks that names no manager", "manager_unknown", &[(10, both)]);
}

#[test]
fn a_block_that_lost_its_full_attention_is_not_held() {
    for vector in vectors("components") {
        let fixture = publish(&vector, Trust::Exact);
        // The last message, with the recurrent state in place of full attention.
        let last = &vector.messages.last().expect("a message").payload;
        let full = b"\x91\xa4FULL";
        let at = last.windows(full.len()).position(|bytes| bytes == full).expect("a list of components");
        let without_full = [&last[..at], b"\x91\xa5MAMBA", &last[at + full.len()..]].concat();
        fixture.engines[0].publish(vector.messages.len() as u64 + 1, &without_full).expect("published");
        fixture.wait(0, vector.messages.len() as u64 + 1, Trust::Exact);
        assert_eq!((held(&fixture).len(), depth(&fixture, 3, None)), (2, 2), "{}", vector.encoding);
    }
}

/// Publishes a message without a sequence number, which stores one block.
fn publish_unnumbered(fixture: &Fixture, hash: u64, topic: Option<&[u8]>) {
    let listener = fixture.listener(1);
    let frames = topic.map(<[u8]>::to_vec).into_iter().chain([payload(hash)]).collect();
    fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
}

#[test]
fn a_stream_without_sequence_numbers_is_never_exact() {
    for topic in [None, Some(&b"kv@pod@model"[..])] {
        let fixture = Fixture::start(1, false);
        let listener = fixture.unconnected("tcp://127.0.0.1:9", None);
        fixture.decoders.deliver(&listener, Delivery::Connected);
        (10..13).for_each(|hash| publish_unnumbered(&fixture, hash, topic));
        fixture.wait(1, 2, Trust::Degraded);
        assert_eq!(fixture.held_blocks(), 1 + 3);
        let last_error = listener.report(RANK).last_error.expect("a reason");
        assert!(last_error.contains("no sequence numbers"), "{last_error}");

        // A clear makes no rank of the stream exact, and neither do numbered messages.
        let cleared = encode_batch(1.0, &[EngineEvent::Cleared], None, Encoding::Map);
        fixture.decoders.deliver(&listener, Delivery::Live(vec![vec![cleared]]));
        fixture.wait(1, 3, Trust::Degraded);
        assert_eq!(fixture.held_blocks(), 1);
        let numbered = vec![b"t".to_vec(), 4_u64.to_be_bytes().to_vec(), payload(20)];
        fixture.decoders.deliver(&listener, Delivery::Live(vec![numbered]));
        publish_unnumbered(&fixture, 21, topic);
        fixture.wait(1, 4, Trust::Degraded);
        assert_eq!(listener.report(RANK).rejected.get("bad_frames"), Some(&1));
        assert_eq!(fixture.models[0].metrics().unnumbered_streams_count(), 1);
    }
}

#[test]
fn an_unnumbered_message_of_a_numbered_stream_stays_lost_until_the_cache_is_cleared() {
    for has_replay in [false, true] {
        let fixture = Fixture::start(1, has_replay);
        let (engine, listener) = (&fixture.engines[0], fixture.listener(0));
        let frames = vec![b"t".to_vec(), payload(10)];
        fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        for sequence in 1..3 {
            engine.publish(sequence, &payload(20 + sequence)).expect("published");
            fixture.wait(0, sequence, Trust::Degraded);
        }
        assert_eq!(listener.report(RANK).rejected.get("bad_frames"), Some(&1));
        assert_eq!(fixture.held_blocks(), 1 + 2, "the message is not applied");
        let cleared = encode_batch(1.0, &[EngineEvent::Cleared], None, Encoding::Map);
        engine.publish(3, &cleared).expect("published");
        fixture.wait(0, 3, Trust::Exact);
    }
}

#[test]
fn a_stream_without_sequence_numbers_starts_over_with_a_new_connection() {
    let fixture = Fixture::start(1, false);
    let listener = fixture.unconnected("tcp://127.0.0.1:9", None);
    fixture.decoders.deliver(&listener, Delivery::Connected);
    (10..13).for_each(|hash| publish_unnumbered(&fixture, hash, None));
    fixture.wait(1, 2, Trust::Degraded);
    fixture.decoders.disconnect(&listener);
    fixture.decoders.deliver(&listener, Delivery::Connected);
    publish_unnumbered(&fixture, 20, None);
    fixture.wait(1, 0, Trust::Degraded);
    assert_eq!(fixture.held_blocks(), 1 + 1, "the engine may have restarted");
}
