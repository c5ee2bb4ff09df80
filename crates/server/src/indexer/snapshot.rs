//! What the service holds, rank by rank, for whoever starts from it.

use std::sync::Arc;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{BlockEvent, WorkerRank};

use super::Indexer;
use crate::dump::{EngineRecord, RankRecord, StreamRecord, Tally};
use crate::engine::EngineKind;
use crate::ingest::Listener;
use crate::instance::{InstanceId, ModelKey};
use crate::model::Model;

/// One rank at one moment: what is known of it, and events that store its blocks.
pub(crate) struct RankDump {
    /// `holds` is left to whoever writes it.
    pub(crate) record: RankRecord,
    pub(crate) events: Vec<BlockEvent>,
}

impl Indexer {
    /// Models that fit, with their block sizes.
    pub(crate) fn dumpable(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<(ModelKey, BlockSize)> {
        let models = self.models_of(model_name, tenant_id).into_iter();
        models.map(|model| (model.key.clone(), model.block_size)).collect()
    }

    /// What each rank of a model holds, one rank at a time: each at one moment, with the index
    /// unlocked in between, and no more than one rank in memory.
    pub(crate) fn dump(&self, key: &ModelKey) -> impl Iterator<Item = RankDump> + use<> {
        let model = self.models.read().get(key).cloned();
        let ranks = model.as_ref().map(|model| model.ranks()).unwrap_or_default();
        ranks.into_iter().filter_map(move |(instance, rank)| model.as_ref().map(|model| snapshot(model, instance, rank)))
    }
}

fn snapshot(model: &Arc<Model>, instance: InstanceId, rank: WorkerRank) -> RankDump {
    let listeners = model.instances.read().get(&instance).map(|found| found.listeners.clone()).unwrap_or_default();
    let listener = listeners.get(&rank.dp_rank);
    let record = RankRecord {
        model_name: model.key.model_name.clone(),
        tenant_id: model.key.tenant_id.clone(),
        block_size: model.block_size.tokens(),
        instance_id: instance,
        dp_rank: rank.dp_rank.0,
        engine: listener.map(|listener| engine_record(listener)),
        stream: listener.map(|listener| stream_record(listener, rank)),
        windows: model.windows.in_use().map(Into::into).collect(),
        holds: Tally::default(),
    };
    RankDump { record, events: model.index.dump(rank) }
}

fn engine_record(listener: &Listener) -> EngineRecord {
    let options = &listener.options;
    EngineRecord {
        endpoint: options.endpoint.clone(),
        replay_endpoint: options.replay_endpoint.clone(),
        lora_name: options.lora_name.clone(),
        engine: options.engine.and_then(EngineKind::named),
        removal: options.removed_copies.into(),
    }
}

fn stream_record(listener: &Listener, rank: WorkerRank) -> StreamRecord {
    StreamRecord { cursor: None, epoch: 0, trust: listener.trust(rank.dp_rank) }
}
