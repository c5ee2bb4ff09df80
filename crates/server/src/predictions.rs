//! What routers said that they will send where.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_core::{SequenceHash, WorkerId};
use flash_indexer_prompt::score::{Predicted, PredictedBlocks, PredictionLimits};
use parking_lot::{Mutex, MutexGuard};

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
    pub(crate) fn look(&self) -> Option<Outlook<'_>> {
        if self.remembered.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = self.started.elapsed();
        let mut blocks = self.blocks.lock();
        blocks.expire(now);
        self.remembered.store(blocks.len(), Ordering::Relaxed);
        (!blocks.is_empty()).then_some(Outlook { blocks, now })
    }

    /// Blocks that are predicted now.
    pub(crate) fn count(&self) -> usize {
        self.look().map_or(0, |outlook| outlook.blocks.len())
    }
}

/// What is predicted at one moment.
pub(crate) struct Outlook<'a> {
    blocks: MutexGuard<'a, PredictedBlocks>,
    now: Duration,
}

impl Outlook<'_> {
    /// Of these prefixes, one after the other, how many are predicted for the worker.
    pub(crate) fn following(&self, worker: WorkerId, prefixes: &[SequenceHash]) -> u32 {
        self.blocks.following(worker, prefixes, self.now) as u32
    }

    /// The worker holds these by now.
    pub(crate) fn confirm(&mut self, worker: WorkerId, prefixes: &[SequenceHash]) {
        self.blocks.confirm(worker, prefixes, self.now);
    }
}
