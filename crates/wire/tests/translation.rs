//! What an event means to an index.

use std::collections::HashSet;

use flash_indexer_core::groups::{GroupChange, GroupEvent, RankEvent, AttentionWindow};
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, MultimodalItem, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_wire::{
    Age, BlockRemoved, BlockStored, CONTENTS_MAX, CacheGroup, EngineEvent, ExtraKey, RecentBlock, TokenIds, Translated,
    Translator, TranslatorOptions, Unusable,
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
    local_hashes(HashVariant::new(lora, salt), &tokens(hashes), block_size, TokenWindow::Block)
}

/// The one change that an event is translated to.
fn translated(translator: &mut Translator, event: &EngineEvent<'_>) -> Result<RankEvent, Unusable> {
    translator.translate(event).map(|Translated { first, rest }| {
        assert_eq!(rest, []);
        first
    })
}

/// The same of the indexed cache group.
fn indexed(translator: &mut Translator, event: &EngineEvent<'_>) -> Result<BlockEvent, Unusable> {
    translated(translator, event).map(|change| match change {
        RankEvent::Indexed(event) => event,
        RankEvent::Secondary(change) => panic!("another cache group: {change:?}"),
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
fn a_store_names_tier_parent_and_content() {
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
    assert_eq!(found[0], hasher.multimodal(HashVariant::default(), &tokens(&[1]), &[item(1, 0xff)]));
    let text = xxhash_rust::xxh3::xxh3_64(b"img");
    assert_eq!(
        found[1],
        hasher.multimodal(HashVariant::default(), &tokens(&[2]), &[item(1, 0xff), item(-1, text)]),
        "an identity that is no digest is hashed"
    );
}

#[test]
fn token_pairs_hash_as_a_window_that_reaches_one_token_further() {
    let mut translator = translator();
    let pairs = vec![[1, 2], [2, 3], [3, 4], [4, 5]];
    let event = BlockStored { token_ids: TokenIds::Bigrams(pairs), ..store(None, &[1, 2]) };
    let block_size = BlockSize::new(2).expect("two");
    let expected = local_hashes(HashVariant::default(), &[1, 2, 3, 4, 5], block_size, TokenWindow::BlockAndNext);
    assert_eq!(stored_locals(&mut translator, event), expected);
    assert_eq!(translator.window(), TokenWindow::BlockAndNext);
}

#[test]
fn a_store_without_tokens_names_blocks_that_are_known() {
    let event = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(Some(1), &[2, 3]) };
    assert_eq!(
        indexed(&mut translator(), &EngineEvent::Stored(event)),
        Ok(BlockEvent::Copied { tier: Tier::Host, blocks: vec![SequenceHash(2), SequenceHash(3)] })
    );
}

/// An offload: a copy in host memory that is told by name alone.
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
fn an_offloaded_block_is_told_again_with_what_it_contains() {
    let mut translator = translator();
    let host = |parent: Option<u64>, hashes: &[u64]| {
        let blocks = hashes.iter().zip(locals(None, None, hashes));
        let blocks = blocks.map(|(&hash, local)| Block { sequence: SequenceHash(hash), local }).collect();
        let parent = parent.map(SequenceHash);
        RankEvent::Indexed(BlockEvent::Stored { tier: Tier::Host, parent, blocks, copies: 1 })
    };
    let copied = |hashes: &[u64]| {
        let blocks = hashes.iter().copied().map(SequenceHash).collect();
        RankEvent::Indexed(BlockEvent::Copied { tier: Tier::Host, blocks })
    };
    stored_locals(&mut translator, store(None, &[1]));
    assert_eq!(changes(&mut translator, &offloaded(&[1])), [copied(&[1])], "nobody knew yet that it offloads");
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
    assert_eq!(changes(&mut translator, &offloaded(&[2])), [host(None, &[2])], "it still offloads");
}

#[test]
fn an_offload_that_tells_tokens_without_keys_keeps_the_content_that_was_told() {
    let mut translator = translator();
    let salted =
        |hash| BlockStored { extra_keys: Some(vec![Some(vec![ExtraKey::Text("tenant")])]), ..store(None, &[hash]) };
    let image = vec![Some(vec![ExtraKey::Item { id: "00000000000000ff", offset: 1 }])];
    let expected = stored_locals(&mut translator, salted(1));
    let on_cpu = |parent, hash| BlockStored { medium: Some("CPU"), ..store(parent, &[hash]) };
    assert_eq!(stored_locals(&mut translator, on_cpu(None, 1)), expected, "the salt of a block that is known");
    let shown = stored_locals(&mut translator, BlockStored { extra_keys: Some(image), ..store(Some(1), &[2]) });
    assert_eq!(stored_locals(&mut translator, on_cpu(Some(1), 2)), shown);
    assert_ne!(shown, locals(None, Some("tenant"), &[2]));
    assert_eq!(stored_locals(&mut translator, on_cpu(Some(2), 3)), locals(None, Some("tenant"), &[3]), "a new one");
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let mut translator = translator();
    let sixteen = EngineEvent::Stored(BlockStored { block_size: 16, ..store(None, &[1]) });
    assert_eq!(translator.translate(&sixteen), Err(Unusable::BlockSize { actual: 16, registered: 2 }));
    let few = EngineEvent::Stored(BlockStored { token_ids: TokenIds::Plain(vec![1; 3]), ..store(None, &[1, 2]) });
    assert_eq!(translator.translate(&few), Err(Unusable::TokenCount { tokens: 3, blocks: 2, block_size: 2 }));
}

fn group(idx: u32, kind: &'static str, sliding_window: Option<u32>) -> CacheGroup<'static> {
    CacheGroup { idx: Some(idx), kind: Some(kind), sliding_window }
}

/// A store of some blocks in a group that skips others: its tokens are more than its blocks have.
fn sparse(group: CacheGroup<'_>) -> EngineEvent<'_> {
    EngineEvent::Stored(BlockStored { group, token_ids: TokenIds::Plain(vec![1; 8]), ..store(None, &[3, 4]) })
}

fn removed_in(group_idx: Option<u32>) -> EngineEvent<'static> {
    EngineEvent::Removed(BlockRemoved { block_hashes: vec![SequenceHash(4)], group_idx, ..BlockRemoved::default() })
}

/// A change of a group that is not indexed, as its number and what it reaches.
fn further(result: Result<RankEvent, Unusable>) -> Result<(u32, AttentionWindow, GroupEvent), &'static str> {
    match result {
        Ok(RankEvent::Secondary(GroupChange { group, event })) => Ok((group.id.0, group.window, event)),
        Ok(RankEvent::Indexed(_)) => Err("indexed"),
        Err(error) => Err(error.reason()),
    }
}

#[test]
fn groups_besides_the_first_full_attention_one_are_told_by_name() {
    let mut translator = translator();
    let stored = GroupEvent::Stored { tier: Tier::Device, blocks: vec![SequenceHash(3), SequenceHash(4)], copies: 1 };
    let taken_away =
        GroupEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(4)], copies: RemovedCopies::One };
    let mut further = |event| further(translated(&mut translator, &event));
    let whole = |group| EngineEvent::Stored(BlockStored { group, ..store(None, &[3, 4]) });
    let cases = [
        (group(0, "sliding_window", Some(6)), AttentionWindow::LastBlocks(3)),
        (group(1, "sliding_window_mla", Some(5)), AttentionWindow::LastBlocks(2)),
        (group(2, "mamba", None), AttentionWindow::LastBlocks(1)),
    ];
    for (group, reach) in cases {
        let idx = group.idx.expect("a number");
        assert_eq!(further(sparse(group)), Ok((idx, reach, stored.clone())));
        assert_eq!(further(removed_in(Some(idx))), Ok((idx, reach, taken_away.clone())));
    }
    assert_eq!(further(whole(group(3, "full_attention", None))), Err("indexed"));
    assert_eq!(further(whole(group(4, "mla_attention", None))), Ok((4, AttentionWindow::Full, stored.clone())));
    assert_eq!(further(removed_in(Some(4))), Ok((4, AttentionWindow::Full, taken_away)));
    assert_eq!(further(removed_in(Some(3))), Err("indexed"));
    let offloaded = BlockStored {
        group: CacheGroup { idx: Some(0), ..CacheGroup::default() },
        token_ids: TokenIds::default(),
        block_size: 0,
        medium: Some("CPU"),
        ..store(None, &[3])
    };
    let copy = GroupEvent::Stored { tier: Tier::Host, blocks: vec![SequenceHash(3)], copies: 1 };
    assert_eq!(
        further(EngineEvent::Stored(offloaded)),
        Ok((0, AttentionWindow::LastBlocks(3), copy)),
        "an offload names its group by number alone"
    );
    assert_eq!(further(whole(CacheGroup::default())), Err("unnamed_group"));
    assert_eq!(further(removed_in(None)), Err("unnamed_group"));
    assert!(!translator.ignores_groups());
}

#[test]
fn a_group_that_nobody_understands_is_set_aside() {
    for unknown in [
        group(1, "chunked_local_attention", None),
        group(1, "sliding_window", None),
        group(1, "cross_attention", None),
        CacheGroup { kind: None, ..group(1, "", None) },
    ] {
        let mut translator = translator();
        let indexed = EngineEvent::Stored(BlockStored { group: group(0, "full_attention", None), ..store(None, &[1]) });
        assert_eq!(further(translated(&mut translator, &indexed)), Err("indexed"));
        assert!(!translator.ignores_groups());
        assert_eq!(further(translated(&mut translator, &sparse(unknown))), Err("hybrid_group"), "{unknown:?}");
        assert_eq!(further(translated(&mut translator, &removed_in(Some(1)))), Err("hybrid_group"));
        assert!(translator.ignores_groups());
        assert_eq!(further(translated(&mut translator, &indexed)), Err("indexed"), "the rest goes on");
    }
}

#[test]
fn groups_that_tell_no_content_are_told_apart_from_those_that_do() {
    let mut translator = translator();
    assert!(!translator.lacks_content());
    assert!(translated(&mut translator, &sparse(group(0, "sliding_window", Some(6)))).is_ok());
    assert!(translator.lacks_content());
    let full = EngineEvent::Stored(BlockStored { group: group(1, "full_attention", None), ..store(None, &[1]) });
    assert!(translated(&mut translator, &full).is_ok());
    assert!(!translator.lacks_content());
}

#[test]
fn a_translator_that_goes_on_in_the_middle_of_a_stream_can_learn_what_came_before() {
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
    next.learn_groups(first.groups());
    next.learn_salts(first.salts());
    for idx in 0..4 {
        let of = |translator: &mut Translator| further(translated(translator, &removed_in(Some(idx))));
        assert_eq!(of(&mut next), of(&mut first), "group {idx}");
    }
    assert!(next.ignores_groups() && !next.lacks_content());
    let after = BlockStored { group: group(1, "full_attention", None), ..store(Some(1), &[2]) };
    assert_eq!(stored_locals(&mut next, after), locals(None, Some("tenant"), &[2]));
}

#[test]
fn a_translator_that_goes_on_knows_what_dropped_blocks_contain() {
    let mut first = translator();
    let mut next = translator();
    stored_locals(&mut first, store(None, &[1, 2]));
    assert!(first.contents().is_none(), "nothing says that it offloads");
    changes(&mut first, &offloaded(&[1]));
    next.learn_contents(first.contents().expect("it offloads"));
    stored_locals(&mut next, store(None, &[1]));
    assert_eq!(next.contents().expect("it offloads").count(), 1, "also when there was nothing to remember yet");

    stored_locals(&mut first, store(Some(2), &[3, 4]));
    first.translate(&removed(&[3, 4])).expect("a removal");
    next = translator();
    next.learn_contents(first.contents().expect("it offloads"));
    assert_eq!(next.contents().expect("it offloads").count(), 2, "blocks 1 and 2 came before the first offload");
    for hashes in [&[4, 3][..], &[2, 3, 4]] {
        assert_eq!(changes(&mut next, &offloaded(hashes)), changes(&mut first, &offloaded(hashes)));
    }
}

#[test]
fn contents_that_are_learned_are_kept_apart_by_age_and_bounded() {
    let content =
        |name: u64, age| RecentBlock { sequence: SequenceHash(name), parent: None, local: LocalHash(name), age };
    let told: HashSet<_> = (0..10).map(|name| content(name, if name < 4 { Age::Old } else { Age::Young })).collect();
    let mut next = translator();
    next.learn_contents(told.iter().copied());
    assert_eq!(next.contents().expect("it offloads").collect::<HashSet<_>>(), told);
    next = translator();
    next.learn_contents((0..CONTENTS_MAX as u64 + 10).map(|name| content(name, Age::Young)));
    assert_eq!(next.contents().expect("it offloads").count(), CONTENTS_MAX);
}

#[test]
fn blocks_of_another_size_are_refused_in_every_group() {
    let group = group(0, "sliding_window", Some(6));
    let other = EngineEvent::Stored(BlockStored { group, block_size: 16, ..store(None, &[1]) });
    assert_eq!(further(translated(&mut translator(), &other)), Err("block_size_mismatch"));
}

#[test]
fn a_group_that_does_not_fit_gives_its_place_to_one_that_does() {
    let mut translator = translator();
    let group = |idx| CacheGroup { idx: Some(idx), ..CacheGroup::default() };
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
    assert!(translator.ignores_groups());
}

#[test]
fn a_removal_means_one_copy_or_all_as_the_engine_does_it() {
    let block_size = BlockSize::new(2).expect("two");
    for removed_copies in [RemovedCopies::One, RemovedCopies::All] {
        let mut translator = Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies });
        let expected =
            BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(4)], copies: removed_copies };
        assert_eq!(indexed(&mut translator, &removed(&[4])), Ok(expected));
    }
}

#[test]
fn a_remote_store_lies_in_the_external_tier() {
    let event = BlockStored { locality: Some("REMOTE"), ..store(None, &[1]) };
    let Ok(BlockEvent::Stored { tier, .. }) = indexed(&mut translator(), &EngineEvent::Stored(event)) else {
        panic!("a usable store");
    };
    assert_eq!(tier, Tier::External);
}
