//! Stores of a relay, which have local hashes in the place of tokens.

use flash_indexer_core::hashing::{BlockSize, Salt, TokenWindow};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    BlockStored, Components, EVENT_BLOCKS_MAX, EVENT_TOKENS_MAX, Encoding, EngineEvent, EventError, HashedTokens,
    TokenIds, TranslateError, Translation, Translator, TranslatorOptions, decode_batch, encode_batch,
};
use rmpv::Value;

fn hashed(local_hashes: &[u64]) -> HashedTokens {
    HashedTokens {
        count: 2 * local_hashes.len() as u32,
        window: TokenWindow::BlockAndNext,
        local_hashes: local_hashes.iter().copied().map(LocalHash).collect(),
        salt: Some(Salt::from_bits(u64::MAX)),
    }
}

fn store(hashed: HashedTokens) -> BlockStored<'static> {
    BlockStored {
        block_hashes: vec![SequenceHash(1), SequenceHash(2)],
        parent_block_hash: Some(SequenceHash(9)),
        token_ids: TokenIds::Hashed(hashed),
        block_size: 2,
        lora_name: Some("a"),
        ..BlockStored::default()
    }
}

fn translate(event: BlockStored<'_>) -> Result<Translation, TranslateError> {
    let block_size = BlockSize::new(2).expect("two");
    let options =
        TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One, cache_tier: None };
    let mut translator = Translator::new(options);
    let translation = translator.translate(&EngineEvent::Stored(event))?;
    assert_eq!(translator.window(), TokenWindow::BlockAndNext);
    let adapter_salt = translator.adapter_salt();
    assert_eq!((adapter_salt.lora_name(), adapter_salt.salt()), (Some("a"), Some(Salt::from_bits(u64::MAX))));
    Ok(translation)
}

/// Decodes a store whose field `hashed_tokens` is this value.
fn decode(value: Value) -> Result<TokenIds, EventError> {
    let fields = [
        ("type", Value::from("BlockStored")),
        ("block_hashes", list([])),
        ("block_size", Value::from(1)),
        ("hashed_tokens", value),
    ];
    let event = fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect();
    let batch = Value::Array(vec![Value::from(0.0), Value::Array(vec![Value::Map(event)])]);
    let mut payload = Vec::new();
    rmpv::encode::write_value(&mut payload, &batch).expect("written");
    let event = decode_batch(&payload).expect("a batch").events.next().expect("an event");
    match event? {
        EngineEvent::Stored(stored) => Ok(stored.token_ids),
        event => panic!("no store: {event:?}"),
    }
}

fn list(values: impl IntoIterator<Item = u64>) -> Value {
    Value::Array(values.into_iter().map(Value::from).collect())
}

#[test]
fn a_store_of_a_relay_is_encoded_decoded_and_indexed_by_its_hashes() {
    let components = Some(Components { full: true, swa: false, mamba: true });
    for event in [store(hashed(&[7, 8])), BlockStored { components, ..store(hashed(&[7, 8])) }] {
        let payload = encode_batch(0.0, &[EngineEvent::Stored(event.clone())], None, Encoding::Map);
        let decoded: Vec<_> = decode_batch(&payload).expect("a batch").events.collect();
        assert_eq!(decoded, [Ok(EngineEvent::Stored(event))]);
    }
    let blocks = [(1, 7), (2, 8)].map(|(hash, local)| Block { sequence: SequenceHash(hash), local: LocalHash(local) });
    let stored =
        BlockEvent::Stored { tier: Tier::Device, parent: Some(SequenceHash(9)), blocks: blocks.to_vec(), copies: 1 };
    assert_eq!(translate(store(hashed(&[7, 8]))), Ok(stored.into()));
}

#[test]
fn another_number_of_hashes_than_blocks_is_rejected() {
    for locals in [&[][..], &[7], &[7, 8, 9]] {
        let event = store(HashedTokens { count: 4, ..hashed(locals) });
        let error = translate(event).expect_err("rejected");
        assert_eq!(error, TranslateError::TokenCount { tokens: 4, blocks: 2, block_size: 2 }, "{locals:?}");
    }
    let wrong_count = store(HashedTokens { count: 5, ..hashed(&[7, 8]) });
    assert!(matches!(translate(wrong_count), Err(TranslateError::TokenCount { tokens: 5, .. })));
}

#[test]
fn malformed_and_long_hashed_tokens_are_rejected() {
    let of = |count: Value, window: Value, locals: Value, salt: Value| {
        decode(Value::Array(vec![count, window, locals, salt]))
    };
    assert!(
        matches!(of(2.into(), 0.into(), list([1]), Value::Nil), Ok(TokenIds::Hashed(hashed)) if hashed.salt.is_none())
    );
    let field = "hashed_tokens";
    for value in [Value::Nil, list([2, 0]), list([2, 0, 1, 0, 1]), Value::from("text")] {
        assert_eq!(decode(value), Err(EventError::WrongType { field }));
    }
    assert_eq!(of(0.into(), 0.into(), list([]), Value::Nil), Err(EventError::OutOfRange { field }));
    assert_eq!(of((1_u64 << 32).into(), 0.into(), list([]), Value::Nil), Err(EventError::OutOfRange { field }));
    assert_eq!(of(2.into(), 2.into(), list([]), Value::Nil), Err(EventError::WrongType { field }));
    assert_eq!(of(2.into(), 0.into(), Value::Nil, Value::Nil), Err(EventError::WrongType { field }));
    let (count, max) = (EVENT_TOKENS_MAX + 1, EVENT_TOKENS_MAX);
    assert_eq!(of(count.into(), 0.into(), list([]), Value::Nil), Err(EventError::TooLong { field, count, max }));
    let (count, max) = (EVENT_BLOCKS_MAX + 1, EVENT_BLOCKS_MAX);
    let locals = list((0..count).map(u64::from));
    assert_eq!(of(2.into(), 0.into(), locals, Value::Nil), Err(EventError::TooLong { field, count, max }));
}
