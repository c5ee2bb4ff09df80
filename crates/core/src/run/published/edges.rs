//! Edges from blocks to the runs that follow them: one open hash table for the whole index.
//!
//! ```text
//!  line: seven slots (upper half of the key's hash | run) and a counter of keys whose home is this
//!        line and that are in a later line
//! ```
//!
//! A slot does not hold the key: the run's own header and first block do. A line whose counter is zero
//! ends a search, so a removal leaves no tombstone behind.

use std::sync::OnceLock;

use super::arena::{LINE_WORDS, freeing_steps};
use super::atomics::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, zeroed_words};
use super::layout::{RUN_BLOCKS_MAX, RunId, RunPosition};
use crate::LocalHash;
use crate::cursor::PrefixCursor;
use crate::keyed::HashKey;
use crate::run::effort::{self, Effort};

const SLOTS: usize = if cfg!(loom) { 3 } else { LINE_WORDS - 1 };
const OVERFLOW: usize = SLOTS;
const SMALLEST_LOG2: u32 = if cfg!(loom) { 0 } else { 3 };
const SIZES: usize = 26;
/// Lines that an insert copies to the next table while one is being filled. The next table is complete after an
/// eighth as many inserts as there are lines, which take a fiftieth of the slots.
const COPIED_WITH_EDGE: usize = if cfg!(loom) { 1 } else { 8 };
/// An offset that no block has.
const NO_OFFSET: u16 = 1_023;
const _: () = assert!(RUN_BLOCKS_MAX < NO_OFFSET as usize);

/// The edge table. Readers use one size at a time. Smaller tables remain for readers that still use them. The writer
/// fills the next size completely before readers switch to it.
#[derive(Debug)]
pub(crate) struct Edges {
    sizes: [OnceLock<Box<[AtomicU64]>>; SIZES],
    /// The size in use.
    size: AtomicU32,
    /// Key of the hash: clients choose local hashes.
    key: HashKey,
}

impl Edges {
    pub(crate) fn new(key: HashKey) -> Self {
        let edges = Self { sizes: [const { OnceLock::new() }; SIZES], size: AtomicU32::new(0), key };
        edges.sizes[0].get_or_init(|| zeroed_words(LINE_WORDS << SMALLEST_LOG2));
        edges
    }

    pub(crate) fn key(&self) -> HashKey {
        self.key
    }

    /// The hash of an edge's key.
    #[inline]
    pub(crate) fn hash(&self, parent: RunPosition, local: LocalHash) -> u32 {
        let position = u64::from(parent.run.0) << 16 | u64::from(parent.offset);
        self.key.hash(local.0, position) as u32
    }

    /// The hash that lists the runs attached inside a run that start with the block that follows there in the run
    /// itself: the runs for which it has [`Info::TWIN_INSIDE`](super::layout::Info::TWIN_INSIDE).
    #[inline]
    pub(crate) fn hash_of_twins_inside(&self, run: RunId) -> u32 {
        self.hash(RunPosition { run, offset: NO_OFFSET }, LocalHash(0))
    }

    /// The hash of a checkpoint, in a table of checkpoints.
    #[inline]
    pub(crate) fn hash_of_checkpoint(&self, checkpoint: PrefixCursor) -> u32 {
        self.hash(RunPosition::ROOT, LocalHash(checkpoint.0))
    }

    /// Changes whenever readers switch to another table. A search is valid if the generation is the same before and
    /// after.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.size.load(Acquire)
    }

    /// Passes runs that may have this key's hash to `take`, until `take` returns true.
    #[inline]
    pub(crate) fn search(&self, generation: u32, hash: u32, mut take: impl FnMut(RunId) -> bool) {
        let words = self.words(generation);
        let lines = words.len() / LINE_WORDS;
        let mut at = hash as usize & (lines - 1);
        for _ in 0..lines {
            effort::spend(Effort::EdgeLine, 1);
            let line = &words[at * LINE_WORDS..(at + 1) * LINE_WORDS];
            for slot in &line[..SLOTS] {
                let slot = slot.load(Acquire);
                if (slot >> 32) as u32 == hash && slot as u32 != 0 && take(RunId(slot as u32)) {
                    return;
                }
            }
            if line[OVERFLOW].load(Relaxed) == 0 {
                return;
            }
            at = (at + 1) & (lines - 1);
        }
    }

    /// Frees the memory table by table and yields the steps of each.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = usize> {
        let sizes = self.sizes.into_iter().filter_map(OnceLock::into_inner);
        sizes.map(|words| freeing_steps(size_of_val(&*words)))
    }

    fn words(&self, size: u32) -> &[AtomicU64] {
        self.sizes[size as usize].get().expect("a table is allocated before its use")
    }
}

/// The writer's state of the edge table.
#[derive(Debug, Default)]
pub(crate) struct EdgesWriter {
    count: usize,
    /// Slots of the largest table: the one in use, or the one that is being filled.
    slots: usize,
    /// Lines of the table in use whose edges have been copied to the next table, while that is being filled.
    ///
    /// Edges never move within a table. So one cursor determines which edges the next table has: those in lines before
    /// the cursor. Readers use the current table until the next one has every edge.
    copied_lines: Option<usize>,
}

impl EdgesWriter {
    pub(crate) fn insert(&mut self, edges: &Edges, hash: u32, run: RunId) {
        self.reserve(edges, 1);
        self.copy_lines(edges, COPIED_WITH_EDGE);
        self.count += 1;
        let size = edges.size.load(Relaxed);
        let line = put(edges.words(size), hash, run);
        if self.copied_lines.is_some_and(|copied| line < copied) {
            put(edges.words(size + 1), hash, run);
        }
    }

    /// Reserves room for `more` further edges. The writer fills a larger table incrementally, with the inserts that
    /// follow. Only a table that must double more than once is filled at once.
    #[inline]
    pub(crate) fn reserve(&mut self, edges: &Edges, more: usize) {
        if self.slots == 0 {
            self.slots = edges.words(0).len() / LINE_WORDS * SLOTS;
        }
        while (self.count + more) * 4 > self.slots * 3 {
            self.copy_lines(edges, usize::MAX);
            let size = edges.size.load(Relaxed) as usize;
            let words = edges.words(size as u32).len();
            edges.sizes[size + 1].get_or_init(|| zeroed_words(words * 2));
            self.slots *= 2;
            self.copied_lines = Some(0);
        }
    }

    pub(crate) fn remove(&mut self, edges: &Edges, hash: u32, run: RunId) {
        let size = edges.size.load(Relaxed);
        let line = take(edges.words(size), hash, run);
        if self.copied_lines.is_some_and(|copied| line < copied) {
            take(edges.words(size + 1), hash, run);
        }
        self.count -= 1;
    }

    /// Additional bytes that `edges` more edges would take.
    pub(crate) fn bytes_for(&self, edges: usize) -> usize {
        let mut slots = self.slots;
        while (self.count + edges) * 4 > slots * 3 {
            slots = (slots * 2).max(SLOTS << SMALLEST_LOG2);
        }
        2 * (slots - self.slots) / SLOTS * LINE_WORDS * size_of::<u64>()
    }

    /// Bytes of the largest table and of all smaller ones.
    pub(crate) fn bytes(&self) -> usize {
        // Each table has half the size of the next one.
        2 * self.slots / SLOTS * LINE_WORDS * size_of::<u64>()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn count_of_test(&self) -> usize {
        self.count
    }

    /// Copies the edges of up to `lines_max` lines to the next table, if there is one. After the last line readers
    /// switch to that table.
    fn copy_lines(&mut self, edges: &Edges, lines_max: usize) {
        let Some(copied) = &mut self.copied_lines else { return };
        let size = edges.size.load(Relaxed);
        let (old, new) = (edges.words(size), edges.words(size + 1));
        let lines = old.chunks_exact(LINE_WORDS).skip(*copied).take(lines_max);
        effort::spend(Effort::CopiedEdgeLine, lines.len());
        *copied += lines.len();
        for line in lines {
            for slot in line[..SLOTS].iter().map(|slot| slot.load(Relaxed)).filter(|&slot| slot != 0) {
                put(new, (slot >> 32) as u32, RunId(slot as u32));
            }
        }
        if *copied == old.len() / LINE_WORDS {
            self.copied_lines = None;
            edges.size.store(size + 1, Release);
        }
    }
}

/// Fills a free slot and returns its line.
fn put(words: &[AtomicU64], hash: u32, run: RunId) -> usize {
    let lines = words.len() / LINE_WORDS;
    let mut at = hash as usize & (lines - 1);
    loop {
        let line = &words[at * LINE_WORDS..(at + 1) * LINE_WORDS];
        if let Some(slot) = line[..SLOTS].iter().find(|slot| slot.load(Relaxed) == 0) {
            slot.store(u64::from(hash) << 32 | u64::from(run.0), Release);
            return at;
        }
        // Counted before the slot is filled: a search that finds the edge late must continue past this line.
        line[OVERFLOW].store(line[OVERFLOW].load(Relaxed) + 1, Release);
        at = (at + 1) & (lines - 1);
    }
}

/// Empties the slot of an edge and returns its line.
fn take(words: &[AtomicU64], hash: u32, run: RunId) -> usize {
    let lines = words.len() / LINE_WORDS;
    let wanted = u64::from(hash) << 32 | u64::from(run.0);
    let home = hash as usize & (lines - 1);
    let mut at = home;
    loop {
        let line = &words[at * LINE_WORDS..(at + 1) * LINE_WORDS];
        if let Some(slot) = line[..SLOTS].iter().find(|slot| slot.load(Relaxed) == wanted) {
            slot.store(0, Release);
            break;
        }
        assert_ne!(line[OVERFLOW].load(Relaxed), 0, "the edge is in the table");
        at = (at + 1) & (lines - 1);
    }
    let mut passed = home;
    while passed != at {
        let overflow = &words[passed * LINE_WORDS + OVERFLOW];
        overflow.store(overflow.load(Relaxed) - 1, Release);
        passed = (passed + 1) & (lines - 1);
    }
    at
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The most lines that a search for one of these first blocks reads, in a table with all of them.
    fn longest_search(key: HashKey, locals: &[LocalHash]) -> usize {
        let (edges, mut writer) = (Edges::new(key), EdgesWriter::default());
        for (at, &local) in locals.iter().enumerate() {
            writer.insert(&edges, edges.hash(RunPosition::ROOT, local), RunId(at as u32 + 1));
        }
        let search = |&local: &LocalHash| {
            effort::of(Effort::EdgeLine, || {
                edges.search(edges.generation(), edges.hash(RunPosition::ROOT, local), |_| false);
            })
        };
        locals.iter().map(search).max().unwrap_or(0)
    }

    /// While the table grows, inserted and removed edges are found exactly as long as they are in it, and no single
    /// insert pays for the whole growth.
    #[test]
    fn the_edge_table_grows_incrementally() {
        let key = HashKey::FIXED;
        let (edges, mut writer) = (Edges::new(key), EdgesWriter::default());
        let hash = |at: u32| edges.hash(RunPosition::ROOT, LocalHash(u64::from(at)));
        let is_there = |at: u32| {
            let mut found = 0;
            edges.search(edges.generation(), hash(at), |run| {
                found += usize::from(run == RunId(at));
                false
            });
            found
        };
        let mut growing = 0;
        for at in 1..40_000_u32 {
            let lines = effort::of(Effort::CopiedEdgeLine, || writer.insert(&edges, hash(at), RunId(at)));
            assert!(lines <= COPIED_WITH_EDGE, "{lines} lines copied with one edge");
            assert_eq!(is_there(at), 1);
            // Every third step removes an edge, half of the time one that was just inserted.
            let gone = if at % 2 == 0 { at } else { at / 2 };
            if gone % 3 == 0 && is_there(gone) == 1 {
                writer.remove(&edges, hash(gone), RunId(gone));
            }
            growing += usize::from(writer.copied_lines.is_some());
        }
        assert!(growing > 500, "{growing} edges were inserted while the table grew");
        let left: usize = (1..40_000).map(is_there).sum();
        assert_eq!(left, writer.count);
        (1..40_000).filter(|&at| is_there(at) == 1).for_each(|at| writer.remove(&edges, hash(at), RunId(at)));
        let in_use = edges.words(edges.generation());
        assert!(in_use.iter().all(|word| word.load(Relaxed) == 0), "nothing is left behind");
    }

    /// A client chooses first blocks whose hashes, under a known key, are in one cluster.
    #[test]
    fn chosen_local_hashes_do_not_cluster_under_a_secret_key() {
        let known = Edges::new(HashKey::FIXED);
        let lies_there = |local: &LocalHash| known.hash(RunPosition::ROOT, *local).trailing_zeros() >= 10;
        let locals: Vec<LocalHash> = (0..).map(LocalHash).filter(lies_there).take(2_000).collect();
        assert!(longest_search(HashKey::FIXED, &locals) > 250, "all of them lie in one cluster");
        for seed in 1..9_u64 {
            let key = HashKey::new([1, 2, 3, 4].map(|word| (seed * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let longest = longest_search(key, &locals);
            assert!(longest <= 8, "{longest}");
        }
    }
}
