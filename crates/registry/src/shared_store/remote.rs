//! Who is in the shared index.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow};
use flash_indexer_core::{DpRank, WorkerId};
use flash_indexer_redis::{HolderId, ListedRank, PublisherId, Scope};
use tracing::warn;

use super::local::scope;
use super::{Description, RankStatus};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::Trust;
use flash_indexer_types::names::{NameField, check_names};
use flash_indexer_types::{InstanceId, InstanceIdError, ModelKey};

/// Everybody who is listed, as this replica reads it.
#[derive(Debug, Default)]
pub struct Fleet {
    models: BTreeMap<ModelKey, Arc<FleetModel>>,
    /// Entries that are left out because of a name.
    refused: BTreeMap<HolderId, (PublisherId, InstanceIdError)>,
}

/// A model as others describe it.
#[derive(Debug)]
pub struct FleetModel {
    pub scope: Scope,
    pub block_size: BlockSize,
    pub windows: Vec<TokenWindow>,
    /// Adapter of queries that name none: the one that all of its ranks name.
    lora_name: Option<String>,
    pub ranks: BTreeMap<HolderId, RemoteListedRank>,
}

/// One rank in the list.
#[derive(Debug)]
pub struct RemoteListedRank {
    pub instance: InstanceId,
    /// What predictions call the instance where it is not registered here.
    pub worker: WorkerId,
    pub dp_rank: DpRank,
    pub trust: Trust,
    pub blocks: usize,
    pub publisher: PublisherId,
    /// Whether this replica publishes it.
    pub is_own: bool,
}

impl RemoteListedRank {
    /// How far it can be relied on: what its publisher says, and no more than degraded if that is too long ago.
    pub fn trust_as_listed(&self, is_list_current: bool) -> Trust {
        if is_list_current { self.trust } else { self.trust.max(Trust::Degraded) }
    }
}

impl Fleet {
    pub(super) fn of<'l>(entries: impl Iterator<Item = (HolderId, &'l ListedRank)>, own: PublisherId) -> Self {
        let (mut models, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for (holder, listed) in entries {
            let publisher = listed.publisher;
            // An entry that is not understood is another version's.
            let Some((description, status)) = read(listed) else { continue };
            match description.names() {
                Ok(names) => add(&mut models, holder, (names, description, status), (publisher, publisher == own)),
                Err(error) => drop(refused.insert(holder, (publisher, error))),
            }
        }
        Self { models: models.into_iter().map(|(key, model)| (key, Arc::new(model))).collect(), refused }
    }

    /// Counts and logs each entry once that is left out because of a name. `before` is the list before this one.
    pub(super) fn note_refused(&self, before: &Self, metrics: &Metrics) {
        for (_, (publisher, error)) in self.refused.iter().filter(|(holder, _)| !before.refused.contains_key(holder)) {
            metrics.limit_reached(Limit::Names);
            warn!(%publisher, %error, "an entry of the shared store is left out");
        }
    }

    pub fn model(&self, key: &ModelKey) -> Option<Arc<FleetModel>> {
        self.models.get(key).cloned()
    }

    pub fn models(&self) -> impl Iterator<Item = (&ModelKey, &FleetModel)> {
        self.models.iter().map(|(key, model)| (key, &**model))
    }
}

impl FleetModel {
    /// Where content of this adapter and salt is hashed.
    pub fn hash_variant(&self, lora_name: Option<&str>, cache_salt: Option<&str>) -> HashVariant {
        HashVariant::new(lora_name.or(self.lora_name.as_deref()), cache_salt)
    }
}

fn add(
    models: &mut BTreeMap<ModelKey, FleetModel>,
    holder: HolderId,
    ((key, instance), told, status): ((ModelKey, InstanceId), Description, RankStatus),
    (publisher, is_own): (PublisherId, bool),
) {
    let Some(block_size) = BlockSize::new(told.block_size) else { return };
    let scope = scope(&told.model_name, &told.tenant_id, told.block_size);
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
    let dp_rank = DpRank(told.dp_rank);
    let worker = worker(scope, &instance);
    let rank =
        RemoteListedRank { instance, worker, dp_rank, trust: status.trust, blocks: status.blocks, publisher, is_own };
    model.ranks.insert(holder, rank);
}

/// A name for an instance that is not registered here. Those that are have small numbers.
fn worker(scope: Scope, instance: &InstanceId) -> WorkerId {
    WorkerId(HolderId::of(scope, &[instance.as_key()]).number() | 1 << 63)
}

impl Description {
    /// The names in it, unless one is refused.
    fn names(&self) -> Result<(ModelKey, InstanceId), InstanceIdError> {
        let key = ModelKey::new(self.model_name.as_str(), Some(self.tenant_id.clone()));
        key.check()?;
        check_names([(NameField::LoraName, self.lora_name.as_deref())])?;
        Ok((key, self.instance_id.clone().checked()?))
    }
}

fn read(listed: &ListedRank) -> Option<(Description, RankStatus)> {
    Some((serde_json::from_slice(&listed.description).ok()?, serde_json::from_slice(&listed.state).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use flash_indexer_telemetry::metrics::MetricNames;
    use flash_indexer_types::names::{INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX};

    /// An entry of the list whose description has this field changed.
    fn entry(number: u64, field: &str, value: Value) -> (HolderId, ListedRank) {
        let scope = scope("m", "default", 16);
        let mut description = json!({
            "model_name": "m", "tenant_id": "default", "block_size": 16, "instance_id": number, "dp_rank": 0,
            "lora_name": null, "windows": [],
        });
        description[field] = value;
        let listed = ListedRank {
            scope,
            description: description.to_string().into_bytes(),
            state: json!({ "trust": "exact", "blocks": 1 }).to_string().into_bytes(),
            publisher: PublisherId::from_number(7),
        };
        (HolderId::of(scope, &[&number.to_string(), "0"]), listed)
    }

    #[test]
    fn entries_with_names_that_are_refused_are_left_out_and_counted_once() {
        let long = |bytes: usize| json!("n".repeat(bytes + 1));
        let entries = [
            entry(0, "dp_rank", json!(0)),
            entry(1, "model_name", long(NAME_BYTES_MAX)),
            entry(2, "tenant_id", long(NAME_BYTES_MAX)),
            entry(3, "lora_name", long(NAME_BYTES_MAX)),
            entry(4, "instance_id", long(INSTANCE_ID_BYTES_MAX)),
            entry(5, "instance_id", json!("line\nbreak")),
        ];
        let metrics = Metrics::new(MetricNames::Own);
        let (mut before, own) = (Fleet::default(), PublisherId::from_number(8));
        for shown in [5, 5, 6, 6, 1, 6] {
            let listed = entries.iter().take(shown).map(|(holder, listed)| (*holder, listed));
            let fleet = Fleet::of(listed, own);
            fleet.note_refused(&before, &metrics);
            let ranks: usize = fleet.models().map(|(_, model)| model.ranks.len()).sum();
            assert_eq!((fleet.models().count(), ranks), (1, 1), "only the entry with short names is listed");
            before = fleet;
        }
        assert_eq!(
            metrics.limit_reached_count(Limit::Names),
            4 + 1 + 5,
            "each entry once, and again when it is listed again"
        );
    }
}
