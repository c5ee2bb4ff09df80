//! One bound of memory for the indexes of all models.
//!
//! Every model has an equal share. When a model comes, the others give up what is above their new share
//! before it gets its own; when one goes, the others may take more.

use flash_indexer_core::SharedIndex;
use flash_indexer_core::run::{MemoryTooSmall, RunIndex, RunLimits};

use super::cleanup::PendingWork;
use super::{Indexer, RegistrationError};
use flash_indexer_types::ModelKey;

/// One of so many bytes stays free for indexes that make a smaller copy of themselves, one at a time.
const COPY_SHARE: usize = 16;

impl Indexer {
    /// An index for one model more.
    pub(super) fn new_index(&self, key: &ModelKey) -> Result<Box<dyn SharedIndex>, RegistrationError> {
        let Some(bytes_max) = self.options.memory_max else { return Ok(Box::<RunIndex>::default()) };
        let models = self.models.read().len() + 1;
        let refused = |error: MemoryTooSmall| RegistrationError::Memory { model: key.clone(), models, error };
        let share = share(bytes_max, models);
        let index = RunIndex::bounded(RunLimits::default(), share).map_err(refused)?;
        if !self.share_memory_among(models).wait() {
            return Err(RegistrationError::Unavailable(format!(
                "failed to give {key} its share of --memory-max: the indexes of other models are busy; try again"
            )));
        }
        Ok(Box::new(index))
    }

    /// Gives each model there is its share of the bound, one of `models`, behind the call.
    pub(super) fn share_memory_among(&self, models: usize) -> PendingWork {
        let mut pending = PendingWork::default();
        let Some(bytes_max) = self.options.memory_max else { return pending };
        for model in self.models_of(None, None) {
            let share = share(bytes_max, models.max(1));
            let share_of = move || model.change(|index| index.set_memory_max(share, bytes_max / COPY_SHARE));
            self.cleanup.run(&mut pending, share_of);
        }
        pending
    }
}

fn share(bytes_max: usize, models: usize) -> usize {
    (bytes_max - bytes_max / COPY_SHARE) / models
}
