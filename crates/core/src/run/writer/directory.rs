//! From an engine's names to blocks: one hash table for each hash domain.
//!
//! The table is cut into segments by the upper bits of the names' tags; a segment that is full is
//! doubled while it is small and split after that, so growing never costs more than one segment.
//!
//! Names come and go in rows. Where each of a row belongs is worked out once, ahead of its turn, and asked for from
//! memory: see [`Row`].

use super::names::{Column, LINE_NAMES, LineId, Names};
use super::segment::{Hash, Segment, Spot};
use crate::SequenceHash;
use crate::keyed::HashKey;
use crate::run::published::layout::{Place, RunId};

/// Names whose lines are asked for together: a few lines of names.
const ROW_NAMES: usize = 3 * LINE_NAMES;

/// Sequence hash → place, for the names of one domain.
#[derive(Debug)]
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Segment by the upper `depth` bits of the tag.
    index: Vec<u32>,
    depth: u32,
    /// The segment that was last looked at for memory to give back.
    looked_at: usize,
    key: HashKey,
    /// Of the segments and the index.
    bytes: usize,
}

/// Where a name belongs in a directory until that grows.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    segment: u32,
    spot: Spot,
}

/// Some names on their way into a directory or out of it, each with what is to be done with it.
#[derive(Debug)]
struct Row<T> {
    seats: [(Seat, T); ROW_NAMES],
    count: usize,
}

impl<T: Copy> Row<T> {
    /// An empty row; `nothing` is only there to be written over.
    fn new(nothing: T) -> Self {
        Self { seats: [(Seat::default(), nothing); ROW_NAMES], count: 0 }
    }

    fn seats(&self) -> &[(Seat, T)] {
        &self.seats[..self.count]
    }

    fn has_room_for(&self, count: usize) -> bool {
        self.count + count <= ROW_NAMES
    }
}

/// Two rows for each way: what is in one has its turn while the other comes from memory. They are kept, because short
/// events would spend a twentieth of their time on making them.
#[derive(Debug)]
pub(super) struct Rows {
    coming: [Row<SequenceHash>; 2],
    going: [Row<LineId>; 2],
}

impl Default for Rows {
    fn default() -> Self {
        let coming = std::array::from_fn(|_| Row::new(SequenceHash(0)));
        let going = std::array::from_fn(|_| Row::new(LineId::NONE));
        Self { coming, going }
    }
}

impl Directory {
    /// An empty directory; `key` is the key of its hash.
    pub(super) fn new(key: HashKey) -> Self {
        let mut directory =
            Self { segments: vec![Segment::default()], index: vec![0], depth: 0, looked_at: 0, key, bytes: 0 };
        directory.bytes = directory.segments[0].bytes() + directory.index_bytes();
        directory
    }

    /// The hash of a name that a client may have chosen.
    #[inline]
    pub(super) fn hash(&self, name: SequenceHash) -> Hash {
        Hash::of(self.key, name)
    }

    #[inline]
    fn segment_of(&self, hash: Hash) -> u32 {
        self.index[hash.upper(self.depth)]
    }

    #[inline]
    fn seat(&self, name: SequenceHash) -> Seat {
        let hash = self.hash(name);
        let segment = self.segment_of(hash);
        Seat { segment, spot: self.segments[segment as usize].spot(hash) }
    }

    #[inline]
    fn segment(&self, seat: Seat) -> &Segment {
        &self.segments[seat.segment as usize]
    }

    /// Where the block with this name is.
    #[inline]
    pub(super) fn find(&self, names: &Names, name: SequenceHash) -> Option<(Place, LineId)> {
        let seat = self.seat(name);
        self.segment(seat).find(names, name, seat.spot)
    }

    /// Asks for the line of a name that is looked for soon.
    #[inline]
    pub(super) fn prefetch(&self, name: SequenceHash) {
        let seat = self.seat(name);
        self.segment(seat).prefetch(seat.spot);
    }

    /// Asks for the lines of names in which a name may stand, once the directory's own line has come.
    pub(super) fn prefetch_names(&self, names: &Names, name: SequenceHash) {
        let seat = self.seat(name);
        self.segment(seat).candidates(seat.spot).for_each(|line| names.prefetch(line));
    }

    /// Gives the next blocks of a column their names, up to the first name that is known already.
    pub(super) fn extend(
        &mut self,
        (names, rows): (&mut Names, &mut Rows),
        (run, column): (RunId, &mut Column),
        mut new: impl ExactSizeIterator<Item = SequenceHash>,
    ) {
        let [mut now, mut next] = rows.coming.each_mut();
        self.fill(now, names, &mut new, 0);
        while now.count > 0 {
            if self.fill(next, names, &mut new, now.count) {
                self.seat_again(now);
            }
            let mut rest = now.seats();
            while !rest.is_empty() {
                let (line, room) = names.open(run, column);
                let (first, after) = rest.split_at(room.min(rest.len()));
                names.write(line, first.iter().map(|&(_, name)| name));
                let entered = self.enter(names, line, first);
                names.validate(column, entered);
                if entered < first.len() {
                    return;
                }
                rest = after;
            }
            (now, next) = (next, now);
        }
    }

    /// Works out where the next names belong, asks for their lines, and makes room there for as many and `others`. Says
    /// whether anything grew for that.
    fn fill(
        &mut self,
        row: &mut Row<SequenceHash>,
        names: &Names,
        new: &mut impl ExactSizeIterator<Item = SequenceHash>,
        others: usize,
    ) -> bool {
        row.count = new.len().min(ROW_NAMES);
        let needed = row.count + others;
        let mut is_full = false;
        for (place, name) in row.seats[..row.count].iter_mut().zip(new) {
            let seat = self.seat(name);
            let segment = self.segment(seat);
            segment.prefetch(seat.spot);
            is_full |= !segment.has_room_for(needed);
            *place = (seat, name);
        }
        if is_full {
            self.grow_for(row, names, needed);
        }
        is_full
    }

    #[cold]
    fn grow_for(&mut self, row: &mut Row<SequenceHash>, names: &Names, count: usize) {
        for &(_, name) in row.seats() {
            self.make_room(names, name, count);
        }
        self.seat_again(row);
    }

    /// Works out anew where the names of a row belong, after something grew.
    #[cold]
    fn seat_again(&self, row: &mut Row<SequenceHash>) {
        for (seat, name) in &mut row.seats[..row.count] {
            *seat = self.seat(*name);
        }
    }

    /// Takes in names that are written into a line, up to the first that is known already. Says how many.
    #[inline]
    fn enter(&mut self, names: &Names, line: LineId, new: &[(Seat, SequenceHash)]) -> usize {
        for (entered, &(seat, name)) in new.iter().enumerate() {
            let segment = &mut self.segments[seat.segment as usize];
            if !segment.put_new(seat.spot, line) {
                // Names of this line are not valid yet.
                let comes_again = || new[..entered].iter().any(|&(_, before)| before == name);
                if segment.find(names, name, seat.spot).is_some() || comes_again() {
                    return entered;
                }
                segment.put(seat.spot, line);
            }
        }
        new.len()
    }

    /// Grows the segment of a name until there is room for so many more.
    fn make_room(&mut self, names: &Names, name: SequenceHash, count: usize) {
        loop {
            let at = self.segment_of(self.hash(name)) as usize;
            if self.segments[at].has_room_for(count) {
                return;
            }
            self.grow(names, at);
        }
    }

    fn grow(&mut self, names: &Names, at: usize) {
        let (count, before) = (self.segments.len(), self.segments[at].bytes() + self.index_bytes());
        if self.segments[at].can_be_split() {
            self.split(names, at);
        } else {
            self.segments[at].double(names);
        }
        let split_off: usize = self.segments[count..].iter().map(Segment::bytes).sum();
        self.bytes = self.bytes + split_off + self.segments[at].bytes() + self.index_bytes() - before;
    }

    /// Forgets the names of these lines, from the last one on.
    pub(super) fn forget<'a>(&mut self, rows: &mut Rows, lines: impl Iterator<Item = (LineId, &'a [u64])>) {
        let [mut now, mut next] = rows.going.each_mut();
        for (line, names) in lines {
            if !next.has_room_for(LINE_NAMES) {
                self.remove(now);
                (now, next) = (next, now);
            }
            for (place, &name) in next.seats[next.count..].iter_mut().zip(names.iter().rev()) {
                let seat = self.seat(SequenceHash(name));
                self.segment(seat).prefetch(seat.spot);
                *place = (seat, line);
            }
            next.count += names.len();
        }
        self.remove(now);
        self.remove(next);
    }

    fn remove(&mut self, row: &mut Row<LineId>) {
        for &(seat, line) in row.seats() {
            self.segments[seat.segment as usize].remove(seat.spot, line);
        }
        row.count = 0;
    }

    /// Makes room for `count` names more wherever one of these belongs, if that takes no more than
    /// `bytes_max` more bytes. Says how many it took, as an error when more are needed.
    pub(super) fn reserve(
        &mut self,
        names: &Names,
        new: impl Iterator<Item = SequenceHash>,
        (count, bytes_max): (usize, usize),
    ) -> Result<usize, usize> {
        let before = self.bytes;
        for name in new {
            let hash = self.hash(name);
            let mut at = self.segment_of(hash) as usize;
            while !self.segments[at].has_room_for(count) {
                // Growing needs as much again for a moment.
                let taken = self.bytes - before;
                if taken + 2 * (self.segments[at].bytes() + self.index_bytes()) > bytes_max {
                    return Err(taken);
                }
                self.grow(names, at);
                at = self.segment_of(hash) as usize;
            }
        }
        Ok(self.bytes - before)
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
        let given_back = before - segment.bytes();
        self.bytes -= given_back;
        given_back
    }

    /// What is to be given back.
    pub(super) fn into_segments(self) -> Vec<Segment> {
        self.segments
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(Segment::is_empty)
    }

    /// Bytes that it takes. Cheap.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn index_bytes(&self) -> usize {
        self.index.capacity() * size_of::<u32>()
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
    use crate::run::effort::{self, Effort};
    use crate::run::published::layout::RunId;

    /// Most lines of slots that a search for one of these names looks at, in a directory with all of them.
    fn longest_search(key: HashKey, chosen: &[SequenceHash]) -> usize {
        let (mut directory, mut names, mut rows) = (Directory::new(key), Names::new(key), Rows::default());
        for (run, chunk) in chosen.chunks(100).enumerate() {
            let mut column = Column::default();
            directory.extend((&mut names, &mut rows), (RunId(run as u32 + 1), &mut column), chunk.iter().copied());
            assert_eq!(usize::from(column.named), chunk.len());
        }
        let search = |&name: &SequenceHash| {
            effort::of(Effort::DirectoryLine, || assert!(directory.find(&names, name).is_some()))
        };
        chosen.iter().map(search).max().unwrap_or(0)
    }

    /// Names that an engine has chosen, by a hash that it can compute, to belong in one line.
    #[test]
    fn chosen_names_do_not_lie_together() {
        let belongs_there = |name: &SequenceHash| Hash::of(HashKey::FIXED, *name).spot_of_test() == (0, 0);
        let chosen: Vec<SequenceHash> = (0..).map(SequenceHash).filter(belongs_there).take(1_500).collect();
        assert!(longest_search(HashKey::FIXED, &chosen) > 100, "all of them belong in one line");
        for seed in 1..9_u64 {
            let key = HashKey::new([1, 2, 3, 4].map(|word| (seed * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let longest = longest_search(key, &chosen);
            assert!(longest <= 6, "{longest}");
        }
    }

    /// Columns of a few names each, which come and go at random; the directory knows just those.
    #[test]
    fn knows_the_names_that_it_was_told() {
        let key = HashKey::FIXED;
        let (mut directory, mut names, mut rows) = (Directory::new(key), Names::new(key), Rows::default());
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
                let offset = column.named;
                directory.extend((&mut names, &mut rows), (RunId(run as u32), column), [name].into_iter());
                assert_eq!(column.named == offset, known.contains_key(&name.0));
                if column.named > offset {
                    known.insert(name.0, Place { run: RunId(run as u32), offset });
                }
            } else if let Some(keep) = column.named.checked_sub(1) {
                known.remove(&names.at(column, keep).0);
                directory.forget(&mut rows, names.last_lines(column, keep));
                names.truncate(column, keep);
            }
        }
        assert!(known.len() > 20_000, "it was split: {}", known.len());
        for name in 0..120_000 {
            let found = directory.find(&names, SequenceHash(name)).map(|(place, _)| place);
            assert_eq!(found, known.get(&name).copied(), "{name}");
        }
        for column in &mut columns {
            directory.forget(&mut rows, names.last_lines(column, 0));
            names.truncate(column, 0);
        }
        assert!(directory.is_empty());
    }
}
