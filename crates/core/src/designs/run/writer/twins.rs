//! Twins: blocks with one content at one place, because a rank has several names for them.
//!
//! The first of them is an ordinary block: the first one of a run, or one inside a run. Each of the others starts a run of
//! its own. All that start runs are flagged [`Info::TWIN`], all but one of them [`Info::LATER_TWIN`]; a run with one inside
//! is flagged [`Info::TWIN_INSIDE`], and the table of edges lists its twins. When only one is left, its flag goes.

use super::Writer;
use super::locate::Cursor;
use super::runs::DomainId;
use crate::designs::run::published::atomics::Relaxed;
use crate::designs::run::published::layout::{INFO, Info, Position, RunId};
use crate::designs::run::published::rank_table::RankSlot;
use crate::{Applied, Block, LocalHash};

impl Writer {
    /// Gives a block that the domain calls something else a twin, in a run of its own, with as many of the blocks that
    /// follow it as there is room for. None if the block has as many twins as it may have, or its run.
    pub(super) fn append_twin(
        &mut self,
        domain: DomainId,
        parent: Position,
        blocks: &[Block],
    ) -> Option<(usize, Cursor)> {
        let twins = self.followers(parent, blocks[0].local);
        let inside = twins.iter().find(|twin| twin.offset > 0).map(|twin| twin.run);
        // The count of a run has 16 bits.
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
        let run = self.new_run(parent, blocks.len());
        let (count, last) = self.fill(domain, run, 0, &blocks[..blocks.len().min(run.capacity())]);
        // A reader that finds this twin first learns at once that there is another.
        let info = Info(Info::new(parent).0 | Info::TWIN | Info::LATER_TWIN);
        self.publish_length(run, info, 0, count);
        if let Some(inside) = inside {
            self.runs.get_mut(inside).twins_inside += 1;
            let hash = self.published.edges.hash_of_twins_inside(inside);
            self.edges.insert(&self.published.edges, hash, run);
        }
        Some((count, last))
    }

    /// Takes in none of these blocks, of which the first one has too many twins.
    pub(super) fn refuse_twins(&mut self, slot: RankSlot, blocks: &[Block]) -> Applied {
        let twins_refused = blocks.len() as u64;
        if self.bounded.is_some() {
            return Applied { twins_refused, ..self.refuse(slot, blocks) };
        }
        Applied { refused: twins_refused, twins_refused, ..Applied::default() }
    }

    pub(super) fn is_later_twin(&self, run: RunId) -> bool {
        self.info(run).has(Info::LATER_TWIN)
    }

    fn info(&self, run: RunId) -> Info {
        Info(self.published.run(run).record[INFO].load(Relaxed))
    }

    /// A run with this info has been freed, which followed `parent` with this block.
    pub(super) fn after_freeing_twin(&mut self, (run, info): (RunId, Info), local: LocalHash) {
        if !info.has(Info::TWIN) {
            return;
        }
        let parent = info.parent();
        if self.continues_with(parent, local) {
            self.unlist_inside(parent.run, run);
        }
        self.lose_twin(parent, local, None);
    }

    /// A run becomes shorter: the block behind its new end may be a twin of runs that follow there.
    pub(super) fn before_truncating(&mut self, run: RunId, len: u16) {
        if self.runs.get(run).twins_inside == 0 || len == 0 {
            return;
        }
        let (parent, lost) = (Position { run, offset: len - 1 }, Position { run, offset: len });
        let local = self.local_of(lost);
        for twin in self.followers(parent, local) {
            if twin.offset == 0 {
                self.unlist_inside(run, twin.run);
            }
        }
        self.lose_twin(parent, local, Some(lost));
    }

    /// Whether the block after a place in its own run is this one.
    fn continues_with(&self, parent: Position, local: LocalHash) -> bool {
        let next = Position { offset: parent.offset + 1, ..parent };
        parent != Position::ROOT && next.offset < self.runs.get(parent.run).len && self.local_of(next) == local
    }

    /// A run is no longer the twin of a block inside another.
    fn unlist_inside(&mut self, inside: RunId, twin: RunId) {
        let hash = self.published.edges.hash_of_twins_inside(inside);
        self.edges.remove(&self.published.edges, hash, twin);
        let state = self.runs.get_mut(inside);
        state.twins_inside -= 1;
        if state.twins_inside == 0 {
            self.clear_flags(inside, Info::TWIN_INSIDE);
        }
    }

    /// One of several twins is gone, or is about to be `lost`: of those that are left one is the first, and one that is
    /// left alone is no twin.
    fn lose_twin(&mut self, parent: Position, local: LocalHash, lost: Option<Position>) {
        let left: Vec<Position> =
            self.followers(parent, local).into_iter().filter(|&twin| Some(twin) != lost).collect();
        let Some(first) = left.first() else { return };
        if first.offset == 0 {
            // All flags change with a new version, also those that go: a reader sees one state of all of them.
            let flags = if left.len() == 1 { Info::TWIN | Info::LATER_TWIN } else { Info::LATER_TWIN };
            self.clear_flags(first.run, flags);
        }
    }

    fn clear_flags(&mut self, run: RunId, flags: u64) {
        if self.info(run).0 & flags != 0 {
            self.change_run(run, |run| {
                let info = run.record[INFO].load(Relaxed);
                run.record[INFO].store(info & !flags, Relaxed);
            });
        }
    }
}
