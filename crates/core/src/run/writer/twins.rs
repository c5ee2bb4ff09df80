//! Twins: blocks with the same local hash at the same position, because a rank has several sequence hashes for them.
//!
//! The first twin is an ordinary block: the first one of a run, or one inside a run. Each of the others starts a separate
//! run. All twins that start runs have the flag [`Info::TWIN`], and all but one of them [`Info::LATER_TWIN`].
//! A run with a twin inside has [`Info::TWIN_INSIDE`], and the edge table lists its twins. The last remaining one
//! loses its flag.

use super::Writer;
use super::locate::Cursor;
use super::runs::DomainId;
use crate::run::published::layout::{Info, RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;
use crate::{AppliedChanges, Block, LocalHash};

impl Writer {
    /// Adds a twin to a block for which the domain has another sequence hash: a separate run, with as many of the
    /// following blocks as fit. Returns none if the limit of twins of the block, or of its run, is reached.
    pub(super) fn append_twin(
        &mut self,
        domain: DomainId,
        parent: RunPosition,
        blocks: &[Block],
    ) -> Option<(usize, Cursor)> {
        let twins = self.followers(parent, blocks[0].local);
        let inside = twins.iter().find(|twin| twin.offset > 0).map(|twin| twin.run);
        // The counter of a run has 16 bits.
        let twins_max = self.limits.twins_max.min(u16::MAX.into());
        if twins.len() > twins_max
            || inside.is_some_and(|run| usize::from(self.runs.get(run).twins_inside) >= twins_max)
        {
            return None;
        }
        for twin in twins {
            let flag = if twin.offset > 0 { Info::TWIN_INSIDE } else { Info::TWIN };
            self.set_flag(twin.run, flag);
        }
        let run = self.new_run(blocks.len(), self.room_of_chain(parent));
        let (count, last) = self.fill(domain, run, 0, &blocks[..blocks.len().min(run.capacity())]);
        // A reader that finds this twin first learns that there is another.
        let info = Info(Info::new(parent).0 | Info::TWIN | Info::LATER_TWIN);
        self.publish_length(run, info, 0, count);
        if let Some(inside) = inside {
            self.runs.get_mut(inside).twins_inside += 1;
            let hash = self.published.edges.hash_of_twins_inside(inside);
            self.edges.insert(&self.published.edges, hash, run);
        }
        Some((count, last))
    }

    /// Refuses these blocks because the first one has too many twins.
    pub(super) fn refuse_twins(&mut self, slot: RankSlot, blocks: &[Block]) -> AppliedChanges {
        let twins_refused = blocks.len() as u64;
        if self.bounded.is_some() {
            return AppliedChanges { twins_refused, ..self.refuse(slot, blocks) };
        }
        AppliedChanges { refused: twins_refused, twins_refused, ..AppliedChanges::default() }
    }

    pub(super) fn is_later_twin(&self, run: RunId) -> bool {
        self.info(run).has(Info::LATER_TWIN)
    }

    /// Updates the flags after the run with this info, which followed `parent` with this block, was freed.
    pub(super) fn after_freeing_twin(&mut self, (run, info): (RunId, Info), local: LocalHash) {
        if !info.has(Info::TWIN) {
            return;
        }
        let parent = info.parent();
        if self.continues_with(parent, local) {
            self.remove_inside_twin(parent.run, run);
        }
        self.update_remaining_twins(parent, local, None);
    }

    /// Updates the flags before a run is truncated: the block after its new end may be a twin of runs that follow
    /// there.
    pub(super) fn before_truncating(&mut self, run: RunId, len: u16) {
        if self.runs.get(run).twins_inside == 0 || len == 0 {
            return;
        }
        let (parent, lost) = (RunPosition { run, offset: len - 1 }, RunPosition { run, offset: len });
        let local = self.local_of(lost);
        for twin in self.followers(parent, local) {
            if twin.offset == 0 {
                self.remove_inside_twin(run, twin.run);
            }
        }
        self.update_remaining_twins(parent, local, Some(lost));
    }

    /// Whether the block after a position in its own run has this local hash.
    fn continues_with(&self, parent: RunPosition, local: LocalHash) -> bool {
        let next = RunPosition { offset: parent.offset + 1, ..parent };
        parent != RunPosition::ROOT && next.offset < self.runs.get(parent.run).len && self.local_of(next) == local
    }

    /// Removes a run from the twins of a block inside another run.
    fn remove_inside_twin(&mut self, inside: RunId, twin: RunId) {
        let hash = self.published.edges.hash_of_twins_inside(inside);
        self.edges.remove(&self.published.edges, hash, twin);
        let state = self.runs.get_mut(inside);
        state.twins_inside -= 1;
        if state.twins_inside == 0 {
            self.clear_flags(inside, Info::TWIN_INSIDE);
        }
    }

    /// Updates the flags of the remaining twins after one is gone, or before `lost` is removed: one of them becomes the
    /// first, and a single one is no twin.
    fn update_remaining_twins(&mut self, parent: RunPosition, local: LocalHash, lost: Option<RunPosition>) {
        let left: Vec<RunPosition> =
            self.followers(parent, local).into_iter().filter(|&twin| Some(twin) != lost).collect();
        let Some(first) = left.first() else { return };
        if first.offset == 0 {
            // All flags change with a new version, including those that are cleared: a reader sees one consistent
            // state.
            let flags = if left.len() == 1 { Info::TWIN | Info::LATER_TWIN } else { Info::LATER_TWIN };
            self.clear_flags(first.run, flags);
        }
    }

    fn clear_flags(&mut self, run: RunId, flags: u64) {
        if self.info(run).0 & flags != 0 {
            self.change_info(run, |info| Info(info.0 & !flags));
        }
    }
}
