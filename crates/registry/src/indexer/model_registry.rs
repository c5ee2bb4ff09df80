//! Creation and removal of models. A model is created for its first rank and removed with its last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flash_indexer_access::TenantState;
use flash_indexer_core::TokenWindows;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_explain::{History, SeenVariants};
use flash_indexer_ingest::MaintainedIndex;
use flash_indexer_telemetry::metrics::{Limit, ModelCounts};
use flash_indexer_types::ModelKey;
use parking_lot::RwLock;

use super::{Indexer, RegistrationError};
use crate::model::{InstanceTable, Model, ReplaceableIndex};
use crate::published_ranks::PublishedRanks;

impl Indexer {
    /// The model with this key, or a new one that is not in the registry yet. An existing model of another block size
    /// is replaced if no instance is registered for it.
    pub(super) fn model_for(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let known = self.find_model(key);
        if let Some(model) = known.filter(|model| model.block_size != block_size) {
            self.remove_model_if_empty(&model);
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
                self.metrics.limit_reached(Limit::Models);
                Err(RegistrationError::TooMany { what: "models", max: self.options.models_max })
            }
            None => self.new_model(key, block_size),
        }
    }

    fn new_model(&self, key: &ModelKey, block_size: BlockSize) -> Result<Arc<Model>, RegistrationError> {
        let index = self.new_index(key).inspect_err(|_| self.metrics.limit_reached(Limit::Models))?;
        let first = self.next_writer.fetch_add(index.shards(), Ordering::Relaxed);
        let writers = (first..first + index.shards()).map(|writer| writer % self.writers.count()).collect();
        let model = Arc::new(Model {
            key: key.clone(),
            block_size,
            lora_name: RwLock::default(),
            replaceable: ReplaceableIndex::new(index),
            decoders: Arc::downgrade(&self.decoders),
            published: self.rank_maker.clone().map(PublishedRanks::new),
            instances: InstanceTable::default(),
            windows: TokenWindows::default(),
            counts: ModelCounts::default(),
            id: self.new_id(),
            recent_uses: self.recent_uses.clone(),
            history: History::new(self.options.history_blocks_max),
            seen_variants: SeenVariants::default(),
            metrics: Arc::clone(&self.metrics),
            tenant: self.tenants.of(&key.tenant_id, || {
                // The first registration compares the ranks with the limit.
                TenantState::with_spare_ranks(if self.options.tenant_limits.is_some() { 0 } else { u64::MAX })
            }),
            writers,
        });
        let index: Arc<dyn MaintainedIndex> = Arc::<Model>::clone(&model);
        for (shard, &writer) in model.writers.iter().enumerate() {
            self.writers.add_index(writer, Arc::downgrade(&index), shard);
        }
        Ok(model)
    }

    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes a model unless an instance is registered for it.
    pub(super) fn remove_model_if_empty(&self, model: &Model) {
        if model.instances.read().is_empty() {
            let remaining = {
                let mut models = self.models.write();
                models.remove(&model.key);
                models.len()
            };
            // Not waited for: the shares of the other models only grow.
            drop(self.share_memory_among(remaining));
        }
    }
}
