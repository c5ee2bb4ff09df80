//! Secondary cache groups of one rank, by sequence hash for events and by prefix hash for queries.

use super::blocks::{GroupBlocks, GroupPart, GroupReading};
use super::held_prefixes::{HeldPrefixMap, SequencePrefix};
use super::{
    Cut, GROUPS_MAX, GroupChange, GroupEvent, GroupId, MISSING_LISTED_MAX, MissingBlock, NeededParts, SecondaryGroup,
    Shortfall, TIERS, TierMask,
};
use crate::hashing::next_sequence_hash;
use crate::rank_blocks::{Lookup, Placement, RankBlockLimits, RankWriter, Tiers};
use crate::{AppliedChanges, BlockEvent, LocalHash, PerTier, SequenceHash, Tier};

/// Bytes of a block of the primary group: its entries in the lookup and in the held prefixes.
const PRIMARY_BLOCK_BYTES: usize = 120;

/// Secondary groups of one rank, and the prefixes of its primary group's sequence hashes.
#[derive(Debug, Default)]
pub(super) struct RankGroups {
    lookup: Lookup<Option<SequencePrefix>>,
    secondary: SecondaryGroups,
    held: HeldPrefixMap,
}

impl RankGroups {
    /// Updates the prefixes of sequence hashes from an event of the primary group.
    pub(super) fn apply_indexed(&mut self, event: &BlockEvent) {
        if *event == BlockEvent::Cleared {
            self.lookup = Lookup::default();
            self.held = HeldPrefixMap::default();
            self.secondary.clear();
            return;
        }
        let placement = SecondaryPlacement { secondary: &self.secondary, held: &mut self.held };
        // The index refuses the same blocks and reports them.
        RankWriter { placement, names: &mut self.lookup, limits: RankBlockLimits::default() }.apply(event);
    }

    pub(super) fn apply(&mut self, GroupChange { group, event }: &GroupChange) -> AppliedChanges {
        let (tier, blocks) = match event {
            GroupEvent::Stored { tier, blocks, .. } | GroupEvent::Removed { tier, blocks, .. } => (*tier, &blocks[..]),
            GroupEvent::Linked(_) => (Tier::Device, &[][..]),
        };
        let Some(at) = self.secondary.position_of(*group) else {
            return AppliedChanges { refused: blocks.len() as u64, ..AppliedChanges::default() };
        };
        let mut applied = self.secondary.groups[at].describe(*group);
        if let GroupEvent::Linked(links) = event {
            self.secondary.groups[at].link(links);
        }
        for &sequence in blocks {
            applied += match *event {
                GroupEvent::Stored { copies: 0, .. } | GroupEvent::Linked(_) => continue,
                GroupEvent::Stored { copies, .. } => self.secondary.groups[at].store(sequence, tier, copies),
                GroupEvent::Removed { copies, .. } => self.secondary.groups[at].remove(sequence, tier, copies),
            };
            if let Some(position) = self.lookup.place_of(sequence).copied().flatten() {
                self.held.set(position, self.secondary.holding(sequence));
            }
        }
        applied
    }

    /// Reduces the prefix lengths of the primary group, tier by tier, to the lengths that the secondary groups can use.
    /// `prefixes` are the prefix hashes of the query's blocks.
    pub(super) fn limit_to_usable(&self, blocks: &mut PerTier<u32>, prefixes: &[SequenceHash]) {
        let mut cache = LookupCache { held: &self.held, prefixes, by_block: Vec::new() };
        for (tier, blocks) in blocks.0.iter_mut().enumerate() {
            *blocks = self.secondary.usable(*blocks, tier, &mut cache);
        }
    }

    /// Explains why a prefix of `held` blocks is not usable with tiers up to `slowest`; none if it is.
    pub(super) fn cut(&self, held: u32, slowest: Tier, prefixes: &[SequenceHash]) -> Option<Cut> {
        let mut cache = LookupCache { held: &self.held, prefixes, by_block: Vec::new() };
        let usable = self.secondary.usable(held, slowest as usize, &mut cache);
        let shortfalls = || self.secondary.shortfalls(held, slowest, &mut cache);
        (usable < held).then(shortfalls).map(|shortfalls| Cut { usable, wanted: held, shortfalls })
    }

    /// Copies of a block in a group.
    pub(super) fn copies(&self, group: GroupId, block: SequenceHash) -> PerTier<u32> {
        let group = self.secondary.groups.iter().find(|known| known.group.id == group);
        group.and_then(|group| group.copies(block)).copied().unwrap_or_default()
    }

    /// Approximate bytes of the blocks that the primary group and the secondary groups hold.
    pub(super) fn bytes(&self) -> usize {
        let secondary: usize = self.secondary.groups.iter().map(GroupBlocks::bytes).sum();
        self.lookup.size().blocks * PRIMARY_BLOCK_BYTES + secondary
    }

    /// The secondary groups.
    pub(super) fn secondary_groups(&self) -> Vec<SecondaryGroup> {
        self.secondary.groups.iter().map(|group| group.group).collect()
    }

    /// Reads the next blocks of a secondary group.
    pub(super) fn read(&self, reading: &mut GroupReading, blocks_max: usize) -> GroupPart {
        let group = self.secondary.groups.iter().find(|known| known.group.id == reading.group().id);
        group.map_or_else(GroupPart::nothing, |group| group.read(reading, blocks_max))
    }

    /// Stored events that recreate the secondary groups, including empty ones.
    pub(super) fn stores(&self) -> Vec<GroupChange> {
        self.secondary.groups.iter().flat_map(GroupBlocks::stores).collect()
    }
}

/// Placement of a rank's blocks: updates the held prefixes as blocks of the primary group are indexed and dropped.
/// The start of a sequence has no position.
struct SecondaryPlacement<'a> {
    secondary: &'a SecondaryGroups,
    held: &'a mut HeldPrefixMap,
}

impl Placement for SecondaryPlacement<'_> {
    type Slot = Option<SequencePrefix>;

    fn root(&self) -> Option<SequencePrefix> {
        None
    }

    fn join(
        &mut self,
        above: &Option<SequencePrefix>,
        local: LocalHash,
        sequence: SequenceHash,
        _: Tiers,
    ) -> Option<SequencePrefix> {
        let prefix = next_sequence_hash(above.map(|above| above.prefix), local);
        let position = SequencePrefix { prefix, sequence };
        self.held.set(position, self.secondary.holding(sequence));
        Some(position)
    }

    /// The index itself tracks the tiers of the primary group.
    fn hold(&mut self, _: &Option<SequencePrefix>, _: Tier) {}

    fn release(&mut self, _: &Option<SequencePrefix>, _: Tier) {}

    fn leave(&mut self, position: &Option<SequencePrefix>) {
        if let Some(position) = *position {
            self.held.set(position, TierMask::default());
        }
    }
}

/// Lookups of one query: each prefix is looked up at most once, from the end.
struct LookupCache<'a> {
    held: &'a HeldPrefixMap,
    prefixes: &'a [SequenceHash],
    by_block: Vec<Option<TierMask>>,
}

impl LookupCache<'_> {
    /// The tiers in which the groups hold the last block of a prefix of `blocks` blocks.
    fn at(&mut self, blocks: u32) -> TierMask {
        let at = blocks as usize - 1;
        if self.by_block.is_empty() {
            self.by_block.resize(self.prefixes.len(), None);
        }
        *self.by_block[at].get_or_insert_with(|| self.held.at(self.prefixes[at]))
    }

    /// The sequence hashes of the last block of that prefix that groups hold.
    fn sequences_at(&self, blocks: u32) -> impl Iterator<Item = (SequenceHash, TierMask)> {
        self.held.sequences_at(self.prefixes[blocks as usize - 1])
    }
}

/// The secondary groups, in the order of their first events.
#[derive(Debug, Default)]
pub(super) struct SecondaryGroups {
    groups: Vec<GroupBlocks>,
}

impl SecondaryGroups {
    /// Index of a group, which is added if it is new; none above the limit.
    fn position_of(&mut self, group: SecondaryGroup) -> Option<usize> {
        if let Some(at) = self.groups.iter().position(|known| known.group.id == group.id) {
            return Some(at);
        }
        (self.groups.len() < GROUPS_MAX).then(|| {
            self.groups.push(GroupBlocks::new(group));
            self.groups.len() - 1
        })
    }

    /// The groups that hold a sequence hash, with their tiers.
    pub(super) fn holding(&self, sequence: SequenceHash) -> TierMask {
        let mut held = TierMask::default();
        for (at, group) in self.groups.iter().enumerate() {
            for (tier, &copies) in group.copies(sequence).into_iter().flat_map(PerTier::iter) {
                if copies > 0 {
                    held.insert(at, tier);
                }
            }
        }
        held
    }

    /// The longest prefix of at most `blocks` blocks that every group can use with tiers up to `tier`. It ends with a block of
    /// each group.
    fn usable(&self, blocks: u32, tier: usize, cache: &mut LookupCache<'_>) -> u32 {
        let mut usable = blocks;
        while usable > 0 {
            // A group cannot use a prefix that ends inside one of its blocks. Without such a group: any prefix that includes a
            // missing block in its window and ends before `usable` lacks the block too.
            let mut shorter =
                self.groups.iter().enumerate().filter_map(|(at, group)| match group.group.aligned(usable) {
                    aligned if aligned < usable => Some(aligned),
                    _ => {
                        let mut needed = group.group.needed(usable).rev();
                        needed.find(|&parts| !group.holds(at, parts, tier, cache)).map(|parts| parts.end - 1)
                    }
                });
            match shorter.next() {
                None => break,
                Some(shorter) => usable = shorter,
            }
        }
        usable
    }

    /// The groups that cannot use a prefix, with the blocks of it that they lack.
    fn shortfalls(&self, blocks: u32, slowest: Tier, cache: &mut LookupCache<'_>) -> Vec<Shortfall> {
        let mut shortfalls = Vec::new();
        for (at, known) in self.groups.iter().enumerate() {
            let group = known.group;
            let aligned = group.aligned(blocks);
            let mut shortfall = Shortfall { group, missing_count: 0, missing: Vec::new() };
            for parts in group.needed(aligned) {
                for (part, held_in) in known.tiers_of(at, parts, cache) {
                    if held_in.is_none_or(|tier| tier > slowest) {
                        shortfall.missing_count += 1;
                        if shortfall.missing.len() < MISSING_LISTED_MAX {
                            shortfall.missing.push(MissingBlock { position: parts.end - 1, part, held_in });
                        }
                    }
                }
            }
            let is_usable = shortfall.missing_count == 0 && aligned == blocks;
            shortfalls.extend((!is_usable).then_some(shortfall));
        }
        shortfalls.sort_unstable_by_key(|shortfall| shortfall.group.id);
        shortfalls
    }

    fn clear(&mut self) {
        self.groups.iter_mut().for_each(GroupBlocks::clear);
    }
}

impl GroupBlocks {
    /// Whether the group holds blocks of a prefix in tiers up to `tier`. `at` is its position among the groups.
    fn holds(
        &self,
        at: usize,
        NeededParts { end, count }: NeededParts,
        tier: usize,
        cache: &mut LookupCache<'_>,
    ) -> bool {
        if cache.at(end).fastest(at) > tier {
            return false;
        }
        let is_whole = |sequence| self.tiers_backward(sequence).take(count as usize).all(|fastest| fastest <= tier);
        count == 1 || cache.sequences_at(end).any(|(sequence, held)| held.fastest(at) <= tier && is_whole(sequence))
    }

    /// The blocks that a prefix needs at the end of a block of the index, with the number of each among the parts of that
    /// block, in ascending order, and the fastest tier in which the group holds it; none also if no link shows the block.
    fn tiers_of(
        &self,
        at: usize,
        NeededParts { end, count }: NeededParts,
        cache: &mut LookupCache<'_>,
    ) -> Vec<(u32, Option<Tier>)> {
        let last = self.group.size.parts() - 1;
        let held = cache.at(end);
        if count == 1 {
            return vec![(last, held.fastest_tier(at))];
        }
        let sequences = cache.sequences_at(end).filter(|(_, held)| held.fastest_tier(at).is_some());
        let held_parts = |(sequence, _)| -> Vec<usize> { self.tiers_backward(sequence).take(count as usize).collect() };
        let best = sequences.map(held_parts).min_by_key(|tiers| tiers.iter().filter(|&&tier| tier == TIERS).count());
        let tiers = best.unwrap_or_else(|| vec![TIERS; count as usize]);
        (last + 1 - count..).zip(tiers.into_iter().rev().map(|tier| Tier::ALL.get(tier).copied())).collect()
    }
}
