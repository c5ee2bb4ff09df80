//! Storing blocks: the writer finds or allocates their positions, and then extends one holding for each run.

use super::Writer;
use super::locate::{BlockLookup, Cursor};
use crate::run::published::rank_table::RankSlot;
use crate::{AppliedChanges, Block, HeldBlock, PerTier, SequenceHash, Tier};

impl Writer {
    pub(super) fn store(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let rank = self.ranks.get(slot);
        if let Some(first) = blocks.first() {
            // Loads from memory while its parent is looked up.
            self.domains.get(rank.domain).directory.prefetch(first.sequence);
        }
        let at = match parent {
            None => Some(Cursor::ROOT),
            Some(parent) => self.find_sequence(rank.domain, parent),
        };
        match at.filter(|_| rank.waiting.is_empty()) {
            Some(at) => self.store_chain(slot, at, parent, blocks, copies),
            None => self.store_one_by_one(slot, parent, blocks, copies),
        }
    }

    /// Stores blocks that follow an indexed block. The rank must have no waiting blocks, or there must be a single
    /// block that neither waits nor has a sequence hash.
    pub(super) fn store_chain(
        &mut self,
        slot: RankSlot,
        at: Cursor,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let domain = self.ranks.get(slot).domain;
        let is_bounded = self.bounded.is_some();
        let mut applied = AppliedChanges::default();
        let (mut at, mut parent, mut rest) = (at, parent, blocks);
        while let Some(block) = rest.first() {
            let (known, last) = self.following_in_column(domain, at, rest);
            let (count, last) = if known > 0 {
                (known, last)
            } else {
                match self.locate(domain, at.position, block) {
                    BlockLookup::Found(found) => {
                        let (more, last) = self.following_in_column(domain, found, &rest[1..]);
                        (1 + more, last)
                    }
                    BlockLookup::WithoutHash(position) => self.extend_column(domain, position, rest),
                    BlockLookup::Absent => self.append(domain, at.position, rest),
                    BlockLookup::OtherHash => {
                        if !self.domains.has_single_rank(domain) {
                            if is_bounded && !self.affords_another_domain(slot) {
                                self.evict_rank(slot);
                                return applied + self.refuse(slot, rest);
                            }
                            if self.change_domain_to(slot, block.sequence) {
                                return applied + self.store_one_by_one(slot, parent, rest, copies);
                            }
                        }
                        // The rank is alone in the domain, or holds too much to leave it.
                        match self.append_twin(domain, at.position, rest) {
                            Some(appended) => appended,
                            None => return applied + self.refuse_twins(slot, rest),
                        }
                    }
                    BlockLookup::OtherPosition(_) => {
                        return applied + self.store_one_by_one(slot, parent, rest, copies);
                    }
                }
            };
            let end = last.position.offset + 1;
            if is_bounded && !self.affords_holding(slot, last.position.run, end - count as u16..end, copies) {
                self.trim(last.position.run, domain);
                return applied + self.refuse(slot, rest);
            }
            if let Some(next) = rest.get(count) {
                self.prefetch_sequences_of_next(domain, last.position.run, next);
            }
            applied += self.hold(slot, last.position.run, end - count as u16..end, copies);
            if let Some(bounded) = &mut self.bounded {
                bounded.values.count_use(last.position.run);
            }
            at = last;
            parent = Some(rest[count - 1].sequence);
            rest = &rest[count..];
        }
        applied
    }

    /// Stores each block by its parent's sequence hash: for ranks with waiting blocks, and when a sequence hash is
    /// redefined.
    fn store_one_by_one(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let mut parent = parent;
        for (at, block) in blocks.iter().enumerate() {
            applied += self.store_one(slot, parent, block, copies);
            if applied.moves_refused > 0 {
                let refused = (blocks.len() - at - 1) as u64;
                return applied + AppliedChanges { refused, moves_refused: refused, ..AppliedChanges::default() };
            }
            parent = Some(block.sequence);
        }
        applied
    }

    pub(super) fn store_one(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        (tier, copies): (Tier, u32),
    ) -> AppliedChanges {
        let limit = self.limits.waiting_blocks_max;
        let link = (parent, block.local);
        let rank = self.ranks.get_mut(slot);
        if let Some(&waiting) = rank.waiting.get(block.sequence) {
            if (waiting.parent, waiting.local) == link {
                return self.add_waiting_copies(slot, block.sequence, (tier, copies));
            }
            rank.waiting.remove(block.sequence);
            self.uncount_waiting(slot, &waiting);
            return AppliedChanges { moved: 1, ..self.insert(slot, parent, block, (tier, copies), usize::MAX) };
        }
        let domain = rank.domain;
        let Some(Cursor { position, .. }) = self.find_sequence(domain, block.sequence) else {
            return self.insert(slot, parent, block, (tier, copies), limit);
        };
        let held = self.holds(slot, position);
        if (self.parent_sequence(domain, position), self.local_of(position)) == link {
            let parent_waits = parent.is_some_and(|parent| self.ranks.get(slot).waiting.contains(parent));
            if !held && parent_waits {
                return self.store_waiting(slot, parent, block, (tier, copies), limit);
            }
            let applied = self.hold(slot, position.run, position.offset..position.offset + 1, (tier, copies));
            self.record_arrival(slot, block.sequence);
            return applied;
        }
        if !self.domains.has_single_rank(domain) {
            if self.bounded.is_some() && !self.affords_another_domain(slot) {
                self.evict_rank(slot);
                return self.refuse(slot, std::slice::from_ref(block));
            }
            if !self.change_domain(slot, None, self.moves_left(slot)) {
                return self.drop_rank(slot, 1);
            }
            return self.store_one(slot, parent, block, (tier, copies));
        }
        if !self.release_with_descendants(slot, position) {
            return self.drop_rank(slot, 1);
        }
        let limit = if held { usize::MAX } else { limit };
        AppliedChanges { moved: u64::from(held), ..self.insert(slot, parent, block, (tier, copies), limit) }
    }

    /// Stores a block that has no sequence hash in the domain and does not wait.
    fn insert(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        copies: (Tier, u32),
        waiting_blocks_max: usize,
    ) -> AppliedChanges {
        match self.parent_position(slot, parent) {
            None => self.store_waiting(slot, parent, block, copies, waiting_blocks_max),
            Some(at) => {
                let applied = self.store_chain(slot, at, parent, std::slice::from_ref(block), copies);
                self.record_arrival(slot, block.sequence);
                applied
            }
        }
    }

    /// Position of a parent; none if it is unknown or waits itself.
    pub(super) fn parent_position(&self, slot: RankSlot, parent: Option<SequenceHash>) -> Option<Cursor> {
        let Some(parent) = parent else { return Some(Cursor::ROOT) };
        let rank = self.ranks.get(slot);
        if rank.waiting.contains(parent) { None } else { self.find_sequence(rank.domain, parent) }
    }

    fn store_waiting(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        (tier, copies): (Tier, u32),
        waiting_blocks_max: usize,
    ) -> AppliedChanges {
        if self.bounded.is_some() {
            return self.refuse(slot, std::slice::from_ref(block));
        }
        let rank = self.ranks.get_mut(slot);
        if rank.waiting.len() >= waiting_blocks_max {
            return AppliedChanges { refused: 1, ..AppliedChanges::default() };
        }
        let mut waiting =
            HeldBlock { sequence: block.sequence, parent, local: block.local, copies: PerTier::default() };
        waiting.copies[tier] = copies;
        rank.waiting.insert(waiting);
        rank.size.blocks += 1;
        rank.size.waiting += 1;
        rank.size.by_tier[tier] += 1;
        AppliedChanges { stored: 1, waiting: 1, ..AppliedChanges::default() }
    }

    /// Adds copies to a waiting block.
    pub(super) fn add_waiting_copies(
        &mut self,
        slot: RankSlot,
        sequence: SequenceHash,
        (tier, copies): (Tier, u32),
    ) -> AppliedChanges {
        let rank = self.ranks.get_mut(slot);
        let waiting = rank.waiting.get_mut(sequence).expect("the caller found it");
        let before = waiting.copies[tier];
        waiting.copies[tier] = before.saturating_add(copies);
        if before > 0 {
            return AppliedChanges { duplicate: 1, ..AppliedChanges::default() };
        }
        rank.size.by_tier[tier] += 1;
        AppliedChanges { stored: 1, ..AppliedChanges::default() }
    }

    pub(super) fn uncount_waiting(&mut self, slot: RankSlot, block: &HeldBlock) {
        let size = &mut self.ranks.get_mut(slot).size;
        size.blocks -= 1;
        size.waiting -= 1;
        for (tier, &copies) in block.copies.iter() {
            size.by_tier[tier] -= usize::from(copies > 0);
        }
    }
}
