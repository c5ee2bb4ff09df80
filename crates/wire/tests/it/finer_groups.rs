//! Cache groups whose blocks are smaller than the registered ones: the events of a simulated engine, which stores only the
//! blocks that its windows need, give the prefix lengths that the engine itself finds.

use std::collections::BTreeMap;

use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{DpRank, RemovedCopies, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank};
use flash_indexer_wire::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, TokenIds, Translator, TranslatorOptions};
use proptest::collection::vec;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
/// Tokens of a block of full attention, the registered size, and the multiple of all sizes.
const REGISTERED: usize = 16;

/// A cache group of the engine.
#[derive(Debug, Clone)]
struct Group {
    size: usize,
    /// Tokens of the sliding window; none for full attention.
    window: Option<usize>,
}

/// Which of the computed blocks the engine stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retention {
    /// Every block.
    Dense,
    /// Those that a window needs at the end of a registered block.
    Tails,
    /// The same, and one more after each end, for a draft model.
    DraftTails,
    /// The same as tails, and those at the end of each prompt.
    TailsAndEnd,
    /// Those that a window needs at the end of every second registered block.
    SparseTails,
}

/// Tokens that the engine has loaded from another cache when a request starts, without the blocks that its windows do not need.
#[derive(Debug, Clone, Copy)]
struct Load {
    blocks: usize,
    /// Whether the engine's store covers the blocks that it did not load.
    covers_missing: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Request { prompt: Vec<u32>, chunks: Vec<usize>, load: Option<Load> },
    Evict { group: usize, nth: usize },
}

struct Engine {
    groups: Vec<Group>,
    retention: Retention,
    /// Copies of each block, by group and the tokens up to its end.
    held: BTreeMap<(usize, Vec<u32>), u32>,
}

fn name(prefix: &[u32]) -> SequenceHash {
    let bytes: Vec<u8> = prefix.iter().flat_map(|token| token.to_le_bytes()).collect();
    SequenceHash(xxh3_64(&bytes))
}

impl Group {
    /// Blocks that a hit needs at its end.
    fn needed(&self) -> Option<usize> {
        self.window.map(|window| window.saturating_sub(1).div_ceil(self.size))
    }

    /// Whether the engine stores the block with this number of a prompt of `length` tokens.
    fn is_stored(&self, block: usize, length: usize, retention: Retention) -> bool {
        let Some(needed) = self.needed() else { return true };
        let (needed, shift) = match retention {
            Retention::Dense => return true,
            Retention::DraftTails => (needed + 1, 1),
            Retention::Tails | Retention::TailsAndEnd | Retention::SparseTails => (needed, 0),
        };
        let segment = REGISTERED / self.size * if retention == Retention::SparseTails { 2 } else { 1 };
        let end = length / self.size;
        let is_at_end = retention == Retention::TailsAndEnd && block < end && block + needed >= end;
        let is_in_tail = block >= shift && (block - shift) % segment + needed >= segment;
        needed >= segment || is_in_tail || is_at_end
    }

    fn cache_group(&self, idx: usize) -> CacheGroup<'static> {
        let kind = if self.window.is_some() { "sliding_window" } else { "full_attention" };
        CacheGroup { idx: Some(idx as u32), kind: Some(kind), sliding_window: self.window.map(|window| window as u32) }
    }
}

impl Engine {
    /// Leading tokens of a prompt that the engine can use.
    fn hit(&self, prompt: &[u32]) -> usize {
        let holds = |group: usize, end: usize| self.held.contains_key(&(group, prompt[..end].to_vec()));
        let is_usable = |&tokens: &usize| {
            self.groups.iter().enumerate().all(|(at, group)| {
                let blocks = tokens / group.size;
                let needed = group.needed().unwrap_or(blocks).min(blocks);
                (blocks - needed..blocks).all(|block| holds(at, (block + 1) * group.size))
            })
        };
        (0..=prompt.len()).rev().filter(|tokens| tokens % REGISTERED == 0).find(is_usable).unwrap_or(0)
    }

    /// Computes a prompt in chunks, and returns the events.
    fn run(&mut self, prompt: &[u32], chunks: &[usize], load: Option<Load>) -> Vec<EngineEvent<'static>> {
        let local = self.hit(prompt);
        let loaded =
            load.map_or(local, |load| (local + load.blocks * REGISTERED).min(prompt.len() / REGISTERED * REGISTERED));
        let mut cached: Vec<usize> = self.groups.iter().map(|group| local / group.size).collect();
        let mut missing = vec![0; self.groups.len()];
        for (at, group) in self.groups.iter().enumerate().filter(|_| loaded > local) {
            let Some(window) = group.window else { continue };
            missing[at] = (loaded + 1).saturating_sub(window) / group.size;
            if !load.is_some_and(|load| load.covers_missing) {
                cached[at] = cached[at].max(missing[at]);
            }
        }
        let mut events = Vec::new();
        let mut computed = loaded;
        for chunk in chunks.iter().copied().chain([usize::MAX]) {
            computed = computed.saturating_add(chunk).min(prompt.len());
            for at in 0..self.groups.len() {
                let (group, start, end) = (self.groups[at].clone(), cached[at], computed / self.groups[at].size);
                if start >= end {
                    continue;
                }
                cached[at] = end;
                let stored = (start..end).filter(|&block| block >= missing[at]);
                let stored: Vec<usize> =
                    stored.filter(|&it| group.is_stored(it, prompt.len(), self.retention)).collect();
                for block in &stored {
                    *self.held.entry((at, prompt[..(block + 1) * group.size].to_vec())).or_default() += 1;
                }
                events.push(EngineEvent::Stored(BlockStored {
                    block_hashes: stored.iter().map(|block| name(&prompt[..(block + 1) * group.size])).collect(),
                    parent_block_hash: (start > 0).then(|| name(&prompt[..start * group.size])),
                    token_ids: TokenIds::Plain(prompt[start * group.size..end * group.size].to_vec()),
                    block_size: group.size as u32,
                    medium: Some("GPU"),
                    group: group.cache_group(at),
                    ..BlockStored::default()
                }));
            }
        }
        events
    }

    /// Evicts one copy of a block of a group.
    fn evict(&mut self, group: usize, nth: usize) -> Option<EngineEvent<'static>> {
        let group = group % self.groups.len();
        let blocks: Vec<_> = self.held.keys().filter(|(of, _)| *of == group).cloned().collect();
        let block = blocks.get(nth % blocks.len().max(1))?;
        let copies = self.held.get_mut(block).expect("it is held");
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(block);
        }
        let block_hashes = vec![name(&block.1)];
        let group_idx = Some(group as u32);
        Some(EngineEvent::Removed(BlockRemoved { block_hashes, group_idx, ..BlockRemoved::default() }))
    }
}

fn prompt() -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![40 => Just(0_u32), 1 => Just(1)], 1..90)
}

fn step(loads: bool) -> impl Strategy<Value = Step> {
    let load = (1..4_usize, any::<bool>()).prop_map(|(blocks, covers_missing)| Load { blocks, covers_missing });
    let load = proptest::option::weighted(0.3, load).prop_map(move |load| load.filter(|_| loads));
    prop_oneof![
        3 => (prompt(), vec(1..40_usize, 0..6), load)
            .prop_map(|(prompt, chunks, load)| Step::Request { prompt, chunks, load }),
        1 => (0..4_usize, any::<usize>()).prop_map(|(group, nth)| Step::Evict { group, nth }),
    ]
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let finer = (prop_oneof![Just(8_usize), Just(4), Just(2)], 1..40_usize)
        .prop_map(|(size, window)| Group { size, window: Some(window) });
    vec(finer, 1..4).prop_map(|finer| {
        let full = Group { size: REGISTERED, window: None };
        std::iter::once(full).chain(finer).collect()
    })
}

/// Translator and index of an engine's events.
struct Follower {
    translator: Translator,
    index: GroupedIndex,
    /// Whether a block was stored whose link the events do not show.
    has_unknown_links: bool,
}

impl Follower {
    fn new() -> Self {
        let block_size = BlockSize::new(REGISTERED as u32).expect("not zero");
        let options =
            TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::One, cache_tier: None };
        let index = GroupedIndex::new(Box::<RunIndex>::default());
        Self { translator: Translator::new(options), index, has_unknown_links: false }
    }

    fn follow(&mut self, event: &EngineEvent<'_>) -> Result<(), TestCaseError> {
        let translation = self.translator.translate(event).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&translation.doubt, &None);
        for change in translation {
            let applied = self.index.apply_event(RANK, &change);
            prop_assert_eq!(applied.refused, 0);
            self.has_unknown_links |= matches!(event, EngineEvent::Stored(_)) && applied.unknown > 0;
            prop_assert!(!matches!(event, EngineEvent::Removed(_)) || applied.unknown == 0);
        }
        Ok(())
    }

    fn hit(&self, prompt: &[u32]) -> usize {
        let block_size = BlockSize::new(REGISTERED as u32).expect("not zero");
        let locals = local_hashes(HashVariant::default(), prompt, block_size, TokenWindow::Block);
        let found = self.index.find(&locals);
        found.get(RANK).map_or(0, |found| found.blocks[Tier::Device] as usize * REGISTERED)
    }
}

/// Drives an engine, and compares its own hits with the prefix lengths from its events. Returns whether links were unknown.
fn check(
    groups: Vec<Group>,
    retention: Retention,
    steps: &[Step],
    queries: &[Vec<u32>],
) -> Result<bool, TestCaseError> {
    let mut engine = Engine { groups, retention, held: BTreeMap::new() };
    let mut follower = Follower::new();
    let mut prompts: Vec<&Vec<u32>> = queries.iter().collect();
    for step in steps {
        let events = match step {
            Step::Request { prompt, chunks, load } => {
                prompts.push(prompt);
                engine.run(prompt, chunks, *load)
            }
            Step::Evict { group, nth } => engine.evict(*group, *nth).into_iter().collect(),
        };
        for event in &events {
            follower.follow(event)?;
        }
        for prompt in &prompts {
            let (expected, found) = (engine.hit(prompt), follower.hit(prompt));
            prop_assert!(found <= expected, "{found} of {expected} tokens: too long for {prompt:?}");
            prop_assert!(follower.has_unknown_links || found == expected, "{found} of {expected}: {prompt:?}");
        }
    }
    Ok(follower.has_unknown_links)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn answers_equal_what_the_engine_finds(
        groups in groups(),
        retention in prop_oneof![
            Just(Retention::Dense), Just(Retention::Tails), Just(Retention::DraftTails), Just(Retention::TailsAndEnd)
        ],
        steps in vec(step(false), 1..12),
        queries in vec(prompt(), 4),
    ) {
        prop_assert!(!check(groups, retention, &steps, &queries)?, "every link is known");
    }

    #[test]
    fn answers_are_never_too_long_and_unknown_links_are_reported(
        groups in groups(),
        retention in prop_oneof![
            Just(Retention::Dense), Just(Retention::Tails), Just(Retention::DraftTails), Just(Retention::TailsAndEnd),
            Just(Retention::SparseTails)
        ],
        steps in vec(step(true), 1..12),
        queries in vec(prompt(), 4),
    ) {
        check(groups, retention, &steps, &queries)?;
    }
}
