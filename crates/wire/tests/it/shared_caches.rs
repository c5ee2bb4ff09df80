//! Events of shared caches: their own media, chunks of several blocks, and Mooncake's master.

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    EngineAdapter, EngineEvent, EventError, TranslateError, Translator, TranslatorOptions, decode_batch,
};
use rmpv::Value;

fn translator(cache_tier: Option<Tier>) -> Translator {
    let block_size = BlockSize::new(2).expect("two");
    Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One, cache_tier })
}

fn payload(event: Value) -> Vec<u8> {
    let mut payload = Vec::new();
    let batch = Value::Array(vec![1_700_000_000.5.into(), Value::Array(vec![event]), Value::Nil]);
    rmpv::encode::write_value(&mut payload, &batch).expect("a vector has room");
    payload
}

/// The hash of a chunk as LMCache publishes it: 32 bytes.
fn chunk_hash(byte: u8) -> Value {
    Value::Binary(vec![byte; 32])
}

fn hash_of(byte: u8) -> u64 {
    u64::from_be_bytes([byte; 8])
}

/// A store as LMCache publishes it: seven fields, and a chunk's tokens as its block size.
fn stored(byte: u8, parent: Option<u8>, tokens: &[u32], medium: &str) -> Vec<u8> {
    payload(Value::Array(vec![
        "BlockStored".into(),
        Value::Array(vec![chunk_hash(byte)]),
        parent.map_or(Value::Nil, chunk_hash),
        Value::Array(tokens.iter().map(|&token| token.into()).collect()),
        tokens.len().into(),
        Value::Nil,
        medium.into(),
    ]))
}

fn removed(bytes: &[u8], medium: &str) -> Vec<u8> {
    let hashes = Value::Array(bytes.iter().map(|&byte| chunk_hash(byte)).collect());
    payload(Value::Array(vec!["BlockRemoved".into(), hashes, medium.into()]))
}

fn translate(translator: &mut Translator, payload: &[u8]) -> Result<BlockEvent, TranslateError> {
    let mut events = EngineAdapter::Detect.batch(payload).expect("a batch").events;
    let event = events.next().expect("one event").expect("it decodes");
    assert!(events.take_unknown_fields().is_empty());
    translator.translate(&event).map(|changes| match changes.first {
        RankEvent::Primary(event) => event,
        other => panic!("{other:?}"),
    })
}

fn parts(event: BlockEvent) -> (Tier, Option<SequenceHash>, Vec<Block>) {
    match event {
        BlockEvent::Stored { tier, parent, blocks, copies: 1 } => (tier, parent, blocks),
        other => panic!("{other:?}"),
    }
}

#[test]
fn media_of_shared_caches_are_never_the_device() {
    let cases = [
        (Tier::Host, "lmcache-l1", Tier::Host),
        (Tier::Host, "lmcache-l2-fs", Tier::Disk),
        (Tier::Host, "", Tier::Host),
        (Tier::Host, "GPU", Tier::Host),
        (Tier::Host, "disk", Tier::Disk),
        (Tier::External, "lmcache-l2-fs", Tier::External),
        (Tier::External, "cpu", Tier::Host),
        (Tier::External, "DISK", Tier::Disk),
        (Tier::External, "", Tier::External),
        (Tier::External, "täpe", Tier::External),
    ];
    for (own, medium, expected) in cases {
        let event = translate(&mut translator(Some(own)), &stored(1, None, &[1, 2], medium)).expect("it is stored");
        assert_eq!(parts(event).0, expected, "{own:?} {medium:?}");
    }
    let engine = translate(&mut translator(None), &stored(1, None, &[1, 2], "lmcache-l1"));
    assert!(matches!(engine, Err(TranslateError::UnknownMedium { .. })), "{engine:?}");
}

#[test]
fn a_chunk_becomes_the_blocks_that_it_spans_and_a_removal_names_all_of_them() {
    let mut translator = translator(Some(Tier::Host));
    let unknown = translate(&mut translator, &removed(&[1], "lmcache-l1"));
    assert_eq!(unknown, Err(TranslateError::ChunkSizeUnknown));
    let tokens: Vec<u32> = (0..12).collect();
    let first = translate(&mut translator, &stored(1, None, &tokens[..6], "lmcache-l1")).expect("it is stored");
    let second = translate(&mut translator, &stored(2, Some(1), &tokens[6..], "lmcache-l1")).expect("it is stored");
    let (_, parent, mut blocks) = parts(first);
    assert_eq!(parent, None);
    assert_eq!(blocks.last().map(|block| block.sequence.0), Some(hash_of(1)));
    let (_, parent, more) = parts(second);
    assert_eq!(parent, Some(SequenceHash(hash_of(1))), "the last block of the chunk before");
    blocks.extend(more);
    let block_size = BlockSize::new(2).expect("two");
    let expected = local_hashes(HashVariant::default(), &tokens, block_size, TokenWindow::Block);
    assert_eq!(blocks.iter().map(|block| block.local).collect::<Vec<_>>(), expected);
    let sequences: Vec<SequenceHash> = blocks.iter().map(|block| block.sequence).collect();
    let mut distinct = sequences.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), sequences.len());

    // A shorter chunk at the end of a prompt. Its removal names blocks that it does not have as well.
    let short = translate(&mut translator, &stored(3, Some(2), &[90, 91, 92, 93], "lmcache-l1")).expect("it is stored");
    let (_, _, short) = parts(short);
    let event = translate(&mut translator, &removed(&[2, 3], "lmcache-l1")).expect("it is removed");
    let BlockEvent::Removed { tier: Tier::Host, blocks: gone, copies: RemovedCopies::One } = event else {
        panic!("{event:?}")
    };
    for block in sequences[3..].iter().chain(short.iter().map(|block| &block.sequence)) {
        assert!(gone.contains(block), "{block:?} of {gone:?}");
    }
    assert!(!sequences[..3].iter().any(|block| gone.contains(block)));

    for tokens in [&[1, 2, 3][..], &(0..2 * 257).collect::<Vec<_>>()] {
        let odd = translate(&mut translator, &stored(4, None, tokens, "lmcache-l1"));
        assert!(matches!(odd, Err(TranslateError::BlockSize { .. })), "{odd:?}");
    }
    let engine = translate(&mut self::translator(None), &stored(1, None, &tokens[..6], "CPU"));
    assert!(matches!(engine, Err(TranslateError::BlockSize { .. })), "an engine has no chunks: {engine:?}");
}

/// An event of Mooncake's master with these fields.
fn mooncake(fields: &[(&str, Value)]) -> Result<EngineEvent<'static>, EventError> {
    let fields = fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
    let payload: &'static [u8] = payload(Value::Map(fields)).leak();
    decode_batch(payload).expect("a batch").events.next().expect("one event")
}

fn hex(hash: u64) -> Value {
    format!("0123456789abcdef{hash:016x}").into()
}

#[test]
fn a_mooncake_event_names_its_blocks_by_the_engines_hash() {
    let kind = |kind: &str| ("event_type", Value::from(kind));
    let hashes = |hashes: &[u64]| Value::Array(hashes.iter().map(|&hash| hash.into()).collect());
    let blocks = |fields: &[(&str, Value)]| match mooncake(fields) {
        Ok(EngineEvent::Stored(stored)) => Ok(stored.block_hashes.into_iter().map(|hash| hash.0).collect::<Vec<_>>()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.reason()),
    };
    let store_key = ("seq_hashes", hashes(&[7]));
    assert_eq!(blocks(&[kind("stored"), store_key.clone()]), Ok(vec![7]));
    // The store's key differs from the engine's hash.
    assert_eq!(blocks(&[kind("stored"), store_key.clone(), ("connector_block_hash", hex(8))]), Ok(vec![8]));
    let bytes = Value::Binary([[1; 8], 8_u64.to_be_bytes()].concat());
    assert_eq!(blocks(&[kind("stored"), ("connector_block_hash", bytes)]), Ok(vec![8]));
    let both = Value::Array(vec![hex(8), hex(9)]);
    let two = [kind("stored"), ("seq_hashes", hashes(&[1, 2])), ("connector_block_hash", both.clone())];
    assert_eq!(blocks(&two), Ok(vec![8, 9]));
    let same = [kind("stored"), ("block_hashes", hashes(&[7])), store_key.clone(), ("block_size", Value::Nil)];
    assert_eq!(blocks(&same), Ok(vec![7]));
    let key = ("object_key", Value::from("m@tp_rank:0@pcp0@dcp0@pp_rank:0@0123456789abcdef000000000000002a"));
    assert_eq!(blocks(&[kind("stored"), ("seq_hashes", hashes(&[])), key]), Ok(vec![42]));

    let part_of_key = Value::from("m@tp_rank:1@pcp0@dcp0@pp_rank:0@0123456789abcdef000000000000002a");
    let rejected: [(&[(&str, Value)], &str); 10] = [
        (&[kind("stored")], "missing_field"),
        (&[kind("stored"), ("object_key", "photo.png".into())], "missing_field"),
        (&[kind("stored"), store_key.clone(), ("block_hashes", hashes(&[8]))], "out_of_range"),
        (&[kind("stored"), store_key.clone(), ("connector_block_hash", both)], "out_of_range"),
        (&[kind("stored"), store_key.clone(), ("connector_block_hash", "12".into())], "out_of_range"),
        (&[kind("stored"), store_key.clone(), ("layer_id", 3.into())], "out_of_range"),
        (&[kind("stored"), store_key.clone(), ("tp_rank", 1.into())], "out_of_range"),
        (&[kind("stored"), ("object_key", part_of_key)], "out_of_range"),
        (&[kind("moved"), store_key.clone()], "unknown_event_type"),
        (&[kind("stored"), store_key.clone(), store_key.clone()], "repeated_field"),
    ];
    for (fields, reason) in rejected {
        assert_eq!(blocks(fields), Err(reason), "{fields:?}");
    }
    // Without one of its parts the block is gone.
    let fields = [("connector_block_hash", hex(8)), ("medium", "cpu".into()), ("tp_rank", 1.into())];
    let removed = mooncake(&[&[kind("removed"), store_key][..], &fields].concat());
    let Ok(EngineEvent::Removed(removed)) = removed else { panic!("{removed:?}") };
    assert_eq!(removed.block_hashes, [SequenceHash(8)]);
    assert_eq!((removed.medium, removed.remaining_copy_counts), (Some("cpu"), Some(vec![0])));
    assert_eq!(mooncake(&[kind("cleared"), ("medium", Value::Nil)]), Ok(EngineEvent::Cleared));
}
