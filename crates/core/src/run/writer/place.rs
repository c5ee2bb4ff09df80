//! Where blocks are, by name and by neighbourhood, and how new ones get their place.

use super::Writer;
use super::names::{LINE_NAMES, LineId};
use super::runs::DomainId;
use crate::run::published::atomics::{Relaxed, Release};
use crate::run::published::fingerprint::fingerprint_of;
use crate::run::published::holdings::Form;
use crate::run::published::layout::{HOLDINGS, INFO, Info, Place, RUN_BLOCKS_MAX, RunId, SECTION_BLOCKS, class_for};
use crate::run::widest::widest;
use crate::{Block, LocalHash, SequenceHash};

/// A named block and the line that its name stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) place: Place,
    pub(super) line: LineId,
}

impl Cursor {
    pub(super) const ROOT: Self = Self { place: Place::ROOT, line: LineId::NONE };
}

/// Lines of names that are asked for ahead where a column is followed from its end.
const LINES_AHEAD: u32 = 4;

/// What a domain knows of a block that follows a certain place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Located {
    /// This name stands for just that.
    Known(Cursor),
    /// The content is there, and the domain has no name for it yet.
    Unnamed(Place),
    /// Nobody has told of the content.
    Absent,
    /// The domain calls that content something else.
    OtherName,
    /// The domain means another block by this name, at this place.
    Elsewhere(Place),
}

impl Writer {
    /// The block that the domain calls so.
    #[inline]
    pub(super) fn named(&self, domain: DomainId, name: SequenceHash) -> Option<Cursor> {
        let (place, line) = self.domains.get(domain).directory.find(&self.names, name)?;
        Some(Cursor { place, line })
    }

    /// The domain's name of a block that it has named.
    pub(super) fn name_of(&self, domain: DomainId, place: Place) -> SequenceHash {
        self.names.at(&self.runs.get(place.run).columns.get(domain), place.offset)
    }

    /// The domain's name of the block before one that it has named.
    pub(super) fn parent_name(&self, domain: DomainId, place: Place) -> Option<SequenceHash> {
        let parent = self.parent_of(place);
        (parent != Place::ROOT).then(|| self.name_of(domain, parent))
    }

    pub(super) fn parent_of(&self, place: Place) -> Place {
        match place.offset.checked_sub(1) {
            Some(offset) => Place { run: place.run, offset },
            None => self.runs.get(place.run).parent(),
        }
    }

    pub(super) fn local_of(&self, place: Place) -> LocalHash {
        LocalHash(self.published.run(place.run).locals()[usize::from(place.offset)].load(Relaxed))
    }

    /// How many of `blocks` follow the cursor in its own run under the names that the domain knows,
    /// and where the last of them is.
    pub(super) fn known_after(&self, domain: DomainId, at: Cursor, blocks: &[Block]) -> (usize, Cursor) {
        if at.place == Place::ROOT {
            return (0, at);
        }
        let named = self.runs.get(at.place.run).columns.get(domain).named;
        let in_run = usize::from(named - 1 - at.place.offset);
        if let Some(next) = blocks.get(in_run).filter(|_| in_run > 0) {
            self.prefetch_next(domain, at.place.run, next);
        }
        let locals = &self.published.run(at.place.run).locals()[..usize::from(named)];
        let (mut cursor, mut known) = (at, 0);
        let mut names = self.names.line(at.line);
        for block in blocks {
            let next = usize::from(cursor.place.offset) + 1;
            if next >= locals.len() || locals[next].load(Relaxed) != block.local.0 {
                break;
            }
            let mut line = cursor.line;
            if next.is_multiple_of(LINE_NAMES) {
                line = self.names.next(line);
                names = self.names.line(line);
            }
            if names[next % LINE_NAMES] != block.sequence.0 {
                break;
            }
            cursor = Cursor { place: Place { offset: next as u16, ..cursor.place }, line };
            known += 1;
        }
        (known, cursor)
    }

    /// How many of `names` precede the cursor one after the other in its own column, and where the last
    /// of them is.
    pub(super) fn named_before(&self, at: Cursor, names: &[SequenceHash]) -> (usize, Cursor) {
        let (mut cursor, mut count) = (at, 0);
        if names.len() > LINE_NAMES {
            (1..LINES_AHEAD).for_each(|lines| self.names.prefetch_before(at.line, lines));
        }
        while cursor.place.offset > 0 && count < names.len() {
            let (line, within) = match usize::from(cursor.place.offset) % LINE_NAMES {
                0 => (self.names.previous(cursor.line), LINE_NAMES),
                within => (cursor.line, within),
            };
            self.names.prefetch_before(line, LINES_AHEAD);
            let before = self.names.line(line)[..within].iter().rev();
            let same = before.zip(&names[count..]).take_while(|&(&known, name)| known == name.0).count();
            if same == 0 {
                break;
            }
            cursor = Cursor { place: Place { offset: cursor.place.offset - same as u16, ..cursor.place }, line };
            count += same;
        }
        (count, cursor)
    }

    /// What is known of a block that is said to follow `parent`.
    pub(super) fn locate(&self, domain: DomainId, parent: Place, block: &Block) -> Located {
        if let Some(found) = self.named(domain, block.sequence) {
            let fits = self.parent_of(found.place) == parent && self.local_of(found.place) == block.local;
            return if fits { Located::Known(found) } else { Located::Elsewhere(found.place) };
        }
        let mut other_name = false;
        for place in self.followers(parent, block.local) {
            if self.runs.get(place.run).columns.get(domain).named > place.offset {
                other_name = true;
            } else {
                return Located::Unnamed(place);
            }
        }
        if other_name { Located::OtherName } else { Located::Absent }
    }

    /// Every block with this content right after `parent`, the preferred one first: more than one are twins.
    pub(super) fn followers(&self, parent: Place, local: LocalHash) -> Vec<Place> {
        let mut places = Vec::new();
        if parent != Place::ROOT {
            let (state, next) = (self.runs.get(parent.run), Place { offset: parent.offset + 1, ..parent });
            if next.offset < state.len && self.local_of(next) == local {
                places.push(next);
            }
            if state.children == 0 || state.deepest_child < parent.offset {
                // As at the end of a chain that grows: no need to look for an edge.
                return places;
            }
        }
        let edges = &self.published.edges;
        edges.search(edges.generation(), edges.hash(parent, local), |run| {
            let place = Place { run, offset: 0 };
            if self.runs.get(run).parent() == parent && self.local_of(place) == local {
                places.push(place);
            }
            false
        });
        if places.len() > 1 {
            places.sort_by_key(|place| self.is_later_twin(place.run));
        }
        places
    }

    /// Gives names to blocks whose content is there from `place` on, in its run: as many as agree, the
    /// first of them at least, and not beyond a name that the domain knows.
    pub(super) fn name_stretch(&mut self, domain: DomainId, place: Place, blocks: &[Block]) -> (usize, Cursor) {
        let Place { run, offset } = place;
        let state = self.runs.get(run);
        debug_assert_eq!(state.columns.get(domain).named, offset, "names of a column have no gaps");
        let locals = &self.published.run(run).locals()[usize::from(offset)..usize::from(state.len)];
        let same = locals.iter().zip(blocks).take_while(|(local, block)| local.load(Relaxed) == block.local.0);
        let same = same.count();
        self.push_names(domain, run, sequences(&blocks[..same]))
    }

    /// Makes places for blocks that nobody has told of, in the run of `parent` if it ends there and
    /// has room, else in a new one. Returns how many; the first of them at least, and not beyond the
    /// end of a run or a name that the domain knows.
    pub(super) fn append(&mut self, domain: DomainId, parent: Place, blocks: &[Block]) -> (usize, Cursor) {
        let at_end = parent != Place::ROOT && parent.offset + 1 == self.runs.get(parent.run).len;
        let (run, start) = match at_end && usize::from(parent.offset) + 1 < parent.run.capacity() {
            true => (parent.run, usize::from(parent.offset) + 1),
            false => (self.new_run(parent, blocks.len()), 0),
        };
        let room = run.capacity() - start;
        let (count, last) = self.fill(domain, run, start, &blocks[..blocks.len().min(room)]);
        let info =
            if start == 0 { Info::new(parent) } else { Info(self.published.run(run).record[INFO].load(Relaxed)) };
        self.publish_length(run, info, start, start + count);
        (count, last)
    }

    /// With a new version of the run: whoever has read it without the flag starts again.
    pub(super) fn set_flag(&mut self, run: RunId, flag: u64) {
        self.change_run(run, |run| {
            let info = run.record[INFO].load(Relaxed);
            run.record[INFO].store(info | flag, Relaxed);
        });
    }

    /// An unused run with room for so many blocks, and for more if it goes on a long chain: such
    /// chains grow block by block, and each run of them is a step for every query.
    pub(super) fn new_run(&mut self, parent: Place, blocks: usize) -> RunId {
        let goes_on = parent != Place::ROOT && usize::from(parent.offset) + 1 == parent.run.capacity();
        let room = if goes_on { (self.depth_of(parent) / 2).min(RUN_BLOCKS_MAX) } else { 0 };
        let mut class = class_for(blocks.max(room));
        if self.bounded.is_some() {
            class = self.class_within_bound(class, blocks);
        }
        let run = self.runs.take(&self.published.runs, class);
        if let Some(bounded) = &mut self.bounded {
            bounded.values.start(run);
        }
        run
    }

    /// Blocks from the root to `place`, both ends included; runs far up are not counted.
    fn depth_of(&self, mut place: Place) -> usize {
        let mut depth = 0;
        while place != Place::ROOT && depth < 2 * RUN_BLOCKS_MAX {
            depth += usize::from(place.offset) + 1;
            place = self.runs.get(place.run).parent();
        }
        depth
    }

    /// Writes blocks, names and the fingerprints of sections that become complete behind the end of a run, where no
    /// reader looks yet.
    pub(super) fn fill(&mut self, domain: DomainId, run: RunId, start: usize, blocks: &[Block]) -> (usize, Cursor) {
        let (count, last) = self.push_names(domain, run, sequences(blocks));
        let run = self.published.run(run);
        for (local, block) in run.locals()[start..].iter().zip(&blocks[..count]) {
            local.store(block.local.0, Relaxed);
        }
        let sections = run.locals().as_chunks::<SECTION_BLOCKS>().0.iter().zip(run.fingerprints());
        let complete = start / SECTION_BLOCKS..(start + count) / SECTION_BLOCKS;
        for (section, fingerprint) in sections.skip(complete.start).take(complete.len()) {
            let section = std::array::from_fn(|at| LocalHash(section[at].load(Relaxed)));
            fingerprint.store(widest(|| fingerprint_of(&section)), Relaxed);
        }
        (count, last)
    }

    /// Gives the next blocks in the domain's column of a run their names, up to the first that the domain knows. Says
    /// how many, and where the last of them is.
    pub(super) fn push_names(
        &mut self,
        domain: DomainId,
        run: RunId,
        new: impl ExactSizeIterator<Item = SequenceHash>,
    ) -> (usize, Cursor) {
        let Self { domains, names, rows, runs, rare_bytes, .. } = self;
        let columns = &mut runs.get_mut(run).columns;
        let mut column = columns.get(domain);
        let named_before = column.named;
        let directory = &mut domains.get_mut(domain).directory;
        let bytes_before = directory.bytes();
        directory.extend((names, rows), (run, &mut column), new);
        let bytes = (bytes_before, directory.bytes());
        columns.set_counted(domain, column, rare_bytes);
        self.count_directory(bytes);
        if named_before == 0 && column.named > 0 {
            self.naming_started(run, domain);
        }
        let last = Place { run, offset: column.named - 1 };
        ((column.named - named_before).into(), Cursor { place: last, line: self.names.last_line(&column) })
    }

    /// Lets readers see blocks that are written. A run that starts is linked to its parent.
    pub(super) fn publish_length(&mut self, run: RunId, info: Info, start: usize, end: usize) {
        self.runs.get_mut(run).len = end as u16;
        let info = info.with_len(end);
        if start > 0 {
            self.published.run(run).record[INFO].store(info.0, Release);
            return;
        }
        let parent = info.parent();
        self.runs.link(run, parent);
        self.child_attached(run);
        self.change_run(run, |run| {
            run.record[INFO].store(info.0, Relaxed);
            run.record[HOLDINGS].store(Form::EMPTY.0, Relaxed);
        });
        let hash = self.published.edges.hash(parent, self.local_of(Place { run, offset: 0 }));
        self.edges.insert(&self.published.edges, hash, run);
        self.show_child(parent.run);
    }

    /// Lets readers see which run was hung from this one last.
    pub(super) fn show_child(&self, run: RunId) {
        if run != RunId::NONE {
            let form = &self.published.run(run).record[HOLDINGS];
            let before = Form(form.load(Relaxed));
            let after = before.with_child(self.runs.latest_child(run));
            if after != before {
                form.store(after.0, Release);
            }
        }
    }
}

fn sequences(blocks: &[Block]) -> impl ExactSizeIterator<Item = SequenceHash> {
    blocks.iter().map(|block| block.sequence)
}
