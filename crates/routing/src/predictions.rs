//! Predictions: prompts that routers have sent to instances, until events confirm their blocks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_core::{SequenceHash, WorkerId};
use parking_lot::Mutex;

use crate::predicted_blocks::{PredictedBlocks, RecordedPrediction};

/// Limit of the predicted blocks, which take about 60 MB. Beyond it, the blocks that expire first are evicted.
const PREDICTED_BLOCKS_MAX: usize = 1 << 20;

/// Predicted blocks of every model, in one table: worker ids are unique in the process.
#[derive(Debug)]
pub struct Predictions {
    started: Instant,
    blocks: Mutex<PredictedBlocks>,
    /// Number of blocks in the table. Scores do not lock an empty table. Relaxed: a score need not see a concurrent
    /// prediction.
    block_count: AtomicUsize,
}

impl Default for Predictions {
    /// No predictions.
    fn default() -> Self {
        let blocks = Mutex::new(PredictedBlocks::new(PREDICTED_BLOCKS_MAX));
        Self { started: Instant::now(), blocks, block_count: AtomicUsize::new(0) }
    }
}

impl Predictions {
    /// Records that a worker is going to hold these prefixes.
    pub fn predict(&self, worker: WorkerId, prefixes: &[SequenceHash], ttl: Duration) -> RecordedPrediction {
        let mut blocks = self.blocks.lock();
        let predicted = blocks.predict(worker, prefixes, ttl, self.started.elapsed());
        self.block_count.store(blocks.len(), Ordering::Relaxed);
        predicted
    }

    /// The current predictions; none if there are none.
    pub fn view(&self) -> Option<PredictionView<'_>> {
        if self.block_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = self.started.elapsed();
        let mut blocks = self.blocks.lock();
        blocks.expire(now);
        self.block_count.store(blocks.len(), Ordering::Relaxed);
        (!blocks.is_empty()).then_some(PredictionView { predictions: self, now })
    }

    /// Number of predicted blocks.
    pub fn count(&self) -> usize {
        self.view().map_or(0, |_| self.block_count.load(Ordering::Relaxed))
    }
}

/// The predictions as of one moment. The table is locked for one worker at a time, so a prediction never waits for the
/// score of a large fleet.
#[derive(Debug)]
pub struct PredictionView<'a> {
    predictions: &'a Predictions,
    now: Duration,
}

impl PredictionView<'_> {
    /// Number of leading prefixes of `next` that are predicted for a worker. The worker holds the prefixes `held`,
    /// which confirms their predictions.
    pub fn predicted_depth(&self, worker: WorkerId, held: &[SequenceHash], next: &[SequenceHash]) -> u32 {
        let mut blocks = self.predictions.blocks.lock();
        blocks.confirm(worker, held, self.now);
        blocks.predicted_depth(worker, next, self.now) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_recorded_while_a_score_reads_worker_after_worker() {
        let predictions = Predictions::default();
        let (first, second) = ([SequenceHash(1)], [SequenceHash(2)]);
        let ttl = Duration::from_secs(600);
        predictions.predict(WorkerId(1), &first, ttl);
        let view = predictions.view().expect("a block is predicted");
        assert_eq!(view.predicted_depth(WorkerId(1), &[], &first), 1);
        assert!(predictions.blocks.try_lock().is_some(), "the table is not locked between two workers");
        predictions.predict(WorkerId(2), &second, ttl);
        assert_eq!(view.predicted_depth(WorkerId(2), &[], &second), 1);
        assert_eq!(predictions.count(), 2);
    }
}
