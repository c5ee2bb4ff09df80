//! Streaming reader of a dump that is one JSON object.

use std::fmt;
use std::io::Read;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_types::names::shorten;
use flash_indexer_types::{InstanceId, ModelKey};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::entry::{DumpSink, DumpSummary, RankName};
use super::error::{DumpError, read_error};
use super::event::{ReadEvent, ReadTier};
use super::record::RankRecord;
use super::totals::ReceivedTotals;

/// Reads `{"model:tenant": {"block_size", "events"}, …}`.
pub(super) fn read<S: DumpSink>(input: impl Read, sink: &mut S) -> Result<DumpSummary, DumpError> {
    let mut visitor = DumpVisitor { sink, failed: None, summary: DumpSummary::default() };
    let mut deserializer = serde_json::Deserializer::from_reader(input);
    let read = deserializer.deserialize_map(Models(&mut visitor)).and_then(|()| deserializer.end());
    match (visitor.failed, read) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(visitor.summary),
        (None, Err(error)) => Err(match error.classify() {
            Category::Eof => DumpError::CutOff,
            Category::Io => read_error(error.into()),
            Category::Syntax | Category::Data => DumpError::Damaged {
                position: format!("byte {} of line {}", error.column(), error.line()),
                cause: shorten(error.to_string()),
            },
        }),
    }
}

struct DumpVisitor<'s, S> {
    sink: &'s mut S,
    /// Error of the sink or of the totals, which stops the parser.
    failed: Option<DumpError>,
    summary: DumpSummary,
}

impl<S> DumpVisitor<'_, S> {
    fn stop_on_error<T, E: de::Error>(&mut self, result: Result<T, impl Into<DumpError>>) -> Result<T, E> {
        result.map_err(|error| {
            self.failed = Some(error.into());
            E::custom("the sink rejects the dump")
        })
    }
}

/// Visitor of the whole object.
struct Models<'r, 's, S>(&'r mut DumpVisitor<'s, S>);

impl<'de, S: DumpSink> Visitor<'de> for Models<'_, '_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of models")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let (model_name, tenant_id) = name.rsplit_once(':').unwrap_or((&name, ModelKey::DEFAULT_TENANT));
            let key = ModelKey::new(model_name, Some(tenant_id.to_owned()));
            key.check().map_err(de::Error::custom)?;
            map.next_value_seed(ModelVisitor {
                reading: self.0,
                key,
                block_size: None,
                received: KeyedMap::default(),
            })?;
        }
        Ok(())
    }
}

/// Seed of one model's object.
struct ModelVisitor<'r, 's, S> {
    reading: &'r mut DumpVisitor<'s, S>,
    key: ModelKey,
    block_size: Option<BlockSize>,
    received: KeyedMap<(InstanceId, u32), ReceivedTotals>,
}

impl<'de, S: DumpSink> DeserializeSeed<'de> for ModelVisitor<'_, '_, S> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DumpSink> Visitor<'de> for ModelVisitor<'_, '_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model with block_size and events")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut records: Option<Vec<RankRecord>> = None;
        let mut has_events = false;
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "block_size" => {
                    let size = BlockSize::new(map.next_value()?);
                    self.block_size = Some(size.ok_or_else(|| de::Error::custom("a block size of 0"))?);
                }
                "model_name" if !has_events => self.key.model_name = map.next_value()?,
                "tenant_id" if !has_events => self.key.tenant_id = map.next_value()?,
                "events" => {
                    self.key.check().map_err(de::Error::custom)?;
                    has_events = true;
                    map.next_value_seed(Events(&mut self))?;
                }
                "ranks" => records = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !has_events {
            return Err(de::Error::missing_field("events"));
        }
        self.finish(records)
    }
}

impl<S: DumpSink> ModelVisitor<'_, '_, S> {
    fn finish<E: de::Error>(mut self, records: Option<Vec<RankRecord>>) -> Result<(), E> {
        let has_records = records.is_some();
        for record in records.unwrap_or_default() {
            record.check_names().map_err(E::custom)?;
            self.block_size.map_or(Ok(()), |block_size| record.check_groups(block_size)).map_err(E::custom)?;
            let received = self.received.remove(&(record.instance_id.clone(), record.dp_rank)).unwrap_or_default();
            self.count(&received);
            self.reading.stop_on_error(received.check(&record))?;
            let accepted = self.reading.sink.rank(record);
            self.reading.stop_on_error(accepted)?;
        }
        if has_records && let Some((instance, dp_rank)) = self.received.keys().next() {
            return Err(E::custom(format!("rank {dp_rank} of instance {instance} is missing among the ranks")));
        }
        for received in std::mem::take(&mut self.received).into_values() {
            self.count(&received);
        }
        Ok(())
    }

    fn count(&mut self, received: &ReceivedTotals) {
        self.reading.summary.ranks += 1;
        self.reading.summary.holds += received.blocks;
    }
}

/// Seed of a model's list of events.
struct Events<'m, 'r, 's, S>(&'m mut ModelVisitor<'r, 's, S>);

impl<'de, S: DumpSink> DeserializeSeed<'de> for Events<'_, '_, '_, S> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: DumpSink> Visitor<'de> for Events<'_, '_, '_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        #[derive(serde::Deserialize)]
        struct EventVisitor {
            worker_id: InstanceId,
            storage_tier: Option<ReadTier>,
            event: ReadEvent,
        }
        let model = self.0;
        let block_size = model.block_size.ok_or_else(|| de::Error::custom("block_size must stand before events"))?;
        while let Some(EventVisitor { worker_id, storage_tier, event }) = list.next_element()? {
            let dp_rank = event.dp_rank.unwrap_or_default();
            let received = model.received.entry((worker_id.clone(), dp_rank)).or_default();
            let entry = received.count(storage_tier, event.data.stored, block_size).map_err(de::Error::custom)?;
            let dp_rank = DpRank(dp_rank);
            let rank = RankName { key: &model.key, block_size, instance: &worker_id, dp_rank };
            let accepted = model.reading.sink.entry(rank, entry);
            model.reading.stop_on_error(accepted)?;
        }
        Ok(())
    }
}
