//! Directory of a hash domain: a hash table from sequence hashes to blocks.
//!
//! The upper bits of a hash's tag select a segment, which is doubled while it is small and split after that. An event grows one
//! segment of those that are due, and another one only if it is full.
//!
//! Sequence hashes are inserted and removed in batches. The location of each hash of a batch is computed once, ahead
//! of its use, and prefetched: see [`PrefetchBatch`].

use super::directory_line::{Hash, ProbeStart};
use super::segment::Segment;
use super::sequence_columns::{Column, LINE_SEQUENCES, LineId, SequenceColumns};
use crate::SequenceHash;
use crate::keyed::HashKey;
use crate::run::published::layout::{RunId, RunPosition};

/// Sequence hashes whose lines are prefetched together: a few lines of a column.
const BATCH_SEQUENCES: usize = 3 * LINE_SEQUENCES;

/// Map from sequence hash to position, for one domain.
#[derive(Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Segment by the upper `depth` bits of the tag.
    index: Vec<u32>,
    depth: u32,
    /// The segment that was last examined for shrinking.
    last_examined: usize,
    key: HashKey,
    /// Bytes of the segments and the index.
    bytes: usize,
}

/// Location of a sequence hash in a directory, valid until the directory grows.
#[derive(Debug, Clone, Copy, Default)]
struct HashLocation {
    segment: u32,
    start: ProbeStart,
}

/// Sequence hashes to be inserted or removed, each with an operand.
#[derive(Debug)]
struct PrefetchBatch<T> {
    entries: [(HashLocation, T); BATCH_SEQUENCES],
    count: usize,
}

impl<T: Copy> PrefetchBatch<T> {
    /// Creates an empty batch; `nothing` is a placeholder.
    fn new(nothing: T) -> Self {
        Self { entries: [(HashLocation::default(), nothing); BATCH_SEQUENCES], count: 0 }
    }

    fn entries(&self) -> &[(HashLocation, T)] {
        &self.entries[..self.count]
    }

    fn has_room_for(&self, count: usize) -> bool {
        self.count + count <= BATCH_SEQUENCES
    }
}

/// Two batches for each direction: one is processed while the other is loaded from memory. They are kept, because
/// allocating them would take a twentieth of the time of a short event.
#[derive(Debug)]
pub(super) struct PrefetchBatches {
    inserts: [PrefetchBatch<SequenceHash>; 2],
    removals: [PrefetchBatch<LineId>; 2],
}

impl Default for PrefetchBatches {
    fn default() -> Self {
        let inserts = std::array::from_fn(|_| PrefetchBatch::new(SequenceHash(0)));
        let removals = std::array::from_fn(|_| PrefetchBatch::new(LineId::NONE));
        Self { inserts, removals }
    }
}

impl Directory {
    /// Creates an empty directory; `key` is the key of its hash.
    pub(super) fn new(key: HashKey) -> Self {
        let mut directory =
            Self { segments: vec![Segment::default()], index: vec![0], depth: 0, last_examined: 0, key, bytes: 0 };
        directory.bytes = directory.segments[0].bytes() + directory.index_bytes();
        directory
    }

    /// Hashes a sequence hash that a client may have chosen.
    #[inline]
    pub(super) fn hash(&self, sequence: SequenceHash) -> Hash {
        Hash::of(self.key, sequence)
    }

    #[inline]
    fn segment_of(&self, hash: Hash) -> u32 {
        self.index[hash.upper(self.depth)]
    }

    #[inline]
    fn locate(&self, sequence: SequenceHash) -> HashLocation {
        let hash = self.hash(sequence);
        let segment = self.segment_of(hash);
        HashLocation { segment, start: self.segments[segment as usize].probe_start(hash) }
    }

    #[inline]
    fn segment(&self, location: HashLocation) -> &Segment {
        &self.segments[location.segment as usize]
    }

    /// Finds the block with this sequence hash.
    #[inline]
    pub(super) fn find(&self, sequences: &SequenceColumns, sequence: SequenceHash) -> Option<(RunPosition, LineId)> {
        let location = self.locate(sequence);
        self.segment(location).find(sequences, sequence, location.start)
    }

    /// Prefetches the directory line of a sequence hash.
    #[inline]
    pub(super) fn prefetch(&self, sequence: SequenceHash) {
        let location = self.locate(sequence);
        self.segment(location).prefetch(location.start);
    }

    /// Prefetches the column lines that may contain a sequence hash, once the directory's own line is in the cache.
    pub(super) fn prefetch_sequences(&self, sequences: &SequenceColumns, sequence: SequenceHash) {
        let location = self.locate(sequence);
        self.segment(location).candidates(location.start).for_each(|line| sequences.prefetch(line));
    }

    /// Appends sequence hashes to a column, up to the first one that the directory already has.
    pub(super) fn extend(
        &mut self,
        (sequences, directory_batches): (&mut SequenceColumns, &mut PrefetchBatches),
        (run, column): (RunId, &mut Column),
        mut new: impl ExactSizeIterator<Item = SequenceHash>,
    ) {
        let [mut now, mut next] = directory_batches.inserts.each_mut();
        let mut has_grown = self.fill(now, sequences, &mut new, (0, false));
        while now.count > 0 {
            if self.fill(next, sequences, &mut new, (now.count, has_grown)) {
                has_grown = true;
                self.locate_again(now);
            }
            let mut rest = now.entries();
            while !rest.is_empty() {
                let (line, room) = sequences.open(run, column);
                let (first, after) = rest.split_at(room.min(rest.len()));
                sequences.write(line, first.iter().map(|&(_, sequence)| sequence));
                let inserted = self.insert_hashed(sequences, line, first);
                sequences.validate(column, inserted);
                if inserted < first.len() {
                    return;
                }
                rest = after;
            }
            (now, next) = (next, now);
        }
    }

    /// Computes the locations of the next sequence hashes, prefetches their lines, and makes room in their segments for these
    /// hashes and `others` more. Returns whether a segment grew; `has_grown` says whether one did before, for the same column.
    fn fill(
        &mut self,
        batch: &mut PrefetchBatch<SequenceHash>,
        sequences: &SequenceColumns,
        new: &mut impl ExactSizeIterator<Item = SequenceHash>,
        (others, has_grown): (usize, bool),
    ) -> bool {
        batch.count = new.len().min(BATCH_SEQUENCES);
        let needed = batch.count + others;
        let mut is_due = false;
        for (slot, sequence) in batch.entries[..batch.count].iter_mut().zip(new) {
            let location = self.locate(sequence);
            let segment = self.segment(location);
            segment.prefetch(location.start);
            is_due |= segment.is_due_with(needed);
            *slot = (location, sequence);
        }
        is_due && self.grow_for(batch, sequences, (needed, has_grown))
    }

    /// Grows one segment of a batch that is due, unless one `has_grown` before, and all that are full. Returns whether one grew.
    #[cold]
    fn grow_for(
        &mut self,
        batch: &mut PrefetchBatch<SequenceHash>,
        sequences: &SequenceColumns,
        (count, has_grown): (usize, bool),
    ) -> bool {
        let mut grew = false;
        for &(_, sequence) in batch.entries() {
            loop {
                let at = self.segment_of(self.hash(sequence)) as usize;
                let segment = &self.segments[at];
                let is_spared =
                    if has_grown || grew { segment.has_room_for(count) } else { !segment.is_due_with(count) };
                if is_spared {
                    break;
                }
                self.grow(sequences, at);
                grew = true;
            }
        }
        if grew {
            self.locate_again(batch);
        }
        grew
    }

    /// Computes the locations of a batch again, after a segment grew.
    #[cold]
    fn locate_again(&self, batch: &mut PrefetchBatch<SequenceHash>) {
        for (location, sequence) in &mut batch.entries[..batch.count] {
            *location = self.locate(*sequence);
        }
    }

    /// Inserts sequence hashes that are written into a line, up to the first one that the directory already has.
    /// Returns how many it inserted.
    #[inline]
    fn insert_hashed(
        &mut self,
        sequences: &SequenceColumns,
        line: LineId,
        new: &[(HashLocation, SequenceHash)],
    ) -> usize {
        for (inserted, &(location, sequence)) in new.iter().enumerate() {
            let segment = &mut self.segments[location.segment as usize];
            if !segment.put_new(location.start, line) {
                // The hashes of this line are not valid yet.
                let comes_again = || new[..inserted].iter().any(|&(_, before)| before == sequence);
                if segment.find(sequences, sequence, location.start).is_some() || comes_again() {
                    return inserted;
                }
                segment.put(location.start, line);
            }
        }
        new.len()
    }

    fn grow(&mut self, sequences: &SequenceColumns, at: usize) {
        let (count, before) = (self.segments.len(), self.segments[at].bytes() + self.index_bytes());
        if self.segments[at].can_be_split() {
            self.split(sequences, at);
        } else {
            self.segments[at].double(sequences);
        }
        let split_off: usize = self.segments[count..].iter().map(Segment::bytes).sum();
        self.bytes = self.bytes + split_off + self.segments[at].bytes() + self.index_bytes() - before;
    }

    /// Removes the sequence hashes of these lines, last line first.
    pub(super) fn remove_lines<'a>(
        &mut self,
        directory_batches: &mut PrefetchBatches,
        lines: impl Iterator<Item = (LineId, &'a [u64])>,
    ) {
        let [mut now, mut next] = directory_batches.removals.each_mut();
        for (line, sequences) in lines {
            if !next.has_room_for(LINE_SEQUENCES) {
                self.remove(now);
                (now, next) = (next, now);
            }
            for (slot, &sequence) in next.entries[next.count..].iter_mut().zip(sequences.iter().rev()) {
                let location = self.locate(SequenceHash(sequence));
                self.segment(location).prefetch(location.start);
                *slot = (location, line);
            }
            next.count += sequences.len();
        }
        self.remove(now);
        self.remove(next);
    }

    fn remove(&mut self, batch: &mut PrefetchBatch<LineId>) {
        for &(location, line) in batch.entries() {
            self.segments[location.segment as usize].remove(location.start, line);
        }
        batch.count = 0;
    }

    /// Grows the segments of these sequence hashes until none is due with `count` more, within `bytes_max`
    /// additional bytes. Returns the additional bytes, as an error if more would be needed.
    pub(super) fn reserve(
        &mut self,
        sequences: &SequenceColumns,
        new: impl Iterator<Item = SequenceHash>,
        (count, bytes_max): (usize, usize),
    ) -> Result<usize, usize> {
        let before = self.bytes;
        for sequence in new {
            let hash = self.hash(sequence);
            let mut at = self.segment_of(hash) as usize;
            while self.segments[at].is_due_with(count) {
                // Growth temporarily needs as much memory again.
                let taken = self.bytes - before;
                if taken + 2 * (self.segments[at].bytes() + self.index_bytes()) > bytes_max {
                    return Err(taken);
                }
                self.grow(sequences, at);
                at = self.segment_of(hash) as usize;
            }
        }
        Ok(self.bytes - before)
    }

    /// Examines the next segment and halves it if it is nearly empty. Returns the bytes freed.
    pub(super) fn shrink_next(&mut self, sequences: &SequenceColumns) -> usize {
        self.last_examined = (self.last_examined + 1) % self.segments.len();
        let segment = &mut self.segments[self.last_examined];
        let before = segment.bytes();
        if segment.is_sparse() {
            segment.halve(sequences);
        }
        let given_back = before - segment.bytes();
        self.bytes -= given_back;
        given_back
    }

    /// Takes the segments, to be freed.
    pub(super) fn into_segments(self) -> Vec<Segment> {
        self.segments
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(Segment::is_empty)
    }

    /// Bytes of the directory. Constant time.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn index_bytes(&self) -> usize {
        self.index.capacity() * size_of::<u32>()
    }

    fn split(&mut self, sequences: &SequenceColumns, at: usize) {
        let new = u32::try_from(self.segments.len()).expect("fewer than 2^32 segments");
        let upper = self.segments[at].split(sequences);
        let (depth, prefix) = (upper.depth, upper.prefix as usize);
        self.segments.push(upper);
        if depth > self.depth {
            self.index = self.index.iter().flat_map(|&segment| [segment, segment]).collect();
            self.depth += 1;
        }
        // All entries of the index that start with the bits of the upper half.
        let width = 1_usize << (self.depth - depth);
        self.index[prefix * width..(prefix + 1) * width].fill(new);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::super::sequence_columns::Column;
    use super::*;
    use crate::run::effort::{self, Effort};
    use crate::run::published::layout::RunId;

    /// The most slot lines that a search for one of these sequence hashes reads, in a directory with all of them.
    fn longest_search(key: HashKey, chosen: &[SequenceHash]) -> usize {
        let (mut directory, mut sequences, mut directory_batches) =
            (Directory::new(key), SequenceColumns::new(key), PrefetchBatches::default());
        for (run, chunk) in chosen.chunks(100).enumerate() {
            let mut column = Column::default();
            directory.extend(
                (&mut sequences, &mut directory_batches),
                (RunId(run as u32 + 1), &mut column),
                chunk.iter().copied(),
            );
            assert_eq!(usize::from(column.len), chunk.len());
        }
        let search = |&sequence: &SequenceHash| {
            effort::of(Effort::DirectoryLine, || assert!(directory.find(&sequences, sequence).is_some()))
        };
        chosen.iter().map(search).max().unwrap_or(0)
    }

    /// An engine chooses sequence hashes that belong in one line under a known key.
    #[test]
    fn chosen_sequence_hashes_do_not_cluster_under_a_secret_key() {
        let belongs_there = |sequence: &SequenceHash| Hash::of(HashKey::FIXED, *sequence).home_of_test() == (0, 0);
        let chosen: Vec<SequenceHash> = (0..).map(SequenceHash).filter(belongs_there).take(1_500).collect();
        assert!(longest_search(HashKey::FIXED, &chosen) > 100, "all of them belong in one line");
        for seed in 1..9_u64 {
            let key = HashKey::new([1, 2, 3, 4].map(|word| (seed * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let longest = longest_search(key, &chosen);
            assert!(longest <= 6, "{longest}");
        }
    }

    /// Short columns grow and shrink at random; the directory has exactly their sequence hashes.
    #[test]
    fn the_directory_finds_exactly_the_inserted_sequence_hashes() {
        let key = HashKey::FIXED;
        let (mut directory, mut sequences, mut directory_batches) =
            (Directory::new(key), SequenceColumns::new(key), PrefetchBatches::default());
        let mut columns = vec![Column::default(); 3_000];
        let mut known: HashMap<u64, RunPosition> = HashMap::new();
        let mut random = 1_u64;
        for step in 0..120_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let run = (random >> 33) as usize % columns.len();
            let column = &mut columns[run];
            // More inserts than removals, and every fourth sequence hash is one of few.
            if random >> 20 & 3 > 0 && column.len < 40 {
                let sequence = SequenceHash(if step.is_multiple_of(4) { step % 1_000 } else { step });
                let offset = column.len;
                directory.extend(
                    (&mut sequences, &mut directory_batches),
                    (RunId(run as u32), column),
                    [sequence].into_iter(),
                );
                assert_eq!(column.len == offset, known.contains_key(&sequence.0));
                if column.len > offset {
                    known.insert(sequence.0, RunPosition { run: RunId(run as u32), offset });
                }
            } else if let Some(keep) = column.len.checked_sub(1) {
                known.remove(&sequences.at(column, keep).0);
                directory.remove_lines(&mut directory_batches, sequences.last_lines(column, keep));
                sequences.truncate(column, keep);
            }
        }
        assert!(known.len() > 20_000, "it was split: {}", known.len());
        for sequence in 0..120_000 {
            let found = directory.find(&sequences, SequenceHash(sequence)).map(|(slot, _)| slot);
            assert_eq!(found, known.get(&sequence).copied(), "{sequence}");
        }
        for column in &mut columns {
            directory.remove_lines(&mut directory_batches, sequences.last_lines(column, 0));
            sequences.truncate(column, 0);
        }
        assert!(directory.is_empty());
    }
}
