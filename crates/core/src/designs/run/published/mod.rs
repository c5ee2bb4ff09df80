//! What readers see: everything behind the arrows of `docs/run-index.md` that a query follows. All
//! of it is atomic words in memory that keeps its type.

pub(super) mod arena;
pub(super) mod atomics;
pub(super) mod edges;
pub(super) mod ends;
pub(super) mod fingerprint;
pub(super) mod holdings;
pub(super) mod layout;
#[cfg(loom)]
#[cfg_attr(not(test), allow(dead_code, reason = "only models say who writes"))]
pub(super) mod modelled;
pub(super) mod prefetch;
pub(super) mod rank_table;

use atomics::{Acquire, AtomicU64, Relaxed, Release, fence};
use edges::Edges;
use holdings::{Holdings, HoldingsForm, ListArena};
use layout::{HEADER_WORDS, HOLDINGS, INFO, Info, RunArena, RunId, VERSION, sections};
use rank_table::RankTable;

use crate::keyed::HashKey;

/// The whole published side of an index.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) runs: RunArena,
    pub(super) lists: ListArena,
    pub(super) edges: Edges,
    pub(super) ranks: RankTable,
}

impl Published {
    /// Nothing yet. `ranks_version`, an even number, is where the versions of the table of ranks start;
    /// `key` is the key of its hash tables.
    pub(super) fn new(ranks_version: u64, key: HashKey) -> Self {
        let ranks = RankTable::new(ranks_version);
        Self { runs: RunArena::new(), lists: ListArena::new(), edges: Edges::new(key), ranks }
    }

    /// Gives the memory back piece by piece, each with the steps that it takes.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.runs.into_pieces().chain(self.lists.into_pieces()).chain(self.edges.into_pieces())
    }

    #[inline]
    pub(super) fn run(&self, run: RunId) -> Run<'_> {
        Run { id: run, record: self.runs.record(run), lists: &self.lists }
    }
}

/// One run's record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    id: RunId,
    pub(super) record: &'a [AtomicU64],
    lists: &'a ListArena,
}

impl<'a> Run<'a> {
    /// The version before reading, none while the run is being changed.
    #[inline]
    pub(super) fn version(self) -> Option<u64> {
        let version = self.record[VERSION].load(Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether nothing has changed since; call after `fence(Acquire)`.
    #[inline]
    pub(super) fn is_unchanged(self, version: u64) -> bool {
        self.record[VERSION].load(Relaxed) == version
    }

    /// Acquire: the blocks of the length that it tells can be read.
    #[inline]
    pub(super) fn info(self) -> Info {
        Info(self.record[INFO].load(Acquire))
    }

    /// As many as there is room for.
    #[inline]
    pub(super) fn locals(self) -> &'a [AtomicU64] {
        &self.record[HEADER_WORDS..HEADER_WORDS + self.id.capacity()]
    }

    /// Of every section that there is room for; good for those that are complete. None in small runs.
    #[inline]
    pub(super) fn fingerprints(self) -> &'a [AtomicU64] {
        let start = HEADER_WORDS + self.id.capacity();
        &self.record[start..start + sections(self.id.class())]
    }

    /// One of the runs that hang from this one, and the offset at which it does; there may be more, and it may
    /// have been another run's name since.
    #[inline]
    pub(super) fn child(self) -> Option<(u16, RunId)> {
        HoldingsForm(self.record[HOLDINGS].load(Acquire)).child()
    }

    #[inline]
    pub(super) fn holdings(self) -> Holdings<'a> {
        Holdings::of(self.record, self.lists)
    }

    /// The writer's: `change` is seen as a whole by whoever has read the run before or reads it
    /// meanwhile, because it starts again. `version` is one that no run has ever had.
    pub(super) fn change(self, version: u64, change: impl FnOnce()) {
        debug_assert_eq!(version % 2, 0);
        self.record[VERSION].store(version - 1, Relaxed);
        fence(Release);
        change();
        self.record[VERSION].store(version, Release);
    }
}
