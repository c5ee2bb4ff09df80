//! The assignment of workers to the threads of a pool.

use std::num::NonZeroUsize;

use flash_indexer_core::WorkerId;
use rustc_hash::FxHashMap;

/// The thread of each worker, by thread number.
#[derive(Debug)]
pub(super) struct ThreadAssignments {
    threads: FxHashMap<WorkerId, usize>,
    /// Number of workers assigned to each thread.
    worker_counts: Vec<usize>,
}

impl ThreadAssignments {
    pub(super) fn new(threads: NonZeroUsize) -> Self {
        Self { threads: FxHashMap::default(), worker_counts: vec![0; threads.get()] }
    }

    /// The thread of a worker that has one.
    pub(super) fn get(&self, worker: WorkerId) -> Option<usize> {
        self.threads.get(&worker).copied()
    }

    /// The thread of a worker. A worker without one is assigned to the first of the threads with the fewest workers.
    pub(super) fn get_or_assign(&mut self, worker: WorkerId) -> usize {
        *self.threads.entry(worker).or_insert_with(|| {
            let counts = self.worker_counts.iter_mut().enumerate();
            let (thread, count) = counts.min_by_key(|(_, count)| **count).expect("there is a thread");
            *count += 1;
            thread
        })
    }

    /// Ends the assignment of a worker.
    pub(super) fn unassign(&mut self, worker: WorkerId) {
        if let Some(thread) = self.threads.remove(&worker) {
            self.worker_counts[thread] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_keeps_its_thread_and_a_new_worker_gets_the_least_loaded_thread() {
        let mut assignments = ThreadAssignments::new(NonZeroUsize::new(2).expect("two"));
        let mut assigned = |worker| assignments.get_or_assign(WorkerId(worker));
        assert_eq!([1, 2, 3, 4, 1, 3].map(&mut assigned), [0, 1, 0, 1, 0, 0]);
        assignments.unassign(WorkerId(2));
        assert_eq!(assignments.get(WorkerId(2)), None);
        assert_eq!([5, 6].map(|worker| assignments.get_or_assign(WorkerId(worker))), [1, 0]);
    }
}
