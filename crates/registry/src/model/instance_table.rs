//! Registered instances of a model, and their ranks as queries list them.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use arc_swap::ArcSwap;
use flash_indexer_core::{RankOrder, WorkerRank};
use flash_indexer_types::InstanceId;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::instance::{Instance, ListedRank};
use super::shared_caches::ListedCaches;
use crate::answer::InstanceName;

/// Registered instances of a model by id.
///
/// # Consistency
///
/// A query takes no lock: it reads a list of the ranks, which it rebuilds after the instances changed. A query that
/// starts after a change is complete sees it.
#[derive(Default)]
pub(crate) struct InstanceTable {
    instances: RwLock<BTreeMap<InstanceId, Instance>>,
    /// Increases with each change, before the change is complete.
    generation: AtomicU64,
    listed: ArcSwap<ListedRanks>,
}

/// All ranks of registered instances that have a listener, and the shared caches.
#[derive(Default)]
pub(crate) struct ListedRanks {
    generation: u64,
    /// Names of all instances, in their order. Shared caches are not among them.
    pub names: Arc<[InstanceName]>,
    /// In the order of instances and ranks.
    pub ranks: Vec<ListedRank>,
    /// The order of `ranks`, which has the workers of all instances.
    pub order: Arc<RankOrder>,
    pub caches: ListedCaches,
}

impl InstanceTable {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, BTreeMap<InstanceId, Instance>> {
        self.instances.read()
    }

    pub(crate) fn write(&self) -> ChangingInstances<'_> {
        let Self { instances, generation, listed } = self;
        ChangingInstances { instances: instances.write(), generation, listed }
    }

    /// The ranks as of now. Linear in the ranks after a change, and two loads otherwise.
    pub(crate) fn listed(&self) -> Arc<ListedRanks> {
        let listed = self.listed.load();
        if listed.generation == self.generation.load(Acquire) {
            return Arc::clone(&listed);
        }
        let instances = self.instances.read();
        // No change is under way while the lock is held.
        let listed = Arc::new(ListedRanks::of(&instances, self.generation.load(Acquire)));
        self.listed.store(Arc::clone(&listed));
        listed
    }
}

impl ListedRanks {
    fn of(instances: &BTreeMap<InstanceId, Instance>, generation: u64) -> Self {
        let targets = || instances.iter().filter(|(name, _)| name.shared_cache().is_none());
        let mut ranks = Vec::new();
        for ((_, instance), number) in targets().zip(0..) {
            for (&dp_rank, listener) in &instance.listeners {
                let rank = WorkerRank { worker: instance.worker, dp_rank };
                ranks.push(ListedRank { instance: number, rank, listener: Arc::clone(listener) });
            }
        }
        Self {
            generation,
            names: targets().map(|(name, _)| InstanceName::new(name)).collect(),
            order: Arc::new(RankOrder::new(
                ranks.iter().map(|listed| listed.rank),
                targets().map(|(_, instance)| instance.worker),
            )),
            caches: ListedCaches::of(instances, &ranks),
            ranks,
        }
    }

    /// Index of a rank in [`ListedRanks::ranks`].
    pub(crate) fn find(&self, rank: WorkerRank) -> Option<usize> {
        self.order.position(rank)
    }

    /// Whether the rank belongs to a registered instance although it is not listed: it was restored from a dump.
    pub(crate) fn is_restored(&self, rank: WorkerRank) -> bool {
        self.order.is_unlisted(rank)
    }
}

/// Write access to the instances.
pub(crate) struct ChangingInstances<'a> {
    instances: RwLockWriteGuard<'a, BTreeMap<InstanceId, Instance>>,
    generation: &'a AtomicU64,
    listed: &'a ArcSwap<ListedRanks>,
}

impl Deref for ChangingInstances<'_> {
    type Target = BTreeMap<InstanceId, Instance>;
    fn deref(&self) -> &Self::Target {
        &self.instances
    }
}

impl DerefMut for ChangingInstances<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.instances
    }
}

impl Drop for ChangingInstances<'_> {
    fn drop(&mut self) {
        // Before the lock is released: a list of the new instances never has the old generation.
        self.generation.fetch_add(1, Release);
        if self.instances.is_empty() {
            // A removed model is not listed again, and its listeners would keep it in memory.
            self.listed.store(Arc::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flash_indexer_core::hashing::BlockSize;
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::{ModelKey, Registration};

    use super::*;
    use crate::{Indexer, IndexerOptions};

    #[test]
    fn a_model_whose_ranks_were_listed_is_freed_with_its_last_instance() {
        let indexer = Indexer::start(IndexerOptions::default()).expect("it starts");
        let name = InstanceId::parse("1").expect("a name");
        let (key, block_size) = (ModelKey::new("m", None), BlockSize::new(16).expect("a size"));
        let endpoint = "tcp://127.0.0.1:1".to_owned();
        indexer.register(Registration::new(name.clone(), key.clone(), endpoint, block_size)).expect("it is registered");
        let listed = indexer.model(&key).expect("it exists");
        assert_eq!(listed.instances.listed().ranks.len(), 1);
        let model = Arc::downgrade(&listed);
        drop(listed);
        indexer.unregister(&name, "m", None, None);
        wait_for("the model to be freed", Duration::from_secs(10), || model.upgrade().is_none().then_some(()));
    }
}
