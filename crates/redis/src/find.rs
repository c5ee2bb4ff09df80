//! What the store's answer to a query says.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{PerTier, Tier};
use redis::Value;

use crate::holder::HolderId;
use crate::link::StoreError;

/// How much of a query's prefix one holder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderDepth {
    /// The holder.
    pub holder: HolderId,
    /// Leading blocks held when a tier and the faster ones are used together.
    pub blocks: PerTier<u32>,
}

/// The store could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// It did not answer, or not in time.
    #[error(transparent)]
    Link(#[from] StoreError),
}

/// Bytes of one entry: a life, and the number of a tier.
const ENTRY_BYTES: usize = 9;

type EpochId = [u8; 8];

/// Blocks that have the same entries.
struct Interval {
    /// Number of the last one.
    last: u32,
    entries: KeyedMap<EpochId, u8>,
}

/// What the store answers to a query.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) found: Vec<HolderDepth>,
    /// Keys whose values are none of ours. They count as missing.
    pub(crate) invalid: Vec<Vec<u8>>,
}

/// Reads the answer of `find.lua` for a query of so many blocks.
pub(crate) fn read(answer: Value, blocks: u32) -> Result<Answer, StoreError> {
    let strange = StoreError::Protocol("an answer to a query");
    let Value::Array(parts) = answer else { return Err(strange) };
    if parts.is_empty() {
        return Ok(Answer::default());
    }
    let Ok(
        [
            Value::BulkString(lives),
            Value::Array(holders),
            Value::Array(changes),
            Value::Array(entries),
            Value::Array(invalid),
        ],
    ) = <[Value; 5]>::try_from(parts)
    else {
        return Err(strange);
    };
    let invalid = invalid.into_iter().filter_map(|key| match key {
        Value::BulkString(key) => Some(key),
        _ => None,
    });
    let stretches = stretches(changes, entries, blocks).ok_or(strange)?;
    let mut found: KeyedMap<HolderId, PerTier<u32>> = KeyedMap::default();
    for (life, holder) in lives.as_chunks().0.iter().zip(holders) {
        let Value::BulkString(holder) = holder else { continue };
        let Ok(holder) = holder.as_slice().try_into() else { continue };
        let depths = depths(*life, &stretches);
        // Two replicas may publish one rank for a moment: what both say is so.
        let agreed = found.entry(HolderId(u64::from_be_bytes(holder))).or_insert(depths);
        agreed.0.iter_mut().zip(depths.0).for_each(|(agreed, depth)| *agreed = depth.min(*agreed));
    }
    let found = found.into_iter().map(|(holder, blocks)| HolderDepth { holder, blocks });
    let found = found.filter(|found| found.blocks[Tier::External] > 0);
    Ok(Answer { found: found.collect(), invalid: invalid.collect() })
}

fn stretches(changes: Vec<Value>, entries: Vec<Value>, blocks: u32) -> Option<Vec<Interval>> {
    let starts = changes.iter().map(|start| match start {
        Value::Int(start) => u32::try_from(*start).ok(),
        _ => None,
    });
    let starts: Vec<u32> = starts.collect::<Option<_>>()?;
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([blocks]);
    let stretches = ends.zip(entries).map_while(|(last, entries)| match entries {
        Value::BulkString(entries) => {
            let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter();
            let entries = entries.map(|[life @ .., tier]| (*life, *tier)).collect();
            Some(Interval { last, entries })
        }
        // Nothing from here on.
        _ => None,
    });
    Some(stretches.collect())
}

/// How deep a life goes, tier by tier.
fn depths(life: EpochId, stretches: &[Interval]) -> PerTier<u32> {
    let mut depths = PerTier::default();
    for tier in Tier::ALL {
        let held = stretches
            .iter()
            .take_while(|stretch| stretch.entries.get(&life).is_some_and(|&slowest| slowest <= tier as u8));
        depths[tier] = held.last().map_or(0, |stretch| stretch.last);
    }
    depths
}
