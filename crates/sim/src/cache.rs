//! A paged prefix cache as vLLM keeps it: physical blocks, reused from the least recently freed on.

use flash_indexer_core::SequenceHash;
use rustc_hash::FxHashMap;

/// What a cache did, in order, as an engine's events tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// A physical copy of a block was dropped to make room.
    Removed {
        /// The block.
        content: SequenceHash,
        /// Physical copies of it that are still there.
        copies_left: usize,
    },
    /// Blocks `first..last` of the request, which follow block `first - 1`, were put in.
    Stored {
        /// Index of the first block.
        first: usize,
        /// Index behind the last block.
        last: usize,
    },
}

/// A request needs more blocks than the cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request needs {needed} blocks of a cache that has {capacity}: give the engines more blocks")]
pub struct TooLong {
    /// Blocks needed.
    pub needed: usize,
    /// Blocks of the cache.
    pub capacity: usize,
}

/// Physical blocks of one engine.
///
/// One request runs at a time. It takes over the longest cached prefix, takes the least recently
/// freed blocks for the rest, and frees all of its blocks at its end, last block first: so the ends
/// of sequences go before their beginnings. A block whose content is computed although it is cached
/// already lies in the cache twice, as it does in vLLM.
#[derive(Debug)]
pub struct PrefixCache {
    capacity: usize,
    /// The end of the ring and every block that was used so far: thousands of caches that are
    /// barely used stay small.
    blocks: Vec<PhysicalBlock>,
    /// Physical blocks by content, oldest copy first.
    cached: FxHashMap<SequenceHash, Vec<usize>>,
}

/// Before the first and after the last free block in the ring of `next` and `previous`.
const END: usize = 0;

#[derive(Debug, Clone, Copy)]
struct PhysicalBlock {
    content: Option<SequenceHash>,
    previous: usize,
    next: usize,
}

impl PrefixCache {
    /// An empty cache of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let end = PhysicalBlock { content: None, previous: END, next: END };
        Self { capacity, blocks: vec![end], cached: FxHashMap::default() }
    }

    /// Blocks of the cache.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Physical blocks with content.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        self.cached.values().map(Vec::len).sum()
    }

    /// How many leading blocks of `hashes` are cached.
    #[must_use]
    pub fn hit(&self, hashes: &[SequenceHash]) -> usize {
        hashes.iter().take_while(|hash| self.cached.contains_key(hash)).count()
    }

    /// Starts a request that takes over the first `hit` blocks of `hashes`, which must be cached.
    pub(crate) fn start(&mut self, hashes: &[SequenceHash], hit: usize) -> RunningRequest {
        let reused: Vec<usize> = hashes[..hit].iter().map(|hash| self.cached[hash][0]).collect();
        for &block in &reused {
            self.unlink(block);
        }
        RunningRequest { blocks: reused, full: hit }
    }

    /// Gives the request blocks until it has `count`, and says what was dropped for them.
    pub(crate) fn grow(&mut self, request: &mut RunningRequest, count: usize, changes: &mut Vec<CacheChange>) {
        while request.blocks.len() < count {
            let block = self.take_free();
            if let Some(content) = self.blocks[block].content.take() {
                let copies_left = self.drop_copy(content, block);
                changes.push(CacheChange::Removed { content, copies_left });
            }
            request.blocks.push(block);
        }
    }

    /// Makes the request's blocks up to `full`, now complete, reusable for others.
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
        for (&block, &content) in request.blocks[completed.clone()].iter().zip(&hashes[completed]) {
            self.blocks[block].content = Some(content);
            self.cached.entry(content).or_default().push(block);
        }
        changes.push(CacheChange::Stored { first: request.full, last: full });
        request.full = full;
    }

    /// Ends the request: its blocks are free, and stay cached until they are needed.
    pub(crate) fn finish(&mut self, request: RunningRequest) {
        for &block in request.blocks.iter().rev() {
            let last = self.blocks[END].previous;
            self.blocks[block].previous = last;
            self.blocks[block].next = END;
            self.blocks[last].next = block;
            self.blocks[END].previous = block;
        }
    }

    /// Drops every copy of `content`, wherever it lies in its sequences; its physical blocks stay where
    /// they are among the free ones. No request may be running. False when it is not cached.
    pub(crate) fn forget(&mut self, content: SequenceHash) -> bool {
        let Some(copies) = self.cached.remove(&content) else { return false };
        for block in copies {
            self.blocks[block].content = None;
        }
        true
    }

    /// A block that nobody uses: one that was never used, or else the least recently freed one.
    fn take_free(&mut self) -> usize {
        if self.blocks.len() <= self.capacity {
            self.blocks.push(PhysicalBlock { content: None, previous: END, next: END });
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

    /// Takes one copy away and says how many are left.
    fn drop_copy(&mut self, content: SequenceHash, block: usize) -> usize {
        let copies = self.cached.get_mut(&content).expect("content of a block is cached");
        copies.retain(|&copy| copy != block);
        let left = copies.len();
        if left == 0 {
            self.cached.remove(&content);
        }
        left
    }
}

/// The blocks of the request that runs.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    blocks: Vec<usize>,
    /// How many of them are complete and cached.
    full: usize,
}
