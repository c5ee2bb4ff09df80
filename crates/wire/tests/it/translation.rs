//! Translation of engine events into index events.

use std::collections::HashSet;

use flash_indexer_core::groups::{
    AttentionWindow, ClearScope, ClearedGroups, GroupBlockSize, GroupChange, GroupEvent, GroupId, RankEvent,
    SecondaryGroup,
};
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, MultimodalItem, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    Age, BlockRemoved, BlockStored, CacheGroup, Components, EngineEvent, ExtraKey, RECENT_BLOCKS_MAX, RecentBlock,
    TokenIds, TranslateError, Translation, Translator, TranslatorOptions,
};

fn translator() -> Translator {
    let block_size = BlockSize::new(2).expect("two");
    Translator::new(TranslatorOptions {
        block_size,
        lora_name: None,
        removed_copies: RemovedCopies::One,
        cache_tier: None,
    })
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
    local_hashes(HashVariant::new(lora, salt), &tokens(hashes), block_size, TokenWindow::Block)
}

/// The single change that an event is translated to.
fn translated(translator: &mut Translator, event: &EngineEvent<'_>) -> Result<RankEvent, TranslateError> {
    translator.translate(event).map(|Translation { first, rest, doubt }| {
        assert_eq!((rest, doubt), (Vec::new(), None));
        first
    })
}

/// The single change of the primary cache group that an event is translated to.
fn indexed(translator: &mut Translator, event: &EngineEvent<'_>) -> Result<BlockEvent, TranslateError> {
    translated(translator, event).map(|change| match change {
        RankEvent::Primary(event) => event,
        RankEvent::Secondary(change) => panic!("another cache group: {change:?}"),
        RankEvent::ClearedScope(scope) => panic!("a scoped clear: {scope:?}"),
    })
}

/// The local hashes that a store is translated to.
fn stored_locals(translator: &mut Translator, event: BlockStored<'_>) -> Vec<LocalHash> {
    match indexed(translator, &EngineEvent::Stored(event)).expect("a usable event") {
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
fn a_store_is_translated_with_tier_parent_and_local_hashes() {
    let event = EngineEvent::Stored(store(Some(9), &[1, 2]));
    let hashed = locals(None, None, &[1, 2]);
    assert_eq!(
        indexed(&mut translator(), &event),
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
        match indexed(&mut translator(), &EngineEvent::Removed(event)) {
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
fn blocks_inherit_the_salt_of_the_first_block_of_their_sequence() {
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
        "a removal changes no local hash"
    );
    translator.translate(&EngineEvent::Cleared).expect("a clear");
    assert_eq!(stored_locals(&mut translator, store(Some(3), &[4])), locals(None, None, &[4]));
}

#[test]
fn a_child_is_never_hashed_without_the_salt_of_a_held_parent() {
    const BLOCKS: u64 = 1 << 16;
    let mut translator = translator();
    let salted = |hashes: &[u64]| {
        let keys = vec![Some(vec![ExtraKey::Text("tenant")])];
        EngineEvent::Stored(BlockStored { extra_keys: Some(keys), ..store(None, hashes) })
    };
    let reason = |result: Result<Translation, TranslateError>| result.err().map(|error| error.reason());
    let chain = |at: u64| -> Vec<u64> { (2 + at * BLOCKS..2 + (at + 1) * BLOCKS).collect() };
    assert_eq!(reason(translator.translate(&salted(&[1]))), None);
    let stored = (0..17).map(|at| reason(translator.translate(&salted(&chain(at)))));
    assert_eq!(stored.filter(|reason| *reason == Some("salted_blocks")).count(), 2, "block 1 takes room as well");
    let chain_without_root = store(Some(1), &chain(15));
    assert_eq!(reason(translator.translate(&EngineEvent::Stored(chain_without_root))), Some("salted_blocks"));
    translator.translate(&removed(&chain(3))).expect("a removal");
    assert_eq!(stored_locals(&mut translator, store(Some(1), &[7])), locals(None, Some("tenant"), &[7]));
}

#[test]
fn a_translator_that_resumes_knows_the_components_of_a_rank() {
    let components = |full, swa, mamba| Some(Components { full, swa, mamba });
    let changes = |translator: &mut Translator, components| {
        let event = EngineEvent::Stored(BlockStored { components, ..store(None, &[1]) });
        let changes = translator.translate(&event).expect("a store").into_iter();
        let of_groups = changes.filter_map(|change| match change {
            RankEvent::Secondary(GroupChange { group, event }) => {
                Some((group.window, matches!(event, GroupEvent::Stored { .. })))
            }
            RankEvent::Primary(_) | RankEvent::ClearedScope(_) => None,
        });
        of_groups.collect::<Vec<_>>()
    };
    let mut first = translator();
    let last_block = AttentionWindow::LastBlocks(1);
    assert_eq!(changes(&mut first, components(true, false, false)), []);
    assert_eq!(changes(&mut first, components(true, true, true)), [(last_block, true), (last_block, true)]);
    assert!(first.has_unknown_window() && first.is_hybrid());
    let mut next = translator();
    next.import_groups(first.groups());
    assert!(next.has_unknown_window() && next.is_hybrid());
    assert_eq!(changes(&mut next, components(true, false, true)), [(last_block, false), (last_block, true)]);
    let removal = next.translate(&removed(&[1])).expect("a removal");
    assert_eq!((removal.rest.len(), removal.first), (2, RankEvent::Primary(removed_once(&[1]))));
}

fn removed_once(hashes: &[u64]) -> BlockEvent {
    let blocks = hashes.iter().copied().map(SequenceHash).collect();
    BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::One }
}

#[test]
fn adapter_and_salt_are_distinguished_in_every_format() {
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
        "a salt equal to the adapter's name"
    );

    let keys = vec![Some(vec![ExtraKey::Lora("adapter"), ExtraKey::Salt("tenant")])];
    let event = BlockStored { extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, event), locals(Some("adapter"), Some("tenant"), &[1]), "tagged keys");

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
        cache_tier: None,
    });
    assert_eq!(stored_locals(&mut translator, store(None, &[1])), locals(Some("house"), None, &[1]));
    let keys = vec![Some(vec![ExtraKey::Text("house")])];
    let salted = BlockStored { extra_keys: Some(keys), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, salted), locals(Some("house"), Some("house"), &[1]));
    let named = BlockStored { lora_name: Some("guest"), ..store(None, &[1]) };
    assert_eq!(stored_locals(&mut translator, named), locals(Some("guest"), None, &[1]));
}

#[test]
fn multimodal_items_change_the_local_hash() {
    let mut translator = translator();
    let keys = vec![
        Some(vec![ExtraKey::Item { id: "00000000000000ff0123", offset: 1 }]),
        Some(vec![ExtraKey::Item { id: "img", offset: -1 }, ExtraKey::Item { id: "00000000000000ff", offset: 1 }]),
    ];
    let event = BlockStored { extra_keys: Some(keys), ..store(None, &[1, 2]) };
    let found = stored_locals(&mut translator, event);
    let mut hasher = LocalHasher::default();
    let item = |offset, hash| MultimodalItem { offset, hash };
    assert_eq!(found[0], hasher.multimodal(HashVariant::default(), &tokens(&[1]), &[item(1, 0xff)]));
    let text = xxhash_rust::xxh3::xxh3_64(b"img");
    assert_eq!(
        found[1],
        hasher.multimodal(HashVariant::default(), &tokens(&[2]), &[item(1, 0xff), item(-1, text)]),
        "an identity other than a digest is hashed"
    );
}

#[test]
fn token_pairs_hash_as_a_window_with_one_more_token() {
    let mut translator = translator();
    let pairs = vec![[1, 2], [2, 3], [3, 4], [4, 5]];
    let event = BlockStored { token_ids: TokenIds::Bigrams(pairs), ..store(None, &[1, 2]) };
    let block_size = BlockSize::new(2).expect("two");
    let expected = local_hashes(HashVariant::default(), &[1, 2, 3, 4, 5], block_size, TokenWindow::BlockAndNext);
    assert_eq!(stored_locals(&mut translator, event), expected);
    assert_eq!(translator.window(), TokenWindow::BlockAndNext);
}

#[test]
fn a_store_without_tokens_is_translated_to_a_copy() {
    let event = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(Some(1), &[2, 3]) };
    assert_eq!(
        indexed(&mut translator(), &EngineEvent::Stored(event)),
        Ok(BlockEvent::Copied { tier: Tier::Host, blocks: vec![SequenceHash(2), SequenceHash(3)] })
    );
}

/// An offload: a copy in host memory, published by sequence hash alone.
fn offloaded(hashes: &[u64]) -> EngineEvent<'static> {
    let tokenless =
        BlockStored { token_ids: TokenIds::default(), block_size: 0, medium: Some("CPU"), ..store(None, &[]) };
    let block_hashes = hashes.iter().copied().map(SequenceHash).collect();
    EngineEvent::Stored(BlockStored { block_hashes, ..tokenless })
}

fn changes(translator: &mut Translator, event: &EngineEvent<'_>) -> Vec<RankEvent> {
    translator.translate(event).expect("a usable event").into_iter().collect()
}

#[test]
fn an_offloaded_block_is_stored_with_its_local_hash() {
    let mut translator = translator();
    let host = |parent: Option<u64>, hashes: &[u64]| {
        let blocks = hashes.iter().zip(locals(None, None, hashes));
        let blocks = blocks.map(|(&hash, local)| Block { sequence: SequenceHash(hash), local }).collect();
        let parent = parent.map(SequenceHash);
        RankEvent::Primary(BlockEvent::Stored { tier: Tier::Host, parent, blocks, copies: 1 })
    };
    let copied = |hashes: &[u64]| {
        let blocks = hashes.iter().copied().map(SequenceHash).collect();
        RankEvent::Primary(BlockEvent::Copied { tier: Tier::Host, blocks })
    };
    stored_locals(&mut translator, store(None, &[1]));
    assert_eq!(
        changes(&mut translator, &offloaded(&[1])),
        [copied(&[1])],
        "the first offload has no recorded local hash"
    );
    stored_locals(&mut translator, store(Some(1), &[2, 3, 4]));
    translator.translate(&removed(&[3, 4])).expect("a removal");
    assert_eq!(
        changes(&mut translator, &offloaded(&[2, 3, 1, 8, 4])),
        [host(Some(1), &[2, 3]), copied(&[1, 8]), host(Some(3), &[4])]
    );
    assert_eq!(changes(&mut translator, &offloaded(&[])), [copied(&[])]);
    translator.translate(&EngineEvent::Cleared).expect("a clear");
    assert_eq!(changes(&mut translator, &offloaded(&[2])), [copied(&[2])]);
    stored_locals(&mut translator, store(None, &[2]));
    assert_eq!(
        changes(&mut translator, &offloaded(&[2])),
        [host(None, &[2])],
        "a clear keeps the recording of recent blocks"
    );
}

#[test]
fn an_offload_with_tokens_but_without_keys_keeps_the_recorded_local_hash() {
    let mut translator = translator();
    let salted =
        |hash| BlockStored { extra_keys: Some(vec![Some(vec![ExtraKey::Text("tenant")])]), ..store(None, &[hash]) };
    let image = vec![Some(vec![ExtraKey::Item { id: "00000000000000ff", offset: 1 }])];
    let expected = stored_locals(&mut translator, salted(1));
    let on_cpu = |parent, hash| BlockStored { medium: Some("CPU"), ..store(parent, &[hash]) };
    assert_eq!(stored_locals(&mut translator, on_cpu(None, 1)), expected, "the salt of a recorded block");
    let shown = stored_locals(&mut translator, BlockStored { extra_keys: Some(image), ..store(Some(1), &[2]) });
    assert_eq!(stored_locals(&mut translator, on_cpu(Some(1), 2)), shown);
    assert_ne!(shown, locals(None, Some("tenant"), &[2]));
    assert_eq!(stored_locals(&mut translator, on_cpu(Some(2), 3)), locals(None, Some("tenant"), &[3]), "a new block");
}

#[test]
fn an_event_of_the_wrong_size_is_rejected_with_a_reason() {
    let mut translator = translator();
    let sixteen = EngineEvent::Stored(BlockStored { block_size: 16, ..store(None, &[1]) });
    assert_eq!(translator.translate(&sixteen), Err(TranslateError::BlockSize { actual: 16, registered: 2 }));
    let few = EngineEvent::Stored(BlockStored { token_ids: TokenIds::Plain(vec![1; 3]), ..store(None, &[1, 2]) });
    assert_eq!(translator.translate(&few), Err(TranslateError::TokenCount { tokens: 3, blocks: 2, block_size: 2 }));
}

fn group(idx: u32, kind: &'static str, sliding_window: Option<u32>) -> CacheGroup<'static> {
    CacheGroup { idx: Some(idx), kind: Some(kind), sliding_window }
}

/// A store of a group that omits blocks: it has more tokens than its blocks hold.
fn sparse(group: CacheGroup<'_>) -> EngineEvent<'_> {
    EngineEvent::Stored(BlockStored { group, token_ids: TokenIds::Plain(vec![1; 8]), ..store(None, &[3, 4]) })
}

fn removed_in(group_idx: Option<u32>) -> EngineEvent<'static> {
    EngineEvent::Removed(BlockRemoved { block_hashes: vec![SequenceHash(4)], group_idx, ..BlockRemoved::default() })
}

/// Number, reach and event of a secondary group's change.
fn secondary(result: Result<RankEvent, TranslateError>) -> Result<(u32, AttentionWindow, GroupEvent), &'static str> {
    match result {
        Ok(RankEvent::Secondary(GroupChange { group, event })) => Ok((group.id.0, group.window, event)),
        Ok(RankEvent::Primary(_)) => Err("indexed"),
        Ok(RankEvent::ClearedScope(_)) => Err("cleared"),
        Err(error) => Err(error.reason()),
    }
}

#[test]
fn every_group_after_the_first_full_attention_group_is_secondary() {
    let mut translator = translator();
    let stored = GroupEvent::Stored { tier: Tier::Device, blocks: vec![SequenceHash(3), SequenceHash(4)], copies: 1 };
    let taken_away =
        GroupEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(4)], copies: RemovedCopies::One };
    let mut secondary = |event| secondary(translated(&mut translator, &event));
    let whole = |group| EngineEvent::Stored(BlockStored { group, ..store(None, &[3, 4]) });
    let cases = [
        (group(0, "sliding_window", Some(6)), AttentionWindow::LastBlocks(3)),
        (group(1, "sliding_window_mla", Some(5)), AttentionWindow::LastBlocks(2)),
        (group(2, "mamba", None), AttentionWindow::LastBlocks(1)),
    ];
    for (group, reach) in cases {
        let idx = group.idx.expect("a number");
        assert_eq!(secondary(sparse(group)), Ok((idx, reach, stored.clone())));
        assert_eq!(secondary(removed_in(Some(idx))), Ok((idx, reach, taken_away.clone())));
    }
    assert_eq!(secondary(whole(group(3, "full_attention", None))), Err("indexed"));
    assert_eq!(secondary(whole(group(4, "mla_attention", None))), Ok((4, AttentionWindow::Full, stored.clone())));
    assert_eq!(secondary(removed_in(Some(4))), Ok((4, AttentionWindow::Full, taken_away)));
    assert_eq!(secondary(removed_in(Some(3))), Err("indexed"));
    let offloaded = BlockStored {
        group: CacheGroup { idx: Some(0), ..CacheGroup::default() },
        token_ids: TokenIds::default(),
        block_size: 0,
        medium: Some("CPU"),
        ..store(None, &[3])
    };
    let copy = GroupEvent::Stored { tier: Tier::Host, blocks: vec![SequenceHash(3)], copies: 1 };
    assert_eq!(
        secondary(EngineEvent::Stored(offloaded)),
        Ok((0, AttentionWindow::LastBlocks(3), copy)),
        "an offload identifies its group by number only"
    );
    assert_eq!(secondary(whole(CacheGroup::default())), Err("unnamed_group"));
    assert_eq!(secondary(removed_in(None)), Err("unnamed_group"));
    assert!(!translator.has_unsupported_groups());
}

#[test]
fn a_group_of_an_unsupported_kind_is_rejected() {
    for unknown in [
        group(1, "chunked_local_attention", None),
        group(1, "sliding_window", None),
        group(1, "cross_attention", None),
        CacheGroup { kind: None, ..group(1, "", None) },
    ] {
        let mut translator = translator();
        let indexed = EngineEvent::Stored(BlockStored { group: group(0, "full_attention", None), ..store(None, &[1]) });
        assert_eq!(secondary(translated(&mut translator, &indexed)), Err("indexed"));
        assert!(!translator.has_unsupported_groups());
        assert_eq!(secondary(translated(&mut translator, &sparse(unknown))), Err("hybrid_group"), "{unknown:?}");
        assert_eq!(secondary(translated(&mut translator, &removed_in(Some(1)))), Err("hybrid_group"));
        assert!(translator.has_unsupported_groups());
        assert_eq!(secondary(translated(&mut translator, &indexed)), Err("indexed"), "the primary group still works");
    }
}

#[test]
fn a_rank_without_a_primary_group_is_reported() {
    let mut translator = translator();
    assert!(!translator.lacks_primary_group());
    assert!(translated(&mut translator, &sparse(group(0, "sliding_window", Some(6)))).is_ok());
    assert!(translator.lacks_primary_group());
    let full = EngineEvent::Stored(BlockStored { group: group(1, "full_attention", None), ..store(None, &[1]) });
    assert!(translated(&mut translator, &full).is_ok());
    assert!(!translator.lacks_primary_group());
}

#[test]
fn a_translator_resumes_with_imported_salts_and_groups() {
    let mut first = translator();
    let keys = vec![Some(vec![ExtraKey::Text("tenant")])];
    let salted = BlockStored { group: group(1, "full_attention", None), extra_keys: Some(keys), ..store(None, &[1]) };
    for event in [
        sparse(group(0, "sliding_window", Some(6))),
        EngineEvent::Stored(salted),
        EngineEvent::Stored(BlockStored { group: group(2, "mla_attention", None), ..store(None, &[1]) }),
    ] {
        first.translate(&event).expect("a usable event");
    }
    assert!(first.translate(&sparse(group(3, "of_the_future", None))).is_err());
    let mut next = translator();
    next.import_groups(first.groups());
    next.import_salts(first.salts());
    for idx in 0..4 {
        let of = |translator: &mut Translator| secondary(translated(translator, &removed_in(Some(idx))));
        assert_eq!(of(&mut next), of(&mut first), "group {idx}");
    }
    assert!(next.has_unsupported_groups() && !next.lacks_primary_group());
    let after = BlockStored { group: group(1, "full_attention", None), ..store(Some(1), &[2]) };
    assert_eq!(stored_locals(&mut next, after), locals(None, Some("tenant"), &[2]));
}

#[test]
fn a_translator_resumes_with_imported_recent_blocks() {
    let mut first = translator();
    let mut next = translator();
    stored_locals(&mut first, store(None, &[1, 2]));
    assert!(first.recent_blocks().is_none(), "the rank has not offloaded");
    changes(&mut first, &offloaded(&[1]));
    next.import_recent_blocks(first.recent_blocks().expect("a rank that offloads"));
    stored_locals(&mut next, store(None, &[1]));
    assert_eq!(
        next.recent_blocks().expect("a rank that offloads").count(),
        1,
        "recording starts with the first offload"
    );

    stored_locals(&mut first, store(Some(2), &[3, 4]));
    first.translate(&removed(&[3, 4])).expect("a removal");
    next = translator();
    next.import_recent_blocks(first.recent_blocks().expect("a rank that offloads"));
    assert_eq!(
        next.recent_blocks().expect("a rank that offloads").count(),
        2,
        "blocks 1 and 2 were stored before the first offload"
    );
    for hashes in [&[4, 3][..], &[2, 3, 4]] {
        assert_eq!(changes(&mut next, &offloaded(hashes)), changes(&mut first, &offloaded(hashes)));
    }
}

#[test]
fn imported_recent_blocks_keep_their_generation_and_are_bounded() {
    let content =
        |name: u64, age| RecentBlock { sequence: SequenceHash(name), parent: None, local: LocalHash(name), age };
    let recent_blocks: HashSet<_> =
        (0..10).map(|name| content(name, if name < 4 { Age::Old } else { Age::Young })).collect();
    let mut next = translator();
    next.import_recent_blocks(recent_blocks.iter().copied());
    assert_eq!(next.recent_blocks().expect("a rank that offloads").collect::<HashSet<_>>(), recent_blocks);
    next = translator();
    next.import_recent_blocks((0..RECENT_BLOCKS_MAX as u64 + 10).map(|name| content(name, Age::Young)));
    assert_eq!(next.recent_blocks().expect("a rank that offloads").count(), RECENT_BLOCKS_MAX);
}

/// A store of one block of `block_size` tokens in a group.
fn sized(group: CacheGroup<'_>, block_size: u32, hash: u64) -> EngineEvent<'_> {
    let token_ids = TokenIds::Plain(vec![1; block_size as usize]);
    EngineEvent::Stored(BlockStored { group, block_size, token_ids, ..store(None, &[hash]) })
}

/// The group of an event's change.
fn group_of(translator: &mut Translator, event: &EngineEvent<'_>) -> Result<SecondaryGroup, &'static str> {
    match translated(translator, event) {
        Ok(RankEvent::Secondary(change)) => Ok(change.group),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.reason()),
    }
}

fn large(id: u32, window: AttentionWindow, blocks: u32) -> SecondaryGroup {
    let registered = BlockSize::new(2).expect("two");
    let size = GroupBlockSize::of(2 * blocks, registered).expect("a multiple");
    SecondaryGroup { id: GroupId(id), window, size }
}

#[test]
fn each_secondary_group_has_the_block_size_of_its_first_store() {
    let mut translator = translator();
    let window = group(0, "sliding_window", Some(6));
    let state = group(1, "mamba", None);
    let full = group(2, "full_attention", None);
    let of_window = large(0, AttentionWindow::LastBlocks(2), 2);
    assert_eq!(group_of(&mut translator, &sized(window, 4, 1)), Ok(of_window), "5 tokens before the next one");
    assert_eq!(group_of(&mut translator, &removed_in(Some(0))), Ok(of_window));
    assert_eq!(group_of(&mut translator, &sized(state, 8, 1)), Ok(large(1, AttentionWindow::LastBlocks(1), 4)));
    assert!(translated(&mut translator, &sized(full, 2, 1)).is_ok());
    let offload = BlockStored {
        group: CacheGroup { kind: None, ..window },
        token_ids: TokenIds::default(),
        block_size: 2,
        medium: Some("CPU"),
        ..store(None, &[1])
    };
    let offload = EngineEvent::Stored(offload);
    assert_eq!(group_of(&mut translator, &offload), Ok(of_window), "such a store can have the granularity of hashes");
    assert!(!translator.has_unsupported_groups() && !translator.lacks_primary_group());

    let mut next = self::translator();
    next.import_groups(translator.groups());
    for idx in [0, 1] {
        let removed = removed_in(Some(idx));
        assert_eq!(group_of(&mut next, &removed), group_of(&mut translator, &removed));
    }
    assert_eq!(group_of(&mut next, &sized(window, 6, 2)), Err("block_size_mismatch"), "an imported size is known");
}

#[test]
fn a_group_that_is_named_before_its_size_gets_its_window_in_its_own_blocks() {
    let window = group(0, "sliding_window", Some(6));
    let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, &[1]) };
    let tokenless = EngineEvent::Stored(BlockStored { group: window, medium: Some("CPU"), ..tokenless });
    let unnamed = CacheGroup { kind: None, ..window };
    for named in [window, unnamed] {
        let mut translator = translator();
        let registered = large(0, AttentionWindow::LastBlocks(3), 1);
        assert_eq!(group_of(&mut translator, &tokenless), Ok(registered), "the registered size until a store shows it");
        let sized = sized(named, 4, 2);
        assert_eq!(group_of(&mut translator, &sized), Ok(large(0, AttentionWindow::LastBlocks(2), 2)));
    }
    let placeholder = BlockStored { token_ids: TokenIds::default(), block_size: 4, ..store(None, &[1]) };
    let placeholder = EngineEvent::Stored(BlockStored { group: window, ..placeholder });
    let of_window = large(0, AttentionWindow::LastBlocks(2), 2);
    assert_eq!(
        group_of(&mut translator(), &placeholder),
        Ok(of_window),
        "a store of the device shows it without tokens"
    );
}

#[test]
fn sizes_of_a_group_that_do_not_fit_are_rejected() {
    let window = group(0, "sliding_window", Some(6));
    for size in [0, 3, 5] {
        let token_ids = TokenIds::Plain(vec![1; 6]);
        let event = BlockStored { group: window, block_size: size, token_ids, ..store(None, &[1]) };
        let expected = TranslateError::GroupBlockSize { group: 0, actual: size, registered: 2, known: None };
        assert_eq!(translator().translate(&EngineEvent::Stored(event)), Err(expected));
    }
    let mut translator = translator();
    assert!(translated(&mut translator, &sized(window, 4, 1)).is_ok());
    let error = translated(&mut translator, &sized(window, 6, 2)).expect_err("another size");
    assert_eq!(error.reason(), "block_size_mismatch");
    assert!(error.to_string().contains("after blocks of 4"), "{error}");
    let of_window = large(0, AttentionWindow::LastBlocks(2), 2);
    assert_eq!(group_of(&mut translator, &sized(window, 4, 3)), Ok(of_window), "the first size stays");
    let full = sized(group(1, "full_attention", None), 4, 1);
    let expected = TranslateError::BlockSize { actual: 4, registered: 2 };
    assert_eq!(translated(&mut translator, &full), Err(expected), "the primary group has the registered size");
}

/// A translator of a rank with a full-attention group of 16 tokens.
fn sixteen() -> Translator {
    let block_size = BlockSize::new(16).expect("not zero");
    Translator::new(TranslatorOptions {
        block_size,
        lora_name: None,
        removed_copies: RemovedCopies::One,
        cache_tier: None,
    })
}

/// A store of a group with blocks of `size` tokens that covers `covered` blocks.
fn finer<'a>(group: CacheGroup<'a>, size: u32, covered: usize, parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    let token_ids = TokenIds::Plain(vec![1; size as usize * covered]);
    EngineEvent::Stored(BlockStored { group, block_size: size, token_ids, ..store(parent, hashes) })
}

/// The links of a translated store, as pairs of sequence hashes.
fn links(translator: &mut Translator, event: &EngineEvent<'_>) -> Vec<(u64, Option<u64>)> {
    let mut links = Vec::new();
    for change in translator.translate(event).expect("a usable event") {
        if let RankEvent::Secondary(GroupChange { event: GroupEvent::Linked(shown), .. }) = change {
            links.extend(shown.iter().map(|link| (link.block.0, link.before.map(|before| before.0))));
        }
    }
    links
}

#[test]
fn a_group_with_smaller_blocks_has_its_window_in_them_and_links() {
    let mut translator = sixteen();
    let window = group(1, "sliding_window", Some(13));
    let event = finer(window, 4, 3, Some(1), &[2, 3, 4]);
    let Translation { first, rest, .. } = translator.translate(&event).expect("a usable event");
    let RankEvent::Secondary(GroupChange { group: known, event: GroupEvent::Linked(shown) }) = first else {
        panic!("links come first: {first:?}");
    };
    assert_eq!((known.window, known.size.parts(), shown.len()), (AttentionWindow::LastBlocks(3), 4, 3));
    let blocks = [2, 3, 4].map(SequenceHash).to_vec();
    let stored = GroupEvent::Stored { tier: Tier::Device, blocks, copies: 1 };
    assert_eq!(rest, [RankEvent::Secondary(GroupChange { group: known, event: stored })]);

    let shown = |covered, hashes: &[u64]| links(&mut sixteen(), &finer(window, 4, covered, Some(1), hashes));
    assert_eq!(shown(3, &[2, 3, 4]), [(2, Some(1)), (3, Some(2)), (4, Some(3))]);
    assert_eq!(shown(8, &[2, 3, 4, 6, 7, 8]).len(), 6, "the first of each four is not needed");
    assert_eq!(shown(8, &[4, 6, 7, 8]), [(6, Some(4)), (7, Some(6)), (8, Some(7))], "blocks are missing at the start");
    assert_eq!(shown(2, &[2, 3, 4]), [], "more hashes than tokens");
    let state = group(1, "mamba", None);
    assert_eq!(
        links(&mut sixteen(), &finer(state, 4, 3, Some(1), &[2, 3, 4])),
        [],
        "a state needs the last block only"
    );
    let wide = group(1, "sliding_window", Some(40));
    assert_eq!(
        links(&mut sixteen(), &finer(wide, 4, 3, Some(1), &[3, 4])),
        [],
        "every block is needed, and one is missing"
    );
    assert_eq!(links(&mut sixteen(), &finer(wide, 4, 2, None, &[3, 4])), [(3, None), (4, Some(3))]);
}

#[test]
fn partial_entries_are_left_out_and_a_group_grows_to_its_whole_blocks() {
    let mut translator = sixteen();
    let (full, state) = (group(0, "full_attention", None), group(1, "mamba", None));
    let whole = |group, hashes: &[u64]| finer(group, 16, hashes.len(), None, hashes);
    let reason = |translator: &mut Translator, event: &EngineEvent<'_>| {
        translator.translate(event).err().map(|error| error.reason())
    };
    let partial = |group| finer(group, 4, 1, Some(7), &[8]);
    assert_eq!(reason(&mut translator, &partial(full)), Some("block_size_mismatch"), "the size may be wrong");
    assert_eq!(reason(&mut translator, &whole(full, &[1])), None);
    assert_eq!(reason(&mut translator, &partial(full)), Some("partial_entry"));
    assert_eq!(reason(&mut translator, &finer(full, 6, 1, Some(7), &[8])), Some("block_size_mismatch"));

    assert_eq!(reason(&mut translator, &partial(state)), None, "the first size that the group shows");
    let grown = translator.translate(&whole(state, &[1])).expect("a usable event");
    let scope = ClearScope { tier: None, groups: ClearedGroups::Secondary(GroupId(1)) };
    assert_eq!(grown.first, RankEvent::ClearedScope(scope));
    assert_eq!(grown.doubt.map(|doubt| doubt.reason()), Some("partial_entry"));
    assert_eq!(grown.rest.len(), 1);
    assert_eq!(reason(&mut translator, &partial(state)), Some("partial_entry"));
    assert_eq!(reason(&mut translator, &whole(state, &[2])), None);
}

#[test]
fn a_window_in_registered_blocks_does_not_fit_smaller_blocks() {
    let window = group(0, "sliding_window", Some(6));
    let unnamed = CacheGroup { kind: None, ..window };
    let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, &[1]) };
    let tokenless = EngineEvent::Stored(BlockStored { group: window, medium: Some("CPU"), ..tokenless });
    let mut translator = sixteen();
    assert!(translated(&mut translator, &tokenless).is_ok());
    assert_eq!(group_of(&mut translator, &finer(unnamed, 4, 1, None, &[2])), Err("block_size_mismatch"));
    assert_eq!(
        links(&mut translator, &finer(window, 4, 1, None, &[2])),
        [(2, None)],
        "the kind names the window again"
    );
}

#[test]
fn a_primary_group_that_does_not_fit_is_replaced() {
    let mut translator = translator();
    let group = |idx| CacheGroup { idx: Some(idx), ..CacheGroup::default() };
    let mut reason = |event: BlockStored<'_>| {
        translator.translate(&EngineEvent::Stored(event)).map(|_| ()).map_err(|error| error.reason())
    };
    let sparse =
        |idx| BlockStored { group: group(idx), token_ids: TokenIds::Plain(vec![1, 2]), ..store(None, &[1, 2]) };
    let whole = |idx| BlockStored { group: group(idx), ..store(None, &[1, 2]) };
    assert_eq!(reason(whole(0)), Ok(()), "the group fits so far");
    assert_eq!(reason(whole(1)), Err("hybrid_group"));
    assert_eq!(reason(sparse(0)), Err("token_count_mismatch"));
    assert_eq!(
        reason(whole(0)),
        Err("hybrid_group"),
        "a sliding window resembles full attention while prompts are short"
    );
    let named = CacheGroup { kind: Some("sink_full_attention"), ..group(1) };
    assert_eq!(reason(BlockStored { group: named, ..store(None, &[1, 2]) }), Ok(()));
    assert!(translator.has_unsupported_groups());
}

#[test]
fn a_removal_ends_one_copy_or_all_copies_as_configured() {
    let block_size = BlockSize::new(2).expect("two");
    for removed_copies in [RemovedCopies::One, RemovedCopies::All] {
        let mut translator =
            Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies, cache_tier: None });
        let expected =
            BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(4)], copies: removed_copies };
        assert_eq!(indexed(&mut translator, &removed(&[4])), Ok(expected));
    }
}

#[test]
fn a_remote_store_is_in_the_external_tier() {
    let event = BlockStored { locality: Some("REMOTE"), ..store(None, &[1]) };
    let Ok(BlockEvent::Stored { tier, .. }) = indexed(&mut translator(), &EngineEvent::Stored(event)) else {
        panic!("a usable store");
    };
    assert_eq!(tier, Tier::External);
}
