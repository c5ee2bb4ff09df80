//! Extra keys of a block: its adapter and multimodal items, as `cbor-fnv` hashes them.

use std::collections::BTreeMap;

use flash_indexer_wire::cbor::{self, Sink};

/// Extra keys of a block, the third element of its hash input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Extra {
    /// No extra key.
    #[default]
    Nil,
    /// Such as an adapter's number.
    Integer(i64),
    /// Such as an adapter's name.
    Text(String),
    /// Such as several keys by name.
    Map(BTreeMap<String, Extra>),
    /// Such as one map for each multimodal item.
    List(Vec<Extra>),
}

impl Extra {
    /// Multimodal items by the hashes of their content: a list of maps with one entry each. None is [`Extra::Nil`].
    pub fn items<'a>(hashes: impl IntoIterator<Item = &'a str>) -> Self {
        let item = |hash: &str| Self::Map(BTreeMap::from([("Hash".to_owned(), Self::Text(hash.to_owned()))]));
        match hashes.into_iter().map(item).collect::<Vec<_>>() {
            none if none.is_empty() => Self::Nil,
            items => Self::List(items),
        }
    }

    pub(super) fn encode(&self, out: &mut impl Sink) {
        match self {
            Self::Nil => cbor::null(out),
            Self::Integer(integer) => cbor::integer(out, *integer),
            Self::Text(text) => cbor::text(out, text),
            Self::Map(map) => {
                // Canonical order is that of the encoded keys: shorter ones first.
                let mut entries: Vec<(&String, &Self)> = map.iter().collect();
                entries.sort_by_key(|(key, _)| (key.len(), *key));
                cbor::map(out, entries.len());
                for (key, value) in entries {
                    cbor::text(out, key);
                    value.encode(out);
                }
            }
            Self::List(list) => {
                cbor::array(out, list.len());
                list.iter().for_each(|item| item.encode(out));
            }
        }
    }
}
