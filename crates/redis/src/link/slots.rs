//! Slot table of a cluster.

use redis::Value;

/// Host and port of a node.
pub(super) type Address = (String, u16);

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Slot ranges with their masters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slots(Vec<Range>);

#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    master: Address,
}

impl Slots {
    /// Decodes the response to `CLUSTER SLOTS` of the node at this address.
    pub(super) fn read(response: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(ranges) = response else { return None };
        let range = |range: &Value| {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
            let [host, Value::Int(port), ..] = master.as_slice() else { return None };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
                // The response does not name the node's own host.
                _ => asked.0.clone(),
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if first > last || last >= SLOTS {
                return None;
            }
            Some(Range { first, last, master: (host, u16::try_from(*port).ok()?) })
        };
        ranges.iter().map(range).collect::<Option<_>>().map(Self)
    }

    /// The master of a key; none if the key's slot has no master.
    pub(super) fn master_of(&self, key: &str) -> Option<&Address> {
        let slot = slot(key);
        self.0.iter().find(|range| (range.first..=range.last).contains(&slot)).map(|range| &range.master)
    }

    /// Whether every slot has a master.
    pub(super) fn is_complete(&self) -> bool {
        self.0.iter().map(|range| u32::from(range.last - range.first) + 1).sum::<u32>() >= u32::from(SLOTS)
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Address> {
        self.0.iter().map(|range| &range.master)
    }
}

/// The slot of a key, computed from the part in braces if there is one.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification defines it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_map_to_the_slots_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3, "the specification's example");
        assert_eq!(slot("foo"), 12_182, "result of CLUSTER KEYSLOT");
        assert_eq!(slot("{foo}.bar"), slot("foo"));
    }

    #[test]
    fn a_slot_table_is_decoded() {
        let node = |host: &[u8], port| Value::Array(vec![Value::BulkString(host.to_vec()), Value::Int(port)]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let response = Value::Array(vec![range(0, 9_000, node(b"", 1)), range(9_001, 16_383, node(b"b", 2))]);
        let slots = Slots::read(&response, &("a".to_owned(), 9)).expect("a table");
        assert_eq!(slots.master_of("foo"), Some(&("b".to_owned(), 2)));
        assert_eq!(slots.masters().collect::<Vec<_>>(), [&("a".to_owned(), 1), &("b".to_owned(), 2)]);
        assert!(slots.is_complete());
        let part = Value::Array(vec![range(0, 9_000, node(b"b", 1))]);
        assert!(!Slots::read(&part, &("a".to_owned(), 9)).expect("a table").is_complete());
        let turned = Value::Array(vec![range(9_000, 0, node(b"b", 1))]);
        assert_eq!(Slots::read(&turned, &("a".to_owned(), 9)), None);
        assert_eq!(Slots::read(&Value::Int(1), &("a".to_owned(), 9)), None);
    }
}
