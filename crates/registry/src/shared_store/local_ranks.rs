//! The ranks of this replica, as published to the shared store.

use std::sync::Arc;

use flash_indexer_core::{SharedIndex, WorkerRank};
use flash_indexer_redis::{Holder, HolderId, LocalRank, RankRegistry, Scope};
use flash_indexer_types::{InstanceId, Trust};
use rustc_hash::FxHashMap;

use super::{Description, RankStatus};
use crate::model::{Model, Models};

/// The ranks of all models, collected on each call.
pub(super) struct LocalRanks {
    pub(super) models: Arc<Models>,
}

impl RankRegistry for LocalRanks {
    fn ranks(&self) -> Vec<LocalRank> {
        let models: Vec<Arc<Model>> = self.models.read().values().cloned().collect();
        models.iter().flat_map(|model| local_ranks(model)).collect()
    }
}

/// Scope in the store of a model with this block size.
pub(super) fn scope(model_name: &str, tenant_id: &str, block_size: u32) -> Scope {
    Scope::of(&[model_name, tenant_id, &block_size.to_string()])
}

fn local_ranks(model: &Model) -> Vec<LocalRank> {
    let Some(published) = &model.published else { return Vec::new() };
    let scope = scope(&model.key.model_name, &model.key.tenant_id, model.block_size.tokens());
    let lora_name = model.lora_name.read().clone();
    // One call for all ranks, because a call for one rank costs as much.
    let sizes = model.index().sizes().into_iter();
    let blocks: FxHashMap<WorkerRank, usize> = sizes.map(|(rank, size)| (rank, size.blocks)).collect();
    let local_rank = |(instance, rank): (InstanceId, WorkerRank)| {
        // Replicas of earlier versions do not have the state `recovering`.
        let trust = match model.listed_trust(&instance, rank.dp_rank) {
            Trust::Recovering => Trust::Degraded,
            trust => trust,
        };
        let status = RankStatus { trust, blocks: blocks.get(&rank).copied().unwrap_or_default() };
        let unfinished = RankStatus { trust: Trust::Degraded, ..status };
        let id = HolderId::of(scope, &[instance.as_key(), &rank.dp_rank.to_string()]);
        let description = Description {
            model_name: model.key.model_name.clone(),
            tenant_id: model.key.tenant_id.clone(),
            block_size: model.block_size.tokens(),
            dp_rank: rank.dp_rank.0,
            lora_name: lora_name.clone(),
            windows: model.windows.in_use().map(Into::into).collect(),
            instance_id: instance.into(),
        };
        let holder = Holder { id, scope, description: json(&description) };
        LocalRank {
            holder,
            state: json(&status),
            unfinished_state: json(&unfinished),
            rank: published.get_or_create(rank),
        }
    };
    // Routers report their decisions to each replica.
    let is_published = |(instance, rank): &(InstanceId, WorkerRank)| {
        // Each replica listens to the shared caches of its own ranks.
        instance.shared_cache().is_none() && model.has_events(instance, rank.dp_rank)
    };
    model.ranks().into_iter().filter(is_published).map(local_rank).collect()
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("names and numbers can be written as JSON")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use flash_indexer_access::TenantState;
    use flash_indexer_core::hashing::{BlockSize, sequence_hashes};
    use flash_indexer_core::run::RunIndex;
    use flash_indexer_core::{
        AppliedChanges, Block, BlockEvent, DpRank, HeldBlock, LocalHash, MatchScores, RankSize, Tier, TokenWindows,
        WorkerId,
    };
    use flash_indexer_explain::{History, SeenVariants};
    use flash_indexer_redis::PublisherWaker;
    use flash_indexer_telemetry::metrics::{MetricNames, Metrics, ModelCounts};
    use flash_indexer_types::ModelKey;
    use parking_lot::RwLock;

    use super::*;
    use crate::model::{Instance, InstanceTable, ReplaceableIndex};
    use crate::published_ranks::PublishedRanks;

    const RANKS: u32 = 500;

    /// An index that counts calls for sizes.
    struct Counting {
        index: Box<dyn SharedIndex>,
        size_calls: Arc<AtomicUsize>,
        sizes_calls: Arc<AtomicUsize>,
    }

    impl SharedIndex for Counting {
        fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> AppliedChanges {
            self.index.apply(rank, event)
        }
        fn find(&self, query: &[LocalHash]) -> MatchScores {
            self.index.find(query)
        }
        fn ranks(&self) -> Vec<WorkerRank> {
            self.index.ranks()
        }
        fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
            self.index.held(rank)
        }
        fn clear_rank(&self, rank: WorkerRank) {
            self.index.clear_rank(rank);
        }
        fn size(&self, rank: WorkerRank) -> RankSize {
            self.size_calls.fetch_add(1, Relaxed);
            self.index.size(rank)
        }
        fn sizes(&self) -> Vec<(WorkerRank, RankSize)> {
            self.sizes_calls.fetch_add(1, Relaxed);
            self.index.sizes()
        }
    }

    #[test]
    fn publishing_many_ranks_calls_their_index_for_sizes_once() {
        let [size_calls, sizes_calls] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let counting = Counting {
            index: Box::<RunIndex>::default(),
            size_calls: Arc::clone(&size_calls),
            sizes_calls: Arc::clone(&sizes_calls),
        };
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let model = Model {
            key: ModelKey::new("m", None),
            block_size: BlockSize::new(16).expect("a size"),
            lora_name: RwLock::default(),
            replaceable: ReplaceableIndex::new(Box::new(counting)),
            decoders: std::sync::Weak::new(),
            published: Some(PublishedRanks::new(PublisherWaker::default())),
            instances: InstanceTable::default(),
            windows: TokenWindows::default(),
            counts: ModelCounts::default(),
            id: 1,
            recent_uses: None,
            history: History::new(0),
            seen_variants: SeenVariants::default(),
            tenant: Arc::new(TenantState::with_spare_ranks(0)),
            metrics,
            writers: vec![0],
        };
        let worker = WorkerId(1);
        let name = serde_json::from_str::<InstanceId>("1").expect("a name");
        model.instances.write().insert(name, Instance::new(worker));
        for dp_rank in 0..RANKS {
            let locals = vec![LocalHash(7); dp_rank as usize % 3 + 1];
            let blocks = sequence_hashes(&locals).zip(&locals).map(|(sequence, &local)| Block { sequence, local });
            let event = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks.collect(), copies: 1 };
            model.index().apply(WorkerRank { worker, dp_rank: DpRank(dp_rank) }, &event);
        }
        let ranks = local_ranks(&model);
        let blocks =
            ranks.iter().map(|rank| serde_json::from_slice::<RankStatus>(&rank.state).expect("a state").blocks);
        assert_eq!(blocks.collect::<Vec<_>>(), (0..RANKS as usize).map(|rank| rank % 3 + 1).collect::<Vec<_>>());
        assert_eq!((size_calls.load(Relaxed), sizes_calls.load(Relaxed)), (0, 1));
    }
}
