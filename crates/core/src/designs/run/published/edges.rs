//! Which run follows which block: one open hash table for the whole index.
//!
//! ```text
//!  line: seven slots (upper half of the key's hash | run) and a counter of keys that belong here
//!        and lie in a later line
//! ```
//!
//! A slot does not hold the key: the run's own header and first block do. The counter makes a line
//! without overflow the end of a search, and nothing has to be left behind by a removal.

use std::sync::OnceLock;

use super::arena::LINE_WORDS;
use super::atomics::{Acquire, AtomicU32, AtomicU64, Relaxed, Release, zeroed_words};
use super::layout::{Place, RUN_BLOCKS_MAX, RunId};
use crate::LocalHash;
use crate::designs::run::effort::{self, Effort};
use crate::keyed::HashKey;

const SLOTS: usize = if cfg!(loom) { 3 } else { LINE_WORDS - 1 };
const OVERFLOW: usize = SLOTS;
const SMALLEST_LOG2: u32 = if cfg!(loom) { 0 } else { 3 };
const SIZES: usize = 26;
/// An offset that no block has.
const NO_OFFSET: u16 = 1_023;
const _: () = assert!(RUN_BLOCKS_MAX < NO_OFFSET as usize);

/// The table. One size is in use at a time; smaller ones stay for readers that are still in them.
#[derive(Debug)]
pub(crate) struct Edges {
    sizes: [OnceLock<Box<[AtomicU64]>>; SIZES],
    /// Which size is in use.
    size: AtomicU32,
    /// Of the hash: clients choose local hashes.
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
    pub(crate) fn hash(&self, parent: Place, local: LocalHash) -> u32 {
        let place = u64::from(parent.run.0) << 16 | u64::from(parent.offset);
        self.key.hash(local.0, place) as u32
    }

    /// The hash under which the runs are listed that are attached inside a run and start with a block of it: those that
    /// make it [`Info::TWIN_INSIDE`](super::layout::Info::TWIN_INSIDE).
    #[inline]
    pub(crate) fn hash_of_twins_inside(&self, run: RunId) -> u32 {
        self.hash(Place { run, offset: NO_OFFSET }, LocalHash(0))
    }

    /// Changes whenever edges have moved; a search is good when it is the same before and after.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.size.load(Acquire)
    }

    /// Runs that may have this key's hash, until `take` wants no more.
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

    fn words(&self, size: u32) -> &[AtomicU64] {
        self.sizes[size as usize].get().expect("a size is used after it was made")
    }
}

/// The writer's side of the table.
#[derive(Debug, Default)]
pub(crate) struct EdgesWriter {
    count: usize,
    slots: usize,
}

impl EdgesWriter {
    pub(crate) fn insert(&mut self, edges: &Edges, hash: u32, run: RunId) {
        self.reserve(edges, 1);
        self.count += 1;
        put(edges.words(edges.size.load(Relaxed)), hash, run);
    }

    /// Makes room for so many edges more.
    #[inline]
    pub(crate) fn reserve(&mut self, edges: &Edges, more: usize) {
        let mut size = edges.size.load(Relaxed);
        self.slots = edges.words(size).len() / LINE_WORDS * SLOTS;
        while (self.count + more) * 4 > self.slots * 3 {
            Self::grow(edges, size);
            self.slots *= 2;
            size += 1;
        }
    }

    pub(crate) fn remove(&mut self, edges: &Edges, hash: u32, run: RunId) {
        let words = edges.words(edges.size.load(Relaxed));
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
        self.count -= 1;
    }

    /// Bytes of more memory that so many edges more would take.
    pub(crate) fn bytes_for(&self, edges: usize) -> usize {
        let mut slots = self.slots;
        while (self.count + edges) * 4 > slots * 3 {
            slots = (slots * 2).max(SLOTS << SMALLEST_LOG2);
        }
        2 * (slots - self.slots) / SLOTS * LINE_WORDS * size_of::<u64>()
    }

    /// Bytes of the size in use and of the smaller ones.
    pub(crate) fn bytes(&self) -> usize {
        // Each size is half of the next.
        2 * self.slots / SLOTS * LINE_WORDS * size_of::<u64>()
    }

    fn grow(edges: &Edges, size: u32) {
        let old = edges.words(size);
        let new = edges.sizes[size as usize + 1].get_or_init(|| zeroed_words(old.len() * 2));
        for line in old.chunks_exact(LINE_WORDS) {
            for slot in line[..SLOTS].iter().map(|slot| slot.load(Relaxed)).filter(|&slot| slot != 0) {
                put(new, (slot >> 32) as u32, RunId(slot as u32));
            }
        }
        edges.size.store(size + 1, Release);
    }
}

fn put(words: &[AtomicU64], hash: u32, run: RunId) {
    let lines = words.len() / LINE_WORDS;
    let mut at = hash as usize & (lines - 1);
    loop {
        let line = &words[at * LINE_WORDS..(at + 1) * LINE_WORDS];
        if let Some(slot) = line[..SLOTS].iter().find(|slot| slot.load(Relaxed) == 0) {
            slot.store(u64::from(hash) << 32 | u64::from(run.0), Release);
            return;
        }
        // Before the slot: whoever finds the edge late must be led on from here.
        line[OVERFLOW].store(line[OVERFLOW].load(Relaxed) + 1, Release);
        at = (at + 1) & (lines - 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Most lines that a search for one of these first blocks looks at, in a table with all of them.
    fn longest_search(key: HashKey, locals: &[LocalHash]) -> usize {
        let (edges, mut writer) = (Edges::new(key), EdgesWriter::default());
        for (at, &local) in locals.iter().enumerate() {
            writer.insert(&edges, edges.hash(Place::ROOT, local), RunId(at as u32 + 1));
        }
        let search = |&local: &LocalHash| {
            effort::of(Effort::EdgeLine, || {
                edges.search(edges.generation(), edges.hash(Place::ROOT, local), |_| false);
            })
        };
        locals.iter().map(search).max().unwrap_or(0)
    }

    /// Prompts whose first blocks a client has chosen, by a hash that it can compute, to lie in one cluster.
    #[test]
    fn chosen_prompts_do_not_lie_together() {
        let known = Edges::new(HashKey::FIXED);
        let lies_there = |local: &LocalHash| known.hash(Place::ROOT, *local).trailing_zeros() >= 10;
        let locals: Vec<LocalHash> = (0..).map(LocalHash).filter(lies_there).take(2_000).collect();
        assert!(longest_search(HashKey::FIXED, &locals) > 250, "all of them lie in one cluster");
        for seed in 1..9_u64 {
            let key = HashKey::new([1, 2, 3, 4].map(|word| (seed * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let longest = longest_search(key, &locals);
            assert!(longest <= 8, "{longest}");
        }
    }
}
