//! Batches through a relay: the service reads the same changes of its index as from the engine, without tokens.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies, SequenceHash};
use flash_indexer_relay::{Hasher, HasherOptions};
use flash_indexer_sim::Recording;
use flash_indexer_test_support::{event_vectors, testdata};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, Encoding, EngineAdapter, EngineEvent, EventError, ExtraKey, SkippedBlocks, TokenIds,
    Translation, Translator, TranslatorOptions, encode_batch,
};

fn options(block_size: u32) -> HasherOptions {
    HasherOptions {
        block_size: BlockSize::new(block_size).expect("not zero"),
        lora_name: None,
        adapter: EngineAdapter::Detect,
        has_salts: true,
    }
}

fn translator(block_size: u32) -> Translator {
    Translator::new(TranslatorOptions {
        block_size: BlockSize::new(block_size).expect("not zero"),
        lora_name: None,
        removed_copies: RemovedCopies::One,
        cache_tier: None,
    })
}

/// The service's result for each event of a batch: the changes of its index, or the reason for which it rejects the event.
type Outcome = Result<(Translation, Option<String>), &'static str>;

fn outcomes(translator: &mut Translator, payload: &[u8]) -> Vec<Outcome> {
    let batch = EngineAdapter::Detect.batch(payload).expect("a batch");
    let translate = |event: Result<EngineEvent<'_>, EventError>| {
        let event = event.map_err(|error| error.reason())?;
        let changes = translator.translate(&event).map_err(|error| error.reason())?;
        Ok((changes, translator.adapter_salt().lora_name().map(str::to_owned)))
    };
    batch.events.map(translate).collect()
}

fn encode(events: &[EngineEvent<'_>]) -> Vec<u8> {
    encode_batch(1.0, events, Some(DpRank(0)), Encoding::Map)
}

#[test]
fn every_recorded_stream_has_the_same_changes_through_a_relay() {
    let folder = std::fs::read_dir(testdata().join("engines")).expect("the folder of streams");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    let (mut events, mut stores) = (0, 0);
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")) {
        let recording = Recording::open(&path).expect("a recording");
        let block_size = recording.block_size.tokens();
        for &rank in &recording.dp_ranks {
            let mut hasher = Hasher::new(options(block_size), true);
            let (mut direct, mut relayed) = (translator(block_size), translator(block_size));
            for message in recording.messages().filter(|message| message.dp_rank == rank) {
                let hashed = hasher.hash(&message.payload);
                let expected = outcomes(&mut direct, &message.payload);
                assert_eq!(outcomes(&mut relayed, &hashed), expected, "{} {}", path.display(), message.sequence);
                assert_eq!(relayed.window(), direct.window());
                assert_has_no_inputs(&hashed);
                events += expected.len();
                let batch = EngineAdapter::Detect.batch(&message.payload).expect("a batch");
                stores += batch.events.filter(|event| matches!(event, Ok(EngineEvent::Stored(_)))).count();
            }
        }
    }
    assert!(events > 1_000 && stores > 500, "{events} events, {stores} stores");
}

#[test]
fn every_written_vector_has_the_same_changes_through_a_relay() {
    for vector in event_vectors() {
        let payloads = || vector.messages.iter().map(|message| &*message.payload);
        let shown = payloads().find_map(|payload| EngineAdapter::Detect.batch(payload).ok()?.block_size());
        let block_size = shown.unwrap_or(16);
        let mut hasher = Hasher::new(options(block_size), true);
        let (mut direct, mut relayed) = (translator(block_size), translator(block_size));
        for payload in payloads() {
            let hashed = hasher.hash(payload);
            let expected = outcomes(&mut direct, payload);
            assert_eq!(outcomes(&mut relayed, &hashed), expected, "{} {}", vector.name, vector.encoding);
            assert_has_no_inputs(&hashed);
        }
    }
}

/// Asserts that no event has a field with tokens or other inputs of hashes.
fn assert_has_no_inputs(hashed: &[u8]) {
    for event in EngineAdapter::Detect.batch(hashed).expect("a batch").events {
        let Ok(EngineEvent::Stored(stored)) = event else { continue };
        assert!(matches!(&stored.token_ids, TokenIds::Hashed(_)) || stored.token_ids.is_empty(), "{stored:?}");
        assert_eq!((&stored.extra_keys, stored.cache_salt, &stored.lookahead_token_ids), (&None, None, &None));
        assert_eq!((&stored.skipped, stored.session_id, stored.lora_id), (&None, None, None));
    }
}

#[test]
fn no_byte_of_tokens_salts_or_keys_is_in_a_relayed_batch() {
    const SECRETS: [&str; 4] = ["salt-of-alice", "identity-of-an-image", "session-of-alice", "opaque-secret"];
    // Four bytes that occur nowhere else.
    let token = |at: u32| 0x5EC2_E700 + at;
    let opaque = [&[0x80 | 0x20 | 13][..], b"opaque-secret"].concat();
    let keys = |opaque| {
        let item = ExtraKey::Item { id: SECRETS[1], offset: -3 };
        Some(vec![Some(vec![item, ExtraKey::Opaque(opaque), ExtraKey::Salt(SECRETS[0])]), None])
    };
    let first = BlockStored {
        block_hashes: vec![SequenceHash(1), SequenceHash(2)],
        token_ids: TokenIds::Plain((0..4).map(token).collect()),
        block_size: 2,
        extra_keys: keys(&opaque),
        cache_salt: Some(SECRETS[0]),
        session_id: Some(SECRETS[2]),
        lookahead_token_ids: Some(vec![vec![token(9)], vec![token(10)]]),
        ..BlockStored::default()
    };
    let pairs = BlockStored {
        block_hashes: vec![SequenceHash(3)],
        parent_block_hash: Some(SequenceHash(2)),
        token_ids: TokenIds::Bigrams(vec![[token(4), token(5)], [token(5), token(6)]]),
        block_size: 2,
        skipped: Some(Box::new(SkippedBlocks {
            parent_block_hash: None,
            token_ids: TokenIds::Plain(vec![token(7), token(8)]),
            extra_keys: keys(&opaque),
        })),
        ..BlockStored::default()
    };
    let wrong_count = BlockStored { token_ids: TokenIds::Plain(vec![token(11)]), ..pairs.clone() };
    let mut payloads =
        vec![encode(&[EngineEvent::Stored(first), EngineEvent::Stored(pairs), EngineEvent::Stored(wrong_count)])];
    // A payload that is not a batch, and an event of an unknown type with tokens.
    payloads.push([&[0xce][..], &token(12).to_be_bytes()].concat());
    payloads
        .push([&[0x92, 0x01, 0x91, 0x92, 0xa3, b'N', b'e', b'w', 0x91, 0xce][..], &token(13).to_be_bytes()].concat());
    let mut hasher = Hasher::new(options(2), true);
    for payload in payloads {
        let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        let hashed = hasher.hash(&payload);
        for at in 0..14 {
            let (big, little) = (token(at).to_be_bytes(), token(at).to_le_bytes());
            assert!(!contains(&hashed, &big) && !contains(&hashed, &little), "token {at}");
        }
        assert!(contains(&payload, &token(0).to_be_bytes()[..3]), "the engine's bytes have tokens");
        for secret in SECRETS {
            assert!(!contains(&hashed, secret.as_bytes()), "{secret}");
        }
        assert_has_no_inputs(&hashed);
    }
}

fn stored(parent: Option<u64>, hash: u64, salt: Option<&'static str>) -> EngineEvent<'static> {
    EngineEvent::Stored(BlockStored {
        block_hashes: vec![SequenceHash(hash)],
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(vec![hash as u32]),
        block_size: 1,
        extra_keys: salt.map(|salt| vec![Some(vec![ExtraKey::Text(salt)])]),
        ..BlockStored::default()
    })
}

#[test]
fn a_store_after_a_block_that_the_relay_has_not_seen_is_left_out_until_a_clear() {
    // The engine has stored block 1 with a salt before the relay started.
    let before = encode(&[stored(None, 1, Some("alice"))]);
    let child = encode(&[stored(Some(1), 2, None)]);
    let known = encode(&[stored(None, 3, Some("bob")), stored(Some(3), 4, None), stored(Some(4), 5, None)]);
    let mut hasher = Hasher::new(options(1), false);
    let mut relayed = translator(1);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&child)), [Err("hash_inputs_unknown")]);
    let mut direct = translator(1);
    drop(outcomes(&mut direct, &before));
    assert_eq!(
        outcomes(&mut relayed, &hasher.hash(&known)),
        outcomes(&mut direct, &known),
        "its own sequence is known"
    );
    // The child of a store that was left out is also unknown.
    let grandchild = encode(&[stored(Some(2), 6, None)]);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&grandchild)), [Err("hash_inputs_unknown")]);
    let cleared = encode(&[EngineEvent::Cleared, stored(None, 7, None), stored(Some(7), 8, None)]);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&cleared)), outcomes(&mut direct, &cleared));
    hasher.messages_lost();
    let child = encode(&[stored(Some(8), 9, None)]);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&child)), [Err("hash_inputs_unknown")], "9 may follow a lost store");
}

#[test]
fn without_salts_a_store_after_an_unknown_block_is_hashed() {
    let child = encode(&[stored(Some(1), 2, None)]);
    let mut hasher = Hasher::new(HasherOptions { has_salts: false, ..options(1) }, false);
    let (mut relayed, mut direct) = (translator(1), translator(1));
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&child)), outcomes(&mut direct, &child));
    // A copy in host memory may still lack the keys of its block.
    let EngineEvent::Stored(copy) = stored(None, 3, None) else { unreachable!() };
    let copy = encode(&[EngineEvent::Stored(BlockStored { medium: Some("CPU"), ..copy })]);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&copy)), [Err("hash_inputs_unknown")]);
}

#[test]
fn other_events_and_their_errors_are_the_same_through_a_relay() {
    let removed = EngineEvent::Removed(BlockRemoved {
        block_hashes: vec![SequenceHash(1)],
        medium: Some("GPU"),
        remaining_copy_counts: Some(vec![1]),
        ..BlockRemoved::default()
    });
    let EngineEvent::Stored(store) = stored(None, 1, None) else { unreachable!() };
    let larger = EngineEvent::Stored(BlockStored { block_size: 4, ..store.clone() });
    let unknown_medium = EngineEvent::Stored(BlockStored { medium: Some("TAPE"), ..store.clone() });
    let long_name = "n".repeat(600);
    let adapter = EngineEvent::Stored(BlockStored { lora_name: Some(&long_name), ..store.clone() });
    let of_adapter = EngineEvent::Stored(BlockStored { lora_name: Some("a"), ..store.clone() });
    let copied = EngineEvent::Stored(BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store });
    let payload = encode(&[stored(None, 1, None), larger, unknown_medium, adapter, of_adapter, copied, removed]);
    let mut hasher = Hasher::new(options(1), true);
    let (mut relayed, mut direct) = (translator(1), translator(1));
    let expected = outcomes(&mut direct, &payload);
    assert_eq!(outcomes(&mut relayed, &hasher.hash(&payload)), expected);
    let reasons: Vec<_> = expected.iter().filter_map(|outcome| outcome.as_ref().err().copied()).collect();
    assert_eq!(reasons, ["block_size_mismatch", "unknown_medium", "adapter_name_too_long"]);
}
