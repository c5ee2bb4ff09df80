//! The ranks that this replica listens to, as the store wants to know them.

use std::sync::Arc;

use flash_indexer_core::{SharedIndex, WorkerRank};
use flash_indexer_redis::{Holder, HolderId, LocalRank, RankRegistry, Scope};
use rustc_hash::FxHashMap;

use super::{Description, Models, RankStatus};
use crate::model::Model;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

/// Looks at all models whenever it is asked.
pub(super) struct LocalRanks {
    pub(super) models: Arc<Models>,
}

impl RankRegistry for LocalRanks {
    fn ranks(&self) -> Vec<LocalRank> {
        let models: Vec<Arc<Model>> = self.models.read().values().cloned().collect();
        models.iter().flat_map(|model| of_model(model)).collect()
    }
}

/// Where blocks of a model with this block size are.
pub(super) fn scope(model_name: &str, tenant_id: &str, block_size: u32) -> Scope {
    Scope::of(&[model_name, tenant_id, &block_size.to_string()])
}

fn of_model(model: &Model) -> Vec<LocalRank> {
    let Some(shared) = &model.shared else { return Vec::new() };
    let scope = scope(&model.key.model_name, &model.key.tenant_id, model.block_size.tokens());
    let lora_name = model.lora_name.read().clone();
    let blocks = blocks(&**model.index());
    let own = |(instance, rank): (InstanceId, WorkerRank)| {
        // Replicas of earlier versions do not know the recovering state.
        let trust = match model.listed_trust(&instance, rank.dp_rank) {
            Trust::Recovering => Trust::Degraded,
            trust => trust,
        };
        let status = RankStatus { trust, blocks: blocks.get(&rank).copied().unwrap_or_default() };
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
        LocalRank { holder, state: json(&status), rank: shared.of(rank) }
    };
    model.ranks().into_iter().map(own).collect()
}

/// Blocks of every rank that an index holds something of. Asked rank by rank, an index looks at all ranks for each.
fn blocks(index: &impl SharedIndex) -> FxHashMap<WorkerRank, usize> {
    index.sizes().into_iter().map(|(rank, size)| (rank, size.blocks)).collect()
}

fn json(told: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(told).expect("names and numbers can be written as JSON")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use flash_indexer_core::hashing::{BlockSize, sequence_hashes};
    use flash_indexer_core::run::RunIndex;
    use flash_indexer_core::{
        Applied, Block, BlockEvent, DpRank, HeldBlock, LocalHash, MatchScores, RankSize, Tier, WorkerId,
    };
    use flash_indexer_redis::PublisherWaker;
    use parking_lot::RwLock;

    use super::*;
    use crate::model::{Instance, ReplaceableIndex, Windows};
    use crate::shared_store::PublishedRanks;
    use flash_indexer_explain::{History, SeenVariants};
    use flash_indexer_telemetry::metrics::{MetricNames, Metrics, ModelCounts};
    use flash_indexer_types::ModelKey;

    const RANKS: u32 = 500;

    /// An index that counts how often it is asked for sizes.
    struct Counting {
        index: Box<dyn SharedIndex>,
        size_calls: Arc<AtomicUsize>,
        sizes_calls: Arc<AtomicUsize>,
    }

    impl SharedIndex for Counting {
        fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Applied {
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
    fn listing_many_ranks_asks_their_index_once() {
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
            shared: Some(PublishedRanks::new(PublisherWaker::default())),
            instances: RwLock::default(),
            windows: Windows::default(),
            counts: ModelCounts::default(),
            id: 1,
            uses: None,
            history: History::new(0),
            spaces: SeenVariants::default(),
            metrics,
            writer: 0,
        };
        let worker = WorkerId(1);
        let name = serde_json::from_str::<InstanceId>("1").expect("a name");
        model.instances.write().insert(name, Instance { worker, listeners: Default::default() });
        for dp_rank in 0..RANKS {
            let locals = vec![LocalHash(7); dp_rank as usize % 3 + 1];
            let blocks = sequence_hashes(&locals).zip(&locals).map(|(sequence, &local)| Block { sequence, local });
            let event = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks.collect(), copies: 1 };
            model.index().apply(WorkerRank { worker, dp_rank: DpRank(dp_rank) }, &event);
        }
        let own = of_model(&model);
        let blocks = own.iter().map(|own| serde_json::from_slice::<RankStatus>(&own.state).expect("a state").blocks);
        assert_eq!(blocks.collect::<Vec<_>>(), (0..RANKS as usize).map(|rank| rank % 3 + 1).collect::<Vec<_>>());
        assert_eq!((size_calls.load(Relaxed), sizes_calls.load(Relaxed)), (0, 1));
    }
}
