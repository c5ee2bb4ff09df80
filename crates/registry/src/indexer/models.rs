//! Models with their indexes: one is made for its first rank, and goes with its last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flash_indexer_core::hashing::BlockSize;
use parking_lot::RwLock;

use super::{Indexer, RegistrationError};
use crate::model::{Model, ReplaceableIndex, Windows};
use crate::shared_store::PublishedRanks;
use flash_indexer_explain::{History, SeenVariants};
use flash_indexer_ingest::Maintain;
use flash_indexer_telemetry::metrics::{Bound, ModelCounts};
use flash_indexer_types::ModelKey;

impl Indexer {
    /// The model of that name, or a new one that is not registered yet. One that nobody is registered for gives way to one
    /// with blocks of another size.
    pub(super) fn model_for(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let known = self.models.read().get(key).cloned();
        if let Some(model) = known.filter(|model| model.block_size != block_size) {
            self.forget_if_empty(&model);
        }
        let (known, count) = {
            let models = self.models.read();
            (models.get(key).cloned(), models.len())
        };
        match known {
            Some(model) if model.block_size == block_size => Ok(model),
            Some(model) => Err(RegistrationError::BlockSize {
                model: key.clone(),
                existing: model.block_size.tokens(),
                asked: block_size.tokens(),
            }),
            None if count >= self.options.models_max => {
                self.metrics.bound(Bound::Models);
                Err(RegistrationError::TooMany { what: "models", max: self.options.models_max })
            }
            None => self.new_model(key, block_size),
        }
    }

    fn new_model(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let index = self.new_index(key).inspect_err(|_| self.metrics.bound(Bound::Models))?;
        let model = Arc::new(Model {
            key: key.clone(),
            block_size,
            lora_name: RwLock::default(),
            replaceable: ReplaceableIndex::new(self.options.design, index),
            decoders: Arc::downgrade(&self.decoders),
            shared: self.rank_maker.clone().map(PublishedRanks::new),
            instances: RwLock::default(),
            windows: Windows::default(),
            counts: ModelCounts::default(),
            id: self.new_id(),
            uses: self.uses.clone(),
            history: History::new(self.options.history_blocks_max),
            spaces: SeenVariants::default(),
            metrics: Arc::clone(&self.metrics),
            writer: self.next_writer.fetch_add(1, Ordering::Relaxed) % self.writers.count(),
        });
        let index: Arc<dyn Maintain> = Arc::<Model>::clone(&model);
        self.writers.add_index(model.writer, Arc::downgrade(&index));
        Ok(model)
    }

    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn listener_count(&self) -> usize {
        let models = self.models.read();
        let counts = models.values().flat_map(|model| {
            model.instances.read().values().map(|instance| instance.listeners.len()).collect::<Vec<_>>()
        });
        counts.sum()
    }

    /// Forgets a model unless an instance is registered for it.
    pub(super) fn forget_if_empty(&self, model: &Model) {
        if model.instances.read().is_empty() {
            let left = {
                let mut models = self.models.write();
                models.remove(&model.key);
                models.len()
            };
            // HeldBehindGap the call: no answer waits for more room.
            drop(self.share_memory_among(left));
        }
    }
}
