//! Records of ranks, for dumps to peers and for comparisons with peers.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{Block, DpRank, HeldBlock, WorkerRank};
use flash_indexer_ingest::{DecoderStateDetail, Listener, ModelSink, ReadAt, ResumePoint};
use flash_indexer_snapshot::{EngineRecord, GroupRecord, RankDump, RankRecord, StreamRecord, Tally};
use flash_indexer_types::{InstanceId, ModelKey, RankId, RankPosition, Trust};

use super::Indexer;
use super::readings::{in_parts, reading_of};
use crate::model::Model;

/// Longest wait for a reading after its message has arrived, for busy threads.
const READ_WAIT_MAX: Duration = Duration::from_secs(1);

/// A rank cannot be digested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The rank is not registered.
    #[error("{0} has no listener; see GET /workers")]
    Unknown(RankId),
    /// The rank is not registered, and recovery may restore it.
    #[error("{0} has no listener yet, and this indexer is recovering; retry")]
    Recovering(RankId),
    /// The stream of the rank is past the message, or does not reach it in time.
    #[error("{0} is past message {1}, or does not reach it in time; request a later one, or wait longer")]
    NotReached(RankId, u64),
    /// The bounded index has only a part of the rank's blocks.
    #[error("{0} holds more than --memory-max leaves room for, so its digest is not comparable")]
    Partial(RankId),
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

impl Indexer {
    /// Models that match a name and a tenant, with their block sizes.
    pub fn matching_models(&self, model_name: Option<&str>, tenant_id: Option<&str>) -> Vec<(ModelKey, BlockSize)> {
        let models = self.models_of(model_name, tenant_id).into_iter();
        models.map(|model| (model.key.clone(), model.block_size)).collect()
    }

    /// Records and dumps of a model's ranks, one at a time.
    pub fn records<'i>(
        &'i self,
        key: &ModelKey,
        instance: Option<&InstanceId>,
    ) -> impl Iterator<Item = (RankRecord, RankDump)> + use<'i> {
        let model = self.find_model(key);
        self.dump_instance(key, instance).filter_map(move |(rank, listener)| {
            let model = model.as_ref()?;
            let groups =
                rank.named_groups.as_ref().map(|named| GroupRecord::all(model.block_size, named, &rank.secondary));
            let of = (&rank.instance, rank.dp_rank);
            let mut record = record(model, of, listener.as_deref(), rank.position, (Tally::default(), groups));
            if let Some(engine) = &mut record.engine {
                let of = RankId { model: model.key.clone(), instance: rank.instance.clone(), dp_rank: rank.dp_rank };
                engine.source = self.owners.source(&of);
            }
            Some((record, rank))
        })
    }

    /// The record of a rank with its digest, now or after the message `at`. Waits for that message for `patience`.
    /// Meanwhile the messages of its instance wait, and those of other instances are applied.
    pub fn digest(&self, rank: &RankId, at: ReadAt, patience: Duration) -> Result<RankRecord, DigestError> {
        // Read first: a rank is registered before recovery ends.
        let is_recovering = self.is_recovering();
        let unknown = || match is_recovering {
            true => DigestError::Recovering(rank.clone()),
            false => DigestError::Unknown(rank.clone()),
        };
        let model = self.find_model(&rank.model).ok_or_else(unknown)?;
        let listener = model.listener(&rank.instance, rank.dp_rank).ok_or_else(unknown)?;
        let patience = (at != ReadAt::Now).then_some(patience + READ_WAIT_MAX);
        let read = self.read(&listener, rank.dp_rank, (at, DecoderStateDetail::Brief), patience, {
            let model = Arc::clone(&model);
            let of = WorkerRank { worker: listener.worker, dp_rank: rank.dp_rank };
            let mut read_part = in_parts(Arc::clone(&model), reading_of(&model, of));
            // The rank may become partial during the wait.
            move || Some((read_part()?, model.is_partial(of)))
        });
        let (point, (reading, is_partial)) = read.ok_or_else(|| match at {
            ReadAt::Now => DigestError::Stopping,
            ReadAt::Message(sequence) => DigestError::NotReached(rank.clone(), sequence),
        })?;
        if is_partial {
            return Err(DigestError::Partial(rank.clone()));
        }
        let ResumePoint { mut position, decoder_state, .. } = point;
        if !listener.options.has_events() {
            position.trust = Trust::Approximate;
        }
        let groups =
            decoder_state.groups.map(|named| GroupRecord::all(model.block_size, &named, &reading.secondary_stores()));
        let holds = tally(&reading.held.into_blocks());
        Ok(record(&model, (&rank.instance, rank.dp_rank), Some(&listener), Some(position), (holds, groups)))
    }
}

fn tally(held: &[HeldBlock]) -> Tally {
    let mut tally = Tally::default();
    for HeldBlock { sequence, parent, local, copies } in held {
        for (tier, &copies) in copies.iter().filter(|(_, copies)| **copies > 0) {
            tally.add(tier, copies, *parent, &[Block { sequence: *sequence, local: *local }]);
        }
    }
    tally
}

fn record(
    model: &Model,
    (instance, dp_rank): (&InstanceId, DpRank),
    listener: Option<&Listener>,
    position: Option<RankPosition>,
    (holds, groups): (Tally, Option<Vec<GroupRecord>>),
) -> RankRecord {
    RankRecord {
        model_name: model.key.model_name.clone(),
        tenant_id: model.key.tenant_id.clone(),
        block_size: model.block_size.tokens(),
        instance_id: instance.clone(),
        dp_rank: dp_rank.0,
        engine: listener.map(engine_record),
        stream: position.map(stream_record),
        windows: model.windows.in_use().map(Into::into).collect(),
        holds,
        groups,
        remembers: None,
    }
}

fn engine_record(listener: &Listener) -> EngineRecord {
    let options = &listener.options;
    EngineRecord {
        endpoint: options.endpoint.clone(),
        replay_endpoint: options.replay_endpoint.clone(),
        lora_name: options.lora_name.clone(),
        engine: options.engine,
        removal: options.removed_copies.into(),
        extra_keys: options.extra_keys,
        cache_blocks: options.cache_blocks,
        shared_caches: options.shared_caches.ids().to_vec(),
        source: None,
    }
}

fn stream_record(position: RankPosition) -> StreamRecord {
    let RankPosition { cursor, epoch, trust, unlisted_degraded } = position;
    StreamRecord { cursor: cursor.map(Into::into), epoch, trust, unlisted_degraded }
}

#[cfg(test)]
mod tests {
    use flash_indexer_types::Registration;

    use super::*;
    use crate::IndexerOptions;

    #[test]
    fn a_rank_that_is_unregistered_while_a_dump_is_written_is_not_in_it() {
        let indexer = Indexer::start(IndexerOptions::default()).expect("it starts");
        let (key, size) = (ModelKey::new("m", None), BlockSize::new(1).expect("a size"));
        for (instance, dp_rank) in [(1, 0), (1, 1), (2, 0)] {
            let endpoint = format!("tcp://127.0.0.1:{instance}");
            let registration = Registration::new(InstanceId::number(instance), key.clone(), endpoint, size);
            let dp_rank = DpRank(dp_rank);
            indexer.register(Registration { dp_rank, ..registration }).expect("it is registered");
        }

        let mut records = indexer.records(&key, None).map(|(record, _)| record);
        let first = records.next().expect("the first rank");
        assert!(first.engine.is_some() && first.stream.is_some(), "{first:?}");
        indexer.unregister(&InstanceId::number(1), "m", None, Some(DpRank(1)));
        indexer.unregister(&InstanceId::number(2), "m", None, None);
        let others: Vec<_> = records.collect();
        assert!(others.is_empty(), "{others:?}");
    }
}
