//! The cache of tokenized pieces.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Equivalent, Lifecycle, Weighter};

/// Memory of an entry in addition to its text and its ids, in bytes: two allocations, the key, the tables of the cache.
const ENTRY_BYTES: usize = 192;
/// Typical size of an entry, in bytes. The number of entries of a full cache follows from it.
const TYPICAL_ENTRY_BYTES: usize = 2048;

/// Ids of pieces of text by tokenizer and text, shared by all threads and limited by bytes.
///
/// A lookup hashes the text with a key of the process and compares all its bytes, so a collision cannot give the ids of
/// another text.
pub struct PieceCache {
    /// `None` if nothing is cached.
    pieces: Option<Pieces>,
    bytes_max: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    found_bytes: AtomicU64,
    tokenized_bytes: AtomicU64,
    evictions: Arc<AtomicU64>,
}

type Pieces = Cache<Key, Arc<[u32]>, Bytes, DefaultHashBuilder, Evictions>;

/// Counters and current sizes of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PieceStatistics {
    /// Pieces in the cache now.
    pub entries: usize,
    /// Their bytes: texts, ids and overhead.
    pub bytes: u64,
    /// Limit of these bytes.
    pub bytes_max: u64,
    /// Pieces that were found.
    pub hits: u64,
    /// Pieces that were tokenized.
    pub misses: u64,
    /// Bytes of the texts of the pieces that were found.
    pub found_bytes: u64,
    /// Bytes of the texts of the pieces that were tokenized.
    pub tokenized_bytes: u64,
    /// Pieces that were evicted, or were too large for the cache.
    pub evictions: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    tokenizer: u64,
    text: Box<str>,
}

/// A [`Key`] that borrows its text. Both have the same hash.
#[derive(Hash)]
struct BorrowedKey<'t> {
    tokenizer: u64,
    text: &'t str,
}

impl Equivalent<Key> for BorrowedKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.tokenizer == key.tokenizer && *self.text == *key.text
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Arc<[u32]>> for Bytes {
    fn weight(&self, key: &Key, ids: &Arc<[u32]>) -> u64 {
        (key.text.len() + size_of_val::<[u32]>(ids) + ENTRY_BYTES) as u64
    }
}

#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<Key, Arc<[u32]>> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: Key, _: Arc<[u32]>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl PieceCache {
    /// Creates a cache of at most `bytes_max`. Zero turns it off.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let evictions = Arc::default();
        let entries = bytes_max / TYPICAL_ENTRY_BYTES;
        let pieces = (bytes_max > 0).then(|| {
            let counted = Evictions(Arc::clone(&evictions));
            Cache::with(entries, bytes_max as u64, Bytes, DefaultHashBuilder::default(), counted)
        });
        Self {
            pieces,
            bytes_max: bytes_max as u64,
            hits: AtomicU64::default(),
            misses: AtomicU64::default(),
            found_bytes: AtomicU64::default(),
            tokenized_bytes: AtomicU64::default(),
            evictions,
        }
    }

    /// The ids of a piece, if they are cached.
    pub(super) fn get(&self, tokenizer: u64, text: &str) -> Option<Arc<[u32]>> {
        let found = self.pieces.as_ref().and_then(|pieces| pieces.get(&BorrowedKey { tokenizer, text }));
        let (counter, bytes) = match found {
            Some(_) => (&self.hits, &self.found_bytes),
            None => (&self.misses, &self.tokenized_bytes),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        found
    }

    pub(super) fn insert(&self, tokenizer: u64, text: &str, ids: &[u32]) {
        if let Some(pieces) = &self.pieces {
            pieces.insert(Key { tokenizer, text: text.into() }, ids.into());
        }
    }

    pub(in crate::tokenize) fn statistics(&self) -> PieceStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PieceStatistics {
            entries: self.pieces.as_ref().map_or(0, Cache::len),
            bytes: self.pieces.as_ref().map_or(0, Cache::weight),
            bytes_max: self.bytes_max,
            hits: read(&self.hits),
            misses: read(&self.misses),
            found_bytes: read(&self.found_bytes),
            tokenized_bytes: read(&self.tokenized_bytes),
            evictions: read(&self.evictions),
        }
    }
}
