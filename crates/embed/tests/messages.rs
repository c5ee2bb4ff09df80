//! Engine messages: sequence numbers, replays, rejected events and trust.

use std::time::{Duration, Instant};

use flash_indexer_core::hashing::{BlockSize, HashVariant};
use flash_indexer_core::{DpRank, SequenceHash, Tier, WorkerId, WorkerRank};
use flash_indexer_embed::{
    EmbedError, EmbeddedIndex, EngineOptions, MessageReport, RANKS_PER_STREAM_MAX, RankTrust, TrustState,
};
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, ReplaySupport, TokenIds, encode_batch};

const BLOCK_TOKENS: u32 = 2;
const RANK: WorkerRank = WorkerRank { worker: WorkerId(7), dp_rank: DpRank(0) };

/// Tokens of a block by number.
fn block(number: u32) -> [u32; BLOCK_TOKENS as usize] {
    [10 * number, 10 * number + 1]
}

fn tokens(blocks: std::ops::Range<u32>) -> Vec<u32> {
    blocks.flat_map(block).collect()
}

/// A store of blocks that follow each other. A block's number is its sequence hash.
fn stored(blocks: std::ops::Range<u32>) -> BlockStored<'static> {
    let parent = blocks.start.checked_sub(1).filter(|&parent| parent > 0);
    BlockStored {
        block_hashes: blocks.clone().map(|number| SequenceHash(number.into())).collect(),
        parent_block_hash: parent.map(|number| SequenceHash(number.into())),
        token_ids: TokenIds::Plain(tokens(blocks)),
        block_size: BLOCK_TOKENS,
        ..BlockStored::default()
    }
}

fn payload(event: EngineEvent<'_>) -> Vec<u8> {
    encode_batch(1.0, &[event], None, Encoding::Map)
}

fn store(blocks: std::ops::Range<u32>) -> Vec<u8> {
    payload(EngineEvent::Stored(stored(blocks)))
}

struct Fleet(EmbeddedIndex);

impl Fleet {
    fn with(options: EngineOptions) -> Self {
        let index = EmbeddedIndex::new(BlockSize::new(BLOCK_TOKENS).expect("not zero"));
        index.register(RANK.worker, options).expect("registered");
        Self(index)
    }

    fn new() -> Self {
        Self::with(EngineOptions::default())
    }

    fn live(&self, sequence: u64, payload: &[u8]) -> MessageReport {
        self.0.apply_payload(RANK, sequence, payload, Instant::now()).expect("a registered instance")
    }

    fn trust(&self) -> RankTrust {
        self.0.trust(RANK).expect("registered").expect("a rank")
    }

    /// State of the rank on its own. Every answer with the rank must have the same state.
    fn state(&self) -> TrustState {
        let state = self.trust().state;
        let found = self.0.find_tokens(HashVariant::default(), &tokens(1..100), None).expect("an answer");
        assert!(found.iter().all(|found| found.trust == state), "{found:?} {state:?}");
        state
    }

    /// Leading blocks 1, 2, … that the rank holds in any tier.
    fn depth(&self) -> u32 {
        let found = self.0.find_tokens(HashVariant::default(), &tokens(1..100), None).expect("an answer");
        found.first().map_or(0, |found| found.blocks[Tier::External])
    }

    fn why(&self) -> String {
        self.trust().why.expect("it is not exact")
    }
}

#[test]
fn a_stream_from_its_first_message_on_is_exact() {
    let fleet = Fleet::new();
    assert_eq!(fleet.0.trust(RANK), Ok(None), "no message yet");
    let report = fleet.live(0, &store(1..4));
    assert_eq!((report.messages, report.applied.stored, fleet.state(), fleet.depth()), (1, 3, TrustState::Exact, 3));
    let repeated = fleet.live(0, &store(1..4));
    assert_eq!((repeated.messages, repeated.duplicates, fleet.state()), (0, 1, TrustState::Exact));
}

#[test]
fn a_gap_degrades_a_rank_until_its_engine_restarts() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    let report = fleet.live(3, &store(4..6));
    assert_eq!((report.missed_messages, report.lost_messages, fleet.depth()), (2, 2, 5));
    assert_eq!((fleet.state(), fleet.why()), (TrustState::Degraded, "2 messages were lost before number 3".into()));
    let restarted = fleet.live(0, &store(1..2));
    assert!(restarted.cleared.is_some());
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 1), "the message may have arrived late");
    fleet.live(1, &store(2..3));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Exact, 2));
}

#[test]
fn an_engine_that_ran_before_the_first_message_is_degraded_until_its_cache_is_cleared() {
    let fleet = Fleet::new();
    fleet.live(5, &store(1..4));
    assert_eq!(fleet.state(), TrustState::Degraded);
    fleet.live(6, &payload(EngineEvent::Cleared));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Exact, 0));
}

#[test]
fn missing_messages_are_requested_and_applied_in_order() {
    let fleet = Fleet::with(EngineOptions { replay: ReplaySupport::Available, ..EngineOptions::default() });
    let report = fleet.live(2, &store(5..7));
    let request = report.replay.expect("a request");
    assert_eq!((request.from, report.messages, fleet.state(), fleet.depth()), (0, 0, TrustState::Recovering, 0));
    let reply = |sequence: u64, payload: Vec<u8>| vec![Vec::new(), sequence.to_be_bytes().to_vec(), payload];
    let apply = |frames: Vec<Vec<u8>>| fleet.0.apply_replayed(RANK, request.attempt, &frames, Instant::now());
    assert_eq!(apply(reply(0, store(1..3))).expect("applied").messages, 1);
    let report = apply(reply(1, store(3..5))).expect("applied");
    assert_eq!((report.messages, fleet.state(), fleet.depth()), (2, TrustState::Exact, 6), "the live one follows");
}

#[test]
fn a_replay_without_a_reply_is_requested_again() {
    let fleet = Fleet::with(EngineOptions { replay: ReplaySupport::Available, ..EngineOptions::default() });
    let start = Instant::now();
    let first = fleet.0.connected(RANK, start).expect("registered").replay.expect("a request");
    let mut now = start;
    let second = (0..100).find_map(|_| {
        now += Duration::from_secs(1);
        fleet.0.tick(RANK, now).expect("registered").replay
    });
    assert!(second.is_some_and(|second| second.attempt > first.attempt));
}

#[test]
fn a_lost_connection_without_a_replay_degrades_the_rank() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    fleet.0.disconnected(RANK, Instant::now()).expect("registered");
    assert_eq!(fleet.state(), TrustState::Degraded);
    fleet.live(1, &store(4..5));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 4));
}

#[test]
fn a_rejected_event_is_reported_and_degrades_its_rank_until_a_clear() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    let wrong_size = BlockStored { block_size: 3, ..stored(4..5) };
    let events =
        [EngineEvent::Stored(wrong_size.clone()), EngineEvent::Stored(wrong_size), EngineEvent::Stored(stored(4..5))];
    let report = fleet.live(1, &encode_batch(1.0, &events, None, Encoding::Map));
    let rejection = &report.rejections[0];
    assert_eq!((report.rejections.len(), rejection.reason, rejection.count), (1, "block_size_mismatch", 2));
    assert!(rejection.message.contains("register it with block_size 3"), "{}", rejection.message);
    assert_eq!(
        (report.applied.stored, fleet.state(), fleet.why()),
        (1, TrustState::Degraded, rejection.message.clone())
    );
    fleet.live(2, &payload(EngineEvent::Cleared));
    assert_eq!(fleet.state(), TrustState::Exact);
}

#[test]
fn an_unknown_medium_leaves_the_tiers_exact() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    let removed = BlockRemoved { block_hashes: vec![SequenceHash(3)], medium: Some("TAPE"), ..BlockRemoved::default() };
    let report = fleet.live(1, &payload(EngineEvent::Removed(removed)));
    assert_eq!(report.rejections[0].reason, "unknown_medium");
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Exact, 3));
}

#[test]
fn a_message_that_cannot_be_decoded_counts_as_lost() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    let report = fleet.live(1, b"no batch");
    assert_eq!((report.rejections[0].reason, fleet.state()), ("not_a_batch", TrustState::Degraded));
    let frames: [&[u8]; 4] = [b"", b"", b"", b""];
    let report = fleet.0.apply_frames(RANK, &frames, Instant::now()).expect("registered");
    assert_eq!(report.rejections[0].reason, "bad_frames");
    let report = fleet.live(2, &store(4..5));
    assert_eq!((report.lost_messages, fleet.state(), fleet.depth()), (1, TrustState::Degraded, 4));
}

#[test]
fn messages_without_sequence_numbers_are_never_exact() {
    let fleet = Fleet::new();
    let frames = [b"kv-events".to_vec(), store(1..4)];
    let report = fleet.0.apply_frames(RANK, &frames, Instant::now()).expect("registered");
    assert_eq!((report.messages, fleet.state(), fleet.depth()), (1, TrustState::Degraded, 3));
    assert!(fleet.why().contains("no sequence numbers"));
}

#[test]
fn an_engine_whose_events_lack_hash_inputs_is_never_exact() {
    let fleet = Fleet::with(EngineOptions { extra_keys: true, ..EngineOptions::default() });
    fleet.live(0, &store(1..4));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 3));
    fleet.live(1, &payload(EngineEvent::Cleared));
    fleet.live(2, &store(1..2));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 1));
}

#[test]
fn blocks_that_wait_for_a_parent_degrade_their_rank_until_it_is_stored() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..3));
    fleet.live(1, &store(4..6));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 2));
    assert!(fleet.why().starts_with("2 blocks follow a parent"));
    fleet.live(2, &store(3..4));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Exact, 5));
}

#[test]
fn a_rank_that_two_streams_name_is_degraded() {
    let fleet = Fleet::new();
    let second = WorkerRank { dp_rank: DpRank(1), ..RANK };
    fleet.live(0, &store(1..3));
    let names_first = encode_batch(1.0, &[EngineEvent::Stored(stored(3..4))], Some(DpRank(0)), Encoding::Map);
    let report = fleet.0.apply_payload(second, 0, &names_first, Instant::now()).expect("registered");
    assert_eq!(report.rejections[0].reason, "rank_of_other_stream");
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Degraded, 2));
    assert_eq!(fleet.0.trust(second).expect("registered").expect("a rank").state, TrustState::Degraded);
    // The other way round: the stream of rank 0 has published batches of rank 2.
    let names_third = encode_batch(1.0, &[EngineEvent::Stored(stored(1..2))], Some(DpRank(2)), Encoding::Map);
    fleet.live(1, &names_third);
    let third = WorkerRank { dp_rank: DpRank(2), ..RANK };
    let refused = fleet.0.apply_payload(third, 0, &store(1..2), Instant::now());
    assert_eq!(refused, Err(EmbedError::RankOfOtherStream { rank: 2, owner: 0 }));
}

#[test]
fn a_stream_with_too_many_ranks_rejects_the_batches_of_further_ones() {
    let fleet = Fleet::new();
    let named = |rank: usize| {
        let event = EngineEvent::Stored(stored(1..2));
        encode_batch(1.0, &[event], Some(DpRank(rank as u32)), Encoding::Map)
    };
    for rank in 0..RANKS_PER_STREAM_MAX {
        assert_eq!(fleet.live(rank as u64, &named(rank)).rejections, []);
    }
    let report = fleet.live(RANKS_PER_STREAM_MAX as u64, &named(RANKS_PER_STREAM_MAX));
    assert_eq!((report.rejections[0].reason, report.applied.stored), ("too_many_ranks", 0));
    let refused = WorkerRank { dp_rank: DpRank(RANKS_PER_STREAM_MAX as u32), ..RANK };
    assert_eq!(fleet.0.trust(refused), Ok(None), "it is in no answer");
    assert_eq!(fleet.state(), TrustState::Exact);
}

#[test]
fn speculative_windows_are_found_by_tokens_beside_plain_ones() {
    let fleet = Fleet::new();
    let prompt = tokens(1..4);
    let pairs = prompt.windows(2).map(|pair| [pair[0], pair[1]]).take(4).collect();
    let bigrams = BlockStored { token_ids: TokenIds::Bigrams(pairs), ..stored(1..3) };
    fleet.live(0, &payload(EngineEvent::Stored(bigrams)));
    assert_eq!(fleet.depth(), 2, "only the window of the next token is in use");
    let other = WorkerRank { worker: WorkerId(8), ..RANK };
    fleet.0.register(other.worker, EngineOptions::default()).expect("registered");
    fleet.0.apply_payload(other, 0, &store(1..4), Instant::now()).expect("registered");
    for top_k in [None, Some(5)] {
        let mut found = fleet.0.find_tokens(HashVariant::default(), &prompt, top_k).expect("an answer");
        found.sort_by_key(|found| found.rank);
        let depths: Vec<_> = found.iter().map(|found| (found.rank, found.blocks[Tier::Device])).collect();
        assert_eq!(depths, [(RANK, 2), (other, 3)]);
    }
    let deepest = fleet.0.find_tokens(HashVariant::default(), &prompt, Some(1)).expect("an answer");
    assert_eq!(deepest[0].rank, other);
}

#[test]
fn an_unregistered_instance_is_in_no_answer_and_its_late_messages_fail() {
    let fleet = Fleet::new();
    fleet.live(0, &store(1..4));
    fleet.0.unregister(RANK.worker).expect("registered");
    let late = fleet.0.apply_payload(RANK, 1, &store(4..5), Instant::now());
    assert_eq!(late, Err(EmbedError::NotRegistered(RANK.worker)));
    assert_eq!(fleet.0.unregister(RANK.worker), Err(EmbedError::NotRegistered(RANK.worker)));
    assert_eq!((fleet.depth(), fleet.0.sizes(), fleet.0.instances()), (0, Ok(vec![]), vec![]));
    fleet.0.register(RANK.worker, EngineOptions::default()).expect("registered");
    assert_eq!(fleet.depth(), 0);
    fleet.live(0, &store(1..2));
    assert_eq!((fleet.state(), fleet.depth()), (TrustState::Exact, 1));
    let again = fleet.0.register(RANK.worker, EngineOptions::default());
    assert_eq!(again, Err(EmbedError::AlreadyRegistered(RANK.worker)));
}
