//! Tolerance of the decoder: formats besides the recorded ones, and malformed input.

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::rank_blocks::RankBlockLimits;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{DpRank, PrefixIndex, RemovedCopies, SequenceHash, WorkerId, WorkerRank};
use flash_indexer_designs::RadixTree;
use flash_indexer_wire::{
    BATCH_EVENTS_MAX, BatchError, Components, EngineAdapter, EngineEvent, EventError, ExtraKey, FrameError,
    LiveMessage, RemovalReason, ReplayReply, ScopedClear, StoreOrigin, TokenIds, Translator, TranslatorOptions,
    decode_batch,
};
use proptest::prelude::*;
use rmpv::Value;

use crate::messages::{check_batch, play};

fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn map<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).expect("a Vec takes bytes");
    out
}

fn batch_of(events: impl IntoIterator<Item = Value>) -> Vec<u8> {
    encoded(&list([Value::F64(1.5), list(events), Value::from(3)]))
}

fn stored(fields: impl IntoIterator<Item = Value>) -> Value {
    list([Value::from("BlockStored")].into_iter().chain(fields))
}

/// A small valid event.
fn good() -> Value {
    stored([list([7.into()]), Value::Nil, list([1.into(), 2.into()]), 2.into()])
}

/// Decodes one event of a batch with a valid event on either side.
fn one(event: Value) -> Result<String, EventError> {
    let payload = batch_of([good(), event, good()]);
    let batch = decode_batch(&payload).expect("a batch with any events decodes");
    assert_eq!(batch.dp_rank, Some(DpRank(3)));
    let events: Vec<_> = batch.events.collect();
    assert_eq!(events.len(), 3);
    assert!(events[0].is_ok() && events[2].is_ok(), "a neighbouring event was lost");
    events[1].clone().map(|event| format!("{event:?}"))
}

#[test]
fn an_invalid_event_does_not_affect_its_batch() {
    let pair = || list([1.into(), 2.into()]);
    let cases = [
        (Value::Nil, "not_an_event"),
        (Value::from(5), "not_an_event"),
        (list([]), "not_an_event"),
        (list([Value::from(5)]), "not_an_event"),
        (map([("kind", "BlockStored".into())]), "not_an_event"),
        (list([Value::from("BlockMoved"), 1.into()]), "unknown_event_type"),
        (map([("type", "Tick".into())]), "unknown_event_type"),
        (stored([]), "missing_field"),
        (stored([list([7.into()]), Value::Nil, pair()]), "missing_field"),
        (map([("type", "BlockStored".into()), ("token_ids", pair())]), "missing_field"),
        (map([("type", "BlockRemoved".into())]), "missing_field"),
        (stored([7.into(), Value::Nil, pair(), 2.into()]), "wrong_type"),
        (stored([list(["x".into()]), Value::Nil, pair(), 2.into()]), "wrong_type"),
        (stored([list([7.into()]), Value::Nil, pair(), Value::Nil]), "wrong_type"),
        (map([("type", "BlockStored".into()), ("block_hashes", list([7.into()]))]), "missing_field"),
        (stored([list([7.into()]), Value::Nil, list([1.into(), pair()]), 2.into()]), "wrong_type"),
        (stored([list([7.into()]), Value::Nil, list([pair(), 1.into()]), 2.into()]), "wrong_type"),
        (stored([list([7.into()]), Value::Nil, list([(-1).into()]), 2.into()]), "out_of_range"),
        (stored([list([7.into()]), Value::Nil, list([(1u64 << 32).into()]), 2.into()]), "out_of_range"),
        (stored([list([Value::Binary(vec![])]), Value::Nil, pair(), 2.into()]), "out_of_range"),
        (list([Value::from("BlockRemoved"), list([1.into()]), 5.into()]), "wrong_type"),
        (list([Value::from("BlockRemoved"), pair(), Value::Nil, list([1.into()])]), "out_of_range"),
        (list([Value::from("BlockRemoved"), pair(), Value::Nil, list([1.into(), "x".into()])]), "wrong_type"),
        (
            map([("type", "BlockRemoved".into()), ("remaining_copy_counts", list([])), ("block_hashes", pair())]),
            "out_of_range",
        ),
        (list([Value::from("BlockTransferred"), pair(), "GPU".into()]), "missing_field"),
        (map([("type", "BlockTransferred".into()), ("block_hashes", pair())]), "missing_field"),
        (list([Value::from("BlockInactive")]), "missing_field"),
        (map([("type", "BlockInactive".into()), ("medium", "GPU".into())]), "missing_field"),
        (
            map([
                ("type", "BlockStored".into()),
                ("block_hashes", pair()),
                ("block_size", 1.into()),
                ("component_types", "FULL".into()),
            ]),
            "wrong_type",
        ),
    ];
    for (event, reason) in cases {
        let shown = event.to_string();
        let error = one(event).expect_err(&shown);
        assert_eq!(error.reason(), reason, "{shown}: {error}");
    }
}

#[test]
fn hashes_of_every_width_and_sign_are_the_same_64_bits() {
    let hashes = [
        Value::from(1),
        Value::from(-1),
        Value::from(u64::MAX),
        Value::from(i64::MIN),
        Value::Binary({
            let mut bytes = vec![0xaa; 24];
            bytes.extend(5u64.to_be_bytes());
            bytes
        }),
    ];
    let payload = batch_of([list([Value::from("BlockRemoved"), list(hashes)])]);
    let batch = decode_batch(&payload).expect("a batch");
    let Some(Ok(EngineEvent::Removed(removed))) = batch.events.clone().next() else { panic!("a removal") };
    assert_eq!(removed.block_hashes, [1, u64::MAX, u64::MAX, 1 << 63, 5].map(SequenceHash));
}

#[test]
fn pages_of_token_pairs_are_read() {
    let pair = |a: u32, b: u32| list([a.into(), b.into()]);
    let event = stored([list([7.into()]), Value::Nil, list([pair(1, 2), pair(2, 3)]), 2.into()]);
    let payload = batch_of([event]);
    let batch = decode_batch(&payload).expect("a batch");
    let Some(Ok(EngineEvent::Stored(stored))) = batch.events.clone().next() else { panic!("a store") };
    assert_eq!(stored.token_ids, TokenIds::Bigrams(vec![[1, 2], [2, 3]]));
}

#[test]
fn extra_keys_of_every_form_are_read() {
    let keys = list([
        Value::Nil,
        "salt".into(),
        list([
            "adapter".into(),
            list(["image".into(), (-3).into()]),
            list(["cache_salt".into(), "s".into()]),
            list(["lora".into(), "name".into(), "/path".into()]),
            list(["mm".into(), "image".into(), 4.into()]),
            Value::Binary(vec![1, 2]),
            list(["new".into(), Value::Nil, 1.into()]),
        ]),
    ]);
    let event = map([
        ("type", "BlockStored".into()),
        ("block_hashes", list([1.into(), 2.into(), 3.into()])),
        ("token_ids", list([])),
        ("block_size", 2.into()),
        ("extra_keys", keys),
        (
            "mm_keys",
            list([
                list([map([("type", "mm_key".into()), ("hash", "ab".into()), ("start_offset", 9.into())])]),
                Value::Nil,
            ]),
        ),
    ]);
    let payload = batch_of([event]);
    let batch = decode_batch(&payload).expect("a batch");
    let Some(Ok(EngineEvent::Stored(stored))) = batch.events.clone().next() else { panic!("{batch:?}") };
    let keys = stored.extra_keys.as_ref().expect("keys");
    assert_eq!(keys[0], Some(vec![ExtraKey::Item { id: "ab", offset: 9 }]));
    assert_eq!(keys[1], Some(vec![ExtraKey::Text("salt")]));
    let third = keys[2].as_ref().expect("keys of the third block");
    assert_eq!(
        third[..5],
        [
            ExtraKey::Text("adapter"),
            ExtraKey::Item { id: "image", offset: -3 },
            ExtraKey::Salt("s"),
            ExtraKey::Lora("name"),
            ExtraKey::Item { id: "image", offset: 4 },
        ]
    );
    assert!(third[5..].iter().all(|key| matches!(key, ExtraKey::Opaque(_))), "{third:?}");
}

#[test]
fn fields_after_the_medium_depend_on_the_engine() {
    let head = || [list([7.into()]), Value::Nil, list([1.into(), 2.into()]), 2.into(), Value::Nil, "GPU".into()];
    let event = |more: Vec<Value>| stored(head().into_iter().chain(more));
    let salt = || map([("cache_salt", "s".into())]);
    let read = |adapter: EngineAdapter, event: Value| {
        let payload = batch_of([good(), event, good()]);
        let events: Vec<_> = adapter.batch(&payload).expect("a batch").events.collect();
        assert!(events[0].is_ok() && events[2].is_ok(), "a neighbouring event was lost");
        match &events[1] {
            Ok(EngineEvent::Stored(stored)) => {
                let keys = stored.extra_keys.as_ref().map(Vec::len);
                Ok((stored.lora_name.map(str::to_owned), stored.cache_salt.map(str::to_owned), keys))
            }
            Ok(other) => panic!("not a store: {other:?}"),
            Err(error) => Err(error.reason()),
        }
    };
    let named = || event(vec!["a".into(), list([list(["k".into()])])]);
    let salted = || [event(vec![salt()]), event(vec![Value::Nil, salt()])];
    for adapter in [EngineAdapter::Detect, EngineAdapter::TensorRtLlm, EngineAdapter::Vllm] {
        assert_eq!(read(adapter, named()), Ok((Some("a".to_owned()), None, Some(1))), "{adapter:?}");
    }
    assert_eq!(read(EngineAdapter::Sglang, named()), Ok((None, None, None)), "SGLang has no such fields");
    for event in salted() {
        for adapter in [EngineAdapter::Detect, EngineAdapter::Sglang] {
            assert_eq!(read(adapter, event.clone()), Ok((None, Some("s".to_owned()), None)), "{adapter:?}");
        }
        assert_eq!(read(EngineAdapter::Vllm, event), Err("wrong_type"));
    }
}

#[test]
fn a_batch_may_be_short_long_or_a_map() {
    let events = || list([good()]);
    let short = encoded(&list([Value::F64(1.0), events()]));
    let long = encoded(&list([Value::F64(1.0), events(), Value::Nil, "later".into()]));
    let as_map = encoded(&map([
        ("ts", Value::F64(1.0)),
        ("new", list([])),
        ("events", events()),
        ("data_parallel_rank", 1.into()),
    ]));
    for (payload, rank) in [(short, None), (long, None), (as_map, Some(DpRank(1)))] {
        let batch = decode_batch(&payload).expect("a batch");
        assert_eq!((batch.dp_rank, batch.timestamp, batch.events.count()), (rank, 1.0, 1));
    }
    for payload in [encoded(&Value::Nil), encoded(&list([])), encoded(&map([("ts", Value::F64(1.0))]))] {
        assert_eq!(decode_batch(&payload), Err(BatchError::NotABatch));
    }
    assert!(matches!(decode_batch(b""), Err(BatchError::Malformed(_))));
    // Bytes after a batch may be another batch.
    let batch = batch_of([good()]);
    for more in [&batch[..], &[0]] {
        assert_eq!(decode_batch(&[&batch, more].concat()), Err(BatchError::TrailingBytes));
    }
}

#[test]
fn an_informative_field_of_the_wrong_type_is_ignored() {
    let event = map([
        ("type", "BlockStored".into()),
        ("block_hashes", list([1.into()])),
        ("block_size", 2.into()),
        ("session_id", 5.into()),
        ("ownership", map([("by", "us".into())])),
        ("kv_cache_spec_sliding_window", (-1).into()),
        ("lookahead_token_ids", list([Value::from("x")])),
        ("new_field", list([Value::Nil])),
    ]);
    let payload = encoded(&list([Value::Nil, list([event])]));
    let batch = decode_batch(&payload).expect("a batch without a timestamp");
    let Some(Ok(EngineEvent::Stored(stored))) = batch.events.clone().next() else { panic!("{batch:?}") };
    assert_eq!((stored.session_id, stored.ownership, stored.lookahead_token_ids), (None, None, None));
    assert!(stored.token_ids.is_empty(), "a store without tokens");
}

#[test]
fn counts_of_copies_are_the_only_list_of_a_removal_besides_its_hashes() {
    let counts = || list([0.into(), 2.into()]);
    let removal = |fields: &[Value]| {
        let fields = [Value::from("BlockRemoved"), list([7.into(), 8.into()])].into_iter().chain(fields.to_vec());
        let payload = batch_of([list(fields)]);
        let mut events = decode_batch(&payload).expect("a batch").events;
        let Some(Ok(EngineEvent::Removed(removed))) = events.next() else { panic!("a removal: {events:?}") };
        (removed.remaining_copy_counts, removed.group_idx, removed.reason, events.take_unknown_fields().len())
    };
    let (gpu, known) = (|| Value::from("GPU"), Some(vec![0, 2]));
    assert_eq!(removal(&[gpu(), counts()]), (known.clone(), None, None, 0));
    assert_eq!(removal(&[gpu(), 1.into(), counts()]), (known.clone(), Some(1), None, 0));
    assert_eq!(removal(&[gpu(), 1.into(), Value::Nil, Value::Nil, counts()]), (known, Some(1), None, 0));
    let with_reason = [gpu(), Value::Nil, Value::Nil, Value::Nil, Value::Nil, "Evicted".into(), 5.into()];
    assert_eq!(removal(&with_reason), (None, None, Some(RemovalReason::Evicted), 1));
}

#[test]
fn components_and_origins_are_read_leniently() {
    let components = |adapter: EngineAdapter, fields: Vec<Value>| {
        let head = [list([7.into()]), Value::Nil, list([1.into(), 2.into()]), 2.into(), Value::Nil, "GPU".into()];
        let payload = batch_of([stored(head.into_iter().chain(fields))]);
        let events = adapter.batch(&payload).expect("a batch").events;
        let Some(Ok(EngineEvent::Stored(stored))) = events.clone().next() else { panic!("a store: {events:?}") };
        (stored.components, stored.origin)
    };
    let full_and_swa = Some(Components { full: true, swa: true, mamba: false });
    let list_of = |names: &[&str]| list(names.iter().map(|&name| Value::from(name)));
    assert_eq!(components(EngineAdapter::Sglang, vec![list_of(&["FULL", "NEW", "SWA"])]), (full_and_swa, None));
    let mut fields = vec![Value::Nil; 13];
    fields.push(list_of(&["FULL", "SWA"]));
    for (origin, expected) in [("REUSED", Some(StoreOrigin::Reused)), ("new", Some(StoreOrigin::New)), ("?", None)] {
        fields[12] = origin.into();
        assert_eq!(components(EngineAdapter::Detect, fields.clone()), (full_and_swa, expected));
    }
}

#[test]
fn clears_are_read_in_every_form() {
    let cleared = |fields: &[Value]| list([Value::from("AllBlocksCleared")].into_iter().chain(fields.to_vec()));
    let named = |field: &str, value: Value| map([("type", "AllBlocksCleared".into()), (field, value)]);
    let whole = [
        cleared(&[]),
        cleared(&[Value::Nil, Value::Nil]),
        named("medium", Value::Nil),
        named("ownership", "".into()),
        named("new_field", 5.into()),
    ];
    let scope = ScopedClear::default();
    let managed = ScopedClear { ownership: Some("kvcr"), ..scope };
    let on_host = ScopedClear { medium: Some("cpu"), ..scope };
    let parts = [
        (cleared(&["kvcr".into()]), managed),
        (cleared(&[Value::Nil, "kvcr".into()]), managed),
        (named("ownership", "kvcr".into()), managed),
        (cleared(&["cpu".into()]), on_host),
        (named("medium", "cpu".into()), on_host),
        (named("medium", "".into()), ScopedClear { medium: Some(""), ..scope }),
        (cleared(&["cpu".into(), "kvcr".into()]), ScopedClear { ownership: Some("kvcr"), ..on_host }),
        (cleared(&["tape".into(), Value::Nil, Value::Nil]), ScopedClear { medium: Some("tape"), ..scope }),
        (cleared(&["tape".into(), "kvcr".into()]), ScopedClear { medium: Some("tape"), ..managed }),
        (cleared(&[Value::Nil, Value::Nil, 3.into()]), ScopedClear { group_idx: Some(3), ..scope }),
        (named("group_idx", 3.into()), ScopedClear { group_idx: Some(3), ..scope }),
    ];
    for form in whole {
        assert_eq!(one(form), Ok(format!("{:?}", EngineEvent::Cleared)));
    }
    for (form, scope) in parts {
        assert_eq!(one(form), Ok(format!("{:?}", EngineEvent::ClearedScope(scope))));
    }
    for (field, value) in [("medium", Value::from(1)), ("ownership", list([])), ("group_idx", "1".into())] {
        let error = one(named(field, value)).expect_err("without the field the clear would be of more blocks");
        assert_eq!(error.reason(), "wrong_type", "{field}");
    }
    let error = one(cleared(&["".into()])).expect_err("it may be a medium or a manager");
    assert_eq!(error.reason(), "out_of_range");
}

#[test]
fn a_claimed_length_does_not_allocate() {
    // An array that claims 2^32 - 1 hashes, tokens or events, and ends.
    for head in [&[0x93, 0x00][..], &[0x93, 0x00, 0x91, 0x92, 0xac]] {
        let mut payload = head.to_vec();
        if head.len() > 2 {
            payload.extend(b"BlockRemoved");
        }
        payload.extend([0xdd, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(decode_batch(&payload), Err(BatchError::Malformed(_))));
    }
}

#[test]
fn a_live_message_has_at_most_three_frames_and_a_sequence_number_of_eight_bytes() {
    let frames = [b"kv".to_vec(), 9u64.to_be_bytes().to_vec(), b"x".to_vec()];
    let message = LiveMessage::from_frames(&frames).expect("a message");
    assert_eq!((message.topic, message.sequence, message.payload), (&b"kv"[..], Some(9), &b"x"[..]));
    let without_number = LiveMessage { sequence: None, payload: b"x", topic: b"kv" };
    assert_eq!(LiveMessage::from_frames(&[&frames[0], &frames[2]]), Ok(without_number));
    assert_eq!(LiveMessage::from_frames(&[&frames[2]]), Ok(LiveMessage { topic: b"", ..without_number }));
    assert_eq!(LiveMessage::from_frames::<Vec<u8>>(&[]), Err(FrameError::Count { count: 0 }));
    assert_eq!(LiveMessage::from_frames(&[&frames[..], &frames[..1]].concat()), Err(FrameError::Count { count: 4 }));
    let short = [b"kv".to_vec(), vec![0; 4], vec![]];
    assert_eq!(LiveMessage::from_frames(&short), Err(FrameError::SequenceLength { len: 4 }));
}

#[test]
fn replies_to_a_replay_request_are_decoded_from_the_last_frame() {
    let number = |sequence: u64| sequence.to_be_bytes().to_vec();
    let read = |frames: &[Vec<u8>]| {
        ReplayReply::from_frames(frames).map(|reply| match reply {
            ReplayReply::Message { sequence, payload, .. } => Some((sequence, payload.to_vec())),
            ReplayReply::End => None,
        })
    };
    let message = Ok(Some((9, b"x".to_vec())));
    assert_eq!(read(&[vec![], number(9), b"x".to_vec()]), message);
    assert_eq!(read(&[vec![], b"kv".to_vec(), number(9), b"x".to_vec()]), message);
    assert_eq!(read(&[vec![], number(u64::MAX), vec![]]), Ok(None));
    assert_eq!(read(&[vec![], b"kv".to_vec(), number(u64::MAX), vec![]]), Ok(None));
    assert_eq!(read(&[vec![]]), Err(FrameError::ReplayCount { count: 1 }));
    assert_eq!(read(&[vec![], vec![1; 3], vec![]]), Err(FrameError::SequenceLength { len: 3 }));
}

/// Deep and wide values of every MessagePack kind.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z]{0,6}".prop_map(Value::from),
        prop_oneof![Just("BlockStored"), Just("BlockRemoved"), Just("type"), Just("token_ids"), Just("extra_keys")]
            .prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Ext(1, bytes)),
    ];
    leaf.prop_recursive(5, 40, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Map),
        ]
    })
}

/// Decodes, translates and indexes arbitrary bytes.
fn decode_and_index(payload: &[u8]) {
    check_batch(payload);
    let Ok(batch) = decode_batch(payload) else { return };
    let mut translator = Translator::new(TranslatorOptions {
        block_size: BlockSize::new(2).expect("two"),
        lora_name: None,
        removed_copies: RemovedCopies::One,
        cache_tier: None,
    });
    let mut index = RadixTree::new(RankBlockLimits { waiting_blocks_max: 2, removed_blocks_max: 2 });
    let grouped = GroupedIndex::new(Box::<RunIndex>::default());
    let rank = WorkerRank { worker: WorkerId(1), dp_rank: batch.dp_rank.unwrap_or_default() };
    for event in batch.events.flatten() {
        for change in translator.translate(&event).into_iter().flatten() {
            grouped.apply_event(rank, &change);
            if let RankEvent::Primary(event) = &change {
                index.apply(rank, event);
            }
        }
    }
    index.clear_rank(rank);
    assert_eq!(index.node_count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_and_index(&bytes);
    }

    /// The same as the fuzz target `engine_messages`, without a fuzzer.
    #[test]
    fn messages_of_any_bytes_are_decoded_as_they_should_be(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        play(&bytes);
    }

    #[test]
    fn an_arbitrary_event_does_not_affect_its_batch(event in any_value()) {
        let _ = one(event);
    }

    #[test]
    fn a_damaged_batch_causes_no_panic(event in any_value(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut payload = batch_of([good(), event, good()]);
        let at = at.index(payload.len());
        payload[at] = byte;
        decode_and_index(&payload);
        let cut = cut.index(payload.len());
        decode_and_index(&payload[..cut]);
    }
}

#[test]
fn a_batch_with_more_events_than_its_bytes_can_be_is_refused() {
    // [timestamp, [nil, …], nil]
    let batch = |count: u32| {
        let head = [&[0x93, 0xca, 0, 0, 0, 0, 0xdd][..], &count.to_be_bytes()].concat();
        [head, vec![0xc0; count as usize + 1]].concat()
    };
    let refused = decode_batch(&batch(BATCH_EVENTS_MAX + 1)).map(|_| ());
    assert_eq!(refused, Err(BatchError::TooManyEvents { count: BATCH_EVENTS_MAX + 1 }));
    let largest = batch(BATCH_EVENTS_MAX);
    let events = decode_batch(&largest).expect("a batch").events;
    assert_eq!(events.filter(Result::is_err).count(), BATCH_EVENTS_MAX as usize);
}
