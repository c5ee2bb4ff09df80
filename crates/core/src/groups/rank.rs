//! What one rank holds in its further cache groups, by name for its events and by place for queries.

use crate::keyed::KeyedMap;

use super::places::{Place, Places};
use super::{
    Cut, GROUP_BLOCKS_MAX, GROUPS_MAX, GroupChange, GroupEvent, HeldIn, MISSING_LISTED_MAX, MissingBlock,
    SecondaryGroup, Shortfall,
};
use crate::naming::{Lookup, NamingLimits, RankWriter};
use crate::{Applied, BlockEvent, PerTier, RemovedCopies, SequenceHash, Tier};

/// One rank's further groups, and what the names of its indexed group stand for.
#[derive(Debug, Default)]
pub(super) struct RankGroups {
    names: Lookup<Option<Place>>,
    further: Further,
    held: HeldPlaces,
}

impl RankGroups {
    /// Learns from an event of the indexed group what names stand for.
    pub(super) fn learn(&mut self, event: &BlockEvent) {
        if *event == BlockEvent::Cleared {
            self.names = Lookup::default();
            self.held = HeldPlaces::default();
            self.further.clear();
            return;
        }
        let placement = Places { further: &self.further, held: &mut self.held };
        // What is refused here is refused by the index as well, which says so.
        RankWriter { placement, names: &mut self.names, limits: NamingLimits::default() }.apply(event);
    }

    pub(super) fn apply(&mut self, GroupChange { group, event }: &GroupChange) -> Applied {
        let mut applied = Applied::default();
        let (GroupEvent::Stored { tier, blocks, .. } | GroupEvent::Removed { tier, blocks, .. }) = event;
        let Some(at) = self.further.position_of(*group) else {
            return Applied { refused: blocks.len() as u64, ..applied };
        };
        for &name in blocks {
            applied += match *event {
                GroupEvent::Stored { copies: 0, .. } => continue,
                GroupEvent::Stored { copies, .. } => self.further.groups[at].store(name, *tier, copies),
                GroupEvent::Removed { copies, .. } => self.further.groups[at].remove(name, *tier, copies),
            };
            if let Some(place) = self.names.place_of(name).copied().flatten() {
                self.held.set(place, self.further.holding(name));
            }
        }
        applied
    }

    /// Cuts down how many leading blocks the indexed group holds, tier by tier, to what the further
    /// groups can use. `prefixes` are our own sequence hashes of the query's blocks.
    pub(super) fn cut_down(&self, blocks: &mut PerTier<u32>, prefixes: &[SequenceHash]) {
        let mut seen = Seen { held: &self.held, prefixes, by_block: Vec::new() };
        for (tier, blocks) in blocks.0.iter_mut().enumerate() {
            *blocks = self.further.usable(*blocks, tier, &mut seen);
        }
    }

    /// Where a prefix of `held` blocks is cut off when tiers up to `slowest` are used, if it is.
    pub(super) fn cut(&self, held: u32, slowest: Tier, prefixes: &[SequenceHash]) -> Option<Cut> {
        let mut seen = Seen { held: &self.held, prefixes, by_block: Vec::new() };
        let usable = self.further.usable(held, slowest as usize, &mut seen);
        let shortfalls = || self.further.shortfalls(held, slowest, &mut seen);
        (usable < held).then(shortfalls).map(|shortfalls| Cut { usable, wanted: held, shortfalls })
    }

    /// Stores that say again what the further groups hold, and that there are such groups.
    pub(super) fn stores(&self) -> Vec<GroupChange> {
        self.further.groups.iter().flat_map(NamedCopies::stores).collect()
    }
}

/// What is held at each place, by our own sequence hash; nothing of places where nothing is.
#[derive(Debug, Default)]
pub(super) struct HeldPlaces(KeyedMap<SequenceHash, HeldNames>);

/// Nearly always one name: two where one rank has two names for one prefix.
#[derive(Debug)]
enum HeldNames {
    One(SequenceHash, HeldIn),
    Several(Vec<(SequenceHash, HeldIn)>),
}

impl HeldPlaces {
    fn at(&self, prefix: SequenceHash) -> HeldIn {
        match self.0.get(&prefix) {
            None => HeldIn::default(),
            Some(HeldNames::One(_, held)) => *held,
            Some(HeldNames::Several(names)) => names.iter().fold(HeldIn::default(), |all, (_, held)| all.or(*held)),
        }
    }

    /// From now on the name in this place is held so.
    pub(super) fn set(&mut self, Place { prefix, name }: Place, held: HeldIn) {
        let is_held = held != HeldIn::default();
        match self.0.get_mut(&prefix) {
            None if is_held => drop(self.0.insert(prefix, HeldNames::One(name, held))),
            None => {}
            Some(HeldNames::One(known, old)) if *known == name => match is_held {
                true => *old = held,
                false => drop(self.0.remove(&prefix)),
            },
            Some(names @ HeldNames::One(..)) if is_held => {
                let HeldNames::One(known, old) = *names else { return };
                *names = HeldNames::Several(vec![(known, old), (name, held)]);
            }
            Some(HeldNames::One(..)) => {}
            Some(HeldNames::Several(names)) => {
                names.retain(|(known, _)| *known != name);
                names.extend(is_held.then_some((name, held)));
                if names.is_empty() {
                    self.0.remove(&prefix);
                }
            }
        }
    }
}

/// What a query has looked up of the places on its way: each once, from the end.
struct Seen<'a> {
    held: &'a HeldPlaces,
    prefixes: &'a [SequenceHash],
    by_block: Vec<Option<HeldIn>>,
}

impl Seen<'_> {
    /// Where the block is held that ends a prefix of so many.
    fn at(&mut self, blocks: u32) -> HeldIn {
        let at = blocks as usize - 1;
        if self.by_block.is_empty() {
            self.by_block.resize(self.prefixes.len(), None);
        }
        *self.by_block[at].get_or_insert_with(|| self.held.at(self.prefixes[at]))
    }
}

/// The groups besides the indexed one, in the order in which they were first named.
#[derive(Debug, Default)]
pub(super) struct Further {
    groups: Vec<NamedCopies>,
}

impl Further {
    /// Where a group is kept, from now on if it is new; none if there are too many.
    fn position_of(&mut self, group: SecondaryGroup) -> Option<usize> {
        if let Some(at) = self.groups.iter().position(|known| known.group.id == group.id) {
            self.groups[at].group = group;
            return Some(at);
        }
        (self.groups.len() < GROUPS_MAX).then(|| {
            self.groups.push(NamedCopies { group, copies: KeyedMap::default() });
            self.groups.len() - 1
        })
    }

    /// Which groups hold a name.
    pub(super) fn holding(&self, name: SequenceHash) -> HeldIn {
        let mut held = HeldIn::default();
        for (at, group) in self.groups.iter().enumerate() {
            for (tier, &copies) in group.copies.get(&name).into_iter().flat_map(PerTier::iter) {
                if copies > 0 {
                    held.insert(at, tier);
                }
            }
        }
        held
    }

    /// The longest prefix of at most `blocks` blocks that every group can use when tiers up to `tier` are.
    fn usable(&self, blocks: u32, tier: usize, seen: &mut Seen<'_>) -> u32 {
        let mut usable = blocks;
        while usable > 0 {
            let mut missing = self.groups.iter().enumerate().filter_map(|(at, group)| {
                let needed = usable - group.group.reach.blocks_of(usable)..usable;
                needed.rev().map(|before| before + 1).find(|&block| seen.at(block).fastest(at) > tier)
            });
            // No prefix that reaches as far as this and ends before `usable` has the missing block either.
            match missing.next() {
                None => break,
                Some(block) => usable = block - 1,
            }
        }
        usable
    }

    /// What each group lacks of a prefix.
    fn shortfalls(&self, blocks: u32, slowest: Tier, seen: &mut Seen<'_>) -> Vec<Shortfall> {
        let mut shortfalls = Vec::new();
        for (at, NamedCopies { group, .. }) in self.groups.iter().enumerate() {
            let mut shortfall = Shortfall { group: *group, missing_count: 0, missing: Vec::new() };
            for position in blocks - group.reach.blocks_of(blocks)..blocks {
                let held_in = seen.at(position + 1).fastest_tier(at);
                if held_in.is_none_or(|tier| tier > slowest) {
                    shortfall.missing_count += 1;
                    if shortfall.missing.len() < MISSING_LISTED_MAX {
                        shortfall.missing.push(MissingBlock { position, held_in });
                    }
                }
            }
            shortfalls.extend((shortfall.missing_count > 0).then_some(shortfall));
        }
        shortfalls.sort_unstable_by_key(|shortfall| shortfall.group.id);
        shortfalls
    }

    fn clear(&mut self) {
        self.groups.iter_mut().for_each(|group| group.copies = KeyedMap::default());
    }
}

/// A group's names, with how many copies lie where.
#[derive(Debug)]
struct NamedCopies {
    group: SecondaryGroup,
    copies: KeyedMap<SequenceHash, PerTier<u32>>,
}

impl NamedCopies {
    fn store(&mut self, name: SequenceHash, tier: Tier, copies: u32) -> Applied {
        if self.copies.len() >= GROUP_BLOCKS_MAX && !self.copies.contains_key(&name) {
            return Applied { refused: 1, ..Applied::default() };
        }
        let held = &mut self.copies.entry(name).or_default()[tier];
        let before = std::mem::replace(held, held.saturating_add(copies));
        match before {
            0 => Applied { stored: 1, ..Applied::default() },
            _ => Applied { duplicate: 1, ..Applied::default() },
        }
    }

    fn remove(&mut self, name: SequenceHash, tier: Tier, copies: RemovedCopies) -> Applied {
        let Some(held) = self.copies.get_mut(&name).filter(|held| held[tier] > 0) else {
            return Applied { unknown: 1, ..Applied::default() };
        };
        held[tier] = match copies {
            RemovedCopies::One => held[tier] - 1,
            RemovedCopies::All => 0,
        };
        if held.is_zero() {
            self.copies.remove(&name);
        }
        Applied { removed: 1, ..Applied::default() }
    }

    fn stores(&self) -> Vec<GroupChange> {
        let mut by_place: KeyedMap<(Tier, u32), Vec<SequenceHash>> = KeyedMap::default();
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
