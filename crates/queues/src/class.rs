//! Classes of queues.

use std::hash::{BuildHasher, Hash};

use flash_indexer_core::keyed::KeyedState;
use flash_indexer_types::ModelKey;
use flash_indexer_types::pods::PodName;

/// Queues of one model. Classes take turns, so that a model with many instances does not slow another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueClass(pub(crate) u64);

impl QueueClass {
    /// Class of queues of no model.
    pub const NO_MODEL: Self = Self(0);

    /// Class of a pod: its topics name the model and no tenant.
    pub fn of_pod(name: &PodName) -> Self {
        Self::of_names(&name.model_name, ModelKey::DEFAULT_TENANT)
    }

    /// Clients choose the names, and cannot find two names of one class.
    fn of_names(model_name: &str, tenant_id: &str) -> Self {
        Self(KeyedState.hash_one((model_name, tenant_id)))
    }
}

impl From<&ModelKey> for QueueClass {
    fn from(key: &ModelKey) -> Self {
        Self::of_names(&key.model_name, &key.tenant_id)
    }
}

/// Key of a queue, which also has its class. The queues read the class under their lock.
pub trait ClassedKey: Clone + Eq + Hash {
    /// The queue's class.
    fn class(&self) -> QueueClass;
}
