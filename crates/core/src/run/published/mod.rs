//! The published structures: everything that a query reads (`docs/run-index.md`). They consist of atomic words in
//! type-stable memory.

pub(super) mod arena;
pub(super) mod atomics;
pub(super) mod edges;
pub(super) mod ends;
pub(super) mod fingerprint;
pub(super) mod holdings;
pub(super) mod layout;
#[cfg(loom)]
#[cfg_attr(not(test), allow(dead_code, reason = "only models mark the writer"))]
pub(super) mod modelled;
pub(super) mod prefetch;
pub(super) mod rank_table;

use atomics::{Acquire, AtomicU64, Relaxed, Release, fence};
use edges::Edges;
use holdings::{Holdings, HoldingsWord, ListArena};
use layout::{HEADER_WORDS, HOLDINGS, INFO, Info, RunArena, RunId, VERSION, sections};
use rank_table::RankTable;

use crate::keyed::HashKey;

/// All published structures of an index.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) runs: RunArena,
    pub(super) lists: ListArena,
    pub(super) edges: Edges,
    /// Runs by the checkpoints in them.
    pub(super) checkpoints: Edges,
    pub(super) ranks: RankTable,
}

impl Published {
    /// Creates empty structures. `ranks_version`, an even number, is the first version of the rank table; `key` is
    /// the key of the hash tables.
    pub(super) fn new(ranks_version: u64, key: HashKey) -> Self {
        let ranks = RankTable::new(ranks_version);
        let (edges, checkpoints) = (Edges::new(key), Edges::new(key));
        Self { runs: RunArena::new(), lists: ListArena::new(), edges, checkpoints, ranks }
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        let tables = self.edges.into_pieces().chain(self.checkpoints.into_pieces());
        self.runs.into_pieces().chain(self.lists.into_pieces()).chain(tables)
    }

    #[inline]
    pub(super) fn run(&self, run: RunId) -> Run<'_> {
        Run { id: run, record: self.runs.record(run), lists: &self.lists }
    }
}

/// The record of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    id: RunId,
    pub(super) record: &'a [AtomicU64],
    lists: &'a ListArena,
}

impl<'a> Run<'a> {
    /// The version before a read; none while the writer changes the run.
    #[inline]
    pub(super) fn version(self) -> Option<u64> {
        let version = self.record[VERSION].load(Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether the version is unchanged; call after `fence(Acquire)`.
    #[inline]
    pub(super) fn is_unchanged(self, version: u64) -> bool {
        self.record[VERSION].load(Relaxed) == version
    }

    /// Acquire: pairs with the release store of the length, so that the blocks up to that length can be read.
    #[inline]
    pub(super) fn info(self) -> Info {
        Info(self.record[INFO].load(Acquire))
    }

    /// The column at its full capacity.
    #[inline]
    pub(super) fn locals(self) -> &'a [AtomicU64] {
        &self.record[HEADER_WORDS..HEADER_WORDS + self.id.capacity()]
    }

    /// Fingerprints of all sections that fit; valid for complete sections. Small runs have none.
    #[inline]
    pub(super) fn fingerprints(self) -> &'a [AtomicU64] {
        let start = HEADER_WORDS + self.id.capacity();
        &self.record[start..start + sections(self.id.class())]
    }

    /// One child run and the offset at which it is attached. Other children may exist, and the id may have been
    /// reused for another run.
    #[inline]
    pub(super) fn child(self) -> Option<(u16, RunId)> {
        HoldingsWord(self.record[HOLDINGS].load(Acquire)).child()
    }

    #[inline]
    pub(super) fn holdings(self) -> Holdings<'a> {
        Holdings::of(self.record, self.lists)
    }

    /// Changes a run atomically for readers: a reader that has read the run before, or reads it during the change,
    /// starts again. `version` is one that no run has ever had. Called by the writer only.
    pub(super) fn change(self, version: u64, change: impl FnOnce()) {
        debug_assert_eq!(version % 2, 0);
        self.record[VERSION].store(version - 1, Relaxed);
        fence(Release);
        change();
        self.record[VERSION].store(version, Release);
    }
}
