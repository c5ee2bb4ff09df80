//! Directory of the ranks in the store, as of its last read.

use std::time::{Duration, Instant};

use flash_indexer_core::keyed::KeyedMap;
use redis::Value;

use crate::error::StoreError;
use crate::identity::{HolderId, PublisherId, Scope};

/// One rank of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRank {
    /// The rank's scope.
    pub scope: Scope,
    /// Static description of the rank, opaque to the store.
    pub description: Vec<u8>,
    /// Status of the rank, opaque to the store; changes often.
    pub state: Vec<u8>,
    /// End of the lease of its publisher, which the publisher renews. The status is unknown from then on, and the entries
    /// of the rank may have expired.
    pub valid_until: Instant,
    /// The replica that publishes the rank.
    pub publisher: PublisherId,
}

/// Directory of all ranks whose publisher's lease is valid.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub(crate) version: Vec<u8>,
    holders: KeyedMap<HolderId, ListedRank>,
}

/// Encodes a description as stored: the scope first.
pub(crate) fn with_scope(scope: Scope, description: &[u8]) -> Vec<u8> {
    [&scope.0.to_be_bytes(), description].concat()
}

impl Directory {
    /// The entry of one rank.
    #[must_use]
    pub fn get(&self, holder: HolderId) -> Option<&ListedRank> {
        self.holders.get(&holder)
    }

    /// All ranks, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (HolderId, &ListedRank)> {
        self.holders.iter().map(|(&id, listed)| (id, listed))
    }

    /// The next directory, decoded from the store's response to a request at `read_at`.
    pub(crate) fn next(&self, response: Value, read_at: Instant) -> Result<Self, StoreError> {
        let invalid_response = StoreError::Protocol("unexpected reply to a read of the directory");
        let Value::Array(parts) = response else { return Err(invalid_response) };
        let mut parts = parts.into_iter();
        let (Some(Value::BulkString(version)), Some(states), Some(leases)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid_response);
        };
        let (states, leases) = (table_by_holder(states)?, table_by_holder(leases)?);
        let mut next = match (parts.next(), parts.next()) {
            (Some(publishers), Some(descriptions)) => {
                let publishers = table_by_holder(publishers)?;
                let listed = table_by_holder(descriptions)?.into_iter().filter_map(|(id, description)| {
                    let (scope, description) = description.split_first_chunk()?;
                    let publisher = u64::from_be_bytes(publishers.get(&id)?.as_slice().try_into().ok()?);
                    let listed = ListedRank {
                        scope: Scope(u64::from_be_bytes(*scope)),
                        description: description.to_vec(),
                        state: Vec::new(),
                        valid_until: read_at,
                        publisher: PublisherId(publisher),
                    };
                    Some((id, listed))
                });
                Self { version, holders: listed.collect() }
            }
            _ => self.clone(),
        };
        for (id, state) in states {
            if let Some(listed) = next.holders.get_mut(&id) {
                listed.state = state;
            }
        }
        for (id, remaining) in leases {
            let millis = str::from_utf8(&remaining).ok().and_then(|millis| millis.parse().ok()).unwrap_or_default();
            let remaining = Duration::from_millis(millis);
            if let Some(listed) = next.holders.get_mut(&id) {
                // Never too late: the store responded after the request.
                listed.valid_until = read_at + remaining;
            }
        }
        Ok(next)
    }
}

/// Decodes a hash table: a flat list of pairs, or a map.
fn table_by_holder(response: Value) -> Result<KeyedMap<HolderId, Vec<u8>>, StoreError> {
    let invalid_response = || StoreError::Protocol("unexpected table of the directory");
    let flat: Vec<Value> = match response {
        Value::Array(flat) => flat,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => return Err(invalid_response()),
    };
    let mut table = KeyedMap::default();
    let mut flat = flat.into_iter();
    while let Some(key) = flat.next() {
        let (Value::BulkString(key), Some(Value::BulkString(value))) = (key, flat.next()) else {
            return Err(invalid_response());
        };
        // The script has removed the fields whose names are not holder ids.
        if let Ok(key) = key.as_slice().try_into() {
            table.insert(HolderId(u64::from_be_bytes(key)), value);
        }
    }
    Ok(table)
}
