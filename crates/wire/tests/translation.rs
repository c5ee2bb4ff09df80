//! What an event means to an index.

use flash_indexer_core::hashing::{BlockSize, HashSpace, LocalHasher, MultimodalItem, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, CacheGroup, EngineEvent, ExtraKey, TokenIds, Translator, TranslatorOptions, Unusable,
};

fn translator() -> Translator {
    let block_size = BlockSize::new(2).expect("two");
    Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One })
}

/// A store of blocks `hashes` with tokens 10·hash, 10·hash + 1.
fn store<'a>(parent: Option<u64>, hashes: &[u64]) -> BlockStored<'a> {
    BlockStored {
        block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(tokens(hashes)),
        block_size: 2,
        medium: Some("GPU"),
        ..BlockStored::default()
    }
}

fn tokens(hashes: &[u64]) -> Vec<u32> {
    hashes.iter().flat_map(|&hash| [10 * hash as u32, 10 * hash as u32 + 1]).collect()
}

fn locals(lora: Option<&str>, salt: Option<&str>, hashes: &[u64]) -> Vec<LocalHash> {
    let block_size = BlockSize::new(2).expect("two");
    local_hashes(HashSpace::new(lora, salt), &tokens(hashes), block_size, TokenWindow::Block)
}

/// The local hashes that a store is translated to.
fn stored_locals(translator: &mut Translator, event: BlockStored<'_>) -> Vec<LocalHash> {
    match translator.translate(&EngineEvent::Stored(event)).expect("a usable event") {
        BlockEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.local).collect(),
        other => panic!("not a store: {other:?}"),
    }
}

fn removed(hashes: &[u64]) -> EngineEvent<'static> {
    EngineEvent::Removed(BlockRemoved {
        block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
        ..BlockRemoved::default()
    })
}

#[test]
fn a_store_names_tier_parent_and_content() {
    let event = EngineEvent::Stored(store(Some(9), &[1, 2]));
    let hashed = locals(None, None, &[1, 2]);
    assert_eq!(
        translator().translate(&event),
        Ok(BlockEvent::Stored {
            tier: Tier::Device,
            parent: Some(SequenceHash(9)),
            blocks: vec![
                Block { sequence: SequenceHash(1), local: hashed[0] },
                Block { sequence: SequenceHash(2), local: hashed[1] },
            ],
            copies: 1,
        })
    );
}

#[test]
fn media_of_every_engine_map_to_tiers() {
    let tier_of = |medium, locality| {
        let event = BlockRemoved { medium, locality, ..BlockRemoved::default() };
        match translator().translate(&EngineEvent::Removed(event)) {
            Ok(BlockEvent::Removed { tier, .. }) => Ok(tier),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.reason()),
        }
    };
    for medium in [None, Some(""), Some("GPU"), Some("gpu"), Some("Device")] {
        assert_eq!(tier_of(medium, None), Ok(Tier::Device));
        assert_eq!(tier_of(medium, Some("LOCAL")), Ok(Tier::Device));
        assert_eq!(tier_of(medium, Some("REMOTE")), Ok(Tier::External));
    }
    for medium in ["CPU", "cpu_pinned", "CPU_TIER1"] {
        assert_eq!(tier_of(Some(medium), None), Ok(Tier::Host));
    }
    for medium in ["CPU_TIER2", "Disk", "NVME", "STORAGE", "fs"] {
        assert_eq!(tier_of(Some(medium), None), Ok(Tier::Disk));
    }
    for medium in ["EXTERNAL", "NETWORK", "remote", "SHARED", "OBJ"] {
        assert_eq!(tier_of(Some(medium), None), Ok(Tier::External));
    }
    assert_eq!(tier_of(Some("TAPE"), None), Err("unknown_medium"));
}

#[test]
fn a_salt_named_with_the_first_block_reaches_every_block_after_it() {
    let mut translator = translator();
    let keys = vec![Some(vec![ExtraKey::Text("tenant")]), None];
    let first = BlockStored { extra_keys: Some(keys), ..store(None, &[1, 2]) };
    assert_eq!(stored_locals(&mut translator, first), locals(None, Some("tenant"), &[1, 2]));
    assert_eq!(stored_locals(&mut translator, store(Some(2), &[3])), locals(None, Some("tenant"), &[3]));
    assert_eq!(stored_locals(&mut translator, store(None, &[1])), locals(None, None, &[1]), "another sequence");
    assert_eq!(stored_locals(&mut translator, store(Some(3), &[4])), locals(None, Some("tenant"), &[4]));
    assert_eq!(stored_locals(&mut translator, store(Some(1), &[6])), locals(None, None, &[6]), "1 is unsalted now");
    translator.translate(&removed(&[3])).expect("a removal");
    assert_eq!(
        stored_locals(&mut translator, store(Some(3), &[4])),
        locals(None, Some("tenant"), &[4]),
        "a removal changes no block's content"
    );
    translator.translate(&EngineEvent::Cleared).expect("a clear");
    assert_eq!(stored_locals(&mut translator, store(Some(3), &[4])), locals(None, None, &[4]));
}

#[test]
fn adapter_and_salt_have_their_own_places() {
    let mut translator = translator();
    let keys = vec![Some(vec![ExtraKey::Text("adapter"), ExtraKey::Text("tenant")])];
    let event =
        BlockStored { lora_name: Some("adapter"), lora_id: Some(1), extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(Some("adapter"), Some("tenant"), &[1]));

    let keys = vec![Some(vec![ExtraKey::Text("adapter")])];
    let event = BlockStored { lora_name: Some("adapter"), extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(Some("adapter"), None, &[1]), "no salt");

    let event = BlockStored { cache_salt: Some("tenant"), ..store(Some(77), &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(None, Some("tenant"), &[1]), "SGLang's own field");

    let keys = vec![Some(vec![ExtraKey::Text("same"), ExtraKey::Text("same")])];
    let event = BlockStored { lora_name: Some("same"), extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(
        stored_locals(&mut translator, event),
        locals(Some("same"), Some("same"), &[1]),
        "a salt like the adapter"
    );

    let keys = vec![Some(vec![ExtraKey::Lora("adapter"), ExtraKey::Salt("tenant")])];
    let event = BlockStored { extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(Some("adapter"), Some("tenant"), &[1]), "marked keys");

    let event = BlockStored { cache_salt: Some(""), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(None, None, &[1]), "an empty salt is none");

    let numbered = BlockStored { lora_id: Some(3), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, numbered), locals(Some("3"), None, &[1]), "older releases");
}

#[test]
fn the_registered_adapter_is_the_default() {
    let block_size = BlockSize::new(2).expect("two");
    let mut translator = Translator::new(TranslatorOptions {
        block_size,
        lora_name: Some("house".into()),
        removed_copies: RemovedCopies::One,
    });
    assert_eq!(stored_locals(&mut translator, store(None, &[1])), locals(Some("house"), None, &[1]));
    let keys = vec![Some(vec![ExtraKey::Text("house")])];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, salted), locals(Some("house"), Some("house"), &[1]));
    let named = BlockStored { lora_name: Some("guest"), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, named), locals(Some("guest"), None, &[1]));
}

#[test]
fn multimodal_items_are_part_of_the_content() {
    let mut translator = translator();
    let keys = vec![
        Some(vec![ExtraKey::Item { id: "00000000000000ff0123", offset: 1 }]),
        Some(vec![ExtraKey::Item { id: "img", offset: -1 }, ExtraKey::Item { id: "00000000000000ff", offset: 1 }]),
    ];
    let event = BlockStored { extra_keys: Some(keys), ..store(None, &[1, 2]) };
    let found = stored_locals(&mut translator, event);
    let mut hasher = LocalHasher::default();
    let item = |offset, hash| MultimodalItem { offset, hash };
    assert_eq!(found[0], hasher.multimodal(HashSpace::default(), &tokens(&[1]), &[item(1, 0xff)]));
    let text = xxhash_rust::xxh3::xxh3_64(b"img");
    assert_eq!(
        found[1],
        hasher.multimodal(HashSpace::default(), &tokens(&[2]), &[item(1, 0xff), item(-1, text)]),
        "an identity that is no digest is hashed"
    );
}

#[test]
fn token_pairs_hash_as_a_window_that_reaches_one_token_further() {
    let mut translator = translator();
    let pairs = vec![[1, 2], [2, 3], [3, 4], [4, 5]];
    let event = BlockStored { token_ids: TokenIds::Bigrams(pairs), ..store(None, &[1, 2]) };
    let block_size = BlockSize::new(2).expect("two");
    let expected = local_hashes(HashSpace::default(), &[1, 2, 3, 4, 5], block_size, TokenWindow::BlockAndNext);
    assert_eq!(stored_locals(&mut translator, event), expected);
    assert_eq!(translator.window(), TokenWindow::BlockAndNext);
}

#[test]
fn a_store_without_tokens_names_blocks_that_are_known() {
    let event = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(Some(1), &[2, 3]) };
    assert_eq!(
        translator().translate(&EngineEvent::Stored(event)),
        Ok(BlockEvent::Copied { tier: Tier::Host, blocks: vec![SequenceHash(2), SequenceHash(3)] })
    );
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let mut translator = translator();
    let sixteen = EngineEvent::Stored(BlockStored { block_size: 16, ..store(None, &[1]) });
    assert_eq!(translator.translate(&sixteen), Err(Unusable::BlockSize { actual: 16, registered: 2 }));
    let few = EngineEvent::Stored(BlockStored { token_ids: TokenIds::Plain(vec![1; 3]), ..store(None, &[1, 2]) });
    assert_eq!(translator.translate(&few), Err(Unusable::TokenCount { tokens: 3, blocks: 2, block_size: 2 }));
}

#[test]
fn only_the_first_full_attention_group_of_a_hybrid_model_is_taken_in() {
    let mut translator = translator();
    let group = |idx, kind, sliding_window| CacheGroup { idx: Some(idx), kind: Some(kind), sliding_window };
    let in_group = |group| EngineEvent::Stored(BlockStored { group, ..store(None, &[1]) });
    let removed = |group_idx| {
        EngineEvent::Removed(BlockRemoved {
            block_hashes: vec![SequenceHash(1)],
            group_idx: Some(group_idx),
            ..BlockRemoved::default()
        })
    };
    let reason = |result: Result<BlockEvent, Unusable>| result.map(|_| ()).map_err(|error| error.reason());
    assert!(!translator.is_hybrid());
    assert_eq!(reason(translator.translate(&in_group(group(0, "sliding_window", Some(64))))), Err("hybrid_group"));
    assert_eq!(reason(translator.translate(&removed(0))), Err("hybrid_group"));
    assert_eq!(reason(translator.translate(&in_group(group(1, "full_attention", None)))), Ok(()));
    assert_eq!(reason(translator.translate(&in_group(group(2, "full_attention", None)))), Err("hybrid_group"));
    assert_eq!(reason(translator.translate(&removed(1))), Ok(()));
    assert_eq!(reason(translator.translate(&removed(0))), Err("hybrid_group"));
    assert!(translator.is_hybrid());
}

#[test]
fn a_group_that_does_not_fit_gives_its_place_to_one_that_does() {
    let mut translator = translator();
    let group = |idx| CacheGroup { idx: Some(idx), kind: None, sliding_window: None };
    let mut reason = |event: BlockStored<'_>| {
        translator.translate(&EngineEvent::Stored(event)).map(|_| ()).map_err(|error| error.reason())
    };
    let sparse =
        |idx| BlockStored { group: group(idx), token_ids: TokenIds::Plain(vec![1, 2]), ..store(None, &[1, 2]) };
    let whole = |idx| BlockStored { group: group(idx), ..store(None, &[1, 2]) };
    assert_eq!(reason(whole(0)), Ok(()), "nothing speaks against it yet");
    assert_eq!(reason(whole(1)), Err("hybrid_group"));
    assert_eq!(reason(sparse(0)), Err("token_count_mismatch"));
    assert_eq!(reason(whole(0)), Err("hybrid_group"), "a sliding window looks full while prompts are short");
    let named = CacheGroup { kind: Some("sink_full_attention"), ..group(1) };
    assert_eq!(reason(BlockStored { group: named, ..store(None, &[1, 2]) }), Ok(()));
    assert!(translator.is_hybrid());
}

#[test]
fn a_removal_means_one_copy_or_all_as_the_engine_does_it() {
    let block_size = BlockSize::new(2).expect("two");
    for removed_copies in [RemovedCopies::One, RemovedCopies::All] {
        let mut translator = Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies });
        let expected =
            BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(4)], copies: removed_copies };
        assert_eq!(translator.translate(&removed(&[4])), Ok(expected));
    }
}

#[test]
fn a_remote_store_lies_in_the_external_tier() {
    let event = BlockStored { locality: Some("REMOTE"), ..store(None, &[1]) };
    let Ok(BlockEvent::Stored { tier, .. }) = translator().translate(&EngineEvent::Stored(event)) else {
        panic!("a usable store");
    };
    assert_eq!(tier, Tier::External);
}
