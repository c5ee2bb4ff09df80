//! What one rank of a hybrid model holds, group by group.

use rustc_hash::FxHashMap;

use super::{FurtherGroup, GROUP_BLOCKS_MAX, GROUPS_MAX, GroupChange, GroupEvent, Reach};
use crate::designs::{Postings, RankBlocks};
use crate::{Applied, BlockEvent, HeldBlock, LocalHash, PerTier, RankSize, RemovedCopies, SequenceHash, Tier};

/// One rank's cache groups. A query walks from name to name, each found by the name before it and its
/// content: one lookup a block.
#[derive(Debug, Default)]
pub(super) struct RankGroups {
    indexed: RankBlocks,
    further: Further,
    chains: Chains,
}

impl RankGroups {
    pub(super) fn apply(&mut self, event: &BlockEvent) -> Applied {
        if *event == BlockEvent::Cleared {
            self.further.clear();
        }
        self.indexed.apply(event, &mut Chained { chains: &mut self.chains, further: &self.further })
    }

    pub(super) fn apply_group(&mut self, GroupChange { group, event }: &GroupChange) -> Applied {
        let mut applied = Applied::default();
        let (tier, blocks) = match event {
            GroupEvent::Stored { tier, blocks, .. } | GroupEvent::Removed { tier, blocks, .. } => (*tier, blocks),
        };
        let Some(at) = self.further.place_of(*group) else {
            return Applied { refused: blocks.len() as u64, ..applied };
        };
        for &name in blocks {
            let (one, is_held) = match *event {
                GroupEvent::Stored { copies: 0, .. } => continue,
                GroupEvent::Stored { copies, .. } => self.further.groups[at].store(name, tier, copies),
                GroupEvent::Removed { copies, .. } => self.further.groups[at].remove(name, tier, copies),
            };
            applied += one;
            if one.stored + one.removed > 0
                && let Some(held) = self.indexed.get(name)
            {
                self.chains.set(held, further_bit(at, tier), is_held);
            }
        }
        applied
    }

    /// Leading blocks of `query` that can be used, tier by tier.
    pub(super) fn usable(&self, query: &[LocalHash]) -> PerTier<u32> {
        let mut usable = PerTier::default();
        let reaches: Vec<Reach> = self.further.groups.iter().map(|group| group.group.reach).collect();
        let (mut walks, mut next) = (vec![Walk::start(reaches.len())], Vec::new());
        for (&local, depth) in query.iter().zip(1..) {
            for walk in walks.drain(..) {
                // There is more than one only where one prefix has two names.
                if let Some((first, others)) = self.chains.after(walk.last, local).split_first() {
                    next.extend(others.iter().filter_map(|follower| walk.clone().step(follower, depth)));
                    next.extend(walk.step(first, depth));
                }
            }
            std::mem::swap(&mut walks, &mut next);
            if walks.is_empty() {
                break;
            }
            walks.iter().for_each(|walk| walk.record(&reaches, depth, &mut usable));
        }
        usable
    }

    pub(super) fn is_empty(&self) -> bool {
        self.indexed.is_empty() && self.further.groups.iter().all(|group| group.copies.is_empty())
    }

    /// What the indexed group holds.
    pub(super) fn held(&self) -> Vec<HeldBlock> {
        self.indexed.held()
    }

    /// How much the indexed group holds.
    pub(super) fn size(&self) -> RankSize {
        self.indexed.size()
    }

    /// Stores that say again what the further groups hold, and that there are such groups.
    pub(super) fn dump_groups(&self) -> Vec<GroupChange> {
        self.further.groups.iter().flat_map(NamedCopies::dump).collect()
    }
}

/// Which groups hold a block in which tiers: four bits a group, the indexed one first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeldIn(u64);

const TIERS: usize = Tier::ALL.len();
const _: () = assert!((GROUPS_MAX + 1) * TIERS <= u64::BITS as usize);

/// The bit of a further group and a tier.
fn further_bit(group: usize, tier: Tier) -> u64 {
    1 << ((group + 1) * TIERS + tier as usize)
}

fn indexed_bit(tier: Tier) -> u64 {
    1 << tier as usize
}

impl HeldIn {
    /// The fastest tier in which a group holds the block: group 0 is the indexed one.
    fn fastest(self, group: usize) -> usize {
        let tiers = self.0 >> (group * TIERS) & ((1 << TIERS) - 1);
        (tiers | 1 << TIERS).trailing_zeros() as usize
    }
}

/// A block as it follows another one.
#[derive(Debug, Clone, Copy)]
struct Follower {
    name: SequenceHash,
    held: HeldIn,
}

/// Nearly always one: two where one rank has two names for one prefix.
#[derive(Debug)]
enum Followers {
    One(Follower),
    Several(Vec<Follower>),
}

impl Followers {
    fn as_slice(&self) -> &[Follower] {
        match self {
            Self::One(follower) => std::slice::from_ref(follower),
            Self::Several(followers) => followers,
        }
    }

    fn get_mut(&mut self, name: SequenceHash) -> Option<&mut Follower> {
        let followers = match self {
            Self::One(follower) => std::slice::from_mut(follower),
            Self::Several(followers) => followers,
        };
        followers.iter_mut().find(|follower| follower.name == name)
    }

    fn push(&mut self, follower: Follower) {
        match self {
            Self::One(first) => *self = Self::Several(vec![*first, follower]),
            Self::Several(followers) => followers.push(follower),
        }
    }

    /// Removes a name; false if nothing is left.
    fn remove(&mut self, name: SequenceHash) -> bool {
        match self {
            Self::One(follower) => follower.name != name,
            Self::Several(followers) => {
                followers.retain(|follower| follower.name != name);
                if let [last] = followers[..] {
                    *self = Self::One(last);
                }
                true
            }
        }
    }
}

/// The blocks of the indexed group by what they follow and contain.
#[derive(Debug, Default)]
struct Chains(FxHashMap<(Option<SequenceHash>, LocalHash), Followers>);

impl Chains {
    fn after(&self, parent: Option<SequenceHash>, local: LocalHash) -> &[Follower] {
        self.0.get(&(parent, local)).map(Followers::as_slice).unwrap_or_default()
    }

    /// Sets or clears a bit of a block that is held in the indexed group.
    fn set(&mut self, block: &HeldBlock, bit: u64, is_held: bool) {
        let followers = self.0.get_mut(&(block.parent, block.local));
        if let Some(follower) = followers.and_then(|followers| followers.get_mut(block.sequence)) {
            match is_held {
                true => follower.held.0 |= bit,
                false => follower.held.0 &= !bit,
            }
        }
    }
}

/// Keeps the chains as the indexed group's blocks come and go.
struct Chained<'a> {
    chains: &'a mut Chains,
    further: &'a Further,
}

impl Postings for Chained<'_> {
    fn appear(&mut self, block: &HeldBlock, tier: Tier) {
        let key = (block.parent, block.local);
        let known = self.chains.0.get_mut(&key).and_then(|followers| followers.get_mut(block.sequence));
        if let Some(follower) = known {
            follower.held.0 |= indexed_bit(tier);
            return;
        }
        let held = HeldIn(indexed_bit(tier) | self.further.bits_of(block.sequence));
        let follower = Follower { name: block.sequence, held };
        self.chains.0.entry(key).and_modify(|followers| followers.push(follower)).or_insert(Followers::One(follower));
    }

    fn disappear(&mut self, block: &HeldBlock, tier: Tier) {
        let key = (block.parent, block.local);
        let Some(followers) = self.chains.0.get_mut(&key) else { return };
        let Some(follower) = followers.get_mut(block.sequence) else { return };
        follower.held.0 &= !indexed_bit(tier);
        if follower.held.fastest(0) == TIERS && !followers.remove(block.sequence) {
            self.chains.0.remove(&key);
        }
    }
}

/// The groups besides the indexed one, in the order in which they were first named.
#[derive(Debug, Default)]
struct Further {
    groups: Vec<NamedCopies>,
}

impl Further {
    /// Where a group is kept, from now on if it is new; none if there are too many.
    fn place_of(&mut self, group: FurtherGroup) -> Option<usize> {
        if let Some(at) = self.groups.iter().position(|known| known.group.id == group.id) {
            self.groups[at].group = group;
            return Some(at);
        }
        (self.groups.len() < GROUPS_MAX).then(|| {
            self.groups.push(NamedCopies { group, copies: FxHashMap::default() });
            self.groups.len() - 1
        })
    }

    fn bits_of(&self, name: SequenceHash) -> u64 {
        let mut bits = 0;
        for (at, group) in self.groups.iter().enumerate() {
            for (tier, &copies) in group.copies.get(&name).into_iter().flat_map(PerTier::iter) {
                bits |= if copies > 0 { further_bit(at, tier) } else { 0 };
            }
        }
        bits
    }

    fn clear(&mut self) {
        self.groups.iter_mut().for_each(|group| group.copies = FxHashMap::default());
    }
}

/// A group's names, with how many copies lie where.
#[derive(Debug)]
struct NamedCopies {
    group: FurtherGroup,
    copies: FxHashMap<SequenceHash, PerTier<u32>>,
}

impl NamedCopies {
    /// What changed, and whether the name is held in the tier now.
    fn store(&mut self, name: SequenceHash, tier: Tier, copies: u32) -> (Applied, bool) {
        if self.copies.len() >= GROUP_BLOCKS_MAX && !self.copies.contains_key(&name) {
            return (Applied { refused: 1, ..Applied::default() }, false);
        }
        let held = &mut self.copies.entry(name).or_default()[tier];
        let before = std::mem::replace(held, held.saturating_add(copies));
        match before {
            0 => (Applied { stored: 1, ..Applied::default() }, true),
            _ => (Applied { duplicate: 1, ..Applied::default() }, true),
        }
    }

    fn remove(&mut self, name: SequenceHash, tier: Tier, copies: RemovedCopies) -> (Applied, bool) {
        let Some(held) = self.copies.get_mut(&name).filter(|held| held[tier] > 0) else {
            return (Applied { unknown: 1, ..Applied::default() }, false);
        };
        held[tier] = match copies {
            RemovedCopies::One => held[tier] - 1,
            RemovedCopies::All => 0,
        };
        let is_held = held[tier] > 0;
        if held.is_zero() {
            self.copies.remove(&name);
        }
        (Applied { removed: 1, ..Applied::default() }, is_held)
    }

    fn dump(&self) -> Vec<GroupChange> {
        let mut by_place: FxHashMap<(Tier, u32), Vec<SequenceHash>> = FxHashMap::default();
        for (&name, held) in &self.copies {
            for (tier, &copies) in held.iter().filter(|&(_, &copies)| copies > 0) {
                by_place.entry((tier, copies)).or_default().push(name);
            }
        }
        if by_place.is_empty() {
            by_place.insert((Tier::Device, 1), Vec::new());
        }
        let stores = by_place.into_iter().map(|((tier, copies), blocks)| GroupEvent::Stored { tier, blocks, copies });
        stores.map(|event| GroupChange { group: self.group, event }).collect()
    }
}

/// A query's way along one chain of names.
#[derive(Debug, Clone)]
struct Walk {
    last: Option<SequenceHash>,
    /// The fastest tier that, with the faster ones, holds all blocks so far in the indexed group.
    indexed_from: usize,
    /// For each further group the last position that is not held, by how many tiers are used.
    last_missing: Vec<PerTier<u32>>,
}

impl Walk {
    fn start(groups: usize) -> Self {
        Self { last: None, indexed_from: 0, last_missing: vec![PerTier::default(); groups] }
    }

    /// One block further; none where the indexed group does not hold it.
    fn step(mut self, follower: &Follower, depth: u32) -> Option<Self> {
        self.indexed_from = self.indexed_from.max(follower.held.fastest(0));
        for (group, last_missing) in (1..).zip(&mut self.last_missing) {
            last_missing.0[..follower.held.fastest(group)].fill(depth);
        }
        self.last = Some(follower.name);
        (self.indexed_from < TIERS).then_some(self)
    }

    /// Notes for which tiers the prefix up to here is usable.
    fn record(&self, reaches: &[Reach], depth: u32, usable: &mut PerTier<u32>) {
        for tier in self.indexed_from..TIERS {
            let mut groups = reaches.iter().zip(&self.last_missing);
            if groups.all(|(reach, last_missing)| depth - last_missing.0[tier] >= reach.blocks_of(depth)) {
                usable.0[tier] = depth;
            }
        }
    }
}
