//! The ranks that all replicas list in the shared store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow};
use flash_indexer_core::{DpRank, WorkerId};
use flash_indexer_redis::{HolderId, ListedRank, PublisherId, Scope};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_types::names::{NameField, check_names};
use flash_indexer_types::{InstanceId, InstanceIdError, ModelKey, Trust};
use tracing::warn;

use super::local_ranks::scope;
use super::{Description, RankStatus};

/// All ranks listed in the shared store, by model.
#[derive(Debug, Default)]
pub struct Fleet {
    models: BTreeMap<ModelKey, Arc<FleetModel>>,
    /// Entries rejected because of a name.
    rejected: BTreeMap<HolderId, (PublisherId, InstanceIdError)>,
}

/// A model as listed in the shared store.
#[derive(Debug)]
pub struct FleetModel {
    pub scope: Scope,
    pub block_size: BlockSize,
    pub windows: Vec<TokenWindow>,
    /// Adapter of queries that name none: the adapter that all of its ranks have in common.
    lora_name: Option<String>,
    pub ranks: BTreeMap<HolderId, RemoteListedRank>,
}

/// A rank listed in the shared store.
#[derive(Debug)]
pub struct RemoteListedRank {
    pub instance: InstanceId,
    /// Worker id of the instance in predictions, if it is not registered with this replica.
    pub worker: WorkerId,
    pub dp_rank: DpRank,
    pub trust: Trust,
    pub blocks: usize,
    pub publisher: PublisherId,
    /// Whether this replica publishes it.
    pub is_local: bool,
    /// End of its publisher's lease.
    valid_until: Instant,
}

impl RemoteListedRank {
    /// Trust that its publisher listed; at best degraded after the publisher's lease.
    pub fn trust_at(&self, now: Instant) -> Trust {
        if self.is_local || now < self.valid_until { self.trust } else { self.trust.max(Trust::Degraded) }
    }
}

impl Fleet {
    /// Parses the list. `local` is this replica.
    pub(super) fn parse<'l>(entries: impl Iterator<Item = (HolderId, &'l ListedRank)>, local: PublisherId) -> Self {
        let (mut models, mut rejected) = (BTreeMap::new(), BTreeMap::new());
        for (holder, listed) in entries {
            let ListedRank { publisher, valid_until, .. } = *listed;
            // An entry that cannot be parsed is of another version.
            let Some((description, status)) = parse_entry(listed) else { continue };
            match description.names() {
                Ok(names) => {
                    add(&mut models, holder, (names, description, status), (publisher, publisher == local, valid_until))
                }
                Err(error) => drop(rejected.insert(holder, (publisher, error))),
            }
        }
        Self { models: models.into_iter().map(|(key, model)| (key, Arc::new(model))).collect(), rejected }
    }

    /// Counts and logs rejected entries that `previous`, the list before this one, did not reject.
    pub(super) fn record_rejected(&self, previous: &Self, metrics: &Metrics) {
        for (_, (publisher, error)) in
            self.rejected.iter().filter(|(holder, _)| !previous.rejected.contains_key(holder))
        {
            metrics.limit_reached(Limit::Names);
            warn!(%publisher, %error, "rejected an entry of the shared store");
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
    /// Hash variant of an adapter and a salt.
    pub fn hash_variant(&self, lora_name: Option<&str>, cache_salt: Option<&str>) -> HashVariant {
        HashVariant::new(lora_name.or(self.lora_name.as_deref()), cache_salt)
    }
}

#[cfg(test)]
impl FleetModel {
    /// A model with one rank of another replica, and the rank's id.
    pub(crate) fn of_one_rank(trust: Trust, valid_until: Instant) -> (HolderId, Self) {
        let scope = scope("m", "default", 16);
        let (holder, instance) = (HolderId::of(scope, &["1", "0"]), InstanceId::number(1));
        let rank = RemoteListedRank {
            worker: worker(scope, &instance),
            instance,
            dp_rank: DpRank(0),
            trust,
            blocks: 2,
            publisher: PublisherId::from_number(7),
            is_local: false,
            valid_until,
        };
        let block_size = BlockSize::new(16).expect("a size");
        let (windows, ranks) = (vec![TokenWindow::Block], BTreeMap::from([(holder, rank)]));
        (holder, Self { scope, block_size, windows, lora_name: None, ranks })
    }
}

fn add(
    models: &mut BTreeMap<ModelKey, FleetModel>,
    holder: HolderId,
    ((key, instance), description, status): ((ModelKey, InstanceId), Description, RankStatus),
    (publisher, is_local, valid_until): (PublisherId, bool, Instant),
) {
    // A replica of an earlier version publishes it as an instance.
    if instance.shared_cache().is_some() {
        return;
    }
    let Some(block_size) = BlockSize::new(description.block_size) else { return };
    let scope = scope(&description.model_name, &description.tenant_id, description.block_size);
    let model = models.entry(key).or_insert_with(|| FleetModel {
        scope,
        block_size,
        windows: Vec::new(),
        lora_name: description.lora_name.clone(),
        ranks: BTreeMap::new(),
    });
    // If replicas disagree about the block size of a model, every replica uses the smallest one.
    if block_size.tokens() > model.block_size.tokens() {
        return;
    }
    if block_size != model.block_size {
        (model.scope, model.block_size) = (scope, block_size);
        model.ranks.clear();
    }
    if model.lora_name != description.lora_name {
        model.lora_name = None;
    }
    for window in description.windows.into_iter().map(TokenWindow::from) {
        if !model.windows.contains(&window) {
            model.windows.push(window);
        }
    }
    let dp_rank = DpRank(description.dp_rank);
    let worker = worker(scope, &instance);
    let RankStatus { trust, blocks } = status;
    let rank = RemoteListedRank { instance, worker, dp_rank, trust, blocks, publisher, is_local, valid_until };
    model.ranks.insert(holder, rank);
}

/// Worker id of an instance that is not registered with this replica. Registered instances have small ids.
fn worker(scope: Scope, instance: &InstanceId) -> WorkerId {
    WorkerId(HolderId::of(scope, &[instance.as_key()]).number() | 1 << 63)
}

impl Description {
    /// The model and the instance, if all names are valid.
    fn names(&self) -> Result<(ModelKey, InstanceId), InstanceIdError> {
        let key = ModelKey::new(self.model_name.as_str(), Some(self.tenant_id.clone()));
        key.check()?;
        check_names([(NameField::LoraName, self.lora_name.as_deref())])?;
        Ok((key, self.instance_id.clone().checked()?))
    }
}

fn parse_entry(listed: &ListedRank) -> Option<(Description, RankStatus)> {
    Some((serde_json::from_slice(&listed.description).ok()?, serde_json::from_slice(&listed.state).ok()?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flash_indexer_telemetry::metrics::MetricNames;
    use flash_indexer_types::names::{INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX};
    use serde_json::{Value, json};

    use super::*;

    /// An entry of the list with one field of its description replaced.
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
            valid_until: Instant::now(),
        };
        (HolderId::of(scope, &[&number.to_string(), "0"]), listed)
    }

    #[test]
    fn the_trust_of_a_remote_rank_is_at_best_degraded_after_its_publishers_lease() {
        let (holder, listed) = entry(1, "dp_rank", json!(0));
        let trust = |local: u64, later: u64| {
            let fleet = Fleet::parse([(holder, &listed)].into_iter(), PublisherId::from_number(local));
            let (_, model) = fleet.models().next().expect("the model");
            model.ranks[&holder].trust_at(listed.valid_until - Duration::from_millis(1) + Duration::from_millis(later))
        };
        assert_eq!((trust(8, 0), trust(8, 1)), (Trust::Exact, Trust::Degraded));
        assert_eq!(trust(7, 1), Trust::Exact, "this replica publishes it");
    }

    #[test]
    fn entries_with_invalid_names_are_rejected_and_counted_once() {
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
        let (mut previous, local) = (Fleet::default(), PublisherId::from_number(8));
        for count in [5, 5, 6, 6, 1, 6] {
            let listed = entries.iter().take(count).map(|(holder, listed)| (*holder, listed));
            let fleet = Fleet::parse(listed, local);
            fleet.record_rejected(&previous, &metrics);
            let ranks: usize = fleet.models().map(|(_, model)| model.ranks.len()).sum();
            assert_eq!((fleet.models().count(), ranks), (1, 1), "only the entry with valid names is listed");
            previous = fleet;
        }
        assert_eq!(
            metrics.limit_reached_count(Limit::Names),
            4 + 1 + 5,
            "each entry counts once, and again after it was listed again"
        );
    }
}
