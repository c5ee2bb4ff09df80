//! The ranks that this replica listens to, as the store wants to know them.

use std::sync::Arc;

use flash_indexer_core::{RankSize, SharedIndex, WorkerRank};
use flash_indexer_redis::{Holder, HolderId, OwnRank, Ranks, Scope};
use rustc_hash::FxHashMap;

use super::{Description, Fares, Models};
use crate::instance::InstanceId;
use crate::model::Model;

/// Looks at all models whenever it is asked.
pub(super) struct OwnRanks {
    pub(super) models: Arc<Models>,
}

impl Ranks for OwnRanks {
    fn ranks(&self) -> Vec<OwnRank> {
        let models: Vec<Arc<Model>> = self.models.read().values().cloned().collect();
        models.iter().flat_map(|model| of_model(model)).collect()
    }
}

/// Where blocks of a model with this block size are.
pub(super) fn scope(model_name: &str, tenant_id: &str, block_size: u32) -> Scope {
    Scope::of(&[model_name, tenant_id, &block_size.to_string()])
}

fn of_model(model: &Model) -> Vec<OwnRank> {
    let Some(shared) = &model.shared else { return Vec::new() };
    let scope = scope(&model.key.model_name, &model.key.tenant_id, model.block_size.tokens());
    let lora_name = model.lora_name.read().clone();
    // Once for all ranks: an index looks through all of them for each.
    let sizes: FxHashMap<WorkerRank, RankSize> = model.index().sizes().into_iter().collect();
    let own = |(instance, rank): (InstanceId, WorkerRank)| {
        let blocks = sizes.get(&rank).map_or(0, |size| size.blocks);
        let fares = Fares { trust: model.listed_trust(&instance, rank.dp_rank), blocks };
        let description = Description {
            model_name: model.key.model_name.clone(),
            tenant_id: model.key.tenant_id.clone(),
            block_size: model.block_size.tokens(),
            dp_rank: rank.dp_rank.0,
            lora_name: lora_name.clone(),
            windows: model.windows.in_use().map(Into::into).collect(),
            instance_id: instance,
        };
        let id = HolderId::of(scope, &[description.instance_id.as_key(), &rank.dp_rank.to_string()]);
        let holder = Holder { id, scope, description: json(&description) };
        OwnRank { holder, state: json(&fares), rank: shared.of(rank) }
    };
    model.ranks().into_iter().map(own).collect()
}

fn json(told: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(told).expect("names and numbers can be written as JSON")
}
