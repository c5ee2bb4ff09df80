//! Who is in the shared index.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_core::hashing::{BlockSize, HashSpace, TokenWindow};
use flash_indexer_core::{DpRank, WorkerId};
use flash_indexer_redis::{Directory, HolderId, Listed, PublisherId, Scope};
use tracing::debug;

use super::own::scope;
use super::{Description, Fares};
use crate::ingest::Trust;
use crate::instance::{InstanceId, ModelKey};
use crate::names::{NameField, check_names};

/// Everybody who is listed, as this replica reads it.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    models: BTreeMap<ModelKey, Arc<FleetModel>>,
}

/// A model as others describe it.
#[derive(Debug)]
pub(crate) struct FleetModel {
    pub(crate) scope: Scope,
    pub(crate) block_size: BlockSize,
    pub(crate) windows: Vec<TokenWindow>,
    /// Adapter of queries that name none: the one that all of its ranks name.
    lora_name: Option<String>,
    pub(crate) ranks: BTreeMap<HolderId, FleetRank>,
}

/// One rank in the list.
#[derive(Debug)]
pub(crate) struct FleetRank {
    pub(crate) instance: InstanceId,
    /// What predictions call the instance where it is not registered here.
    pub(crate) worker: WorkerId,
    pub(crate) dp_rank: DpRank,
    pub(crate) trust: Trust,
    pub(crate) blocks: usize,
    pub(crate) publisher: PublisherId,
    /// Whether this replica publishes it.
    pub(crate) is_own: bool,
}

impl FleetRank {
    /// How far it can be relied on: what its publisher says, and no more than degraded if that is too long ago.
    pub(crate) fn trust_as_listed(&self, is_list_current: bool) -> Trust {
        if is_list_current { self.trust } else { self.trust.max(Trust::Degraded) }
    }
}

impl Fleet {
    pub(super) fn of(directory: &Directory, own: PublisherId) -> Self {
        let mut models = BTreeMap::new();
        for (holder, listed) in directory.iter() {
            // What is not understood is another version's.
            if let Some((description, fares)) = read(listed) {
                add(&mut models, holder, (description, fares), (listed.publisher, listed.publisher == own));
            }
        }
        Self { models: models.into_iter().map(|(key, model)| (key, Arc::new(model))).collect() }
    }

    pub(crate) fn model(&self, key: &ModelKey) -> Option<Arc<FleetModel>> {
        self.models.get(key).cloned()
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = (&ModelKey, &FleetModel)> {
        self.models.iter().map(|(key, model)| (key, &**model))
    }
}

impl FleetModel {
    /// Where content of this adapter and salt is hashed.
    pub(crate) fn hash_space(&self, lora_name: Option<&str>, cache_salt: Option<&str>) -> HashSpace {
        HashSpace::new(lora_name.or(self.lora_name.as_deref()), cache_salt)
    }
}

fn add(
    models: &mut BTreeMap<ModelKey, FleetModel>,
    holder: HolderId,
    (told, fares): (Description, Fares),
    (publisher, is_own): (PublisherId, bool),
) {
    let Some(block_size) = BlockSize::new(told.block_size) else { return };
    let scope = scope(&told.model_name, &told.tenant_id, told.block_size);
    let key = ModelKey::new(told.model_name, Some(told.tenant_id));
    let model = models.entry(key).or_insert_with(|| FleetModel {
        scope,
        block_size,
        windows: Vec::new(),
        lora_name: told.lora_name.clone(),
        ranks: BTreeMap::new(),
    });
    // Replicas that disagree about a block size are told apart by the smaller one, in every replica alike.
    if block_size.tokens() > model.block_size.tokens() {
        return;
    }
    if block_size != model.block_size {
        (model.scope, model.block_size) = (scope, block_size);
        model.ranks.clear();
    }
    if model.lora_name != told.lora_name {
        model.lora_name = None;
    }
    for window in told.windows.into_iter().map(TokenWindow::from) {
        if !model.windows.contains(&window) {
            model.windows.push(window);
        }
    }
    let (instance, dp_rank) = (told.instance_id, DpRank(told.dp_rank));
    let worker = worker(scope, &instance);
    let rank = FleetRank { instance, worker, dp_rank, trust: fares.trust, blocks: fares.blocks, publisher, is_own };
    model.ranks.insert(holder, rank);
}

/// A name for an instance that is not registered here. Those that are have small numbers.
fn worker(scope: Scope, instance: &InstanceId) -> WorkerId {
    WorkerId(HolderId::of(scope, &[instance.as_key()]).number() | 1 << 63)
}

fn read(listed: &Listed) -> Option<(Description, Fares)> {
    let description: Description = serde_json::from_slice(&listed.description).ok()?;
    let names = [
        (NameField::ModelName, Some(description.model_name.as_str())),
        (NameField::TenantId, Some(description.tenant_id.as_str())),
        (NameField::LoraName, description.lora_name.as_deref()),
    ];
    if let Err(error) = check_names(names) {
        debug!(publisher = %listed.publisher, "a remote rank is left out: {error}");
        return None;
    }
    Some((description, serde_json::from_slice(&listed.state).ok()?))
}
