//! Counters of thread panics and index replacements.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use super::declarations::Declarations;
use crate::thread_kind::ThreadKind;

#[derive(Debug)]
pub(super) struct ThreadMetrics {
    panics: [Counter; ThreadKind::ALL.len()],
    index_replacements: Counter,
}

impl ThreadMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Panics of threads, by thread kind";
        let panics = declarations.counters("thread_panics", help, "thread", &ThreadKind::DESCRIPTIONS);
        let help = "Indexes replaced by an empty index after a change panicked; their ranks were replayed";
        Self { panics, index_replacements: declarations.counter("index_replacements", help) }
    }
}

impl Metrics {
    /// Counts a panic of a thread of this kind.
    pub fn thread_panicked(&self, kind: ThreadKind) {
        self.threads.panics[kind as usize].inc();
    }

    /// Counts an index that was replaced by an empty one.
    pub fn index_replaced(&self) {
        self.threads.index_replacements.inc();
    }

    /// Panics since the start by thread kind. Kinds without a panic are left out.
    pub fn panics(&self) -> BTreeMap<&'static str, u64> {
        let counts = ThreadKind::ALL.map(|kind| (kind.as_str(), self.threads.panics[kind as usize].get()));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Index replacements since the start.
    #[must_use]
    pub fn index_replacements(&self) -> u64 {
        self.threads.index_replacements.get()
    }
}
