//! What routers said that they will send where.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_core::{SequenceHash, WorkerId};
use parking_lot::Mutex;

use crate::score::{Predicted, PredictedBlocks, PredictionLimits};

/// Predicted blocks of every model. Workers are unique in the process, so one table has them all.
#[derive(Debug)]
pub(crate) struct Predictions {
    started: Instant,
    blocks: Mutex<PredictedBlocks>,
    /// Blocks in the table, so that scores do not lock it while there are none. Relaxed: a score that comes at the same
    /// time as a prediction may be from before it.
    remembered: AtomicUsize,
}

impl Predictions {
    pub(crate) fn new(limits: PredictionLimits) -> Self {
        let blocks = Mutex::new(PredictedBlocks::new(limits));
        Self { started: Instant::now(), blocks, remembered: AtomicUsize::new(0) }
    }

    /// The worker is going to hold these prefixes.
    pub(crate) fn predict(&self, worker: WorkerId, prefixes: &[SequenceHash], ttl: Duration) -> Predicted {
        let mut blocks = self.blocks.lock();
        let predicted = blocks.predict(worker, prefixes, ttl, self.started.elapsed());
        self.remembered.store(blocks.len(), Ordering::Relaxed);
        predicted
    }

    /// What is predicted now; none if nothing is.
    pub(crate) fn look(&self) -> Option<PredictionView<'_>> {
        if self.remembered.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = self.started.elapsed();
        let mut blocks = self.blocks.lock();
        blocks.expire(now);
        self.remembered.store(blocks.len(), Ordering::Relaxed);
        (!blocks.is_empty()).then_some(PredictionView { predictions: self, now })
    }

    /// Blocks that are predicted now.
    pub(crate) fn count(&self) -> usize {
        self.look().map_or(0, |_| self.remembered.load(Ordering::Relaxed))
    }
}

/// What is predicted from one moment on. The table is locked for one worker at a time: a prediction waits for no score of
/// a large fleet.
pub(crate) struct PredictionView<'a> {
    predictions: &'a Predictions,
    now: Duration,
}

impl PredictionView<'_> {
    /// Of the prefixes `ahead`, one after the other, how many are predicted for a worker that holds those `here` by now.
    pub(crate) fn following(&self, worker: WorkerId, here: &[SequenceHash], ahead: &[SequenceHash]) -> u32 {
        let mut blocks = self.predictions.blocks.lock();
        blocks.confirm(worker, here, self.now);
        blocks.following(worker, ahead, self.now) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_taken_in_while_a_score_looks_at_worker_after_worker() {
        let predictions = Predictions::new(PredictionLimits::default());
        let (first, second) = ([SequenceHash(1)], [SequenceHash(2)]);
        let ttl = Duration::from_secs(600);
        predictions.predict(WorkerId(1), &first, ttl);
        let view = predictions.look().expect("something is predicted");
        assert_eq!(view.following(WorkerId(1), &[], &first), 1);
        assert!(predictions.blocks.try_lock().is_some(), "the table is free between two workers");
        predictions.predict(WorkerId(2), &second, ttl);
        assert_eq!(view.following(WorkerId(2), &[], &second), 1);
        assert_eq!(predictions.count(), 2);
    }
}
