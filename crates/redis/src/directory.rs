//! The list of holders, as the store had it a moment ago.

use std::time::Instant;

use flash_indexer_core::keyed::KeyedMap;
use redis::Value;

use crate::holder::{HolderId, PublisherId, Scope};
use crate::link::StoreError;

/// One holder in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRank {
    /// Where its blocks belong.
    pub scope: Scope,
    /// What its publisher says it is.
    pub description: Vec<u8>,
    /// What its publisher says of how it fares; changes often.
    pub state: Vec<u8>,
    /// Who publishes it.
    pub publisher: PublisherId,
}

/// Everybody whose publisher is believed.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub(crate) version: Vec<u8>,
    read_at: Option<Instant>,
    holders: KeyedMap<HolderId, ListedRank>,
}

/// A description in the store has its scope in front.
pub(crate) fn with_scope(scope: Scope, description: &[u8]) -> Vec<u8> {
    [&scope.number().to_be_bytes(), description].concat()
}

impl Directory {
    /// One holder.
    #[must_use]
    pub fn get(&self, holder: HolderId) -> Option<&ListedRank> {
        self.holders.get(&holder)
    }

    /// All holders, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (HolderId, &ListedRank)> {
        self.holders.iter().map(|(&id, listed)| (id, listed))
    }

    /// The list after this one, from the store's answer.
    pub(crate) fn next(&self, answer: Value, read_at: Instant) -> Result<Self, StoreError> {
        let strange = StoreError::Protocol("the list of holders");
        let Value::Array(parts) = answer else { return Err(strange) };
        let mut parts = parts.into_iter();
        let (Some(Value::BulkString(version)), Some(states)) = (parts.next(), parts.next()) else {
            return Err(strange);
        };
        let states = by_holder(states)?;
        let mut next = match (parts.next(), parts.next()) {
            (Some(publishers), Some(descriptions)) => {
                let publishers = by_holder(publishers)?;
                let listed = by_holder(descriptions)?.into_iter().filter_map(|(id, description)| {
                    let (scope, description) = description.split_first_chunk()?;
                    let publisher = u64::from_be_bytes(publishers.get(&id)?.as_slice().try_into().ok()?);
                    let listed = ListedRank {
                        scope: Scope::from_number(u64::from_be_bytes(*scope)),
                        description: description.to_vec(),
                        state: Vec::new(),
                        publisher: PublisherId(publisher),
                    };
                    Some((id, listed))
                });
                Self { version, read_at: None, holders: listed.collect() }
            }
            _ => self.clone(),
        };
        for (id, state) in states {
            if let Some(listed) = next.holders.get_mut(&id) {
                listed.state = state;
            }
        }
        next.read_at = Some(read_at);
        Ok(next)
    }

    /// When the store was asked for it; none if it has not answered yet.
    #[must_use]
    pub fn read_at(&self) -> Option<Instant> {
        self.read_at
    }
}

/// Pairs of a flat list, or of a map.
fn by_holder(answer: Value) -> Result<KeyedMap<HolderId, Vec<u8>>, StoreError> {
    let strange = || StoreError::Protocol("a table of holders");
    let flat: Vec<Value> = match answer {
        Value::Array(flat) => flat,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => return Err(strange()),
    };
    let mut table = KeyedMap::default();
    let mut flat = flat.into_iter();
    while let Some(key) = flat.next() {
        let (Value::BulkString(key), Some(Value::BulkString(value))) = (key, flat.next()) else {
            return Err(strange());
        };
        // The script has removed names that are none of ours.
        if let Ok(key) = key.as_slice().try_into() {
            table.insert(HolderId(u64::from_be_bytes(key)), value);
        }
    }
    Ok(table)
}
