//! From an engine's names to blocks: one hash table for each hash domain.
//!
//! The table is cut into segments by the upper bits of the names' tags; a segment that is full is
//! doubled while it is small and split after that, so growing never costs more than one segment.

use super::names::{LineId, Names};
use super::segment::{Hash, Segment};
use crate::SequenceHash;
use crate::designs::run::published::layout::Place;

/// How many names before its turn a name's line is asked for.
pub(super) const PREFETCHED_AHEAD: usize = 16;

/// Sequence hash → place, for the names of one domain.
#[derive(Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Segment by the upper `depth` bits of the tag.
    index: Vec<u32>,
    depth: u32,
    /// The segment that was last looked at for memory to give back.
    looked_at: usize,
}

impl Default for Directory {
    fn default() -> Self {
        Self { segments: vec![Segment::default()], index: vec![0], depth: 0, looked_at: 0 }
    }
}

impl Directory {
    #[inline]
    fn segment_of(&self, hash: Hash) -> usize {
        self.index[hash.upper(self.depth)] as usize
    }

    /// Where the block with this name is.
    #[inline]
    pub(super) fn find(&self, names: &Names, name: SequenceHash) -> Option<(Place, LineId)> {
        let hash = Hash::of(name);
        self.segments[self.segment_of(hash)].find(names, name, hash)
    }

    /// Asks for the lines of names that are looked up soon.
    #[inline]
    pub(super) fn prefetch(&self, names: impl Iterator<Item = SequenceHash>) {
        for name in names {
            let hash = Hash::of(name);
            self.segments[self.segment_of(hash)].prefetch(hash);
        }
    }

    /// Takes in a name that is not known yet; `place` puts it into a line of names, once there is room
    /// for it here, and returns that line. Returns nothing when the name is known.
    ///
    /// The order matters: when a segment grows, the lines say which names are in it.
    #[inline]
    pub(super) fn insert_new(
        &mut self,
        names: &mut Names,
        name: SequenceHash,
        place: impl FnOnce(&mut Names) -> LineId,
    ) -> Option<LineId> {
        let hash = Hash::of(name);
        let mut at = self.segment_of(hash);
        if self.segments[at].may_know(hash) && self.segments[at].find(names, name, hash).is_some() {
            return None;
        }
        if self.segments[at].is_full() {
            at = self.make_room(names, hash);
        }
        let line = place(names);
        self.segments[at].put(hash, line);
        Some(line)
    }

    /// The segment for one more name with this hash.
    #[cold]
    fn make_room(&mut self, names: &Names, hash: Hash) -> usize {
        loop {
            let at = self.segment_of(hash);
            let segment = &mut self.segments[at];
            if !segment.is_full() {
                return at;
            }
            if segment.can_be_split() { self.split(names, at) } else { segment.double(names) }
        }
    }

    /// Makes room for `count` names more wherever one of these hashes belongs, if that takes no more than
    /// `bytes_max` more bytes. Says how many it took, as an error when more are needed.
    pub(super) fn reserve(
        &mut self,
        names: &Names,
        hashes: impl Iterator<Item = Hash>,
        (count, bytes_max): (usize, usize),
    ) -> Result<usize, usize> {
        let mut taken = 0;
        for hash in hashes {
            let mut at = self.segment_of(hash);
            while !self.segments[at].has_room_for(count) {
                // Growing needs as much again for a moment.
                let more = self.segments[at].bytes();
                if taken + 2 * more > bytes_max {
                    return Err(taken);
                }
                taken += more;
                if self.segments[at].can_be_split() {
                    self.split(names, at);
                } else {
                    self.segments[at].double(names);
                }
                at = self.segment_of(hash);
            }
        }
        Ok(taken)
    }

    /// Looks at the next segment, and halves it if hardly anything is left in it. Says how many bytes that
    /// gave back.
    pub(super) fn shrink_next(&mut self, names: &Names) -> usize {
        self.looked_at = (self.looked_at + 1) % self.segments.len();
        let segment = &mut self.segments[self.looked_at];
        let before = segment.bytes();
        if segment.is_sparse() {
            segment.halve(names);
        }
        before - segment.bytes()
    }

    /// Forgets a name that stands in `line`.
    #[inline]
    pub(super) fn remove(&mut self, name: SequenceHash, line: LineId) {
        let hash = Hash::of(name);
        let at = self.segment_of(hash);
        self.segments[at].remove(hash, line);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(Segment::is_empty)
    }

    pub(super) fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::bytes).sum::<usize>() + self.index.capacity() * size_of::<u32>()
    }

    fn split(&mut self, names: &Names, at: usize) {
        let new = u32::try_from(self.segments.len()).expect("fewer than 2^32 segments");
        let upper = self.segments[at].split(names);
        let (depth, prefix) = (upper.depth(), upper.prefix());
        self.segments.push(upper);
        if depth > self.depth {
            self.index = self.index.iter().flat_map(|&segment| [segment, segment]).collect();
            self.depth += 1;
        }
        // All places of the index that start with the bits of the upper half.
        let width = 1_usize << (self.depth - depth);
        self.index[prefix * width..(prefix + 1) * width].fill(new);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::super::names::Column;
    use super::*;
    use crate::designs::run::published::layout::RunId;

    fn last(names: &Names, column: &Column) -> Option<(SequenceHash, LineId)> {
        let (line, names) = names.last_lines(column, 0).next()?;
        Some((SequenceHash(*names.last()?), line))
    }

    /// Columns of a few names each, which come and go at random; the directory knows just those.
    #[test]
    fn knows_the_names_that_it_was_told() {
        let (mut directory, mut names) = (Directory::default(), Names::default());
        let mut columns = vec![Column::default(); 3_000];
        let mut known: HashMap<u64, Place> = HashMap::new();
        let mut random = 1_u64;
        for step in 0..120_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let run = (random >> 33) as usize % columns.len();
            let column = &mut columns[run];
            // More come than go, and every fourth name is one of few.
            if random >> 20 & 3 > 0 && column.named < 40 {
                let name = SequenceHash(if step.is_multiple_of(4) { step % 1_000 } else { step });
                let line = directory.insert_new(&mut names, name, |names| names.push(RunId(run as u32), column, name));
                assert_eq!(line.is_none(), known.contains_key(&name.0));
                if line.is_some() {
                    known.insert(name.0, Place { run: RunId(run as u32), offset: column.named - 1 });
                }
            } else if let Some((name, line)) = last(&names, column) {
                directory.remove(name, line);
                names.truncate(column, column.named - 1);
                known.remove(&name.0);
            }
        }
        assert!(known.len() > 20_000, "it was split: {}", known.len());
        for name in 0..120_000 {
            let found = directory.find(&names, SequenceHash(name)).map(|(place, _)| place);
            assert_eq!(found, known.get(&name).copied(), "{name}");
        }
        for column in &mut columns {
            while let Some((name, line)) = last(&names, column) {
                directory.remove(name, line);
                names.truncate(column, column.named - 1);
            }
        }
        assert!(directory.is_empty());
    }
}
