//! Decoding of the store's response to a query.

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_core::{PerTier, Tier};
use redis::Value;

use crate::error::StoreError;
use crate::identity::HolderId;

/// Depths of one rank for a query's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderDepth {
    /// The rank.
    pub holder: HolderId,
    /// Number of leading blocks held in a tier and the faster ones together.
    pub blocks: PerTier<u32>,
}

/// Ranks that a query has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRanks {
    /// Depths of the ranks that hold the prompt's first block.
    pub depths: Vec<HolderDepth>,
    /// Ranks that the store has only in part, although the directory may still list them as completely written.
    pub incomplete: Vec<HolderId>,
}

/// Bytes of one entry: an epoch id and a tier.
const ENTRY_BYTES: usize = 9;

type EpochId = [u8; 8];

/// Consecutive blocks with the same entries.
struct Interval {
    /// Position of the last block, counted from 1.
    last: u32,
    entries: KeyedMap<EpochId, u8>,
}

/// Decoded response to a query.
#[derive(Debug, Default)]
pub(crate) struct QueryResponse {
    pub(crate) found: FoundRanks,
    /// Keys whose values no replica writes. They count as missing.
    pub(crate) invalid: Vec<Vec<u8>>,
}

/// Decodes the response of `find.lua` to a query of `blocks` blocks.
pub(crate) fn decode(response: Value, blocks: u32) -> Result<QueryResponse, StoreError> {
    let invalid_response = StoreError::Protocol("unexpected reply to a query");
    let Value::Array(parts) = response else { return Err(invalid_response) };
    if parts.is_empty() {
        return Ok(QueryResponse::default());
    }
    let Ok(
        [
            Value::BulkString(epochs),
            Value::Array(holders),
            Value::Array(changes),
            Value::Array(entries),
            Value::Array(invalid),
            Value::BulkString(incomplete),
        ],
    ) = <[Value; 6]>::try_from(parts)
    else {
        return Err(invalid_response);
    };
    let invalid = invalid.into_iter().filter_map(|key| match key {
        Value::BulkString(key) => Some(key),
        _ => None,
    });
    let intervals = intervals(changes, entries, blocks).ok_or(invalid_response)?;
    let mut found: KeyedMap<HolderId, PerTier<u32>> = KeyedMap::default();
    for (epoch, holder) in epochs.as_chunks().0.iter().zip(holders) {
        let Value::BulkString(holder) = holder else { continue };
        let Ok(holder) = holder.as_slice().try_into() else { continue };
        let depths = depths(*epoch, &intervals);
        // Two replicas may publish one rank for a moment: the smaller depth counts.
        let agreed = found.entry(HolderId(u64::from_be_bytes(holder))).or_insert(depths);
        agreed.0.iter_mut().zip(depths.0).for_each(|(agreed, depth)| *agreed = depth.min(*agreed));
    }
    let found = found.into_iter().map(|(holder, blocks)| HolderDepth { holder, blocks });
    let found = found.filter(|found| found.blocks[Tier::External] > 0);
    let incomplete = incomplete.as_chunks().0.iter().map(|&holder| HolderId(u64::from_be_bytes(holder)));
    let found = FoundRanks { depths: found.collect(), incomplete: incomplete.collect() };
    Ok(QueryResponse { found, invalid: invalid.collect() })
}

fn intervals(changes: Vec<Value>, entries: Vec<Value>, blocks: u32) -> Option<Vec<Interval>> {
    let starts = changes.iter().map(|start| match start {
        Value::Int(start) => u32::try_from(*start).ok(),
        _ => None,
    });
    let starts: Vec<u32> = starts.collect::<Option<_>>()?;
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([blocks]);
    let intervals = ends.zip(entries).map_while(|(last, entries)| match entries {
        Value::BulkString(entries) => {
            let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter();
            let entries = entries.map(|[epoch @ .., tier]| (*epoch, *tier)).collect();
            Some(Interval { last, entries })
        }
        // No block is held from here on.
        _ => None,
    });
    Some(intervals.collect())
}

/// Depth of an epoch in each tier.
fn depths(epoch: EpochId, intervals: &[Interval]) -> PerTier<u32> {
    let mut depths = PerTier::default();
    for tier in Tier::ALL {
        let held = intervals
            .iter()
            .take_while(|interval| interval.entries.get(&epoch).is_some_and(|&slowest| slowest <= tier as u8));
        depths[tier] = held.last().map_or(0, |interval| interval.last);
    }
    depths
}
