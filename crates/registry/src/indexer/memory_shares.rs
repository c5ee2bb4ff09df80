//! One memory limit for the indexes of all models.
//!
//! Every model has an equal share. Before a model is added, the other indexes shrink to their new share. After a model
//! is removed, the shares of the others grow. An index with a limit has one shard: eviction compares the values of all its
//! runs.

use flash_indexer_core::SharedIndex;
use flash_indexer_core::run::{MemoryTooSmall, RunIndex, RunLimits};
use flash_indexer_types::ModelKey;

use super::cleanup::PendingWork;
use super::{Indexer, RegistrationError};
use crate::model::unbounded_index;

/// One byte in this many stays free for indexes that shrink by copying themselves, one at a time.
const COPY_RESERVE_DIVISOR: usize = 16;

impl Indexer {
    /// Creates the index of an additional model.
    pub(super) fn new_index(&self, key: &ModelKey) -> Result<Box<dyn SharedIndex>, RegistrationError> {
        let Some(bytes_max) = self.options.memory_max else { return Ok(unbounded_index(self.options.shards())) };
        let models = self.models.read().len() + 1;
        let rejected = |error: MemoryTooSmall| RegistrationError::Memory { model: key.clone(), models, error };
        let share = share(bytes_max, models);
        let index = RunIndex::bounded(RunLimits::default(), share).map_err(rejected)?;
        if !self.share_memory_among(models).wait(&self.supervisor) {
            return Err(RegistrationError::Unavailable(format!(
                "failed to give {key} its share of --memory-max: the indexes of other models are busy; try again"
            )));
        }
        Ok(Box::new(index))
    }

    /// Sets the share of each existing model to that of one in `models`. The indexes shrink in the background.
    pub(super) fn share_memory_among(&self, models: usize) -> PendingWork {
        let mut pending = PendingWork::default();
        let Some(bytes_max) = self.options.memory_max else { return pending };
        for model in self.models_of(None, None) {
            let share = share(bytes_max, models.max(1));
            let set_share = move || model.change(|index| index.set_memory_max(share, bytes_max / COPY_RESERVE_DIVISOR));
            self.cleanup.run(&mut pending, set_share);
        }
        pending
    }
}

fn share(bytes_max: usize, models: usize) -> usize {
    (bytes_max - bytes_max / COPY_RESERVE_DIVISOR) / models
}
