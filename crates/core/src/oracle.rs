//! Reference implementation of the index, as literal as possible.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::groups::{AttentionWindow, ClearScope, ClearedGroups, GroupChange, GroupEvent, GroupId, SecondaryGroup};
use crate::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use crate::{
    AppliedChanges, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize,
    RemovedCopies, SequenceHash, Tier, WorkerRank,
};

/// Brute force: a list of held blocks for each rank, searched from the start for every query.
///
/// It is simple enough to be obviously right. Every other design is tested against it; nothing else uses it.
#[derive(Debug, Default)]
pub struct Oracle {
    ranks: BTreeMap<WorkerRank, BTreeMap<SequenceHash, HeldBlock>>,
}

impl Oracle {
    /// Leading blocks of a query that a rank and others hold together. The others continue the rank's own match: each
    /// next block is held by any of them, and its parent is the block before.
    #[must_use]
    pub fn continued(&self, query: &[LocalHash], rank: WorkerRank, others: &[WorkerRank]) -> PerTier<u32> {
        let nothing = BTreeMap::new();
        let held_by = |rank: &WorkerRank| self.ranks.get(rank).unwrap_or(&nothing);
        let mut blocks = PerTier::default();
        let of_rank = by_local_hash(held_by(&rank).values(), query);
        let of_others = by_local_hash(others.iter().flat_map(|other| held_by(other).values()), query);
        for slowest in Tier::ALL {
            let own = depth(&of_rank, query, slowest) as usize;
            let mut ends: BTreeSet<Option<SequenceHash>> = match own {
                0 => BTreeSet::from([None]),
                _ => {
                    reached(&of_rank, &query[..own], slowest).pop().unwrap_or_default().into_iter().map(Some).collect()
                }
            };
            let mut end = own;
            for local in &query[own..] {
                let followers = of_others[local].iter().filter(|it| ends.contains(&it.parent));
                let next: BTreeSet<_> =
                    followers.filter(|it| is_within(&it.copies, slowest)).map(|it| Some(it.sequence)).collect();
                if next.is_empty() {
                    break;
                }
                (end, ends) = (end + 1, next);
            }
            blocks[slowest] = end as u32;
        }
        blocks
    }
}

impl PrefixIndex for Oracle {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
        let held = self.ranks.entry(rank).or_default();
        let mut applied = AppliedChanges::default();
        match event {
            BlockEvent::Stored { copies: 0, .. } => {}
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let mut parent = *parent;
                for block in blocks {
                    let new =
                        HeldBlock { sequence: block.sequence, parent, local: block.local, copies: PerTier::default() };
                    let entry = held.entry(block.sequence).or_insert(new);
                    if (entry.parent, entry.local) != (new.parent, new.local) {
                        *entry = new;
                        applied.moved += 1;
                    }
                    add_copies(entry, *tier, *copies, &mut applied);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                for sequence in blocks {
                    match held.get_mut(sequence) {
                        None => applied.unknown += 1,
                        Some(entry) => add_copies(entry, *tier, 1, &mut applied),
                    }
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                for sequence in blocks {
                    match held.get_mut(sequence).filter(|entry| entry.copies[*tier] > 0) {
                        None => applied.unknown += 1,
                        Some(entry) => {
                            applied.removed += 1;
                            entry.copies[*tier] = match *copies {
                                RemovedCopies::One => entry.copies[*tier] - 1,
                                RemovedCopies::All => 0,
                                RemovedCopies::AllBut(left) => left,
                            };
                            if entry.copies.is_zero() {
                                held.remove(sequence);
                            }
                        }
                    }
                }
            }
            BlockEvent::Cleared => {
                applied.removed = held.len() as u64;
                held.clear();
            }
        }
        self.ranks.retain(|_, held| !held.is_empty());
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let depths = |held: &BTreeMap<_, HeldBlock>| {
            let held = by_local_hash(held.values(), query);
            PerTier(Tier::ALL.map(|slowest| depth(&held, query, slowest)))
        };
        let matches = self.ranks.iter().map(|(&rank, held)| RankMatch { rank, blocks: depths(held) });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn fastest_tiers(&self, query: &[LocalHash], found: &[RankMatch]) -> Vec<PerTier<u32>> {
        let of_match = |found: &RankMatch| {
            let mut tiers = PerTier::<u32>::default();
            let Some(held) = self.ranks.get(&found.rank) else { return tiers };
            let matched = &query[..query.len().min(found.longest() as usize)];
            for sequences in reached(&by_local_hash(held.values(), matched), matched, Tier::External) {
                let holds = |tier: Tier| sequences.iter().any(|sequence| held[sequence].copies[tier] > 0);
                let fastest = Tier::ALL.into_iter().find(|&tier| holds(tier)).expect("a reached block is held");
                tiers[fastest] += 1;
            }
            tiers
        };
        found.iter().map(of_match).collect()
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.keys().copied().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.get(&rank).into_iter().flat_map(BTreeMap::values).copied().collect()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.ranks.remove(&rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        let mut size = RankSize::default();
        let Some(held) = self.ranks.get(&rank) else { return size };
        size.blocks = held.len();
        for entry in held.values() {
            for (tier, &copies) in entry.copies.iter() {
                size.by_tier[tier] += usize::from(copies > 0);
            }
        }
        size
    }
}

/// Adds copies to a block and counts the change.
fn add_copies(block: &mut HeldBlock, tier: Tier, copies: u32, applied: &mut AppliedChanges) {
    match block.copies[tier] {
        0 => applied.stored += 1,
        _ => applied.duplicate += 1,
    }
    block.copies[tier] = block.copies[tier].saturating_add(copies);
}

/// Counts the leading blocks of `query` that are held in `slowest` or a faster tier.
fn depth(held: &HeldByLocalHash<'_>, query: &[LocalHash], slowest: Tier) -> u32 {
    reached(held, query, slowest).len() as u32
}

/// For each leading block of the query, the sequence hashes that it may have: those with its local hash, held in
/// `slowest` or a faster tier, whose parent is one of the previous block's.
fn reached(held: &HeldByLocalHash<'_>, query: &[LocalHash], slowest: Tier) -> Vec<BTreeSet<SequenceHash>> {
    let mut reached: Vec<BTreeSet<SequenceHash>> = Vec::new();
    for local in query {
        let follows = |block: &&&HeldBlock| match (reached.last(), block.parent) {
            (None, parent) => parent.is_none(),
            (Some(before), parent) => parent.is_some_and(|parent| before.contains(&parent)),
        };
        let next = held[local].iter().filter(follows);
        let sequences: BTreeSet<_> =
            next.filter(|block| is_within(&block.copies, slowest)).map(|block| block.sequence).collect();
        if sequences.is_empty() {
            break;
        }
        reached.push(sequences);
    }
    reached
}

/// For each local hash of one query, the held blocks that have it. It answers for that query and its parts alone.
type HeldByLocalHash<'a> = FxHashMap<LocalHash, Vec<&'a HeldBlock>>;

/// Reads all held blocks once. Each query makes a new map, so that no event has to keep one right.
fn by_local_hash<'a>(held: impl Iterator<Item = &'a HeldBlock>, query: &[LocalHash]) -> HeldByLocalHash<'a> {
    let mut found: HeldByLocalHash<'_> = query.iter().map(|&local| (local, Vec::new())).collect();
    for block in held {
        if let Some(blocks) = found.get_mut(&block.local) {
            blocks.push(block);
        }
    }
    found
}

/// Brute force for ranks with several cache groups, whose blocks may have different sizes. It enumerates every number of
/// tokens of a prompt and every chain of sequence hashes that these tokens can follow, and checks the chain in each group.
///
/// It defines the answers of [`GroupedIndex`](crate::groups::GroupedIndex), which counts blocks of the registered size.
#[derive(Debug)]
pub struct GroupedOracle {
    block_size: BlockSize,
    indexed: Oracle,
    secondary: BTreeMap<(WorkerRank, GroupId), GroupCopies>,
}

/// Blocks of a secondary group.
#[derive(Debug)]
struct GroupCopies {
    group: SecondaryGroup,
    copies: BTreeMap<SequenceHash, PerTier<u32>>,
    /// The block before each block, as far as the engine has shown it.
    links: BTreeMap<SequenceHash, Option<SequenceHash>>,
}

impl GroupedOracle {
    /// An oracle without ranks, for primary groups with blocks of this size.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size, indexed: Oracle::default(), secondary: BTreeMap::new() }
    }

    /// Applies one event of the primary group.
    pub fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) {
        if *event == BlockEvent::Cleared {
            let groups = self.secondary.iter_mut().filter(|((of, _), _)| *of == rank);
            groups.for_each(|(_, group)| {
                group.copies.clear();
                group.links.clear();
            });
        }
        self.indexed.apply(rank, event);
    }

    /// Applies one event of a secondary group.
    pub fn apply_group(&mut self, rank: WorkerRank, GroupChange { group, event }: &GroupChange) {
        let new = GroupCopies { group: *group, copies: BTreeMap::new(), links: BTreeMap::new() };
        let GroupCopies { group: latest, copies: held, links } = self.secondary.entry((rank, group.id)).or_insert(new);
        *latest = *group;
        match event {
            GroupEvent::Linked(shown) if group.size.is_finer() => {
                links.extend(shown.iter().map(|link| (link.block, link.before)));
            }
            GroupEvent::Linked(_) => {}
            GroupEvent::Stored { tier, blocks, copies } => {
                for &sequence in blocks {
                    let held = &mut held.entry(sequence).or_default()[*tier];
                    *held = held.saturating_add(*copies);
                }
            }
            GroupEvent::Removed { tier, blocks, copies } => {
                for &sequence in blocks {
                    let held = &mut held.entry(sequence).or_default()[*tier];
                    *held = match *copies {
                        RemovedCopies::One => held.saturating_sub(1),
                        RemovedCopies::All => 0,
                        RemovedCopies::AllBut(_) if *held == 0 => 0,
                        RemovedCopies::AllBut(left) => left,
                    };
                }
            }
        }
    }

    /// Applies a store of the primary group that adds no copy to a block with a copy in its tier.
    pub fn refresh(&mut self, rank: WorkerRank, event: &BlockEvent) {
        let BlockEvent::Stored { tier, parent, blocks, copies } = event else { return self.apply(rank, event) };
        let mut parent = *parent;
        for &block in blocks {
            let held = self.indexed.ranks.get(&rank).and_then(|held| held.get(&block.sequence));
            if held.is_none_or(|held| held.copies[*tier] == 0) {
                self.apply(rank, &BlockEvent::Stored { tier: *tier, parent, blocks: vec![block], copies: *copies });
            }
            parent = Some(block.sequence);
        }
    }

    /// Applies a change of a secondary group that adds no copy to a block with a copy in its tier.
    pub fn refresh_group(&mut self, rank: WorkerRank, GroupChange { group, event }: &GroupChange) {
        let held = self.secondary.get(&(rank, group.id));
        let is_missing = |block: &SequenceHash, tier: Tier| {
            held.and_then(|held| held.copies.get(block)).is_none_or(|copies| copies[tier] == 0)
        };
        let event = match event {
            GroupEvent::Stored { tier, blocks, copies } => {
                let blocks = blocks.iter().copied().filter(|block| is_missing(block, *tier)).collect();
                GroupEvent::Stored { tier: *tier, blocks, copies: *copies }
            }
            event => event.clone(),
        };
        self.apply_group(rank, &GroupChange { group: *group, event });
    }

    /// Clears a part of the cache of `rank`.
    pub fn clear_scope(&mut self, rank: WorkerRank, scope: ClearScope) {
        let clear = |copies: &mut PerTier<u32>| {
            for tier in Tier::ALL {
                if scope.tier.is_none_or(|cleared| cleared == tier) {
                    copies[tier] = 0;
                }
            }
        };
        let held = self.indexed.ranks.get_mut(&rank);
        if let Some(held) = held.filter(|_| matches!(scope.groups, ClearedGroups::All | ClearedGroups::Primary)) {
            held.values_mut().for_each(|block| clear(&mut block.copies));
            held.retain(|_, block| !block.copies.is_zero());
        }
        self.indexed.ranks.retain(|_, held| !held.is_empty());
        for (&(of, id), group) in &mut self.secondary {
            if of == rank && (scope.groups == ClearedGroups::All || scope.groups == ClearedGroups::Secondary(id)) {
                group.copies.values_mut().for_each(clear);
            }
        }
    }

    /// Drops everything of `rank`.
    pub fn clear_rank(&mut self, rank: WorkerRank) {
        self.indexed.clear_rank(rank);
        self.secondary.retain(|(of, _), _| *of != rank);
    }

    /// For each rank, the number of leading tokens of a prompt that it can use.
    #[must_use]
    pub fn find(&self, prompt: &[u32]) -> BTreeMap<WorkerRank, PerTier<u32>> {
        let query = local_hashes(HashVariant::default(), prompt, self.block_size, TokenWindow::Block);
        let matches = self.indexed.ranks.iter().map(|(&rank, held)| {
            let held = by_local_hash(held.values(), &query);
            let usable = |slowest| {
                let chains = chains(&held, &query, slowest);
                let is_usable = |&tokens: &usize| chains.iter().any(|it| self.is_usable(rank, it, tokens, slowest));
                (1..=prompt.len()).filter(is_usable).max().unwrap_or(0) as u32
            };
            (rank, PerTier(Tier::ALL.map(usable)))
        });
        matches.filter(|(_, tokens)| !tokens.is_zero()).collect()
    }

    /// For each rank, the number of leading blocks that its primary group holds.
    #[must_use]
    pub fn find_indexed(&self, query: &[LocalHash]) -> MatchScores {
        self.indexed.find(query)
    }

    /// Whether a chain of the primary group has this many tokens, and each secondary group of the rank holds the blocks
    /// that it needs for them.
    fn is_usable(&self, rank: WorkerRank, chain: &[SequenceHash], tokens: usize, slowest: Tier) -> bool {
        let indexed_tokens = self.block_size.token_count();
        let mut groups = self.secondary.iter().filter(|((of, _), _)| *of == rank).map(|(_, group)| group);
        let is_usable_by = |GroupCopies { group, copies, links }: &GroupCopies| {
            let block_tokens = group.size.tokens(self.block_size) as usize;
            let blocks = tokens / block_tokens;
            let needed = match group.window {
                AttentionWindow::Full => blocks,
                AttentionWindow::LastBlocks(last) => blocks.min(last as usize),
            };
            // A block has the sequence hash of the tokens up to its end. The index has it where one of its own blocks ends.
            // From there links lead back to the blocks inside that block.
            let name = |end: usize| {
                let indexed_end = end.div_ceil(indexed_tokens);
                let steps = (indexed_end * indexed_tokens - end) / block_tokens;
                let last = chain.get(indexed_end - 1).copied();
                (0..steps).try_fold(last, |block, _| Some(*links.get(&block?)?)).flatten()
            };
            let mut names = (blocks - needed..blocks).map(|at| name((at + 1) * block_tokens));
            tokens == blocks * block_tokens
                && names.all(|name| {
                    name.and_then(|name| copies.get(&name)).is_some_and(|copies| is_within(copies, slowest))
                })
        };
        tokens == chain.len() * indexed_tokens && groups.all(is_usable_by)
    }
}

/// Whether a copy is in `slowest` or a faster tier.
fn is_within(copies: &PerTier<u32>, slowest: Tier) -> bool {
    copies.iter().any(|(tier, &copies)| tier <= slowest && copies > 0)
}

/// Every chain of sequence hashes, of any length, with the local hashes of the query, held in `slowest` or faster
/// tiers.
fn chains(held: &HeldByLocalHash<'_>, query: &[LocalHash], slowest: Tier) -> Vec<Vec<SequenceHash>> {
    let mut all: Vec<Vec<SequenceHash>> = Vec::new();
    let mut longest: Vec<Vec<SequenceHash>> = vec![Vec::new()];
    for local in query {
        let mut longer = Vec::new();
        for chain in &longest {
            let next = held[local].iter().filter(|block| block.parent == chain.last().copied());
            let next = next.filter(|block| is_within(&block.copies, slowest));
            longer.extend(next.map(|block| [&chain[..], &[block.sequence]].concat()));
        }
        all.extend(longer.iter().cloned());
        longest = longer;
    }
    all
}
