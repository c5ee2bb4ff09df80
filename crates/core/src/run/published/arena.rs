//! Type-stable memory: records of one size that never move and are never freed while the index exists. A reader may
//! read a record long after the writer freed it.

use std::sync::OnceLock;

use super::atomics::{AtomicU64, zeroed_words};

/// Words in a cache line; records start at a line.
pub(crate) const LINE_WORDS: usize = 8;

/// Four buckets for each power of two: growth adds at most a quarter of the existing memory.
const BUCKETS_LOG2: u32 = 2;
/// A model of loom writes all buckets of a new index in each of its executions. Its 12 buckets have room for 28 records; one more
/// panics.
const BUCKETS: usize = if cfg!(loom) { 3 << BUCKETS_LOG2 } else { 28 << BUCKETS_LOG2 };

/// Records of `record_words` words, addressed by number. Growth moves nothing.
#[derive(Debug)]
pub(crate) struct Arena {
    record_words: usize,
    /// Records in each of the first buckets, as a power of two.
    first_log2: u32,
    buckets: [OnceLock<Bucket>; BUCKETS],
}

#[derive(Debug)]
struct Bucket {
    words: Box<[AtomicU64]>,
    /// Words before the first cache line.
    skipped: usize,
}

impl Arena {
    pub(crate) fn new(record_words: usize) -> Self {
        let first_bytes = if cfg!(loom) { 1 } else { 1_024 };
        let first_log2 = (first_bytes / (record_words * 8)).max(1).ilog2();
        Self { record_words, first_log2, buckets: [const { OnceLock::new() }; BUCKETS] }
    }

    /// The words of an existing record.
    #[inline]
    pub(crate) fn record(&self, number: u32) -> &[AtomicU64] {
        let (bucket, within) = self.locate(number);
        let bucket = self.buckets[bucket].get().expect("a number is published after its record");
        let start = bucket.skipped + within * self.record_words;
        &bucket.words[start..start + self.record_words]
    }

    /// Allocates the record's bucket if it does not exist. Called by the writer only.
    pub(crate) fn ensure(&self, number: u32) {
        let (bucket, _) = self.locate(number);
        self.buckets[bucket].get_or_init(|| {
            let records = 1_usize << (self.first_log2 as usize + (bucket >> BUCKETS_LOG2));
            let words = zeroed_words(records * self.record_words + LINE_WORDS - 1);
            // A model must not depend on addresses.
            let address = if cfg!(loom) { 0 } else { words.as_ptr() as usize };
            let misaligned = (address / size_of::<u64>()) % LINE_WORDS;
            Bucket { words, skipped: (LINE_WORDS - misaligned) % LINE_WORDS }
        });
    }

    /// Frees the memory bucket by bucket and yields the steps of each; a bucket holds at most a fifth of the memory.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = usize> {
        let buckets = self.buckets.into_iter().filter_map(OnceLock::into_inner);
        buckets.map(|bucket| freeing_steps(size_of_val(&*bucket.words)))
    }

    /// Bucket of a record, and its number in the bucket. Four buckets of one size hold as many records as all smaller
    /// buckets plus four buckets of the first size. Shifted by these, the top bits of a number give its position.
    #[inline]
    fn locate(&self, number: u32) -> (usize, usize) {
        let shifted = u64::from(number) + (1 << (self.first_log2 + BUCKETS_LOG2));
        let size = shifted.ilog2() - BUCKETS_LOG2;
        let quarter = (shifted >> size) - (1 << BUCKETS_LOG2);
        let bucket = u64::from(size - self.first_log2) << BUCKETS_LOG2 | quarter;
        (bucket as usize, (shifted & ((1 << size) - 1)) as usize)
    }
}

/// Steps for freeing this many bytes: one for each page.
pub(crate) fn freeing_steps(bytes: usize) -> usize {
    bytes.div_ceil(4_096)
}

/// Allocator of an arena's record numbers; owned by the writer.
#[derive(Debug, Default)]
pub(crate) struct RecordNumbers {
    next: u32,
    free: Vec<u32>,
}

impl RecordNumbers {
    /// Allocates a number and its record.
    pub(crate) fn take(&mut self, arena: &Arena) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let number = self.next;
            self.next += 1;
            arena.ensure(number);
            number
        })
    }

    pub(crate) fn free(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Records that were ever in use: their memory has been written.
    pub(crate) fn touched(&self) -> usize {
        self.next as usize
    }

    pub(crate) fn in_use(&self) -> usize {
        self.next as usize - self.free.len()
    }

    /// Freed records that can be reused.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Bytes of the list of free records.
    pub(crate) fn list_bytes(&self) -> usize {
        self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_overlap() {
        for record_words in [1, 8, 520, 4_096] {
            let arena = Arena::new(record_words);
            let mut expected = (0, 0);
            for number in 0..5_000 {
                let (bucket, within) = arena.locate(number);
                if (bucket, within) != expected {
                    assert_eq!((bucket, within), (expected.0 + 1, 0), "bucket by bucket, record by record");
                }
                expected = (bucket, within + 1);
            }
            for number in 0..40 {
                arena.ensure(number);
                assert_eq!(arena.record(number)[0].swap(u64::from(number) + 1, super::super::atomics::Relaxed), 0);
                let start = arena.record(number).as_ptr() as usize;
                assert!(!record_words.is_multiple_of(LINE_WORDS) || start.is_multiple_of(LINE_WORDS * 8));
            }
            assert!((0..40).all(|number| {
                arena.record(number)[0].load(super::super::atomics::Relaxed) == u64::from(number) + 1
            }));
        }
    }
}
