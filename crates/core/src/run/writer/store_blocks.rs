//! Storing blocks: the writer finds or allocates their positions, and then extends one holding for each run.

use super::Writer;
use super::locate::{BlockLookup, Cursor};
use crate::run::published::layout::Position;
use crate::run::published::rank_table::RankSlot;
use crate::{Applied, Block, HeldBlock, PerTier, SequenceHash, Tier};

impl Writer {
    pub(super) fn store(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        blocks: &[Block],
        copies: (Tier, u32),
    ) -> Applied {
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
    ) -> Applied {
        let domain = self.ranks.get(slot).domain;
        let is_bounded = self.bounded.is_some();
        let mut applied = Applied::default();
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
                    BlockLookup::OtherHash if self.domains.has_single_rank(domain) => {
                        match self.append_twin(domain, at.position, rest) {
                            Some(appended) => appended,
                            None => return applied + self.refuse_twins(slot, rest),
                        }
                    }
                    BlockLookup::OtherHash if is_bounded && !self.affords_another_domain(slot) => {
                        self.evict_rank(slot);
                        return applied + self.refuse(slot, rest);
                    }
                    BlockLookup::OtherHash => {
                        self.change_domain(slot, Some(block.sequence));
                        return applied + self.store_one_by_one(slot, parent, rest, copies);
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
    ) -> Applied {
        let mut applied = Applied::default();
        let mut parent = parent;
        for block in blocks {
            applied += self.store_one(slot, parent, block, copies);
            parent = Some(block.sequence);
        }
        applied
    }

    fn store_one(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        (tier, copies): (Tier, u32),
    ) -> Applied {
        let limit = self.limits.waiting_blocks_max;
        let link = (parent, block.local);
        let rank = self.ranks.get_mut(slot);
        if let Some(waiting) = rank.waiting.get_mut(block.sequence) {
            if (waiting.parent, waiting.local) == link {
                return self.add_waiting_copies(slot, block.sequence, (tier, copies));
            }
            self.remove_waiting_block(slot, block.sequence);
            return Applied { moved: 1, ..self.insert(slot, parent, block, (tier, copies), usize::MAX) };
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
            return applied + self.index_waiting(slot, block.sequence);
        }
        if !self.domains.has_single_rank(domain) {
            if self.bounded.is_some() && !self.affords_another_domain(slot) {
                self.evict_rank(slot);
                return self.refuse(slot, std::slice::from_ref(block));
            }
            self.change_domain(slot, None);
            return self.store_one(slot, parent, block, (tier, copies));
        }
        self.release_with_descendants(slot, position);
        // The old definition must be gone, even if its trimming was deferred.
        while self.find_sequence(domain, block.sequence).is_some() && self.trim_next_queued() > 0 {}
        let limit = if held { usize::MAX } else { limit };
        Applied { moved: u64::from(held), ..self.insert(slot, parent, block, (tier, copies), limit) }
    }

    /// Stores a block that has no sequence hash in the domain and does not wait.
    fn insert(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        copies: (Tier, u32),
        waiting_blocks_max: usize,
    ) -> Applied {
        match self.parent_position(slot, parent) {
            None => self.store_waiting(slot, parent, block, copies, waiting_blocks_max),
            Some(at) => {
                let applied = self.store_chain(slot, at, parent, std::slice::from_ref(block), copies);
                applied + self.index_waiting(slot, block.sequence)
            }
        }
    }

    /// Position of a parent; none if it is unknown or waits itself.
    fn parent_position(&self, slot: RankSlot, parent: Option<SequenceHash>) -> Option<Cursor> {
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
    ) -> Applied {
        if self.bounded.is_some() {
            return self.refuse(slot, std::slice::from_ref(block));
        }
        let rank = self.ranks.get_mut(slot);
        if rank.waiting.len() >= waiting_blocks_max {
            return Applied { refused: 1, ..Applied::default() };
        }
        let mut waiting =
            HeldBlock { sequence: block.sequence, parent, local: block.local, copies: PerTier::default() };
        waiting.copies[tier] = copies;
        rank.waiting.insert(waiting);
        rank.size.blocks += 1;
        rank.size.waiting += 1;
        rank.size.by_tier[tier] += 1;
        Applied { stored: 1, waiting: 1, ..Applied::default() }
    }

    /// Adds copies to a waiting block.
    pub(super) fn add_waiting_copies(
        &mut self,
        slot: RankSlot,
        sequence: SequenceHash,
        (tier, copies): (Tier, u32),
    ) -> Applied {
        let rank = self.ranks.get_mut(slot);
        let waiting = rank.waiting.get_mut(sequence).expect("the caller found it");
        let before = waiting.copies[tier];
        waiting.copies[tier] = before.saturating_add(copies);
        if before > 0 {
            return Applied { duplicate: 1, ..Applied::default() };
        }
        rank.size.by_tier[tier] += 1;
        Applied { stored: 1, ..Applied::default() }
    }

    fn remove_waiting_block(&mut self, slot: RankSlot, sequence: SequenceHash) {
        if let Some(block) = self.ranks.get_mut(slot).waiting.remove(sequence) {
            self.uncount_waiting(slot, &block);
        }
    }

    fn uncount_waiting(&mut self, slot: RankSlot, block: &HeldBlock) {
        let size = &mut self.ranks.get_mut(slot).size;
        size.blocks -= 1;
        size.waiting -= 1;
        for (tier, &copies) in block.copies.iter() {
            size.by_tier[tier] -= usize::from(copies > 0);
        }
    }

    /// Indexes the blocks that wait for this sequence hash, and those that wait for them. Reports the blocks that it
    /// had to refuse.
    fn index_waiting(&mut self, slot: RankSlot, sequence: SequenceHash) -> Applied {
        let mut refused = Applied::default();
        let mut known = vec![sequence];
        while let Some(sequence) = known.pop() {
            if self.ranks.get(slot).waiting.is_empty() || self.parent_position(slot, Some(sequence)).is_none() {
                continue;
            }
            for waiting in self.ranks.get_mut(slot).waiting.take_followers(sequence) {
                self.uncount_waiting(slot, &waiting);
                let block = Block { sequence: waiting.sequence, local: waiting.local };
                for (tier, &copies) in waiting.copies.iter() {
                    if copies > 0 {
                        let applied = self.store_waiting_one(slot, Some(sequence), &block, (tier, copies));
                        refused.refused += applied.refused;
                        refused.twins_refused += applied.twins_refused;
                    }
                }
                known.push(waiting.sequence);
            }
        }
        refused
    }

    /// [`Writer::store_one`] for a block that waited: it was counted when it was stored, so the limit of waiting
    /// blocks does not apply.
    fn store_waiting_one(
        &mut self,
        slot: RankSlot,
        parent: Option<SequenceHash>,
        block: &Block,
        copies: (Tier, u32),
    ) -> Applied {
        let domain = self.ranks.get(slot).domain;
        let at = self.parent_position(slot, parent);
        match at.map(|at| (at, self.locate(domain, at.position, block))) {
            Some((_, BlockLookup::Found(Cursor { position: Position { run, offset }, .. }))) => {
                self.hold(slot, run, offset..offset + 1, copies)
            }
            Some((at, BlockLookup::WithoutHash(_) | BlockLookup::Absent)) => {
                self.store_chain(slot, at, parent, std::slice::from_ref(block), copies)
            }
            _ => self.store_one(slot, parent, block, copies),
        }
    }
}
