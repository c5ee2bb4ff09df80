//! Panics of the service's threads.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Metrics, registered, resolved};
use crate::supervision::ThreadKind;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ThreadLabel {
    thread: &'static str,
}

#[derive(Debug)]
pub(super) struct ThreadMetrics {
    panics: [Counter; ThreadKind::ALL.len()],
    index_replacements: Counter,
}

impl ThreadMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Panics of threads, by what the thread is for";
        let family = registered(registry, "thread_panics", help, Family::<ThreadLabel, Counter>::default());
        let panics = resolved(&family, ThreadKind::ALL, |kind| ThreadLabel { thread: kind.as_str() });
        let help = "Indexes that were replaced by empty ones because a change panicked";
        Self { panics, index_replacements: registered(registry, "index_replacements", help, Counter::default()) }
    }
}

impl Metrics {
    /// A thread of this kind panicked.
    pub fn thread_panicked(&self, kind: ThreadKind) {
        self.threads.panics[kind as usize].inc();
    }

    /// An index was replaced by an empty one.
    pub fn index_replaced(&self) {
        self.threads.index_replacements.inc();
    }

    /// Panics so far, by what the threads are for; of those kinds alone that have had one.
    pub fn panics(&self) -> BTreeMap<&'static str, u64> {
        let counts = ThreadKind::ALL.map(|kind| (kind.as_str(), self.threads.panics[kind as usize].get()));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Value of the counter, for tests.
    #[must_use]
    pub fn thread_panics(&self, kind: ThreadKind) -> u64 {
        self.threads.panics[kind as usize].get()
    }

    /// Value of the counter, for tests.
    #[must_use]
    pub fn index_replacements(&self) -> u64 {
        self.threads.index_replacements.get()
    }
}
