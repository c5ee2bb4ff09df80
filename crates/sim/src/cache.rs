//! A paged prefix cache with vLLM's eviction: the least recently freed physical block is reused first.

use flash_indexer_core::SequenceHash;
use rustc_hash::FxHashMap;

/// A change of a cache, as an engine publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// A physical copy of a block was dropped to make room.
    Removed {
        /// The block.
        hash: SequenceHash,
        /// Physical copies that remain.
        copies_left: usize,
    },
    /// Blocks `first..last` of the request were stored; their parent is block `first - 1`.
    Stored {
        /// Index of the first block.
        first: usize,
        /// Index of the last block plus one.
        last: usize,
    },
}

/// A request needs more blocks than the cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request needs {needed} blocks of a cache of {capacity}; give the engines more blocks")]
pub struct RequestTooLarge {
    /// Blocks needed.
    pub needed: usize,
    /// Blocks of the cache.
    pub capacity: usize,
}

/// Physical blocks of one engine.
///
/// One request runs at a time. It reuses the longest cached prefix and takes the least recently freed blocks for the
/// rest. At its end it frees all of its blocks, the last one first, so the ends of sequences are evicted before their
/// starts. A block that is computed although it is cached has two physical copies, as in vLLM.
#[derive(Debug)]
pub struct PrefixCache {
    capacity: usize,
    /// The end of the ring and every block that has been used. An unused block takes no memory, so thousands of almost
    /// empty caches stay small.
    blocks: Vec<PhysicalBlock>,
    /// Physical blocks by sequence hash, oldest copy first.
    cached: FxHashMap<SequenceHash, Vec<usize>>,
}

/// Before the first and after the last free block in the ring of `next` and `previous`.
const END: usize = 0;

#[derive(Debug, Clone, Copy)]
struct PhysicalBlock {
    hash: Option<SequenceHash>,
    previous: usize,
    next: usize,
}

impl PrefixCache {
    /// An empty cache of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let end = PhysicalBlock { hash: None, previous: END, next: END };
        Self { capacity, blocks: vec![end], cached: FxHashMap::default() }
    }

    /// Blocks of the cache.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Physical blocks that cache a block of a sequence.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        self.cached.values().map(Vec::len).sum()
    }

    /// Number of leading blocks of `hashes` that are cached.
    #[must_use]
    pub fn hit(&self, hashes: &[SequenceHash]) -> usize {
        hashes.iter().take_while(|hash| self.cached.contains_key(hash)).count()
    }

    /// Serves a request at once: it reuses at most `reused_max` leading blocks, and records its changes. Returns the number
    /// of reused blocks.
    ///
    /// # Errors
    ///
    /// When the request has more blocks than the cache; the cache is unchanged.
    pub fn serve(
        &mut self,
        hashes: &[SequenceHash],
        reused_max: usize,
        changes: &mut Vec<CacheChange>,
    ) -> Result<usize, RequestTooLarge> {
        self.check_size(hashes.len())?;
        let reused = self.hit(hashes).min(reused_max);
        let mut running = self.start(hashes, reused);
        self.grow(&mut running, hashes.len(), changes);
        self.fill(&mut running, hashes, hashes.len(), changes);
        self.finish(running);
        Ok(reused)
    }

    /// Refuses a request that needs more blocks than the cache has.
    pub(crate) fn check_size(&self, needed: usize) -> Result<(), RequestTooLarge> {
        let capacity = self.capacity;
        if needed > capacity { Err(RequestTooLarge { needed, capacity }) } else { Ok(()) }
    }

    /// Starts a request that reuses the first `hit` blocks of `hashes`, which must be cached.
    pub(crate) fn start(&mut self, hashes: &[SequenceHash], hit: usize) -> RunningRequest {
        let reused: Vec<usize> = hashes[..hit].iter().map(|hash| self.cached[hash][0]).collect();
        for &block in &reused {
            self.unlink(block);
        }
        RunningRequest { blocks: reused, full: hit }
    }

    /// Allocates blocks until the request has `count`, and records evictions in `changes`.
    pub(crate) fn grow(&mut self, request: &mut RunningRequest, count: usize, changes: &mut Vec<CacheChange>) {
        while request.blocks.len() < count {
            let block = self.take_free();
            if let Some(hash) = self.blocks[block].hash.take() {
                let copies_left = self.drop_copy(hash, block);
                changes.push(CacheChange::Removed { hash, copies_left });
            }
            request.blocks.push(block);
        }
    }

    /// Caches the request's blocks up to `full`, which are now complete.
    pub(crate) fn fill(
        &mut self,
        request: &mut RunningRequest,
        hashes: &[SequenceHash],
        full: usize,
        changes: &mut Vec<CacheChange>,
    ) {
        if full <= request.full {
            return;
        }
        let completed = request.full..full;
        for (&block, &hash) in request.blocks[completed.clone()].iter().zip(&hashes[completed]) {
            self.blocks[block].hash = Some(hash);
            self.cached.entry(hash).or_default().push(block);
        }
        changes.push(CacheChange::Stored { first: request.full, last: full });
        request.full = full;
    }

    /// Ends the request: its blocks are free, and stay cached until they are evicted.
    pub(crate) fn finish(&mut self, request: RunningRequest) {
        for &block in request.blocks.iter().rev() {
            let last = self.blocks[END].previous;
            self.blocks[block].previous = last;
            self.blocks[block].next = END;
            self.blocks[last].next = block;
            self.blocks[END].previous = block;
        }
    }

    /// Drops every copy of a block; the order of the free blocks stays. No request may be running. Returns the number of
    /// copies.
    pub fn drop_block(&mut self, hash: SequenceHash) -> usize {
        let copies = self.cached.remove(&hash).unwrap_or_default();
        for &block in &copies {
            self.blocks[block].hash = None;
        }
        copies.len()
    }

    /// Takes a free block: one that was never used, or else the least recently freed one.
    fn take_free(&mut self) -> usize {
        if self.blocks.len() <= self.capacity {
            self.blocks.push(PhysicalBlock { hash: None, previous: END, next: END });
            return self.blocks.len() - 1;
        }
        let block = self.blocks[END].next;
        assert_ne!(block, END, "the caller checked the capacity");
        self.unlink(block);
        block
    }

    fn unlink(&mut self, block: usize) {
        let PhysicalBlock { previous, next, .. } = self.blocks[block];
        self.blocks[previous].next = next;
        self.blocks[next].previous = previous;
    }

    /// Drops one copy and returns the number of remaining ones.
    fn drop_copy(&mut self, hash: SequenceHash, block: usize) -> usize {
        let copies = self.cached.get_mut(&hash).expect("the hash of a block is cached");
        copies.retain(|&copy| copy != block);
        let left = copies.len();
        if left == 0 {
            self.cached.remove(&hash);
        }
        left
    }
}

/// The blocks of the running request.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    blocks: Vec<usize>,
    /// Number of them that are complete and cached.
    full: usize,
}
