//! Which thread makes a worker's changes.

use std::num::NonZeroUsize;

use flash_indexer_core::WorkerId;
use rustc_hash::FxHashMap;

/// Workers and their threads.
#[derive(Debug)]
pub(super) struct Routes {
    threads: FxHashMap<WorkerId, usize>,
    /// Workers of each thread.
    worker_counts: Vec<usize>,
}

impl Routes {
    pub(super) fn new(threads: NonZeroUsize) -> Self {
        Self { threads: FxHashMap::default(), worker_counts: vec![0; threads.get()] }
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<usize> {
        self.threads.get(&worker).copied()
    }

    /// The worker's thread; for a new one, the first of those with the fewest workers.
    pub(super) fn get_or_assign(&mut self, worker: WorkerId) -> usize {
        *self.threads.entry(worker).or_insert_with(|| {
            let counts = self.worker_counts.iter_mut().enumerate();
            let (thread, count) = counts.min_by_key(|(_, count)| **count).expect("there is a thread");
            *count += 1;
            thread
        })
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        if let Some(thread) = self.threads.remove(&worker) {
            self.worker_counts[thread] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_their_thread_and_new_ones_get_the_least_loaded() {
        let mut routes = Routes::new(NonZeroUsize::new(2).expect("two"));
        let mut assigned = |worker| routes.get_or_assign(WorkerId(worker));
        assert_eq!([1, 2, 3, 4, 1, 3].map(&mut assigned), [0, 1, 0, 1, 0, 0]);
        routes.forget(WorkerId(2));
        assert_eq!(routes.get(WorkerId(2)), None);
        assert_eq!([5, 6].map(|worker| routes.get_or_assign(WorkerId(worker))), [1, 0]);
    }
}
